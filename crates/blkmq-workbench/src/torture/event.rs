//! What happens in a world.

use blkmq_sched::{Info, InsertAt, MergeHow, Op, RqId, Time};
use blkmq_virtual::{Flags, IoPriority, Locking, RejectReason, Stat, Stats, Status};

/// When and where something happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Stamp {
    /// Steps made so far by all CPUs.
    pub(crate) step: u64,
    /// Virtual time.
    pub(crate) time: Time,
    /// The virtual CPU; of what the machine itself does, the one that ran last.
    pub(crate) cpu: u16,
}

/// What an operation asks for. The number of an operation is its `user_data`: from 1, in the order of submission, and
/// never used again in a world. What a write writes into a sector is the operation's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Asked {
    /// What to do.
    pub(crate) op: Op,
    /// First sector.
    pub(crate) sector: u64,
    /// Length in sectors.
    pub(crate) nr_sectors: u64,
    /// How.
    pub(crate) flags: Flags,
    /// Its priority, or the client's.
    pub(crate) priority: IoPriority,
    /// The client's group.
    pub(crate) group: u32,
}

/// When what happened to an operation, by its completion; `issued` is zero if the device never got it.
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
    /// Whether requests may pass it by.
    Bypass(bool),
    /// `nr_requests`.
    NrRequests(u32),
    /// Hardware queues: default, read, polled.
    Topology(u16, u16, u16),
    /// Ranges of sectors that are counted apart: how many.
    Ranges(u16),
    /// A freeze; done when the queue has drained.
    Freeze,
    /// The end of a freeze.
    Thaw,
    /// A quiescence; done when no thread is about to issue.
    Quiesce,
    /// Its end.
    Unquiesce,
    /// Background threads: how many there are from now on.
    Background(u16),
}

/// How far a change has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    /// It was asked for.
    Begun,
    /// It is in effect.
    Done,
    /// It was refused; nothing has changed.
    Refused,
}

/// What a device did with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    /// Finished there and then.
    FinishedAtOnce(Status),
    /// Began to work on it; told before anybody can complete it. `due`: when the device will complete it, if ever.
    Started {
        /// Virtual time; `None`: it never will by itself.
        due: Option<Time>,
    },
    /// Refused it and those behind it: busy.
    Refused,
    /// Gave it back for another try.
    GivenBack,
    /// Completed it.
    Completed(Status),
    /// Completed it, and was told that it has no such request. Right only for a request that it had given up or
    /// completed.
    Stale,
    /// Was asked about it because it took too long, and gave it up.
    GaveUp,
    /// Was asked, and wants more time.
    WantsTime {
        /// When it will complete the request by now, as in [`Started`](Self::Started).
        due: Option<Time>,
    },
}

/// What a device has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct DeviceState {
    /// Requests that it works on.
    pub(crate) held: u32,
    /// Those of them that it will never complete by itself: only a timeout ends them.
    pub(crate) hung: u32,
    /// When the next of the others is due; it may have been due for a while.
    pub(crate) next_due: Option<Time>,
}

/// What a queue counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Counts {
    pub(crate) stats: Stats,
    pub(crate) stat: Stat,
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
    /// First sector, and the first behind it.
    pub(crate) first: u64,
    pub(crate) end: u64,
    pub(crate) stat: Stat,
}

/// What happens, in the words of the variant. Lists are lent for the moment of telling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Event<'a> {
    /// A submitter joined, with this many slots. Those of one tenant are one client to the queue.
    Joined { submitter: u16, nr_slots: u16, tenant: u16 },
    /// It begins to leave. What is over from here on it reaps without a word.
    Leaving { submitter: u16 },
    /// It left, and all its operations are over. `hands_back`: those that were not done were handed back, and told;
    /// else they were dropped.
    Left { submitter: u16, hands_back: bool },
    /// The queue is asked to take an operation. Told before anything of it can happen; what it does not take is
    /// rejected. `pieces`: the lengths of its buffers, in bytes.
    Submitted { submitter: u16, bio: u64, asked: Asked, pieces: &'a [usize] },
    /// The id that the queue gave it.
    Named { submitter: u16, bio: u64, id: RqId },
    /// A submitter has passed on what it had submitted so far, and has come back from that.
    PassedOn { submitter: u16 },
    /// The queue did not take it.
    Rejected { submitter: u16, bio: u64, asked: Asked, reason: RejectReason },
    /// It is over, and this submitter reaped it. `times`: when what happened to it, by the queue's word. `data`: of a
    /// read that succeeded, what each sector held.
    Reaped { submitter: u16, bio: u64, id: RqId, status: Status, times: Times, data: &'a [u64] },
    /// A leaving submitter got it back undone.
    HandedBack { submitter: u16, bio: u64 },
    /// Nobody will reap it: it is over without a word when its submitter has left, or before.
    Forgotten { submitter: u16, bio: u64 },
    /// What the queue says a submitter has outstanding, split operations counted by their parts; told now and then.
    Outstanding { submitter: u16, nr_outstanding: usize },
    /// It is about to sleep until something is over for it, or until it planned to look again.
    Sleeps { submitter: u16 },
    /// It does not sleep any more.
    Wakes { submitter: u16 },

    /// A scheduler is in place; `None`: none is. Its knobs have their defaults but for what `Control::Knob` sets later.
    Installed { scheduler: Option<&'static str> },
    /// The scheduler got a request. `now`, here and below: the time that the scheduler was told.
    Inserted { rq: RqId, info: Info, at: InsertAt, now: Time },
    /// A newcomer joined a request that waits there.
    Merged { into: RqId, info: Info, how: MergeHow },
    /// A request that waits there was absorbed by another that waits there.
    Absorbed { into: RqId, absorbed: RqId },
    /// It chose a request.
    Chosen { rq: RqId, now: Time },
    /// It was asked and chose none, with this many waiting; when it would let one go though nothing else happens.
    HeldBack { waiting: usize, now: Time, wakeup: Option<Time> },
    /// It learned how many requests have completed since it was put in place, and how many of them have passed it by or
    /// do so just now, by class.
    Folded { completed: [u64; 3], bypassed: [u64; 3] },

    /// The device was offered a request. `ranges`: first sector and length of each, more than one only for a discard.
    /// `segments`: the lengths of the pieces of its data, in bytes. `data`: of a write, what each sector shall hold.
    /// `now`: the time that the device was told.
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
    /// The device is asked about a request because it took too long, at the time `now`, as it was told. What it answers
    /// follows, unless it is done with the request already.
    Overdue { rq: RqId, now: Time },
    /// What the device did with a request.
    Acted { rq: RqId, action: Action },
    /// The device lost power and got it back: what its cache held is gone. `content`: what every sector holds now.
    PowerLost { content: &'a [u64] },

    /// Somebody changes the queue.
    Changed { control: Control, phase: Phase },
    /// The queue has drained and is frozen; this is what it counts.
    Counted(&'a Counts),
    /// Reads, and others, that the device has just now, as the queue says.
    Inflight([u32; 2]),
    /// Every CPU sleeps, until the next timer.
    Idle { until: Option<Time>, device: DeviceState },
    /// The same of its ranges of sectors, in the order of these.
    CountedRanges(&'a [RangeCount]),
    /// The same, everything that it holds in readable form.
    Dumped(&'a str),
    /// What this world's thread holds of memory, in bytes.
    Memory { live: i64 },
}
