//! Whatever a guest writes into its memory, the device takes no more than the ring has, and touches nothing that is not
//! the guest's.
#![no_main]

mod reach;

use blkmq_vhost_user::hostile::{Found, chains};
use libfuzzer_sys::fuzz_target;
use reach::Reached;

fn run(bytes: &[u8], reached: &mut Reached) {
    let Found { right, full, ranges, wrong, .. } = chains(bytes);
    for (what, times) in [("requests", right), ("with data", full), ("ranges", ranges), ("faults", wrong)] {
        reached.add(what, times);
    }
}

/// What the seeds reach at least.
const LEAST: &[(&str, u64)] = &[("requests", 7), ("with data", 5), ("ranges", 2), ("faults", 4)];

fuzz_target!(init: reach::seeds("chains", LEAST, run), |bytes: &[u8]| run(bytes, &mut Reached::default()));
