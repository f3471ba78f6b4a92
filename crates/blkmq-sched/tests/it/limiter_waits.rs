//! How long a limiter waits before it tries again, in lives in which little completes or nothing is read.

use crate::random::Random;
use crate::world::{MS, Moment, US, World};
use blkmq_sched::limiter::{Limiter, Phase};
use blkmq_sched::{Op, Time};

/// For an hour nothing is read, and then reads stay slow. Red if the limiter, which gives up then, rests for as many
/// times that hour as it rests for the time of its tries.
#[test]
fn a_rest_is_no_longer_than_eleven_minutes() {
    let mut world = World::paced();
    for _ in 0..3_600_000 {
        let in_flight = world.is_probing().then_some(50 * MS);
        world.pass(Moment { writes: 100, latency: 100 * US, read: None, in_flight });
    }
    let slow = Moment { writes: 100, latency: 100 * US, read: Some(5 * MS), in_flight: None };
    while !world.limiter.is_open() {
        world.pass(slow);
    }
    let opened = world.now;
    while world.limiter.is_open() {
        assert!(world.now.since(opened) < 700_000 * MS, "{:?}", world.limiter);
        world.pass(Moment { latency: 2 * MS, ..slow });
    }
}

/// Red if a probe in which nothing completed makes each later stretch another mix of requests, so that a probe follows
/// it at once.
#[test]
fn probes_are_rare_also_if_nothing_completes_in_one() {
    let mut world = World::paced();
    let mut probes = 0;
    for step in 0..60_000 {
        let was_probing = world.is_probing();
        let read = (step % 2 == 0 && !was_probing).then_some(100 * US);
        let writes = if was_probing { 0 } else { 100 };
        world.pass(Moment { writes, latency: 100 * US, read, in_flight: was_probing.then_some(50 * MS) });
        probes += u32::from(world.is_probing() && !was_probing);
    }
    assert!((1..15).contains(&probes), "{probes} probes in a minute: {:?}", world.limiter);
}

/// Red if a larger bound with which the device does more is given up because nothing is read.
#[test]
fn a_bound_widens_without_reads() {
    let mut world = World::default();
    stand_in_line(&mut world, Phase::Bounded, 1);
    let first = world.limiter.bound().expect("a bound is in force");
    for _ in 0..300_000 {
        let times = (world.limiter.bound().unwrap_or(u64::MAX) / first).clamp(1, 4);
        world.pass(Moment { writes: 40 * times, latency: 400 * US, read: None, in_flight: None });
    }
    assert!(world.limiter.bound().is_some_and(|bound| bound > first), "{:?}", world.limiter);
}

/// Red if a limiter panics, or takes reads for slower than they are, where three times what they took is no number.
#[test]
fn reads_that_take_for_ever_while_a_bound_widens() {
    let mut world = World::default();
    stand_in_line(&mut world, Phase::Widening, 1);
    let first = world.limiter.bound();
    let (mut reads, mut ms) = ([Some(u64::MAX / 2), Some(u64::MAX / 4)], [0, 0]);
    for _ in 0..2000 {
        let is_tried = usize::from(world.limiter.bound() != first);
        ms[is_tried] += 1;
        // What completes in the first 100 ms does not count.
        let read = reads[is_tried].take_if(|_| ms[is_tried] == 150);
        world.pass(Moment { writes: 100, latency: 400 * US, read, in_flight: None });
    }
    assert_eq!((reads, world.limiter.phase()), ([None, None], Phase::Bounded));
}

/// A device in which requests stand in line, up to 8 ms long, and which does less if the line is shorter than `needs`.
fn in_line(limiter: &Limiter, needs: u64) -> (u64, u64) {
    let bound = limiter.bound().unwrap_or(8 * MS).clamp(100 * US, 8 * MS);
    let is_paced = matches!(limiter.phase(), Phase::Paced | Phase::Measuring | Phase::Probing);
    let latency = if is_paced { 8 * MS } else { bound };
    ((100 * latency / needs).min(100), latency)
}

/// Requests stand in line, and reads with them, until the limiter comes to this phase.
fn stand_in_line(world: &mut World, phase: Phase, needs: u64) {
    while world.limiter.phase() != phase {
        let (writes, latency) = in_line(&world.limiter, needs);
        world.pass(Moment { writes, latency, read: Some(latency), in_flight: None });
    }
}

/// A reader reads now and then, ten times a second on average. Red if a limiter that searches a bound gives up because
/// a single measurement has no read.
#[test]
fn a_bound_is_found_for_a_reader_that_reads_seldom() {
    for seed in 1..6 {
        let (mut world, mut random, mut bounded) = (World::default(), Random(seed), 0);
        for _ in 0..300_000 {
            let (writes, latency) = in_line(&world.limiter, MS);
            let read = (random.below(100) == 0).then_some(latency);
            world.pass(Moment { writes, latency, read, in_flight: None });
            bounded += u32::from(world.limiter.phase() == Phase::Bounded);
        }
        assert!(bounded > 270_000, "seed {seed}: bounded for {bounded} ms of five minutes");
    }
}

/// Red if a bound that holds nothing back any more stays in force, because the device has more than a paced one would.
#[test]
fn a_bound_that_holds_nothing_back_ends() {
    let mut world = World::default();
    stand_in_line(&mut world, Phase::Bounded, 2 * MS);
    for _ in 0..10_002 {
        world.is_free = true;
        world.pass(Moment { writes: 100, latency: MS, read: Some(MS), in_flight: Some(MS) });
    }
    assert_eq!(world.limiter.phase(), Phase::Open);
}

/// The clients stop while the ceiling is measured, and are back after a minute. Red if the minute is taken for time in
/// which the device did all it could: each request would be taken to cost many times what it does.
#[test]
fn a_pause_tells_nothing_of_the_ceiling() {
    let mut world = World::paced();
    let busy = Moment { writes: 100, latency: 100 * US, read: Some(100 * US), in_flight: Some(50 * MS) };
    while world.limiter.phase() != Phase::Measuring {
        world.pass(busy);
    }
    (0..100).for_each(|_| world.pass(busy));
    assert_eq!(world.limiter.phase(), Phase::Measuring);
    world.now = world.now.after(60_000 * MS);
    while world.limiter.phase() == Phase::Measuring {
        world.pass(busy);
    }
    let found = world.limiter.ceiling(Op::Write, 8).expect("it was measured");
    assert!((90_000..110_000).contains(&found), "100,000 writes a second are taken for {found}");
}

/// Red if a bound that is found after searches in vain stays for as long as the limiter rests after these, although the
/// device does more with a larger one.
#[test]
fn a_bound_widens_soon_after_searches_in_vain() {
    let mut world = World::default();
    while world.now < Time(2_000_000 * MS) {
        world.pass(Moment { writes: 100, latency: 2 * MS, read: Some(5 * MS), in_flight: None });
    }
    stand_in_line(&mut world, Phase::Bounded, MS);
    let (found, first) = (world.now, world.limiter.bound().expect("a bound is in force"));
    while world.limiter.phase() != Phase::Widening {
        assert!(world.now.since(found) < 30_000 * MS, "{:?}", world.limiter);
        let times = (world.limiter.bound().unwrap_or(u64::MAX) / first).clamp(1, 4);
        world.pass(Moment { writes: 40 * times, latency: 400 * US, read: None, in_flight: None });
    }
}
