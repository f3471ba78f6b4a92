//! Machines whose CPUs have clocks of their own: which CPU's turn it is, and what the clocks are charged.

use std::ops::Range;
use std::panic::Location;

use super::{Machine, State, decide, suspend, with};
use crate::Switch;
use crate::cache::{Access, Asked, Outcome, Picoseconds, Wants};
use crate::cores::{Clocks, Due, Then};
use crate::hot::{CpuId, HOT, PS_PER_NS};
use crate::kernel::{Kernel, LockKind};
use crate::places::{self, Accessed, Found};

/// Steps of a CPU with a clock of its own after which the machine looks whether the run is exhausted.
const TIMED_QUANTUM: u32 = 1000;

impl Machine {
    /// Begins the turn of the CPU whose clock is earliest. `from` is the CPU that runs, if it can go on itself. `None`:
    /// every CPU sleeps, or spins in vain.
    pub(super) fn choose_by_clock(&mut self, from: Option<CpuId>) -> Option<CpuId> {
        let last = crate::cpu();
        let clocks = self.clocks.as_mut()?;
        if let Some(me) = from {
            clocks.threads.stop(me, clock(), std::mem::replace(&mut self.then, Then::GoesOn));
        }
        loop {
            let due = clocks.threads.due();
            // A line that is free at the time of an event chooses before the event. So a thread that the line has just
            // served, and that asks again at once, is not among the threads that wait.
            if clocks.next_free().is_some_and(|free| due.is_none_or(|due| free <= due.at)) {
                clocks.serve();
                continue;
            }
            let Due { thread, is_timer, .. } = due?;
            let state = |cpu: CpuId| self.cpus[usize::from(cpu)].state;
            if is_timer && matches!(state(thread), State::Asleep(_)) {
                let is_awake = |cpu: &CpuId| matches!(state(*cpu), State::Runnable | State::Spins);
                if !self.alive.iter().any(is_awake) {
                    return None;
                }
                self.cpus[usize::from(thread)].state = State::Runnable;
            }
            if let Some(now) = clocks.threads.happen() {
                self.cpus[usize::from(thread)].state = State::Runnable;
                let step = crate::steps();
                HOT.with(|hot| {
                    hot.begin(TIMED_QUANTUM);
                    hot.clock.set(now);
                    hot.cpu.set(thread);
                });
                note_limit(clocks);
                if thread != last {
                    let (time, line) = (now / PS_PER_NS, None);
                    (self.options.on_switch)(Switch { step, time, from: last, to: thread, line });
                }
                return Some(thread);
            }
            if clocks.threads.only_spin() {
                return None;
            }
        }
    }

    /// Every CPU sleeps, and time jumps to the next timer: a CPU that sleeps until then can go on.
    pub(super) fn end_idle(&mut self, until: Option<u64>) {
        let due = self.clocks.as_ref().and_then(|clocks| clocks.threads.due());
        if let Some(Due { thread, .. }) = due.filter(|due| due.is_timer && until.is_some()) {
            self.cpus[usize::from(thread)].state = State::Runnable;
        }
    }
}

/// What the clock of the CPU that runs shows.
pub(crate) fn clock() -> Picoseconds {
    HOT.with(|hot| hot.clock.get())
}

/// Whether what the running code does takes no time: the code is in an uninterrupted section, or on no virtual CPU.
pub(crate) fn is_free() -> bool {
    HOT.with(|hot| hot.depth.get() > 0 || hot.quantum.get() == 0)
}

/// Notes when the CPU that runs has to let another one go on.
pub(super) fn note_limit(clocks: &Clocks) {
    HOT.with(|hot| hot.limit.set(clocks.limit(hot.cpu.get())));
}

/// Waits until the CPU that runs may do an operation on what lies at an address. The caller does the operation next,
/// and [tells](tell) of it at once. Returns the line of the address.
#[cold]
pub(crate) fn begin(access: Access, address: usize) -> Option<Found> {
    let found = places::line_at(address)?;
    let is_loaded_later = access == Access::Load && HOT.with(|hot| hot.together.get());
    if crate::is_timed() && !is_free() && !is_loaded_later {
        wait_for(found.number, Wants::Access(access));
    }
    Some(found)
}

/// Waits until the line of this number serves the CPU that runs.
fn wait_for(line: usize, wants: Wants) {
    loop {
        let ask = |clocks: &mut Clocks| clocks.ask(crate::cpu(), line, wants, clock());
        match with(|machine| machine.clocks.as_mut().map_or(Asked::Ready, ask)) {
            Asked::Ready => return,
            Asked::Waits => return suspend(),
            Asked::Later(at) => {
                if HOT.with(|hot| (hot.clock.set(at), at >= hot.limit.get()).1) {
                    decide(None);
                }
            }
        }
    }
}

/// Tells of an operation on something shared, which has just been done and [began](begin) right before.
#[cold]
pub(crate) fn tell(access: Access, address: usize, found: Option<Found>, at: &'static Location<'static>) {
    if HOT.with(|hot| hot.quantum.get() == 0) {
        return;
    }
    with(|machine| {
        if access != Access::Load {
            machine
                .wake_watchers(found.as_ref().map_or(address..address + 1, |found| found.addresses.clone()), clock());
        }
        if is_free() {
            return;
        }
        if access == Access::Load
            && HOT.with(|hot| hot.together.get())
            && let Some(found) = found
        {
            return machine.loads.push((found, at));
        }
        machine.charge(access, found, at, |clocks, cpu, line, now| clocks.access(cpu, line, access, now));
    });
}

/// Tells of plain data on one line that is read or changed. Returns whether the clock of the CPU has gone on.
pub(crate) fn tell_data(access: Access, found: Option<Found>, at: &'static Location<'static>) -> bool {
    let (asked, changes) = (clock(), access != Access::Load);
    if let Some(found) = found.as_ref().filter(|_| crate::is_timed()) {
        wait_for(found.number, if changes { Wants::ChangeData } else { Wants::ReadData });
    }
    let begun = clock();
    let addresses = found.as_ref().map(|found| found.addresses.clone());
    with(|machine| {
        let cost = machine.charge(access, found, at, |clocks, cpu, line, now| clocks.data(cpu, line, changes, now));
        if let Some(addresses) = addresses.filter(|_| changes && cost.is_some_and(|cost| cost.moved > 0)) {
            machine.wake_watchers(addresses, begun);
        }
    });
    asked != clock()
}

/// Asks for a line that the CPU that runs will change.
pub(crate) fn tell_fetch(found: Option<Found>, at: &'static Location<'static>) {
    with(|machine| machine.charge(Access::Store, found, at, Clocks::fetch));
}

impl Machine {
    /// CPUs that spin on a line that was written look again.
    fn wake_watchers(&mut self, line: Range<usize>, now: Picoseconds) {
        let Some(clocks) = &mut self.clocks else { return };
        for spins in clocks.watchers(line) {
            self.cpus[usize::from(spins)].state = State::Runnable;
            clocks.threads.tell(spins, now);
        }
        note_limit(clocks);
    }

    /// Charges an operation to the clock of the CPU that runs, if it has one, and tells of it.
    fn charge(
        &mut self,
        access: Access,
        found: Option<Found>,
        at: &'static Location<'static>,
        charge: impl FnOnce(&mut Clocks, CpuId, Option<usize>, Picoseconds) -> Outcome,
    ) -> Option<Outcome> {
        let cpu = crate::cpu();
        let cost = self.clocks.as_mut().map(|clocks| {
            let cost = charge(clocks, cpu, found.as_ref().map(|found| found.number), clock());
            HOT.with(|hot| hot.clock.set(cost.done));
            cost
        });
        if let Some(on_access) = &mut self.options.on_access {
            on_access(Accessed { cpu, line: found.map(|found| found.line), access, cost, at });
        }
        cost
    }
}

/// Moves the clock of the CPU that runs to the time when all loads that are under way together have ended.
#[cold]
pub(crate) fn end_together() {
    let cpu = crate::cpu();
    with(|machine| {
        let mut loads = std::mem::take(&mut machine.loads);
        let on_access = &mut machine.options.on_access;
        if let Some(clocks) = &mut machine.clocks {
            let mut told = loads.iter();
            let done = clocks.load_all(cpu, loads.iter().map(|(found, _)| found.number), clock(), |cost| {
                let (found, at) = told.next().expect("each load is told once");
                if let Some(on_access) = on_access {
                    let (line, cost) = (Some(found.line), Some(cost));
                    on_access(Accessed { cpu, line, access: Access::Load, cost, at });
                }
            });
            HOT.with(|hot| hot.clock.set(done));
        }
        loads.clear();
        machine.loads = loads;
    });
}

/// The time that a stage's private work takes.
pub(crate) fn stage_time(cpu: CpuId, stage: usize, number: usize) -> Picoseconds {
    with(|machine| machine.options.on_stage.as_mut().map_or(0, |on_stage| on_stage(cpu, stage, number)))
}

/// Moves the clock of the CPU that runs to the end of a fence.
#[cold]
pub(crate) fn charge_fence() {
    if is_free() {
        return;
    }
    with(|machine| {
        if let Some(clocks) = &mut machine.clocks {
            let done = clocks.fence(crate::cpu(), clock());
            HOT.with(|hot| hot.clock.set(done));
        }
    });
}

/// The CPU that runs has looked at what lies at this address, which is not yet what the CPU wants. Waits until
/// something is written to the line, or until `until`. The caller then looks again. A look costs a load, which the
/// caller [began](begin). CPUs need clocks of their own for this.
pub(crate) fn spin(address: usize, found: Option<Found>, at: &'static Location<'static>, until: Option<Picoseconds>) {
    let me = crate::cpu();
    // No write is missed, even while the line is on its way. Between the look and the call of `watch` there is no step,
    // so no other CPU goes on in between.
    tell(Access::Load, address, found, at);
    with(|machine| {
        machine.cpus[usize::from(me)].state = State::Spins;
        if let Some(clocks) = &mut machine.clocks {
            clocks.watch(me, address);
            clocks.threads.stop(me, clock(), Then::Spins(until));
        }
    });
    suspend();
    with(|machine| {
        if let Some(clocks) = &mut machine.clocks {
            clocks.look_away(me, address);
        }
    });
}

/// Adds a time of the kernel to the clock of the CPU that runs. The caller makes a step soon.
pub(crate) fn call_system(time: impl FnOnce(&Kernel) -> Picoseconds) {
    if is_free() {
        return;
    }
    with(|machine| {
        if let Some(clocks) = &machine.clocks {
            HOT.with(|hot| hot.clock.set(hot.clock.get() + time(&clocks.kernel)));
        }
    });
}

/// Private work of the CPU that runs, which takes this long if nothing slows it down. If this returns true, something
/// else happens before the work ends, and the caller calls [`decide`]. Otherwise the caller makes a step.
pub(crate) fn work(time: Picoseconds) -> bool {
    with(|machine| {
        let Some(clocks) = &machine.clocks else { return false };
        let done = clock() + clocks.threads.takes(crate::cpu(), time);
        // Otherwise something happens during the work, which may take the CPU away or change how fast it is.
        let is_alone = HOT.with(|hot| done < hot.limit.get());
        if is_alone {
            HOT.with(|hot| hot.clock.set(done));
        } else {
            machine.then = Then::Works(time);
        }
        !is_alone
    })
}

/// The thread that runs leaves its CPU to another thread that waits for the CPU, if there is one. The caller makes a
/// step.
pub(crate) fn yield_cpu() {
    call_system(|kernel| kernel.yields);
    with(|machine| {
        if let Some(clocks) = &mut machine.clocks {
            clocks.threads.yields(crate::cpu(), clock());
            note_limit(clocks);
        }
    });
}

/// `cpu`, which runs, falls asleep.
pub(super) fn fall_asleep(clocks: &mut Clocks, cpu: CpuId, until: Option<u64>) {
    let Kernel { sleep, wake_latency, .. } = clocks.kernel;
    let until = until.map(|until| until.saturating_mul(PS_PER_NS).saturating_add(wake_latency));
    clocks.threads.stop(cpu, clock() + sleep, Then::Sleeps(until));
}

/// The CPU that runs wakes another one that sleeps.
pub(super) fn wake(clocks: &mut Clocks, cpu: CpuId) {
    clocks.threads.wake(cpu, clock() + clocks.kernel.wake_latency);
    note_limit(clocks);
    if !is_free() {
        HOT.with(|hot| hot.clock.set(hot.clock.get() + clocks.kernel.wake));
    }
}

/// What system calls cost: [`Kernel::FREE`] if CPUs have no clocks of their own.
pub(crate) fn kernel() -> Kernel {
    with(|machine| machine.clocks.as_ref().map_or(Kernel::FREE, |clocks| clocks.kernel))
}

/// The kind of lock as which every lock of the run behaves; `None` if CPUs have no clocks of their own.
pub(crate) fn kind_of_locks() -> Option<LockKind> {
    if !crate::is_timed() {
        return None;
    }
    with(|machine| machine.clocks.as_ref().map(|clocks| clocks.locks))
}

/// Where the node of a CPU lies, with which the CPU waits in the queue of a lock.
pub(crate) fn node(cpu: CpuId) -> usize {
    with(|machine| machine.clocks.as_mut().map_or(0, |clocks| clocks.node(cpu)))
}
