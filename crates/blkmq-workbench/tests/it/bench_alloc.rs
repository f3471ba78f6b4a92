//! A run allocates for its threads, and nothing for its operations.

use crate::counting::allocations;
use blkmq_workbench::bench::{Bench, ClockKind, Control, Setup};
use blkmq_workbench::job::{BlockSize, ByDirection, Direction, Job, Operations, Order};

/// What a run of so many operations allocates.
fn allocated_in(job: &Job, number_ios: u64) -> u64 {
    let job = Job { number_ios: Some(number_ios), ..job.clone() };
    let setup = Setup { clock: ClockKind::Virtual, ..Setup::new("null,irqmode=0,size=1G") };
    let mut bench = Bench::new(&[job], &setup).expect("the job fits the device");
    let before = allocations();
    let outcome = bench.run(&Control::default()).expect("the job runs");
    assert_eq!(outcome.ios(), number_ios);
    allocations() - before
}

#[test]
fn operations_allocate_nothing() {
    let base = Job { iodepth: 32, iodepth_low: 32, order: Order::Random { every: 1 }, ..Job::new("counted") };
    // Parts of blocks, which are read, changed and written back.
    let odd = ByDirection::all(BlockSize::Fixed(2300));
    let jobs = [
        Job { norandommap: true, ..base.clone() },
        Job { operations: Operations::Only(Direction::Write), iodepth_batch_submit: 8, ..base.clone() },
        Job { operations: Operations::ReadWrite { read_percent: 50 }, ..base.clone() },
        Job { bs: ByDirection::all(BlockSize::Range(4096..=65536)), ..base.clone() },
        Job { order: Order::Sequential { skip: 0 }, ..base.clone() },
        Job { operations: Operations::ReadWrite { read_percent: 50 }, bs: odd.clone(), ..base.clone() },
        Job { operations: Operations::Only(Direction::Write), bs: odd, order: Order::Sequential { skip: 0 }, ..base },
    ];
    for job in jobs {
        // 2000 operations allocate all that is allocated once: buffers, lists that grow, the first lines of the
        // histograms.
        let (some, many) = (allocated_in(&job, 2000), allocated_in(&job, 20_000));
        assert_ne!(some, 0, "the allocator counts");
        assert_eq!(some, many, "{job:?}");
    }
}
