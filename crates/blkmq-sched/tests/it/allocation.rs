//! Within what was reserved, a scheduler allocates nothing.

use crate::bench::{MS, ROOMY, client, in_class};
use crate::counting::allocations;
use blkmq_sched::{
    Class, ClientId, ClientSettings, Feedback, FeedbackKind, Info, InsertAt, Op, RqId, SCHEDULERS, Scheduler, Setting,
    Tally, Time, Usage, scheduler,
};

/// Red if `reserve` does not allocate all the room.
#[test]
fn nothing_is_allocated_between_insertion_and_dispatch() {
    SCHEDULERS.iter().for_each(|description| allocates_nothing(scheduler(description.name).unwrap()));
}

fn allocates_nothing(mut scheduler: Box<dyn Scheduler>) {
    scheduler.reserve(256);
    scheduler.configure(Setting::MergeLimits(ROOMY));
    let wants_usage = scheduler.feedback() == FeedbackKind::Usage;
    (1..=8).for_each(|of| scheduler.join(client(of), &ClientSettings::default()));
    let usage = [1, 2, 2, 9].map(|of| Usage {
        client: client(of),
        operations: [100, 40, 10],
        sectors: [800, 400],
        outstanding: of as u32 % 2,
    });
    let mut tally = Tally::default();
    let before = allocations();
    assert_ne!(before, 0, "the allocator counts");
    for round in 0..100_u64 {
        for number in 0..256_u64 {
            let class = Class::ALL[(number % 3) as usize];
            let op = [Op::Read, Op::Write, Op::Discard][(number / 3 % 3) as usize];
            let sector = (number * 7919 + round) % 512 * 8;
            let of = if wants_usage { client(number as usize % 10) } else { ClientId::default() };
            let info = Info { op, ctx: number as u8, client: of, ..in_class(class, sector) };
            if number % 16 == 0 {
                scheduler.insert(RqId(number), &info, InsertAt::Head, Time(round));
            } else if scheduler.merge(&info).is_none() {
                scheduler.insert(RqId(number), &info, InsertAt::Sorted, Time(round));
            }
        }
        for class in 0..3 {
            while scheduler.dispatch(&mut (), Time(round)).is_some() {
                tally.completed[class] += 1;
            }
            // More completions than insertions, so that the next class may go.
            tally.completed[class] = u64::MAX / 2;
            scheduler.observe(Feedback::Sums(&tally));
        }
        if wants_usage {
            scheduler.observe(Feedback::Usage(&usage, Time(round * 20 * MS)));
        }
        assert_eq!(scheduler.len(), 0);
    }
    assert_eq!(allocations() - before, 0, "{}", scheduler.name());
}
