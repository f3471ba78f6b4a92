//! What all devices of this crate have in common: [`Model`].

use std::fmt;

use blkmq_sched::{RqId, Time};

use super::parameter::{FromSpec, SpecError};
use super::pending::{Commands, Pending};
use super::store::{MAX_DATALESS_SECTORS, Store};
use super::{Batch, Done, Driver, DueTimes, Extent, NextEvent, Request, TimeoutAction, Topology, TopologyError};
use crate::request::Status;
use crate::request::limits::{Limits, SECTOR_SIZE};

/// The limits of a device with logical blocks of `bs` bytes and a size in bytes, which takes any operation.
pub(super) fn limits(bs: u32, size: u64) -> Limits {
    Limits {
        capacity_sectors: size / SECTOR_SIZE as u64,
        logical_block_size: bs,
        physical_block_size: bs,
        max_discard_sectors: MAX_DATALESS_SECTORS,
        max_write_zeroes_sectors: MAX_DATALESS_SECTORS,
        ..Limits::default()
    }
}

/// What one device does by itself. Its `Config` implements this.
#[expect(unused_variables, reason = "methods with a default name what they are given")]
pub trait Profile: FromSpec + fmt::Display + Send + Sync + 'static {
    /// The device's name.
    const NAME: &'static str;
    /// The names of the lines of a hardware queue: when something happens next, and the commands.
    const LINES: [&'static str; 2];
    /// What the hardware queues share.
    type Shared: Send + Sync;
    /// The commands of a hardware queue.
    type Commands: Commands + for<'a> From<&'a Self>;

    /// Checks what the parameters demand of each other, beside what each of them accepts.
    fn check(&self) -> Result<(), SpecError> {
        Ok(())
    }

    /// Checks what the parameters of any device demand of each other, of which `bs` and `size` are two, and then those
    /// of this one.
    fn check_all(&self, bs: u32, size: u64) -> Result<(), SpecError> {
        self.topology().check().map_err(|error| SpecError::new(error.to_string()))?;
        if !bs.is_power_of_two() {
            return Err(SpecError::new(format!("bs={bs} is not one of 512, 1024, 2048, 4096")));
        }
        if !size.is_multiple_of(u64::from(bs)) {
            return Err(SpecError::new(format!("a size of {size} bytes is no multiple of bs={bs}")));
        }
        self.check()
    }

    /// The device's state at the start.
    fn machine(&self) -> Self::Shared;

    /// Where the data is; `None` if it is not kept.
    fn store(&self) -> Option<Store>;

    /// See [`Driver::limits`].
    fn limits(&self) -> Limits;

    /// See [`Driver::topology`].
    fn topology(&self) -> Topology;

    /// See [`Driver::takes_time`].
    fn takes_time(&self) -> bool {
        true
    }

    /// See [`Driver::is_concurrent`].
    fn is_concurrent(&self) -> bool {
        false
    }

    /// Checks another number of hardware queues, and takes note of it.
    fn set_topology(device: &Model<Self>, topology: Topology) -> Result<(), TopologyError> {
        topology.check()
    }

    /// Whether requests of this hardware queue finish when they are issued.
    fn is_inline(device: &Model<Self>, hctx: u16) -> bool {
        false
    }

    /// See [`Driver::queue_rqs`]. `commands`: those of the hardware queue, unless it is inline.
    fn queue_rqs(
        device: &Model<Self>,
        hctx: u16,
        commands: Option<&mut Self::Commands>,
        batch: &mut Batch<'_>,
        now: Time,
    );

    /// Writes the state of the machine.
    fn show(device: &Model<Self>, out: &mut dyn fmt::Write) -> fmt::Result {
        Ok(())
    }
}

/// A device of this crate: the [null device](super::null), a [RAM disk](super::ram), and the models of a [hard
/// disk](super::hdd), an [SSD](super::ssd) and a [cloud's volume](super::cloud).
pub struct Model<C: Profile> {
    pub(super) config: C,
    pub(super) store: Option<Store>,
    pub(super) machine: C::Shared,
    pub(super) pending: Pending<C::Commands>,
}

impl<C: Profile> Model<C> {
    /// A device.
    #[must_use]
    pub fn new(config: C) -> Self {
        let (store, machine) = (config.store(), config.machine());
        let device = Self { config, store, machine, pending: Pending::new(C::LINES) };
        device.prepare(device.config.topology());
        device
    }

    /// Cuts the power: data that is not durable is lost, and every request fails until the power is back. A request in
    /// progress takes place wholly before or after the loss, block by block. If the device keeps no data, nothing
    /// happens.
    pub fn lose_power(&self) {
        self.store.iter().for_each(Store::lose_power);
    }

    /// Switches the power on again.
    pub fn restore_power(&self) {
        self.store.iter().for_each(Store::restore_power);
    }

    /// Makes the state of the hardware queues that need one.
    fn prepare(&self, topology: Topology) {
        for hctx in (0..).take(topology.nr_queues()).filter(|&hctx| !C::is_inline(self, hctx)) {
            self.pending.prepare(hctx, topology.depth, || C::Commands::from(&self.config));
        }
    }

    /// Where a hardware queue's commands are, unless it is inline.
    #[inline]
    fn pending(&self, hctx: u16) -> Option<&Pending<C::Commands>> {
        (!C::is_inline(self, hctx)).then_some(&self.pending)
    }

    /// Does what a request asks for. `honour_fua`: a FUA write is durable when this returns.
    #[inline]
    pub(super) fn execute(&self, rq: &mut Request<'_>, honour_fua: bool) -> Status {
        self.store.as_ref().map_or(Status::Ok, |store| store.execute(rq, honour_fua))
    }
}

impl<C: Profile> Driver for Model<C> {
    fn name(&self) -> &'static str {
        C::NAME
    }

    fn limits(&self) -> Limits {
        self.config.limits()
    }

    fn topology(&self) -> Topology {
        self.config.topology()
    }

    fn set_topology(&self, topology: Topology) -> Result<(), TopologyError> {
        C::set_topology(self, topology)?;
        self.prepare(topology);
        Ok(())
    }

    fn keeps_data(&self) -> bool {
        self.store.is_some()
    }

    fn extent(&self, start: u64, bytes: u64) -> Extent {
        self.store.as_ref().map_or(Extent::data(bytes), |store| store.extent(start, bytes))
    }

    fn takes_time(&self) -> bool {
        self.config.takes_time()
    }

    fn is_concurrent(&self) -> bool {
        self.config.is_concurrent()
    }

    fn queue_rqs(&self, hctx: u16, batch: &mut Batch<'_>, now: Time) {
        let Some(pending) = self.pending(hctx) else { return C::queue_rqs(self, hctx, None, batch, now) };
        pending.with(hctx, |commands| C::queue_rqs(self, hctx, Some(commands), batch, now));
    }

    fn poll(&self, hctx: u16, done: &mut Done<'_>, now: Time) {
        if let Some(pending) = self.pending(hctx) {
            pending.poll(hctx, done, now);
        }
    }

    fn next_event(&self, hctx: u16) -> NextEvent {
        self.pending(hctx).map_or(NextEvent::Never, |pending| pending.next_event(hctx))
    }

    fn due_times(&self, hctx: u16, due: &mut DueTimes<'_>) {
        if let Some(pending) = self.pending(hctx) {
            pending.due_times(hctx, due);
        }
    }

    /// Gives every request up.
    fn timeout(&self, hctx: u16, id: RqId, _now: Time) -> TimeoutAction {
        if let Some(pending) = self.pending(hctx) {
            pending.forget(hctx, id);
        }
        TimeoutAction::Done
    }

    fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        writeln!(out, "{} {}", C::NAME, self.config)?;
        C::show(self, out)?;
        self.store.iter().try_for_each(|store| store.show(out))?;
        self.pending.show(out)
    }
}

impl<C: Profile> fmt::Debug for Model<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", C::NAME, self.config)
    }
}
