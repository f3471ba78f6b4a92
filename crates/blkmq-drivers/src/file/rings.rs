//! The rings of all hardware queues, and the memory that they have registered.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use blkmq::MAX_HW_QUEUES;
use blkmq::driver::{Arena, Topology};

use super::journal::Journal;
use super::registered::{Memory, SLOTS};
use super::ring::Ring;
use super::target::Target;
use crate::lock;

/// The rings, each made when its hardware queue is first there; none goes before the device.
#[derive(Debug)]
pub(super) struct Rings {
    entries: Box<[OnceLock<Ring>]>,
    /// What every ring is to register, by the slot of its table.
    memory: Mutex<[Option<Memory>; SLOTS]>,
    /// Who is told what the rings are asked; most often nobody.
    journal: Option<Arc<dyn Journal>>,
}

impl Rings {
    pub(super) fn new(journal: Option<Arc<dyn Journal>>) -> Self {
        Self {
            entries: (0..MAX_HW_QUEUES).map(|_| OnceLock::new()).collect(),
            memory: Mutex::new([const { None }; SLOTS]),
            journal,
        }
    }

    /// The ring of a hardware queue, if it ever was there.
    pub(super) fn get(&self, hctx: u16) -> Option<&Ring> {
        self.entries[usize::from(hctx)].get()
    }

    /// Every ring, with the number of its hardware queue.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &Ring)> {
        self.entries.iter().enumerate().filter_map(|(index, entry)| Some((index, entry.get()?)))
    }

    fn memory(&self) -> MutexGuard<'_, [Option<Memory>; SLOTS]> {
        lock(&self.memory)
    }

    /// Makes the rings that the hardware queues need, at most [`MAX_HW_QUEUES`]. Nothing is in flight.
    pub(super) fn make(&self, target: &Target, topology: Topology) -> io::Result<()> {
        let memory = self.memory();
        let queues = topology.nr_queues();
        let polled = queues - usize::from(topology.poll_queues)..queues;
        for (index, entry) in self.entries[..queues].iter().enumerate() {
            let is_new = entry.get().is_none();
            if is_new {
                let ring = Ring::new(target, topology.depth)?;
                let _ = entry.set(ring.with_journal(index as u16, self.journal.clone()));
            }
            let ring = entry.get().expect("it was just made");
            let has_new = polled.contains(&index) && ring.make_poller(target)?;
            if is_new || has_new {
                (0..).zip(&*memory).for_each(|(slot, memory)| ring.register(slot, *memory));
            }
        }
        // From here on nothing fails: a topology is had whole or not at all.
        self.iter().for_each(|(index, ring)| ring.set_polls(polled.contains(&index)));
        Ok(())
    }

    /// Has every ring register an arena; those that cannot go without.
    pub(super) fn register(self: &Arc<Self>, arena: &Arena) -> Option<Registered> {
        let mut all = self.memory();
        let slot = all.iter().position(Option::is_none)?;
        let memory = Memory::of(arena);
        all[slot] = Some(memory);
        self.iter().for_each(|(_, ring)| ring.register(slot as u16, Some(memory)));
        Some(Registered { rings: Arc::downgrade(self), slot })
    }
}

/// An arena that rings know. Its end is theirs too.
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
        rings.iter().for_each(|(_, ring)| ring.register(self.slot as u16, None));
    }
}
