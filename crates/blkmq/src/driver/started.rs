//! Which threads must be told that the driver works on their requests.

use crate::request::FLUSH_POOL;

/// The members whose requests the driver has begun to work on. The threads of these members may sleep, and must plan
/// for the completion.
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
    pub(super) fn note(&mut self, owner: u16, member: u16) {
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

    /// The members to wake. `None`: there were too many to remember, or one is not known, so all that sleep are to be
    /// woken.
    pub(crate) fn members(&self) -> Option<&[u16]> {
        (!self.overflow).then(|| &self.members[..self.len])
    }
}
