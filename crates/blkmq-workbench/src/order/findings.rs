//! A replay that gives its findings one by one.

use std::fmt;

use super::announcements::Announcements;
use super::{Choice, Finding, Replay, scheduler};
use crate::blktrace::Event;
use crate::{Classes, Settings, TextError};

/// Replays `events`, ordered by time, on a scheduler set up as `settings` says. Events are taken as the findings are.
///
/// # Errors
/// The settings name a scheduler that cannot follow another one, or a knob or value that it does not have.
pub fn replay<'a, I: Iterator<Item = Result<Event, TextError>>>(
    events: I,
    settings: &Settings,
    classes: &'a Classes,
) -> Result<Findings<'a, I>, TextError> {
    let (scheduler, pools) = scheduler(settings)?;
    let replay = Replay::new(scheduler, pools, classes);
    Ok(Findings { events: Announcements::new(events), replay, choice: None, is_over: false })
}

/// The choices and adjustments of a replay, in order. Ends after the first error, which is one of the events, a knob
/// that a message of the trace sets to a value it does not take, or more waiting requests than a device can have.
pub struct Findings<'a, I> {
    events: Announcements<I>,
    replay: Replay<'a>,
    /// What the last event showed, behind the adjustments before it.
    choice: Option<Choice>,
    is_over: bool,
}

impl<I> fmt::Debug for Findings<'_, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Findings").field("is_over", &self.is_over).finish_non_exhaustive()
    }
}

impl<I: Iterator<Item = Result<Event, TextError>>> Findings<'_, I> {
    /// Whether the scheduler takes tokens, of which its control changes the depths.
    #[must_use]
    pub const fn has_depths(&self) -> bool {
        self.replay.pools.takes_tokens()
    }

    /// Takes the next event; at the end of the trace the timer that the last completions set still goes off.
    fn advance(&mut self) -> Result<(), TextError> {
        match self.events.next().transpose()? {
            Some((event, announced)) => match event.message() {
                Some(text) => self.replay.apply(event.time, text)?,
                None => self.choice = self.replay.step(&event, announced)?,
            },
            None => {
                self.replay.pools.fold_before(false, u64::MAX);
                self.is_over = true;
            }
        }
        Ok(())
    }
}

impl<I: Iterator<Item = Result<Event, TextError>>> Iterator for Findings<'_, I> {
    type Item = Result<Finding, TextError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(adjustment) = self.replay.pools.next_adjustment() {
                return Some(Ok(Finding::Adjustment(adjustment)));
            }
            if let Some(choice) = self.choice.take() {
                return Some(Ok(Finding::Choice(choice)));
            }
            if self.is_over {
                return None;
            }
            if let Err(error) = self.advance() {
                self.is_over = true;
                return Some(Err(error));
            }
        }
    }
}
