//! One device behind the queues of both sides of a comparison.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use blkmq::driver::{
    Arena, Batch, Done, Driver, DueTimes, Extent, Health, NextEvent, Registration, RqId, TimeoutAction, Topology,
    TopologyError,
};
use blkmq::event::EventFd;
use blkmq::{Limits, Time};

/// A side's handle of a device that both sides use, such as a file, which is open once.
///
/// The device serves one queue at a time: the sides run in turn, and a side ends its slice when nothing of it is
/// outstanding. So each tag names a request of the side that runs.
#[derive(Debug)]
pub(super) struct Shared(pub(super) Arc<dyn Driver>);

impl Driver for Shared {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn limits(&self) -> Limits {
        self.0.limits()
    }

    fn health(&self) -> Health {
        self.0.health()
    }

    fn topology(&self) -> Topology {
        self.0.topology()
    }

    fn set_topology(&self, topology: Topology) -> Result<(), TopologyError> {
        self.0.set_topology(topology)
    }

    fn is_concurrent(&self) -> bool {
        self.0.is_concurrent()
    }

    fn is_owned(&self) -> bool {
        self.0.is_owned()
    }

    fn keeps_data(&self) -> bool {
        self.0.keeps_data()
    }

    fn identity(&self) -> Option<String> {
        self.0.identity()
    }

    fn extent(&self, start: u64, bytes: u64) -> Extent {
        self.0.extent(start, bytes)
    }

    fn takes_time(&self) -> bool {
        self.0.takes_time()
    }

    fn queue_rqs(&self, hctx: u16, batch: &mut Batch<'_>, now: Time) {
        self.0.queue_rqs(hctx, batch, now);
    }

    fn poll(&self, hctx: u16, done: &mut Done<'_>, now: Time) {
        self.0.poll(hctx, done, now);
    }

    fn next_event(&self, hctx: u16) -> NextEvent {
        self.0.next_event(hctx)
    }

    fn due_times(&self, hctx: u16, due: &mut DueTimes<'_>) {
        self.0.due_times(hctx, due);
    }

    fn ready_fd(&self, hctx: u16) -> Option<BorrowedFd<'_>> {
        self.0.ready_fd(hctx)
    }

    fn sleep(&self, hctx: u16, bell: &EventFd, timeout: Option<Duration>) -> bool {
        self.0.sleep(hctx, bell, timeout)
    }

    fn register(&self, arena: &Arena) -> Option<Registration> {
        self.0.register(arena)
    }

    fn timeout(&self, hctx: u16, id: RqId, now: Time) -> TimeoutAction {
        self.0.timeout(hctx, id, now)
    }

    fn close(&self) {
        self.0.close();
    }

    fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        self.0.show(out)
    }
}
