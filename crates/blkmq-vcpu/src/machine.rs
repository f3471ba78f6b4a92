//! The machine: its CPUs, which of them runs, and how a run ended.

mod by_clock;

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe, Location};
use std::sync::Once;

use generator::{Generator, Gn};

use crate::cache::Picoseconds;
use crate::cores::{Clocks, Cores, Then};
use crate::hot::{CpuId, HOT};
use crate::places::{self, Accessed, Found};
use crate::schedule::{Decision, Schedule};
use crate::sync::waiters;
pub(crate) use by_clock::{
    begin, call_system, charge_fence, clock, end_together, is_free, kernel, kind_of_locks, node, spin, stage_time,
    tell, tell_data, tell_fetch, work, yield_cpu,
};

/// The options of a run, beside its schedule.
pub struct Options {
    /// Virtual time that a step takes, in ns.
    pub step_ns: u64,
    /// Bytes of a CPU's stack.
    pub stack_bytes: usize,
    /// Called each time that every CPU sleeps, before time jumps to [`Idle::until`]. This function may call [`stop`].
    pub on_idle: Box<dyn FnMut(Idle)>,
    /// Called each time that another CPU goes on.
    pub on_switch: Box<dyn FnMut(Switch)>,
    /// Called at each operation on something shared, before the operation is a step. Operations of uninterrupted
    /// sections are not told. This function may touch nothing of the run.
    pub on_access: Option<Box<dyn FnMut(Accessed)>>,
    /// If given, each CPU has a clock of its own, and the schedule is not asked.
    pub cores: Option<Cores>,
    /// With clocks: asked how long each stage takes. This function may touch nothing of the run.
    pub on_stage: Option<Box<OnStage>>,
}

/// The time that the private work of a [`stage`](crate::stage) takes, by the CPU, the stage, and how many things the
/// stage was done for.
pub type OnStage = dyn FnMut(CpuId, usize, usize) -> Picoseconds;

/// Another CPU goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Switch {
    /// Steps made so far.
    pub step: u64,
    /// The time, in ns.
    pub time: u64,
    /// The CPU that ran.
    pub from: CpuId,
    /// The CPU that goes on.
    pub to: CpuId,
    /// The watched line that was touched last, if that ended the quantum.
    pub line: Option<&'static str>,
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options").field("step_ns", &self.step_ns).finish_non_exhaustive()
    }
}

impl Default for Options {
    /// 20 ns for a step, stacks of 256 KiB, and functions that do nothing.
    fn default() -> Self {
        let (on_idle, on_switch) = (Box::new(|_| ()), Box::new(|_| ()));
        let (on_access, cores, on_stage) = (None, None, None);
        Self { step_ns: 20, stack_bytes: 256 << 10, on_idle, on_switch, on_access, cores, on_stage }
    }
}

/// Every CPU sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Idle {
    /// The time, in ns.
    pub now: u64,
    /// The next timer; `None`: there is none, and the run ends as a deadlock.
    pub until: Option<u64>,
}

/// How a run ended. Except after [`Finished`](Self::Finished) the CPUs' stacks, and what they own, are leaked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// Every CPU came to its end.
    Finished,
    /// [`stop`] was called.
    Stopped,
    /// The run went on for longer than [`go_on_for`](crate::go_on_for) allowed.
    Exhausted {
        /// The names of the CPUs that do not sleep.
        running: Vec<String>,
    },
    /// Code on a CPU panicked. The machine's thread is then unfit for further runs: it counts as panicking.
    Panicked {
        /// The CPU.
        cpu: CpuId,
        /// What the panic said, and where.
        message: String,
    },
    /// The CPUs that have not come to their end wait for each other.
    Deadlock {
        /// The names of these CPUs.
        waiting: Vec<String>,
    },
}

/// Whether a CPU can go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Runnable,
    /// The CPU sleeps until it is woken, or until this time.
    Asleep(Option<u64>),
    /// The CPU looks at a line that has not changed since its last look.
    Spins,
    Done,
}

struct Cpu {
    name: String,
    state: State,
    fiber: Option<Generator<'static, (), ()>>,
}

/// Why the machine goes no further.
enum End {
    Stopped,
    Exhausted,
    Panicked(CpuId, String),
}

/// What the machine does next.
enum Turn {
    GoOn(CpuId),
    End(Ended),
}

struct Machine {
    cpus: Vec<Cpu>,
    /// The CPUs that have not come to their end.
    alive: Vec<CpuId>,
    runnable: Vec<CpuId>,
    /// The time of the earliest timer, or an earlier time.
    next_timer: u64,
    schedule: Box<dyn Schedule>,
    next: Option<CpuId>,
    end: Option<End>,
    options: Options,
    clocks: Option<Clocks>,
    /// Loads that are under way together, and where they were made.
    loads: Vec<(Found, &'static Location<'static>)>,
    /// With clocks: what the CPU that runs does next.
    then: Then,
}

thread_local! {
    static MACHINE: RefCell<Option<Machine>> = const { RefCell::new(None) };
    static IS_DYING: Cell<bool> = const { Cell::new(false) };
}

fn with<R>(act: impl FnOnce(&mut Machine) -> R) -> R {
    MACHINE.with(|machine| act(machine.borrow_mut().as_mut().expect("only a CPU of a machine gets here")))
}

/// Whether this code runs on a virtual CPU.
#[must_use]
pub fn is_running() -> bool {
    HOT.with(|hot| hot.quantum.get() > 0)
}

/// Runs `main` on CPU 0, and the threads that it spawns on further CPUs, until all have come to their end.
///
/// # Panics
/// If this thread runs a machine already.
pub fn run(schedule: Box<dyn Schedule>, mut options: Options, main: impl FnOnce() + Send + 'static) -> Ended {
    hear_panics();
    let clocks = options.cores.take().map(Clocks::new);
    let (step_ns, is_timed) = (options.step_ns, clocks.is_some());
    let tells = options.on_access.is_some() || is_timed;
    let machine = Machine {
        cpus: Vec::new(),
        alive: Vec::new(),
        runnable: Vec::new(),
        next_timer: u64::MAX,
        schedule,
        next: None,
        end: None,
        options,
        clocks,
        loads: Vec::new(),
        then: Then::GoesOn,
    };
    MACHINE.with(|place| assert!(place.borrow_mut().replace(machine).is_none(), "a thread runs one machine at a time"));
    IS_DYING.set(false);
    places::clear();
    waiters::clear();
    HOT.with(|hot| {
        hot.step_ns.set(step_ns);
        hot.tells.set(tells);
        hot.is_timed.set(is_timed);
        if is_timed {
            // The last thread of the run before may not exist in this run.
            hot.cpu.set(0);
        }
        hot.clock.set(0);
        hot.limit.set(Picoseconds::MAX);
        hot.begin(0);
        hot.time.set(0);
        hot.steps.set(0);
        hot.depth.set(0);
        hot.watched.set(None);
        hot.last_step.set(u64::MAX);
        hot.together.set(false);
    });
    add("main".to_owned(), main);
    let ended = take_turns();
    HOT.with(|hot| {
        hot.begin(0);
        hot.depth.set(0);
        hot.tells.set(false);
        hot.is_timed.set(false);
        hot.clock.set(0);
        hot.limit.set(Picoseconds::MAX);
    });
    places::clear();
    waiters::clear();
    let machine = MACHINE.with(|place| place.borrow_mut().take());
    if let Some(machine) = machine {
        // A fiber that has not come to its end must not unwind: when a value that it owns is dropped, that value may
        // wait for other fibers.
        machine.cpus.into_iter().filter_map(|cpu| cpu.fiber).for_each(|fiber| {
            if !fiber.is_done() {
                std::mem::forget(fiber);
            }
        });
    }
    ended
}

/// Ends the run where it stands. In an uninterrupted section, and while every CPU sleeps, this returns, and the run
/// ends soon after.
///
/// # Panics
/// If no machine runs.
pub fn stop() {
    with(|machine| _ = machine.end.get_or_insert(End::Stopped));
    if is_running() {
        HOT.with(|hot| hot.left.set(1));
        if HOT.with(|hot| hot.depth.get() == 0) {
            suspend();
        }
    }
}

/// Adds a CPU, which runs `body`.
pub(crate) fn add(name: String, body: impl FnOnce() + Send + 'static) -> CpuId {
    // The crate `generator` counts stacks in words.
    let words = with(|machine| machine.options.stack_bytes) / size_of::<usize>();
    let fiber = Gn::<()>::new_opt(words, body);
    with(|machine| {
        let cpu = CpuId::try_from(machine.cpus.len()).expect("fewer than 65536 CPUs in a run");
        machine.cpus.push(Cpu { name, state: State::Runnable, fiber: Some(fiber) });
        machine.alive.push(cpu);
        machine.schedule.added(cpu);
        if let Some(clocks) = &mut machine.clocks {
            clocks.add(by_clock::clock());
            by_clock::note_limit(clocks);
        }
        cpu
    })
}

/// Lets CPUs take turns until none is left or the run has ended.
fn take_turns() -> Ended {
    loop {
        let next = match next_turn() {
            Turn::GoOn(next) => next,
            Turn::End(ended) => return ended,
        };
        let mut fiber =
            with(|machine| machine.cpus[usize::from(next)].fiber.take()).expect("a runnable CPU has a fiber");
        let resumed = panic::catch_unwind(AssertUnwindSafe(|| fiber.resume()));
        with(|machine| {
            if let Err(panic) = resumed {
                machine.end.get_or_insert_with(|| End::Panicked(next, said(&*panic)));
            }
            let cpu = &mut machine.cpus[usize::from(next)];
            if fiber.is_done() {
                cpu.state = State::Done;
                machine.alive.retain(|alive| *alive != next);
                if let Some(clocks) = &mut machine.clocks {
                    clocks.threads.stop(next, by_clock::clock(), Then::Ends);
                }
            } else {
                cpu.fiber = Some(fiber);
            }
        });
    }
}

/// The CPU that goes on next. While every CPU sleeps, time jumps to the next timer.
fn next_turn() -> Turn {
    loop {
        if let Some(ended) = with(Machine::ended) {
            return Turn::End(ended);
        }
        if let Some(next) = with(|machine| machine.next.take().or_else(|| machine.choose(None))) {
            return Turn::GoOn(next);
        }
        let (until, mut on_idle) = with(|machine| {
            HOT.with(|hot| hot.begin(0));
            (machine.earliest(), std::mem::replace(&mut machine.options.on_idle, Box::new(|_| ())))
        });
        let now = crate::time::now();
        on_idle(Idle { now, until });
        let waiting = with(|machine| {
            machine.options.on_idle = on_idle;
            (machine.end.is_none() && until.is_none()).then(|| machine.names(|_| true))
        });
        if let Some(waiting) = waiting {
            return Turn::End(Ended::Deadlock { waiting });
        }
        HOT.with(|hot| hot.time.set(until.unwrap_or(now).max(now)));
        with(|machine| machine.end_idle(until));
    }
}

/// Called when the quantum is over: the schedule decides whether another CPU goes on.
#[cold]
pub(crate) fn decide(watched: Option<&'static str>) {
    if IS_DYING.get() || with(|machine| machine.end.is_some()) {
        suspend();
    }
    let me = crate::cpu();
    let next = with(|machine| {
        let next = machine.choose(Some((me, watched)));
        machine.next = next;
        next
    });
    if next == Some(me) {
        with(|machine| machine.next = None);
    } else {
        suspend();
    }
}

/// Sleeps until [`wake`] or `until`.
pub(crate) fn sleep(until: Option<u64>) {
    let me = crate::cpu();
    with(|machine| {
        machine.cpus[usize::from(me)].state = State::Asleep(until);
        machine.next_timer = machine.next_timer.min(until.unwrap_or(u64::MAX));
        if let Some(clocks) = &mut machine.clocks {
            by_clock::fall_asleep(clocks, me, until);
        }
    });
    suspend();
}

/// Wakes a CPU that sleeps. Returns whether the CPU slept. If CPUs have clocks of their own, the caller makes a step
/// soon.
pub(crate) fn wake(cpu: CpuId) -> bool {
    with(|machine| {
        let state = &mut machine.cpus[usize::from(cpu)].state;
        let sleeps = matches!(state, State::Asleep(_));
        if sleeps {
            *state = State::Runnable;
            if let Some(clocks) = &mut machine.clocks {
                by_clock::wake(clocks, cpu);
            }
        }
        sleeps
    })
}

/// Gives the machine's thread back to the machine.
#[expect(deprecated, reason = "the other form needs a handle, which code deep inside the product does not have")]
fn suspend() {
    assert!(HOT.with(|hot| hot.depth.get()) == 0 || IS_DYING.get(), "an uninterrupted section waits");
    generator::yield_with(());
}

impl Machine {
    fn ended(&mut self) -> Option<Ended> {
        match self.end.take() {
            Some(End::Stopped) => Some(Ended::Stopped),
            Some(End::Exhausted) => {
                Some(Ended::Exhausted { running: self.names(|state| matches!(state, State::Runnable | State::Spins)) })
            }
            Some(End::Panicked(cpu, message)) => Some(Ended::Panicked { cpu, message }),
            None => self.alive.is_empty().then_some(Ended::Finished),
        }
    }

    /// The names of the CPUs that have not come to their end and are in a state that `which` accepts.
    fn names(&self, which: impl Fn(State) -> bool) -> Vec<String> {
        let cpus = self.alive.iter().map(|cpu| &self.cpus[usize::from(*cpu)]);
        cpus.filter(|cpu| which(cpu.state)).map(|cpu| cpu.name.clone()).collect()
    }

    fn earliest(&self) -> Option<u64> {
        let timers = self.alive.iter().filter_map(|cpu| match self.cpus[usize::from(*cpu)].state {
            State::Asleep(until) => until,
            _ => None,
        });
        timers.min()
    }

    /// Asks the schedule which CPU goes on, and begins that CPU's quantum. `from` is the CPU whose quantum is over, if
    /// it can go on itself, and the watched line that ended the quantum.
    fn choose(&mut self, from: Option<(CpuId, Option<&'static str>)>) -> Option<CpuId> {
        let (now, steps, last) = HOT.with(|hot| (hot.now(), hot.steps.get() + hot.made(), hot.cpu.get()));
        if steps >= HOT.with(|hot| hot.last_step.get()) {
            self.end.get_or_insert(End::Exhausted);
        }
        if self.clocks.is_some() {
            return self.choose_by_clock(from.map(|(cpu, _)| cpu));
        }
        if now >= self.next_timer {
            for cpu in &self.alive {
                let state = &mut self.cpus[usize::from(*cpu)].state;
                if matches!(state, State::Asleep(Some(until)) if *until <= now) {
                    *state = State::Runnable;
                }
            }
            self.next_timer = self.earliest().unwrap_or(u64::MAX);
        }
        let Self { cpus, alive, runnable, .. } = self;
        runnable.clear();
        runnable.extend(alive.iter().filter(|cpu| cpus[usize::from(**cpu)].state == State::Runnable));
        if self.runnable.is_empty() {
            return None;
        }
        let watched = from.and_then(|(_, line)| line);
        let Decision { next, quantum, watch } =
            self.schedule.decide(&self.runnable, from.map(|(cpu, _)| cpu), watched, steps);
        if next != last {
            (self.options.on_switch)(Switch { step: steps, time: now, from: last, to: next, line: watched });
        }
        HOT.with(|hot| {
            hot.begin(quantum.max(1));
            hot.watched.set(watch);
            hot.cpu.set(next);
        });
        Some(next)
    }
}

/// The message of a panic.
fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without words").to_owned()
}

/// Makes panics of virtual CPUs end the run with their message, instead of going to standard error.
fn hear_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            // A failed assertion of the machine itself is shown at once, and then unwinds to the machine.
            if !is_running() || MACHINE.with(|machine| machine.try_borrow_mut().is_err()) {
                return before(info);
            }
            let place = info.location().map(|place| format!(", {}:{}", place.file(), place.line())).unwrap_or_default();
            let message = format!("{}{place}", said(info.payload()));
            IS_DYING.set(true);
            let cpu = crate::cpu();
            with(|machine| _ = machine.end.get_or_insert(End::Panicked(cpu, message)));
            // From here on the code unwinds to its first step, where it stays, or to the machine.
            HOT.with(|hot| (hot.quantum.set(1), hot.left.set(1)));
        }));
    });
}
