//! The schedulers by name.

use alloc::boxed::Box;

use crate::mq_deadline::{self, MqDeadline};
use crate::{Knob, Replay, Scheduler};

/// A scheduler for help texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Description {
    /// The kernel's name.
    pub name: &'static str,
    /// One sentence on the policy.
    pub about: &'static str,
    /// Its knobs, in the kernel's order.
    pub knobs: &'static [Knob],
}

/// Every scheduler there is.
pub const SCHEDULERS: &[Description] = &[Description {
    name: mq_deadline::NAME,
    about: "Sector order in batches, a deadline for each request, reads before writes, strict priority classes.",
    knobs: mq_deadline::KNOBS,
}];

/// A new scheduler of this name, without room for any request yet; `None` if there is none of this name.
#[must_use]
pub fn scheduler(name: &str) -> Option<Box<dyn Scheduler>> {
    match name {
        mq_deadline::NAME => Some(Box::new(MqDeadline::new(()))),
        _ => None,
    }
}

/// A new scheduler of this name that can follow the choices of another one, without room for any request yet; `None` if
/// no scheduler of this name can.
#[must_use]
pub fn replay(name: &str) -> Option<Box<dyn Replay>> {
    match name {
        mq_deadline::NAME => Some(Box::new(MqDeadline::new(()))),
        _ => None,
    }
}
