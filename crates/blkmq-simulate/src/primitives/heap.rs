//! folly's benchmarks of priority queues: a binary heap under a lock, or under flat combining.

use std::sync::Mutex as Plain;
use std::sync::atomic::{AtomicBool, Ordering};

use blkmq_vcpu::cache::Picoseconds;
use blkmq_vcpu::sync::atomic::AtomicU64;
use blkmq_vcpu::sync::{Arc, Mutex};
use blkmq_vcpu::{LockKind, Random, place_at, work};

use super::flat::Flat;
use super::{OnLine, Round, Rounds};
use crate::published::QueueDesign;

/// What the holder does to take over an operation of another thread.
const OTHER: Picoseconds = 5_000;

/// Numbers of 4 bytes on a line of 64.
const ON_A_LINE: usize = 16;

/// Numbers for which a heap that is empty at first has room.
const MOST: usize = 1 << 16;

/// A heap of numbers, the greatest first, which touches the lines that such a heap in an array touches.
#[derive(Debug)]
struct Heap {
    numbers: Vec<u32>,
    /// The lines of the heap's memory, which hold nothing.
    lines: Vec<OnLine<AtomicU64>>,
}

impl Heap {
    fn new(items: usize, random: &mut Random) -> Self {
        let lines: Vec<OnLine<AtomicU64>> = OnLine::vec("heap", items.max(MOST) / ON_A_LINE + 2);
        // So that each is in a cache.
        lines.iter().for_each(|line| _ = line.0.load(Ordering::Relaxed));
        let mut numbers: Vec<u32> = (0..items).map(|_| random.below(1 << 32) as u32).collect();
        // A list that falls is a heap.
        numbers.sort_unstable_by(|one, other| other.cmp(one));
        Self { numbers, lines }
    }

    fn load(&self, at: usize) -> u32 {
        self.lines[at / ON_A_LINE].0.load(Ordering::Relaxed);
        self.numbers[at]
    }

    fn store(&mut self, at: usize, number: u32) {
        self.lines[at / ON_A_LINE].0.store(0, Ordering::Relaxed);
        self.numbers[at] = number;
    }

    fn push(&mut self, number: u32) {
        self.numbers.push(number);
        let mut at = self.numbers.len() - 1;
        while at > 0 {
            let above = (at - 1) / 2;
            let there = self.load(above);
            if there >= number {
                break;
            }
            self.store(at, there);
            at = above;
        }
        self.store(at, number);
    }

    fn pop(&mut self) -> Option<u32> {
        let last = self.numbers.len().checked_sub(1)?;
        let (first, number) = (self.load(0), self.load(last));
        self.numbers.pop();
        let mut at = 0;
        while 2 * at + 1 < last {
            let left = 2 * at + 1;
            let greater = if left + 1 < last && self.load(left + 1) > self.load(left) { left + 1 } else { left };
            let there = self.load(greater);
            if there <= number {
                break;
            }
            self.store(at, there);
            at = greater;
        }
        if last > 0 {
            self.store(at, number);
        }
        Some(first)
    }
}

/// How threads come to the heap.
#[derive(Debug)]
enum Way {
    Lock(OnLine<Mutex<()>>),
    Flat(Arc<Flat>),
}

/// A heap, how threads come to it, and what each of them wants there.
#[derive(Debug)]
struct Queue {
    way: Way,
    /// One thread at a time is here, by the way. So this lock is no part of what is modelled.
    heap: Plain<(Heap, Random)>,
    /// By thread: whether it pushes. It stands in the record of flat combining.
    pushes: Vec<AtomicBool>,
    /// By thread: whether its pop found something.
    found: Vec<AtomicBool>,
    /// The work of an operation beside its accesses to lines.
    inside: Picoseconds,
}

impl Queue {
    fn new(is_flat: bool, items: usize, threads: usize, inside: Picoseconds) -> Arc<Self> {
        let way = if is_flat { Way::Flat(Flat::new(threads)) } else { Way::Lock(OnLine::default()) };
        let mut random = Random::new(1);
        let heap = Heap::new(items, &mut random);
        let no = || (0..threads).map(|_| AtomicBool::new(false)).collect();
        let queue = Arc::new(Self { way, heap: Plain::new((heap, random)), pushes: no(), found: no(), inside });
        if let Way::Lock(lock) = &queue.way {
            place_at("lock.word", &lock.0);
        }
        queue
    }

    /// What thread `number` wants is done, by the thread that is at the heap.
    fn act(&self, number: usize) {
        let mut heap = self.heap.lock().expect("it does not poison");
        let (heap, random) = &mut *heap;
        if self.pushes[number].load(Ordering::Relaxed) {
            heap.push(random.below(1 << 32) as u32);
        } else {
            self.found[number].store(heap.pop().is_some(), Ordering::Relaxed);
        }
        work(self.inside);
    }

    /// Thread `me` pushes or pops. Returns whether a pop found something.
    fn run(&self, me: usize, pushes: bool) -> bool {
        self.pushes[me].store(pushes, Ordering::Relaxed);
        match &self.way {
            Way::Lock(lock) => {
                let _held = lock.0.lock().expect("it does not poison");
                self.act(me);
            }
            Way::Flat(flat) => flat.run(me, |number| self.act(number), OTHER),
        }
        self.found[me].load(Ordering::Relaxed)
    }
}

/// What the threads of a benchmark do.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Task {
    /// Each pushes and pops in turn, and does other work behind each of them for so long. An operation counts.
    InTurn(Picoseconds),
    /// So many push, and the others pop. What was popped counts.
    Apart(usize),
}

/// How long all threads take for what counts, in nanoseconds, at a queue that has so many items at first. `inside`:
/// what an operation takes beside its accesses to lines. `None`: that design is not modelled.
pub(crate) fn priority_queue(
    rounds: &Rounds,
    design: QueueDesign,
    items: usize,
    threads: usize,
    inside: Picoseconds,
    task: Task,
) -> Option<f64> {
    let is_flat = match design {
        QueueDesign::Lock => false,
        QueueDesign::FlatCombining => true,
        QueueDesign::Mound => return None,
    };
    Some(rounds.with_locks(LockKind::Futex).ns_per_round(threads, move || {
        let queue = Queue::new(is_flat, items, threads, inside);
        Box::new(move |me| -> Round {
            let queue = Arc::clone(&queue);
            match task {
                Task::InTurn(outside) => {
                    let mut pushes = false;
                    Box::new(move || {
                        pushes = !pushes;
                        queue.run(me, pushes);
                        work(outside);
                        true
                    })
                }
                Task::Apart(producers) if me < producers => Box::new(move || {
                    queue.run(me, true);
                    false
                }),
                Task::Apart(_) => Box::new(move || queue.run(me, false)),
            }
        })
    }))
}

#[cfg(test)]
mod tests {
    use std::collections::BinaryHeap;

    use blkmq_vcpu::Random;

    use super::Heap;

    #[test]
    fn the_heap_is_one() {
        let mut random = Random::new(5);
        let mut heap = Heap::new(100, &mut random);
        let mut model: BinaryHeap<u32> = heap.numbers.iter().copied().collect();
        for _ in 0..5000 {
            if random.below(100) < 48 {
                let number = random.below(1000) as u32;
                heap.push(number);
                model.push(number);
            } else {
                assert_eq!(heap.pop(), model.pop());
            }
        }
    }
}
