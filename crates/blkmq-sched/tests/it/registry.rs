//! What the registry says of a scheduler holds.

use blkmq_sched::{
    Class, ClientSettings, Feedback, FeedbackKind, GroupId, Info, InsertAt, IoPriority, Op, Priorities, RqId,
    SCHEDULERS, Scheduler, Time, scheduler,
};

use crate::bench::{MS, client, completed, lone};

/// How many requests of two clients wait all the time.
const WAITING: u64 = 8;

fn settings(weight: u16) -> ClientSettings {
    ClientSettings { weight, group: GroupId::ROOT, ..ClientSettings::default() }
}

/// What part of 1000 requests the second client gets, if both have requests waiting all the time and the device takes
/// one at a time.
fn share_of_second(scheduler: &mut dyn Scheduler, weights: [u16; 2], priorities: [IoPriority; 2]) -> f64 {
    scheduler.reserve(2 * WAITING as usize);
    for (of, weight) in weights.into_iter().enumerate() {
        scheduler.join(client(of + 1), &settings(weight));
    }
    if scheduler.knob("low_latency").is_some() {
        scheduler.set_knob("low_latency", 0).expect("the knob is there");
    }
    // The sectors that a client reads are those of its own half of the device, in sequence.
    let request = |of: usize, number: u64| Info {
        priority: priorities[of],
        ..lone(client(of + 1), ((of as u64) << 30) | (number * 8), Op::Read)
    };
    let mut next = [0; 2];
    let insert = |scheduler: &mut dyn Scheduler, next: &mut [u64; 2], of: usize, now: Time| {
        scheduler.insert(RqId(next[of] * 2 + of as u64), &request(of, next[of]), InsertAt::Sorted, now);
        next[of] += 1;
    };
    for _ in 0..WAITING {
        (0..2).for_each(|of| insert(scheduler, &mut next, of, Time(0)));
    }
    let mut got = [0_u32; 2];
    for number in 1..=1000 {
        let (mut ticket, now) = (None, Time(number * MS));
        let RqId(id) = scheduler.dispatch(&mut ticket, now).expect("both have requests");
        let of = (id % 2) as usize;
        got[of] += 1;
        insert(scheduler, &mut next, of, now);
        if scheduler.feedback() == FeedbackKind::Events {
            let over = now.after(MS / 2);
            scheduler.observe(Feedback::Events(&[completed(ticket, &request(of, id / 2), over)], over));
        }
    }
    f64::from(got[1]) / 1000.0
}

/// Red if a scheduler claims strict classes and dispatches a lower one while the driver has a request of a higher one.
#[test]
fn a_scheduler_that_claims_strict_classes_keeps_them() {
    for known in SCHEDULERS.iter().filter(|known| known.has_strict_classes) {
        let mut value = scheduler(known.name).expect("it is described");
        value.reserve(2);
        let request =
            |class, sector| Info { priority: IoPriority { class, level: 0 }, ..lone(client(1), sector, Op::Read) };
        value.insert(RqId(1), &request(Class::RealTime, 0), InsertAt::Sorted, Time(0));
        let mut ticket = None;
        assert_eq!(value.dispatch(&mut ticket, Time(0)), Some(RqId(1)), "{}", known.name);
        value.insert(RqId(2), &request(Class::Idle, 800), InsertAt::Sorted, Time(0));
        assert_eq!(value.dispatch(&mut ticket, Time(1)), None, "{}: the driver has a real-time request", known.name);
    }
}

/// Red if a scheduler is added that goes by weights and does not say so, or says so and does not.
#[test]
fn a_scheduler_shares_by_weight_if_it_says_so() {
    for known in SCHEDULERS {
        let mut of_one = scheduler(known.name).expect("it is described");
        let like = [IoPriority::default(); 2];
        let share = share_of_second(&mut *of_one, [100, 300], like);
        assert_eq!((0.70..0.80).contains(&share), known.shares_by_weight, "{}: {share}", known.name);
    }
}

/// Red if a scheduler is added that goes by the class or the level of priority and does not say so, or says so and does
/// not.
#[test]
fn a_scheduler_goes_by_priorities_as_it_says() {
    let of = |class, level| IoPriority { class, level };
    for known in SCHEDULERS {
        let gain = |one, other| {
            let share = |priorities| {
                let mut new = scheduler(known.name).expect("it is described");
                share_of_second(&mut *new, [100; 2], priorities)
            };
            share([one, other]) - share([one; 2])
        };
        let by_class = gain(of(Class::Idle, 7), of(Class::RealTime, 7));
        let by_level = gain(of(Class::BestEffort, 7), of(Class::BestEffort, 0));
        let is = match (by_class > 0.2, by_level > 0.2) {
            (false, _) => Priorities::Ignored,
            (true, false) => Priorities::Class,
            (true, true) => Priorities::ClassAndLevel,
        };
        assert_eq!(is, known.priorities, "{}: {by_class} by class, {by_level} by level", known.name);
    }
}
