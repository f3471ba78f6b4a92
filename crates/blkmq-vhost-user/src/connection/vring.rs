//! A ring as the front-end describes it, message by message.

use std::sync::Arc;

use vhost::vhost_user::VhostUserVirtioFeatures;
use virtio_bindings::virtio_config::VIRTIO_F_RING_PACKED;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

use crate::inflight::Inflight;
use crate::memory::{Memory, NoMemory};
use crate::protocol::has;
use crate::ring::{Fault, Layout};
use crate::ring_server::{RingServer, Signals, Terms};
use crate::virtqueue::Virtqueue;

/// What is known of a ring. While a worker has it, the worker has the signals too, and knows where it goes on.
#[derive(Debug, Default)]
pub(super) struct Vring {
    pub(super) size: u16,
    pub(super) base: u32,
    /// Descriptors, the driver's part, and the device's part, by the front-end's addresses.
    pub(super) addresses: Option<[u64; 3]>,
    pub(super) signals: Signals,
    pub(super) is_enabled: bool,
    pub(super) is_started: bool,
}

impl Vring {
    /// Whether all parts of the ring that are known lie in this memory.
    pub(super) fn has_memory(&self, memory: &Memory) -> bool {
        self.addresses.iter().flatten().all(|address| memory.guest_address(*address).is_some())
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
        let is_known = self.signals.kick.is_some() && !memory.is_empty() && self.size > 0;
        let Some([descriptors, driver, device]) = self.addresses.filter(|_| is_known) else { return Ok(None) };
        let address = |user| memory.guest_address(user).ok_or(Fault::Place(NoMemory { address: user, len: 0 }));
        let layout = Layout {
            size: self.size,
            descriptors: address(descriptors)?,
            driver: address(driver)?,
            device: address(device)?,
            is_packed: has(features, VIRTIO_F_RING_PACKED),
            has_event_idx: has(features, VIRTIO_RING_F_EVENT_IDX),
            has_indirect: has(features, VIRTIO_RING_F_INDIRECT_DESC),
        };
        let virtqueue = Virtqueue::new(number, memory, &layout, self.base, inflight)?;
        let mut ring_server = RingServer::new(number, self.size, virtqueue, memory, Arc::clone(terms));
        // Without features of the protocol there is no message that enables a ring.
        let has_protocol = features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() != 0;
        ring_server.is_enabled = self.is_enabled || !has_protocol;
        ring_server.signals = std::mem::take(&mut self.signals);
        self.is_started = true;
        Ok(Some(Box::new(ring_server)))
    }
}
