//! Merging in the plug: before a request meets requests of other threads, it may join the request before it.

use blkmq_sched::MergeLimits;

use crate::request::{Place, Request, RqList, Slots};

/// Puts a request behind the others of a plug, or joins it to the newest one there, by the same rules as in a
/// scheduler. Returns whether it joined.
///
/// COST: a look at where the newest request lies; the rules are applied only if the two requests touch.
#[inline]
pub(super) fn plug_or_merge(slots: &Slots, limits: &MergeLimits, plug: &mut RqList, rq: Request<'_>) -> bool {
    let is_near = plug.with_last(slots, |newest| newest.body().is_near(rq.body())).unwrap_or(false);
    let rest = if is_near { merge(slots, limits, plug, rq) } else { Some(rq) };
    match rest {
        Some(rq) => {
            plug.push_back(rq, Place::Plugged);
            false
        }
        None => true,
    }
}

/// Joins a request to the newest request of a plug, or gives it back.
fn merge<'q>(slots: &'q Slots, limits: &MergeLimits, plug: &mut RqList, rq: Request<'q>) -> Option<Request<'q>> {
    let mut rq = Some(rq);
    plug.with_last(slots, |newest| {
        let newcomer = rq.as_ref()?.body().info();
        let (how, _) = limits.merged(&newest.body().info(), &newcomer)?;
        newest.absorb(rq.take()?, how);
        Some(())
    });
    rq
}
