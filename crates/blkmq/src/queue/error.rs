//! Why a queue could not be built or changed.

use std::fmt;

use crate::queue::schedulers::scheduler_names;
use crate::request::limits::MAX_MEMBERS;

/// Why a queue could not be built or changed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueError {
    /// No scheduler has this name.
    UnknownScheduler(String),
    /// The queue, or its scheduler, has no knob of this name. The second part names the knobs that there are, and says
    /// if another scheduler has this one.
    UnknownKnob(String, String),
    /// The knob of this name needs a drained queue, and is changed by
    /// [`RequestQueue::change_knob`](crate::RequestQueue::change_knob).
    NeedsDrain(String),
    /// A knob's value does not suit the knob. The text says which values do.
    BadValue(String),
    /// The device's description of itself makes no sense.
    BadDevice(String),
    /// Every place for a thread is taken.
    TooManySubmitters,
    /// Each hardware queue belongs to one submitter, and there is none left for this thread. The text says how many
    /// there are.
    NoHardwareQueue(String),
    /// The device cannot have that many hardware queues.
    BadTopology(String),
    /// The system lacks something that each thread needs. The text says what.
    System(String),
}

impl fmt::Display for QueueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownScheduler(name) => {
                write!(f, "unknown scheduler '{name}'; there are: {}", scheduler_names().join(", "))
            }
            Self::UnknownKnob(name, known) => write!(f, "unknown knob '{name}'; there are: {known}"),
            Self::NeedsDrain(name) => {
                write!(f, "the knob '{name}' needs a drained queue: begin the change by `change_knob`, and wait for it")
            }
            Self::BadValue(text)
            | Self::BadDevice(text)
            | Self::NoHardwareQueue(text)
            | Self::BadTopology(text)
            | Self::System(text) => f.write_str(text),
            Self::TooManySubmitters => write!(f, "a queue takes at most {} threads", MAX_MEMBERS - 1),
        }
    }
}

impl std::error::Error for QueueError {}
