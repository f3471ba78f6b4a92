//! A lock that sleeps, as `std`'s on Linux: its word says that the lock is free, held, or held and marked.

use super::Wanted;
use crate::cache::Access;
use crate::machine::{call_system, clock, kernel, sleep, wake};
use crate::step::step;
use crate::sync::waiters;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word {
    Free,
    Held,
    /// Held, and a CPU may sleep for it.
    Marked,
}

fn is_marked(address: usize) -> bool {
    waiters::known(address, |waiters| waiters.is_marked).unwrap_or(false)
}

/// Looks at the lock for a moment, while it is held and not marked. Returns what the CPU saw last.
fn look(wanted: &mut Wanted<'_>) -> Word {
    let (address, until) = (wanted.address, clock() + kernel().spin);
    let mut word = Word::Free;
    wanted.look_until(Some(until), |wanted| {
        word = match (wanted.is_held)() {
            true if is_marked(address) => Word::Marked,
            true => Word::Held,
            false => Word::Free,
        };
        word != Word::Held
    });
    word
}

pub(super) fn lock(wanted: &mut Wanted<'_>) {
    let address = wanted.address;
    let try_once = |wanted: &mut Wanted<'_>| wanted.access(Access::Update, |wanted| (wanted.take)());
    if try_once(wanted) {
        return;
    }
    let mut word = look(wanted);
    if word == Word::Free && try_once(wanted) {
        return;
    }
    loop {
        // A CPU that has slept cannot know whether other CPUs still sleep. So the CPU takes the lock with the mark.
        let mark = |wanted: &mut Wanted<'_>| {
            waiters::at(address, |waiters| waiters.is_marked = true);
            (wanted.take)()
        };
        if word != Word::Marked && wanted.access(Access::Update, mark) {
            return;
        }
        if is_marked(address) {
            waiters::at(address, |waiters| waiters.sleepers.push_back(crate::cpu()));
            sleep(None);
        } else {
            // The holder let the lock go before the system looked at the lock's word, so the system call does not
            // sleep.
            call_system(|kernel| kernel.call);
            step();
        }
        word = look(wanted);
    }
}

/// Takes the mark off. Returns whether there was one.
pub(super) fn unlock(address: usize) -> bool {
    waiters::known(address, |waiters| std::mem::take(&mut waiters.is_marked)).unwrap_or(false)
}

/// Wakes the CPU that has slept longest. The caller makes a step.
pub(super) fn wake_one(address: usize) {
    match waiters::known(address, |waiters| waiters.sleepers.pop_front()).flatten() {
        Some(cpu) => _ = wake(cpu),
        None => call_system(|kernel| kernel.call),
    }
}
