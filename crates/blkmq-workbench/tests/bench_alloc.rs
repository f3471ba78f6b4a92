//! A run allocates for its threads, and nothing for its operations.
#![expect(unsafe_code, reason = "counting allocations takes an allocator, and that trait is unsafe")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use blkmq_workbench::bench::{Bench, ClockKind, Control, Setup};
use blkmq_workbench::job::{BlockSize, ByDirection, Direction, Job, Operations, Order};

thread_local! {
    /// Of this thread only, which on virtual time is the one that runs the jobs.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is handed on unchanged to the system's allocator, which keeps the trait's promises. `realloc` and
// `alloc_zeroed` are the trait's own, which come by `alloc`.
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

/// What a run of so many operations allocates.
fn allocations(job: &Job, number_ios: u64) -> u64 {
    let job = Job { number_ios: Some(number_ios), ..job.clone() };
    let setup = Setup { clock: ClockKind::Virtual, ..Setup::new("null,irqmode=0,size=1G") };
    let mut bench = Bench::new(&[job], &setup).expect("the job fits the device");
    let before = ALLOCATIONS.get();
    let outcome = bench.run(&Control::default()).expect("the job runs");
    assert_eq!(outcome.ios(), number_ios);
    ALLOCATIONS.get() - before
}

#[test]
fn operations_allocate_nothing() {
    let base = Job { iodepth: 32, iodepth_low: 32, order: Order::Random { every: 1 }, ..Job::new("counted") };
    let jobs = [
        Job { norandommap: true, ..base.clone() },
        Job { operations: Operations::Only(Direction::Write), iodepth_batch_submit: 8, ..base.clone() },
        Job { operations: Operations::ReadWrite { read_percent: 50 }, ..base.clone() },
        Job { bs: ByDirection::all(BlockSize::Range(4096..=65536)), ..base.clone() },
        Job { order: Order::Sequential { skip: 0 }, ..base },
    ];
    for job in jobs {
        // All there is to be had once: buffers, lists that grow, the histograms' first lines.
        let (some, many) = (allocations(&job, 2000), allocations(&job, 20_000));
        assert_eq!(some, many, "{job:?}");
    }
}
