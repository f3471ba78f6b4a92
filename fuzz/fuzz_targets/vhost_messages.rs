//! Whatever a front-end sends, each message is parsed or refused.
#![no_main]

mod reach;

use blkmq_vhost_user::hostile::{Found, messages};
use libfuzzer_sys::fuzz_target;
use reach::Reached;

fn run(bytes: &[u8], reached: &mut Reached) {
    let Found { right, full, ranges, wrong, .. } = messages(bytes);
    for (what, times) in [("messages", right), ("with files", full), ("regions", ranges), ("refused", wrong)] {
        reached.add(what, times);
    }
}

/// What the seeds reach at least.
const LEAST: &[(&str, u64)] = &[("messages", 25), ("with files", 6), ("regions", 3), ("refused", 4)];

fuzz_target!(init: reach::seeds("vhost_messages", LEAST, run), |bytes: &[u8]| run(bytes, &mut Reached::default()));
