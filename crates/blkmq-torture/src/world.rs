//! What the CPUs of a world share: the queue, the witness, and how far the clients have come. Clients and operators
//! call in.

use std::sync::{Arc, Mutex, PoisonError};

use blkmq_vcpu::{go_on_for, steps, uninterrupted};
use blkmq_virtual::{Limits, RequestQueue};

use super::claims::Claims;
use super::event::{Control, Event, Phase};
use super::tenancy::Tenancy;
use super::witness::Witness;

/// Steps that all CPUs of a world together may make, beside those of its requests. Time jumps ahead while a device
/// hangs and every thread sleeps; clients that poll without a pause take steps meanwhile. A world of 24 such clients,
/// whose device hung and refused again and again, took 240 million.
pub(crate) const MOST_STEPS: u64 = 400_000_000;

/// Steps that each request may add to the limit of the world.
pub(crate) const STEPS_PER_REQUEST: u64 = 20_000;

/// What the CPUs of a world share.
pub(crate) struct World {
    pub(crate) q: RequestQueue,
    pub(crate) limits: Limits,
    pub(crate) witness: Witness,
    pub(crate) share: Arc<Mutex<Share>>,
}

/// What the clients of the world share.
pub(crate) struct Share {
    pub(crate) claims: Claims,
    pub(crate) tenancy: Tenancy,
    /// Whether all clients have come to their end.
    pub(crate) is_over: bool,
    wanted: u64,
    taken: u64,
    last_number: u64,
    cursor: u64,
    /// The step at which the world ends, unless further operations become over before.
    last_step: u64,
}

impl Share {
    pub(crate) fn new(wanted: u64, capacity: u64) -> Self {
        Self {
            claims: Claims::new(capacity),
            tenancy: Tenancy::default(),
            is_over: false,
            wanted,
            taken: 0,
            last_number: 0,
            cursor: 0,
            last_step: MOST_STEPS,
        }
    }

    /// Whether more operations are to be submitted.
    pub(crate) const fn wants_more(&self) -> bool {
        self.taken < self.wanted
    }

    /// Operations that were taken so far.
    pub(crate) const fn taken(&self) -> u64 {
        self.taken
    }

    /// Counts an operation.
    pub(crate) const fn take_one(&mut self) {
        self.taken += 1;
    }

    /// Called when the operation was not taken after all.
    pub(crate) const fn give_one_back(&mut self) {
        self.taken -= 1;
    }

    /// The number of the next operation.
    pub(crate) const fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Where the sequential stream that all clients share continues.
    pub(crate) const fn go_on(&mut self, nr_sectors: u64, capacity: u64) -> u64 {
        let here = if self.cursor + nr_sectors > capacity { 0 } else { self.cursor };
        self.cursor = here + nr_sectors;
        here
    }
}

impl World {
    /// Sets knobs of the scheduler before there are clients.
    pub(crate) fn set_knobs(&self, knobs: &[(&'static str, i64)]) {
        for &(name, value) in knobs {
            let control = Control::Knob(name, value);
            self.witness.tell(Event::Changed { control, phase: Phase::Begun });
            self.q.set_knob(&format!("iosched/{name}"), &value.to_string()).expect("the plan has good values");
            self.witness.tell(Event::Changed { control, phase: Phase::Done });
        }
    }

    /// Tells which limiter the queue was built with.
    pub(crate) fn tell_limiter(&self, usec: i64) {
        let control = Control::WbtLatUsec(usec);
        [Phase::Begun, Phase::Done].into_iter().for_each(|phase| self.witness.tell(Event::Changed { control, phase }));
    }

    /// Called when an operation of this many requests is over. The world may then run for longer.
    pub(crate) fn allow_more(&self, nr_requests: u64) {
        let now = steps();
        let last_step = self.share(|share| {
            share.last_step = (share.last_step + nr_requests * STEPS_PER_REQUEST).min(now + MOST_STEPS);
            share.last_step
        });
        go_on_for(last_step - now);
    }

    /// Reads or changes the state that all clients share.
    pub(crate) fn share<R>(&self, act: impl FnOnce(&mut Share) -> R) -> R {
        uninterrupted(|| act(&mut self.share.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}
