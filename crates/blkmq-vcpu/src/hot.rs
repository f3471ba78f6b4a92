//! What every step touches: a few cells of the running thread, so that a step that changes nothing costs next to nothing.

use std::cell::Cell;

/// A virtual CPU's number, in the order in which they began; the first is 0.
pub type CpuId = u16;

/// The state of the CPU that runs now. Outside of a run `quantum` is zero, and nothing here changes.
pub(crate) struct Hot {
    /// Steps given to the CPU by the last decision.
    pub(crate) quantum: Cell<u32>,
    /// Those of them that it has not made yet.
    pub(crate) left: Cell<u32>,
    /// How deep in sections that nobody may interrupt.
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
        }
    };
}

impl Hot {
    /// Steps made in this quantum.
    pub(crate) fn made(&self) -> u64 {
        u64::from(self.quantum.get() - self.left.get())
    }

    pub(crate) fn now(&self) -> u64 {
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

/// A step: the CPU has done something that others can see. Another CPU may go on before this returns.
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
        crate::machine::decide(line.filter(|_| watched));
    });
}

/// Runs a section in which no other CPU goes on, as if it were one step that took no time. It must not wait for anything.
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

/// The CPU that runs.
#[must_use]
pub fn cpu() -> CpuId {
    HOT.with(|hot| hot.cpu.get())
}

/// Steps made so far by all CPUs of this run.
#[must_use]
pub fn steps() -> u64 {
    HOT.with(|hot| hot.steps.get() + hot.made())
}
