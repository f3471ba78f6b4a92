//! Replays of traces that are in memory, with all that they find.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use blkmq_workbench::blktrace::{Event, Merge};
use blkmq_workbench::order::{self, Adjustment, Agreement, Choice, Finding};
use blkmq_workbench::{Classes, Settings, TextError};
use flate2::read::GzDecoder;

/// All findings of a replay.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Whole {
    pub(crate) choices: Vec<Choice>,
    /// `None` if the scheduler has no depths.
    pub(crate) adjustments: Option<Vec<Adjustment>>,
    pub(crate) counted: Agreement,
}

impl Whole {
    pub(crate) fn agree(&self) -> usize {
        self.counted.agree as usize
    }

    /// Our last choices, without their times: `8R 100D` or `-`.
    pub(crate) fn last_words(&self, number: usize) -> String {
        let words = self.choices[self.choices.len() - number..].iter().map(|choice| match choice.ours {
            Some(rq) => format!("{}{}", rq.sector, rq.direction()),
            None => "-".to_owned(),
        });
        words.collect::<Vec<_>>().join(" ")
    }

    /// All our choices, without their times.
    pub(crate) fn words(&self) -> String {
        self.last_words(self.choices.len())
    }

    pub(crate) fn percent(&self) -> f64 {
        self.counted.percent()
    }
}

/// A recording of Linux.
pub(crate) struct Recording {
    pub(crate) trace: Vec<u8>,
    pub(crate) queue: String,
    pub(crate) classes: Classes,
}

/// The folder of this name with data for tests.
pub(crate) fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

impl Recording {
    pub(crate) fn open(folder: &Path) -> Self {
        let text = |name: &str| fs::read_to_string(folder.join(name));
        let mut trace = Vec::new();
        match File::open(folder.join("trace.blktrace.0.gz")) {
            Ok(packed) => _ = GzDecoder::new(packed).read_to_end(&mut trace).expect("the trace is whole"),
            Err(_) => trace = fs::read(folder.join("trace.blktrace.0")).expect("the recording has a trace"),
        }
        let classes = text("classes.txt").unwrap_or_default();
        Self {
            trace,
            queue: text("queue.txt").expect("the recording has settings"),
            classes: Classes::parse("classes.txt", &classes).expect("the recording's classes are well formed"),
        }
    }

    /// A recording of Linux's mq-deadline.
    pub(crate) fn of_mq_deadline(name: &str) -> Self {
        Self::open(&data("linux-6.12-mq-deadline").join(name))
    }

    pub(crate) fn settings(&self, changes: &[&str]) -> Settings {
        let mut settings = Settings::parse("queue.txt", &self.queue).expect("the recording's settings are well formed");
        changes.iter().for_each(|change| settings.set(change).expect("the change is well formed"));
        settings
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        events(&self.trace)
    }

    pub(crate) fn replay_of(&self, events: &[Event], changes: &[&str]) -> Whole {
        replay(events, &self.settings(changes), &self.classes).expect("the settings are accepted")
    }

    pub(crate) fn replay(&self, changes: &[&str]) -> Whole {
        self.replay_of(&self.events(), changes)
    }
}

/// Replays events that are ordered by time.
pub(crate) fn replay(events: &[Event], settings: &Settings, classes: &Classes) -> Result<Whole, TextError> {
    let findings = order::replay(events.iter().cloned().map(Ok), settings, classes)?;
    let has_depths = findings.has_depths();
    let (mut choices, mut adjustments, mut counted) = (Vec::new(), Vec::new(), Agreement::default());
    for finding in findings {
        let finding = finding?;
        counted.add(&finding);
        match finding {
            Finding::Choice(choice) => choices.push(choice),
            Finding::Adjustment(adjustment) => adjustments.push(adjustment),
        }
    }
    Ok(Whole { choices, adjustments: has_depths.then_some(adjustments), counted })
}

/// The events of a trace in one file, ordered by time.
pub(crate) fn events(trace: &[u8]) -> Vec<Event> {
    Merge::new([trace]).collect::<Result<_, _>>().expect("the trace is whole")
}
