//! What a load runs on: a device, the scheduler in front of it, and their settings.

use std::sync::Arc;

use blkmq::driver::Driver;
use blkmq::{Locking, QueueError};
use blkmq_workbench::bench::{Bench, BenchError, ClockKind, Setup};
use blkmq_workbench::job::{Direction, Operations};
use blkmq_workbench::{Job, Subject, TextError, assignment};
use clap::ValueEnum;
use serde::Deserialize;

use crate::device::{self, Intent};

/// What `--help` says of `--locking`.
pub(crate) fn locking_help() -> String {
    let names = Locking::ALL.map(|locking| locking.to_string()).join(", ");
    format!("How threads share the scheduler: {names} [default: {}]", Locking::default())
}

/// Reads a 0 or a 1.
pub(crate) fn switch(text: &str) -> Result<bool, String> {
    match text {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(format!("'{text}' is not accepted; accepted: 0, 1")),
    }
}

/// The time that a load runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Time {
    Real,
    Virtual,
}

/// What a load runs on.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) setup: Setup,
    /// Jobs may overwrite data.
    pub(crate) overwrite: bool,
    /// The values as they were given. Errors in them are found when the queue is built.
    locking: Option<String>,
    bypass: Option<String>,
    /// The options that set something, by the name of the setting, the latest last. Used for errors.
    places: Vec<(String, String)>,
}

impl Target {
    /// A device, with defaults for everything else.
    pub(crate) fn new(device: &str, clock: Time) -> Self {
        let clock = if clock == Time::Real { ClockKind::Real } else { ClockKind::Virtual };
        let setup = Setup { clock, ..Setup::new(device) };
        Self { setup, overwrite: false, locking: None, bypass: None, places: Vec::new() }
    }

    /// Sets `device`, `scheduler`, `locking`, `bypass`, or a knob. `place` is the option that says so.
    pub(crate) fn set(&mut self, name: &str, value: &str, place: String) {
        let value = value.to_owned();
        match name {
            "device" => self.setup.device = value,
            // This clock is for a comparison of time stamps. A single run would show no latency by it.
            "stamps" if value == "0" => self.setup.clock = ClockKind::Still,
            "stamps" if value == "1" => self.setup.clock = ClockKind::Exact,
            "scheduler" => self.setup.scheduler = Some(value.into()),
            "locking" => self.locking = Some(value),
            "bypass" => self.bypass = Some(value),
            _ => self.setup.settings.push((name.to_owned(), value)),
        }
        self.places.push((name.to_owned(), place));
    }

    /// Sets a knob by `NAME=VALUE`, given with `--set`. Of the settings that a queue is built with, only `locking` and
    /// `bypass` are knobs as well. As knobs, too, they are set when the queue is built, because the default of `bypass`
    /// depends on `locking`. `stamps` is not a knob, but a run without stamps is useful in a comparison.
    pub(crate) fn set_knob(&mut self, text: &str) -> Result<(), TextError> {
        let (name, value) = assignment(text)?;
        let place = format!("--set {text}");
        if name == "stamps" && self.setup.clock == ClockKind::Virtual {
            let what = "on virtual time requests have no stamps of another kind; leave out --clock virtual".to_owned();
            return Err(TextError { place, what });
        }
        if matches!(name, "locking" | "bypass" | "stamps") {
            self.set(name, value, place);
        } else {
            self.setup.settings.push((name.to_owned(), value.to_owned()));
            self.places.push((name.to_owned(), place));
        }
        Ok(())
    }

    /// Opens the device, and builds the queue for `jobs`, which come from `file`.
    pub(crate) fn open(&self, file: &str, jobs: &[Job]) -> Result<Bench, TextError> {
        self.over(self.open_device(jobs)?, file, jobs)
    }

    /// Opens the device for `jobs`.
    pub(crate) fn open_device(&self, jobs: &[Job]) -> Result<Arc<dyn Driver>, TextError> {
        let changes = jobs.iter().any(|job| job.operations != Operations::Only(Direction::Read));
        let is_virtual = self.setup.clock == ClockKind::Virtual;
        let intent = Intent { is_virtual, changes, overwrite: self.overwrite };
        let driver = device::open(&self.setup.device, Bench::nr_submitters(jobs), intent);
        let driver = driver.map_err(|what| self.fault("device", what))?;
        if jobs.iter().any(|job| job.operations.includes(Direction::Read)) {
            device::warn_reader(&self.setup.device, &*driver);
        }
        Ok(driver)
    }

    /// Builds the queue for `jobs`, which come from `file`, over this device.
    pub(crate) fn over(&self, driver: Arc<dyn Driver>, file: &str, jobs: &[Job]) -> Result<Bench, TextError> {
        let mut setup = self.setup.clone();
        if let Some(locking) = &self.locking {
            setup.locking = locking.parse().map_err(|error: QueueError| self.fault("locking", error.to_string()))?;
        }
        if let Some(bypass) = &self.bypass {
            setup.bypass = Some(switch(bypass).map_err(|what| self.fault("bypass", what))?);
        }
        Bench::over(driver, jobs, &setup).map_err(|error| match &error {
            BenchError::Queue(QueueError::UnknownScheduler(_)) => self.fault("scheduler", error.to_string()),
            BenchError::Device(_) | BenchError::Queue(_) => self.fault("device", error.to_string()),
            BenchError::Setting { name, error, .. } => self.fault(name, error.to_string()),
            _ => TextError { place: file.to_owned(), what: error.to_string() },
        })
    }

    /// An error in the value of a setting, at the place that set it.
    pub(crate) fn fault(&self, name: &str, what: String) -> TextError {
        let place = self.places.iter().rfind(|(set, _)| set == name);
        TextError { place: place.map_or_else(|| format!("--{name}"), |(_, place)| place.clone()), what }
    }

    /// What `bench` runs on, in words.
    pub(crate) fn subject(&self, bench: &Bench) -> Subject {
        Subject {
            device: self.setup.device.clone(),
            scheduler: bench.queue().scheduler().to_owned(),
            locking: bench.queue().locking().to_string(),
            bypass: bench.queue().has_bypass(),
            stamps: bench.stamps().name(),
        }
    }
}

/// A knob and the two values that are compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) knob: String,
    pub(crate) values: [String; 2],
    /// As it was given.
    text: String,
}

impl Pair {
    /// Reads `KNOB=A,B`, or `KNOB=A::B` where values contain commas, as those of `device` do.
    pub(crate) fn parse(text: &str) -> Result<Self, TextError> {
        let fault = || TextError {
            place: format!("--ab {text}"),
            what: format!(
                "'{text}' is not of the form KNOB=A,B, as in 'scheduler=none,mq-deadline', or KNOB=A::B, as in \
                 'device=null,irqmode=0::null,irqmode=2'"
            ),
        };
        let (knob, values) = assignment(text).map_err(|_| fault())?;
        let parts = values.split(if values.contains("::") { "::" } else { "," });
        let [a, b] = parts.collect::<Vec<_>>()[..] else { return Err(fault()) };
        if a.is_empty() || b.is_empty() {
            return Err(fault());
        }
        Ok(Self { knob: knob.to_owned(), values: [a.to_owned(), b.to_owned()], text: text.to_owned() })
    }

    /// The two targets, which differ only in the knob.
    pub(crate) fn targets(&self, base: &Target) -> [Target; 2] {
        self.values.each_ref().map(|value| {
            let mut target = base.clone();
            target.set(&self.knob, value, format!("--ab {}", self.text));
            target
        })
    }
}
