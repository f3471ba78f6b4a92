//! Which threads must be told that the driver works on their requests.

use crate::flush::FLUSH_POOL;
use crate::queue::RequestQueue;

/// The members whose requests the driver has begun to work on. Their threads may sleep, and must plan for the
/// completion.
#[derive(Debug, Default)]
pub(crate) struct Started {
    pub(crate) any: bool,
    /// Other members whose requests were started.
    members: [u16; 8],
    len: usize,
    overflow: bool,
}

impl Started {
    /// Notes that `member` started a request of `owner`.
    pub(crate) fn note(&mut self, owner: u16, member: u16) {
        self.any = true;
        if owner == member || self.overflow || self.members[..self.len].contains(&owner) {
            return;
        }
        // A flush of the queue itself has no owner. The submitters that wait for it are among the sleepers.
        if self.len == self.members.len() || owner == FLUSH_POOL {
            self.overflow = true;
            return;
        }
        self.members[self.len] = owner;
        self.len += 1;
    }

    /// Wakes the members that sleep. Called when the driver has the requests, so that its next event counts them, and
    /// under no lock.
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
