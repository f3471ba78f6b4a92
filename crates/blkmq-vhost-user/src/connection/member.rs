//! A machine among the clients of the engine.

use std::io;
use std::sync::Arc;

use blkmq::event::EventFd;
use blkmq::{QueueError, Submitter};
use blkmq_engine::{Bounds, Engine, Entry, FrontEnd, Session};

use crate::device::Device;
use crate::ring_server::Own;

/// The most requests that a worker has at a time. What is more is left in the rings: the queue takes far fewer of one
/// thread. A client that changes a part of a block waits until each thread has gone through all of its requests.
const MAX_REQUESTS: u16 = 4096;

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

    /// What this thread needs.
    pub(super) fn equip(&self, thread: usize) -> Result<(Submitter, Session<Own>), QueueError> {
        let bounds = Bounds { requests: MAX_REQUESTS, ..self.engine.bounds };
        Session::of_own(self.engine, self.export, (&self.entry, thread), bounds)
    }
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        self.engine.clients.leave(self.entry.number);
    }
}

#[cfg(test)]
mod tests {
    use blkmq_engine::{Ask, Hints, Request};

    use super::*;
    use crate::ring_server::tests::engine;

    /// Red before a thread could have 32768 requests: it went through them for so long that all others waited for it,
    /// which had a part of a block to change.
    #[test]
    fn a_thread_has_so_many_requests_at_a_time() {
        let engine = engine("ram,size=1M");
        let (member, _) = Member::new(&Device::new("a"), &engine).unwrap();
        let (_, mut session) = member.equip(0).unwrap();
        let (ask, hints, own) = (Ask::Tell { bytes: 0 }, Hints::default(), Own::default());
        let request = Request { ask, offset: 0, length: 0, priority: None, hints, own };
        let nr = std::iter::from_fn(|| session.take(&request)).count();
        assert_eq!((nr, session.has_room()), (4096, false));
    }
}
