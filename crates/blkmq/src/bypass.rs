//! Passing the scheduler by: while nothing waits it would hand a request straight back.
//!
//! Whether that is so the scheduler says under its lock, and for which one class; the queue's word then shows it as its
//! gate. Who passes counts its requests on a line of its own, fences, and looks at the gate once more: there it passes, or
//! turns back. Who shuts the gate fences and then reads those counts. So whoever inserts a request of another class knows
//! of all that has passed, and strict classes stay strict.
//!
//! A request never passes what another thread left to the scheduler before: whatever waits is in the word, and what was
//! just left makes the staging not free.

use blkmq_sched::{Class, Op};

use crate::account::{Mark, Starting};
use crate::hctx::Layout;
use crate::hold::Hold;
use crate::locking::Locking;
use crate::queue::RequestQueue;
use crate::request::{FlushStep, Place, RqList};
use crate::runner::Runner;
use crate::sync::kept;
use crate::word::Gate;

/// So many requests come in, with nothing waiting behind them, before the gate is opened again. A device that is as fast as
/// requests come has some waiting now and then: there it is cheaper to hand all of them through than to stop passing each time.
/// Fewer in the rigs, where something waits most of the time.
const CALM: u32 = if cfg!(any(shuttle, virtual_cpus)) { 16 } else { 256 };

impl RequestQueue {
    /// What may pass now.
    ///
    /// COST: two loads of lines that are not written while requests pass.
    #[inline]
    fn gate(&self) -> Option<Gate> {
        self.live.gate(|| match self.settings.locking() {
            Locking::Combining => self.staging.is_free(),
            Locking::Staged(_) => self.inserting.is_free() && !self.held.has_waiting(),
            Locking::Single | Locking::Batch => !self.held.has_waiting(),
        })
    }

    /// A request of a class is about to be inserted: requests of another class must not pass any more, and none while it waits.
    #[inline]
    pub(crate) fn note_insertion(&self, hold: &mut Hold, class: Class) {
        if hold.gate.is_some() {
            self.note_end_of_passing(hold);
        }
        if hold.gate.is_some_and(|gate| gate != class) && kept("bypass.class") {
            self.shut_gate(hold);
        }
        hold.note_class(class, 1);
    }

    /// While the gate is open and nothing waits, requests pass; this one is the first that waits behind them.
    pub(crate) fn note_end_of_passing(&self, hold: &mut Hold) {
        if let Some(scheduler) = &mut hold.scheduler
            && scheduler.is_empty()
        {
            scheduler.resume();
        }
    }

    #[cold]
    fn shut_gate(&self, hold: &mut Hold) {
        // Who inserts next does not see that requests have passed.
        self.note_end_of_passing(hold);
        self.live.word.shut_gate();
        (hold.gate, hold.is_fold_due) = (None, kept("bypass.fold"));
    }

    /// Tells the scheduler what has completed and what has passed, if it needs to know.
    #[inline]
    pub(crate) fn fold(&self, hold: &mut Hold) {
        let Some(scheduler) = &hold.scheduler else { return };
        if hold.is_fold_due || scheduler.wants_tally() {
            self.fold_now(hold);
        }
    }

    #[inline(never)]
    fn fold_now(&self, hold: &mut Hold) {
        let tally = self.tally(&hold.base);
        if let Some(scheduler) = &mut hold.scheduler {
            scheduler.fold(&tally);
        }
        hold.is_fold_due = false;
    }

    /// Shuts the gate for some time if the word says WAITING. Else opens it, if it is shut and enough requests have come. Called
    /// when the lock is about to be let go.
    #[inline]
    pub(crate) fn turn_gate(&self, hold: &mut Hold) {
        if self.live.word.load().is_waiting() {
            hold.until_open = CALM;
            if hold.gate.is_some() {
                self.shut_gate(hold);
            }
        } else if hold.gate.is_none() && hold.until_open == 0 {
            self.open_gate(hold);
        }
    }

    /// Opens the gate, which is shut, for the class of the latest requests, if nothing waits and the scheduler allows that.
    #[inline]
    fn open_gate(&self, hold: &mut Hold) {
        if self.settings.has_bypass() && !hold.has_waiting() {
            self.open_gate_for_latest(hold);
        }
    }

    #[cold]
    fn open_gate_for_latest(&self, hold: &mut Hold) {
        // The gate was shut behind a fence, so all that passed is in the counts.
        self.fold_now(hold);
        let Some(scheduler) = &hold.scheduler else { return };
        if !scheduler.gate(hold.latest) {
            return;
        }
        let reads_only = self.async_bound(hold).is_some();
        self.live.word.open_gate(Gate { class: hold.latest.index() as u8, reads_only });
        hold.gate = Some(hold.latest);
    }

    /// Shuts the gate, and opens it if that is right with the settings of now. Called under the lock.
    pub(crate) fn reset_gate(&self, hold: &mut Hold) {
        if hold.gate.is_some() {
            self.shut_gate(hold);
        }
        hold.until_open = 0;
        self.open_gate(hold);
    }
}

impl Runner {
    /// Starts the requests at the front of a plug that may pass the scheduler by, as far as there are tags. Returns how many
    /// operations these are.
    ///
    /// COST: per run of one class and hardware queue a read-modify-write of a tag word and a fence; per request its slot and
    /// this thread's own lines.
    pub(crate) fn bypass(&mut self, starting: &Starting<'_>, layout: Layout, plug: &mut RqList) -> u64 {
        let q = starting.q;
        let hctxs = layout.hctxs(self.member);
        let mut entered = 0;
        while let Some(gate) = q.gate() {
            let mut index = None;
            let mut run = plug.take_while(&q.slots, |rq| {
                let body = rq.body_mut();
                body.hctx = hctxs[layout.kind(body.op, body.flags) as usize];
                body.flush == FlushStep::None
                    && body.priority.class.index() == usize::from(gate.class)
                    && !(gate.reads_only && body.op != Op::Read)
                    && *index.get_or_insert(body.hctx) == body.hctx
            });
            let Some(index) = index else { return entered };
            let wanted = run.len();
            let passed = self.pass(starting, gate, index, &mut run);
            entered += passed.1;
            if q.is_concurrent {
                self.issue_directly(q, starting.now);
                // What the driver gave back comes before what is chosen from here on.
                self.park_requeued(q);
            }
            if !plug.is_empty() || passed.0 < wanted {
                // What is ordered behind these must not reach the driver before them.
                self.append_ready(q);
            }
            if passed.0 < wanted {
                run.append(std::mem::take(plug));
                *plug = run;
                return entered;
            }
            if plug.is_empty() {
                return entered;
            }
        }
        entered
    }

    /// Starts as many requests of a run as there are tags, and leaves the others in it; none if the gate is shut before they
    /// are through. Returns how many requests these are, and how many operations.
    fn pass(&mut self, starting: &Starting<'_>, gate: Gate, index: u16, run: &mut RqList) -> (usize, u64) {
        let q = starting.q;
        let hctx = q.hctxs.get(index);
        self.make_ready_on(q, index);
        let (mut limited, mut operations, mut is_special) = (0, 0, false);
        let mut tags = hctx.tags.take(&mut self.hint, run.len());
        let mut tagged = run.take_while(&q.slots, |rq| {
            let Some(tag) = tags.next() else { return false };
            is_special |= starting.mark(rq);
            let body = rq.body_mut();
            (body.tag, body.ordered) = (Some(tag), true);
            limited += u64::from(body.op != Op::Read);
            operations += u64::from(body.nr_parts);
            rq.rest_at(Place::IssueList);
            true
        });
        drop(tags);
        if tagged.is_empty() {
            return (0, 0);
        }
        let (class, requests) = (Class::ALL[usize::from(gate.class)], tagged.len());
        let counters = &self.member(q).counters;
        if !q.live.word.pass(gate, || counters.bypassing(class, requests as u64, limited)) {
            counters.turned_back(class, requests as u64, limited);
            self.turn_back(q, index, &mut tagged);
            tagged.append(std::mem::take(run));
            *run = tagged;
            return (0, 0);
        }
        counters.passed(requests as u64);
        if is_special {
            tagged = tagged.take_while(&q.slots, |rq| {
                starting.add(rq);
                true
            });
        }
        self.ready.append(tagged);
        (requests, operations)
    }

    /// The gate was shut meanwhile: the tags go back as a completer puts them back, and the requests are as they were.
    #[cold]
    fn turn_back(&mut self, q: &RequestQueue, index: u16, tagged: &mut RqList) {
        let hctx = q.hctxs.get(index);
        for _ in 0..tagged.len() {
            let Some(mut rq) = tagged.pop_front(&q.slots) else { break };
            let body = rq.body_mut();
            (body.ordered, body.mark) = (false, Mark::NONE);
            if let Some(tag) = body.tag.take() {
                hctx.tags.put(tag, &mut self.hint);
            }
            tagged.push_back(rq, Place::Plugged);
        }
        // A thread that lacked one of these tags, or waited for what was counted to be over, is found by the look at the scheduler
        // that this thread takes next.
        q.live.brought_tags();
    }
}
