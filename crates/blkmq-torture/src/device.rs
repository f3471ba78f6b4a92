//! The device of a world: it stores a number for each sector, takes time for its requests, and has the faults that
//! devices have.
//!
//! A read finds what the device holds when the read is offered. A write changes all its sectors at the moment when it
//! completes. A write that fails, or that is given up, changes any of its sectors or none. The write does so before the
//! device says that it failed, and never after. Other CPUs run between the requests of a batch, and between the moment
//! when the witness is told of a completion and the completion itself.

mod config;
mod held;
mod inner;
mod medium;
mod stamps;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use blkmq_sched::{RqId, Time};
use blkmq_vcpu::{Random, uninterrupted};
use blkmq_virtual::Limits;
use blkmq_virtual::driver::{Batch, Done, Driver, DueTimes, NextEvent, TimeoutAction, Topology, TopologyError};

pub(crate) use config::DeviceConfig;
use inner::{Found, Inner, Verdict};

use super::event::DeviceState;
use super::witness::Witness;

/// The name of the rule under which the device itself reports a broken promise.
const RULE: &str = "device";

/// A device that tells the witness everything it does.
pub(crate) struct Device {
    config: DeviceConfig,
    /// Locked only in sections that no other CPU interrupts.
    inner: Mutex<Inner>,
}

impl Device {
    /// A device full of zeroes.
    pub(crate) fn new(config: DeviceConfig, random: Random, witness: Witness) -> Arc<Self> {
        let inner = Mutex::new(Inner::new(&config, random, witness));
        Arc::new(Self { config, inner })
    }

    /// What the device has to do.
    pub(crate) fn state(&self) -> DeviceState {
        self.with(|inner| inner.state())
    }

    /// Makes sure that no other CPU calls for an owned hardware queue at the same time.
    fn call(&self, hctx: u16) -> Option<Call<'_>> {
        self.config.is_owned.then(|| {
            self.with(|inner| inner.begin_call(hctx));
            Call { device: self, hctx }
        })
    }

    fn with<R>(&self, act: impl FnOnce(&mut Inner) -> R) -> R {
        uninterrupted(|| act(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// A call for an owned hardware queue, which lasts until this value is dropped.
struct Call<'d> {
    device: &'d Device,
    hctx: u16,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.device.with(|inner| inner.end_call(self.hctx));
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.config.fmt(f)
    }
}

impl Driver for Device {
    fn name(&self) -> &'static str {
        "torture"
    }

    fn limits(&self) -> Limits {
        self.config.limits
    }

    fn topology(&self) -> Topology {
        self.config.topology
    }

    fn set_topology(&self, topology: Topology) -> Result<(), TopologyError> {
        self.with(|inner| inner.set_topology(topology))
    }

    fn is_concurrent(&self) -> bool {
        self.config.is_concurrent
    }

    fn is_owned(&self) -> bool {
        self.config.is_owned
    }

    fn queue_rqs(&self, hctx: u16, batch: &mut Batch<'_>, now: Time) {
        self.with(|inner| inner.enter(now));
        let _call = self.call(hctx);
        while let Some(mut rq) = batch.next_request() {
            match self.with(|inner| inner.offer(hctx, &mut rq, now)) {
                Verdict::Finish(status) => batch.finish(rq, status),
                Verdict::GiveBack => batch.requeue(rq),
                Verdict::Refuse => batch.refuse(rq),
                Verdict::Start => {
                    let id = batch.start(rq);
                    self.with(|inner| inner.started(hctx, id));
                }
            }
        }
    }

    fn poll(&self, hctx: u16, done: &mut Done<'_>, now: Time) {
        self.with(|inner| inner.enter(now));
        let _call = self.call(hctx);
        while let Some(found) = self.with(|inner| inner.take_due(hctx, now)) {
            match found {
                Found::Due(id, status) => {
                    let is_known = done.complete(id, status).is_ok();
                    self.with(|inner| inner.completed(id, is_known, now));
                }
                Found::Over(id, status) => {
                    let is_known = done.complete(id, status).is_ok();
                    self.with(|inner| inner.completed_again(id, is_known));
                }
            }
        }
    }

    fn next_event(&self, hctx: u16) -> NextEvent {
        NextEvent::from(self.with(|inner| inner.next_due(hctx)))
    }

    fn due_times(&self, hctx: u16, due: &mut DueTimes<'_>) {
        self.with(|inner| inner.due_times(hctx).for_each(|(id, time)| due.add(id, time)));
    }

    fn timeout(&self, hctx: u16, id: RqId, now: Time) -> TimeoutAction {
        self.with(|inner| {
            inner.enter(now);
            inner.asked(hctx, id, now)
        })
    }

    fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        let DeviceState { held, hung, next_due } = self.state();
        writeln!(out, "works on {held} requests, {hung} of them forever; next due: {next_due:?}")
    }
}
