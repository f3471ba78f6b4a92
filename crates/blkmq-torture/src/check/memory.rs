//! Memory is bounded. Memory does not grow with the number of operations, only with the size that the queue is made
//! for. When the world is gone, its memory has been given back.
//!
//! Memory is compared whenever the queue has drained. Some of the memory belongs to the world itself: the device keeps
//! what it knows of requests, and the machine keeps a few words for every thread that ever ran. Buffers are not counted
//! while clients keep them for later, nor while outstanding operations have them: many operations may wait to be reaped
//! when the queue has drained.

use std::collections::{BTreeMap, VecDeque};

use super::super::event::{Control, Event, Phase, Stamp};
use super::super::settings::orders_one_hctx;
use super::book::Book;
use super::{Checker, Facts, Violation};

const RULE: &str = "memory";

const KIB: i64 = 1 << 10;

/// How many bytes may come and go for reasons that this checker does not know.
const KEPT: i64 = 512 * KIB;

/// How many bytes of a world that is gone may be left.
const LEFT: i64 = 64 * KIB;

/// What one more operation may cost, in bytes: less than the smallest leak.
const PER_OPERATION: i64 = 128;

/// What one more thread may cost for ever, in bytes: a page for the thread, and its list of slots.
const PER_THREAD: i64 = 6 * KIB;

/// The number of operations after which buffers and lists have about their final sizes.
const WARM: u64 = 500;

/// The last operations of one submitter that were forgotten. The queue drops their buffers at a time of its own choice,
/// but it has no more such operations than the submitter has slots.
#[derive(Debug, Default)]
struct Forgotten {
    sizes: VecDeque<i64>,
    bytes: i64,
}

impl Forgotten {
    fn add(&mut self, bytes: i64, nr_slots: i64) {
        self.sizes.push_back(bytes);
        self.bytes += bytes;
        if self.sizes.len() as i64 > nr_slots {
            self.bytes -= self.sizes.pop_front().unwrap_or(0);
        }
    }
}

/// One comparison of the memory in use.
#[derive(Debug, Clone, Copy)]
struct Look {
    live: i64,
    nr_operations: u64,
    made_for: i64,
    slab: i64,
}

/// This module's checker.
#[derive(Debug)]
pub(super) struct Memory {
    facts: Facts,
    nr_operations: u64,
    nr_threads: i64,
    /// Submitters that have joined, and the slots of each.
    nr_submitters: i64,
    nr_slots: i64,
    nr_background: i64,
    /// The most threads, and the most submitters, that the queue ever had at a time. The queue keeps their places, with
    /// the lines and the slots, and counts ranges in each place.
    most_members: i64,
    most_submitters: i64,
    nr_hctxs: i64,
    nr_requests: i64,
    has_ranges: bool,
    /// The submitter and the bytes of buffers of each outstanding operation; and the bytes of the buffers of all of
    /// them.
    operations: Book<(u16, i64)>,
    buffer_bytes: i64,
    forgotten: BTreeMap<u16, Forgotten>,
    /// The most bytes that were ever needed at a time for the size that the queue is made for.
    made_for: i64,
    /// The scheduler in place, whether each hardware queue has a value of it, and how many bytes one value and all may
    /// have taken for requests.
    scheduler: Option<String>,
    is_split: bool,
    of_value: i64,
    slab: i64,
    /// The same for the smallest value, and if all were as small as that.
    of_smallest: i64,
    smallest_slab: i64,
    /// How many bytes the device may keep for as many requests as it can have at a time, and the most that this number
    /// ever was.
    of_device: i64,
    most_of_device: i64,
    first: Option<i64>,
    last: Option<i64>,
    /// The first look while a scheduler was in place, for each of them: how much they need in truth is known to them
    /// alone.
    warm: BTreeMap<Option<String>, Look>,
}

impl Memory {
    pub(super) fn new(facts: &Facts) -> Self {
        Self {
            facts: facts.clone(),
            nr_operations: 0,
            nr_threads: 0,
            nr_submitters: 0,
            nr_slots: 0,
            nr_background: 0,
            most_members: 0,
            most_submitters: 0,
            nr_hctxs: facts.topology.nr_queues() as i64,
            nr_requests: 0,
            has_ranges: false,
            operations: Book::new(),
            buffer_bytes: 0,
            forgotten: BTreeMap::new(),
            made_for: 0,
            scheduler: None,
            is_split: false,
            of_value: 0,
            slab: 0,
            of_smallest: 0,
            smallest_slab: 0,
            of_device: 0,
            most_of_device: 0,
            first: None,
            last: None,
            warm: BTreeMap::new(),
        }
    }

    /// The estimate is generous, so that only memory that does not depend on these sizes exceeds it.
    fn note_size(&mut self) {
        let ranges = if self.has_ranges { 32 * KIB } else { 0 };
        self.most_members = self.most_members.max(self.nr_submitters + self.nr_background);
        self.most_submitters = self.most_submitters.max(self.nr_submitters);
        let members = self.most_members * (16 * KIB + ranges) + self.most_submitters * self.nr_slots * KIB;
        let depth = i64::from(self.facts.topology.depth);
        let hctxs = self.nr_hctxs * (32 * KIB + depth * 256);
        self.made_for = self.made_for.max(members + hctxs);
        // A stamp for each sector, and the lists around the stamps.
        let request = 512 + 16 * i64::from(self.facts.limits.max_sectors);
        self.of_device = self.nr_hctxs * depth * request;
        self.most_of_device = self.most_of_device.max(self.of_device);
    }

    /// A scheduler makes room for the requests of each hardware queue, and keeps that room.
    fn note_slab(&mut self) {
        if self.scheduler.is_some() {
            // There are no more requests than all possible submitters have slots.
            let (nr_values, nr_hctxs) = if self.is_split { (self.nr_hctxs, 1) } else { (1, self.nr_hctxs) };
            let nr_places = (nr_hctxs * self.nr_requests).min(1023 * self.nr_slots);
            let needed = nr_places * 88 + 32 * KIB;
            self.of_value = self.of_value.max(needed);
            self.of_smallest = self.of_smallest.max(needed);
            // The values of hardware queues that are gone are gone too.
            self.slab = nr_values * self.of_value;
            self.smallest_slab = nr_values * self.of_smallest;
        }
    }

    fn installed(&mut self, scheduler: Option<&str>) {
        self.scheduler = scheduler.map(str::to_owned);
        self.is_split = scheduler.is_some_and(orders_one_hctx);
        self.nr_requests = self.facts.nr_requests(scheduler.is_some()).cast_signed();
        (self.of_value, self.slab, self.of_smallest, self.smallest_slab) = (0, 0, 0, 0);
        self.note_slab();
    }

    fn submitted(&mut self, submitter: u16, bio: u64, pieces: &[usize]) {
        self.nr_operations += 1;
        let bytes = pieces.iter().map(|piece| piece.next_power_of_two() as i64).sum();
        self.buffer_bytes += bytes;
        self.operations.begin(bio, (submitter, bytes));
    }

    fn end_of(&mut self, bio: u64) -> i64 {
        let bytes = self.operations.end(bio).map_or(0, |(_, bytes)| bytes);
        self.buffer_bytes -= bytes;
        bytes
    }

    fn left(&mut self, submitter: u16) {
        self.nr_submitters -= 1;
        self.forgotten.remove(&submitter);
        let theirs = self.operations.those(|(owner, _)| *owner == submitter);
        for bio in theirs {
            self.end_of(bio);
        }
    }

    fn changed(&mut self, control: Control) {
        match control {
            Control::Background(nr_threads) => {
                self.nr_background = nr_threads.into();
                self.nr_threads += i64::from(nr_threads);
            }
            Control::NrRequests(nr_requests) => {
                self.facts.nr_requests = Some(nr_requests);
                self.nr_requests = self.facts.nr_requests(self.scheduler.is_some()).cast_signed();
                self.note_slab();
            }
            Control::Topology(default, read, poll) => {
                self.nr_hctxs = i64::from(default) + i64::from(read) + i64::from(poll);
                if self.is_split {
                    // The value of a new hardware queue has room for the present number of requests, and no more.
                    self.of_smallest = 0;
                }
                self.note_slab();
            }
            Control::Ranges(nr_ranges) => self.has_ranges |= nr_ranges > 0,
            _ => return,
        }
        self.note_size();
    }

    fn look(&mut self, live: i64) -> Result<(), Violation> {
        self.last = Some(live);
        if self.first.is_none() {
            self.first = Some(live);
        }
        let forgotten: i64 = self.forgotten.values().map(|forgotten| forgotten.bytes).sum();
        let made_for = self.made_for + self.most_of_device + forgotten;
        let live = live - self.buffer_bytes;
        let now = Look { live, nr_operations: self.nr_operations, made_for, slab: self.slab };
        if self.nr_operations < WARM {
            return Ok(());
        }
        // Memory that the device had before and does not have now may be taken again. Memory of forgotten operations
        // may have been given back already.
        let gone = self.most_of_device - self.of_device + forgotten;
        let base = Look { made_for: now.made_for - gone, slab: self.smallest_slab, ..now };
        let warm = *self.warm.entry(self.scheduler.clone()).or_insert(base);
        let operations = now.nr_operations - warm.nr_operations;
        let needed = now.made_for - warm.made_for + (now.slab - warm.slab).max(0);
        let grown = now.live - warm.live - needed - PER_THREAD * self.nr_threads;
        if grown <= KEPT + PER_OPERATION * operations.cast_signed() {
            return Ok(());
        }
        let (live, before) = (now.live, warm.live);
        let what = format!("{live} bytes are held, after {before} bytes {operations} operations ago");
        Err(Violation::new(RULE, what))
    }
}

impl Checker for Memory {
    fn see(&mut self, _at: Stamp, event: &Event<'_>) -> Result<(), Violation> {
        match *event {
            Event::Joined { nr_slots, .. } => {
                self.nr_slots = nr_slots.into();
                self.nr_submitters += 1;
                self.note_size();
                self.note_slab();
            }
            Event::Left { submitter, .. } => self.left(submitter),
            Event::Submitted { submitter, bio, pieces, .. } => self.submitted(submitter, bio, pieces),
            Event::Reaped { bio, .. } | Event::HandedBack { bio, .. } | Event::Rejected { bio, .. } => {
                self.end_of(bio);
            }
            Event::Forgotten { submitter, bio } => {
                let bytes = self.end_of(bio);
                self.forgotten.entry(submitter).or_default().add(bytes, self.nr_slots);
            }
            Event::Installed { scheduler } => self.installed(scheduler),
            Event::Changed { control, phase: Phase::Done } => self.changed(control),
            Event::Memory { live } => return self.look(live),
            _ => {}
        }
        Ok(())
    }

    fn end(&mut self, _at: Stamp) -> Result<(), Violation> {
        let (Some(first), Some(last)) = (self.first, self.last) else { return Ok(()) };
        if last - first <= LEFT + self.most_of_device + PER_THREAD * self.nr_threads {
            return Ok(());
        }
        let what = format!("{last} bytes are held at the end, and {first} were at the beginning");
        Err(Violation::new(RULE, what))
    }
}

#[cfg(test)]
mod tests {
    use blkmq_sched::Op;
    use blkmq_virtual::Status;

    use super::super::testing::*;
    use super::*;

    fn told() -> Told<Memory> {
        let mut told = Told::new(Memory::new(&FACTS));
        told.good(Event::Memory { live: 1000 }).good(Event::Joined { submitter: 1, nr_slots: 256, tenant: 0 });
        told
    }

    fn submit(told: &mut Told<Memory>, nr_operations: u64) {
        let first = 1 + told.checker.nr_operations;
        for bio in first..first + nr_operations {
            told.good(submitted(bio, asked(Op::Read, 0, 1))).good(reaped(bio, id(1, 0, bio), Status::Ok));
        }
    }

    const fn memory(live: i64) -> Event<'static> {
        Event::Memory { live }
    }

    #[test]
    fn what_a_world_held_is_back_when_it_is_gone() {
        for (over, is_fine) in [(0, true), (1, false)] {
            let mut told = told();
            // Two hardware queues of four requests of 16 sectors.
            let most = 1000 + LEFT + 2 * 4 * (512 + 16 * 16);
            told.good(memory(5000 * KIB)).good(memory(most + over));
            assert_eq!(told.end().is_ok(), is_fine);
            told.good(changed(Control::Background(1), Phase::Done));
            assert_eq!(told.end(), Ok(()));
        }
    }

    #[test]
    fn memory_does_not_grow_with_operations() {
        let mut told = told();
        submit(&mut told, WARM);
        let base = 4000 * KIB;
        told.good(memory(base)).good(memory(base + KEPT)).bad(memory(base + KEPT + 1), "0 operations ago");
        submit(&mut told, 1000);
        let most = base + KEPT + 1000 * PER_OPERATION;
        told.good(memory(most)).bad(memory(most + 1), "1000 operations ago");
    }

    #[test]
    fn buffers_of_operations_that_are_outstanding_do_not_count() {
        let mut told = told();
        submit(&mut told, WARM);
        let base = 4000 * KIB;
        told.good(memory(base));
        for bio in 1000..1002 {
            told.good(submitted(bio, asked(Op::Read, 0, 33)));
        }
        let most = base + KEPT + 2 * PER_OPERATION;
        told.good(memory(most + 64 * KIB)).bad(memory(most + 64 * KIB + 1), "bytes are held");
        told.good(reaped(1000, id(1, 0, 0), Status::Ok)).bad(memory(most + 32 * KIB + 1), "bytes are held");
        // The memory of a forgotten operation may be there or not.
        told.good(Event::Forgotten { submitter: 1, bio: 1001 });
        told.good(memory(most)).good(memory(most + 32 * KIB)).bad(memory(most + 32 * KIB + 1), "bytes are held");
        told.good(Event::Left { submitter: 1, hands_back: false }).bad(memory(most + 1), "bytes are held");
    }

    /// Red if a forgotten operation's memory is taken to be there when memory is first compared.
    #[test]
    fn what_was_forgotten_may_be_gone_before_the_first_look() {
        let mut told = told();
        submit(&mut told, WARM);
        for bio in 1000..1100 {
            told.good(submitted(bio, asked(Op::Read, 0, 33))).good(Event::Forgotten { submitter: 1, bio });
        }
        told.good(memory(4000 * KIB)).good(Event::Left { submitter: 1, hands_back: false }).good(memory(4000 * KIB));
    }

    #[test]
    fn of_what_was_forgotten_there_is_no_more_than_slots() {
        let mut forgotten = Forgotten::default();
        (1..=5).for_each(|bytes| forgotten.add(bytes, 3));
        assert_eq!(forgotten.bytes, 3 + 4 + 5);
    }

    #[test]
    fn memory_grows_with_what_the_queue_is_made_for() {
        let grows = [
            Event::Joined { submitter: 2, nr_slots: 256, tenant: 0 },
            changed(Control::Topology(4, 4, 4), Phase::Done),
            changed(Control::NrRequests(2000), Phase::Done),
            changed(Control::Background(9), Phase::Done),
            changed(Control::Ranges(1), Phase::Done),
        ];
        for event in grows {
            let mut told = told();
            told.good(Event::Installed { scheduler: Some("mq-deadline") });
            submit(&mut told, WARM);
            told.good(memory(4000 * KIB)).bad(memory(4020 * KIB + KEPT), "bytes are held");
            told.good(event).good(memory(4020 * KIB + KEPT));
        }
        // Memory that was there before has been taken again.
        let mut told = told();
        submit(&mut told, WARM);
        told.good(memory(4000 * KIB)).good(Event::Left { submitter: 1, hands_back: true });
        told.good(Event::Joined { submitter: 1, nr_slots: 256, tenant: 0 })
            .bad(memory(4020 * KIB + KEPT), "bytes are held");
    }

    /// Red if only the submitters count that are there when ranges are first counted: the queue keeps the places of the
    /// submitters that left.
    #[test]
    fn ranges_are_counted_in_the_places_of_those_who_left() {
        let mut told = told();
        told.good(Event::Joined { submitter: 2, nr_slots: 256, tenant: 0 });
        told.good(Event::Left { submitter: 2, hands_back: true });
        submit(&mut told, WARM);
        let most = 4000 * KIB + KEPT + 2 * 32 * KIB;
        told.good(memory(4000 * KIB)).bad(memory(most), "bytes are held");
        told.good(changed(Control::Ranges(1), Phase::Done)).good(memory(most)).bad(memory(most + 1), "bytes are held");
    }

    #[test]
    fn a_scheduler_takes_more_when_requests_are_many_of_many_hardware_queues_for_the_first_time() {
        let mut told = told();
        told.good(Event::Installed { scheduler: Some("mq-deadline") });
        told.good(changed(Control::NrRequests(2000), Phase::Done)).good(changed(Control::NrRequests(8), Phase::Done));
        told.good(changed(Control::Topology(4, 4, 4), Phase::Done));
        submit(&mut told, WARM);
        let most = 4000 * KIB + 10 * 2000 * 88 + KEPT;
        told.good(memory(4000 * KIB)).bad(memory(most), "bytes are held");
        told.good(changed(Control::NrRequests(2000), Phase::Done));
        told.good(memory(most)).bad(memory(most + 1), "bytes are held");
    }

    #[test]
    fn what_the_device_had_may_come_back() {
        for (is_back, extra) in [(false, 0), (true, 10 * 4 * (512 + 16 * 16))] {
            let mut told = told();
            told.good(changed(Control::Topology(4, 4, 4), Phase::Done));
            told.good(changed(Control::Topology(if is_back { 2 } else { 12 }, 0, 0), Phase::Done));
            submit(&mut told, WARM);
            let most = 4000 * KIB + extra + KEPT;
            told.good(memory(4000 * KIB)).good(changed(Control::Topology(4, 4, 4), Phase::Done));
            told.good(memory(most)).bad(memory(most + 1), "bytes are held");
        }
    }

    /// Red if one scheduler's memory is compared with another one's, or is not compared at all.
    #[test]
    fn each_scheduler_has_memory_of_its_own() {
        let mut told = told();
        submit(&mut told, WARM);
        let bases = [(Some("mq-deadline"), 4000 * KIB), (Some("kyber"), 9000 * KIB), (None, 1000 * KIB)];
        for (scheduler, base) in bases {
            told.good(Event::Installed { scheduler }).good(memory(base));
        }
        for (scheduler, base) in bases {
            told.good(Event::Installed { scheduler })
                .good(memory(base + KEPT))
                .bad(memory(base + KEPT + 1), "are held");
        }
    }

    /// Red if a scheduler that was made for less is thought to have given back as much as it may have taken.
    #[test]
    fn what_a_scheduler_does_not_need_any_more_it_may_keep() {
        let mut told = told();
        told.good(Event::Installed { scheduler: Some("kyber") });
        told.good(changed(Control::NrRequests(2000), Phase::Done));
        submit(&mut told, WARM);
        let base = 4000 * KIB;
        told.good(memory(base)).good(changed(Control::NrRequests(8), Phase::Done));
        told.good(memory(base + KEPT)).bad(memory(base + KEPT + 1), "are held");
    }

    /// Red if the values of new hardware queues are thought to be as large as those of old ones.
    #[test]
    fn the_value_of_a_new_hardware_queue_grows_later() {
        let mut told = told();
        told.good(Event::Installed { scheduler: Some("kyber") });
        told.good(changed(Control::NrRequests(2000), Phase::Done)).good(changed(Control::NrRequests(8), Phase::Done));
        told.good(changed(Control::Topology(4, 4, 4), Phase::Done));
        submit(&mut told, WARM);
        let base = 4000 * KIB;
        told.good(memory(base)).good(changed(Control::NrRequests(2000), Phase::Done));
        let most = base + 12 * (2000 - 8) * 88 + KEPT;
        told.good(memory(most)).bad(memory(most + 1), "are held");
    }
}
