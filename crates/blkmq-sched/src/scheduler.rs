//! The contract between a scheduler and its embedder.

use alloc::boxed::Box;
use core::fmt;

use crate::limiter::Costs;
use crate::{
    Class, ClientId, ClientSettings, DispatchContext, Fairness, GroupId, GroupSettings, Info, InsertAt, Join, Knob,
    KnobError, Merge, MergeHow, MergeLimits, Report, RqId, Throttle, Time, Usage,
};

/// What happened to requests outside the scheduler since it was created. The embedder sums it over its threads when the
/// gate opens or a request of another class comes, and before each choice of a scheduler that wants
/// [sums](FeedbackKind::Sums).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Dispatched requests that completed, by [`Class::index`](crate::Class::index). A request that another one
    /// absorbed is not among them.
    pub completed: [u64; 3],
    /// Requests that bypassed the scheduler, as [`Scheduler::may_pass`] allowed, by class. Once they are over, they
    /// are among the completed ones too.
    pub bypassed: [u64; 3],
}

/// Which feedback a scheduler needs before its next choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FeedbackKind {
    /// None before each choice. [`Feedback::Sums`] still come when the gate changes.
    None,
    /// [`Feedback::Sums`].
    Sums,
    /// [`Feedback::Events`].
    Events,
    /// None before each choice, but [`Feedback::Usage`] from time to time: a few times a second while nothing is held
    /// back, and each millisecond while the [limiter](crate::limiter::Limiter) of the queue holds something back. An
    /// embedder with a limiter has one in front of such a scheduler, whatever was set.
    Usage,
}

/// Feedback about requests that left the scheduler, or bypassed it.
#[derive(Debug, Clone, Copy)]
pub enum Feedback<'a> {
    /// Sums since the scheduler was created. They may lag behind, and never decrease.
    Sums(&'a Tally),
    /// Requests that bypassed, and requests that completed, as of a time. They come in the order in which each thread
    /// of the embedder recorded them, each thread's in a call of its own. So a completion may come before the passing
    /// of the same request, and the time of an event may be later than this one.
    Events(&'a [Report], Time),
    /// Requests begin to wait again in a scheduler that had none, and others may have bypassed since the last one
    /// left. State of the latest choices, such as a running batch, may be out of date. Comes before the insertion.
    BypassEnded,
    /// What clients got since the last report, by thread, as of a time.
    Usage(&'a [Usage], Time),
}

/// A property of the queue or the device that a scheduler respects from now on. The embedder sets the limits of
/// merging, `nr_requests` and whether the device is rotational before the first request, and each setting when it
/// changes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Setting {
    /// The limits of merging.
    MergeLimits(MergeLimits),
    /// The queue's `nr_requests`, from which depth knobs have their defaults.
    NrRequests(u32),
    /// Whether the device has to move something to get from one sector to another, as a hard disk does. Until it is
    /// set, it does not.
    Rotational(bool),
    /// Bounds for how long one client is served while others ask: for so many sectors, or for one request. `None`, and
    /// until it is set: as the policy decides.
    ///
    /// An embedder with a [`Limiter`](crate::limiter::Limiter) sets it while the limiter holds requests back. A policy
    /// that serves one client for a while to keep the device busy need not do so then, because the limiter does. And a
    /// client with one request at a time looks idle for the microseconds in which the device has that request. The
    /// policy may lend the client's share to others only for as long.
    Slice(Option<u64>),
    /// What requests cost, as far as the [`Limiter`](crate::limiter::Limiter) of the device has learnt it.
    Costs(Costs),
}

/// Which requests may bypass the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Passing {
    /// None.
    Nobody,
    /// Those of one client.
    Client,
    /// Those of every client.
    All,
}

/// How many requests are outstanding: they wait here, or were dispatched and are not over yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outstanding {
    /// Requests other than reads.
    pub others: u64,
    /// The hardware queues to which the requests that are ordered here go.
    pub nr_hctxs: u32,
    /// If only the room is left that is reserved for clients with few waiting requests: how many these may have
    /// together, each its share. Only a policy that wants [usage](FeedbackKind::Usage) is asked so.
    pub reserved: Option<u32>,
}

impl Outstanding {
    /// Whether requests other than reads are fewer than `depth` for each hardware queue.
    #[must_use]
    pub const fn is_below(self, depth: u32) -> bool {
        self.others < depth as u64 * self.nr_hctxs as u64
    }
}

/// Whether a policy lets a request in beside those that are outstanding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Admission {
    /// It may be inserted.
    Admitted,
    /// It may be inserted because its client has nothing outstanding, whatever the limits say. The next one of this
    /// client may be refused.
    First,
    /// It has to wait outside.
    Refused,
}

impl Admission {
    /// Admitted if `fits`, and refused otherwise.
    #[must_use]
    pub const fn fitting(fits: bool) -> Self {
        if fits { Self::Admitted } else { Self::Refused }
    }
}

/// The scheduler of one hardware queue, and the device's throttle, of a policy that keeps no order across hardware
/// queues. Returned by [`Scheduler::init_hctx`].
#[derive(Debug)]
pub struct PerHctx {
    /// For the hardware queue: a value in which nothing waits, with the settings of the value that made it.
    pub scheduler: Box<dyn Scheduler>,
    /// For the device, if the policy takes tokens: a new control of their depths, with its knobs. The first one that is
    /// made is used.
    pub throttle: Option<Throttle>,
}

/// A request on its way through a scheduler in which nothing waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FastRequest {
    /// The request's name.
    pub rq: RqId,
    /// What the scheduler decides on.
    pub info: Info,
}

/// Linux's largest default of `nr_requests`. A policy counts with it until the queue tells its own number.
pub(crate) const DEFAULT_NR_REQUESTS: u32 = 256;

/// The largest batch of [`Scheduler::dispatch_fast`].
pub const MAX_FAST_BATCH: usize = 64;

/// A policy: which request next?
///
/// A policy needs a name, room, and the three methods [`insert`](Self::insert), [`dispatch`](Self::dispatch) and
/// [`len`](Self::len). All others have a default, which is that of a policy without merging, classes, limits and knobs.
///
/// Two rules hold, but not for [`reserve`](Self::reserve), knobs and [`show`](Self::show), which are for the control
/// path. No method allocates. And every method takes constant or logarithmic time in the number of waiting requests;
/// [`dispatch_fast`](Self::dispatch_fast) may take longer, since it is for few requests.
///
/// `now` may be earlier than in the call before: a thread reads the clock before it takes the scheduler's lock.
#[expect(clippy::len_without_is_empty, reason = "`dyn Scheduler` has it")]
pub trait Scheduler: Send + fmt::Debug {
    /// The kernel's name of the policy.
    fn name(&self) -> &'static str;

    /// Makes room for `capacity` waiting requests; never forgets one that waits. May allocate.
    fn reserve(&mut self, capacity: usize);

    /// Changes a setting. By default none matters.
    fn configure(&mut self, _setting: Setting) {}

    /// Tries to join the newcomer `info` to a request that waits. `None`: nothing fits, and nothing has changed.
    /// The newcomer needs no id: if it merges, it lives on as a part of [`Merge::into`]. By default nothing fits.
    fn merge(&mut self, _info: &Info) -> Option<Merge> {
        None
    }

    /// Takes a request in, without looking for a merge. The embedder keeps the number of waiting requests within
    /// what it reserved.
    fn insert(&mut self, rq: RqId, info: &Info, at: InsertAt, now: Time);

    /// Chooses the next request and forgets it. `None`: nothing waits, or nothing may go yet ([`Self::next_wakeup`]).
    ///
    /// A policy that [takes tokens](PerHctx::throttle) takes exactly one out of `context` for a request that it
    /// returns, and none if it returns nothing. It takes the token first, and the request out of its lists then. If it
    /// returns nothing although requests wait, a token may be what it lacks: dispatch again when one has come back, or
    /// when a pool is deeper. A policy that wants [events](FeedbackKind::Events) leaves a [ticket](crate::Ticket) in
    /// `context` for each request that it returns. To any other policy `context` is nothing.
    fn dispatch(&mut self, context: &mut dyn DispatchContext, now: Time) -> Option<RqId>;

    /// Makes what another hardware queue gets, and the device, if the policy keeps no order across hardware queues. By
    /// default it does: one value orders the requests of all of them. May allocate.
    ///
    /// A queue tells none of several values that the [bypass ended](Feedback::BypassEnded), and each of them in
    /// [sums](Feedback::Sums) what completed on all hardware queues, without the requests that bypassed.
    fn init_hctx(&self) -> Option<PerHctx> {
        None
    }

    /// Inserts a batch of requests and dispatches all of them at once. `order` gets their places in `batch`, in the
    /// order in which as many calls of [`dispatch`](Self::dispatch) behind an [`insert`](Self::insert) of each would
    /// have named them. The scheduler then is as it would be after these calls. Returns false, and changes nothing,
    /// where that is not simple: something waits already, two of the requests could merge, or one would be held back.
    /// The default always returns false.
    ///
    /// All are of one operation and one class of priority. `order` is as long as `batch`, [`MAX_FAST_BATCH`] at most.
    fn dispatch_fast(&mut self, _batch: &[FastRequest], _now: Time, _order: &mut [u8]) -> bool {
        false
    }

    /// Requests that wait here.
    fn len(&self) -> usize;

    /// Which feedback the next [`dispatch`](Self::dispatch) needs to decide right. By default none.
    ///
    /// A policy that wants [events](FeedbackKind::Events) wants them always, and gives its requests
    /// [tickets](crate::Ticket). It orders the requests of all hardware queues, takes no tokens, and hands nothing
    /// through. Any other one may change its answer.
    fn feedback(&self) -> FeedbackKind {
        FeedbackKind::None
    }

    /// Learns what happened to requests, and says whether clients get what they are due. By default neither matters.
    fn observe(&mut self, _feedback: Feedback<'_>) -> Fairness {
        Fairness::Unknown
    }

    /// A client comes, or a client that is here has other settings from now on. Called before any request of the client
    /// is inserted. An id that is no longer used comes again only for another client. May allocate. By default clients
    /// do not matter.
    fn join(&mut self, _client: ClientId, _settings: &ClientSettings) {}

    /// A client is gone. None of its requests waits, and the end of each dispatched one was reported.
    fn leave(&mut self, _client: ClientId) {}

    /// A group comes, or a group that is here has another weight or parent from now on. Called before any client or
    /// group joins the group. The root is there from the beginning, and its settings do not change. May allocate. By
    /// default groups do not matter.
    fn join_group(&mut self, _group: GroupId, _settings: &GroupSettings) {}

    /// A group is gone. No client and no group belongs to it any more; requests that no thread waits for, which were
    /// inserted while their client belonged to it, may still wait here or be with the driver.
    fn leave_group(&mut self, _group: GroupId) {}

    /// If requests wait that [`dispatch`](Self::dispatch) holds back: when it would let one go if nothing else happens.
    /// A time that has passed means at once. Valid until any other method is called. By default nothing is held back.
    fn next_wakeup(&self) -> Option<Time> {
        None
    }

    /// Which requests of this class may bypass: none, those of this client, or those of every client. They may pass
    /// if, while nothing waits here, such a request would be handed out as soon as it is inserted, and so would the
    /// next, until a request of another class, or of another client if only one may pass, is inserted. The scheduler
    /// learns of the requests that passed in the next [sums](Feedback::Sums), and in [events](Feedback::Events) if it
    /// wants these. That comes before the first [`dispatch`](Self::dispatch) behind such an insertion. By default none
    /// may pass.
    ///
    /// A scheduler that wants [events](FeedbackKind::Events) is asked again whenever a hold of it ends. Any other one
    /// must not change its answer while only requests come that may pass, whether some of them have to wait or not.
    fn may_pass(&self, _class: Class, _client: ClientId) -> Passing {
        Passing::Nobody
    }

    /// Whether a request may be inserted now, beside what is outstanding. A request that may not waits outside, as one
    /// does for which there is no room, and the policy is asked again after each completion. So it refuses no request
    /// of a client that has nothing outstanding. By default it admits every request.
    ///
    /// What it refuses beside a few requests it refuses beside more. A policy is asked about reads only if it wants
    /// [events](FeedbackKind::Events), or for its share of what is [reserved](Outstanding::reserved). What passes the
    /// policy by is not asked about: where a policy does not admit a request other than a read beside as many as there
    /// can be, only reads pass.
    fn limit_depth(&self, _newcomer: &Info, _outstanding: Outstanding) -> Admission {
        Admission::Admitted
    }

    /// The knobs, in the kernel's order; by default none.
    fn knobs(&self) -> &'static [Knob] {
        &[]
    }

    /// A knob's value; `None` if there is no such knob.
    fn knob(&self, _name: &str) -> Option<i64> {
        None
    }

    /// Sets a knob.
    ///
    /// # Errors
    /// The name is unknown or the value out of range; nothing has changed then.
    fn set_knob(&mut self, _name: &str, _value: i64) -> Result<(), KnobError> {
        Err(KnobError::Unknown)
    }

    /// Writes every list and counter in readable form, as debugfs does. By default the number of waiting requests.
    ///
    /// # Errors
    /// Only those of `out`.
    fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        writeln!(out, "waiting: {}", self.len())
    }
}

impl dyn Scheduler + '_ {
    /// True if nothing waits here.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A scheduler that can follow the choices of another one, as a replay of Linux's recorded choices does. A queue does
/// not need this.
///
/// Every method takes linear time in the number of waiting requests.
pub trait Replay: Scheduler {
    /// The request that [`dispatch`](Scheduler::dispatch) at `now` would hand out, which goes on waiting. Its token is
    /// taken.
    fn peek(&mut self, context: &mut dyn DispatchContext, now: Time) -> Option<RqId>;

    /// Dispatches this very request, as if the policy had chosen it at `now`; false if it does not wait here. Position,
    /// batch and counts are then those that the policy has behind such a choice. Takes no token.
    fn force(&mut self, rq: RqId, now: Time) -> bool;

    /// Lets `into` take the newcomer in, whatever the limits and the knobs say; false if `into` does not wait here in
    /// sector order.
    fn force_merge(&mut self, into: RqId, newcomer: &Info, how: MergeHow) -> bool;

    /// Lets one waiting request absorb another, as [`force_merge`](Self::force_merge) does a newcomer.
    fn force_join(&mut self, join: Join) -> bool;
}
