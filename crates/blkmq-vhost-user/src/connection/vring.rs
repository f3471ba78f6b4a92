//! A ring as the front-end describes it, message by message.

use crate::inflight::Inflight;
use crate::memory::{Memory, NoMemory};
use crate::protocol::feature;
use crate::ring::{Fault, Layout, Ring};
use crate::ring_server::{RingServer, Signals, Terms};

use std::sync::Arc;

/// What is known of a ring. While a worker has it, the worker has the signals too, and knows where it goes on.
#[derive(Debug, Default)]
pub(super) struct Vring {
    pub(super) size: u16,
    pub(super) base: u32,
    /// Descriptors, the driver's part, and the device's part, by the front-end's addresses.
    pub(super) place: Option<[u64; 3]>,
    pub(super) signals: Signals,
    pub(super) is_enabled: bool,
    pub(super) is_started: bool,
}

impl Vring {
    /// Whether all places of the ring that are known lie in this memory.
    pub(super) fn has_memory(&self, memory: &Memory) -> bool {
        self.place.iter().flatten().all(|address| memory.guest_address(*address).is_some())
    }

    /// The ring at work, if all of it is known.
    pub(super) fn start(
        &mut self,
        number: u16,
        memory: &Memory,
        features: u64,
        inflight: Option<&Inflight>,
        terms: &Arc<Terms>,
    ) -> Result<Option<Box<RingServer>>, Fault> {
        let (Some(place), true, false) = (self.place, self.signals.kick.is_some(), memory.is_empty()) else {
            return Ok(None);
        };
        if self.size == 0 {
            return Ok(None);
        }
        let has = |feature: u64| features & feature != 0;
        let address = |user| memory.guest_address(user).ok_or(Fault::Place(NoMemory { address: user, len: 0 }));
        let [descriptors, driver, device] = place;
        let layout = Layout {
            size: self.size,
            descriptors: address(descriptors)?,
            driver: address(driver)?,
            device: address(device)?,
            is_packed: has(feature::PACKED),
            has_event_idx: has(feature::EVENT_IDX),
            has_indirect: has(feature::INDIRECT),
        };
        let ring = Ring::new(memory, &layout, self.base)?;
        let tracker = inflight.map(|inflight| inflight.tracker(number, self.size, layout.is_packed)).transpose()?;
        let mut ring_server = RingServer::new(number, self.size, ring, memory, tracker.flatten(), Arc::clone(terms))?;
        // Without features of the protocol there is no message that enables a ring.
        ring_server.is_enabled = self.is_enabled || !has(feature::PROTOCOL);
        ring_server.signals = std::mem::take(&mut self.signals);
        self.is_started = true;
        Ok(Some(Box::new(ring_server)))
    }
}
