//! Whatever can be read of any bytes as a trace can be replayed under each scheduler: one choice for each issue, or a
//! refusal of a knob's value. And played through a queue each operation is done or refused.
#![no_main]

#[macro_use]
mod reach;

use std::sync::atomic::AtomicBool;

use blkmq::driver::spec;
use blkmq::{Clock, RequestQueue, VirtualClock};
use blkmq_workbench::blktrace::{self, Action};
use blkmq_workbench::order::Finding;
use blkmq_workbench::{Classes, Load, Settings, Speed, order, play};
use reach::Reached;

fn run(bytes: &[u8], reached: &mut Reached) {
    if let Err(error) = blktrace::read(bytes) {
        assert_eq!(error.to_string().lines().count(), 1);
    }
    let mut events: Vec<_> = blktrace::Records::new(bytes).map_while(Result::ok).collect();
    events.sort_by_key(|event| (event.time, event.sequence));
    let classes = Classes::parse("classes.txt", "0 4096 rt\n8192 65536 idle\n").expect("these classes are right");
    let issues = events.iter().filter(|event| event.action == Action::Issue).count();
    let names = blkmq::sched::SCHEDULERS.iter().map(|known| known.name);
    for name in names.filter(|name| blkmq::sched::replay(name).is_some()) {
        let knobs = if name == "kyber" { "read_lat_nsec 1000\n" } else { "" };
        let settings = format!("scheduler none [{name}]\n{knobs}");
        let settings = Settings::parse("queue.txt", &settings).expect("these settings are right");
        let findings = order::replay(events.iter().cloned().map(Ok), &settings, &classes);
        let findings = findings.expect("each knob has a value that it takes");
        let choices = findings.filter(|finding| !matches!(finding, Ok(Finding::Adjustment(_))));
        match choices.collect::<Result<Vec<_>, _>>() {
            Ok(choices) => assert_eq!(choices.len(), issues),
            // A text in the trace sets a knob to a value that it does not take.
            Err(error) => assert!(error.to_string().starts_with("the trace at "), "{error}"),
        }
    }

    let driver = spec::open("null,irqmode=2,completion_nsec=1ms,hw_queue_depth=2").expect("this device is right");
    let q = RequestQueue::builder(driver).clock(Clock::Virtual(VirtualClock::new())).build().expect("so is its queue");
    let load = Load::read(events.iter().cloned().map(Ok), &classes).expect("the temporary file takes it");
    let outcome =
        play(&load, &q, Speed::Scaled(1.0), &AtomicBool::new(false), &mut |_| ()).expect("the queue is empty");
    let refused: u64 = outcome.refused.iter().map(|(_, n)| n).sum();
    assert_eq!(outcome.completed + refused, load.nr_operations);
    reached.add("events", events.len());
    reached.add("choices", issues);
    reached.add("operations completed", outcome.completed as usize);
}

target!("trace", run, [("events", 50), ("choices", 10), ("operations completed", 10)], &[u8]);
