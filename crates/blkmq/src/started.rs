//! Which threads are to know that the driver works on something of theirs.

use crate::flush::FLUSH_POOL;
use crate::queue::RequestQueue;

/// The members whose requests the driver has begun to work on: they may sleep, and must plan for the completion.
#[derive(Debug, Default)]
pub(crate) struct Started {
    pub(crate) any: bool,
    /// Other members whose requests were started.
    members: [u16; 8],
    len: usize,
    overflow: bool,
}

impl Started {
    /// A request of `owner` was started by `member`.
    pub(crate) fn note(&mut self, owner: u16, member: u16) {
        self.any = true;
        if owner == member || self.overflow || self.members[..self.len].contains(&owner) {
            return;
        }
        // A flush of the queue's own has no owner; whoever waits for it is among the sleepers.
        if self.len == self.members.len() || owner == FLUSH_POOL {
            self.overflow = true;
            return;
        }
        self.members[self.len] = owner;
        self.len += 1;
    }

    /// Wakes those that sleep. Called when the driver has the requests, so that a look at its next event counts them,
    /// and under no lock.
    pub(crate) fn tell(self, q: &RequestQueue) {
        if self.overflow {
            q.wake_sleepers();
        } else if self.len > 0 && q.live.sleepers.any() {
            for member in &self.members[..self.len] {
                q.members.get(*member).wake.rouse();
            }
        }
        q.wake_background();
    }
}
