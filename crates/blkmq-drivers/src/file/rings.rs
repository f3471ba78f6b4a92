//! The engines of all hardware queues, and the memory that they have registered.
//!
//! [`File`](super::File) calls in: to make engines for a topology, and to find the engine of a hardware queue.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use blkmq::MAX_HW_QUEUES;
use blkmq::driver::{Arena, Topology};

use super::engine::{Choice, Engine};
use super::journal::Journal;
use super::refusal::{explained, is_refused, refused};
use super::registered::{Memory, SLOTS};
use super::ring::Ring;
use super::target::Target;
use super::threads::Threads;
use crate::{OpenError, lock};

/// The engines. Each is made when its hardware queue first exists, and lives as long as the device. All are of one
/// kind.
#[derive(Debug)]
pub(super) struct Rings {
    entries: Box<[OnceLock<Box<dyn Engine>>]>,
    choice: Choice,
    /// Whether each engine belongs to one submitter.
    owned: bool,
    /// Why there are threads although rings were wanted.
    refusal: OnceLock<String>,
    /// How many hardware queues there are. Engines of hardware queues that there were before are kept.
    nr_used: AtomicUsize,
    /// The memory that every ring registers, by the slot of its table.
    memory: Mutex<[Option<Memory>; SLOTS]>,
    /// The journal that is told of everything that the rings are asked for, if there is one.
    journal: Option<Arc<dyn Journal>>,
}

impl Rings {
    pub(super) fn new(choice: Choice, owned: bool, journal: Option<Arc<dyn Journal>>) -> Self {
        Self {
            choice,
            owned,
            refusal: OnceLock::new(),
            nr_used: AtomicUsize::new(0),
            entries: (0..MAX_HW_QUEUES).map(|_| OnceLock::new()).collect(),
            memory: Mutex::new([const { None }; SLOTS]),
            journal,
        }
    }

    /// Returns the engine of a hardware queue, if the hardware queue ever existed.
    pub(super) fn get(&self, hctx: u16) -> Option<&dyn Engine> {
        self.entries[usize::from(hctx)].get().map(|engine| &**engine)
    }

    /// Returns every engine, with the number of its hardware queue.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &dyn Engine)> {
        self.entries.iter().enumerate().filter_map(|(index, entry)| Some((index, &**entry.get()?)))
    }

    fn memory(&self) -> MutexGuard<'_, [Option<Memory>; SLOTS]> {
        lock(&self.memory)
    }

    /// Returns why there are threads though rings were wanted.
    pub(super) fn refusal(&self) -> Option<&str> {
        self.refusal.get().map(String::as_str)
    }

    /// Writes what carries out the requests, and what of the kernel's offers it uses.
    pub(super) fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        let Some(offers) = self.get(0).and_then(|engine| engine.offers()) else {
            let why = self.refusal().map(|why| format!(": {why}"));
            return writeln!(out, "threads do the requests{}", why.unwrap_or_default());
        };
        let whose = if self.owned { "each of one submitter" } else { "shared by all submitters" };
        writeln!(out, "rings: {}, {whose}; {offers}", self.nr_used.load(Ordering::Relaxed))
    }

    /// Returns true if the engines read and write pages of the kernel. A journal could not look at them.
    pub(super) fn take_pages(&self) -> bool {
        self.journal.is_none() && self.get(0).and_then(|engine| engine.offers()).is_some_and(|offers| offers.has_pages)
    }

    /// Makes an engine of the chosen kind. If both kinds are acceptable, the first engine decides.
    fn engine(&self, target: &Target, hctx: usize, depth: u16) -> Result<Box<dyn Engine>, OpenError> {
        let journal = || self.journal.clone().map(|journal| (hctx as u16, journal));
        if self.choice != Choice::Threads && self.refusal().is_none() {
            match Ring::new(target, depth, self.owned, journal()) {
                Err(error) if self.choice == Choice::Any && hctx == 0 && is_refused(&error) => {
                    _ = self.refusal.set(explained(&error));
                }
                made => return Ok(Box::new(made.map_err(refused)?)),
            }
        }
        let threads =
            Threads::new(target, depth, journal()).map_err(|error| OpenError::from(error).at("no threads"))?;
        Ok(Box::new(threads))
    }

    /// Makes the engines that the hardware queues need, at most [`MAX_HW_QUEUES`]. No request is in flight.
    pub(super) fn make(&self, target: &Target, topology: Topology) -> Result<(), OpenError> {
        let memory = self.memory();
        let queues = topology.nr_queues();
        let polled = queues - usize::from(topology.poll_queues)..queues;
        for (index, entry) in self.entries[..queues].iter().enumerate() {
            let is_new = entry.get().is_none();
            if is_new {
                let _ = entry.set(self.engine(target, index, topology.depth)?);
            }
            let engine = entry.get().expect("it was just made");
            let has_new = polled.contains(&index) && engine.make_poller(target)?;
            if is_new || has_new {
                (0..).zip(&*memory).for_each(|(slot, memory)| engine.register(slot, *memory));
            }
        }
        // From here on nothing fails: a topology is set as a whole or not at all.
        self.iter().for_each(|(index, engine)| engine.set_polls(polled.contains(&index)));
        self.nr_used.store(queues, Ordering::Relaxed);
        Ok(())
    }

    /// Makes every ring register an arena. Rings that cannot do it work without.
    pub(super) fn register(self: &Arc<Self>, arena: &Arena) -> Option<Registered> {
        let mut all = self.memory();
        let slot = all.iter().position(Option::is_none)?;
        let memory = Memory::of(arena);
        all[slot] = Some(memory);
        self.iter().for_each(|(_, engine)| engine.register(slot as u16, Some(memory)));
        Some(Registered { rings: Arc::downgrade(self), slot })
    }
}

/// An arena that rings know, and forget when this value is dropped.
#[derive(Debug)]
pub(super) struct Registered {
    rings: Weak<Rings>,
    slot: usize,
}

impl Drop for Registered {
    fn drop(&mut self) {
        let Some(rings) = self.rings.upgrade() else { return };
        let mut all = rings.memory();
        all[self.slot] = None;
        rings.iter().for_each(|(_, engine)| engine.register(self.slot as u16, None));
    }
}
