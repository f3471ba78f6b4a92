//! How fast the device is, judged by the requests that it is handed.
//!
//! Requests are counted over an interval, which ends after a second, after a long pause, or when the device turns out
//! to be very slow. An interval counts only if the device had mostly sequential requests in it, or was faster than the
//! estimate. It counts the more, the longer and the more sequential it was.

use super::clock::{NS_PER_MS, NS_PER_US, TICKS_PER_SECOND, Ticks, of_ms, to_ms};
use super::think_time::is_far;
use crate::{Info, Time};

/// Binary digits of a rate behind the point.
const DIGITS: u32 = 16;
/// An interval counts if it has so many requests and lasted so long; it ends after the longer time.
const LEAST_SAMPLES: u64 = 32;
const LEAST_INTERVAL: u64 = 300 * NS_PER_MS;
const INTERVAL: u64 = 1000 * NS_PER_MS;
/// A pause of the device that ends an interval.
const PAUSE: u64 = 100 * NS_PER_MS;
/// A completion this soon before a request shows that the device did not pause.
const PROMPT: u64 = 2 * NS_PER_MS;
/// A higher rate is not believed: 20 sectors in a microsecond.
const HIGHEST: u64 = 20 << DIGITS;

/// What is typical of a device that does not turn and of one that does: its rate, and for how long an interactive
/// program that starts reads from it.
const REFERENCE_RATE: [u64; 2] = [33000, 14000];
const REFERENCE_TIME: [Ticks; 2] = [of_ms(2500), of_ms(7000)];

/// The estimate, and the interval that runs.
#[derive(Debug, Clone, Default)]
pub(super) struct Rate {
    /// Sectors in a microsecond, with [`DIGITS`] binary digits behind the point.
    rate: u64,
    is_rotational: bool,
    samples: u64,
    sequential: u64,
    sectors: u64,
    /// The largest of the last few requests.
    largest: u32,
    first: Time,
    last: Time,
    length: u64,
    /// Where the request that was handed out last ended.
    pub(super) last_position: u64,
    /// When a request completed last.
    pub(super) last_completion: Time,
}

impl Rate {
    pub(super) fn new(is_rotational: bool) -> Self {
        let rate = REFERENCE_RATE[usize::from(is_rotational)] * 2 / 3;
        Self { rate, is_rotational, ..Self::default() }
    }

    /// Sectors that the device does in so many ticks.
    pub(super) const fn in_time(&self, ticks: Ticks) -> u64 {
        (self.rate * (NS_PER_MS / NS_PER_US) * to_ms(ticks)) >> DIGITS
    }

    /// For how long an interactive program is helped when it starts.
    pub(super) fn starting_time(&self) -> Ticks {
        let kind = usize::from(self.is_rotational);
        let work = REFERENCE_RATE[kind] * REFERENCE_TIME[kind].unsigned_abs();
        (work / self.rate).cast_signed().clamp(3 * TICKS_PER_SECOND, 25 * TICKS_PER_SECOND)
    }

    /// Sectors in a second.
    pub(super) const fn per_second(&self) -> u64 {
        (self.rate * 1_000_000) >> DIGITS
    }

    /// A request is handed to the device, which has `in_driver` others. Returns whether the estimate changed.
    pub(super) fn note_dispatch(&mut self, info: &Info, in_driver: u32, now: Time) -> bool {
        let mut changed = false;
        if self.samples == 0 {
            self.restart(Some(info), now);
        } else if now.since(self.last) > PAUSE && in_driver == 0 {
            changed = self.close(Some(info), now);
        } else {
            self.samples += 1;
            let is_busy = in_driver > 0 || now.since(self.last_completion) < PROMPT;
            self.sequential += u64::from(is_busy && !is_far(self.last_position, info, self.is_rotational));
            self.sectors += u64::from(info.nr_sectors);
            let before = if self.samples.is_multiple_of(32) { 0 } else { self.largest };
            self.largest = before.max(info.nr_sectors);
            self.length = now.since(self.first);
            if self.length >= INTERVAL {
                changed = self.close(Some(info), now);
            }
        }
        self.last_position = info.end();
        self.last = now;
        changed
    }

    /// A request completed. Returns whether the estimate changed.
    pub(super) fn note_completion(&mut self, now: Time) -> bool {
        let took = now.since(self.last_completion) / NS_PER_US;
        let is_slow = took > PROMPT / NS_PER_US && (u64::from(self.largest) << DIGITS) / took < 1 << (DIGITS - 10);
        let changed = is_slow && self.close(None, now);
        self.last_completion = now;
        changed
    }

    fn restart(&mut self, first: Option<&Info>, now: Time) {
        let Some(info) = first else {
            self.samples = 0;
            return;
        };
        (self.first, self.last) = (now, now);
        (self.samples, self.sequential, self.length) = (1, 0, self.length);
        (self.sectors, self.largest) = (info.nr_sectors.into(), info.nr_sectors);
    }

    /// Ends the interval, and starts another one with `first` if there is one.
    fn close(&mut self, first: Option<&Info>, now: Time) -> bool {
        let changed = self.samples >= LEAST_SAMPLES && self.length >= LEAST_INTERVAL && self.learn();
        self.restart(first, now);
        changed
    }

    fn learn(&mut self) -> bool {
        debug_assert!(self.samples > 0 && self.length > 0, "an interval that counts has requests and took time");
        self.length = self.length.max(self.last_completion.since(self.first));
        let rate = (self.sectors << DIGITS) / (self.length / NS_PER_US);
        let is_random = self.sequential < 3 * self.samples / 4;
        if is_random && rate <= self.rate || rate > HIGHEST {
            return false;
        }
        let weight = (9 * self.sequential / self.samples * self.length / INTERVAL).min(8);
        let divisor = 10 - weight;
        self.rate = (self.rate * (divisor - 1) / divisor + rate / divisor).max(1);
        true
    }
}
