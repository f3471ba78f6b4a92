//! One world, from its seed to its end.

use std::sync::{Arc, Mutex, PoisonError};

use blkmq_sync_virtual::weaken;
use blkmq_vcpu::{Ended, Idle, Options, go_on_for, run, steps, thread, uninterrupted};
use blkmq_virtual::{Builder, Client, Limits, Locking, RequestQueue, Submitter, scheduler_names};

use super::check::{self, Facts, Violation};
use super::claims::Claims;
use super::client::Client as Worker;
use super::control::Controller;
use super::device::{Device, DeviceConfig};
use super::event::{Event, Stamp};
use super::history::{History, Reader};
use super::mutant::Mutant;
use super::plan::Plan;
use super::policy::Watched;
use super::witness::{Witness, stamp};

/// The longest time that a client sleeps by its own decision, in ns. A CPU that changes the queue may sleep longer:
/// operations wait for such a CPU only while the queue is frozen or quiesced, and the checkers know when it is.
const NAP_NS: u64 = 3_000_000;

/// Steps that all CPUs together may make while no operation becomes over. Time jumps ahead while a device hangs, but
/// the threads that poll still look now and then, and each look takes steps.
const MOST_STEPS: u64 = 200_000_000;

/// Steps that each request may add to the limit of the world.
const STEPS_PER_REQUEST: u64 = 20_000;

/// The most virtual CPUs that submit.
pub const MOST_CPUS: u16 = 64;

/// What all worlds of a run have in common.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Virtual CPUs that submit, 1 to [`MOST_CPUS`]. Background threads and the operators that change the queue have
    /// further CPUs.
    pub cpus: u16,
    /// The scheduler, by a name that [`scheduler_names`] has. `None`: any scheduler, and it changes under load.
    pub scheduler: Option<String>,
    /// The locking around the scheduler. `None`: any locking, and it changes under load.
    pub locking: Option<Locking>,
    /// A bug to plant.
    pub mutant: Option<Mutant>,
    /// Returns how many bytes of memory the calling thread holds. Without this function memory is not checked.
    pub live: Option<fn() -> i64>,
}

impl Settings {
    /// Says what is wrong with the settings, if anything is wrong.
    pub(crate) fn check(&self) -> Result<(), String> {
        if !(1..=MOST_CPUS).contains(&self.cpus) {
            return Err(format!("{} CPUs submit; right would be 1 to {MOST_CPUS}", self.cpus));
        }
        let known = scheduler_names();
        match &self.scheduler {
            Some(name) if !known.contains(&name.as_str()) => {
                Err(format!("there is no scheduler '{name}'; there are: {}", known.join(", ")))
            }
            _ => Ok(()),
        }
    }
}

/// What became of a world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Operations that were taken.
    pub(crate) requests: u64,
    /// Steps of all CPUs.
    pub(crate) steps: u64,
    /// The hash of its history.
    pub(crate) hash: u64,
    /// The first promise that was broken, and when.
    pub(crate) violation: Option<(Stamp, Violation)>,
}

/// What the CPUs of a world share.
pub(crate) struct World {
    pub(crate) q: Arc<RequestQueue>,
    pub(crate) limits: Limits,
    pub(crate) witness: Witness,
    share: Arc<Mutex<Share>>,
}

/// What the clients of the world share.
pub(crate) struct Share {
    pub(crate) claims: Claims,
    /// Whether all clients have come to their end.
    pub(crate) is_over: bool,
    wanted: u64,
    taken: u64,
    last_number: u64,
    cursor: u64,
    /// The step at which the world ends, unless further operations become over before.
    last_step: u64,
}

impl Share {
    fn new(wanted: u64, capacity: u64) -> Self {
        Self {
            claims: Claims::new(capacity),
            is_over: false,
            wanted,
            taken: 0,
            last_number: 0,
            cursor: 0,
            last_step: MOST_STEPS,
        }
    }

    /// Whether more operations are to be submitted.
    pub(crate) const fn wants_more(&self) -> bool {
        self.taken < self.wanted
    }

    /// Operations that were taken so far.
    pub(crate) const fn taken(&self) -> u64 {
        self.taken
    }

    /// Counts an operation.
    pub(crate) const fn take_one(&mut self) {
        self.taken += 1;
    }

    /// Called when the operation was not taken after all.
    pub(crate) const fn give_one_back(&mut self) {
        self.taken -= 1;
    }

    /// The number of the next operation.
    pub(crate) const fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Where the sequential stream that all clients share continues.
    pub(crate) const fn go_on(&mut self, nr_sectors: u64, capacity: u64) -> u64 {
        let here = if self.cursor + nr_sectors > capacity { 0 } else { self.cursor };
        self.cursor = here + nr_sectors;
        here
    }
}

impl World {
    /// Joins submitters that do nothing, with numbers after those of the clients.
    fn join_idle(&self, nr_idle: u16, nr_clients: u16) -> Vec<Submitter> {
        let join = |number| {
            let submitter = self.q.submitter(&Client::new("idle")).expect("there are places for idle submitters");
            let nr_slots = u16::try_from(submitter.nr_slots()).expect("a submitter's slots are few");
            self.witness.tell(Event::Joined { submitter: number, nr_slots, tenant: u16::MAX });
            submitter
        };
        (nr_clients..nr_clients + nr_idle).map(join).collect()
    }

    fn leave_idle(&self, idle: Vec<Submitter>, nr_clients: u16) {
        for (number, submitter) in (nr_clients..).zip(idle) {
            self.witness.tell(Event::Leaving { submitter: number });
            drop(submitter);
            self.witness.tell(Event::Left { submitter: number, hands_back: false });
        }
    }

    /// Called when an operation of this many requests is over. The world may then run for longer.
    pub(crate) fn allow_more(&self, nr_requests: u64) {
        let now = steps();
        let last_step = self.share(|share| {
            share.last_step = (share.last_step + nr_requests * STEPS_PER_REQUEST).min(now + MOST_STEPS);
            share.last_step
        });
        go_on_for(last_step - now);
    }

    /// Reads or changes the state that all clients share.
    pub(crate) fn share<R>(&self, act: impl FnOnce(&mut Share) -> R) -> R {
        uninterrupted(|| act(&mut self.share.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// Plays the world of a seed until `requests` operations were taken and all of them are over. The caller must run this
/// on a thread of its own that ends soon after: a world that ends badly leaves its thread counting as panicking.
pub(crate) fn play(seed: u64, requests: u64, settings: &Settings, reader: Option<Reader>) -> Outcome {
    let plan = Plan::draw(seed, settings);
    let witness = Witness::new(History::new(reader), check::all(&facts(&plan)), settings.live);
    let share = Arc::new(Mutex::new(Share::new(requests, plan.device.limits.capacity_sectors)));
    let device = Device::new(plan.device.clone(), plan.device_random.clone(), witness.clone());
    weaken(settings.mutant.map(|mutant| mutant.site));
    let ended = run(plan.schedule(), options(&plan, &witness, &device), {
        let (witness, share) = (witness.clone(), Arc::clone(&share));
        move || go(plan, device, witness, share)
    });
    weaken(None);
    let at = stamp();
    let is_finished = ended == Ended::Finished;
    let (violation, hash) = witness.end(at, is_finished);
    let violation = violation.or_else(|| Some((at, trouble(ended)?)));
    let requests = share.lock().unwrap_or_else(PoisonError::into_inner).taken();
    Outcome { requests, steps: at.step, hash, violation }
}

/// What the checkers know of a world before it begins.
fn facts(plan: &Plan) -> Facts {
    let DeviceConfig { limits, topology, is_concurrent, .. } = plan.device;
    let Plan { io_timeout_ms, locking, bypass, nr_requests, .. } = *plan;
    Facts { limits, topology, io_timeout_ms, locking, bypass, nr_requests, is_concurrent, nap_ns: NAP_NS }
}

fn options(plan: &Plan, witness: &Witness, device: &Arc<Device>) -> Options {
    let (idle, switched, device) = (witness.clone(), witness.clone(), Arc::clone(device));
    Options {
        step_ns: plan.step_ns,
        on_idle: Box::new(move |Idle { until, .. }| {
            idle.tell(Event::Idle { until: until.map(blkmq_sched::Time), device: device.state() });
        }),
        on_switch: Box::new(move |switch| switched.note_switch(switch)),
        ..Options::default()
    }
}

/// What is wrong with the way in which the world ended, apart from promises that the checkers saw broken.
fn trouble(ended: Ended) -> Option<Violation> {
    match ended {
        Ended::Finished | Ended::Stopped => None,
        Ended::Exhausted { running } => Some(Violation::new(
            "livelock",
            format!(
                "more than {STEPS_PER_REQUEST} steps a request for {MOST_STEPS} steps; {}",
                if running.is_empty() {
                    "no CPU ran when the world ended".to_owned()
                } else {
                    format!("running: {}", running.join(", "))
                }
            ),
        )),
        Ended::Panicked { cpu, message } => Some(Violation::new("panic", format!("CPU {cpu}: {message}"))),
        Ended::Deadlock { waiting } => {
            Some(Violation::new("deadlock", format!("these CPUs wait for each other: {}", waiting.join(", "))))
        }
    }
}

/// What the first CPU does: it builds the queue, lets the other CPUs work, and tears everything down.
fn go(plan: Plan, device: Arc<Device>, witness: Witness, share: Arc<Mutex<Share>>) {
    go_on_for(MOST_STEPS);
    witness.tell_memory();
    let q = build(&plan, device, &witness);
    let queue = Arc::downgrade(&q);
    let world = Arc::new(World { limits: q.limits(), q, witness: witness.clone(), share });
    world.tell_installed(plan.scheduler);
    let nr_clients = plan.clients.len() as u16;
    let idle = world.join_idle(plan.nr_idle, nr_clients);
    let whims = [("controller", Some(plan.whims)), ("second controller", plan.second)];
    let controllers: Vec<_> = whims
        .into_iter()
        .filter_map(|(name, whims)| {
            let controller = Controller::new(Arc::clone(&world), whims?, plan.scheduler);
            Some(thread::spawn_named(name.to_owned(), move || controller.run()))
        })
        .collect();
    let clients: Vec<_> = (0..)
        .zip(plan.clients)
        .map(|(number, habits)| {
            let client = Worker::new(Arc::clone(&world), number, habits);
            thread::spawn_named(format!("client {number}"), move || client.run())
        })
        .collect();
    for client in clients {
        client.join().expect("a panic ends the run");
    }
    world.share(|share| share.is_over = true);
    for controller in controllers {
        controller.join().expect("a panic ends the run");
    }
    world.leave_idle(idle, nr_clients);
    world.tell_counts();
    world.tell_dump();
    drop(world);
    if queue.upgrade().is_some() {
        witness.accuse(Violation::new("memory", "the queue lives on after all have left it".to_owned()));
    }
    witness.tell_memory();
}

fn build(plan: &Plan, device: Arc<Device>, witness: &Witness) -> Arc<RequestQueue> {
    let builder = RequestQueue::builder(device)
        .slots(plan.slots)
        .io_timeout_ms(plan.io_timeout_ms)
        .accounting(plan.accounting)
        .locking(plan.locking)
        .bypass(plan.bypass);
    let builder = plan.nr_requests.into_iter().fold(builder, Builder::nr_requests);
    let builder = match blkmq_sched::scheduler(plan.scheduler) {
        Some(scheduler) => builder.scheduler(Watched::new(scheduler, witness.clone())),
        None => builder.scheduler("none"),
    };
    builder.build().expect("what is drawn is right")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: Settings = Settings { cpus: 8, scheduler: None, locking: None, mutant: None, live: None };

    /// Plays a world on a thread of its own.
    fn played(seed: u64, requests: u64) -> Outcome {
        std::thread::spawn(move || play(seed, requests, &SETTINGS, None)).join().unwrap()
    }

    #[test]
    fn worlds_end_well_and_the_same_way_each_time() {
        for seed in 0..20 {
            let outcome = played(seed, 500);
            assert_eq!((outcome.requests, &outcome.violation), (500, &None), "seed {seed}");
            assert_eq!(outcome, played(seed, 500), "seed {seed}");
        }
    }
}
