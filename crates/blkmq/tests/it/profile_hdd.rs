//! The default profile of the model `hdd` against published numbers of its disk, from the kernel test robot:
//! linux-block 202401312320.a335db14-oliver.sang@intel.com. See `driver::hdd::Config` for the arithmetic.

use crate::device::Random;
use crate::jobs::Rig;
use blkmq::{Bio, Op};

const SECOND: u64 = 1_000_000_000;

/// Milliseconds that the disk takes for a write of this size, when the cache has filled.
fn service(seed: usize, bytes: u64) -> f64 {
    let mut rig = Rig::new(&format!("hdd,seed={seed}"), "none");
    rig.sequential_writers(1, bytes);
    rig.run(SECOND);
    rig.run(5 * SECOND);
    5000.0 / rig.completed() as f64
}

#[test]
fn the_service_time_goes_through_both_published_points() {
    let (mut large, mut small) = (Vec::new(), Vec::new());
    for seed in 0..4 {
        large.push(service(seed, 81 * 1024) / 0.856);
        small.push(service(seed, 7680) / 0.294);
        println!("seed {seed}: 81 KiB {:.3}, 7.5 KiB {:.3} of the published time", large[seed], small[seed]);
    }
    for ratios in [large, small] {
        // The seed decides at which angles areas begin, and must not change the speed.
        assert!(ratios.iter().all(|ratio| (0.9..1.1).contains(ratio)), "{ratios:?}");
        let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
        assert!((0.96..1.04).contains(&mean), "{ratios:?}");
    }
}

#[test]
fn merge_64x32_under_mq_deadline_is_the_robots_disk() {
    let mut rig = Rig::new("hdd", "mq-deadline");
    rig.sequential_writers(32, 4096);
    rig.run(SECOND);
    let before = rig.q.counters();
    rig.run(5 * SECOND);
    let after = rig.q.counters();
    let requests = after.issued - before.issued;
    let merges = after.merges_plug + after.merges_insert - before.merges_plug - before.merges_insert;
    let bios = requests + merges;
    let iops = rig.completed() / 5;
    let (merged, kib) = (merges as f64 / bios as f64, bios as f64 * 4.0 / requests as f64);
    println!("{iops} IOPS, {:.1} % merged, {kib:.1} KiB a request", 100.0 * merged);
    assert!(merged >= 0.95, "{merged}");
    assert!((80.0..=128.0).contains(&kib), "{kib}");
    assert!((20_000..=27_000).contains(&iops), "{iops}");
}

/// Red if the model is not as fast as the data sheets of such disks say: 70 to 90 random reads of 4 KiB a second one by
/// one, about twice as many with 32 outstanding, and the full transfer rate for a single sequential reader.
#[test]
fn reads_are_as_fast_as_those_of_such_disks() {
    let reads = |iodepth, is_random: bool| {
        let mut rig = Rig::new("hdd", "none");
        let (mut random, blocks, mut last) = (Random(1), rig.q.limits().capacity_sectors / 8, 0);
        rig.job(iodepth, 4096, move |buffer| {
            last = if is_random { random.below(blocks) } else { last + 1 };
            Bio::new(Op::Read, last * 8, 8, buffer.into())
        });
        rig.run(SECOND);
        rig.run(10 * SECOND);
        rig.completed() / 10
    };
    let (one, many, sequential) = (reads(1, true), reads(32, true), reads(1, false));
    println!("random: {one} IOPS, at depth 32 {many} IOPS; sequential: {} MB/s", sequential * 4096 / 1_000_000);
    assert!((70..=90).contains(&one), "{one}");
    assert!((150..=300).contains(&many), "{many}");
    assert!((125..=134).contains(&(sequential * 4096 / 1_000_000)), "{sequential}");
}
