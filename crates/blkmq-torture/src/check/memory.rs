//! Memory is bounded. Memory does not grow with the number of operations, only with the size that the queue is made
//! for. When the world is gone, its memory has been given back.
//!
//! Memory is compared whenever the queue has drained. Some of the memory belongs to the world itself: the device keeps
//! what it knows of requests, and the machine keeps a few words for every thread that ever ran. Buffers are not counted
//! while clients keep them for later, nor while outstanding operations have them: many operations may wait to be reaped
//! when the queue has drained.

use std::collections::{BTreeMap, VecDeque};

use super::super::event::{Control, Event, Phase, Stamp};
use super::tracker::Tracker;
use super::{Checker, Facts, Verdict, Violation};

pub(super) const RULE: &str = "memory";

const KIB: i64 = 1 << 10;

/// How many bytes may come and go for reasons that this checker does not know.
const KEPT: i64 = 512 * KIB;

/// How many bytes of a world that is gone may be left.
const LEFT: i64 = 64 * KIB;

/// What one more operation may cost, in bytes: less than the smallest leak.
const PER_OPERATION: i64 = 128;

/// What one more thread may cost forever, in bytes: a page for the thread, and its list of slots.
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
#[derive(Debug, Default)]
pub(super) struct Memory {
    depth: i64,
    max_sectors: i64,
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
    has_ranges: bool,
    /// The bytes of buffers of each outstanding operation, and of all of them.
    operations: BTreeMap<u64, i64>,
    buffer_bytes: i64,
    forgotten: BTreeMap<u16, Forgotten>,
    /// The most bytes that were ever needed at a time for the size that the queue is made for.
    made_for: i64,
    /// How many bytes one value of the scheduler and all may have taken for requests.
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
    last: i64,
    /// The first look while a scheduler was in place, for each of them: how much they need in truth is known to them
    /// alone.
    warm: BTreeMap<Option<&'static str>, Look>,
}

impl Memory {
    pub(super) fn new(facts: &Facts) -> Self {
        let (depth, max_sectors) = (facts.topology.depth.into(), facts.limits.max_sectors.into());
        Self { depth, max_sectors, ..Self::default() }
    }

    /// The estimate is generous, so that only memory that does not depend on these sizes exceeds it.
    fn note_size(&mut self, tracker: &Tracker) {
        let nr_hctxs = tracker.topology.nr_queues() as i64;
        let ranges = if self.has_ranges { 32 * KIB } else { 0 };
        self.most_members = self.most_members.max(self.nr_submitters + self.nr_background);
        self.most_submitters = self.most_submitters.max(self.nr_submitters);
        let members = self.most_members * (16 * KIB + ranges) + self.most_submitters * self.nr_slots * KIB;
        let hctxs = nr_hctxs * (32 * KIB + self.depth * 256);
        self.made_for = self.made_for.max(members + hctxs);
        // A stamp for each sector, and the lists around the stamps.
        let request = 512 + 16 * self.max_sectors;
        self.of_device = nr_hctxs * self.depth * request;
        self.most_of_device = self.most_of_device.max(self.of_device);
    }

    /// A scheduler makes room for the requests of each hardware queue, and keeps that room.
    fn note_slab(&mut self, tracker: &Tracker) {
        if tracker.scheduler.is_some() {
            let nr_hctxs = tracker.topology.nr_queues() as i64;
            // There are no more requests than all possible submitters have slots.
            let (nr_values, nr_hctxs) = if tracker.is_split() { (nr_hctxs, 1) } else { (1, nr_hctxs) };
            let nr_places = (nr_hctxs * tracker.nr_requests().cast_signed()).min(1023 * self.nr_slots);
            let needed = nr_places * 88 + 32 * KIB;
            self.of_value = self.of_value.max(needed);
            self.of_smallest = self.of_smallest.max(needed);
            // The values of hardware queues that are gone are gone too.
            self.slab = nr_values * self.of_value;
            self.smallest_slab = nr_values * self.of_smallest;
        }
    }

    fn submitted(&mut self, bio: u64, pieces: &[usize]) {
        self.nr_operations += 1;
        let bytes = pieces.iter().map(|piece| piece.next_power_of_two() as i64).sum();
        self.buffer_bytes += bytes;
        self.operations.insert(bio, bytes);
    }

    fn end_of(&mut self, bio: u64) -> i64 {
        let bytes = self.operations.remove(&bio).unwrap_or(0);
        self.buffer_bytes -= bytes;
        bytes
    }

    fn changed(&mut self, control: Control, tracker: &Tracker) {
        match control {
            Control::Background(nr_threads) => {
                self.nr_background = nr_threads.into();
                self.nr_threads += i64::from(nr_threads);
            }
            Control::NrRequests(_) => self.note_slab(tracker),
            Control::Topology(..) => {
                if tracker.is_split() {
                    // The value of a new hardware queue has room for the present number of requests, and no more.
                    self.of_smallest = 0;
                }
                self.note_slab(tracker);
            }
            Control::Ranges(nr_ranges) => self.has_ranges |= nr_ranges > 0,
            _ => return,
        }
        self.note_size(tracker);
    }

    fn look(&mut self, live: i64, scheduler: Option<&'static str>) -> Verdict {
        self.last = live;
        self.first.get_or_insert(live);
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
        let warm = *self.warm.entry(scheduler).or_insert(base);
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
    fn see(&mut self, _at: Stamp, event: &Event<'_>, tracker: &Tracker) -> Verdict {
        tracker.ending.iter().for_each(|bio| _ = self.end_of(*bio));
        match *event {
            Event::Joined { nr_slots, .. } => {
                self.nr_slots = nr_slots.into();
                self.nr_submitters += 1;
                self.note_size(tracker);
                self.note_slab(tracker);
            }
            Event::Left { submitter, .. } => {
                self.nr_submitters -= 1;
                self.forgotten.remove(&submitter);
            }
            Event::Submitted { bio, pieces, .. } => self.submitted(bio, pieces),
            Event::Forgotten { submitter, bio } => {
                let bytes = self.end_of(bio);
                self.forgotten.entry(submitter).or_default().add(bytes, self.nr_slots);
            }
            Event::Installed { .. } => {
                (self.of_value, self.slab, self.of_smallest, self.smallest_slab) = (0, 0, 0, 0);
                self.note_slab(tracker);
            }
            Event::Changed { control, phase: Phase::Done } => self.changed(control, tracker),
            Event::Memory { live } => return self.look(live, tracker.scheduler),
            _ => {}
        }
        Ok(())
    }

    fn end(&mut self, _: &Tracker) -> Verdict {
        let (Some(first), last) = (self.first, self.last) else { return Ok(()) };
        if last - first <= LEFT + self.most_of_device + PER_THREAD * self.nr_threads {
            return Ok(());
        }
        let what = format!("{last} bytes are held at the end, and {first} were at the beginning");
        Err(Violation::new(RULE, what))
    }
}
