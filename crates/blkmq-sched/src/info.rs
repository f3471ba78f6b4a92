//! What a scheduler knows of a request: a copy of the few fields it decides on.

/// A point in time in nanoseconds since an origin that the embedder chooses. Never wall-clock time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub u64);

impl Time {
    /// This time plus `ns` nanoseconds, held at the last representable time.
    #[must_use]
    pub const fn after(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }

    /// This time minus `ns` nanoseconds, held at the origin.
    #[must_use]
    pub const fn before(self, ns: u64) -> Self {
        Self(self.0.saturating_sub(ns))
    }

    /// Nanoseconds from `earlier` to this time, zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// The embedder's name for a request. A scheduler stores it, hands it back and never looks inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RqId(pub u64);

/// The client that asks: a place in the embedder's table of clients, and a count of the clients that have had this
/// place. So a client that comes has another id than the client that left its place, until the place was given 2^20
/// times. The default id belongs to no client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ClientId(pub u32);

impl ClientId {
    /// Bits of an id that name the place. The other 20 count how often the place was given.
    const PLACE_BITS: u32 = 12;

    /// How many places there can be.
    pub const PLACES: usize = 1 << Self::PLACE_BITS;

    /// The client that has `place`, less than [`PLACES`](Self::PLACES), as the place is given for the `times`-th time,
    /// wrapping.
    #[must_use]
    pub const fn new(place: usize, times: u32) -> Self {
        core::debug_assert!(place < Self::PLACES, "the place is in the table");
        Self(times << Self::PLACE_BITS | place as u32)
    }

    /// The client's place.
    #[must_use]
    pub const fn place(self) -> usize {
        self.0 as usize % Self::PLACES
    }
}

/// What a request asks the device to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Op {
    /// Read sectors into buffers.
    #[default]
    Read,
    /// Write buffers to sectors.
    Write,
    /// Make the volatile cache durable. Never reaches a scheduler: the flush machine takes it aside.
    Flush,
    /// Declare sectors unused.
    Discard,
    /// Make sectors read as zeroes, without a buffer.
    WriteZeroes,
}

impl Op {
    /// True for the one direction that schedulers call "read"; everything else counts as a write, as in Linux.
    #[must_use]
    pub const fn is_read(self) -> bool {
        matches!(self, Self::Read)
    }

    /// True for reads and writes, whose data goes to the device or comes from it.
    #[must_use]
    pub const fn moves_data(self) -> bool {
        matches!(self, Self::Read | Self::Write)
    }
}

/// The I/O priority class, highest first. A request without one counts as best-effort.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Class {
    /// Served before all others.
    RealTime,
    /// The default.
    #[default]
    BestEffort,
    /// Served when no other class asks.
    Idle,
}

impl Class {
    /// All classes, highest first; a class's place is its [`index`](Self::index).
    pub const ALL: [Self; 3] = [Self::RealTime, Self::BestEffort, Self::Idle];

    /// 0 for real-time, 1 for best-effort, 2 for idle.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// A class and, within it, a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IoPriority {
    /// The class.
    pub class: Class,
    /// 0 (highest) to 7 (lowest).
    pub level: u8,
}

impl IoPriority {
    /// Real-time, level 0 (highest) to 7. A queue refuses operations of a higher level.
    #[must_use]
    pub const fn rt(level: u8) -> Self {
        Self { class: Class::RealTime, level }
    }

    /// Best-effort, level 0 (highest) to 7. A queue refuses operations of a higher level.
    #[must_use]
    pub const fn be(level: u8) -> Self {
        Self { class: Class::BestEffort, level }
    }

    /// Idle, at the lowest level, 7. No scheduler here distinguishes levels of this class.
    #[must_use]
    pub const fn idle() -> Self {
        Self { class: Class::Idle, level: 7 }
    }
}

impl Default for IoPriority {
    /// Best-effort, level 4.
    fn default() -> Self {
        Self::be(4)
    }
}

/// How hard to look for a request to merge with: the `nomerges` knob of a queue, per request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum MergeLevel {
    /// This request neither merges nor is merged into (`nomerges` 2, or a request that must stay alone).
    #[default]
    Never,
    /// Only the request that was inserted or merged into last is tried (`nomerges` 1).
    LastOnly,
    /// Every look-up (`nomerges` 0).
    Full,
}

/// Where an inserted request goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InsertAt {
    /// In front of everything that waits; the latest such request first.
    Head,
    /// Where the policy wants it.
    Sorted,
}

/// The copy of a request that a scheduler decides on. The default is a read of no sectors, which does not merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Info {
    /// First sector, in units of 512 bytes.
    pub sector: u64,
    /// Length in sectors of 512 bytes.
    pub nr_sectors: u32,
    /// Scatter-list segments; for a discard, ranges.
    pub nr_segments: u16,
    /// What is asked.
    pub op: Op,
    /// A thread waits for it (a read, or a write marked so).
    pub sync: bool,
    /// Its priority.
    pub priority: IoPriority,
    /// The client that asks.
    pub client: ClientId,
    /// The software queue that brings it, which is that of the submitter, among those of its hardware queue: modulo 256
    /// if there are more. 0 where there is one.
    pub ctx: u8,
    /// How hard to look for a merge.
    pub merge: MergeLevel,
    /// Only requests with equal keys may merge. The embedder packs into it every flag that must agree.
    pub merge_key: u64,
}

// COST: a copy of half a line. The slab of a policy has one for each request.
const _: () = assert!(size_of::<Info>() == 32);

impl Info {
    /// The sector after the last one, held at the last representable sector.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.sector.saturating_add(self.nr_sectors as u64)
    }
}
