//! What a test needs in order to measure one scheduler.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::Contestant;
use super::error::JudgeError;
use super::load::{End, Load, Plan};
use super::promises::Promises;
use super::row::Figure;
use super::site::{Site, Speed};
use super::world::Outcome;
use crate::buffers::BufferPool;

/// A test: what it measures of a scheduler, and what it makes of that.
#[derive(Debug, Clone, Copy)]
pub(super) struct Test {
    /// `Q5` to `Q13`.
    pub(super) id: &'static str,
    /// What it is about, in a few words.
    pub(super) title: &'static str,
    /// How many runs on the device one measurement makes.
    pub(super) nr_runs: u32,
    /// Whether figures get their targets beside those without a scheduler.
    pub(super) needs_none: bool,
    pub(super) measure: fn(&mut Measuring<'_>) -> Result<Vec<Figure>, JudgeError>,
    /// Gives the figures of a scheduler their targets. The second ones are those without a scheduler, if they are
    /// needed.
    pub(super) judge: fn(Vec<Figure>, &[Figure], &Promises) -> Vec<Figure>,
}

/// One scheduler on one device.
#[derive(Debug)]
pub(super) struct Measuring<'a> {
    pub(super) site: &'a Site,
    pub(super) contestant: &'a Contestant,
    pub(super) speed: Speed,
    /// How long a run takes on a real device.
    pub(super) slice: Option<Duration>,
    /// Runs on a model are this many times shorter than they should be.
    pub(super) shorter: u64,
    pub(super) pool: &'a mut BufferPool,
    pub(super) stop: &'a AtomicBool,
}

impl Measuring<'_> {
    /// When a run ends: on a model after `time`, or earlier after `operations`.
    pub(super) fn end(&self, time: Duration, operations: u64) -> End {
        match self.slice {
            Some(slice) => End::after(slice, u64::MAX),
            None => End::after(time, operations / self.shorter),
        }
    }

    /// When a run ends that needs all of its time.
    pub(super) fn whole(&self, time: Duration) -> End {
        End::after(self.slice.unwrap_or(time), u64::MAX)
    }

    /// Runs clients on `count` devices of a model, which they take in turn, or on the one real device.
    pub(super) fn run_on_many(&mut self, count: usize, clients: Vec<Plan>, end: End) -> Result<Outcome, JudgeError> {
        self.site.run(count, self.contestant, &Load::new(clients, end), self.pool, self.stop)
    }

    pub(super) fn run(&mut self, clients: Vec<Plan>, end: End) -> Result<Outcome, JudgeError> {
        self.run_load(&Load::new(clients, end))
    }

    pub(super) fn run_load(&mut self, load: &Load) -> Result<Outcome, JudgeError> {
        self.site.run(1, self.contestant, load, self.pool, self.stop)
    }
}

/// Nanoseconds as milliseconds.
pub(super) fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// The figure of this case, 0 if there is none.
pub(super) fn value(figures: &[Figure], case: &str) -> f64 {
    figures.iter().find(|figure| figure.case == case).map_or(0.0, |figure| figure.value)
}
