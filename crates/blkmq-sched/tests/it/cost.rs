//! How many slots an operation touches hardly grows with the number of waiting requests. A probe counts them; nothing
//! is timed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::bench::{ROOMY, read};
use blkmq_sched::{Access, InsertAt, MqDeadline, Probe, RqId, Scheduler, Setting, Time};

#[derive(Debug, Clone, Default)]
struct Count(Arc<AtomicU64>);

impl Probe for Count {
    fn access(&self, _slot: usize, _access: Access) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Count {
    fn of<R>(&self, operation: impl FnOnce() -> R) -> (u64, R) {
        let before = self.0.load(Ordering::Relaxed);
        let result = operation();
        (self.0.load(Ordering::Relaxed) - before, result)
    }
}

/// The most accesses of one insertion, one vain look-up and one dispatch while `waiting` requests wait.
fn most_accesses(waiting: u64) -> [u64; 3] {
    let count = Count::default();
    let mut scheduler = MqDeadline::new(count.clone());
    scheduler.reserve(waiting as usize + 1);
    scheduler.configure(Setting::MergeLimits(ROOMY));
    let mut most = [0; 3];
    for number in 0..waiting * 2 {
        // Ascending keys unbalance a tree. The requests are sixteen sectors apart, so that none touches another.
        let info = read(number * 16);
        let (merge, merged) = count.of(|| scheduler.merge(&info));
        assert_eq!(merged, None);
        let (insert, ()) = count.of(|| scheduler.insert(RqId(number), &info, InsertAt::Sorted, Time(number)));
        let dispatch = if number < waiting { 0 } else { count.of(|| scheduler.dispatch(&mut (), Time(number))).0 };
        for (most, now) in most.iter_mut().zip([insert, merge, dispatch]) {
            *most = now.max(*most);
        }
    }
    most
}

/// Red if `reserve` makes no hash buckets, if the tree never rotates, or if insertion walks the list of arrivals.
#[test]
fn sixty_four_times_as_many_waiting_requests_cost_less_than_twice_the_accesses() {
    let (few, many) = (most_accesses(64), most_accesses(4096));
    println!("most accesses of insert, merge, dispatch: {few:?} with 64 waiting, {many:?} with 4096");
    for (few, many) in few.into_iter().zip(many) {
        assert!(many < few * 2, "{few} became {many}");
    }
}
