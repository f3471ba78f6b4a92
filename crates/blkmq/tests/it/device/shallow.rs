//! Kyber with fewer tokens from the start, so that tests need not wait for its control.

use std::fmt;

use blkmq_sched::{
    Admission, Class, ClientId, DispatchContext, Info, InsertAt, Kyber, Latency, Merge, Outstanding, Passing, PerHctx,
    RqId, SchedDomain, Scheduler, Setting, Sums, Throttle, Time,
};

/// Kyber for one hardware queue of a device that has so few tokens of each kind.
#[derive(Debug)]
pub(crate) struct Shallow {
    inner: Box<dyn Scheduler>,
    throttle: Throttle,
}

/// A control whose depths have fallen to at most `most`, because other requests were slow in the device.
fn fallen(most: u32) -> Throttle {
    let mut throttle = Throttle::default();
    let (mut sums, mut now) = (Sums::default(), Time(0));
    let measured = [SchedDomain::Read, SchedDomain::Write];
    while measured.iter().any(|of| throttle.depth(*of) > most) {
        for of in measured {
            for _ in 0..1000 {
                sums.add(of, Latency::Io, Throttle::BUCKETS - 1);
                // At the depth that is asked for, no more is taken away.
                let bucket = if throttle.depth(of) > most { 0 } else { 3 };
                sums.add(of, Latency::Total, bucket);
            }
        }
        now = now.after(1_000_000_000);
        let _ = throttle.fold(&sums, now);
    }
    throttle
}

impl Shallow {
    pub(crate) fn new(most: u32) -> Box<Self> {
        Box::new(Self { inner: Box::new(Kyber::new()), throttle: fallen(most) })
    }
}

impl Scheduler for Shallow {
    fn name(&self) -> &'static str {
        "shallow"
    }

    fn reserve(&mut self, capacity: usize) {
        self.inner.reserve(capacity);
    }

    fn configure(&mut self, setting: Setting) {
        self.inner.configure(setting);
    }

    fn merge(&mut self, info: &Info) -> Option<Merge> {
        self.inner.merge(info)
    }

    fn insert(&mut self, rq: RqId, info: &Info, at: InsertAt, now: Time) {
        self.inner.insert(rq, info, at, now);
    }

    fn dispatch(&mut self, context: &mut dyn DispatchContext, now: Time) -> Option<RqId> {
        self.inner.dispatch(context, now)
    }

    fn init_hctx(&self) -> Option<PerHctx> {
        let inner = self.inner.init_hctx()?.scheduler;
        let scheduler = Box::new(Self { inner, throttle: self.throttle.clone() });
        Some(PerHctx { scheduler, throttle: Some(self.throttle.clone()) })
    }

    fn len(&self) -> usize {
        self.inner.len()
    }

    fn may_pass(&self, class: Class, client: ClientId) -> Passing {
        self.inner.may_pass(class, client)
    }

    fn limit_depth(&self, newcomer: &Info, outstanding: Outstanding) -> Admission {
        self.inner.limit_depth(newcomer, outstanding)
    }

    fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        self.inner.show(out)
    }
}
