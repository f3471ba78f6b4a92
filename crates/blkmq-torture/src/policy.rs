//! A scheduler that tells the witness every decision it makes.

use std::fmt;

use blkmq_sched::{
    Class, Info, InsertAt, Join, Knob, KnobError, Merge, MergeLimits, Newcomer, RqId, Scheduler, Tally, Throttle, Time,
    Tokens,
};
use blkmq_sync_virtual::kept;

use super::event::Event;
use super::witness::Witness;

/// A wrapper that watches another scheduler. The wrapper decides nothing.
pub(crate) struct Watched {
    inner: Box<dyn Scheduler>,
    witness: Witness,
}

impl Watched {
    /// Watches this scheduler.
    pub(crate) fn new(inner: Box<dyn Scheduler>, witness: Witness) -> Box<Self> {
        Box::new(Self { inner, witness })
    }
}

impl Watched {
    /// The time that the inner scheduler is asked with: the time that the wrapper was told, unless the bug
    /// `policy.expiry` is planted, with which no request ever expires. If requests of several classes wait, the true
    /// time is used even then: it also decides which class may go, and the planted bug must not change that.
    fn asked_at(&self, now: Time) -> Time {
        if kept("policy.expiry") || self.inner.wants_tally() { now } else { Time(0) }
    }

    fn tell_choice(&self, chosen: Option<RqId>, now: Time) -> Option<RqId> {
        self.witness.tell(match chosen {
            Some(rq) => Event::Chosen { rq, now },
            None => Event::HeldBack { waiting: self.inner.len(), now, wakeup: self.inner.next_wakeup() },
        });
        chosen
    }
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl Scheduler for Watched {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn reserve(&mut self, capacity: usize) {
        self.inner.reserve(capacity);
    }

    /// With the planted bug `policy.merge_limits` the scheduler takes the device for one without limits.
    fn set_merge_limits(&mut self, limits: MergeLimits) {
        let unlimited = MergeLimits { max_sectors: u32::MAX, max_segments: u16::MAX, ..limits };
        self.inner.set_merge_limits(if kept("policy.merge_limits") { limits } else { unlimited });
    }

    fn merge(&mut self, info: &Info) -> Option<Merge> {
        let merge = self.inner.merge(info)?;
        self.witness.tell(Event::Merged { into: merge.into, info: *info, how: merge.how });
        if let Some(Join { survivor, absorbed }) = merge.joined {
            self.witness.tell(Event::Absorbed { into: survivor, absorbed });
        }
        Some(merge)
    }

    fn insert(&mut self, rq: RqId, info: &Info, at: InsertAt, now: Time) {
        self.inner.insert(rq, info, at, now);
        self.witness.tell(Event::Inserted { rq, info: *info, at, now });
    }

    fn dispatch(&mut self, now: Time) -> Option<RqId> {
        let chosen = self.inner.dispatch(self.asked_at(now));
        self.tell_choice(chosen, now)
    }

    fn dispatch_with(&mut self, tokens: &mut dyn Tokens, now: Time) -> Option<RqId> {
        let chosen = self.inner.dispatch_with(tokens, self.asked_at(now));
        self.tell_choice(chosen, now)
    }

    fn throttle(&self) -> Option<Throttle> {
        self.inner.throttle()
    }

    fn hand_through(&mut self, newcomers: &[Newcomer], now: Time, order: &mut [u8]) -> bool {
        if !self.inner.hand_through(newcomers, now, order) {
            return false;
        }
        for Newcomer { rq, info } in newcomers {
            self.witness.tell(Event::Inserted { rq: *rq, info: *info, at: InsertAt::Sorted, now });
        }
        for place in order {
            self.witness.tell(Event::Chosen { rq: newcomers[usize::from(*place)].rq, now });
        }
        true
    }

    fn len(&self) -> usize {
        self.inner.len()
    }

    fn wants_tally(&self) -> bool {
        self.inner.wants_tally()
    }

    fn fold(&mut self, tally: &Tally) {
        self.inner.fold(tally);
        let Tally { completed, bypassed } = *tally;
        self.witness.tell(Event::Folded { completed, bypassed });
    }

    fn gate(&self, class: Class) -> bool {
        self.inner.gate(class)
    }

    fn resume(&mut self) {
        self.inner.resume();
    }

    fn next_wakeup(&self) -> Option<Time> {
        self.inner.next_wakeup()
    }

    fn async_depth(&self) -> Option<u32> {
        self.inner.async_depth()
    }

    fn set_nr_requests(&mut self, nr_requests: u32) {
        self.inner.set_nr_requests(nr_requests);
    }

    fn knobs(&self) -> &'static [Knob] {
        self.inner.knobs()
    }

    fn knob(&self, name: &str) -> Option<i64> {
        self.inner.knob(name)
    }

    fn set_knob(&mut self, name: &str, value: i64) -> Result<(), KnobError> {
        self.inner.set_knob(name, value)
    }

    fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        self.inner.show(out)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use blkmq_sched::{IoPriority, MergeLevel, Op};

    use super::super::check::{Checker, Violation};
    use super::super::event::Stamp;
    use super::super::history::History;
    use super::*;

    /// Writes down every event that it is told.
    struct Writer(Arc<Mutex<Vec<String>>>);

    impl Checker for Writer {
        fn see(&mut self, _at: Stamp, event: &Event<'_>) -> Result<(), Violation> {
            let text = match event {
                Event::Inserted { rq, .. } => format!("inserted {}", rq.0),
                Event::Merged { into, info, how } => format!("{} merged into {}: {how:?}", info.sector, into.0),
                Event::Absorbed { into, absorbed } => format!("{} absorbed {}", into.0, absorbed.0),
                Event::Chosen { rq, now } => format!("chose {} at {}", rq.0, now.0),
                Event::HeldBack { waiting, .. } => format!("held back {waiting}"),
                other => format!("{other:?}"),
            };
            self.0.lock().unwrap().push(text);
            Ok(())
        }
    }

    fn write(sector: u64) -> Info {
        Info {
            sector,
            nr_sectors: 8,
            nr_segments: 1,
            op: Op::Write,
            sync: false,
            priority: IoPriority::default(),
            client: blkmq_sched::ClientId(0),
            ctx: 0,
            merge: MergeLevel::Full,
            merge_key: 0,
        }
    }

    #[test]
    fn every_decision_is_told() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let witness = Witness::new(History::new(None), vec![Box::new(Writer(Arc::clone(&told)))], None);
        let mut scheduler = Watched::new(blkmq_sched::scheduler("mq-deadline").unwrap(), witness);
        scheduler.reserve(4);
        scheduler.set_merge_limits(MergeLimits { max_sectors: 64, max_segments: 8, ..MergeLimits::default() });
        scheduler.insert(RqId(1), &write(0), InsertAt::Sorted, Time(0));
        scheduler.insert(RqId(2), &write(16), InsertAt::Sorted, Time(0));
        assert!(scheduler.merge(&write(100)).is_none());
        assert!(scheduler.merge(&write(8)).is_some());
        assert_eq!(scheduler.len(), 1);
        assert_eq!(scheduler.dispatch(Time(1)), Some(RqId(1)));
        assert_eq!(scheduler.dispatch(Time(1)), None);
        scheduler.fold(&Tally { completed: [0, 1, 0], bypassed: [2, 0, 0] });
        assert!(scheduler.gate(Class::RealTime) && !scheduler.gate(Class::Idle));
        let expected = [
            "inserted 1",
            "inserted 2",
            "8 merged into 2: Front",
            "1 absorbed 2",
            "chose 1 at 1",
            "held back 0",
            "Folded { completed: [0, 1, 0], bypassed: [2, 0, 0] }",
        ];
        assert_eq!(*told.lock().unwrap(), expected);
    }
}
