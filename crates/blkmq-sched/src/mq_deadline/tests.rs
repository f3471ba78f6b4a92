//! How many slots an operation looks at hardly grows with the number of waiting requests. Looks are counted; nothing is
//! timed.

use super::MqDeadline;
use crate::slab::LOOKS;
use crate::{Info, InsertAt, MergeLevel, MergeLimits, RqId, Scheduler, Setting, Time};

fn read(sector: u64) -> Info {
    Info { sector, nr_sectors: 8, nr_segments: 1, sync: true, merge: MergeLevel::Full, ..Info::default() }
}

fn looks_of<R>(operation: impl FnOnce() -> R) -> (u64, R) {
    let before = LOOKS.get();
    let result = operation();
    (LOOKS.get() - before, result)
}

/// The most looks of one insertion, one vain look-up and one dispatch while `waiting` requests wait.
fn most_looks(waiting: u64) -> [u64; 3] {
    let mut scheduler = MqDeadline::new();
    scheduler.reserve(waiting as usize + 1);
    scheduler.configure(Setting::MergeLimits(MergeLimits {
        max_sectors: 2560,
        max_segments: 128,
        ..Default::default()
    }));
    let mut most = [0; 3];
    for number in 0..waiting * 2 {
        // Ascending keys unbalance a tree. The requests are sixteen sectors apart, so that none touches another.
        let info = read(number * 16);
        let (merge, merged) = looks_of(|| scheduler.merge(&info));
        assert_eq!(merged, None);
        let (insert, ()) = looks_of(|| scheduler.insert(RqId(number), &info, InsertAt::Sorted, Time(number)));
        let dispatch = if number < waiting { 0 } else { looks_of(|| scheduler.dispatch(&mut (), Time(number))).0 };
        for (most, now) in most.iter_mut().zip([insert, merge, dispatch]) {
            *most = now.max(*most);
        }
    }
    most
}

/// Red if `reserve` makes no hash buckets, if the tree never rotates, or if insertion walks the list of arrivals.
#[test]
fn sixty_four_times_as_many_waiting_requests_cost_less_than_twice_the_looks() {
    let (few, many) = (most_looks(64), most_looks(4096));
    std::println!("most looks of insert, merge, dispatch: {few:?} with 64 waiting, {many:?} with 4096");
    for (few, many) in few.into_iter().zip(many) {
        assert!(many < few * 2, "{few} became {many}");
    }
}
