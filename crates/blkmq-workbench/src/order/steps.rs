//! The events that Linux's scheduler saw and its decisions, in one order.

use super::decisions::Line;
use crate::TextError;
use crate::blktrace::Event;

/// An event, or a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Something happened outside the scheduler.
    Event(Event),
    /// Linux decided something.
    Line(Line),
}

/// Events and decisions in the order of their times, if both are in that order. Of one time events come first. Errors
/// come as they are met.
pub fn steps(
    events: impl Iterator<Item = Result<Event, TextError>>,
    decisions: impl Iterator<Item = Result<Line, TextError>>,
) -> impl Iterator<Item = Result<Step, TextError>> {
    let (mut events, mut lines) = (events.peekable(), decisions.peekable());
    std::iter::from_fn(move || {
        let is_line = match (events.peek(), lines.peek()) {
            (Some(Ok(event)), Some(Ok(line))) => line.time < event.time,
            (Some(Err(_)), _) => false,
            (_, line) => line.is_some(),
        };
        if is_line {
            lines.next().map(|line| line.map(Step::Line))
        } else {
            events.next().map(|event| event.map(Step::Event))
        }
    })
}
