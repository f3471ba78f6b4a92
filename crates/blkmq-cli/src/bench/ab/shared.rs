//! One device behind the queues of both sides of a comparison.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use blkmq::driver::{
    Arena, Batch, Done, Driver, DueTimes, Extent, Health, NextEvent, Registration, TimeoutAction, Topology,
    TopologyError,
};
use blkmq::event::EventFd;
use blkmq::{Limits, RqId, Time};

/// A side's handle of a device that both sides use, such as a file, which is open once.
///
/// The device serves one queue at a time: the sides run in turn, and a side ends its slice when nothing of it is
/// outstanding. So each tag names a request of the side that runs.
#[derive(Debug)]
pub(super) struct Shared(pub(super) Arc<dyn Driver>);

/// Methods that call those of the device behind the handle.
macro_rules! forward {
    ($(fn $name:ident(&self $(, $arg:ident: $type:ty)*) $(-> $returned:ty)?;)*) => {
        $(fn $name(&self $(, $arg: $type)*) $(-> $returned)? {
            self.0.$name($($arg),*)
        })*
    };
}

impl Driver for Shared {
    forward! {
        fn name(&self) -> &'static str;
        fn limits(&self) -> Limits;
        fn health(&self) -> Health;
        fn topology(&self) -> Topology;
        fn set_topology(&self, topology: Topology) -> Result<(), TopologyError>;
        fn is_concurrent(&self) -> bool;
        fn is_owned(&self) -> bool;
        fn keeps_data(&self) -> bool;
        fn identity(&self) -> Option<String>;
        fn extent(&self, start: u64, bytes: u64) -> Extent;
        fn takes_time(&self) -> bool;
        fn queue_rqs(&self, hctx: u16, batch: &mut Batch<'_>, now: Time);
        fn poll(&self, hctx: u16, done: &mut Done<'_>, now: Time);
        fn next_event(&self, hctx: u16) -> NextEvent;
        fn due_times(&self, hctx: u16, due: &mut DueTimes<'_>);
        fn ready_fd(&self, hctx: u16) -> Option<BorrowedFd<'_>>;
        fn sleep(&self, hctx: u16, bell: &EventFd, timeout: Option<Duration>) -> bool;
        fn register(&self, arena: &Arena) -> Option<Registration>;
        fn timeout(&self, hctx: u16, id: RqId, now: Time) -> TimeoutAction;
        fn close(&self);
        fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result;
    }
}
