//! A machine among the clients of the engine.

use std::io;
use std::sync::Arc;

use blkmq::event::EventFd;
use blkmq::{QueueError, Submitter};
use blkmq_engine::{Bounds, Desk, Engine, Entry, FrontEnd};

use crate::device::Device;
use crate::lane::Own;

/// The most requests that a worker has at a time: as many as a desk can have. What is more is left in the rings.
const MAX_REQUESTS: u16 = 32768;

/// What is known of a machine among the engine's clients. The machine leaves them when this is dropped.
#[derive(Debug)]
pub(super) struct Member<'a> {
    engine: &'a Arc<Engine>,
    /// The index of its export.
    export: usize,
    entry: Arc<Entry>,
}

impl<'a> Member<'a> {
    /// A machine whose front-end has connected, and a bell for each of the device's threads.
    pub(super) fn new(device: &Device, engine: &'a Arc<Engine>) -> io::Result<(Self, Vec<Arc<EventFd>>)> {
        let bells: Vec<_> = (0..device.nr_threads).map(|_| EventFd::new().map(Arc::new)).collect::<Result<_, _>>()?;
        let entry = engine.clients.enter(FrontEnd::VhostUser, device.peer(), bells.clone());
        Ok((Self { engine, export: device.export, entry }, bells))
    }

    /// What the thread with this bell needs.
    pub(super) fn equip(&self, thread: usize, bell: &Arc<EventFd>) -> Result<(Submitter, Desk<Own>), QueueError> {
        let Self { engine, export, entry } = self;
        let mut submitter = engine.exports[*export].join_own(entry)?;
        submitter.set_notify(Some(bell.clone()));
        let bounds = Bounds { requests: MAX_REQUESTS, ..engine.bounds };
        let desk = Desk::of_thread(engine, *export, (entry, thread), bounds, submitter.nr_slots());
        Ok((submitter, desk))
    }
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        self.engine.clients.leave(self.entry.number);
    }
}
