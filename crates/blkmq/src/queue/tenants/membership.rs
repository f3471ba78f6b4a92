//! Joining and leaving: a thread takes a place in the queue, and gives it back.

use blkmq_sched::ClientId;

#[cfg(feature = "eventfd")]
use crate::driver::Cause;
use crate::queue::RequestQueue;
use crate::queue::error::QueueError;
use crate::request::client::Client;
use blkmq_sync::peek;

impl RequestQueue {
    /// Registers a thread. A thread that submits also registers its client, and has slots from then on. A thread
    /// without a client drives the queue for others.
    pub(crate) fn join(&self, client: Option<&Client>) -> Result<(u16, ClientId), QueueError> {
        let _control = self.control.lock();
        let member = self.members.join().ok_or(QueueError::TooManySubmitters)?;
        let nr_owners = self.hctxs.layout().nr_owners();
        if self.is_owned && member > nr_owners {
            self.members.leave(member);
            return Err(QueueError::NoHardwareQueue(nr_owners));
        }
        #[cfg(feature = "eventfd")]
        if self.has_descriptors
            && let Err(error) = self.members.get(member).wake.equip()
        {
            self.members.leave(member);
            return Err(QueueError::NoEventFd(Cause::new(error)));
        }
        if self.account.ranges.ever() {
            self.members.get(member).make_range_sums();
        }
        if self.settings.wants_reports() {
            self.members.get(member).make_reports();
        }
        self.domains.made().for_each(|domain| domain.control().reserve(member));
        let client = if let Some(client) = client {
            match self.tenants().join(member, client) {
                Ok(id) => {
                    self.slots.make_pool(member, self.nr_slots);
                    id
                }
                Err(error) => {
                    self.members.leave(member);
                    return Err(error.into());
                }
            }
        } else {
            self.members.set_background(member, true);
            ClientId::default()
        };
        Ok((member, client))
    }

    /// Ends a thread's membership, and its service for a client if it had one. The thread has nothing outstanding.
    pub(crate) fn leave(&self, member: u16, client: Option<ClientId>) {
        debug_assert!(
            peek(|| {
                let member = self.members.get(member);
                !member.activity.is_active() && member.completions.is_empty() && member.bucket.is_empty()
            }),
            "member {member} leaves from outside of the queue, with nothing outstanding"
        );
        let control = self.control.lock();
        let is_gone = match client {
            Some(client) => self.tenants().leave(member, client),
            None => {
                self.members.set_background(member, false);
                false
            }
        };
        self.members.leave(member);
        // What is notified may leave the queue, and leaving takes this lock.
        drop(control);
        // Only a scheduler that is told of requests waits for a client.
        if is_gone && self.settings.wants_reports() {
            self.tenants().note_shares();
        }
    }
}
