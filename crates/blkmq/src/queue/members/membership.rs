//! Joining and leaving: a thread takes a place in the queue, and gives it back.

use blkmq_sched::ClientId;

use super::Members;
#[cfg(feature = "eventfd")]
use crate::driver::Cause;
use crate::queue::RequestQueue;
use crate::queue::error::QueueError;
use crate::request::client::Client;
use blkmq_sync::peek;

impl Members {
    /// Registers a thread. A thread that submits also registers its client, and has slots from then on. A thread
    /// without a client drives the queue for others.
    pub(crate) fn join(&self, q: &RequestQueue, client: Option<&Client>) -> Result<(u16, ClientId), QueueError> {
        let _control = q.control.lock();
        let member = self.take_place().ok_or(QueueError::TooManySubmitters)?;
        let client = self.enter(q, member, client).inspect_err(|_| self.free_place(member))?;
        Ok((member, client))
    }

    /// Prepares a place that was just taken.
    fn enter(&self, q: &RequestQueue, number: u16, client: Option<&Client>) -> Result<ClientId, QueueError> {
        let (member, nr_owners) = (self.get(number), q.hctxs.layout().nr_owners());
        if q.is_owned && number > nr_owners {
            return Err(QueueError::NoHardwareQueue(nr_owners));
        }
        #[cfg(feature = "eventfd")]
        if q.has_descriptors {
            member.wake.equip().map_err(|error| QueueError::NoEventFd(Cause::new(error)))?;
        }
        if q.account.ranges.ever() {
            member.make_range_sums();
        }
        if q.settings.wants_reports() {
            member.make_reports();
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
    pub(crate) fn leave(&self, q: &RequestQueue, member: u16, client: Option<ClientId>) {
        debug_assert!(
            peek(|| {
                let member = self.get(member);
                !member.activity.is_active() && member.completions.is_empty() && member.bucket.is_empty()
            }),
            "member {member} leaves from outside of the queue, with nothing outstanding"
        );
        let control = q.control.lock();
        let is_gone = match client {
            Some(client) => q.tenants().leave(member, client),
            None => {
                self.set_background(member, false);
                false
            }
        };
        self.free_place(member);
        // What is notified may leave the queue, and leaving takes this lock.
        drop(control);
        // Only a scheduler that is told of requests waits for a client.
        if is_gone && q.settings.wants_reports() {
            q.tenants().note_shares();
        }
    }
}
