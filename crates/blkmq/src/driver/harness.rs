//! A driver alone, for its tests: requests go straight to the driver, without a queue, a scheduler or a thread.
//!
//! A test says when the driver is given requests and when it is polled, and at which time. It sees what the driver did
//! with each request, also what it refused or gave back, which a queue would try again.
//!
//! ```
//! use blkmq::driver::{Driver, harness::Harness, spec};
//! use blkmq::{Bio, Buffer, Time};
//!
//! let device = spec::open("null,irqmode=2,completion_nsec=10us").expect("the spec is good");
//! let mut harness = Harness::new(&*device, 0);
//! harness.push(Bio::read(0, Buffer::zeroed(4096)));
//! assert!(harness.issue(Time(1_000)).is_empty(), "it is not finished at once");
//! assert_eq!(device.next_event(0).time(), Some(Time(11_000)));
//! assert!(harness.poll(Time(10_999)).is_empty());
//! let finished = harness.poll(Time(11_000));
//! assert!(finished.len() == 1 && finished[0].1.is_ok());
//! ```

use blkmq_sched::{ClientId, GroupId, MergeLevel, Time};

use super::{Batch, Done, Driver, DueTimes, Offer, POLL_PERIOD, Started, StartedTable, TimeoutAction};
use crate::request::bio::Bio;
use crate::request::{Location, OpAttributes, Part, Request, RqList, SlotIndex, Slots, Status};
use blkmq_sync::Arc;
use blkmq_sync::tags::Tag;

/// Bios that a harness holds at once: more than a test needs.
const NR_SLOTS: u16 = 1024;

/// One hardware queue of a driver, and the requests that wait for it or are with it.
///
/// A bio becomes one request, so a test pushes only bios that are within the driver's [`Limits`](crate::Limits). A
/// request gets the lowest tag that is free when it is issued. So the first request has tag 0, and the next one tag 1.
#[derive(Debug)]
pub struct Harness<'d> {
    driver: &'d dyn Driver,
    hctx: u16,
    slots: Arc<Slots>,
    started: StartedTable,
    free: Vec<u16>,
    /// Whether each tag is out.
    tags: Vec<bool>,
    /// What waits to be issued: new bios, and what the driver refused or gave back.
    waiting: RqList,
    nr_requeued: usize,
    nr_refused: usize,
    nr_started: usize,
    /// The latest time that the driver was told.
    now: Time,
}

impl<'d> Harness<'d> {
    /// Nothing waits for hardware queue `hctx` of this driver, which no queue uses.
    #[must_use]
    pub fn new(driver: &'d dyn Driver, hctx: u16) -> Self {
        let depth = usize::from(driver.topology().depth);
        let slots = Slots::new(1);
        slots.make_pool(0, NR_SLOTS);
        Self {
            driver,
            hctx,
            slots: Arc::new(slots),
            started: StartedTable::new(depth),
            free: (0..NR_SLOTS).rev().collect(),
            tags: vec![false; depth],
            waiting: RqList::default(),
            nr_requeued: 0,
            nr_refused: 0,
            nr_started: 0,
            now: Time(0),
        }
    }

    /// Puts a bio behind those that wait.
    ///
    /// # Panics
    /// If the bio's buffers do not fit its length, or the harness holds 1024 bios already.
    pub fn push(&mut self, bio: Bio) {
        assert!(bio.buffers_fit(), "the buffers of a bio are as long as the bio");
        let slot = self.free.pop().expect("a test has fewer than 1024 bios at once");
        let index = SlotIndex::new(0, slot);
        let mut rq = self.slots.take_own(index);
        let nr_sectors = u32::try_from(bio.nr_sectors).expect("a request is shorter than 2^32 sectors");
        let priority = bio.priority.unwrap_or_default();
        let (client, group, merge) = (ClientId::default(), GroupId::ROOT, MergeLevel::Never);
        let asked = OpAttributes { client, group, op: bio.op, flags: bio.flags, priority, merge };
        let part = Part { parent: index, sector: bio.sector, nr_sectors, offset: 0 };
        rq.body_mut().begin(&asked, Time(0), index, 0, part);
        rq.body_mut().hctx = self.hctx;
        self.waiting.push_back(rq, Location::Plugged);
        self.slots.store_bio(index, bio);
    }

    /// Gives the driver once, in order, what waits and finds a tag. Returns what the driver finished at once. What it
    /// refused or gave back waits in front of the rest.
    pub fn issue(&mut self, now: Time) -> Vec<(Bio, Status)> {
        self.now = self.now.max(now);
        let mut pending = self.take_tags();
        let offered = pending.len();
        let (mut finished, mut requeued, mut started) = (RqList::default(), RqList::default(), Started::default());
        let (slots, table, offer) = (&self.slots, &self.started, Offer::new(0, now, now));
        let mut batch = Batch::new(slots, table, &mut pending, &mut finished, &mut requeued, &mut started, offer);
        self.driver.queue_rqs(self.hctx, &mut batch, now);
        let refused = batch.is_refused();
        assert!(refused || pending.is_empty(), "a driver takes the whole batch or refuses the rest");
        self.nr_started += offered - pending.len() - finished.len() - requeued.len();
        self.nr_refused += usize::from(refused);
        self.nr_requeued += requeued.len();
        let mut waiting = RqList::default();
        while let Some(mut rq) = requeued.pop_front(&self.slots) {
            put_tag(&mut self.tags, &mut rq);
            waiting.push_back(rq, Location::Plugged);
        }
        waiting.append(pending);
        waiting.append(std::mem::take(&mut self.waiting));
        self.waiting = waiting;
        self.take(finished)
    }

    /// Polls the driver once, and returns what it completed.
    pub fn poll(&mut self, now: Time) -> Vec<(Bio, Status)> {
        self.now = self.now.max(now);
        let mut finished = RqList::default();
        self.driver.poll(self.hctx, &mut Done::new(&self.slots, &mut finished), now);
        self.take(finished)
    }

    /// Of how many of its requests the driver [tells](Driver::due_times) a time, and the earliest of these times.
    #[must_use]
    pub fn due_times(&self) -> (usize, Option<Time>) {
        let mut due = DueTimes::new(&self.slots, 0);
        self.driver.due_times(self.hctx, &mut due);
        (due.nr, due.earliest)
    }

    /// Asks the driver about the request with this tag, as the timeout scan does. Returns the request, if the driver
    /// gave it up.
    ///
    /// # Panics
    /// If the driver has no request with this tag.
    pub fn expire(&mut self, tag: u16, now: Time) -> Option<(Bio, Status)> {
        let (id, _) = self.started.get(Tag(tag)).expect("a request was started with this tag");
        assert!(self.slots.begin_timeout(id).is_some(), "the driver has a request with tag {tag}");
        let expired = self.driver.timeout(self.hctx, id, now) == TimeoutAction::Done;
        let mut finished = RqList::default();
        finished.push_back(self.slots.end_timeout(id, expired, now)?, Location::Held);
        self.take(finished).pop()
    }

    /// Issues one bio at the latest time that the driver was told, and polls until the bio is over: each time at the
    /// driver's next event, or a millisecond later where the driver does not know its next event. A driver that never
    /// completes the bio makes this wait forever.
    ///
    /// # Panics
    /// If the driver refuses the request, or completes another one too.
    pub fn run(&mut self, bio: Bio) -> (Bio, Status) {
        assert!(self.waiting.is_empty(), "nothing else waits");
        self.push(bio);
        let mut finished = self.issue(self.now);
        assert!(self.waiting.is_empty(), "the driver takes the request");
        while finished.is_empty() {
            let next = self.driver.next_event(self.hctx).time();
            finished = self.poll(next.unwrap_or_else(|| self.now.after(POLL_PERIOD.as_nanos() as u64)).max(self.now));
            blkmq_sync::thread::yield_now();
        }
        assert_eq!(finished.len(), 1, "nothing else was with the driver");
        finished.remove(0)
    }

    /// How many requests the driver has started so far.
    #[must_use]
    pub const fn nr_started(&self) -> usize {
        self.nr_started
    }

    /// How many batches the driver has ended so far by refusing a request.
    #[must_use]
    pub const fn nr_refused(&self) -> usize {
        self.nr_refused
    }

    /// How many requests the driver has given back so far.
    #[must_use]
    pub const fn nr_requeued(&self) -> usize {
        self.nr_requeued
    }

    /// How many requests wait to be issued.
    #[must_use]
    pub const fn nr_waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Takes what waits from the front, as far as there are tags.
    fn take_tags(&mut self) -> RqList {
        let Self { tags, waiting, slots, .. } = self;
        waiting.take_while(slots, |rq| {
            if rq.body().tag.is_none() {
                let Some(tag) = tags.iter().position(|is_out| !is_out) else { return false };
                tags[tag] = true;
                rq.body_mut().tag = Some(Tag(tag as u16));
            }
            true
        })
    }

    fn take(&mut self, mut finished: RqList) -> Vec<(Bio, Status)> {
        let mut done = Vec::new();
        while let Some(mut rq) = finished.pop_front(&self.slots) {
            put_tag(&mut self.tags, &mut rq);
            let bio = rq.take_bio();
            done.push((bio, rq.body().status));
            self.free.push(Request::free(rq));
        }
        done
    }
}

/// The request has no tag any more.
fn put_tag(tags: &mut [bool], rq: &mut Request<'_>) {
    let tag = rq.body_mut().tag.take().expect("what was issued has a tag");
    tags[usize::from(tag.0)] = false;
}

impl Drop for Harness<'_> {
    /// A device that has a borrowed request may still use the request's memory. Then the memory is never freed.
    fn drop(&mut self) {
        let has_borrowed = |tag| self.started.get(Tag(tag)).is_some_and(|(id, _)| self.slots.is_borrowed(id));
        if (0..self.tags.len()).any(|tag| has_borrowed(tag as u16)) {
            std::mem::forget(Arc::clone(&self.slots));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::spec;
    use crate::request::buffer::Buffer;

    /// Red if a request is issued without a tag of its own: a driver's table by tag would be too short. Red too if a
    /// tag does not come back.
    #[test]
    fn no_more_requests_are_with_the_driver_than_there_are_tags() {
        let device = spec::open("null,irqmode=2,completion_nsec=10,hw_queue_depth=2").expect("the spec is good");
        let mut harness = Harness::new(&*device, 0);
        (0..5).for_each(|number| harness.push(Bio::read(8 * number, Buffer::zeroed(4096)).with_user_data(number)));
        let mut over = Vec::new();
        for (now, waiting) in [(0, 3), (10, 1), (20, 0)] {
            assert!(harness.issue(Time(now)).is_empty());
            assert_eq!(harness.nr_waiting(), waiting);
            over.extend(harness.poll(Time(now + 10)).into_iter().map(|(bio, _)| bio.user_data));
        }
        assert_eq!((over, harness.nr_started()), (vec![0, 1, 2, 3, 4], 5));
    }

    /// Red (the test does not end) if a request is issued at an earlier time than the driver has been told: a device
    /// that is busy until its last request is over would begin the next one at the end of time.
    #[test]
    fn one_request_runs_after_the_other_on_a_device_that_remembers_the_time() {
        let device = spec::open("hdd").expect("the spec is good");
        let mut harness = Harness::new(&*device, 0);
        for sector in [8_000_000, 0, 4_000_000] {
            let (_, status) = harness.run(Bio::read(sector, Buffer::zeroed(4096)));
            assert!(status.is_ok());
        }
        assert!(harness.now > Time(3_000_000) && harness.now < Time(1_000_000_000), "three seeks: {:?}", harness.now);
    }
}
