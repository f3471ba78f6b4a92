//! A driver in front of another one.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use blkmq::driver::{Batch, Done, Driver, DueTimes, NextEvent, TimeoutAction, Topology, TopologyError};
use blkmq::{Limits, RqId, Time};

/// A driver in front of `inner`, with state of its own. What a test does not replace goes to `inner`.
pub(crate) struct Front<S> {
    pub(crate) inner: Arc<dyn Driver>,
    pub(crate) state: S,
    pub(crate) limits: fn(&Self) -> Limits,
    pub(crate) set_topology: fn(&Self, Topology) -> Result<(), TopologyError>,
    pub(crate) is_concurrent: bool,
    pub(crate) is_owned: bool,
    pub(crate) queue_rqs: fn(&Self, u16, &mut Batch<'_>, Time),
    pub(crate) poll: fn(&Self, u16, &mut Done<'_>, Time),
    pub(crate) next_event: fn(&Self, u16) -> NextEvent,
    pub(crate) due_times: fn(&Self, u16, &mut DueTimes<'_>),
    pub(crate) timeout: fn(&Self, u16, RqId, Time) -> TimeoutAction,
    pub(crate) ready_fd: fn(&Self, u16) -> Option<BorrowedFd<'_>>,
}

impl<S> Front<S> {
    pub(crate) fn new(inner: Arc<dyn Driver>, state: S) -> Self {
        Self {
            state,
            limits: |front| front.inner.limits(),
            set_topology: |front, topology| front.inner.set_topology(topology),
            is_concurrent: inner.is_concurrent(),
            is_owned: inner.is_owned(),
            queue_rqs: |front, hctx, batch, now| front.inner.queue_rqs(hctx, batch, now),
            poll: |front, hctx, done, now| front.inner.poll(hctx, done, now),
            next_event: |front, hctx| front.inner.next_event(hctx),
            due_times: |front, hctx, due| front.inner.due_times(hctx, due),
            timeout: |front, hctx, id, now| front.inner.timeout(hctx, id, now),
            ready_fd: |front, hctx| front.inner.ready_fd(hctx),
            inner,
        }
    }
}

/// A driver that claims other limits than `inner` has.
pub(crate) fn claiming(limits: Limits, inner: Arc<dyn Driver>) -> Arc<dyn Driver> {
    Arc::new(Front { limits: |front| front.state, ..Front::new(inner, limits) })
}

impl<S: Send + Sync> Driver for Front<S> {
    fn name(&self) -> &'static str {
        "front"
    }

    fn limits(&self) -> Limits {
        (self.limits)(self)
    }

    fn topology(&self) -> Topology {
        self.inner.topology()
    }

    fn set_topology(&self, topology: Topology) -> Result<(), TopologyError> {
        (self.set_topology)(self, topology)
    }

    fn is_concurrent(&self) -> bool {
        self.is_concurrent
    }

    fn is_owned(&self) -> bool {
        self.is_owned
    }

    fn queue_rqs(&self, hctx: u16, batch: &mut Batch<'_>, now: Time) {
        (self.queue_rqs)(self, hctx, batch, now);
    }

    fn poll(&self, hctx: u16, done: &mut Done<'_>, now: Time) {
        (self.poll)(self, hctx, done, now);
    }

    fn next_event(&self, hctx: u16) -> NextEvent {
        (self.next_event)(self, hctx)
    }

    fn due_times(&self, hctx: u16, due: &mut DueTimes<'_>) {
        (self.due_times)(self, hctx, due);
    }

    fn timeout(&self, hctx: u16, id: RqId, now: Time) -> TimeoutAction {
        (self.timeout)(self, hctx, id, now)
    }

    fn ready_fd(&self, hctx: u16) -> Option<BorrowedFd<'_>> {
        (self.ready_fd)(self, hctx)
    }

    fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        self.inner.show(out)
    }
}

impl<S> fmt::Debug for Front<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Front").field("inner", &self.inner).finish_non_exhaustive()
    }
}
