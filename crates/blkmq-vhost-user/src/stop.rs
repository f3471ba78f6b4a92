//! Ending a server, from any thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use blkmq::Notify;
use blkmq::event::EventFd;

#[derive(Debug)]
struct Inside {
    is_stopped: AtomicBool,
    bells: Vec<Arc<EventFd>>,
}

/// Ends a server. All clones end the same server. To end it twice has the same effect as once.
#[derive(Debug, Clone)]
pub struct Stop(Arc<Inside>);

impl Stop {
    pub(crate) fn new(bells: Vec<Arc<EventFd>>) -> Self {
        Self(Arc::new(Inside { is_stopped: AtomicBool::new(false), bells }))
    }

    /// Ends the server gracefully: no more requests are taken from the guests' rings, those that were taken are
    /// answered, and then the front-ends are disconnected. What is left in the rings is the next server's, for which a
    /// front-end may wait. The call returns at once.
    pub fn drain(&self) {
        // Release: publishes what the caller did before. The bells ring after this store, so a thread that a bell wakes
        // sees it.
        self.0.is_stopped.store(true, Ordering::Release);
        self.0.bells.iter().for_each(|bell| bell.notify());
    }

    pub(crate) fn is_stopped(&self) -> bool {
        // Acquire: pairs with the Release in `drain`.
        self.0.is_stopped.load(Ordering::Acquire)
    }
}
