//! Drives a driver without the block layer, for tests.

use blkmq_sched::{RqId, Time};

use super::Started;
use super::{Batch, Done, Driver, StartedTable};
use crate::request::bio::Bio;
use crate::request::status::Status;
use crate::request::{Body, Part, Place, Request, RqList, SlotIndex, Slots};
use blkmq_sync::tags::Tag;

/// How many cases a property test tries, from a seed that it prints and that `BLKMQ_SEED` sets.
pub(super) fn random_cases(cases: u32) -> proptest::test_runner::Config {
    let seed = std::env::var("BLKMQ_SEED").map_or(0x5eed, |seed| seed.parse().expect("BLKMQ_SEED is a number"));
    println!("BLKMQ_SEED={seed}");
    proptest::test_runner::Config {
        cases,
        rng_seed: proptest::test_runner::RngSeed::Fixed(seed),
        failure_persistence: None,
        ..Default::default()
    }
}

const NR_SLOTS: u16 = 64;

/// One submitter on one hardware queue.
pub(super) struct Harness<'d> {
    driver: &'d dyn Driver,
    hctx: u16,
    slots: Slots,
    started: StartedTable,
    free: Vec<u16>,
    /// What waits to be issued: new bios, and what the driver refused or gave back.
    waiting: RqList,
    pub(super) nr_requeued: usize,
    pub(super) nr_refused: usize,
    pub(super) nr_started: usize,
}

impl<'d> Harness<'d> {
    pub(super) fn new(driver: &'d dyn Driver, hctx: u16) -> Self {
        let slots = Slots::new(1);
        slots.make_pool(0, NR_SLOTS);
        Self {
            driver,
            hctx,
            slots,
            started: StartedTable::new(usize::from(NR_SLOTS)),
            free: (0..NR_SLOTS).rev().collect(),
            waiting: RqList::new(),
            nr_requeued: 0,
            nr_refused: 0,
            nr_started: 0,
        }
    }

    /// Puts a bio behind those that wait. The number of the bio's slot is also its tag.
    pub(super) fn push(&mut self, bio: Bio) {
        let slot = self.free.pop().expect("a test has few bios in flight");
        let index = SlotIndex::new(0, slot);
        let mut rq = self.slots.take_own(index);
        let nr_sectors = u32::try_from(bio.nr_sectors).expect("a test's bios are small");
        *rq.body_mut() = Body {
            op: bio.op,
            flags: bio.flags,
            sector: bio.sector,
            nr_sectors,
            first: index,
            last: index,
            part: Part { parent: index, sector: bio.sector, nr_sectors, offset: 0 },
            tag: Some(Tag(slot)),
            ..Body::EMPTY
        };
        self.waiting.push_back(rq, Place::Plugged);
        self.slots.store_bio(index, bio);
    }

    /// Asks the driver once to take what waits; returns what it finished at once.
    pub(super) fn issue(&mut self, now: Time) -> Vec<(Bio, Status)> {
        let offered = self.waiting.len();
        let (mut finished, mut requeued, mut started) = (RqList::new(), RqList::new(), Started::default());
        let mut batch = Batch {
            slots: &self.slots,
            table: &self.started,
            pending: &mut self.waiting,
            finished: &mut finished,
            requeued: &mut requeued,
            now,
            timeout_ns: 0,
            member: 0,
            started: &mut started,
            refused: false,
        };
        self.driver.queue_rqs(self.hctx, &mut batch, now);
        let refused = batch.refused;
        self.nr_started += offered - self.waiting.len() - finished.len() - requeued.len();
        self.nr_refused += usize::from(refused);
        self.nr_requeued += requeued.len();
        requeued.append(std::mem::take(&mut self.waiting));
        self.waiting = requeued;
        self.take(finished)
    }

    /// Polls once.
    pub(super) fn poll(&mut self, now: Time) -> Vec<(Bio, Status)> {
        let mut finished = RqList::new();
        self.driver.poll(self.hctx, &mut Done { slots: &self.slots, finished: &mut finished, is_early: false }, now);
        self.take(finished)
    }

    /// The id of the request that was started with this tag last.
    pub(super) fn started(&self, tag: u16) -> RqId {
        self.started.get(Tag(tag)).expect("a request was started with this tag")
    }

    /// Asks the driver about a request as the timeout scan does; returns how it ended, if it did.
    pub(super) fn expire(&mut self, id: RqId, now: Time) -> Option<(Bio, Status)> {
        let (slot, generation) = self.slots.find(id)?;
        assert!(slot.state.begin_timeout(generation), "the scan asks about requests that are in flight");
        let expired = self.driver.timeout(self.hctx, id, now) == super::TimeoutAction::Done;
        let mut finished = RqList::new();
        finished.push_back(self.slots.end_timeout(id, expired)?, Place::Held);
        self.take(finished).pop()
    }

    /// Issues one bio and polls until it is done.
    pub(super) fn run(&mut self, bio: Bio) -> (Bio, Status) {
        self.push(bio);
        let mut done = self.issue(Time(0));
        done.append(&mut self.poll(Time(u64::MAX - 1)));
        assert_eq!(done.len(), 1);
        done.remove(0)
    }

    fn take(&mut self, mut finished: RqList) -> Vec<(Bio, Status)> {
        let mut done = Vec::new();
        while let Some(mut rq) = finished.pop_front(&self.slots) {
            let bio = rq.take_bio();
            done.push((bio, rq.body().status));
            self.free.push(Request::free(rq));
        }
        done
    }
}
