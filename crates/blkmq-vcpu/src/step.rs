//! The steps of a virtual CPU, after which another one may go on.

use std::panic::Location;

use crate::cache::{Access, Picoseconds};
use crate::hot::{HOT, is_timed};
use crate::machine;
use crate::places::line_at;

/// The looks for which [`Kernel::spin`](crate::Kernel::spin) was measured.
const LOOKS: Picoseconds = 100;

/// An operation on `value`, made by the code at `at`, and a step. `does` is the operation, which takes effect when the
/// line serves it, before the step.
#[inline]
pub(crate) fn operate<T, R>(value: &T, access: Access, at: &'static Location<'static>, does: impl FnOnce() -> R) -> R {
    operate_at(std::ptr::from_ref(value).addr(), access, at, does)
}

/// The same on what lies at an address.
#[inline]
pub(crate) fn operate_at<R>(
    address: usize,
    access: Access,
    at: &'static Location<'static>,
    does: impl FnOnce() -> R,
) -> R {
    let result = operate_only(address, access, at, does);
    step();
    result
}

/// The same without a step after the operation.
#[inline]
pub(crate) fn operate_only<R>(
    address: usize,
    access: Access,
    at: &'static Location<'static>,
    does: impl FnOnce() -> R,
) -> R {
    if !HOT.with(|hot| hot.tells.get()) {
        return does();
    }
    let found = machine::begin(access, address);
    let result = does();
    machine::tell(access, address, found, at);
    result
}

/// One look at what lies at an address, made by the code at `at`. Returns what the look finds, or `None` if that is not
/// what the CPU wants. A look that finds something is a step. A look in vain is a step too, if CPUs have no clocks of
/// their own. If CPUs have clocks, the CPU then waits until something is written to the line, or until `until`.
pub(crate) fn look_at<R>(
    address: usize,
    at: &'static Location<'static>,
    until: Option<Picoseconds>,
    look: impl FnOnce() -> Option<R>,
) -> Option<R> {
    let tells = HOT.with(|hot| hot.tells.get());
    let place = if tells { machine::begin(Access::Load, address) } else { None };
    let found = look();
    if found.is_none() && machine::kind_of_locks().is_some() {
        machine::spin(address, place, at, until);
        return None;
    }
    if tells {
        machine::tell(Access::Load, address, place, at);
    }
    step();
    found
}

/// Tells that the caller reads `value`, and returns it. `value` is plain data, which other CPUs use at other times. The
/// read is told line by line, and is a step only if each CPU has a clock of its own and this CPU did not have the line.
#[inline]
#[track_caller]
pub fn reads<T: ?Sized>(value: &T) -> &T {
    data_at(value, Access::Load, Location::caller());
    value
}

/// As [`reads`], for data that the caller may change.
#[inline]
#[track_caller]
pub fn changes<T: ?Sized>(value: &mut T) -> &mut T {
    data_at(value, Access::Update, Location::caller());
    value
}

/// Asks for the lines of `value`, which the CPU will change, and goes on while they come. Without
/// [`Options::cores`](crate::Options::cores), and in an uninterrupted section, this does nothing.
#[track_caller]
pub fn fetch<T: ?Sized>(value: &T) {
    if !is_charged() {
        return;
    }
    let (begin, at) = (std::ptr::from_ref(value).addr(), Location::caller());
    let (mut next, end) = (begin, begin + size_of_val(value));
    while next < end {
        let found = line_at(next);
        next = found.as_ref().map_or(end, |found| found.addresses.end);
        machine::tell_fetch(found, at);
        step();
    }
}

/// Tells that the code at `at` reads or changes plain data.
#[inline]
pub(crate) fn data_at<T: ?Sized>(value: &T, access: Access, at: &'static Location<'static>) {
    if HOT.with(|hot| hot.tells.get()) {
        tell_data(access, std::ptr::from_ref(value).addr(), size_of_val(value), at);
    }
}

/// Where CPUs have clocks of their own, an access to a line that the CPU did not have is a step.
#[cold]
fn tell_data(access: Access, address: usize, bytes: usize, at: &'static Location<'static>) {
    if bytes == 0 || machine::is_free() {
        return;
    }
    let end = address + bytes;
    let mut next = address;
    while next < end {
        let found = line_at(next);
        // Data on no line is told once.
        next = found.as_ref().map_or(end, |found| found.addresses.end);
        if machine::tell_data(access, found, at) {
            step();
        }
    }
}

/// A step that is a fence.
pub(crate) fn step_fence() {
    if is_timed() {
        machine::charge_fence();
    }
    step();
}

/// Work on what no other CPU sees, which takes this long, or longer while the other CPU of the core is busy. Without
/// [`Options::cores`](crate::Options::cores), and in an uninterrupted section, it takes no time.
pub fn work(time: Picoseconds) {
    if is_charged() {
        if machine::work(time) {
            HOT.with(|hot| (hot.touched.set(None), hot.left.set(hot.left.get().saturating_sub(1))));
            machine::decide(None);
        } else {
            step();
        }
    }
}

/// Whether what the running code does moves the clock of its CPU.
fn is_charged() -> bool {
    is_timed() && !machine::is_free()
}

/// Rests between two looks at something, as `std::hint::spin_loop` does: for a hundredth of
/// [`Kernel::spin`](crate::Kernel::spin). Without [`Options::cores`](crate::Options::cores), and in an uninterrupted
/// section, this does nothing.
pub fn pause() {
    if is_charged() {
        work(machine::kernel().spin / LOOKS);
    }
}

/// Runs `act`, whose loads of shared lines do not depend on each other. With [`Options::cores`](crate::Options::cores)
/// the loads are under way together, as far as [`Costs::width`](crate::cache::Costs::width) allows, and all lines are
/// there when this returns. `act` must change nothing that is shared, and wait for nothing.
pub fn together<R>(act: impl FnOnce() -> R) -> R {
    if !is_charged() || HOT.with(|hot| hot.together.replace(true)) {
        return act();
    }
    let result = act();
    HOT.with(|hot| hot.together.set(false));
    machine::end_together();
    step();
    result
}

/// Says that what the CPU has done since the last such call was the stage `stage`, done for `number` things. The stage
/// takes as long as [`Options::on_stage`](crate::Options::on_stage) says. If `number` is 0, without
/// [`Options::cores`](crate::Options::cores), and in an uninterrupted section, this does nothing.
pub fn stage(stage: usize, number: usize) {
    if number > 0 && is_charged() {
        work(machine::stage_time(crate::cpu(), stage, number));
    }
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
        if left > 1 && !watched && hot.clock.get() < hot.limit.get() {
            hot.left.set(left - 1);
            return;
        }
        hot.left.set(left.saturating_sub(1));
        machine::decide(line.filter(|_| watched));
    });
}
