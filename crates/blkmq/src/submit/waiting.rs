//! How a submitter waits: until when, and what ends its sleep.

use std::time::Duration;

use blkmq_sched::Time;

use crate::queue::WaitTarget;
use crate::request::clock::Clock;
use blkmq_sync::unless_mutated;

use super::Submitter;

/// Why a wait has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waited {
    /// As many operations have completed as were waited for, and can be [reaped](Submitter::reap).
    Ready,
    /// The time came first. Fewer operations may have completed.
    TimedOut,
    /// Nothing was outstanding.
    Idle,
}

impl Waited {
    /// True for [`Waited::Ready`].
    #[must_use]
    pub const fn is_ready(self) -> bool {
        matches!(self, Self::Ready)
    }
}

impl Submitter {
    /// Passes the plug on, drives the queue and sleeps until at least `min` operations have completed that were not
    /// reaped, or until `until` on the queue's clock. A `min` of 0 counts as 1. If fewer are outstanding, waits for all
    /// of these. A split operation counts as its parts, as in [`nr_outstanding`](Self::nr_outstanding). Without a time,
    /// a device that never answers makes this wait until the request times out.
    ///
    /// With 1, the thread wakes for each completion of its own. A thread that goes on only when several have completed
    /// saves wake-ups if it says how many: it polls again for each that another thread completes. If all that is
    /// outstanding must complete, the device tells their times
    /// ([`Driver::due_times`](crate::driver::Driver::due_times)) and has one hardware queue of each type at most, it
    /// sleeps until the last of them. An operation completes when a thread polls, so the time at which the first
    /// [completed](crate::Completion::completed) may then be that of the last.
    ///
    /// On a virtual clock, sleeping moves the clock to the next event.
    ///
    /// ```
    /// # use blkmq::{Bio, Buffer, Client, RequestQueue, Waited, driver::spec};
    /// # use std::time::Duration;
    /// # let q = RequestQueue::builder(spec::open("null,irqmode=2,completion_nsec=10us")?).build()?;
    /// # let mut submitter = q.submitter(&Client::new("me"))?;
    /// submitter.submit(Bio::read(0, Buffer::zeroed(4096)))?;
    /// submitter.submit(Bio::read(800, Buffer::zeroed(4096)))?;
    /// assert_eq!(submitter.wait(2, None), Waited::Ready);
    /// assert_eq!(submitter.reap_all(drop), 2);
    /// let until = q.clock().after(Duration::from_millis(1));
    /// assert_eq!(submitter.wait(1, Some(until)), Waited::Idle);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wait(&mut self, min: usize, until: Option<Time>) -> Waited {
        let outstanding = self.nr_outstanding();
        if outstanding == 0 {
            // There may still be something to drive for other threads.
            self.poll();
            return Waited::Idle;
        }
        let min = min.min(outstanding);
        loop {
            let is_ready = self.poll();
            // Parts that were put together to a whole operation have given back their slots.
            let completed = self.dispatcher.nr_completed() + (outstanding - self.nr_outstanding());
            if is_ready && completed >= min {
                return Waited::Ready;
            }
            if until.is_some_and(|until| self.q.0.clock().now() >= until) {
                return Waited::TimedOut;
            }
            self.sleep(until, min == outstanding);
        }
    }

    /// The time at which to poll next even if no other thread wakes this one: the driver's next event for this thread,
    /// a retry, the end of what the scheduler holds back, or an overdue request. `None` if nothing is outstanding, or
    /// if the queue is quiesced. In a quiesced queue polling does nothing, and the thread that ends the quiescence
    /// wakes the sleepers.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Time> {
        self.wakeup(false)
    }

    fn wakeup(&self, wants_all: bool) -> Option<Time> {
        if self.nr_outstanding() == 0 {
            return None;
        }
        let q = &self.q.0;
        if q.live.word.load().is_quiesced() {
            return None;
        }
        let now = q.clock().now();
        if self.dispatcher.saw_quiesced() {
            return Some(now);
        }
        let polls_itself = q.threads.nr_background() == 0;
        // A virtual clock moves to the time that is planned here, for every submitter. It must not pass over the events
        // of others, and no thread sleeps meanwhile.
        let own = matches!(q.clock(), Clock::Real(_)).then(|| WaitTarget {
            thread: self.dispatcher.number(),
            nr_operations: self.nr_outstanding().saturating_sub(self.dispatcher.nr_completed()),
            wants_all,
        });
        Some(q.next_event(self.hctxs().filter(|_| polls_itself), own, self.dispatcher.looked(), now))
    }

    /// Whether other threads have put something on the issue list of a hardware queue that this submitter owns. Always
    /// false while the queue is quiesced.
    fn has_word(&self) -> bool {
        let q = &self.q.0;
        q.is_owned
            && unless_mutated("sleep.inbox")
            && self.polled_hctxs().any(|index| q.hctxs.get(index).inbox.is_full())
    }

    /// Whether this thread may find something to do now. Asked last before it sleeps, and when it begins to wait
    /// elsewhere.
    pub(super) fn has_reason_to_look(&self) -> bool {
        // What holds the plug back may be over. A thread that ends this takes the mark off first, and then wakes the
        // sleepers.
        let has_completions = !self.dispatcher.thread(&self.q.0).completions.is_empty();
        has_completions || self.has_plugged() || self.dispatcher.may_go_on(&self.q.0) || self.has_word()
    }

    pub(super) fn sleep(&self, until: Option<Time>, wants_all: bool) {
        if let Clock::Virtual(clock) = self.q.0.clock() {
            let until = [self.next_wakeup(), until].into_iter().flatten().min();
            // Without a time to go to, the thread waits for another thread to end the quiescence.
            return until.map_or_else(blkmq_sync::thread::yield_now, |until| clock.advance_to(until));
        }
        let (q, thread) = (&self.q.0, self.dispatcher.thread(&self.q.0));
        q.sleep(
            thread,
            self.polled_hctxs(),
            || self.has_reason_to_look(),
            // The time is worked out behind the fence: a thread that starts requests of this thread later wakes it. It
            // is worked out last: asking the device for its descriptors waits for a thread that takes completions.
            || {
                let wakeup = self.wakeup(wants_all).map_or(u64::MAX, |time| time.0);
                let until = wakeup.min(until.map_or(u64::MAX, |time| time.0));
                Some(Duration::from_nanos(until.saturating_sub(q.clock().now().0)))
            },
        );
    }
}

#[cfg(test)]
mod tests {
    use crate::driver::spec::open;
    use crate::{Client, RequestQueue};

    #[test]
    fn a_thread_without_news_looks_again_when_a_time_is_planned_that_had_come() {
        let device = open("null,irqmode=0").expect("the spec is good");
        let q = RequestQueue::builder(device).scheduler("mq-deadline").build().expect("the device is good");
        let mut submitter = q.submitter(&Client::new("test")).expect("there is a place");
        submitter.poll();
        let looked = submitter.dispatcher.looked().0;
        let plan = |time| q.0.domain(0).set_planned(time);
        assert!(!submitter.dispatcher.may_go_on(&q.0));
        // If the planned time is later than the look, the thread sleeps until then.
        plan(looked + 1);
        assert!(!submitter.dispatcher.may_go_on(&q.0));
        plan(looked);
        assert!(submitter.dispatcher.may_go_on(&q.0));
        // The thread looks again only once: it has looked as of that time.
        submitter.poll();
        assert!(!submitter.dispatcher.may_go_on(&q.0));
        plan(u64::MAX);
    }
}
