//! How far mq-deadline chooses as Linux's own did, on recordings of it.

use std::fs;
use std::path::PathBuf;

use blkmq_workbench::order::{self, Agreement};
use blkmq_workbench::{Classes, Settings, blktrace};

struct Recording {
    trace: Vec<u8>,
    queue: String,
    classes: Classes,
}

impl Recording {
    fn open(name: &str) -> Self {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/linux-6.12-mq-deadline").join(name);
        let classes = fs::read_to_string(folder.join("classes.txt")).unwrap_or_default();
        Self {
            trace: fs::read(folder.join("trace.blktrace.0")).unwrap(),
            queue: fs::read_to_string(folder.join("queue.txt")).unwrap(),
            classes: Classes::parse("classes.txt", &classes).unwrap(),
        }
    }

    fn replay(&self, changes: &[&str]) -> Agreement {
        let mut settings = Settings::parse("queue.txt", &self.queue).unwrap();
        for change in changes {
            settings.set(change).unwrap();
        }
        let events = blktrace::merge(vec![blktrace::read(&self.trace).unwrap()]);
        order::replay(&events, &settings, &self.classes).unwrap()
    }
}

#[test]
fn recorded_choices_are_ours_too() {
    for (name, mark) in [("mixed", 99.5), ("expiry", 99.5), ("depth4", 99.5), ("merge", 99.5), ("prio", 96.0)] {
        let agreement = Recording::open(name).replay(&[]);
        println!("{name}: {} of {}, {:.2} %", agreement.agree(), agreement.choices.len(), agreement.percent());
        for d in agreement.disagreements() {
            println!("   {d}");
        }
        assert!(agreement.choices.len() > 700, "{name}: the recording holds too few choices to judge by");
        assert!(agreement.percent() >= mark, "{name}: {:.2} %", agreement.percent());
    }
}
