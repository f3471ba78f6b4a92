//! Replays of traces that are in memory, with all that they find.

use blkmq_workbench::blktrace::{Event, Merge};
use blkmq_workbench::order::{self, Adjustment, Agreement, Choice, Finding};
use blkmq_workbench::{Classes, Settings, TextError};

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

    pub(crate) fn percent(&self) -> f64 {
        self.counted.percent()
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
