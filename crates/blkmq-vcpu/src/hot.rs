//! The few cells of the running thread that every step touches. Because of these cells, a step after which the same CPU
//! goes on costs next to nothing.

use std::cell::Cell;

use crate::cache::Picoseconds;

/// Picoseconds of a nanosecond.
pub(crate) const PS_PER_NS: Picoseconds = 1000;

/// The number of a virtual CPU. CPUs are numbered from 0, in the order in which they began, and each runs one thread.
/// Where threads share the CPUs of a machine ([`Cores`](crate::Cores)), a `CpuId` is the number of a thread.
pub type CpuId = u16;

/// The state of the CPU that runs now. Outside of a run `quantum` is zero, and nothing here changes.
pub(crate) struct Hot {
    /// Steps given to the CPU by the last decision.
    pub(crate) quantum: Cell<u32>,
    /// Steps of the quantum that the CPU has not made yet.
    pub(crate) left: Cell<u32>,
    /// How many uninterrupted sections, one inside the other, the CPU is in. During such a section no other CPU goes
    /// on.
    pub(crate) depth: Cell<u32>,
    /// The line that the next step is on, if it has a name.
    pub(crate) touched: Cell<Option<&'static str>>,
    /// The line whose every step ends the quantum.
    pub(crate) watched: Cell<Option<&'static str>>,
    pub(crate) cpu: Cell<CpuId>,
    /// Time and steps when the quantum began.
    pub(crate) time: Cell<u64>,
    pub(crate) steps: Cell<u64>,
    /// Time that a step takes, in ns.
    pub(crate) step_ns: Cell<u64>,
    /// Whether each operation on something shared is told ([`Options::on_access`](crate::Options::on_access)).
    pub(crate) tells: Cell<bool>,
    /// The step at which the run ends as exhausted.
    pub(crate) last_step: Cell<u64>,
    /// Whether each CPU has a clock of its own ([`Options::cores`](crate::Options::cores)).
    pub(crate) is_timed: Cell<bool>,
    /// The CPU's own clock; 0 if it has none.
    pub(crate) clock: Cell<Picoseconds>,
    /// What the clock must show for another CPU to go on.
    pub(crate) limit: Cell<Picoseconds>,
    /// Whether the loads of this moment are under way together.
    pub(crate) together: Cell<bool>,
}

thread_local! {
    pub(crate) static HOT: Hot = const {
        Hot {
            quantum: Cell::new(0),
            left: Cell::new(0),
            depth: Cell::new(0),
            touched: Cell::new(None),
            watched: Cell::new(None),
            cpu: Cell::new(0),
            time: Cell::new(0),
            steps: Cell::new(0),
            step_ns: Cell::new(0),
            tells: Cell::new(false),
            last_step: Cell::new(u64::MAX),
            is_timed: Cell::new(false),
            clock: Cell::new(0),
            limit: Cell::new(Picoseconds::MAX),
            together: Cell::new(false),
        }
    };
}

impl Hot {
    /// Steps made in this quantum.
    pub(crate) fn made(&self) -> u64 {
        u64::from(self.quantum.get() - self.left.get())
    }

    pub(crate) fn now(&self) -> u64 {
        if self.is_timed.get() {
            return self.clock.get() / PS_PER_NS;
        }
        self.time.get() + self.made() * self.step_ns.get()
    }

    /// Begins a quantum where the last one ended, at `now` or later.
    pub(crate) fn begin(&self, quantum: u32) {
        self.time.set(self.now());
        self.steps.set(self.steps.get() + self.made());
        self.quantum.set(quantum);
        self.left.set(quantum);
    }
}

/// Says that the next step is on the line of this name.
#[inline]
pub fn touch(name: &'static str) {
    HOT.with(|hot| hot.touched.set(Some(name)));
}

/// Runs a section during which no other CPU goes on. Operations in it are not steps, so the section takes no time. The
/// section must not wait for anything.
pub fn uninterrupted<R>(section: impl FnOnce() -> R) -> R {
    /// Ends the section also when it panics.
    struct Section;
    impl Drop for Section {
        fn drop(&mut self) {
            HOT.with(|hot| hot.depth.set(hot.depth.get() - 1));
        }
    }
    HOT.with(|hot| hot.depth.set(hot.depth.get() + 1));
    let _section = Section;
    section()
}

/// As [`std::debug_assert`], in an [`uninterrupted`](crate::uninterrupted) section: an assertion takes no time, and its
/// looks are told to nobody.
#[macro_export]
macro_rules! debug_assert {
    ($($argument:tt)*) => {
        if ::core::cfg!(debug_assertions) {
            $crate::uninterrupted(|| ::core::assert!($($argument)*));
        }
    };
}

/// As [`std::debug_assert_eq`], in an [`uninterrupted`](crate::uninterrupted) section.
#[macro_export]
macro_rules! debug_assert_eq {
    ($($argument:tt)*) => {
        if ::core::cfg!(debug_assertions) {
            $crate::uninterrupted(|| ::core::assert_eq!($($argument)*));
        }
    };
}

/// As [`std::debug_assert_ne`], in an [`uninterrupted`](crate::uninterrupted) section.
#[macro_export]
macro_rules! debug_assert_ne {
    ($($argument:tt)*) => {
        if ::core::cfg!(debug_assertions) {
            $crate::uninterrupted(|| ::core::assert_ne!($($argument)*));
        }
    };
}

/// The CPU that runs.
#[must_use]
pub fn cpu() -> CpuId {
    HOT.with(|hot| hot.cpu.get())
}

/// Whether each CPU has a clock of its own ([`Options::cores`](crate::Options::cores)).
#[must_use]
pub fn is_timed() -> bool {
    HOT.with(|hot| hot.is_timed.get())
}

/// Steps made so far by all CPUs of this run.
#[must_use]
pub fn steps() -> u64 {
    HOT.with(|hot| hot.steps.get() + hot.made())
}

/// Lets the run go on for `steps` more steps, and no further unless this is called again. A caller that knows that
/// there was progress calls this function. Without such calls, a run goes on as long as any CPU can.
pub fn go_on_for(steps: u64) {
    HOT.with(|hot| hot.last_step.set(crate::steps().saturating_add(steps)));
}

#[cfg(test)]
mod tests {
    use super::go_on_for;
    use crate::schedule::Uniform;
    use crate::sync::atomic::{AtomicBool, Ordering};
    use crate::{Ended, Options, Random, run, thread};

    fn look() {
        AtomicBool::new(true).load(Ordering::Relaxed);
    }

    #[test]
    fn a_run_without_progress_ends_and_says_who_was_at_it() {
        let schedule = || Box::new(Uniform::new(Random::new(1), 3));
        let spin = || {
            go_on_for(1000);
            let idle = thread::spawn_named("idle".to_owned(), || thread::sleep(std::time::Duration::from_secs(1)));
            while !idle.is_finished() {
                look();
            }
        };
        assert_eq!(run(schedule(), Options::default(), spin), Ended::Exhausted { running: vec!["main".to_owned()] });
        let finishes = || {
            for _ in 0..100 {
                go_on_for(1000);
                (0..900).for_each(|_| look());
            }
        };
        assert_eq!(run(schedule(), Options::default(), finishes), Ended::Finished);
        // The limit that one run has set does not bind the next run.
        assert_eq!(run(schedule(), Options::default(), || thread::spawn(|| ()).join().unwrap()), Ended::Finished);
    }
}
