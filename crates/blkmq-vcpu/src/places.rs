//! Where in memory the operations of virtual CPUs are: on which cache line, by name and instance.
//!
//! An operation knows only an address, and nothing that is told may depend on an address. So a value that threads share
//! says what it is called and where it lies ([`touch_place`], [`on_line`]). Such a value is a **place**. Places get
//! their numbers in the order in which a run first touches them, which follows from the run. An operation on an address
//! in no place is told as such.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::cache::{Access, Outcome};
use crate::hot::{CpuId, HOT, touch};

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// One operation of a virtual CPU on something shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accessed {
    /// The CPU.
    pub cpu: CpuId,
    /// The line. `None`: no value that lies there has said what it is called.
    pub line: Option<LineOf>,
    /// What was done to the line.
    pub access: Access,
    /// What that cost, if CPUs have clocks of their own ([`Options::cores`](crate::Options::cores)).
    pub cost: Option<Outcome>,
    /// Where in the code.
    pub at: &'static Location<'static>,
}

/// A cache line of a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LineOf {
    /// What the place is called.
    pub name: &'static str,
    /// Which of the places of this name. Places count from 0, in the order in which the run first touched them.
    pub instance: u32,
    /// Which of the place's lines.
    pub line: u32,
}

/// The identity of a place, which lies beside the value and moves with it. When the identity is dropped, the place is
/// gone.
#[derive(Debug, Default)]
pub struct Place(AtomicU64);

impl Place {
    /// A place that no run has touched yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let id = *self.0.get_mut();
        // A thread that ends may have dropped its places already.
        _ = PLACES.try_with(|places| places.borrow_mut().forget(id));
    }
}

/// What is known of a place.
#[derive(Debug)]
struct Known {
    name: &'static str,
    instance: u32,
    base: usize,
    bytes: usize,
    /// The number of the place's first line. All lines of a run are numbered.
    first_line: usize,
}

/// The places of a run.
#[derive(Debug, Default)]
struct Places {
    /// By number.
    known: Vec<Known>,
    /// The numbers of the places that are there now, by the address at which each begins. Places do not overlap.
    there: BTreeMap<usize, usize>,
    /// The place in which an address was found last, if it is still there.
    found: Cell<Option<usize>>,
    /// How many places of a name there have been.
    instances: BTreeMap<&'static str, u32>,
    /// How many lines the places have.
    nr_lines: usize,
    /// The names of places that lay on one line of the real memory at the same time, in the order of addresses.
    neighbours: BTreeSet<(&'static str, &'static str)>,
    /// The number of the run, in the upper half; the lower half is 0. It tells the places of a run from those of
    /// earlier runs.
    run: u64,
}

thread_local! {
    static PLACES: RefCell<Places> = RefCell::default();
}

/// Forgets all places, as a run begins and as it ends.
pub(crate) fn clear() {
    PLACES.with(|places| {
        let mut places = places.borrow_mut();
        let run = places.run + (1 << 32);
        *places = Places { run, ..Places::default() };
    });
}

/// Says that the next step is on `value`, which has a place of its own that is called `name`.
#[inline]
pub fn touch_place<T>(name: &'static str, place: &Place, value: &T) {
    touch(name);
    if HOT.with(|hot| hot.tells.get()) {
        PLACES
            .with(|places| places.borrow_mut().note(name, &place.0, std::ptr::from_ref(value).addr(), size_of::<T>()));
    }
}

/// Says that the next step is on `value`, as [`place_at`] places it, and returns `value`.
#[inline]
pub fn on_line<'a, T>(name: &'static str, value: &'a T) -> &'a T {
    touch(name);
    placed(name, value)
}

/// Says where `value` lies, as [`place_at`] does, and returns `value`.
#[inline]
pub fn placed<'a, T: ?Sized>(name: &'static str, value: &'a T) -> &'a T {
    place_at(name, value);
    value
}

/// Says where `value` lies. If no place contains the whole value, the value becomes a place, which is called `name`.
/// That place stays where it is until the run ends or another place overlaps with it.
#[inline]
pub fn place_at<T: ?Sized>(name: &'static str, value: &T) {
    if HOT.with(|hot| hot.tells.get()) {
        PLACES
            .with(|places| places.borrow_mut().note_fixed(name, std::ptr::from_ref(value).addr(), size_of_val(value)));
    }
}

/// Says where `value` lies, which was just made there: it becomes a place, which is called `name`, and places that lay
/// there before are gone. Must not be called for a value inside of another place that is still used.
#[inline]
pub fn place_anew<T: ?Sized>(name: &'static str, value: &T) {
    if HOT.with(|hot| hot.tells.get()) {
        PLACES.with(|places| {
            places.borrow_mut().note_anew(name, std::ptr::from_ref(value).addr(), size_of_val(value));
        });
    }
}

/// Says where memory lies that has a place of its own, which is called `name`: `bytes` bytes from the address `base`
/// on. If the size has changed, the memory is on new lines, which no CPU has.
#[inline]
pub fn place_bytes(name: &'static str, place: &Place, base: usize, bytes: usize) {
    if HOT.with(|hot| hot.tells.get()) {
        PLACES.with(|places| places.borrow_mut().note(name, &place.0, base, bytes));
    }
}

/// The names of places that have lain on one line of the real memory in this run, in the order of addresses. The model
/// takes each place to lie on lines of its own, because nothing in the model may depend on an address. So the model
/// does not see that CPUs take such a line from each other. If the first of two values begins where a line begins,
/// addresses do not decide whether the two values share a line. Otherwise chance decides.
#[must_use]
pub fn neighbours() -> Vec<(&'static str, &'static str)> {
    PLACES.with(|places| places.borrow().neighbours.iter().copied().collect())
}

/// The line at an address.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) line: LineOf,
    /// All lines of a run are numbered.
    pub(crate) number: usize,
    pub(crate) addresses: Range<usize>,
}

/// The line at an address.
pub(crate) fn line_at(address: usize) -> Option<Found> {
    PLACES.with(|places| places.borrow().line_at(address))
}

impl Places {
    /// The number that an identity stands for in this run.
    const fn number(&self, id: u64) -> Option<usize> {
        let number = id as u32;
        if id - number as u64 == self.run && id != 0 { Some(number as usize) } else { None }
    }

    fn note(&mut self, name: &'static str, id: &AtomicU64, base: usize, bytes: usize) {
        // Relaxed: only threads of one run use a place, and these take turns on one thread of the machine.
        match self.number(id.load(Ordering::Relaxed)) {
            Some(number) if (self.known[number].base, self.known[number].bytes) == (base, bytes) => {}
            Some(number) => {
                self.leave(number);
                if self.known[number].bytes != bytes {
                    self.known[number].first_line = self.nr_lines;
                    self.nr_lines += bytes.div_ceil(LINE_BYTES);
                }
                (self.known[number].base, self.known[number].bytes) = (base, bytes);
                self.settle(number);
            }
            None => {
                let number = self.add(name, base, bytes);
                id.store(self.run | number as u64, Ordering::Relaxed);
            }
        }
    }

    fn note_fixed(&mut self, name: &'static str, base: usize, bytes: usize) {
        let is_there = self.find(base).is_some_and(|known| base + bytes <= known.base + known.bytes);
        if !is_there {
            self.add(name, base, bytes);
        }
    }

    fn note_anew(&mut self, name: &'static str, base: usize, bytes: usize) {
        let is_same = |known: &Known| (known.name, known.base, known.bytes) == (name, base, bytes);
        if !self.find(base).is_some_and(is_same) {
            self.add(name, base, bytes);
        }
    }

    fn add(&mut self, name: &'static str, base: usize, bytes: usize) -> usize {
        let count = self.instances.entry(name).or_default();
        let (number, instance) = (self.known.len(), *count);
        *count += 1;
        self.known.push(Known { name, instance, base, bytes, first_line: self.nr_lines });
        self.nr_lines += bytes.div_ceil(LINE_BYTES);
        self.settle(number);
        number
    }

    /// Puts a place where it lies now. Places that lay there are gone.
    fn settle(&mut self, number: usize) {
        self.found.set(None);
        let Known { base, bytes, .. } = self.known[number];
        while let Some((begin, other)) = self.there.range(..base + bytes).next_back() {
            if begin + self.known[*other].bytes <= base {
                break;
            }
            let begin = *begin;
            self.there.remove(&begin);
        }
        self.note_neighbours(number);
        self.there.insert(base, number);
    }

    /// Notes which places lie on the first or the last line of a place.
    fn note_neighbours(&mut self, number: usize) {
        let name_at = |number: &usize| self.known[*number].name;
        let Known { name, base, bytes, .. } = self.known[number];
        let before = self.there.range(..base).next_back().filter(|(begin, other)| {
            let last = *begin + self.known[**other].bytes.max(1) - 1;
            last / LINE_BYTES == base / LINE_BYTES
        });
        let last = base + bytes.max(1) - 1;
        let behind = self.there.range(base + 1..).next().filter(|(begin, _)| *begin / LINE_BYTES == last / LINE_BYTES);
        let before = before.map(|(_, other)| (name_at(other), name));
        let behind = behind.map(|(_, other)| (name, name_at(other)));
        self.neighbours.extend(before.into_iter().chain(behind));
    }

    /// Takes a place away, unless another one lies there already.
    fn leave(&mut self, number: usize) {
        self.found.set(None);
        let base = self.known[number].base;
        if self.there.get(&base) == Some(&number) {
            self.there.remove(&base);
        }
    }

    fn forget(&mut self, id: u64) {
        if let Some(number) = self.number(id) {
            self.leave(number);
        }
    }

    fn find(&self, address: usize) -> Option<&Known> {
        let is_in = |known: &Known| (known.base..known.base + known.bytes).contains(&address);
        // Accesses to the same place often follow each other.
        if let Some(known) = self.found.get().map(|number| &self.known[number]).filter(|known| is_in(known)) {
            return Some(known);
        }
        let (_, number) = self.there.range(..=address).next_back()?;
        let known = Some(&self.known[*number]).filter(|known| is_in(known))?;
        self.found.set(Some(*number));
        Some(known)
    }

    fn line_at(&self, address: usize) -> Option<Found> {
        let Known { name, instance, base, bytes, first_line } = *self.find(address)?;
        let line = (address - base) / LINE_BYTES;
        let begin = base + line * LINE_BYTES;
        let end = (begin + LINE_BYTES).min(base + bytes);
        Some(Found {
            line: LineOf { name, instance, line: line as u32 },
            number: first_line + line,
            addresses: begin..end,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::schedule::Uniform;
    use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
    use crate::{Ended, Options, Random, run, thread, uninterrupted};

    /// A value with a place, as the crates that are compiled for virtual CPUs have them.
    struct Placed<T>(&'static str, Place, T);

    impl<T> Placed<T> {
        fn touch(&self) -> &T {
            touch_place(self.0, &self.1, &self.2);
            &self.2
        }
    }

    fn placed(name: &'static str) -> Placed<[AtomicU64; 20]> {
        Placed(name, Place::new(), [const { AtomicU64::new(0) }; 20])
    }

    /// The name, instance and number of a line.
    type Name = Option<(&'static str, u32, u32)>;

    /// What was told of a run: CPU, line and access of each operation, and the line of the code.
    fn told(body: impl FnOnce() + Send + 'static) -> Vec<(CpuId, Name, Access, u32)> {
        let told = Arc::new(Mutex::new(Vec::new()));
        let on_access = {
            let told = Arc::clone(&told);
            Box::new(move |Accessed { cpu, line, access, at, .. }: Accessed| {
                let line = line.map(|line| (line.name, line.instance, line.line));
                told.lock().unwrap().push((cpu, line, access, at.line()));
            })
        };
        let schedule = Box::new(Uniform::new(Random::new(3), 2));
        let options = Options { on_access: Some(on_access), ..Options::default() };
        assert_eq!(run(schedule, options, body), Ended::Finished);
        std::mem::take(&mut *told.lock().unwrap())
    }

    /// Red if two values on one line are not noticed, or if two values on different lines are taken for neighbours.
    #[test]
    fn values_on_one_line_are_neighbours() {
        #[repr(align(64))]
        struct Lines([AtomicU64; 24]);
        told(|| {
            let lines = Lines([const { AtomicU64::new(0) }; 24]);
            for (name, at) in [("a", 0), ("b", 7), ("c", 8), ("d", 16), ("e", 12)] {
                place_at(name, &lines.0[at]);
            }
            assert_eq!(neighbours(), [("a", "b"), ("c", "e")]);
        });
    }

    fn lines(body: impl FnOnce() + Send + 'static) -> Vec<Name> {
        told(body).into_iter().map(|(_, line, _, _)| line).collect()
    }

    /// Red if only the first operation after a touch has a line, if lines are counted from elsewhere than where the
    /// value begins, or if two places of a name are taken for one.
    #[test]
    fn an_operation_is_on_a_line_of_its_place() {
        let found = lines(|| {
            let (one, other) = (placed("one"), placed("one"));
            let words = one.touch();
            [0, 7, 8, 19].iter().for_each(|at| _ = words[*at].load(Relaxed));
            other.touch()[8].load(Relaxed);
            words[1].load(Relaxed);
        });
        let line = |instance, line| Some(("one", instance, line));
        assert_eq!(found, [line(0, 0), line(0, 0), line(0, 1), line(0, 2), line(1, 1), line(0, 0)]);
    }

    /// Red if data that said nothing of itself is told as if it lay on some line, or if what is told does not lead to
    /// the place in the code.
    #[test]
    fn an_operation_on_no_line_is_told_with_its_place_in_the_code() {
        let begin = line!();
        let found = told(|| {
            placed("one").touch()[3].store(1, Relaxed);
            AtomicU32::new(0).fetch_add(1, Relaxed);
            uninterrupted(|| AtomicU32::new(0).load(Relaxed));
            drop(crate::sync::Mutex::new(()).lock());
        });
        let expected = [
            (0, Some(("one", 0, 0)), Access::Store, begin + 2),
            (0, None, Access::Update, begin + 3),
            (0, None, Access::Update, begin + 5),
            // The lock is let go.
            (0, None, Access::Store, begin + 5),
        ];
        assert_eq!(found, expected);
    }

    /// Red if a place stays where its value was before it moved, or after its value was dropped.
    #[test]
    fn a_place_moves_and_ends_with_its_value() {
        let found = lines(|| {
            let mut shelf = [Some(placed("moves")), None];
            shelf[0].as_ref().unwrap().touch()[0].load(Relaxed);
            shelf.swap(0, 1);
            shelf[1].as_ref().unwrap().touch()[8].load(Relaxed);
            // Another value is put where the first one lay, and says nothing of itself.
            shelf[0] = Some(placed("silent"));
            shelf[0].as_ref().unwrap().2[0].load(Relaxed);
            shelf[1] = None;
            shelf.swap(0, 1);
            shelf[1].as_ref().unwrap().2[0].load(Relaxed);
            shelf[1].as_ref().unwrap().touch()[0].load(Relaxed);
        });
        assert_eq!(found, [Some(("moves", 0, 0)), Some(("moves", 0, 1)), None, None, Some(("silent", 0, 0))]);
    }

    /// Red if a value inside of a place becomes a place of its own, or if a value outside of every place does not.
    #[test]
    fn a_value_without_an_identity_is_a_place_where_it_is() {
        let found = lines(|| {
            let values = [const { AtomicU64::new(0) }; 2];
            on_line("alone", &values[1]);
            values.iter().for_each(|value| _ = value.load(Relaxed));
            let one = placed("one");
            let words = one.touch();
            on_line("inner", &words[9]);
            words[9].load(Relaxed);
            let values = Vec::from([const { AtomicU64::new(0) }; 9]);
            place_at("many", &*values);
            values[8].load(Relaxed);
        });
        assert_eq!(found, [None, Some(("alone", 0, 0)), Some(("one", 0, 1)), Some(("many", 0, 1))]);
    }

    /// Red if a value that was touched first keeps a larger value around it from becoming a place.
    #[test]
    fn a_value_takes_in_what_was_touched_of_it_before() {
        let found = lines(|| {
            let values = [const { AtomicU64::new(0) }; 9];
            on_line("inner", &values[0]);
            values[0].load(Relaxed);
            place_at("outer", &values);
            on_line("inner", &values[8]);
            values.iter().step_by(8).for_each(|value| _ = value.load(Relaxed));
        });
        assert_eq!(found, [Some(("inner", 0, 0)), Some(("outer", 0, 0)), Some(("outer", 0, 1))]);
    }

    /// Red if what is told depends on an address or on an earlier run.
    #[test]
    fn a_run_tells_the_same_each_time_wherever_its_values_lie() {
        let story = |bytes: usize| {
            told(move || {
                let _elsewhere = vec![0_u8; bytes];
                let shared = Arc::new([placed("a"), placed("b"), placed("a")]);
                let threads = [0, 1, 2].map(|first: usize| {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || {
                        for at in first..first + 9 {
                            shared[at % 3].touch()[at].fetch_add(1, Relaxed);
                        }
                    })
                });
                threads.into_iter().for_each(|thread| thread.join().unwrap());
            })
        };
        let first = story(0);
        assert!(first.iter().all(|(_, line, ..)| line.is_some()));
        assert_eq!(first.len(), 27);
        assert_eq!([story(1000), story(100_000)], [first.clone(), first]);
    }
}
