//! Shares cost the device nothing.

use super::load::{Plan, Work, run};

/// One of weight 1000 that has one operation outstanding cannot use its share, whatever is held back for it.
///
/// Red if others wait for a client that has one operation outstanding.
#[test]
fn a_heavy_client_that_asks_for_little_does_not_hold_the_device_back() {
    let null = "null,irqmode=2,completion_nsec=100us,hw_queue_depth=8,poll_queues=0";
    for (device, work) in [("ssd", Work::READ), ("ssd", Work::WRITE), ("cloud", Work::READ), (null, Work::READ)] {
        let plans = [
            Plan { weight: 1000, work: work.clone(), ..Plan::new("heavy", 1) },
            Plan { work: work.clone(), ..Plan::new("light", 32) },
        ];
        let [none, fair] = ["none", "fair"].map(|scheduler| run(device, scheduler, &plans, &[], 800));
        for at in [0..800, 400..800] {
            let kept = fair.total(at.clone()) / none.total(at.clone());
            println!("{device} {work:?} {at:?}: {kept:.3}");
            assert!(kept >= 0.97, "{device}, {work:?}: {kept:.3} of what the device does without a scheduler");
        }
    }
}
