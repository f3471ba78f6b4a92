//! The device behind a queue, on virtual CPUs. The device keeps its promises, and has just the faults that its
//! configuration says.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use blkmq_sched::Op;
use blkmq_vcpu::{Ended, Options, Random, run, schedule, thread, uninterrupted};
use blkmq_virtual::driver::Topology;
use blkmq_virtual::{Bio, Buffer, Client, Completion, Flags, Limits, RequestQueue, Status};

use super::super::check::{Checker, Violation};
use super::super::event::{Action, Event, Stamp};
use super::super::history::History;
use super::super::witness::{Witness, stamp};
use super::config::{Faults, Rate, Timing};
use super::*;

const SECTOR: usize = 512;

/// Sectors that each submitter has for itself.
const AREA: u64 = 64;

/// Counts what the device does, and checks what can be checked of it alone.
#[derive(Clone)]
struct Watch(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    counts: BTreeMap<&'static str, u64>,
    started: BTreeSet<u64>,
    /// The longest time that a request may take, in ns.
    longest_ns: u64,
}

impl Seen {
    fn acted(&mut self, at: Stamp, rq: u64, action: Action) -> Result<(), String> {
        let name = match action {
            Action::FinishedAtOnce(status) if status.is_ok() => "finished",
            Action::Completed(status) if status.is_ok() => "completed",
            Action::FinishedAtOnce(_) | Action::Completed(_) => "failed",
            Action::Started { due: Some(due) } if due > at.time.after(self.longest_ns) => "too late",
            Action::Started { due: Some(_) } => "started",
            Action::Started { due: None } => "hung",
            Action::Refused => "refused",
            Action::GivenBack => "given back",
            Action::Stale => "stale",
            Action::GaveUp => "given up",
            Action::WantsTime { .. } => "wants time",
        };
        *self.counts.entry(name).or_default() += 1;
        let is_right = match action {
            Action::Started { .. } => name != "too late" && self.started.insert(rq),
            Action::Completed(_) | Action::GaveUp => self.started.remove(&rq),
            Action::WantsTime { .. } => self.started.contains(&rq),
            Action::FinishedAtOnce(_) | Action::Refused | Action::GivenBack | Action::Stale => {
                !self.started.contains(&rq)
            }
        };
        if is_right { Ok(()) } else { Err(format!("{action:?} of request {rq:#x}")) }
    }
}

impl Checker for Watch {
    fn see(&mut self, at: Stamp, event: &Event<'_>) -> Result<(), Violation> {
        let mut seen = self.0.lock().expect("no thread panics with it");
        match event {
            Event::Acted { rq, action } => {
                seen.acted(at, rq.0, *action).map_err(|what| Violation::new("watch", what).request(*rq))
            }
            Event::PowerLost { .. } => {
                *seen.counts.entry("power lost").or_default() += 1;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// The stamps that each sector may hold.
type Possible = Vec<BTreeSet<u64>>;

fn stamped(op: Op, first: u64, nr_sectors: u64, number: u64, random: &mut Random) -> Bio {
    let bio = match op {
        Op::Discard => Bio::discard(first, nr_sectors),
        Op::WriteZeroes => Bio::write_zeroes(first, nr_sectors),
        Op::Flush => Bio::flush(),
        Op::Read | Op::Write => {
            let mut bytes = vec![0; nr_sectors as usize * SECTOR];
            if op == Op::Write {
                bytes.chunks_mut(SECTOR).for_each(|sector| sector[..8].copy_from_slice(&number.to_le_bytes()));
            }
            let (front, back) = bytes.split_at(random.below(nr_sectors) as usize * SECTOR);
            let buffers = vec![Buffer::from(front), Buffer::from(back)];
            Bio::new(op, first, nr_sectors, buffers.into())
        }
    };
    bio.with_user_data(number)
}

/// Takes a completion into account. Returns false if a read found a stamp that cannot be there.
fn judge(possible: &mut Possible, area: u64, Completion { bio, status, .. }: &Completion) -> bool {
    let first = (bio.sector - if bio.op == Op::Flush { 0 } else { area }) as usize;
    let sectors = &mut possible[first..first + bio.nr_sectors as usize];
    let new = if bio.op == Op::Write { bio.user_data } else { 0 };
    match (bio.op, status.is_ok()) {
        (Op::Flush, _) | (Op::Read, false) => true,
        (Op::Read, true) => {
            let bytes: Vec<u8> = bio.buffers.iter().flat_map(|buffer| buffer.iter().copied()).collect();
            let stamps =
                bytes.chunks(SECTOR).map(|sector| u64::from_le_bytes(sector[..8].try_into().expect("8 bytes")));
            stamps.zip(sectors).all(|(stamp, possible)| {
                let is_possible = possible.contains(&stamp);
                // Once a stamp was read, the sector holds it until the next write.
                possible.retain(|old| *old == stamp);
                is_possible
            })
        }
        (_, true) => {
            sectors.iter_mut().for_each(|sector| *sector = BTreeSet::from([new]));
            true
        }
        (_, false) => {
            sectors.iter_mut().for_each(|sector| _ = sector.insert(new));
            true
        }
    }
}

/// One submitter, with one operation at a time, anywhere in its own area.
fn submit_some(q: &RequestQueue, me: u64, nr_operations: u64, witness: &Witness, mut random: Random) {
    let mut submitter = q.submitter(&Client::new("test")).expect("there is room for a thread");
    let block = u64::from(q.limits().logical_block_size) / SECTOR as u64;
    let area = me * AREA;
    let mut possible: Possible = vec![BTreeSet::from([0]); AREA as usize];
    for number in 1..=nr_operations {
        let ops = [Op::Read, Op::Read, Op::Read, Op::Write, Op::Write, Op::Discard, Op::WriteZeroes, Op::Flush];
        let op = *random.pick(&ops);
        let place = random.below(AREA / block) * block;
        let room = (AREA - place) / block;
        let nr_sectors = if op == Op::Flush { 0 } else { random.within(1, room.min(8)) * block };
        let mut bio = stamped(op, if op == Op::Flush { 0 } else { area + place }, nr_sectors, number, &mut random);
        bio.flags = Flags { fua: op == Op::Write && random.one_in(4), ..Flags::default() };
        if submitter.submit(bio).is_err() {
            continue;
        }
        submitter.flush_plug();
        while submitter.nr_outstanding() > 0 {
            submitter.wait(1, None);
            while let Some(done) = submitter.reap() {
                let is_right = uninterrupted(|| judge(&mut possible, area, &done));
                if !is_right {
                    witness.accuse(Violation::new("data", format!("{me}: {done:?}, not one of {possible:?}")));
                }
            }
        }
    }
    assert!(submitter.leave().is_empty());
}

/// Plays a device from its seed. Returns what the device did, which event came last, and the hash of the history.
fn play(config: DeviceConfig, seed: u64, nr_operations: u64) -> (BTreeMap<&'static str, u64>, u64) {
    let mut random = Random::new(seed);
    // Requests that hang may complete at about the time when the device is asked about them.
    let longest_ns = config.timing.longest_ns().max(config.timing.timeout_ns + 10_000);
    let seen = Seen { longest_ns, ..Seen::default() };
    let watch = Watch(Arc::new(Mutex::new(seen)));
    let witness = Witness::new(History::new(None), vec![Box::new(watch.clone())], None);
    let device = Device::new(config, random.fork(), witness.clone());
    let schedule = Box::new(schedule::Uniform::new(random.fork(), 4));
    let (told, theirs) = (witness.clone(), Arc::clone(&device));
    let ended = run(schedule, Options::default(), move || {
        let q = RequestQueue::builder(theirs).scheduler("mq-deadline").slots(32).io_timeout_ms(1).build();
        let q = q.expect("the device is described well");
        let submitters: Vec<_> = (0..3)
            .map(|me| {
                let (q, told, random) = (q.clone(), told.clone(), random.fork());
                thread::spawn(move || submit_some(&q, me, nr_operations, &told, random))
            })
            .collect();
        submitters.into_iter().for_each(|submitter| submitter.join().expect("a panic ends the run"));
    });
    let (violation, hash) = witness.end(stamp(), ended == Ended::Finished);
    assert_eq!((ended, violation), (Ended::Finished, None), "seed {seed}");
    assert_eq!(device.state(), DeviceState::default(), "seed {seed}");
    let seen = watch.0.lock().unwrap();
    assert!(seen.started.is_empty(), "seed {seed}");
    (seen.counts.clone(), hash)
}

/// A device without faults, of one hardware queue.
fn plain() -> DeviceConfig {
    DeviceConfig {
        limits: Limits {
            capacity_sectors: 3 * AREA,
            max_discard_sectors: 64,
            max_discard_segments: 4,
            max_write_zeroes_sectors: 16,
            write_cache: true,
            ..Limits::default()
        },
        topology: Topology::new(1, 4),
        is_concurrent: false,
        is_owned: false,
        timing: Timing {
            at_once: 0,
            mean_ns: vec![5000],
            slow: Rate::NEVER,
            limit: None,
            long: Rate::NEVER,
            in_order: false,
            timeout_ns: 1_000_000,
        },
        faults: Faults::NONE,
    }
}

#[test]
fn a_device_without_faults_only_starts_and_completes() {
    let (counts, _) = play(plain(), 1, 200);
    assert_eq!(counts.keys().copied().collect::<Vec<_>>(), ["completed", "started"]);
    assert!(counts["started"] > 400, "{counts:?}");
}

#[test]
fn every_fault_happens_and_nothing_is_lost() {
    let faults = Faults {
        fails: Rate::one_in(10),
        gives_back: Rate::one_in(10),
        busy: Rate::one_in(20),
        busy_ns: 20_000,
        room: 2,
        hangs: Rate::one_in(20),
        gives_up: Rate::one_in(2),
        completes_again: Rate::one_in(3),
        ..Faults::NONE
    };
    let slow = Rate::one_in(20);
    let config = DeviceConfig { timing: Timing { at_once: 30, slow, ..plain().timing }, faults, ..plain() };
    let (counts, _) = play(config, 2, 400);
    let expected = [
        "completed",
        "failed",
        "finished",
        "given back",
        "given up",
        "hung",
        "refused",
        "stale",
        "started",
        "wants time",
    ];
    assert_eq!(counts.keys().copied().collect::<Vec<_>>(), expected);
    assert!(counts.values().all(|count| *count >= 5), "{counts:?}");
}

#[test]
fn devices_of_all_kinds_keep_their_word() {
    let mut random = Random::new(3);
    for seed in 0..40 {
        let mut config = DeviceConfig::draw(&mut random, 1, false);
        // Data that is lost with the power would look like a broken promise here.
        config.faults.power_ns = 0;
        play(config, seed, 40);
    }
}

#[test]
fn the_same_seed_makes_the_same_history() {
    let mut config = DeviceConfig::draw(&mut Random::new(4), 1, false);
    config.faults.power_ns = 0;
    assert_eq!(play(config.clone(), 5, 60), play(config.clone(), 5, 60));
    assert_ne!(play(config.clone(), 5, 60).1, play(config, 6, 60).1);
}

/// Everything that is only in the cache is lost with the power. So what a device still has after the loss is what it
/// flushed.
#[test]
fn what_was_flushed_survives_a_loss_of_power() {
    let mut random = Random::new(7);
    let witness = Witness::new(History::new(None), Vec::new(), None);
    let config = DeviceConfig { timing: Timing { at_once: 100, ..plain().timing }, ..plain() };
    let device = Device::new(config, random.fork(), witness);
    let q = RequestQueue::builder(device.clone()).scheduler("none").build().unwrap();
    let mut submitter = q.submitter(&Client::new("test")).unwrap();
    let mut finish = |bio: Bio| {
        submitter.submit(bio).unwrap();
        submitter.wait(1, None);
        let done = submitter.reap().unwrap();
        assert_eq!(done.status, Status::Ok);
        done.bio
    };
    finish(stamped(Op::Write, 0, 4, 1, &mut random));
    finish(Bio::flush());
    finish(stamped(Op::Write, 0, 2, 2, &mut random));
    let mut lost = 0;
    for number in 3..40 {
        device.lose_power();
        let bytes: Vec<u8> =
            finish(stamped(Op::Read, 0, 4, 0, &mut random)).buffers.iter().flat_map(|b| b.to_vec()).collect();
        let stamps = [0, 1, 2, 3].map(|sector: usize| bytes[sector * SECTOR]);
        assert_eq!(stamps[2..], [1, 1]);
        lost += u32::from(stamps[..2] != [number - 1; 2]);
        finish(stamped(Op::Write, 0, 2, u64::from(number), &mut random));
    }
    assert!((10..37).contains(&lost), "{lost}");
    assert!(submitter.leave().is_empty());
}
