//! The steps of a virtual CPU, after which another one may go on.

use std::panic::Location;

use crate::cache::Access;
use crate::hot::HOT;
use crate::machine;

/// A step that is an operation on `value`, made by the code that calls the caller.
#[inline]
#[track_caller]
pub(crate) fn step_on<T>(value: &T, access: Access) {
    step_at(value, access, Location::caller());
}

/// A step that is an operation on `value`, made by the code at `at`.
#[inline]
pub(crate) fn step_at<T>(value: &T, access: Access, at: &'static Location<'static>) {
    if HOT.with(|hot| hot.tells.get()) {
        machine::tell(access, std::ptr::from_ref(value).addr(), at);
    }
    step();
}

/// A step: the CPU has done something that other CPUs can see. Another CPU may go on before this returns.
#[inline]
pub(crate) fn step() {
    HOT.with(|hot| {
        let line = hot.touched.take();
        let left = hot.left.get();
        if hot.depth.get() > 0 || hot.quantum.get() == 0 {
            return;
        }
        let watched = line.is_some() && line == hot.watched.get();
        if left > 1 && !watched {
            hot.left.set(left - 1);
            return;
        }
        hot.left.set(left.saturating_sub(1));
        machine::decide(line.filter(|_| watched));
    });
}
