//! `kyber`: reads, writes, discards and all others in turn, in order of arrival, each kind with a bounded number of
//! requests in the device.
//!
//! One value orders one hardware queue, and knows nothing of the others. What the hardware queues of a device share are
//! the pools of tokens, one for each [`SchedDomain`]. They are lent to each dispatch
//! ([`DispatchContext`]). How deep they are is decided elsewhere, from latencies ([`Throttle`](crate::Throttle)).
//!
//! A request waits in the list of its software queue and kind first. There newcomers of the same software queue merge
//! with it. Only when a token was got, and nothing of that kind is left from the last time, do all software queues'
//! lists of the kind move to the list from which requests are chosen. So what has to wait for a token can still merge.
//!
//! In one point this differs from Linux: a request that goes to the head stands in front of everything, and not only in
//! front of what its own software queue has of its kind.

mod replay;

use alloc::boxed::Box;
use core::fmt;

use crate::data::{Named, Tracked};
use crate::list::{Links, List, chains};
use crate::scheduler::DEFAULT_NR_REQUESTS;
use crate::site::unless_mutated;
use crate::slab::{Index, Slab};
use crate::{
    Admission, Class, ClientId, DispatchContext, Info, InsertAt, Merge, MergeHow, MergeLevel, MergeLimits, Outstanding,
    Passing, PerHctx, RqId, SchedDomain, Scheduler, Setting, Throttle, Time,
};

/// The kernel's name of the policy.
pub(crate) const NAME: &str = "kyber";

/// How many requests of a kind go before the next kind has its turn, by [`SchedDomain::index`].
const BATCHES: [u32; 4] = [16, 8, 1, 1];

/// How many of the latest requests of its software queue and kind a newcomer is tried with.
const TRIES: usize = 8;

/// Software queues that are told apart: as many as [`Info::ctx`] can name.
const NR_CTXS: usize = 1 << u8::BITS;

/// One waiting request.
#[derive(Debug)]
struct Request {
    id: RqId,
    info: Info,
    age: Links,
}

// COST: one line of 64 bytes, or two where it crosses.
const _: () = assert!(size_of::<Request>() <= 48);

impl Request {
    fn new(id: RqId, info: Info) -> Self {
        Self { id, info, age: Links::default() }
    }

    const fn domain(&self) -> SchedDomain {
        SchedDomain::of(self.info.op)
    }
}

chains! {
    /// The chain of the one list in which a request is.
    ByAge: Request => age;
}

/// A set of software queues.
#[derive(Debug, Default)]
struct CtxSet([u64; NR_CTXS / 64]);

impl CtxSet {
    const fn insert(&mut self, ctx: u8) {
        self.0[ctx as usize / 64] |= 1 << (ctx % 64);
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// The lowest number.
    fn first(&self) -> Option<u8> {
        let (number, word) = (0..).zip(&self.0).find(|(_, word)| **word != 0)?;
        Some(number * 64 + word.trailing_zeros() as u8)
    }

    const fn remove(&mut self, ctx: u8) {
        self.0[ctx as usize / 64] &= !(1 << (ctx % 64));
    }

    /// Takes the lowest number out.
    fn pop(&mut self) -> Option<u8> {
        let ctx = self.first()?;
        self.remove(ctx);
        Some(ctx)
    }
}

/// The requests of one kind.
#[derive(Debug, Default)]
struct Queue {
    /// Those that a token let in, in the order in which they go.
    ready: List<ByAge>,
    /// The software queues whose list of this kind has something.
    busy: Tracked<CtxSet>,
    /// Something waited here at the last look, and there was no token.
    needs_token: Tracked<bool>,
}

/// What one software queue brought and no token let in yet, by [`SchedDomain::index`], each in order of arrival.
type Ctx = [List<ByAge>; 4];

/// The scheduler `kyber`, for one hardware queue.
#[derive(Debug)]
pub struct Kyber {
    requests: Slab<Request>,
    ctxs: Named<Box<[Ctx; NR_CTXS]>>,
    queues: [Queue; 4],
    /// Requests that go before all others, whatever their kind; the latest first.
    at_head: List<ByAge>,
    /// The kind whose turn it is.
    current: Tracked<SchedDomain>,
    /// Requests taken in this turn.
    batching: Tracked<u32>,
    nr_requests: u32,
    limits: MergeLimits,
}

impl Default for Kyber {
    fn default() -> Self {
        Self::new()
    }
}

impl Kyber {
    /// An empty scheduler, which merges nothing until it is told the limits.
    #[must_use]
    pub fn new() -> Self {
        Self {
            requests: Slab::new("sched.node"),
            ctxs: Named::new("kyber.ctxs", Box::new(core::array::from_fn(|_| Ctx::default()))),
            queues: Default::default(),
            at_head: List::default(),
            current: Tracked::new(SchedDomain::Read),
            batching: Tracked::new(0),
            nr_requests: DEFAULT_NR_REQUESTS,
            limits: MergeLimits::default(),
        }
    }

    /// How many requests other than reads may be outstanding for each hardware queue: three quarters of the requests.
    fn async_depth(&self) -> u32 {
        let three_quarters = u64::from(self.nr_requests) * 3 / 4;
        u32::try_from(three_quarters).map_or(u32::MAX, |depth| depth.max(1))
    }

    /// Takes a token of this kind, if one of its requests waits.
    fn take_token(&mut self, of: SchedDomain, waits: bool, context: &mut dyn DispatchContext) -> bool {
        let is_taken = waits && context.take_token(of);
        *self.queues[of.index()].needs_token = waits && !is_taken;
        is_taken
    }

    /// Takes the oldest request of a kind out, with a token. A token is asked for only if a request waits. So none is
    /// ever left over.
    fn take(&mut self, of: SchedDomain, context: &mut dyn DispatchContext) -> Option<Index> {
        let queue = &self.queues[of.index()];
        let waits = !queue.ready.is_empty() || !queue.busy.is_empty();
        if !self.take_token(of, waits, context) {
            return None;
        }
        if self.queues[of.index()].ready.is_empty() {
            self.let_in(of);
        }
        let ready = &mut self.queues[of.index()].ready;
        let item = ready.head();
        debug_assert!(item.is_some(), "a software queue that is marked has a request");
        ready.remove(&mut self.requests, item?);
        item
    }

    /// Moves what the software queues have of a kind to the requests that are chosen from, the lowest software queue
    /// first. Nothing merges into it any more.
    ///
    /// COST: constant for each software queue that has something.
    fn let_in(&mut self, of: SchedDomain) {
        debug_assert!(!self.queues[of.index()].busy.is_empty(), "a software queue has something of this kind");
        let queue = &mut self.queues[of.index()];
        while let Some(ctx) = queue.busy.pop() {
            queue.ready.append(&mut self.requests, &mut self.ctxs[usize::from(ctx)][of.index()]);
        }
    }

    /// A request at the head goes first. If there is no token for it, nothing goes: it would not be the first then.
    /// Tokens are out in this case, so one comes back.
    fn choose_at_head(&mut self, item: Index, context: &mut dyn DispatchContext) -> Option<RqId> {
        let domain = self.requests.get(item).domain();
        if !self.take_token(domain, true, context) {
            return None;
        }
        self.at_head.remove(&mut self.requests, item);
        Some(self.start(item))
    }

    /// The waiting request that takes the newcomer in, and what that request then is.
    fn find_host(&self, info: &Info) -> Option<(Index, MergeHow, Info)> {
        // The request that was inserted last is the latest of its list. Which one took a newcomer in last is not known
        // here, nor is it in Linux's kyber.
        let tries = match info.merge {
            MergeLevel::Never => 0,
            MergeLevel::LastOnly => 1,
            MergeLevel::Full => TRIES,
        };
        let list = &self.ctxs[usize::from(info.ctx)][SchedDomain::of(info.op).index()];
        list.iter_back(&self.requests).take(tries).find_map(|(host, request)| {
            let (how, grown) = self.limits.merged(&request.info, info)?;
            Some((host, how, grown))
        })
    }

    /// Forgets a request that is in no list any more.
    fn start(&mut self, item: Index) -> RqId {
        self.requests.remove(item).id
    }
}

impl Scheduler for Kyber {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reserve(&mut self, capacity: usize) {
        self.requests.reserve(capacity);
    }

    fn configure(&mut self, setting: Setting) {
        match setting {
            Setting::MergeLimits(limits) => self.limits = limits,
            Setting::NrRequests(nr_requests) => self.nr_requests = nr_requests,
            Setting::Rotational(_) | Setting::Slice(_) | Setting::Costs(_) => {}
        }
    }

    /// COST: up to eight slots.
    fn merge(&mut self, info: &Info) -> Option<Merge> {
        let (host, how, grown) = self.find_host(info)?;
        let request = self.requests.get_mut(host);
        request.info = grown;
        Some(Merge { into: request.id, how, joined: None })
    }

    /// COST: one slot, and the newest of the same software queue and kind.
    fn insert(&mut self, rq: RqId, info: &Info, at: InsertAt, _now: Time) {
        let item = self.requests.insert(Request::new(rq, *info));
        if at == InsertAt::Head {
            self.at_head.push_front(&mut self.requests, item);
            return;
        }
        let of = SchedDomain::of(info.op).index();
        self.ctxs[usize::from(info.ctx)][of].push_back(&mut self.requests, item);
        self.queues[of].busy.insert(info.ctx);
    }

    /// COST: one slot and one neighbor; where a list of arrivals moves, two slots for each software queue.
    fn dispatch(&mut self, context: &mut dyn DispatchContext, _now: Time) -> Option<RqId> {
        if self.requests.len() == 0 {
            return None;
        }
        if let Some(item) = self.at_head.head() {
            return self.choose_at_head(item, context);
        }
        if *self.batching < BATCHES[self.current.index()]
            && unless_mutated("kyber.batch")
            && let Some(item) = self.take(*self.current, context)
        {
            *self.batching += 1;
            return Some(self.start(item));
        }
        *self.batching = 0;
        for step in 1..=SchedDomain::ALL.len() {
            let next = self.current.plus(step);
            if let Some(item) = self.take(next, context) {
                (*self.current, *self.batching) = (next, 1);
                return Some(self.start(item));
            }
        }
        None
    }

    fn init_hctx(&self) -> Option<PerHctx> {
        let mut other = Self::new();
        (other.limits, other.nr_requests) = (self.limits, self.nr_requests);
        Some(PerHctx { scheduler: Box::new(other), throttle: Some(Throttle::default()) })
    }

    fn len(&self) -> usize {
        self.requests.len()
    }

    /// Classes do not matter, and a request that comes while nothing waits goes as soon as there is a token for it.
    fn may_pass(&self, _class: Class, _client: ClientId) -> Passing {
        if self.len() == 0 { Passing::All } else { Passing::Nobody }
    }

    fn limit_depth(&self, newcomer: &Info, outstanding: Outstanding) -> Admission {
        Admission::fitting(newcomer.op.is_read() || outstanding.is_below(self.async_depth()))
    }

    /// Every list and counter in readable form: what Linux shows of a hardware queue in debugfs.
    fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        for domain in SchedDomain::ALL {
            let (queue, name) = (&self.queues[domain.index()], domain.name());
            writeln!(out, "{name}_rqs:")?;
            for (_, request) in queue.ready.iter(&self.requests) {
                show_request(out, request)?;
            }
            writeln!(out, "{name}_ctx_rqs:")?;
            for ctx in self.ctxs.iter() {
                for (_, request) in ctx[domain.index()].iter(&self.requests) {
                    show_request(out, request)?;
                }
            }
            writeln!(out, "{name}_waiting: {}", u8::from(*queue.needs_token))?;
        }
        writeln!(out, "dispatch:")?;
        for (_, request) in self.at_head.iter(&self.requests) {
            show_request(out, request)?;
        }
        writeln!(out, "cur_domain: {}\nbatching: {}", self.current.name().to_ascii_uppercase(), *self.batching)?;
        writeln!(out, "async_depth: {}", self.async_depth())
    }
}

fn show_request(out: &mut dyn fmt::Write, request: &Request) -> fmt::Result {
    let (id, info) = (request.id.0, &request.info);
    writeln!(out, "  rq {id} {:?} sector {} + {} ctx {}", info.op, info.sector, info.nr_sectors, info.ctx)
}
