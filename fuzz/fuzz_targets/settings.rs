//! Any text is refused or applied as the settings of a recording, as a changed setting, and as classes.
#![no_main]

#[macro_use]
mod reach;

use blkmq_workbench::{Classes, Settings, order};
use reach::Reached;

fn run(text: &str, reached: &mut Reached) {
    reached.add("classes", usize::from(Classes::parse("classes.txt", text).is_ok()));
    let changed = Settings::parse("queue.txt", "scheduler none [mq-deadline]\n").and_then(|mut settings| {
        settings.set(text)?;
        Ok(settings)
    });
    for settings in [Settings::parse("queue.txt", text), changed].into_iter().flatten() {
        reached.add("settings", 1);
        reached.add("replays", usize::from(order::replay(std::iter::empty(), &settings, &Classes::default()).is_ok()));
    }
}

target!("settings", run, [("classes", 2), ("settings", 4), ("replays", 3)], &str);
