//! Groups of clients, and what a scheduler is told of clients and groups.

use crate::IoPriority;

/// A group of clients: a place in the embedder's table of groups, and a count of the groups that have had this place,
/// as in a [`ClientId`](crate::ClientId). The default is the root, to which every other group belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GroupId(pub u32);

impl GroupId {
    /// Bits of an id that name the place. The other bits count how often the place was given to a group.
    const PLACE_BITS: u32 = 10;

    /// How many places there can be, that of the root included.
    pub const PLACES: usize = 1 << Self::PLACE_BITS;

    /// The group that holds all others.
    pub const ROOT: Self = Self(0);

    /// The id of the `times`-th group, wrapping, that gets `place`, which is less than [`PLACES`](Self::PLACES). Place
    /// 0 is the root's.
    #[must_use]
    pub const fn new(place: usize, times: u32) -> Self {
        core::debug_assert!(place < Self::PLACES, "the place is in the table");
        Self(times << Self::PLACE_BITS | place as u32)
    }

    /// The group's place.
    #[must_use]
    pub const fn place(self) -> usize {
        self.0 as usize % Self::PLACES
    }
}

/// The smallest weight of a client or group.
pub const MIN_WEIGHT: u16 = 1;
/// The largest weight of a client or group.
pub const MAX_WEIGHT: u16 = 1000;
/// The weight of a client or group if none is given.
pub const DEFAULT_WEIGHT: u16 = 100;

/// What a scheduler is told of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClientSettings {
    /// The client's share beside the other clients and groups of its group: [`MIN_WEIGHT`] to [`MAX_WEIGHT`].
    pub weight: u16,
    /// The priority of the client's requests that carry none of their own.
    pub priority: IoPriority,
    /// The group that the client belongs to.
    pub group: GroupId,
    /// The same for a client that comes again under the same name, and another for another name, as far as a hash goes.
    /// 0: the embedder has no names.
    pub name: u64,
}

impl Default for ClientSettings {
    /// Weight 100, best-effort level 4, in the root, without a name.
    fn default() -> Self {
        Self { name: 0, weight: DEFAULT_WEIGHT, priority: IoPriority::default(), group: GroupId::ROOT }
    }
}

/// What a scheduler is told of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GroupSettings {
    /// The group's share beside the other clients and groups of its parent: [`MIN_WEIGHT`] to [`MAX_WEIGHT`].
    pub weight: u16,
    /// The group that this group belongs to. No group is within itself: the embedder sees to that.
    pub parent: GroupId,
}
