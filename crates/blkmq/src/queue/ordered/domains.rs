//! The domains of a queue: one that orders all hardware queues, or one for each of them.
//!
//! The scheduler decides which ([`Scheduler::init_hctx`](blkmq_sched::Scheduler::init_hctx)). It changes only with the
//! scheduler, on a queue that is frozen, drained and quiesced. No two domains share a cache line.

use std::sync::OnceLock;

use super::domain::Domain;
use crate::queue::Queue;
use crate::queue::experiments::WaitMeters;
use crate::request::limits::MAX_HW_QUEUES;
use blkmq_sync::atomic::{AtomicBool, AtomicU32, Ordering};
use blkmq_sync::{Line, unless_mutated};

/// All domains that a queue ever had.
#[derive(Debug)]
pub(crate) struct Domains {
    /// The domain of all hardware queues. It exists without a scheduler too.
    pub(super) whole: Domain,
    /// The domains of the hardware queues, created on first use and freed with the queue.
    own: Box<[OnceLock<Box<Domain>>]>,
    /// Whether the scheduler of a hardware queue has held a request back until a time. Then a polling thread reads the
    /// plans of all domains.
    has_plans: Line<AtomicBool>,
    /// The hardware queue with whose domain the next thread begins: the one after the last that got a tag or token
    /// while something waited.
    turn: Line<AtomicU32>,
    waits: WaitMeters,
}

impl Domains {
    pub(in crate::queue) fn new(waits: WaitMeters) -> Self {
        Self {
            whole: Domain::new(None, waits.clone()),
            own: (0..MAX_HW_QUEUES).map(|_| OnceLock::new()).collect(),
            has_plans: Line::new("queue.has_plans", AtomicBool::new(false)),
            turn: Line::new("queue.turn", AtomicU32::new(0)),
            waits,
        }
    }

    /// The domain of a hardware queue alone.
    #[inline]
    fn own(&self, hctx: u16) -> &Domain {
        self.own[usize::from(hctx)].get().expect("a domain was made for each hardware queue of a split queue")
    }

    /// The domain of the first hardware queue of a split queue.
    pub(super) fn first(&self) -> &Domain {
        self.own(0)
    }

    /// Creates the domains of so many hardware queues, unless they exist. Called by the control path.
    pub(super) fn make(&self, nr_hctxs: u16) {
        debug_assert!(nr_hctxs > 0, "a device has a hardware queue");
        for (hctx, domain) in (0..nr_hctxs).zip(&self.own) {
            let _ = domain.get_or_init(|| Box::new(Domain::new(Some(hctx), self.waits.clone())));
        }
    }

    /// Every domain that was ever created, in use or not. For the control path.
    pub(in crate::queue) fn made(&self) -> impl Iterator<Item = &Domain> {
        std::iter::once(&self.whole).chain(self.own.iter().filter_map(|domain| domain.get().map(|domain| &**domain)))
    }

    /// Whether something waits in the domains of these hardware queues.
    #[inline(never)]
    fn has_waiting_in(&self, mut hctxs: impl Iterator<Item = u16>) -> bool {
        hctxs.any(|hctx| self.own(hctx).has_waiting())
    }

    #[inline(never)]
    fn planned_of_all(&self, q: &Queue) -> u64 {
        // Acquire pairs with the Release of `note_plan`: the plan for which the mark was set is found.
        if !self.has_plans.load(Ordering::Acquire) {
            return u64::MAX;
        }
        q.domains().map(Domain::planned).min().unwrap_or(u64::MAX)
    }

    /// A domain of one hardware queue has planned for a time.
    pub(crate) fn note_plan(&self) {
        if !self.has_plans.load(Ordering::Relaxed) {
            // Release publishes the plan.
            self.has_plans.store(true, Ordering::Release);
        }
    }

    /// Nothing is planned any more: the scheduler is a new one.
    pub(super) fn forget_plans(&self) {
        self.made().for_each(|domain| domain.set_planned(u64::MAX));
        self.has_plans.store(false, Ordering::Relaxed);
    }
}

impl Queue {
    /// The domain of all hardware queues. `None`: each hardware queue has a domain of its own.
    #[inline]
    pub(crate) fn whole_domain(&self) -> Option<&Domain> {
        if self.settings.is_split() { None } else { Some(&self.domains.whole) }
    }

    /// The domain of a hardware queue, its own or that of all.
    #[inline]
    pub(crate) fn domain(&self, hctx: u16) -> &Domain {
        self.whole_domain().unwrap_or_else(|| self.domains.own(hctx))
    }

    /// The domains in use. A thread that is not inside the queue may see more hardware queues than domains, while their
    /// number changes.
    pub(crate) fn domains(&self) -> impl Iterator<Item = &Domain> {
        let nr_own = if self.settings.is_split() { self.hctxs.layout().len() } else { 0 };
        let own = self.domains.own[..usize::from(nr_own)].iter().filter_map(|domain| Some(&**domain.get()?));
        self.whole_domain().into_iter().chain(own)
    }

    /// The domains in which a thread must dispatch: the queue's one domain, or those that have work. If WAITING is set
    /// these are all of them, and otherwise those of the thread's own hardware queues.
    ///
    /// While WAITING is set the domains take turns, beginning after the last that got something
    /// ([`DueDomains::note_given`]), so that freed tags and tokens are distributed round-robin. The turn advances with
    /// what was given, and not with each thread that dispatches: a thread that dispatches twice for each token would
    /// otherwise begin with the same domain each time that there is one.
    ///
    /// # Liveness
    /// The caller has freed something, and has fenced; or it has inserted a request itself. A domain in which a request
    /// waits for what was freed has published that it has work: see `Section::show` in `dispatcher`.
    #[inline]
    pub(crate) fn due_domains(&self, thread: u16) -> DueDomains<'_> {
        match self.whole_domain() {
            Some(domain) => DueDomains { q: self, whole: Some(domain), thread, takes_all: false, at: 0, left: 0 },
            None => DueDomains::of_several(self, thread),
        }
    }

    /// Whether a request waits that this thread may have inserted.
    #[inline]
    pub(crate) fn has_waiting_for(&self, thread: u16) -> bool {
        match self.whole_domain() {
            Some(domain) => domain.has_waiting(),
            None => self.domains.has_waiting_in(self.hctxs.layout().mapped(thread)),
        }
    }

    /// The earliest time at which a scheduler will dispatch what it holds back, in nanoseconds; `u64::MAX` if none
    /// holds anything back until a time.
    ///
    /// COST: a load, unless schedulers of hardware queues hold back until a time.
    #[inline]
    pub(crate) fn planned(&self) -> u64 {
        match self.whole_domain() {
            Some(domain) => domain.planned(),
            None => self.domains.planned_of_all(self),
        }
    }
}

/// See [`Queue::due_domains`].
pub(crate) struct DueDomains<'q> {
    q: &'q Queue,
    whole: Option<&'q Domain>,
    thread: u16,
    /// Each hardware queue, and not only those of the thread.
    takes_all: bool,
    /// The next hardware queue, or the index of the next among the thread's, and how many are left at most.
    at: u16,
    left: u16,
}

impl<'q> DueDomains<'q> {
    #[inline(never)]
    fn of_several(q: &'q Queue, thread: u16) -> Self {
        debug_assert!(q.settings.is_split(), "there are several domains");
        let (takes_all, len) = (q.live.word.load().is_waiting() && unless_mutated("split.all"), q.hctxs.layout().len());
        let mut at = 0;
        if takes_all {
            let turn = q.domains.turn.load(Ordering::Relaxed);
            at = if turn < u32::from(len) { turn as u16 } else { 0 };
        }
        Self { q, whole: None, thread, takes_all, at, left: len }
    }

    /// The last domain got a tag or token. The next thread begins after it.
    ///
    /// COST: a store to a shared line, while something waits.
    #[inline]
    pub(crate) fn note_given(&self) {
        if self.takes_all {
            // Relaxed, and no read-modify-write: two threads that begin with the same domain do no harm.
            self.q.domains.turn.store(self.at.into(), Ordering::Relaxed);
        }
    }

    #[inline(never)]
    fn next_of_several(&mut self) -> Option<&'q Domain> {
        let (q, layout) = (self.q, self.q.hctxs.layout());
        while self.left > 0 {
            self.left -= 1;
            let hctx = if self.takes_all { self.at } else { layout.mapped(self.thread).nth(self.at.into())? };
            self.at = if self.takes_all && self.at + 1 == layout.len() { 0 } else { self.at + 1 };
            let domain = q.domains.own(hctx);
            if domain.has_work() || q.hctxs.get(hctx).nr_dispatch() > 0 {
                return Some(domain);
            }
        }
        None
    }
}

impl<'q> Iterator for DueDomains<'q> {
    type Item = &'q Domain;

    #[inline]
    fn next(&mut self) -> Option<&'q Domain> {
        match self.whole.take() {
            None if self.left > 0 => self.next_of_several(),
            domain => domain,
        }
    }
}
