//! Joining and leaving: a thread takes a place in the queue, and gives it back.

use blkmq_sched::ClientId;

use super::ThreadTable;
#[cfg(feature = "eventfd")]
use crate::driver::Cause;
use crate::queue::Queue;
use crate::queue::error::QueueError;
use crate::request::client::Client;

impl ThreadTable {
    /// Registers a thread. A thread that submits also registers its client, and has slots from then on. A thread
    /// without a client drives the queue for others.
    pub(crate) fn join(&self, q: &Queue, client: Option<&Client>) -> Result<(u16, ClientId), QueueError> {
        let _control = q.control.lock();
        let thread = self.take_place().ok_or(QueueError::TooManySubmitters)?;
        let client = self.enter(q, thread, client).inspect_err(|_| self.free_place(thread))?;
        Ok((thread, client))
    }

    /// Prepares a place that was just taken.
    fn enter(&self, q: &Queue, number: u16, client: Option<&Client>) -> Result<ClientId, QueueError> {
        let (thread, nr_owners) = (self.get(number), q.hctxs.layout().nr_owners());
        if q.is_owned && number > nr_owners {
            return Err(QueueError::NoHardwareQueue(nr_owners));
        }
        #[cfg(feature = "eventfd")]
        if q.has_descriptors {
            thread.wake.equip().map_err(|error| QueueError::NoEventFd(Cause::new(error)))?;
        }
        if q.account.ranges.ever() {
            thread.make_range_sums();
        }
        if q.settings.wants_reports() {
            thread.make_reports();
        }
        q.domains.made().for_each(|domain| domain.control().backlog.reserve(number));
        let Some(client) = client else {
            self.set_background(number, true);
            return Ok(ClientId::default());
        };
        let id = q.tenants().join(number, client)?;
        q.slots.make_pool(number, q.nr_slots);
        Ok(id)
    }

    /// Ends a thread's membership, and its service for a client if it had one. The thread has nothing outstanding.
    pub(crate) fn leave(&self, q: &Queue, thread: u16, client: Option<ClientId>) {
        debug_assert!(
            {
                let thread = self.get(thread);
                !thread.activity.is_active() && thread.completions.is_empty() && thread.bucket.is_empty()
            },
            "thread {thread} leaves from outside of the queue, with nothing outstanding"
        );
        let control = q.control.lock();
        let is_gone = match client {
            Some(client) => q.tenants().leave(thread, client),
            None => {
                self.set_background(thread, false);
                false
            }
        };
        self.free_place(thread);
        // What is notified may leave the queue, and leaving takes this lock.
        drop(control);
        // Only a scheduler that is told of requests waits for a client.
        if is_gone && q.settings.wants_reports() {
            q.tenants().note_shares();
        }
    }
}
