//! Any text is refused or applied as the settings of a recording, as a changed setting, and as classes.
#![no_main]

use blkmq_workbench::{Classes, Settings, order};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = Classes::parse("classes.txt", text);
    let changed = Settings::parse("queue.txt", "scheduler none [mq-deadline]\n").and_then(|mut settings| {
        settings.set(text)?;
        Ok(settings)
    });
    for settings in [Settings::parse("queue.txt", text), changed].into_iter().flatten() {
        let _ = order::replay(&[], &settings, &Classes::default());
    }
});
