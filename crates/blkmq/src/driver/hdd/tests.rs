//! The hard disk as a driver, without the block layer.

use blkmq_sched::{RqId, Time};
use proptest::prelude::*;

use super::drive::{Command, CommandKind, Drive};
use super::{Config, Hdd};
use crate::driver::Driver;
use crate::driver::harness::Harness;
use crate::driver::pending::Commands;
use crate::driver::tests::random_cases;
use crate::request::Status;
use crate::request::bio::{Bio, Flags};
use crate::request::buffer::Buffer;

const MS: u64 = 1_000_000;
const FUA: Flags = Flags { fua: true, ..Flags::NONE };

fn hdd(parameters: &str) -> Hdd {
    Hdd::new(parameters.parse::<Config>().unwrap())
}

fn write(sector: u64) -> Bio {
    Bio::write(sector, Buffer::zeroed(4096)).with_user_data(sector)
}

fn read(sector: u64) -> Bio {
    Bio::read(sector, Buffer::zeroed(4096)).with_user_data(sector)
}

/// Lets the disk run from `now` until nothing happens any more. Returns which bio was over when.
fn run(hdd: &Hdd, queue: &mut Harness<'_>, now: Time) -> Vec<(u64, Time)> {
    let mut over = Vec::new();
    queue.issue(now);
    while let Some(at) = hdd.next_event(0).time() {
        over.extend(queue.poll(at).into_iter().map(|(bio, status)| {
            assert!(status.is_ok());
            (bio.user_data, at)
        }));
    }
    over
}

#[test]
fn a_write_is_over_when_it_is_in_the_cache_if_there_is_one() {
    for (parameters, flags, range) in [
        ("", Flags::NONE, 10_000..30_000),
        ("", FUA, MS..30 * MS),
        ("fua=0", FUA, 10_000..30_000),
        ("write_cache=0", Flags::NONE, MS..30 * MS),
    ] {
        let hdd = hdd(parameters);
        let mut queue = Harness::new(&hdd, 0);
        queue.push(write(1 << 30).with_flags(flags));
        let over = run(&hdd, &mut queue, Time(0));
        assert!(over.len() == 1 && range.contains(&over[0].1.0), "{parameters} {flags:?}: {over:?}");
    }
}

#[test]
fn a_flush_waits_for_all_before_it_and_nothing_behind_it_is_cached_before() {
    let hdd = hdd("");
    let mut queue = Harness::new(&hdd, 0);
    (0..8).for_each(|number| queue.push(write(number << 26)));
    queue.push(Bio::flush().with_user_data(1));
    queue.push(write(2));
    let over = run(&hdd, &mut queue, Time(0));
    let (flush, cached): (Vec<_>, Vec<_>) = over.iter().partition(|(number, _)| *number == 1);
    assert_eq!(cached.len(), 9);
    assert!(cached[..8].iter().all(|(_, at)| at.0 < MS), "{over:?}");
    // Seven seeks over a sixteenth of the disk or so, and turns.
    assert!((7 * 3 * MS..200 * MS).contains(&flush[0].1.0), "{over:?}");
    assert!(cached[8].1 > flush[0].1, "{over:?}");
    // The cache is clean now, so the next flush has nothing to wait for.
    assert_eq!(hdd.pending.with(0, |drive| drive.load()).unwrap().0, 0);
    let now = Time(1000 * MS);
    queue.push(Bio::flush());
    assert_eq!(run(&hdd, &mut queue, now).len(), 1);
}

#[test]
fn the_nearest_command_is_first_and_none_waits_for_ever() {
    let hdd = hdd("write_cache=0");
    let mut queue = Harness::new(&hdd, 0);
    // The heads are busy with the first read, so the disk chooses among the others.
    [1, 1_900_000_000, 900_000_000, 8_000].into_iter().for_each(|sector| queue.push(read(sector)));
    let order: Vec<_> = run(&hdd, &mut queue, Time(0)).into_iter().map(|(sector, _)| sector).collect();
    assert_eq!(order, [1, 8_000, 900_000_000, 1_900_000_000]);
    // A read far away, and reads nearby without end: the read far away is overtaken a bounded number of times and no
    // more.
    (0..4).for_each(|number| queue.push(read(4096 * number)));
    queue.push(read(1_800_000_000));
    queue.issue(Time(1000 * MS));
    let mut overtook = 0;
    loop {
        let at = hdd.next_event(0).time().unwrap();
        let over = queue.poll(at);
        if over.iter().any(|(bio, _)| bio.user_data == 1_800_000_000) {
            break;
        }
        for (bio, _) in over {
            overtook += 1;
            assert!(overtook < 300, "the far read starves");
            queue.push(read((bio.user_data + 65_536) % (1 << 24)));
        }
        queue.issue(at);
    }
    assert!(overtook > 200, "{overtook}");
}

/// Red if the heads do not turn from reads to the cache for a flush, or from the cache to reads while writes wait for
/// room.
#[test]
fn neither_reads_nor_what_waits_for_the_cache_keep_the_heads_for_themselves() {
    let far = |number: u64| number * 7_919_000 % 1_900_000_000;
    for (parameters, awaited, others) in
        [("", Bio::flush().with_user_data(1), read as fn(u64) -> Bio), ("cache_segments=16", read(1), write)]
    {
        let hdd = hdd(parameters);
        let mut queue = Harness::new(&hdd, 0);
        let mut number = 0..;
        let mut next = || far(number.next().expect("there is no end"));
        (0..16).for_each(|_| queue.push(write(next())));
        (0..20).for_each(|_| queue.push(others(next())));
        queue.issue(Time(0));
        // The heads are busy when the command comes.
        let mut before = queue.poll(Time(MS)).len();
        queue.push(awaited);
        queue.issue(Time(MS));
        loop {
            let at = hdd.next_event(0).time().expect("the disk has something to do");
            let over = queue.poll(at);
            if over.iter().any(|(bio, _)| bio.user_data == 1) {
                break;
            }
            before += over.len();
            assert!(before < 400, "{parameters}: it starves");
            over.iter().for_each(|_| queue.push(others(next())));
            queue.issue(at);
        }
    }
}

#[test]
fn reads_are_answered_from_the_cache_and_from_what_was_read_ahead() {
    let hdd = hdd("");
    let mut queue = Harness::new(&hdd, 0);
    // The first write keeps the heads busy while the second stays in the cache.
    [1 << 30, 1 << 20].into_iter().for_each(|sector| queue.push(write(sector)));
    queue.issue(Time(0));
    queue.poll(Time(MS));
    queue.push(read(1 << 20));
    queue.issue(Time(MS));
    assert_eq!(queue.poll(Time(MS + 30_000)).len(), 1, "from the cache");
    let done = run(&hdd, &mut queue, Time(MS + 30_000));
    assert!(done.is_empty());
    let now = Time(1000 * MS);
    queue.push(read(500_000));
    let first = run(&hdd, &mut queue, now)[0].1;
    // Some 260 KB pass under the heads in 2 ms.
    let later = first.after(2 * MS);
    queue.push(read(500_008));
    queue.push(read(500_400));
    let over = run(&hdd, &mut queue, later);
    assert!(over.len() == 2 && over.iter().all(|(_, at)| at.since(later) < 50_000), "{over:?}");
    // The heads come soon to where they have not been yet.
    queue.push(read(500_696));
    let over = run(&hdd, &mut queue, later.after(50_000));
    assert!(over[0].1.since(later) < 2 * MS, "{over:?}");
}

/// Red if the disk tells a time of a command before the heads have chosen it, or does not keep to a time that it told.
#[test]
fn a_time_is_told_of_what_the_disk_has_begun_with() {
    let hdd = hdd("");
    let mut queue = Harness::new(&hdd, 0);
    [8_000_000, 4_000_000].into_iter().for_each(|sector| queue.push(read(sector)));
    queue.issue(Time(0));
    let (nr, chosen) = queue.due_times();
    assert_eq!((nr, chosen), (1, hdd.next_event(0).time()), "the heads do one thing at a time");
    // A write is on its way to the cache meanwhile.
    queue.push(write(0));
    queue.issue(Time(1));
    let (nr, cached) = queue.due_times();
    assert_eq!((nr, cached), (2, hdd.next_event(0).time()));
    assert!(queue.poll(cached.map_or(Time(0), |time| Time(time.0 - 1))).is_empty());
    for (due, left) in [(cached, 1), (chosen, 1)] {
        assert_eq!(queue.poll(due.expect("it was told")).len(), 1);
        assert_eq!(queue.due_times().0, left);
    }
}

/// Commands for the disk: for each, how much later it comes than the one before, what it asks for, and where.
fn commands() -> impl Strategy<Value = Vec<(u64, CommandKind, u64, u64)>> {
    let work = prop_oneof![
        4 => Just(CommandKind::Read),
        6 => Just(CommandKind::WriteCached),
        1 => Just(CommandKind::WriteThrough),
        1 => Just(CommandKind::Flush),
    ];
    let gap = prop_oneof![4 => Just(0), 4 => 0..100_000_u64, 2 => 0..20 * MS];
    let start = prop_oneof![3 => (0..64_u64).prop_map(|at| at * 8), 1 => 0..2_000_000_u64];
    prop::collection::vec((gap, work, start, 1..=64_u64), 1..120)
}

/// Gives the disk these commands, as long as fewer than 32 are with it, and looks at it `looks` times between two of
/// them. Returns which commands were over when; their ids are their numbers. Checks that no list grew.
fn play(commands: &[(u64, CommandKind, u64, u64)], looks: u64) -> Vec<(RqId, Time)> {
    let config = "hw_queue_depth=32,cache_segments=16,cache_size=1,max_sectors=64,size=1G,read_ahead=64K";
    let mut drive = Drive::from(&config.parse::<Config>().unwrap());
    let capacity = drive.capacity();
    let (mut now, mut over, mut with_it) = (Time(0), Vec::new(), 0);
    let mut finish = |drive: &mut Drive, with_it: &mut usize| {
        while let Some((at, Command { id, .. })) = drive.pop() {
            *with_it -= 1;
            over.push((id, at));
        }
    };
    for (id, &(gap, work, start, length)) in (0..).zip(commands) {
        for look in 1..=looks {
            drive.advance(now.after(gap * look / (looks + 1)));
            finish(&mut drive, &mut with_it);
        }
        now = now.after(gap);
        drive.advance(now);
        finish(&mut drive, &mut with_it);
        while with_it == 32 {
            now = drive.next_event().unwrap();
            drive.advance(now);
            finish(&mut drive, &mut with_it);
        }
        drive.submit(Command { id: RqId(id), status: Status::Ok, work, start, end: start + length });
        with_it += 1;
    }
    while let Some(at) = drive.next_event() {
        drive.advance(at);
        finish(&mut drive, &mut with_it);
    }
    assert_eq!((with_it, drive.load(), drive.capacity()), (0, (0, 0), capacity));
    over
}

proptest! {
    #![proptest_config(random_cases(256))]

    /// Each command is over exactly once, in the order of time, and at times that do not depend on how often the disk
    /// is looked at. Red if `advance` takes the time it is told for that of an event, or handles one event only.
    #[test]
    fn what_is_over_when_depends_on_what_was_asked_when_alone(commands in commands()) {
        let over = play(&commands, 0);
        let mut ids: Vec<_> = over.iter().map(|(id, _)| id.0).collect();
        prop_assert!(over.is_sorted_by_key(|(_, at)| *at));
        ids.sort_unstable();
        prop_assert_eq!(ids, (0..commands.len() as u64).collect::<Vec<_>>());
        prop_assert_eq!(&over, &play(&commands, 3));
    }
}
