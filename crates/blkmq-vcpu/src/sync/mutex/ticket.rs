//! A ticket lock: each CPU draws a number, and all look at the same line for the number that is served.

use super::Wanted;
use crate::cache::Access;
use crate::sync::waiters;

pub(super) fn lock(wanted: &mut Wanted<'_>) {
    let (address, me) = (wanted.address, crate::cpu());
    let is_served = wanted.access(Access::Update, |wanted| {
        let is_first = !waiters::known(address, |waiters| waiters.has_queue()).unwrap_or(false);
        let is_served = is_first && (wanted.take)();
        if !is_served {
            waiters::at(address, |waiters| waiters.numbers.push_back(me));
        }
        is_served
    });
    if is_served {
        return;
    }
    wanted.look_until(None, |wanted| {
        let is_first = waiters::at(address, |waiters| waiters.numbers.front() == Some(&me));
        let is_served = is_first && (wanted.take)();
        if is_served {
            waiters::at(address, |waiters| waiters.numbers.pop_front());
        }
        is_served
    });
}
