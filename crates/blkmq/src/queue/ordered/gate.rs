//! The gate: the class whose requests may bypass the scheduler while WAITING is clear, as published in the queue's
//! word.
//!
//! The scheduler decides under its lock whether they may. A thread that shuts the gate fences and then reads how many
//! requests have bypassed (see `word`). So a thread that inserts a request of another class knows of all of them, and
//! strict classes stay strict.
//!
//! # A split queue
//! If each hardware queue has a domain, there is one gate for the queue, open for every class or for none. A scheduler
//! that orders one hardware queue allows the bypass only if it allows it for each class: then no class precedes
//! another, and there is no strictness to keep. So the gate changes with the settings alone, and not with insertions. A
//! thread checks once, and not again behind a fence, whether WAITING is set, which it is if a request waits in any
//! domain. So a request does not take the tag or the depth token for which another one waits. If another request begins
//! to wait after this check, this one's tag and token are freed when it completes, and its completer finds WAITING set.
//!
//! Requests other than reads that bypass do not count against the scheduler's limit. So they may bypass only if the
//! scheduler admits as many as there are tags.

use blkmq_sched::{Admission, Class, ClientId, Feedback, FeedbackKind, Info, Op, Outstanding, Passing, Setting};

use super::domains::Domains;
use super::hold::{Hold, STEADY};
use super::scheduler::another;
use crate::queue::Queue;
use blkmq_sync::atomic::Ordering;
use blkmq_sync::word::Gate;
use blkmq_sync::{unless_explored, unless_mutated};

/// The number of requests that must arrive, with nothing waiting behind them, before a gate is opened again that was
/// shut because something waited. It keeps a scheduler that wants reports from being asked at each hold.
const CALM: u32 = 256;

/// The same where interleavings are explored, and something waits most of the time.
const CALM_EXPLORED: u32 = 16;

/// A request other than a read, to ask whether a scheduler bounds such.
fn a_write(client: ClientId) -> Info {
    Info { nr_sectors: 8, nr_segments: 1, op: Op::Write, client, ..Info::default() }
}

impl Hold {
    /// A request is about to be inserted. Shuts the gate if it is open for another class or another client. If it is
    /// open for this class, it stays open: if this request has to wait, WAITING keeps others of its class from
    /// overtaking it.
    #[inline]
    pub(super) fn note_insertion(&mut self, q: &Queue, info: &Info) {
        let class = info.priority.class;
        if let Some(gate) = self.gate {
            self.note_end_of_passing();
            if gate != class && unless_mutated("bypass.class") {
                self.shut_gate(q);
            } else if self.gate_client.is_some_and(|client| client != info.client) {
                // As when the class changes.
                *self.until_open = (*self.until_open).max(STEADY);
                self.shut_gate(q);
            }
        }
        if self.wants_reports {
            self.latest_client = info.client;
        }
        self.note_class(class, 1);
    }

    /// While the gate is open and nothing waits, requests bypass. The request that is about to be inserted is the first
    /// that waits behind them.
    pub(super) fn note_end_of_passing(&mut self) {
        debug_assert!(self.gate.is_some(), "requests pass only through an open gate");
        if let Some(scheduler) = &mut self.scheduler
            && scheduler.is_empty()
        {
            scheduler.observe(Feedback::BypassEnded);
        }
    }

    #[cold]
    fn shut_gate(&mut self, q: &Queue) {
        debug_assert!(self.gate.is_some(), "a gate that is shut is not shut again");
        // Requests may have bypassed until now. `note_insertion` reports that to the scheduler only while the gate is
        // open, so it is reported here.
        self.note_end_of_passing();
        q.live.word.shut_gate();
        q.account.gate.note_shut(q.clock.now());
        if !self.passes_reads_only {
            self.limited_over = None;
        }
        (self.gate, self.gate_client, self.is_fold_due) = (None, None, unless_mutated("bypass.fold"));
    }

    /// Gives the scheduler the completions and the bypassed requests, if it wants feedback.
    #[inline]
    pub(super) fn fold(&mut self, q: &Queue) {
        let Some(scheduler) = &self.scheduler else { return };
        if self.is_fold_due || scheduler.feedback() == FeedbackKind::Sums {
            self.fold_now(q);
        }
    }

    #[inline(never)]
    fn fold_now(&mut self, q: &Queue) {
        let tally = q.threads.tally(&self.base);
        if let Some(scheduler) = &mut self.scheduler {
            scheduler.observe(Feedback::Sums(&tally));
        }
        self.is_fold_due = false;
    }

    /// Opens the gate if it is shut, nothing waits, and enough requests have come since the class or the client
    /// changed. While WAITING is set nothing bypasses anyway, so an open gate stays open, and requests bypass again as
    /// soon as nothing waits. Two kinds of gates are shut for some time: that of a scheduler whose answer changes with
    /// what it dispatches, if something waits, and any gate if the limiter may hold requests back. Called when the lock
    /// is about to be released.
    #[inline]
    pub(super) fn turn_gate(&mut self, q: &Queue) {
        let seen = q.live.word.load();
        debug_assert!(
            seen.is_waiting()
                || seen.is_quiesced()
                || seen.gate().map(|gate| (usize::from(gate.class()), gate.client().map(usize::from)))
                    == self.gate.map(|class| (class.index(), self.gate_client.map(ClientId::place))),
            "the gate of the word is {:?}, that of the hold {:?}",
            seen.gate(),
            self.gate
        );
        if !self.is_limiter_open() || seen.is_waiting() {
            if self.wants_reports || !self.is_limiter_open() {
                *self.until_open = unless_explored(CALM, CALM_EXPLORED);
                if self.gate.is_some() {
                    self.shut_gate(q);
                }
            }
        } else if self.gate.is_none() {
            if *self.until_open == 0 {
                self.open_gate(q);
            }
        } else if self.wants_reports {
            self.look_at_gate(q);
        }
    }

    /// Asks a scheduler whose answer changes whether the same requests may still bypass. If not, shuts the gate, and
    /// opens it for those that may.
    #[inline(never)]
    fn look_at_gate(&mut self, q: &Queue) {
        debug_assert!(self.gate.is_some(), "the gate is open");
        let passing = self.scheduler.as_ref().map_or(Passing::Nobody, |scheduler| {
            let client = self.gate_client.unwrap_or(self.latest_client);
            self.gate.map_or(Passing::Nobody, |class| scheduler.may_pass(class, client))
        });
        let was = if self.gate_client.is_some() { Passing::Client } else { Passing::All };
        if passing != was {
            self.shut_gate(q);
            if *self.until_open == 0 {
                self.open_gate(q);
            }
        }
    }

    /// Opens the gate, which is shut, for the class of the latest requests, if nothing waits and the scheduler allows
    /// that.
    #[inline]
    fn open_gate(&mut self, q: &Queue) {
        debug_assert!(self.gate.is_none(), "a gate that is open is not opened again");
        if q.settings.has_bypass() && self.is_limiter_open() && !self.has_waiting() {
            self.open_gate_for_latest(q);
        }
    }

    #[cold]
    fn open_gate_for_latest(&mut self, q: &Queue) {
        debug_assert!(!self.has_waiting(), "requests pass only while nothing waits");
        // The gate was shut behind a fence, so the counts contain all requests that passed.
        self.take_reports(q, self.since);
        self.fold_now(q);
        let Some(scheduler) = &self.scheduler else { return };
        if self.wants_reports && self.latest_client == ClientId::default() {
            // The client of the latest request is gone, or none has come. The next request that is inserted names one.
            return;
        }
        let client = match scheduler.may_pass(self.latest, self.latest_client) {
            Passing::Nobody => return,
            Passing::Client => Some(self.latest_client),
            Passing::All => None,
        };
        debug_assert!(client.is_none() || self.wants_reports, "only who is told of clients lets one client pass");
        let reads_only = self.bounds_others(q, &a_write(self.latest_client));
        let place = client.map(|client| client.place() as u16);
        q.live.word.open_gate(Gate::new(self.latest.index() as u8, reads_only, place));
        q.account.gate.note_opened(q.clock.now());
        (self.gate, self.gate_client, self.passes_reads_only) = (Some(self.latest), client, reads_only);
    }

    /// Shuts the gate if it is open.
    pub(super) fn end_gate(&mut self, q: &Queue) {
        if self.gate.is_some() {
            self.shut_gate(q);
        }
    }

    /// Shuts the gate, and opens it again if the present settings allow that.
    pub(super) fn reset_gate(&mut self, q: &Queue) {
        self.end_gate(q);
        *self.until_open = 0;
        self.open_gate(q);
        let may_open = self.scheduler.is_some() && q.settings.has_bypass();
        q.account.gate.set_shut(may_open && self.gate.is_none(), q.clock.now());
    }
}

/// The gate of a queue, whether it has one domain or each hardware queue has one.
impl Domains {
    /// Shuts the gate, and opens it again if the present settings allow that. Called by the control path.
    pub(super) fn reset_gates(&self, q: &Queue) {
        match q.whole_domain() {
            Some(domain) => domain.control().reset_gate(q),
            None => self.reset_split_gate(q),
        }
    }

    /// Shuts the gate until it is [reset](Self::reset_gates).
    pub(super) fn shut_gates(&self, q: &Queue) {
        match q.whole_domain() {
            Some(domain) => domain.control().end_gate(q),
            None => {
                let _first = self.first().control();
                end_split_gate(q);
            }
        }
    }

    /// As [`reset_gates`](Self::reset_gates), where each hardware queue has a domain.
    pub(super) fn reset_split_gate(&self, q: &Queue) {
        // Each change is made under this lock.
        let first = self.first().control();
        end_split_gate(q);
        q.account.gate.set_shut(q.settings.has_bypass(), q.clock.now());
        // A new one is asked, because the answer is about a scheduler in which nothing waits.
        let new = first.scheduler().filter(|_| q.settings.has_bypass()).and_then(another);
        let Some(mut scheduler) = new else { return };
        let nr_requests = q.settings.nr_requests.load(Ordering::Relaxed);
        scheduler.configure(Setting::NrRequests(nr_requests));
        let lets_pass = |class| scheduler.may_pass(class, ClientId::default()) == Passing::All;
        if Class::ALL.into_iter().all(lets_pass) {
            let tags = nr_requests.min(q.hctxs.depth().into());
            let others = Outstanding { others: u64::from(tags) - 1, nr_hctxs: 1, reserved: None };
            let reads_only = scheduler.limit_depth(&a_write(ClientId::default()), others) != Admission::Admitted;
            q.live.word.open_gate(Gate::new(Gate::ANY, reads_only, None));
            q.account.gate.note_opened(q.clock.now());
        }
    }
}

fn end_split_gate(q: &Queue) {
    if q.live.word.end_gate() {
        q.account.gate.note_shut(q.clock.now());
    }
}
