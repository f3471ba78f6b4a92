//! Merging in the plug: before a request has met anybody else's, it may join the one before it.

use blkmq_sched::MergeLimits;

use crate::request::{Place, Request, RqList, Slots};

/// Puts a request behind the others of a plug, or joins it to the newest one there by the rules that hold in a scheduler
/// too. Returns whether it joined.
pub(crate) fn plug_or_merge(slots: &Slots, limits: &MergeLimits, plug: &mut RqList, rq: Request<'_>) -> bool {
    let mut rq = Some(rq);
    let joined = plug.with_last(slots, |newest| {
        let newcomer = rq.as_ref()?.body().info();
        let (how, _) = limits.merged(&newest.body().info(), &newcomer)?;
        newest.absorb(rq.take()?, how);
        Some(())
    });
    if let Some(rq) = rq {
        plug.push_back(slots, rq, Place::Plugged);
    }
    joined.flatten().is_some()
}
