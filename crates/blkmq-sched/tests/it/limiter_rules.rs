//! What holds of a limiter whatever it is told.

use crate::world::{FULL, MS, Moment, QUICK, US, World};
use blkmq_sched::limiter::{Flow, Limiter, Phase, Progress, Target};
use blkmq_sched::{Fairness, Op, Time};
use proptest::prelude::*;

const SECOND: u64 = 1000 * MS;

/// The longest that [`Limiter::opens_at`] lets a request wait.
const LONGEST: u64 = 100 * MS;

fn any_number() -> impl Strategy<Value = u64> {
    prop_oneof![0..10_u64, 0..10_000_u64, 0..100_000_000_u64, any::<u64>()]
}

prop_compose! {
    fn any_flow()(
            requests in any_number(),
            sectors in any_number(),
            in_device in any_number(),
        ) -> Flow {
        Flow { requests, sectors, in_device }
    }
}

prop_compose! {
    fn any_progress()(
        reads in any_flow(),
        others in any_flow(),
        reads_under_way in any_number(),
        least_read in prop::option::of(any_number()),
        in_flight in any_number(),
        held_back in any::<bool>(),
    ) -> Progress {
        Progress { reads, others, reads_under_way, least_read, in_flight, held_back, fairness: Fairness::Unknown }
    }
}

fn any_target() -> impl Strategy<Value = Target> {
    prop_oneof![Just(Target::Off), Just(Target::Auto), any_number().prop_map(Target::Within)]
}

/// Red if a limiter holds back before reads have been slow for some time, does not hold back then, or does not open
/// when nothing has been held back for long.
#[test]
fn a_limiter_shuts_when_reads_are_slow_and_opens_when_it_is_not_used() {
    let mut world = World::default();
    world.run(QUICK, 2000);
    assert!(
        world.limiter.is_open() && world.limiter.bound().is_none() && world.limiter.ceiling(Op::Write, 8).is_none()
    );
    assert_eq!(world.limiter.slice(), None);
    world.run(FULL, 250);
    assert!(world.limiter.is_open());
    world.run(FULL, 52);
    assert_eq!(world.limiter.phase(), Phase::Paced);
    let found = world.limiter.ceiling(Op::Write, 8).expect("it was measured");
    assert!((98_000..102_000).contains(&found), "{found}");
    // Five writes in the 50 us of the fastest read.
    assert_eq!(world.limiter.slice(), Some(40));
    world.run(QUICK, 2000);
    assert!(!world.limiter.is_open() && world.limiter.is_met() == Some(true), "{:?}", world.limiter);
    world.progress.held_back = false;
    for _ in 0..12 {
        world.now = world.now.after(SECOND);
        world.progress.in_flight = 0;
        world.limiter.fold(&world.progress, world.now);
    }
    assert!(world.limiter.is_open());
}

/// Red if pacing goes on that does nothing for reads, or if the limiter tries that again and again.
#[test]
fn a_limiter_that_does_not_help_opens_and_rests() {
    let mut world = World::default();
    let slow = Moment { read: Some(5 * MS), latency: 100 * US, ..FULL };
    world.run(slow, 10_000);
    assert!(world.limiter.is_open());
    let mut shut = 0;
    for _ in 0..1000 {
        world.run(slow, 200);
        shut += u32::from(!world.limiter.is_open());
    }
    assert!((1..50).contains(&shut), "{shut} of 1000");
}

/// Red if what was held back before a pause keeps a limiter shut after it, or if a rest stays long that grew with
/// searches in vain, although pacing has helped since.
#[test]
fn what_was_before_a_pause_is_over() {
    let mut world = World::default();
    let slow = Moment { read: Some(5 * MS), latency: 100 * US, ..FULL };
    world.run(slow, 600_000);
    while world.limiter.phase() != Phase::Paced {
        world.run(FULL, 10);
    }
    world.run(QUICK, 2000);
    assert!(!world.limiter.is_open() && world.progress.held_back);
    world.now = world.now.after(20 * SECOND);
    world.run(QUICK, 1);
    assert!(world.limiter.is_open(), "nothing has been held back for 20 s");
    let mut shut = Vec::new();
    for second in 0..120 {
        world.run(slow, 1000);
        shut.extend((!world.limiter.is_open()).then_some(second));
    }
    let again = shut.windows(2).find(|pair| pair[1] > pair[0] + 1);
    assert!(again.is_some_and(|pair| pair[1] - pair[0] < 90), "it is tried again after a short rest: {shut:?}");
}

/// Red if a limiter begins anew, without a rest, each time that pacing has helped for a moment.
#[test]
fn a_limiter_that_helps_for_moments_only_rests() {
    let mut world = World::default();
    let slow = Moment { read: Some(5 * MS), latency: 100 * US, ..FULL };
    let (mut begun, end) = (0, world.now.after(100 * SECOND));
    while world.now < end {
        if world.limiter.phase() == Phase::Paced {
            begun += 1;
            world.run(QUICK, 1000);
            while matches!(world.limiter.phase(), Phase::Paced | Phase::Probing | Phase::Measuring) {
                world.run(slow, 10);
            }
        }
        world.run(slow, 10);
    }
    assert!((1..=10).contains(&begun), "{begun} times in 100 s");
}

/// Red if the search begins at what the device had while the limiter was open: a scheduler that waits for single
/// clients then, and does not while the limiter holds back, lets it have little. The bound that is tried first would
/// be too small.
#[test]
fn a_search_begins_at_what_the_device_takes() {
    let mut world = World::default();
    let idled = Moment { read: Some(5 * MS), latency: 40 * US, ..FULL };
    while world.limiter.phase() != Phase::Narrowing {
        world.run(idled, 10);
    }
    // 100 writes in each millisecond, each for 2 ms, and 5 reads: 205 requests, about 2 ms of work. 2 ms / 16 is
    // tried.
    let busy = Moment { read: Some(5 * MS), ..FULL };
    while world.limiter.bound().is_none() {
        world.run(busy, 10);
    }
    assert_eq!(world.limiter.phase(), Phase::Narrowing);
    let bound = world.limiter.bound().unwrap_or_default();
    assert!((110 * US..140 * US).contains(&bound), "{bound}");
}

/// Red if a request that costs much is waited behind for longer than the limiter says, or a rate is not kept.
#[test]
fn requests_are_as_far_apart_as_they_cost() {
    let mut world = World::default();
    world.run(FULL, 302);
    assert_eq!(world.limiter.phase(), Phase::Paced);
    let cost = world.limiter.cost(Op::Write, 8);
    let (mut at, mut went) = (world.now.after(SECOND), 0);
    let end = at.after(100 * MS);
    while at < end {
        assert!(world.limiter.opens_at(at).is_none());
        world.limiter.sent(cost, at);
        went += 1;
        at = world.limiter.opens_at(at).unwrap_or(at);
    }
    assert!((9_900..10_200).contains(&went), "{went} in a tenth of a second");
    world.limiter.sent(u32::MAX, at);
    assert!(world.limiter.opens_at(at).is_some_and(|opens| opens.since(at) <= LONGEST));
}

#[test]
fn a_target_is_linux_s_number() {
    let targets = [0, -1, 2000, i64::MAX, i64::MIN].map(Target::from_usec);
    let most = Target::Within((i64::MAX as u64).saturating_mul(1000));
    assert_eq!(targets, [Target::Off, Target::Auto, Target::Within(2 * MS), most, Target::Auto]);
}

proptest! {
    /// Red if a number makes a limiter panic, stall or hold back without a target, or if two that are told the same
    /// differ. A bound of zero, or one that nothing may exceed, would be a stall.
    #[test]
    fn nothing_stalls_whatever_is_told(
        target in any_target(),
        told in prop::collection::vec((any_progress(), any_number(), any::<u32>()), 1..100),
    ) {
        let (mut limiter, mut twin) = (Limiter::new(target), Limiter::new(target));
        let mut now = Time(0);
        for (progress, step, cost) in &told {
            // Now and then a clock is late.
            now = if step % 7 == 0 { now.before(*step % SECOND) } else { now.after(*step % (20 * SECOND)) };
            limiter.fold(progress, now);
            twin.fold(progress, now);
            limiter.sent(*cost, now);
            twin.sent(*cost, now);
            prop_assert!(limiter.has_room(0, *cost));
            prop_assert!(limiter.bound().is_none_or(|bound| bound >= 1));
            if limiter.has_room(progress.in_flight, *cost) && progress.in_flight > 0 {
                let after = progress.in_flight.saturating_add(u64::from(*cost));
                prop_assert!(limiter.bound().is_none_or(|bound| after <= bound));
            }
            prop_assert!(limiter.opens_at(now).is_none_or(|opens| opens > now && opens.since(now) <= LONGEST));
            prop_assert_eq!(limiter.next_look().is_none(), target == Target::Off);
            prop_assert!(limiter.slice().is_none_or(|sectors| sectors >= 8));
            if limiter.is_open() {
                prop_assert!(limiter.bound().is_none() && limiter.opens_at(now).is_none() && limiter.slice().is_none());
            }
            if target == Target::Off {
                prop_assert!(limiter.is_open());
            }
            for op in [Op::Read, Op::Write] {
                prop_assert!((1..=limiter.cost(op, 256)).contains(&limiter.cost(op, 8)));
            }
            prop_assert_eq!(format!("{limiter:?}"), format!("{twin:?}"));
        }
        let mut text = String::new();
        prop_assert!(limiter.show(&mut text).is_ok() && text.starts_with("state: "));
    }
}
