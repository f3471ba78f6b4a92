//! The scheduler and its knobs change while I/O runs.

mod common;

use common::control;
use common::queue;
use common::random::{Random, operations, seed};
use common::worker::Load;

/// As block/005 of blktests. Red if something is lost when the scheduler changes under load.
#[test]
fn switching_schedulers_under_load_loses_nothing() {
    let random = Random::new(seed());
    for device in ["submit_queues=1,hw_queue_depth=8", "submit_queues=4,hw_queue_depth=2,irqmode=2"] {
        let q = queue(&format!("null,memory_backed=1,discard=1,size=64M,{device}"), "none");
        let load = Load { changes: 500, ..Load::new(&q, operations(10_000)).with_data() };
        load.run(&random, 2, |q, random| {
            let name = if random.one_in(2) { "none" } else { "mq-deadline" };
            q.change_scheduler(name).unwrap().wait().unwrap();
        });
    }
}

#[test]
fn knobs_change_under_load() {
    let random = Random::new(seed());
    let q = queue("null,memory_backed=1,discard=1,size=64M,hw_queue_depth=4", "mq-deadline");
    Load::new(&q, operations(10_000)).with_data().run(&random, 2, |q, random| {
        control::set_knob(q, random);
        let level = random.below(3).to_string();
        q.set_knob("nomerges", &level).unwrap();
    });
}
