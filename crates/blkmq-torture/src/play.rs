//! One world, from its seed to its end.

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

use blkmq_sync_virtual::weaken;
use blkmq_vcpu::{Ended, Idle, Options, go_on_for, run, thread};
use blkmq_virtual::{Builder, Client, RequestQueue, Submitter};

use super::check::{Checkers, Facts, Violation};
use super::client::Client as Worker;
use super::control::Controller;
use super::device::{Device, DeviceConfig};
use super::event::{Event, Stamp};
use super::history::{History, Reader};
use super::plan::Plan;
use super::policy::{Watched, set_witness};
use super::settings::Settings;
use super::tenancy::Tenancy;
use super::witness::{Witness, stamp};
use super::world::{MOST_STEPS, STEPS_PER_REQUEST, Share, World};

/// The longest time that a client sleeps by its own decision, in ns. A CPU that changes the queue may sleep longer:
/// operations wait for such a CPU only while the queue is frozen or quiesced, and the checkers know when it is.
const NAP_NS: u64 = 3_000_000;

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

/// Plays the world of a seed until `requests` operations were taken and all of them are over. The caller must run this
/// on a thread of its own that ends soon after: a world that ends badly leaves its thread counting as panicking.
fn play(seed: u64, requests: u64, settings: &Settings, reader: Option<Reader>) -> Outcome {
    let plan = Plan::draw(seed, settings);
    let witness = Witness::new(History::new(reader), Checkers::new(&facts(&plan)), settings.live);
    let share = Arc::new(Mutex::new(Share::new(requests, plan.device.limits.capacity_sectors)));
    let device = Device::new(plan.device.clone(), plan.device_random.clone(), witness.clone());
    weaken(settings.mutant.map(|mutant| mutant.site));
    set_witness(Some(witness.clone()));
    let ended = run(plan.schedule(), options(&plan, &witness, &device), {
        let (witness, share) = (witness.clone(), Arc::clone(&share));
        move || go(plan, device, witness, share)
    });
    weaken(None);
    set_witness(None);
    let at = stamp();
    let is_finished = ended == Ended::Finished;
    let (violation, hash) = witness.end(at, is_finished);
    let violation = violation.or_else(|| Some((at, trouble(ended)?)));
    let requests = share.lock().unwrap_or_else(PoisonError::into_inner).taken();
    Outcome { requests, steps: at.step, hash, violation }
}

/// Plays a world on a thread of its own.
pub(crate) fn play_apart(seed: u64, requests: u64, settings: &Settings, reader: Option<Reader>) -> Outcome {
    if let Err(what) = settings.check() {
        return broken(what);
    }
    let settings = settings.clone();
    let body = move || play(seed, requests, &settings, reader);
    let ended = std::thread::Builder::new().name("world".to_owned()).spawn(body).map(std::thread::JoinHandle::join);
    match ended {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(panic)) => broken(format!("the rig itself panicked: {}", said(&*panic))),
        Err(error) => broken(format!("no thread for the world: {error}")),
    }
}

/// A world that could not be played.
fn broken(what: String) -> Outcome {
    let at = Stamp { step: 0, time: blkmq_sched::Time(0), cpu: 0 };
    Outcome { requests: 0, steps: 0, hash: 0, violation: Some((at, Violation::new("rig", what))) }
}

fn said(panic: &(dyn Any + Send)) -> &str {
    panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref().copied()).unwrap_or("no words")
}

/// What the checkers know of a world before it begins.
pub(crate) fn facts(plan: &Plan) -> Facts {
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
    let tenancy = Tenancy::begin(&plan.tenancy, &q);
    share.lock().unwrap_or_else(PoisonError::into_inner).tenancy = tenancy;
    let queue = q.downgrade();
    let world = Arc::new(World { limits: q.limits(), q, witness: witness.clone(), share });
    world.tell_installed(plan.scheduler);
    world.set_knobs(&plan.knobs);
    if let Some(usec) = plan.limiter {
        world.tell_limiter(usec);
    }
    let nr_clients = plan.clients.len() as u16;
    let idle = join_idle(&world, plan.nr_idle, nr_clients);
    let whims = [("controller", Some(plan.whims)), ("second controller", plan.second)];
    let controllers: Vec<_> = whims
        .into_iter()
        .filter_map(|(name, whims)| {
            let controller = Controller::new(Arc::clone(&world), whims?, plan.scheduler, plan.locking);
            Some(thread::spawn_named(name.to_owned(), move || controller.run()))
        })
        .collect();
    let clients: Vec<_> = (0..)
        .zip(plan.clients)
        .map(|(number, workload)| {
            let client = Worker::new(Arc::clone(&world), number, workload);
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
    leave_idle(&world, idle, nr_clients);
    world.tell_counts();
    world.tell_dump();
    drop(world);
    if queue.upgrade().is_some() {
        witness.accuse(Violation::new("memory", "the queue lives on after all have left it".to_owned()));
    }
    witness.tell_memory();
}

fn build(plan: &Plan, device: Arc<Device>, witness: &Witness) -> RequestQueue {
    let builder = RequestQueue::builder(device)
        .slots(plan.slots)
        .io_timeout_ms(plan.io_timeout_ms)
        .accounting(plan.accounting)
        .locking(plan.locking)
        .bypass(plan.bypass);
    let builder = plan.nr_requests.into_iter().fold(builder, Builder::nr_requests);
    let builder = plan.limiter.into_iter().fold(builder, Builder::wbt_lat_usec);
    let builder = match Watched::named(plan.scheduler, witness.clone(), plan.shallow) {
        Some(scheduler) => builder.scheduler(scheduler),
        None => builder.scheduler("none"),
    };
    builder.build().expect("what is drawn is right")
}

/// Joins submitters that do nothing, with numbers after those of the clients.
fn join_idle(world: &World, nr_idle: u16, nr_clients: u16) -> Vec<Submitter> {
    let join = |number| {
        let submitter = world.q.submitter(&Client::new("idle")).expect("there are places for idle submitters");
        let nr_slots = u16::try_from(submitter.nr_slots()).expect("a submitter's slots are few");
        world.witness.tell(Event::Joined { submitter: number, nr_slots, tenant: u16::MAX });
        submitter
    };
    (nr_clients..nr_clients + nr_idle).map(join).collect()
}

fn leave_idle(world: &World, idle: Vec<Submitter>, nr_clients: u16) {
    for (number, submitter) in (nr_clients..).zip(idle) {
        world.witness.tell(Event::Leaving { submitter: number });
        drop(submitter);
        world.witness.tell(Event::Left { submitter: number, hands_back: false });
    }
}

#[cfg(test)]
mod limiters;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::event::Action;
    use super::super::history::Entry;
    use super::*;

    const SETTINGS: Settings = Settings { cpus: 8, scheduler: None, locking: None, mutant: None, live: None };

    #[test]
    fn worlds_end_well_and_the_same_way_each_time() {
        for seed in 0..20 {
            let outcome = play_apart(seed, 500, &SETTINGS, None);
            assert_eq!((outcome.requests, &outcome.violation), (500, &None), "seed {seed}");
            assert_eq!(outcome, play_apart(seed, 500, &SETTINGS, None), "seed {seed}");
        }
    }

    /// Red if no world has a device with one of the faults any more, or a loss of power.
    #[test]
    fn devices_have_every_fault() {
        let seen = Arc::new(Mutex::new(BTreeSet::new()));
        for seed in 0..20 {
            let seen = Arc::clone(&seen);
            let reader = move |entry: Entry<'_>| {
                let name = match entry {
                    Entry::Event(_, Event::PowerLost { .. }) => "power lost",
                    Entry::Event(_, Event::Acted { action, .. }) => match action {
                        Action::FinishedAtOnce(status) | Action::Completed(status) if !status.is_ok() => "failed",
                        Action::FinishedAtOnce(_) => "finished at once",
                        Action::Completed(_) => "completed",
                        Action::Started { due: Some(_) } => "started",
                        Action::Started { due: None } => "hung",
                        Action::Refused => "refused",
                        Action::GivenBack => "given back",
                        Action::Stale => "stale",
                        Action::GaveUp => "given up",
                        Action::WantsTime { .. } => "wants time",
                    },
                    _ => return,
                };
                seen.lock().unwrap().insert(name);
            };
            play_apart(seed, 500, &SETTINGS, Some(Box::new(reader)));
        }
        assert_eq!(seen.lock().unwrap().len(), 11, "{seen:?}");
    }
}
