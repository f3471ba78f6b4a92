//! A limiter that bounds because a client gets less than it is due, on a device of which one number is known: how many
//! requests it works on at once.

use crate::world::{MS, US};
use blkmq_sched::limiter::{Limiter, Phase, Progress, Target};
use blkmq_sched::{Fairness, Op, Time};
use proptest::prelude::*;

const SECOND: u64 = 1000 * MS;

/// A device with reads of 4 KiB outstanding all the time, behind a limiter.
struct Device {
    limiter: Limiter,
    progress: Progress,
    now: Time,
    /// How many requests it works on at once: more of them only wait.
    knee: f64,
    /// How long it takes for each of them, in nanoseconds.
    latency: f64,
    /// How many are outstanding, with the device or held back.
    outstanding: f64,
    /// What completed; parts of a request are those of the next one.
    done: f64,
}

impl Device {
    fn new(knee: u32, latency: u64, outstanding: u32) -> Self {
        let limiter = Limiter::for_shares(Target::Off);
        let (knee, latency, outstanding) = (knee.into(), latency as f64, outstanding.into());
        Self { limiter, progress: Progress::default(), now: Time(0), knee, latency, outstanding, done: 0.0 }
    }

    /// How many requests the device has.
    fn in_device(&self) -> f64 {
        let cost = f64::from(self.limiter.cost(Op::Read, 8));
        let most = self.limiter.bound().map_or(f64::MAX, |bound| bound as f64 / cost);
        self.outstanding.min(most.ceil().max(1.0))
    }

    fn run(&mut self, fairness: Fairness, ms: u64) {
        for _ in 0..ms {
            let with_device = self.in_device();
            let at_work = with_device.min(self.knee);
            self.done += at_work * MS as f64 / self.latency;
            let whole = self.done as u64;
            self.done -= whole as f64;
            self.now = self.now.after(MS);
            let is_told = self.now.0.is_multiple_of(50 * MS);
            let Progress { reads, .. } = &mut self.progress;
            reads.requests += whole;
            reads.sectors += 8 * whole;
            reads.in_device += (whole as f64 * self.latency * with_device / at_work) as u64;
            self.progress.in_flight = (with_device * f64::from(self.limiter.cost(Op::Read, 8))) as u64;
            self.progress.held_back = with_device < self.outstanding;
            self.progress.fairness = if is_told { fairness } else { Fairness::Unknown };
            self.limiter.fold(&self.progress, self.now);
        }
    }
}

proptest! {
    /// Red if the bound grows on although that brings nothing, if the last bound that was tried stays instead of the
    /// smallest good one, or if the first one is too large: each was tried.
    #[test]
    fn a_bound_ends_at_what_the_device_works_on(knee in 3..300_u32, us in 50..8000_u64, times in 3..20_u32) {
        let outstanding = (knee * times).max(4 * knee + 8);
        let mut device = Device::new(knee, us * US, outstanding);
        let mut tried = 0.0_f64;
        for _ in 0..20_000 {
            device.run(Fairness::Violated, 1);
            tried = if device.limiter.phase() == Phase::Growing { tried.max(device.in_device()) } else { tried };
        }
        let (mut least, mut most, mut done) = (f64::MAX, 0.0_f64, 0.0);
        // A last search ends.
        device.run(Fairness::Kept, 5000);
        for _ in 0..5000 {
            device.run(Fairness::Kept, 1);
            if device.limiter.phase() == Phase::Bounded {
                (least, most) = (least.min(device.in_device()), most.max(device.in_device()));
            }
            done += device.in_device().min(device.knee) / device.knee / 5000.0;
        }
        let knee = f64::from(knee);
        prop_assert!(knee / 2.0 <= least && most <= (2.0 * knee).max(4.0), "{least} to {most}: {:?}", device.limiter);
        prop_assert!(tried <= (4.0 * knee).max(8.0), "{tried} of {knee} were tried");
        prop_assert!(done >= 0.95, "{done} of the throughput: {:?}", device.limiter);
    }
}

/// Red if the smallest of the bounds that were doubled stays, which is 128 here.
#[test]
fn a_bound_ends_just_below_the_ceiling() {
    let mut device = Device::new(100, 200 * US, 1024);
    device.run(Fairness::Violated, 1000);
    assert_eq!((device.limiter.phase(), device.in_device()), (Phase::Bounded, 98.0), "{:?}", device.limiter);
    device.run(Fairness::Kept, 20_000);
    assert_eq!(device.in_device(), 98.0, "twice as many bring too little");
}

/// Fewer requests keep the device busy than before: each of them moves a head, say.
///
/// Red if what the scheduler says is ignored once there is a bound: then 64 requests stay.
#[test]
fn a_bound_that_has_become_too_wide_is_searched_anew() {
    let mut device = Device::new(64, 200 * US, 1024);
    device.run(Fairness::Violated, 1000);
    assert!(device.limiter.phase() == Phase::Bounded && device.in_device() >= 32.0, "{:?}", device.limiter);
    device.run(Fairness::Kept, 5000);
    device.knee = 4.0;
    device.run(Fairness::Violated, 1000);
    assert!(device.limiter.phase() == Phase::Bounded && device.in_device() <= 8.0, "{:?}", device.limiter);
}

/// Red if a bound is searched anew although no request waits in the device, or if each search finds a little less: what
/// the device does under the bound is not all that it can.
#[test]
fn a_bound_below_the_ceiling_stays_whoever_lacks() {
    let mut device = Device::new(100, 200 * US, 1024);
    device.run(Fairness::Violated, 1000);
    for _ in 0..100_000 {
        device.run(Fairness::Violated, 1);
        assert!(device.limiter.phase() != Phase::Growing && device.in_device() >= 98.0, "{:?}", device.limiter);
    }
}

/// Red if a due that no bound brings is searched for without an end (tried: each two seconds).
#[test]
fn a_due_that_no_bound_brings_is_searched_for_ever_more_seldom() {
    // The bound is 32.
    let mut device = Device::new(24, 200 * US, 1024);
    let (mut searches, mut was_growing, mut done) = (Vec::new(), false, 0.0);
    for _ in 0..600_000 {
        device.run(Fairness::Violated, 1);
        let is_growing = device.limiter.phase() == Phase::Growing;
        searches.extend((is_growing && !was_growing).then_some(device.now.0 / MS));
        was_growing = is_growing;
        done += device.in_device().min(device.knee) / device.knee / 600_000.0;
    }
    let periods: Vec<u64> = searches.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(periods.len() >= 6 && periods.is_sorted_by(|one, next| 4 * one <= 3 * next), "{periods:?} ms apart");
    assert!(done > 0.99, "{done} of the throughput");
}

/// Red if anything is held back although each client gets what it is due, or nobody knows, or for less than three
/// windows in a row: each was tried.
#[test]
fn nothing_is_held_back_unless_a_client_lacks_for_long() {
    let mut device = Device::new(8, 100 * US, 64);
    for _ in 0..100 {
        device.run(Fairness::Violated, 100);
        device.run(Fairness::Unknown, 300);
        device.run(Fairness::Kept, 50);
        assert!(device.limiter.is_open());
    }
    device.run(Fairness::Violated, 200);
    assert_eq!(device.limiter.phase(), Phase::Growing);
}

/// Red if requests are held back from a device that has two at once: there is nothing to be ordered. Tried.
#[test]
fn a_device_that_has_few_is_left_alone() {
    let mut device = Device::new(2, 100 * US, 2);
    for _ in 0..5000 {
        device.run(Fairness::Violated, 1);
        assert!(device.limiter.is_open());
    }
}

/// Red if a bound stays that helps nobody, or is tried as often again: clients of a device that is never full lack for
/// another reason. Both were tried.
#[test]
fn a_device_that_never_limits_is_left_alone_ever_longer() {
    let mut device = Device::new(300, 2 * MS, 300);
    let mut begun: Vec<u64> = Vec::new();
    let mut was_open = true;
    let mut shut = 0;
    for _ in 0..600_000 {
        // Once no bound has helped, the scheduler tries by itself in vain, and says so.
        let is_vain = !was_open && device.limiter.bound().is_none();
        device.run(if is_vain { Fairness::Kept } else { Fairness::Violated }, 1);
        let is_open = device.limiter.is_open();
        begun.extend((was_open && !is_open).then_some(device.now.0 / MS));
        shut += u64::from(!is_open);
        was_open = is_open;
    }
    let rests: Vec<u64> = begun.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(rests.len() >= 4 && rests.is_sorted_by(|one, next| 3 * one <= 2 * next), "{rests:?} ms apart");
    assert!(shut < 6000, "{shut} ms of 600 s");
}

/// Red if a bound for shares is tried first although reads are slower than was asked, or if no bound is tried for
/// shares once nothing has helped reads, but for a rest of ten seconds. Both were tried.
#[test]
fn slow_reads_come_before_shares() {
    // It is never full, so no bound helps reads.
    let mut device = Device::new(300, 2 * MS, 300);
    device.limiter = Limiter::for_shares(Target::Within(MS));
    let mut phases = vec![(Phase::Open, 0)];
    for ms in 0..20_000 {
        device.run(Fairness::Violated, 1);
        if phases.last().is_some_and(|(last, _)| *last != device.limiter.phase()) {
            phases.push((device.limiter.phase(), ms));
        }
    }
    let grown = phases.iter().position(|(phase, _)| *phase == Phase::Growing).expect("shares are not forgotten");
    assert!(phases[1].1 < 500 && grown > 1, "{phases:?}");
    let &[(before, opened), (_, grew)] = &phases[grown - 1..=grown] else { unreachable!("two phases") };
    assert!(before == Phase::Open && grew - opened < 500, "{phases:?}");
}

/// Red if a bound stays that nothing asks for any more.
#[test]
fn an_idle_period_opens_a_bound() {
    let mut device = Device::new(16, 200 * US, 128);
    device.run(Fairness::Violated, 5000);
    assert!(!device.limiter.is_open());
    device.outstanding = 1.0;
    device.run(Fairness::Kept, 9000);
    assert!(!device.limiter.is_open(), "a short one does not");
    device.run(Fairness::Kept, 1100);
    assert!(device.limiter.is_open());
    device.outstanding = 128.0;
    device.run(Fairness::Violated, 200);
    assert_eq!(device.limiter.phase(), Phase::Growing, "and it is tried again at once: {:?}", device.limiter);
}

/// Red if a pause in which nothing completes leaves it shut.
#[test]
fn a_pause_opens_a_bound() {
    let mut device = Device::new(16, 200 * US, 128);
    device.run(Fairness::Violated, 5000);
    assert!(!device.limiter.is_open());
    device.now = device.now.after(11 * SECOND);
    device.run(Fairness::Unknown, 1);
    assert!(device.limiter.is_open());
}
