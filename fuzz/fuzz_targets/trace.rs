//! Whatever can be read of any bytes as a trace can be replayed, with one choice for each issue.
#![no_main]

use blkmq_workbench::blktrace::{self, Action};
use blkmq_workbench::{Classes, Settings, order};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Err(error) = blktrace::read(bytes) {
        assert_eq!(error.to_string().lines().count(), 1);
    }
    let events = blktrace::merge(vec![blktrace::Records::new(bytes).map_while(Result::ok).collect()]);
    let settings = Settings::parse("queue.txt", "scheduler none [mq-deadline]\n").expect("these settings are right");
    let classes = Classes::parse("classes.txt", "0 4096 rt\n8192 65536 idle\n").expect("these classes are right");
    let agreement = order::replay(&events, &settings, &classes).expect("these settings are accepted");
    let issues = events.iter().filter(|event| event.action == Action::Issue).count();
    assert_eq!(agreement.choices.len(), issues);
});
