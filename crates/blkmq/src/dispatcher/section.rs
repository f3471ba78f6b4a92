//! The ordered section: the scheduler under its lock, with all that the thread in it needs.

mod dispatch;
mod fast;
mod insert;

pub(super) use dispatch::Batch;

use blkmq_sched::Time;

use crate::dispatcher::Dispatcher;
use crate::queue::{Domain, Hold, Locking, Queue, ThreadState};
use crate::request::{Location, RqList};
use blkmq_sync::liveness::WaiterPresent;
use blkmq_sync::stack::Chain;

/// The scheduler under its lock. Made and ended by [`Domain::enter`] alone.
pub(super) struct Section<'q, 's> {
    pub(super) q: &'q Queue,
    pub(super) thread: &'q ThreadState,
    pub(super) domain: &'s Domain,
    pub(super) hold: &'s mut Hold,
    /// The thread's own lists, which the section uses under the lock.
    pub(super) dispatcher: &'s mut Dispatcher,
    pub(super) now: Time,
    /// Whether WAITING was set when this thread entered. If so, one attempt is enough.
    pub(super) waiter_present: WaiterPresent,
    /// Whether an inserted request looks for a merge: always, except under one measure of the baseline `staged`.
    pub(super) looks_for_merges: bool,
    /// Whether the scheduler has to be asked earlier than sleeping threads have planned for.
    wakes_sleepers: bool,
}

impl Domain {
    /// Enters the ordered section as of `now`: `run` works under the scheduler's lock, as
    /// [`with_hold`](Self::with_hold) says. Wakes sleeping threads if the scheduler has to be asked earlier than they
    /// have planned for. `thread` and `dispatcher` belong to the calling thread, which must not be in the section
    /// already.
    #[inline]
    pub(super) fn enter<'q, R>(
        &self,
        q: &'q Queue,
        thread: &'q ThreadState,
        dispatcher: &mut Dispatcher,
        now: Time,
        run: impl FnOnce(&mut Section<'q, '_>) -> R,
    ) -> R {
        debug_assert!(std::ptr::eq(thread, dispatcher.thread(q)), "thread and dispatcher belong to one thread");
        debug_assert!(std::ptr::eq(self, q.domain(self.first_hctx())), "the domain is one of those in use");
        let (result, wakes_sleepers) = self.with_hold(q, dispatcher.thread, |hold| {
            hold.begin(q, now);
            let (domain, waiter_present) = (self, WaiterPresent::NO);
            let mut section = Section {
                q,
                thread,
                domain,
                hold,
                dispatcher,
                now,
                waiter_present,
                looks_for_merges: true,
                wakes_sleepers: false,
            };
            (run(&mut section), section.wakes_sleepers)
        });
        if wakes_sleepers {
            q.wake_sleepers(dispatcher.thread);
        }
        result
    }
}

impl Section<'_, '_> {
    /// Whether the thread in the scheduler dispatches for all threads. For assertions.
    fn dispatches_for_all(&self) -> bool {
        self.q.locking() == Locking::Combining
    }

    /// Reads WAITING: see [`Liveness::waiter_present`](blkmq_sync::liveness::Liveness::waiter_present). For a locking
    /// under which one thread dispatches for all.
    #[inline]
    pub(super) fn check_waiting(&mut self) {
        debug_assert!(self.dispatches_for_all(), "where each thread looks for itself, none fences for the others");
        let waiter_present = self.q.live.waiter_present();
        // The combiner of another domain may clear WAITING. So this thread has fenced, and continues as if WAITING were
        // clear.
        self.waiter_present = if self.domain.is_whole() { waiter_present } else { WaiterPresent::NO };
    }

    /// Sets or clears WAITING by whether anything waits, here or elsewhere. For a locking under which one thread
    /// dispatches for all of its domain. `is_cut_short`: requests may stay behind although there were tags and room for
    /// them.
    ///
    /// # Several domains
    /// The combiner of another domain may have read that nothing waits here, before this section published its counts,
    /// and be about to clear WAITING. If this thread has prepared to wait since, it has set WAITING once more, and the
    /// clearing fails. A thread that has not sets WAITING here for that reason, even if it is set already.
    #[inline]
    pub(super) fn settle(&mut self, is_cut_short: bool) {
        debug_assert!(
            self.dispatches_for_all(),
            "where each thread looks for itself, WAITING is cleared outside of the lock"
        );
        let q = self.q;
        if is_cut_short && !self.domain.is_whole() && self.hold.has_waiting() {
            self.show();
            q.live.word.set_waiting();
            return;
        }
        q.live.settle(self.hold.has_waiting(), || {
            q.hctxs.iter().all(|(_, hctx)| hctx.nr_dispatch() == 0)
                && (self.domain.is_whole() || self.domain.is_rest_idle(q))
        });
    }

    /// Publishes how many requests wait here, before some of them may stay behind. A queue with one domain needs this
    /// only when the section ends.
    ///
    /// # Liveness
    /// A thread that frees a tag finds WAITING set, and then visits the domains whose counts say that something waits.
    /// A thread clears WAITING if no domain's counts say so. So a section first publishes its counts, then sets
    /// WAITING, and then fences (`Liveness::prepare_to_wait`). A thread whose fence comes later, and a thread that
    /// reads WAITING as set there, see the counts.
    #[inline]
    pub(super) fn show(&self) {
        if !self.domain.is_whole() {
            self.domain.note_waiting(self.hold);
        }
    }

    /// Plans for the time at which the scheduler will dispatch what it holds back, if it holds something back.
    #[inline]
    pub(super) fn plan(&mut self, is_held_back: bool) {
        let wakes_sleepers = self.domain.plan(self.hold, is_held_back, self.now);
        if wakes_sleepers && !self.domain.is_whole() {
            self.q.domains.note_plan();
        }
        self.wakes_sleepers |= wakes_sleepers;
    }

    /// Adds the published requests to the backlog.
    #[inline]
    pub(super) fn take_over(&mut self, published: Chain) {
        debug_assert!(
            published.is_empty() || self.dispatches_for_all(),
            "requests are published only where the combiner dispatches for all threads"
        );
        if !published.is_empty() {
            let mut list = RqList::default();
            list.take_over_published(&self.q.slots, published, Location::Staged);
            self.hold.backlog.add(list);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::dispatcher::Dispatcher;
    use crate::driver::spec::open;
    use crate::{Bio, Buffer, Client, RequestQueue};

    /// Red if a section that is cut short does not set WAITING because it is set already: the combiner of another
    /// domain, which has read before that nothing waited here, would clear it.
    #[test]
    fn what_a_section_leaves_in_one_of_several_domains_keeps_waiting_set() {
        let device = open("null,irqmode=0,submit_queues=2,poll_queues=0").expect("the spec is good");
        let q = RequestQueue::builder(device).scheduler("kyber").build().expect("the device is good");
        let mut submitter = q.submitter(&Client::new("test")).expect("there is a place");
        let quiesce = q.quiesce();
        submitter.submit(Bio::read(0, Buffer::zeroed(4096))).expect("there is room");
        submitter.flush_plug();
        let q = &q.0;
        let (thread, _) = q.threads.join(q, None).expect("there is a place");
        let mut dispatcher = Dispatcher::new(std::sync::Arc::clone(q), thread);
        let seen = q.live.word.load();
        assert!(seen.is_waiting());
        q.domain(0).enter(q, q.threads.get(thread), &mut dispatcher, q.clock().now(), |section| section.settle(true));
        let is_cleared = q.live.word.clear_waiting(seen);
        // The section ends first, because dropping a submitter waits for its requests.
        q.threads.leave(q, thread, None);
        drop(quiesce);
        q.defer(thread);
        assert!(submitter.wait(1, None).is_ready() && !is_cleared, "something waits");
    }
}
