//! A queue with a domain for each hardware queue: the requests of a plug go to the domains of their hardware queues.
//!
//! # Liveness
//! WAITING says for the whole queue that something waits. A thread that brings something comes to each domain that
//! shows work ([`Domain::has_work`](crate::queue::Domain::has_work)), whichever hardware queue the thread works for.
//! What a domain lacks may be brought by a thread of another hardware queue: a token, or a tag of a hardware queue that
//! this other thread polls. `Section::show` says why the thread finds the domain.
//!
//! The domains have their turns (`Queue::due_domains`). If a thread began with its own domain each time,
//! a hardware queue that always has requests waiting would take each token that comes back. Another hardware queue that
//! has nothing in flight would wait forever.

use crate::dispatcher::Dispatcher;
use crate::dispatcher::insert::Plug;
use crate::dispatcher::outcome::{Dispatched, Inserted};
use crate::queue::{Locking, Mapping, Queue};
use crate::request::{Location, RqList};

/// Inserts a plug, each request into the domain of its hardware queue. The submitter has one hardware queue of each
/// type, so there are few. Arguments and result are those of [`Locking::insert`].
///
/// COST: a walk over the plug for each of its hardware queues, and none if the submitter has only one.
#[inline(never)]
pub(super) fn insert(locking: Locking, dispatcher: &mut Dispatcher, plug: &mut Plug<'_>) -> Inserted {
    debug_assert!(!plug.requests.is_empty(), "there is something to insert");
    let q = plug.starting.q;
    let mut rest = std::mem::take(&mut plug.requests);
    let mut all = Inserted { entered: 0, dispatched: Some(Dispatched::all(0)) };
    while !rest.is_empty() {
        let (hctx, part) = take_first_hctx(q, plug.mapping, &mut rest);
        plug.requests = part;
        all.add(locking.insert_into(q.domain(hctx), dispatcher, plug));
    }
    all
}

/// Moves the requests for one hardware queue, that of the first request, into a list of their own, in order.
fn take_first_hctx(q: &Queue, mapping: &Mapping, plug: &mut RqList) -> (u16, RqList) {
    debug_assert!(!plug.is_empty(), "there is a first request");
    if let Some(only) = mapping.only() {
        return (only, std::mem::take(plug));
    }
    let mut first = None;
    let mut part = plug.take_while(&q.slots, |rq| {
        let hctx = mapping.assign(rq);
        *first.get_or_insert(hctx) == hctx
    });
    let first = first.expect("the first request has a hardware queue");
    for _ in 0..plug.len() {
        let Some(mut rq) = plug.pop_front(&q.slots) else { break };
        let list = if mapping.assign(&mut rq) == first { &mut part } else { &mut *plug };
        list.push_back(rq, Location::Plugged);
    }
    (first, part)
}
