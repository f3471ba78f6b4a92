//! A queue with a domain for each hardware queue: the requests of a plug go to the domains of their hardware queues.
//!
//! # Liveness
//! WAITING says for the whole queue that something waits. A thread that brings something comes to each domain that
//! shows work ([`Domain::has_work`](crate::queue::Domain::has_work)), whichever hardware queue the thread works for.
//! What a domain lacks may be brought by a thread of another hardware queue: a token, or a tag of a hardware queue that
//! this other thread polls. `Section::show` says why the thread finds the domain.
//!
//! The domains have their turns (`RequestQueue::for_each_due_domain`). If a thread began with its own domain each time,
//! a hardware queue that always has requests waiting would take each token that comes back. Another hardware queue that
//! has nothing in flight would wait for ever.

use super::outcome::{Dispatched, Inserted};
use crate::queue::{Mapping, RequestQueue};
use crate::request::{Place, RqList};

/// A plug that is inserted by parts, each of them into the domain of its hardware queue. The submitter has one hardware
/// queue of each type, so there are few.
///
/// COST: not inlined, so that queues with one domain do not pay for it. A walk over the plug for each of its hardware
/// queues, and none if the submitter has only one.
pub(super) struct Split {
    /// What is to be inserted after the part that is in the plug now.
    others: RqList,
    /// What found no room.
    rest: RqList,
    inserted: Inserted,
}

impl Split {
    /// Leaves in the plug the requests for one hardware queue, that of the first request, in order.
    #[inline(never)]
    pub(super) fn begin(q: &RequestQueue, mapping: &Mapping, plug: &mut RqList) -> (u16, Self) {
        debug_assert!(!plug.is_empty(), "there is something to insert");
        let inserted = Inserted { entered: 0, dispatched: Some(Dispatched::all(0)) };
        let mut split = Self { others: RqList::default(), rest: RqList::default(), inserted };
        (split.set_others_aside(q, mapping, plug), split)
    }

    /// Notes what came of a part, of which the plug has what found no room. Puts the next part into the plug, and
    /// returns its hardware queue.
    #[inline(never)]
    pub(super) fn go_on(
        &mut self,
        q: &RequestQueue,
        mapping: &Mapping,
        plug: &mut RqList,
        inserted: Inserted,
    ) -> Option<u16> {
        self.rest.append(std::mem::replace(plug, std::mem::take(&mut self.others)));
        self.inserted.add(inserted);
        (!plug.is_empty()).then(|| self.set_others_aside(q, mapping, plug))
    }

    /// What came of all parts. The plug has what found no room.
    pub(super) fn end(&mut self, plug: &mut RqList) -> Inserted {
        debug_assert!(plug.is_empty() && self.others.is_empty(), "all parts were inserted");
        *plug = std::mem::take(&mut self.rest);
        std::mem::replace(&mut self.inserted, Inserted { entered: 0, dispatched: None })
    }

    fn set_others_aside(&mut self, q: &RequestQueue, mapping: &Mapping, plug: &mut RqList) -> u16 {
        if let Some(only) = mapping.only() {
            return only;
        }
        let mut first = None;
        let mut part = plug.take_while(&q.slots, |rq| {
            let hctx = mapping.assign(rq);
            *first.get_or_insert(hctx) == hctx
        });
        let first = first.expect("the first request has a hardware queue");
        while let Some(mut rq) = plug.pop_front(&q.slots) {
            let list = if mapping.assign(&mut rq) == first { &mut part } else { &mut self.others };
            list.push_back(rq, Place::Plugged);
        }
        *plug = part;
        first
    }
}
