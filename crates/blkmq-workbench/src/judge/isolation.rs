//! Q12: whether a client that asks for little gets it, beside one that asks for everything.

use blkmq::Op;

use super::error::JudgeError;
use super::load::{End, Group, Load, Pace, Plan, SMALL};
use super::measuring::{Measuring, Test, ms};
use super::promises::Promises;
use super::row::{Figure, Target, aimed};
use crate::job::nanoseconds;

pub(super) const TEST: Test = Test {
    id: "Q12",
    title: "a reader that wants an eighth of the device, beside an aggressor of 16 connections",
    nr_runs: 1,
    needs_none: false,
    measure,
    judge,
};

/// What the victim wants of the device, as a part of its reads a second.
const WANTED: f64 = 0.125;
/// Reads that the victim wants in one sample, and samples of a run.
const PER_SAMPLE: u64 = 1000;
const SAMPLES: u64 = 50;

/// Percent.
const LEAST: f64 = 90.0;
const WORST: &str = "isol-01";

fn measure(on: &mut Measuring<'_>) -> Result<Vec<Figure>, JudgeError> {
    let area = on.site.area();
    let depth = on.site.depth().clamp(16, 128);
    let every_ns = (1e9 / (on.speed.iops * WANTED)) as u64;
    let sample_ns =
        on.slice.map_or((PER_SAMPLE * every_ns).div_ceil(on.shorter), |slice| nanoseconds(slice) / (SAMPLES + 5));
    let warm_ns = 5 * sample_ns;
    let time_ns = warm_ns + SAMPLES * sample_ns;
    let mut clients = vec![Plan {
        pace: Pace::Every(every_ns),
        is_logged: true,
        ..Plan::new("victim", Op::Read, SMALL, depth, area.clone()).of("victim")
    }];
    clients.extend((0..16).map(|_| Plan::new("aggressor", Op::Read, SMALL, depth, area.clone()).of("aggressor")));
    let groups = vec![Group::new("victim"), Group::new("aggressor")];
    let outcome = on.run_load(&Load { groups, ..Load::new(clients, End::at(warm_ns, time_ns)) })?;
    let victim = &outcome.clients[0];
    let mut samples = vec![0_u64; SAMPLES as usize];
    for (time, _) in &victim.log {
        let place = time.checked_sub(warm_ns).map(|since| since / sample_ns);
        if let Some(sample) = place.and_then(|place| samples.get_mut(place as usize)) {
            *sample += 1;
        }
    }
    let wanted = sample_ns as f64 / every_ns as f64;
    let percent = |done: f64| (100.0 * done / wanted).min(100.0);
    let worst = samples.iter().copied().min().unwrap_or(0);
    let mean = percent(samples.iter().sum::<u64>() as f64 / SAMPLES as f64);
    Ok(vec![
        Figure::new(
            WORST,
            percent(worst as f64),
            "%",
            "What the reader gets of what it wants, in the worst of 50 samples.",
        ),
        Figure::new("mean", mean, "%", "The same on average."),
        Figure::new("p99", ms(victim.latency.percentile(99.0)), "ms", "How late 99 of 100 reads are over at most."),
    ])
}

fn judge(own: Vec<Figure>, _: &[Figure], promises: &Promises) -> Vec<Figure> {
    aimed(own, |figure| (promises.isolation && figure.case == WORST).then_some(Target::AtLeast(LEAST)))
}
