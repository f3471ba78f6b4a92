//! What came of a recording's load in Linux, and what comes of it on virtual time with our BFQ.

use std::collections::BTreeMap;

use blkmq_sched::Expiration;
use serde::{Deserialize, Serialize};

use super::client::Client;
use super::load;
use super::recording::Recording;
use super::world::{CompletedRequest, Device, World};
use crate::TextError;
use crate::order::as_linuxs;

/// Shares count from so many nanoseconds after the last job's first request on.
const SETTLED_NS: u64 = 300_000_000;

/// Loads that are not modelled, by how the recordings' names begin: they need a page cache, a pipe or a log.
const NOT_MODELLED: [&str; 3] = ["split", "pipe", "buffered"];

/// What came of a load.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// By job, in the order of the job files.
    pub jobs: Vec<JobOutcome>,
    /// How often a queue was expired, by reason.
    pub expired: Vec<Figure>,
}

/// What a job got.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JobOutcome {
    /// The job's name.
    pub job: String,
    /// Its part of all sectors, from 0 to 1, while all jobs ran.
    pub share: Figure,
    /// From the insertion of a request to its completion, in milliseconds: the mean and the 99th percentile.
    pub mean_ms: Figure,
    /// See `mean_ms`.
    pub p99_ms: Figure,
}

/// A figure of ours, and where Linux's may lie.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    /// What it is, for people.
    pub what: String,
    /// Ours.
    pub ours: f64,
    /// The least and the most of Linux's runs.
    pub linux: (f64, f64),
    /// The least and the most that ours may be to count as Linux's.
    pub accepted: (f64, f64),
}

impl Figure {
    fn new(what: &str, ours: f64, linux: (f64, f64), accepted: (f64, f64)) -> Self {
        Self { what: what.to_owned(), ours, linux, accepted }
    }

    /// Whether ours lies where Linux's may lie.
    #[must_use]
    pub fn is_linuxs(&self) -> bool {
        (self.accepted.0..=self.accepted.1).contains(&self.ours)
    }
}

impl Outcome {
    /// Whether every job's share is Linux's.
    #[must_use]
    pub fn has_linuxs_shares(&self) -> bool {
        self.jobs.iter().all(|job| job.share.is_linuxs())
    }

    /// Runs a recording's load; nothing if that load is not modelled.
    ///
    /// # Errors
    /// A file of the recording that is missing or cannot be read, or that asks for what is not modelled.
    pub fn of(recording: &Recording) -> Result<Option<Self>, TextError> {
        if NOT_MODELLED.iter().any(|start| recording.name.starts_with(start)) {
            return Ok(None);
        }
        let file = recording.text("outcome.json")?;
        let linux: Recorded = serde_json::from_str(&file)
            .map_err(|error| TextError { place: "outcome.json".to_owned(), what: error.to_string() })?;
        let settings = &recording.settings;
        let (bfq, members) = as_linuxs(settings, &recording.processes, &recording.groups)?;
        let (names, clients) = load::clients(recording, &members, &|job| linux.first_ns(job))?;
        let is_bounded: Vec<bool> = clients.iter().map(Client::is_bounded).collect();
        let device = Device {
            depth: settings.number("hw_queue_depth")? as usize,
            completion_ns: settings.number("completion_nsec")?,
            nr_requests: settings.nr_requests()? as usize,
        };
        let (done, expired) = World::new(bfq, clients, device).run();
        let results = results(&is_bounded, &done);
        let mut jobs = Vec::new();
        for (name, result) in names.into_iter().zip(results) {
            let spread = linux.job(&name)?;
            jobs.push(result.compare(name, &spread));
        }
        Ok(Some(Self { jobs, expired: expirations(&expired, &linux) }))
    }
}

/// What Linux's runs gave, by job and in `stats`; `spread` has other figures besides.
#[derive(Debug, Deserialize)]
struct Recorded {
    spread: BTreeMap<String, serde_json::Value>,
    jobs: BTreeMap<String, RecordedJob>,
}

/// What the recorded run says of a job: when its first request was inserted, in seconds from the first one of all.
#[derive(Debug, Deserialize)]
struct RecordedJob {
    first_s: f64,
}

/// The least and the most of Linux's runs, of one job.
#[derive(Debug, Deserialize)]
struct SpreadOfJob {
    share_sectors: (f64, f64),
    lat_ms: BTreeMap<String, (f64, f64)>,
}

impl Recorded {
    fn job(&self, name: &str) -> Result<SpreadOfJob, TextError> {
        let fault = |what| TextError { place: format!("outcome.json: spread of '{name}'"), what };
        let value = self.spread.get(name).ok_or_else(|| fault("is missing".to_owned()))?;
        serde_json::from_value(value.clone()).map_err(|error| fault(error.to_string()))
    }

    /// When the job's first request was inserted, in nanoseconds from the first one of all.
    fn first_ns(&self, name: &str) -> Option<u64> {
        self.jobs.get(name).map(|job| (job.first_s.max(0.0) * 1e9) as u64)
    }

    /// How often Linux expired a queue, by reason.
    fn expirations(&self) -> BTreeMap<String, (f64, f64)> {
        let stats = self.spread.get("stats").and_then(serde_json::Value::as_object);
        let counts = stats.into_iter().flatten().filter_map(|(name, value)| {
            let reason = name.strip_prefix("expire ")?;
            Some((reason.to_owned(), serde_json::from_value(value.clone()).ok()?))
        });
        counts.collect()
    }
}

/// What one job got here.
#[derive(Debug, Clone, Default)]
struct JobResult {
    share: f64,
    /// Of each request, in nanoseconds, sorted.
    latencies: Vec<u64>,
}

/// What each job got. Shares count while all jobs run, other than those that end after so many requests.
fn results(is_bounded: &[bool], done: &[CompletedRequest]) -> Vec<JobResult> {
    let nr_jobs = is_bounded.len();
    let lasting = || (0..nr_jobs).filter(|job| !is_bounded[*job]);
    let own = |job: usize| done.iter().filter(move |rq| rq.client == job);
    let first = |job: usize| own(job).map(|rq| rq.inserted).min().unwrap_or(0);
    let last = |job: usize| own(job).map(|rq| rq.completed).max().unwrap_or(u64::MAX);
    let begin = lasting().map(first).max().unwrap_or(0) + SETTLED_NS;
    let end = lasting().map(last).min().unwrap_or(u64::MAX);
    let sectors = |job: usize| -> u64 {
        own(job).filter(|rq| (begin..=end).contains(&rq.completed)).map(|rq| u64::from(rq.nr_sectors)).sum()
    };
    let all: u64 = (0..nr_jobs).map(sectors).sum();
    let result = |job: usize| {
        let mut latencies: Vec<u64> = own(job).map(|rq| rq.completed - rq.inserted).collect();
        latencies.sort_unstable();
        JobResult { share: sectors(job) as f64 / all.max(1) as f64, latencies }
    };
    (0..nr_jobs).map(result).collect()
}

impl JobResult {
    /// Shares may lie 0.02 and 5 % beyond Linux's spread, mean latencies 15 % and 99th percentiles 30 %.
    fn compare(&self, job: String, linux: &SpreadOfJob) -> JobOutcome {
        let beyond = |(least, most): (f64, f64), part: f64| (least * (1.0 - part), most * (1.0 + part));
        let share = beyond(linux.share_sectors, 0.05);
        let millis = |ns: f64| ns / 1e6;
        let nr = self.latencies.len();
        let mean = millis(self.latencies.iter().sum::<u64>() as f64 / nr.max(1) as f64);
        let p99 = millis(self.latencies.get((nr * 99).div_ceil(100).max(1) - 1).copied().unwrap_or(0) as f64);
        let latency = |what: &str, name: &str, ours: f64, part: f64| {
            let linux = linux.lat_ms.get(name).copied().unwrap_or_default();
            Figure::new(what, ours, linux, beyond(linux, part))
        };
        JobOutcome {
            job,
            share: Figure::new("share", self.share, linux.share_sectors, (share.0 - 0.02, share.1 + 0.02)),
            mean_ms: latency("mean ms", "mean", mean, 0.15),
            p99_ms: latency("p99 ms", "p99", p99, 0.30),
        }
    }
}

/// Expirations by reason may lie 20 % beyond Linux's spread, or 10.
fn expirations(ours: &[Expiration], linux: &Recorded) -> Vec<Figure> {
    let figure = |(reason, (least, most)): (String, (f64, f64))| {
        let count = ours.iter().filter(|expiration| expiration.reason.as_str() == reason).count();
        let accepted = ((least * 0.8).min(least - 10.0), (most * 1.2).max(most + 10.0));
        Figure::new(&reason, count as f64, (least, most), accepted)
    };
    linux.expirations().into_iter().map(figure).collect()
}
