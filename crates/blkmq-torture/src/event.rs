//! What happens in a world.

use blkmq_sched::limiter::{Phase as LimiterPhase, Progress};
use blkmq_sched::{
    Class, ClientId, ClientSettings, GroupId, GroupSettings, Info, InsertAt, MergeHow, NewDepths, Op, Passing, Reason,
    Report, RqId, SchedDomain, Sums, Ticket, Time, Usage,
};
use blkmq_virtual::{DiskStats, Flags, IoPriority, Locking, QueueCounters, RejectReason, Status};

/// When and where something happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Stamp {
    /// Steps made so far by all CPUs.
    pub(crate) step: u64,
    /// Virtual time.
    pub(crate) time: Time,
    /// The virtual CPU. If the machine itself did something, this is the CPU that ran last.
    pub(crate) cpu: u16,
}

/// What an operation asks for. The number of an operation is its `user_data`. Numbers begin at 1, follow the order of
/// submission, and are never used again in a world. A write writes the operation's number into each of its sectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Asked {
    /// What to do.
    pub(crate) op: Op,
    /// First sector.
    pub(crate) sector: u64,
    /// Length in sectors.
    pub(crate) nr_sectors: u64,
    /// Its flags.
    pub(crate) flags: Flags,
    /// Its priority: that of the operation, or of the client if the operation has none.
    pub(crate) priority: IoPriority,
    /// The tenant's group. While the tenant moves it may be another one.
    pub(crate) group: u32,
}

/// The times at which things happened to an operation, as its completion says. `issued` is zero if the device never got
/// the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Times {
    pub(crate) submitted: Time,
    pub(crate) issued: Time,
    pub(crate) completed: Time,
}

/// What is changed about a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Control {
    /// Another scheduler.
    Scheduler(&'static str),
    /// A knob of the scheduler.
    Knob(&'static str, i64),
    /// A knob of the queue.
    QueueKnob(&'static str, i64),
    /// The locking around the scheduler.
    Locking(Locking),
    /// Whether requests may bypass the scheduler.
    Bypass(bool),
    /// `nr_requests`.
    NrRequests(u32),
    /// `wbt_lat_usec`.
    WbtLatUsec(i64),
    /// Hardware queues: default, read, polled.
    Topology(u16, u16, u16),
    /// How many ranges of sectors are counted separately.
    Ranges(u16),
    /// A freeze, done when the queue has drained.
    Freeze,
    /// The end of a freeze.
    Thaw,
    /// A quiescence, done when no thread is about to issue.
    Quiesce,
    /// The end of a quiescence.
    Unquiesce,
    /// The number of background threads from now on.
    Background(u16),
    /// The weight of a tenant.
    TenantWeight(u16, u16),
    /// A tenant goes to this group.
    Move(u16, u32),
    /// The weight of a group.
    GroupWeight(u32, u16),
    /// A new group in this one, with this weight.
    AddGroup(u32, u16),
    /// A group goes, and what is in it goes to its parent.
    RemoveGroup(u32),
}

/// How far a change has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    /// The change was asked for.
    Begun,
    /// The change is in effect.
    Done,
    /// The change was refused, and nothing has changed.
    Refused,
}

/// What a device did with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    /// Finished the request in the call in which it was offered.
    FinishedAtOnce(Status),
    /// Began to work on the request. Told before any thread can complete the request. `due`: when the device will
    /// complete it, if ever.
    Started {
        /// Virtual time. `None`: the device will never complete the request by itself.
        due: Option<Time>,
    },
    /// Refused the request and those behind it, because it is busy.
    Refused,
    /// Gave the request back for another try.
    GivenBack,
    /// Completed the request.
    Completed(Status),
    /// Completed the request, and was told that the queue has no such request. Right only for a request that the device
    /// had given up or completed before.
    Stale,
    /// Was asked about the request because it took too long, and gave it up.
    GaveUp,
    /// Was asked about the request, and wants more time.
    WantsTime {
        /// When the device now expects to complete the request, as in [`Started`](Self::Started).
        due: Option<Time>,
    },
}

/// What a device has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct DeviceState {
    /// Requests that the device works on.
    pub(crate) held: u32,
    /// How many of the held requests the device will never complete by itself. Only a timeout ends them.
    pub(crate) hung: u32,
    /// When the next of the other held requests is due. The time may lie in the past.
    pub(crate) next_due: Option<Time>,
}

/// What a queue counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Counts {
    pub(crate) stats: QueueCounters,
    pub(crate) stat: DiskStats,
    /// Tags that are out.
    pub(crate) in_flight: u32,
    /// Reads, and others, that the device has.
    pub(crate) inflight: [u32; 2],
}

/// What a queue counts of a range of sectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RangeCount {
    /// The number in its name.
    pub(crate) name: u64,
    /// First sector, and the first sector after the range.
    pub(crate) first: u64,
    pub(crate) end: u64,
    pub(crate) stat: DiskStats,
}

/// What happens. The name of the variant says it. Lists are borrowed for the time of the call only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Event<'a> {
    /// A submitter joined, with this many slots. All submitters of one tenant are one client to the queue.
    Joined { submitter: u16, nr_slots: u16, tenant: u16 },
    /// A submitter begins to leave, and tells nothing of the operations that it reaps from here on.
    Leaving { submitter: u16 },
    /// A submitter left, and all its operations are over. `hands_back`: the submitter was handed back the operations
    /// that were not done, and told of each. Otherwise these operations were dropped.
    Left { submitter: u16, hands_back: bool },
    /// The queue is asked to take an operation. Told before anything can happen to the operation. An operation that the
    /// queue does not take is rejected. `pieces`: the lengths of the operation's buffers, in bytes.
    Submitted { submitter: u16, bio: u64, asked: Asked, pieces: &'a [usize] },
    /// The queue gave an operation this id.
    Named { submitter: u16, bio: u64, id: RqId },
    /// A submitter called the queue to pass on what it had submitted so far, and the call has returned.
    PassedOn { submitter: u16 },
    /// The queue did not take an operation.
    Rejected { submitter: u16, bio: u64, asked: Asked, reason: RejectReason },
    /// An operation is over, and this submitter reaped it. `times`: the times of its steps, as the queue says. `data`:
    /// what each sector held, for a read that succeeded.
    Reaped { submitter: u16, bio: u64, id: RqId, status: Status, times: Times, data: &'a [u64] },
    /// A submitter that leaves got an operation back undone.
    HandedBack { submitter: u16, bio: u64 },
    /// No submitter will reap this operation, which becomes over without an event, at the latest when its submitter has
    /// left.
    Forgotten { submitter: u16, bio: u64 },
    /// How many operations the queue says a submitter has outstanding. The parts of a split operation count one by one.
    /// Told now and then.
    Outstanding { submitter: u16, nr_outstanding: usize },
    /// A submitter is about to sleep until an operation of its own is over, or until it planned to look again.
    Sleeps { submitter: u16 },
    /// A submitter does not sleep any more.
    Wakes { submitter: u16 },

    /// A scheduler is in place. `None`: no scheduler is. The knobs have their defaults except those that
    /// `Control::Knob` sets later.
    Installed { scheduler: Option<&'static str> },
    /// The scheduler got a request. `now`, here and below: the time that the scheduler was told. `value`, here and
    /// below: which of the scheduler's values. There are several if each hardware queue has one; then a number stands
    /// for one hardware queue until another scheduler is in place.
    Inserted { value: u16, rq: RqId, info: Info, at: InsertAt, now: Time },
    /// A new request joined a request that waits in the scheduler.
    Merged { into: RqId, info: Info, how: MergeHow },
    /// A request that waits in the scheduler was absorbed by another one that waits there.
    Absorbed { into: RqId, absorbed: RqId },
    /// The scheduler chose a request.
    Chosen { rq: RqId, now: Time },
    /// The tag of the client and class of a request that came into fair, or was just chosen by it. `is_special`: some
    /// client lends a part of its share, or the client's requests have a price. `is_exclusive`: they go before those of
    /// others. `passes`: the request goes through with others, and this is the tag behind all of them.
    Tagged { rq: RqId, tag: u64, is_special: bool, is_exclusive: bool, passes: bool },
    /// The mark that the scheduler put on the request that it has just chosen.
    Ticketed { rq: RqId, ticket: Option<Ticket> },
    /// The scheduler was asked and chose no request, although this many wait. `wakeup`: when the scheduler would let a
    /// request go even if nothing else happens.
    HeldBack { value: u16, waiting: usize, now: Time, wakeup: Option<Time> },
    /// The scheduler asked for a token of this kind for its next choice. `is_given`: it got one.
    Token { value: u16, of: SchedDomain, is_given: bool },
    /// A scheduler that takes tokens will be in place. The control of their depths has its defaults. Told while nothing
    /// is in flight.
    Throttled,
    /// The control of the depths has looked at the completions since it is in place, and decides on these depths, which
    /// the pools will get from the CPU that tells this, before that CPU tells anything else.
    Adjusted { sums: &'a Sums, now: Time, depths: NewDepths },
    /// A request that was just chosen goes through the limiter, at this cost in ns. `bound`: how much may be with the
    /// device before it; `None`: as much as it takes.
    Sent { rq: RqId, cost: u32, bound: Option<u64>, phase: LimiterPhase },
    /// The limiter lets nothing go that waits. `until`: when it will even if nothing completes.
    Withheld { until: Option<Time> },
    /// From now on there is a new limiter. Told while nothing is in flight.
    Limited,
    /// The limiter has learned what has completed, and goes on like this.
    Learned { progress: &'a Progress, phase: LimiterPhase },
    /// The scheduler is told what clients got since it was told last.
    Used { usage: &'a [Usage] },
    /// The scheduler is told of a client that has come, or that has other settings from now on. A scheduler is told of
    /// all there are before it is in place, and one value of each hardware queue is told of each.
    ClientJoined { client: ClientId, settings: ClientSettings },
    /// The scheduler is told that a client is gone.
    ClientLeft { client: ClientId },
    /// The scheduler is told of a group that has come, or that has other settings from now on.
    GroupJoined { group: GroupId, settings: GroupSettings },
    /// The scheduler is told that a group is gone.
    GroupLeft { group: GroupId },
    /// The scheduler is told what has happened to requests.
    Reported { reports: &'a [Report], now: Time },
    /// The scheduler said which requests of this class may bypass it: none, those of this client, or all.
    Gated { class: Class, client: ClientId, passing: Passing },
    /// A queue of bfq left service.
    Expired { reason: Reason },
    /// The scheduler learned how many requests have completed since it was put in place, and how many of these have
    /// bypassed it or bypass it just now, by class.
    Folded { completed: [u64; 3], bypassed: [u64; 3] },

    /// The device was offered a request. `ranges`: first sector and length of each range; only a discard has more than
    /// one. `segments`: the lengths of the pieces of its data, in bytes. `data`: what each sector shall hold, for a
    /// write. `now`: the time that the device was told.
    Offered {
        rq: RqId,
        hctx: u16,
        tag: u16,
        op: Op,
        flags: Flags,
        sector: u64,
        nr_sectors: u32,
        ranges: &'a [(u64, u32)],
        segments: &'a [usize],
        data: &'a [u64],
        now: Time,
    },
    /// The device is asked about a request because it took too long. `now`: the time that the device was told. The
    /// device's answer follows, unless the device is done with the request already.
    Overdue { rq: RqId, now: Time },
    /// What the device did with a request.
    Acted { rq: RqId, action: Action },
    /// The device lost power and got it back, so the contents of its cache are gone. `content`: what every sector holds
    /// now.
    PowerLost { content: &'a [u64] },

    /// A CPU changes the queue.
    Changed { control: Control, phase: Phase },
    /// The counts of the queue, which has drained and is frozen.
    Counted(&'a Counts),
    /// How many reads, and how many other requests, the device has just now, as the queue says.
    Inflight([u32; 2]),
    /// Every CPU sleeps, until the next timer.
    Idle { until: Option<Time>, device: DeviceState },
    /// The counts of the queue's ranges of sectors, in the order of the ranges. The queue has drained and is frozen.
    CountedRanges(&'a [RangeCount]),
    /// Everything that the queue holds, in readable form. The queue has drained and is frozen.
    Dumped(&'a str),
    /// What this world's thread holds of memory, in bytes.
    Memory { live: i64 },
}
