//! The schedulers by name.

use alloc::boxed::Box;

use crate::bfq::{self, Bfq};
use crate::fair::{self, Fair};
use crate::kyber::{self, Kyber};
use crate::mq_deadline::{self, MqDeadline};
use crate::{FeedbackKind, Knob, Replay, Scheduler, throttle};

/// The part of a request's priority that a scheduler takes into account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Priorities {
    /// Nothing.
    Ignored,
    /// The class alone.
    Class,
    /// The class, and within it the level.
    ClassAndLevel,
}

/// A scheduler that can be had by its name.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Description {
    /// The policy's name: the kernel's, if Linux has it.
    pub name: &'static str,
    /// One sentence on the policy.
    pub about: &'static str,
    /// Its knobs, in the kernel's order: those of the scheduler, or of its [`Throttle`](crate::Throttle).
    pub knobs: &'static [Knob],
    /// True if no request of a class is dispatched while a higher class has requests queued here or inside the driver,
    /// but for those inserted at the head and those that have waited too long.
    pub has_strict_classes: bool,
    /// The part of a request's priority that the scheduler takes into account.
    pub priorities: Priorities,
    /// True if clients and groups get the device by their weights.
    pub shares_by_weight: bool,
    make: fn() -> Box<dyn Scheduler>,
    /// Makes one that can follow the choices of another one, if it can.
    make_replay: Option<fn() -> Box<dyn Replay>>,
}

impl Description {
    /// True if a value of the scheduler orders one hardware queue and knows nothing of the others
    /// ([`Scheduler::init_hctx`]). Nothing can be held back in front of such a scheduler, so a queue with it has no
    /// [`Limiter`](crate::limiter::Limiter).
    #[must_use]
    pub fn is_per_hctx(&self) -> bool {
        (self.make)().init_hctx().is_some()
    }

    /// Which feedback the scheduler wants while nothing waits in it.
    #[must_use]
    pub fn feedback(&self) -> FeedbackKind {
        (self.make)().feedback()
    }

    /// The scheduler of this name; `None` if there is none.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        SCHEDULERS.iter().find(|description| description.name == name)
    }
}

/// Every scheduler there is.
pub const SCHEDULERS: &[Description] = &[
    Description {
        name: mq_deadline::NAME,
        about: "Sector order in batches, a deadline for each request, reads before writes, strict priority classes.",
        knobs: mq_deadline::KNOBS,
        has_strict_classes: true,
        priorities: Priorities::Class,
        shares_by_weight: false,
        make: || Box::new(MqDeadline::new()),
        make_replay: Some(|| Box::new(MqDeadline::new())),
    },
    Description {
        name: kyber::NAME,
        about: "Reads, writes and discards in turn, in order of arrival; fewer of a kind while others are slow.",
        knobs: throttle::KNOBS,
        has_strict_classes: false,
        priorities: Priorities::Ignored,
        shares_by_weight: false,
        make: || Box::new(Kyber::new()),
        make_replay: Some(|| Box::new(Kyber::new())),
    },
    Description {
        name: bfq::NAME,
        about: "Shares of the device by weight, between clients and groups of clients, in turns of a budget each.",
        knobs: bfq::KNOBS,
        has_strict_classes: false,
        priorities: Priorities::ClassAndLevel,
        shares_by_weight: true,
        make: || Box::new(Bfq::new()),
        make_replay: None,
    },
    Description {
        name: fair::NAME,
        about: "Shares of the device by weight, between clients and groups of clients, for devices with queues.",
        knobs: &[],
        has_strict_classes: false,
        priorities: Priorities::Class,
        shares_by_weight: true,
        make: || Box::new(Fair::new()),
        make_replay: None,
    },
];

/// A new scheduler of this name, without room for any request yet; `None` if there is none of this name.
#[must_use]
pub fn scheduler(name: &str) -> Option<Box<dyn Scheduler>> {
    Description::named(name).map(|description| (description.make)())
}

/// A new scheduler of this name that can follow the choices of another one, without room for any request yet; `None` if
/// no scheduler of this name can.
#[must_use]
pub fn replay(name: &str) -> Option<Box<dyn Replay>> {
    Description::named(name)?.make_replay.map(|make| make())
}
