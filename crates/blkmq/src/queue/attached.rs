//! Which devices are behind a queue.
//!
//! A device serves one queue at a time. Each queue counts its tags and its requests on its own, so the requests of a
//! second queue would be taken for those of the first.
//!
//! A queue does not own its device, so that has to be checked. The device's owner keeps a handle of its own: to
//! complete requests from other threads, to read what the device counts, to make it larger. And a device goes to the
//! next queue when one ends.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use crate::driver::Driver;
use crate::queue::error::QueueError;
use blkmq_sync::Arc;

/// The addresses of the drivers. No thread waits for this on the path of a request.
static ATTACHED: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

/// A device's place behind a queue. The place is free again when this is dropped. The device outlives this value, so no
/// other device has its address until then.
#[derive(Debug)]
pub(super) struct Attached(usize);

impl Attached {
    pub(super) fn new(driver: &Arc<dyn Driver>) -> Result<Self, QueueError> {
        let address = Arc::as_ptr(driver).addr();
        if !ATTACHED.lock().unwrap_or_else(PoisonError::into_inner).insert(address) {
            return Err(QueueError::DeviceInUse(driver.name()));
        }
        Ok(Self(address))
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        ATTACHED.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
    }
}
