//! Tags and completion stacks together, in random interleavings: `RUSTFLAGS="--cfg shuttle"`.
#![cfg(shuttle)]

use blkmq_sync::atomic::{AtomicU32, Ordering};
use blkmq_sync::stack::SlotStack;
use blkmq_sync::tags::{Hint, Tag, Tags};
use blkmq_sync::{Arc, Parker, thread};

const DEPTH: u32 = 5;
const SUBMITTERS: usize = 3;
const EACH: usize = 4;

struct Device {
    tags: Tags,
    /// The number of the submitter that has this tag, plus one. Zero if no submitter has it.
    owners: [AtomicU32; DEPTH as usize],
    links: [AtomicU32; DEPTH as usize],
    submitted: SlotStack,
    bell: Parker,
    rings: [SlotStack; SUBMITTERS],
}

impl Device {
    fn new() -> Self {
        Self {
            tags: Tags::new(DEPTH, DEPTH),
            owners: Default::default(),
            links: Default::default(),
            submitted: SlotStack::new("test.submitted"),
            bell: Parker::new(),
            rings: std::array::from_fn(|_| SlotStack::new("test.ring")),
        }
    }

    fn link(&self, slot: u32) -> &AtomicU32 {
        &self.links[slot as usize]
    }

    fn take(&self, stack: &SlotStack) -> Vec<u32> {
        stack.take_all().oldest_first(|slot| self.link(slot))
    }

    /// Gets tags, passes them to the device, and puts back those that return, until each of the thread's requests has
    /// returned.
    fn submit(&self, number: usize) {
        let (mut hint, mut wanted, mut returned) = (Hint::new(number as u32), EACH, 0);
        let owner = number as u32 + 1;
        while returned < EACH {
            let mut batch = [Tag(0); 2];
            let room = wanted.min(batch.len());
            let count = self.tags.get_batch(&mut hint, &mut batch[..room]);
            for tag in &batch[..count] {
                assert_eq!(self.owners[usize::from(tag.0)].swap(owner, Ordering::Relaxed), 0, "{tag:?} has two owners");
            }
            wanted -= count;
            if self.submitted.push(batch[..count].iter().map(|tag| u32::from(tag.0)), |slot| self.link(slot)) {
                self.bell.unpark();
            }
            let done: Vec<Tag> = self.take(&self.rings[number]).into_iter().map(|slot| Tag(slot as u16)).collect();
            for tag in &done {
                assert_eq!(self.owners[usize::from(tag.0)].swap(0, Ordering::Relaxed), owner, "{tag:?} is another's");
            }
            returned += done.len();
            self.tags.put_batch(&done, &mut hint);
            thread::yield_now();
        }
    }

    /// Completes every request to the ring of its owner.
    fn complete(&self) {
        let mut completed = 0;
        while completed < SUBMITTERS * EACH {
            let taken = self.take(&self.submitted);
            if taken.is_empty() {
                self.bell.park_until(None);
            }
            completed += taken.len();
            for slot in taken {
                let owner = self.owners[slot as usize].load(Ordering::Relaxed);
                self.rings[owner as usize - 1].push([slot], |slot| self.link(slot));
            }
        }
    }
}

fn everything_returns_to_its_owner() {
    let device = Arc::new(Device::new());
    let submitters: Vec<_> = (0..SUBMITTERS)
        .map(|number| {
            let device = device.clone();
            thread::spawn(move || device.submit(number))
        })
        .collect();
    device.complete();
    submitters.into_iter().for_each(|submitter| submitter.join().expect("the thread ran to its end"));
    assert_eq!(device.tags.weight(), 0);
    let mut all = [Tag(0); DEPTH as usize + 1];
    assert_eq!(device.tags.get_batch(&mut Hint::default(), &mut all), DEPTH as usize);
}

#[test]
fn tags_return_to_their_owners_through_the_stacks() {
    let seed = std::env::var("BLKMQ_SEED").map_or(0x0b10_c3e5, |seed| seed.parse().expect("BLKMQ_SEED is a number"));
    println!("BLKMQ_SEED={seed}");
    shuttle::check_random_with_seed(everything_returns_to_its_owner, seed, 3000);
    shuttle::check_pct(everything_returns_to_its_owner, 1000, 3);
}
