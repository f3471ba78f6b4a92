//! What a request asks for, and how far it has come.

use blkmq_sched::{ClientId, GroupId, Info, IoPriority, MergeLevel, Op, SchedDomain, Ticket, Time};

use super::index::{NIL, SlotIndex};
use crate::request::bio::Flags;
use crate::request::status::Status;
use blkmq_sync::tags::Tag;
use blkmq_sync::unless_mutated;

/// The steps a request has before it in the flush machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum FlushStep {
    /// The request has nothing to do with the flush machine.
    #[default]
    None,
    /// The request waits for a flush before its data.
    PreFlush,
    /// The request's data is on the way to the device.
    Data,
    /// The request waits for a flush after its data.
    PostFlush,
    /// The request is the flush itself, the queue's own.
    Flush,
}

/// A token out of the pool of a request's kind. From the request's choice until its completion it counts against the
/// depth of the pool. (The right to touch a request is a token of another kind.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PoolToken {
    pub(crate) of: SchedDomain,
    /// The word of the pool from which it came.
    pub(crate) word: u8,
}

/// How a request is counted in the statistics, as a number that `queue::account` gives a meaning. The default is a
/// request that is not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct StatClass(pub(crate) u8);

/// The piece of a bio that a slot stands for. A bio that fits the limits has one, a split one has several.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    /// The slot that holds the bio, of the same submitter.
    pub(crate) parent: SlotIndex,
    /// First sector of this part alone.
    pub(crate) sector: u64,
    /// Sectors of this part alone.
    pub(crate) nr_sectors: u32,
    /// Where this part's data begins in the bio's buffers, in bytes.
    pub(crate) offset: usize,
}

/// What an operation asks for. Each of its requests asks for the same.
pub(crate) struct OpAttributes {
    pub(crate) client: ClientId,
    pub(crate) group: GroupId,
    pub(crate) op: Op,
    pub(crate) flags: Flags,
    pub(crate) priority: IoPriority,
    pub(crate) merge: MergeLevel,
}

/// A request, owned by the holder of its token.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Body {
    pub(super) op: Op,
    pub(super) flags: Flags,
    pub(super) priority: IoPriority,
    pub(super) client: ClientId,
    /// The client's group when the plug was begun.
    pub(super) group: GroupId,
    pub(super) merge: MergeLevel,
    /// First sector of the whole request.
    pub(super) sector: u64,
    /// Sectors of the whole request.
    pub(super) nr_sectors: u32,
    /// Segments of the whole request; ranges, for a discard.
    pub(super) nr_segments: u16,
    /// Operations, after splitting, that the whole request stands for. There is more than one once something merged
    /// into it.
    pub(crate) nr_parts: u32,
    /// The parts of the whole request in the order of their sectors, beginning with this slot until something merges
    /// in front of it.
    pub(super) first: SlotIndex,
    pub(super) last: SlotIndex,
    /// This slot's own part.
    pub(crate) part: Part,
    pub(crate) hctx: u16,
    pub(crate) tag: Option<Tag>,
    /// `None` if the scheduler takes no tokens, or none was taken yet.
    pub(crate) token: Option<PoolToken>,
    /// What the request costs, in nanoseconds, for a limiter that counts it as with the device until it completes.
    pub(crate) cost: u32,
    /// The mark of a scheduler that wants reports, from the request's choice until its completion.
    pub(crate) ticket: Option<Ticket>,
    pub(crate) status: Status,
    pub(crate) flush: FlushStep,
    /// The flush machine sends a flush behind this request's data.
    pub(crate) post_flush: bool,
    /// A discard whose parts merged as ranges, which need not touch; each part is one.
    pub(super) has_ranges: bool,
    /// This slot's part is one of several of its bio.
    pub(crate) is_split: bool,
    /// The scheduler dispatched this request, and counts it until it completes.
    pub(crate) ordered: bool,
    /// How the statistics count this request.
    pub(crate) mark: StatClass,
    /// When the operation was submitted, when the driver got it, and when it was completed.
    pub(crate) submitted: Time,
    pub(crate) issued: Time,
    pub(crate) completed: Time,
}

impl Body {
    pub(super) const EMPTY: Self = Self {
        op: Op::Flush,
        flags: Flags::NONE,
        priority: IoPriority { class: blkmq_sched::Class::BestEffort, level: 4 },
        client: ClientId(0),
        group: GroupId::ROOT,
        merge: MergeLevel::Never,
        sector: 0,
        nr_sectors: 0,
        nr_segments: 0,
        nr_parts: 1,
        first: NIL,
        last: NIL,
        part: Part { parent: NIL, sector: 0, nr_sectors: 0, offset: 0 },
        hctx: 0,
        tag: None,
        token: None,
        cost: 0,
        ticket: None,
        status: Status::Ok,
        flush: FlushStep::None,
        post_flush: false,
        has_ranges: false,
        is_split: false,
        ordered: false,
        mark: StatClass(0),
        submitted: Time(0),
        issued: Time(0),
        completed: Time(0),
    };

    /// Becomes the body of a request for one part of an operation, in the slot `index`.
    #[inline(always)]
    pub(crate) fn begin(
        &mut self,
        asked: &OpAttributes,
        submitted: Time,
        index: SlotIndex,
        nr_segments: u16,
        part: Part,
    ) {
        *self = Self {
            op: asked.op,
            flags: asked.flags,
            priority: asked.priority,
            client: asked.client,
            group: asked.group,
            merge: asked.merge,
            submitted,
            sector: part.sector,
            nr_sectors: part.nr_sectors,
            nr_segments,
            first: index,
            last: index,
            part,
            ..Self::EMPTY
        };
    }

    /// The body of a flush of the queue's own.
    pub(crate) const fn flush(hctx: u16, now: Time) -> Self {
        Self { op: Op::Flush, flush: FlushStep::Flush, hctx, submitted: now, ..Self::EMPTY }
    }

    /// The client that asks.
    #[inline]
    pub(crate) const fn client(&self) -> ClientId {
        self.client
    }

    /// Whether a thread waits for the request.
    pub(crate) fn is_sync(&self) -> bool {
        self.op == Op::Read || self.flags.sync
    }

    /// Whether one of the two could join the other by where they lie. Most pairs of requests already fail this test.
    #[inline]
    pub(crate) fn is_near(&self, other: &Self) -> bool {
        self.sector.wrapping_add(u64::from(self.nr_sectors)) == other.sector
            || other.sector.wrapping_add(u64::from(other.nr_sectors)) == self.sector
            || self.op == Op::Discard
    }

    /// Requests with keys that differ must not merge: they differ in group, priority, way of completion, or kind of
    /// zeroes. Requests of several clients of one group may merge, as those of several processes of one cgroup do in
    /// Linux. FUA has no bit here, because a request with FUA is submitted as one that never merges.
    fn merge_key(&self) -> u64 {
        let group = if unless_mutated("merge.group") { self.group.0 } else { 0 };
        u64::from(group) << 32
            | (self.priority.class.index() as u64) << 16
            | u64::from(self.priority.level) << 8
            | u64::from(self.flags.nounmap) << 2
            | u64::from(self.flags.nowait) << 1
            | u64::from(self.flags.polled)
    }

    pub(crate) fn info(&self) -> Info {
        Info {
            sector: self.sector,
            nr_sectors: self.nr_sectors,
            nr_segments: self.nr_segments,
            op: self.op,
            sync: self.is_sync(),
            priority: self.priority,
            client: self.client,
            // The low bits, as the field wants it.
            ctx: self.part.parent.pool() as u8,
            merge: self.merge,
            merge_key: self.merge_key(),
        }
    }
}
