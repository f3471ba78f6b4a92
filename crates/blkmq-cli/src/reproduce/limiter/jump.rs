//! A device that becomes another one: as a volume whose credit has gone, or that was given a higher ceiling.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use blkmq::driver::{Batch, Done, Driver, NextEvent, Topology};
use blkmq::{Limits, Time};

/// One of several models at a time. What was given to one of them completes there.
#[derive(Debug)]
pub(super) struct Jump {
    models: Vec<Arc<dyn Driver>>,
    active: AtomicUsize,
}

impl Jump {
    /// Starts with the first model. All have the same limits and hardware queues, and keep no data.
    pub(super) fn new(models: Vec<Arc<dyn Driver>>) -> Self {
        assert!(!models.is_empty(), "there is a model");
        Self { models, active: AtomicUsize::new(0) }
    }

    /// What comes from now on goes to this model.
    pub(super) fn set(&self, model: usize) {
        assert!(model < self.models.len(), "there is such a model");
        self.active.store(model, Ordering::Relaxed);
    }

    fn active(&self) -> &dyn Driver {
        &*self.models[self.active.load(Ordering::Relaxed)]
    }
}

impl Driver for Jump {
    fn name(&self) -> &'static str {
        "jump"
    }

    fn limits(&self) -> Limits {
        self.models[0].limits()
    }

    fn topology(&self) -> Topology {
        self.models[0].topology()
    }

    fn keeps_data(&self) -> bool {
        false
    }

    fn queue_rqs(&self, hctx: u16, batch: &mut Batch<'_>, now: Time) {
        self.active().queue_rqs(hctx, batch, now);
    }

    fn poll(&self, hctx: u16, done: &mut Done<'_>, now: Time) {
        self.models.iter().for_each(|model| model.poll(hctx, done, now));
    }

    fn next_event(&self, hctx: u16) -> NextEvent {
        let times = self.models.iter().filter_map(|model| model.next_event(hctx).time());
        NextEvent::from(times.min())
    }
}
