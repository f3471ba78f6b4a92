//! Within what was reserved, a scheduler allocates nothing.
#![expect(unsafe_code, reason = "counting allocations takes an allocator, and that trait is unsafe")]

mod bench;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use bench::{ROOMY, in_class};
use blkmq_sched::{Class, InsertAt, RqId, Tally, Time, scheduler};

thread_local! {
    /// Of this thread only: the test harness allocates on its own.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is handed on unchanged to the system's allocator, which keeps the trait's promises.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the promises of this same method.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `alloc` above, hence from the system's allocator, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Red when the room is not reserved.
#[test]
fn nothing_is_allocated_between_insertion_and_dispatch() {
    let mut scheduler = scheduler("mq-deadline").unwrap();
    scheduler.reserve(256);
    scheduler.set_merge_limits(ROOMY);
    let mut tally = Tally::default();
    let before = ALLOCATIONS.get();
    assert_ne!(before, 0, "the allocator counts");
    for round in 0..100_u64 {
        for number in 0..256_u64 {
            let class = Class::ALL[(number % 3) as usize];
            let info = in_class(class, (number * 7919 + round) % 512 * 8);
            if number % 16 == 0 {
                scheduler.insert(RqId(number), &info, InsertAt::Head, Time(round));
            } else if scheduler.merge(&info).is_none() {
                scheduler.insert(RqId(number), &info, InsertAt::Sorted, Time(round));
            }
        }
        for class in 0..3 {
            while scheduler.dispatch(Time(round)).is_some() {
                tally.completed[class] += 1;
            }
            // More than ever came in, so that the next class may go.
            tally.completed[class] = u64::MAX / 2;
            scheduler.fold(&tally);
        }
        assert_eq!(scheduler.len(), 0);
    }
    assert_eq!(ALLOCATIONS.get() - before, 0);
}
