//! Comparisons on the machine's clock.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use blkmq::driver::{Batch, Done, Driver, Topology};
use blkmq::{Limits, RqId, Status, Time};
use blkmq_workbench::Job;
use blkmq_workbench::bench::{Bench, Setup};
use blkmq_workbench::compare::{self, CompareError, Variant};

const SLICE: Duration = Duration::from_millis(5);

/// A device that keeps its first requests for longer than a slice, as a machine does whose processors other programs
/// have.
#[derive(Debug)]
struct Stalls {
    left: AtomicUsize,
    /// Requests that were started, and when each is over.
    kept: Mutex<Vec<(RqId, Time)>>,
}

impl Driver for Stalls {
    fn name(&self) -> &'static str {
        "stalls"
    }

    fn limits(&self) -> Limits {
        Limits { capacity_sectors: 1 << 20, ..Limits::default() }
    }

    fn topology(&self) -> Topology {
        Topology::new(1, 32)
    }

    fn keeps_data(&self) -> bool {
        false
    }

    fn queue_rqs(&self, _: u16, batch: &mut Batch<'_>, now: Time) {
        while let Some(rq) = batch.next_request() {
            let stalls = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
            if stalls.is_ok() {
                let id = batch.start(rq);
                self.kept.lock().expect("no thread has panicked").push((id, now.after(4 * SLICE.as_nanos() as u64)));
            } else {
                batch.finish(rq, Status::Ok);
            }
        }
    }

    fn poll(&self, _: u16, done: &mut Done<'_>, now: Time) {
        for (id, _) in self.kept.lock().expect("no thread has panicked").extract_if(.., |(_, end)| *end <= now) {
            done.complete(id, Status::Ok).expect("the request was started");
        }
    }
}

fn compared(nr_stalls: usize) -> Result<usize, CompareError> {
    let jobs = [Job { time_based: true, runtime: Some(SLICE), ..Job::new("reader") }];
    let mut variants = ["a", "b"].map(|name| {
        let driver = Arc::new(Stalls { left: AtomicUsize::new(nr_stalls), kept: Mutex::default() });
        let setup = Setup { scheduler: Some("none".into()), ..Setup::new("null") };
        Variant::new(name, &jobs, Bench::over(driver, &jobs, &setup).expect("the jobs fit"))
    });
    let stop = Arc::new(AtomicBool::new(false));
    let turns = compare::in_turn(&mut variants, SLICE, 2, &[(0, 1)], &stop, &mut || ())?;
    assert!((0..2).all(|index| turns.spread(index).is_some_and(|spread| spread.lower > 0.0)), "{turns:?}");
    Ok(turns.rounds())
}

/// Red if one slice without a completion ends the comparison: a busy machine may give its threads no processor for so
/// long.
#[test]
fn a_slice_in_which_nothing_completed_is_run_again() {
    assert_eq!(compared(1).expect("every further slice has completions"), 2);
}

/// Red if slices are run again forever.
#[test]
fn a_device_that_never_completes_within_a_slice_is_told() {
    assert_eq!(compared(usize::MAX).expect_err("each slice is in vain"), CompareError::Nothing("a".to_owned(), SLICE));
}
