//! What a load runs on: a device, the scheduler in front of it, and their settings.

use blkmq_workbench::bench::{Bench, BenchError, ClockKind, Setup};
use blkmq_workbench::{Job, Subject, TextError, assignment};
use clap::ValueEnum;

/// How threads may share the scheduler.
pub(crate) const LOCKINGS: [&str; 1] = ["single"];

/// The time that a load runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Time {
    Real,
    Virtual,
}

/// What a load runs on.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    setup: Setup,
    locking: String,
    bypass: String,
    /// The options that set something, by its name, the latest last: for errors.
    places: Vec<(String, String)>,
}

impl Target {
    /// A device with everything else as it is by default.
    pub(crate) fn new(device: &str, clock: Time) -> Self {
        let clock = if clock == Time::Real { ClockKind::Real } else { ClockKind::Virtual };
        let setup = Setup { clock, ..Setup::new(device) };
        Self { setup, locking: "single".to_owned(), bypass: "0".to_owned(), places: Vec::new() }
    }

    /// Sets what is called `device`, `scheduler`, `locking` or `bypass`, or a knob. `place` is the option that says so.
    pub(crate) fn set(&mut self, name: &str, value: &str, place: String) {
        let value = value.to_owned();
        match name {
            "device" => self.setup.device = value,
            // What a comparison of time stamps needs; as the clock of a run it would tell no latency.
            "stamps" if value == "0" => self.setup.clock = ClockKind::Still,
            "stamps" if value == "1" => self.setup.clock = ClockKind::Exact,
            "scheduler" => self.setup.scheduler = Some(value),
            "locking" => self.locking = value,
            "bypass" => self.bypass = value,
            _ => self.setup.settings.push((name.to_owned(), value)),
        }
        self.places.push((name.to_owned(), place));
    }

    /// The device's spec.
    pub(crate) fn device(&self) -> &str {
        &self.setup.device
    }

    /// Sets a knob by `NAME=VALUE`, given with `--set`.
    pub(crate) fn set_knob(&mut self, text: &str) -> Result<(), TextError> {
        let (name, value) = assignment(text)?;
        self.setup.settings.push((name.to_owned(), value.to_owned()));
        self.places.push((name.to_owned(), format!("--set {text}")));
        Ok(())
    }

    /// Builds the queue for `jobs`, which come from `file`.
    pub(crate) fn open(&self, file: &str, jobs: &[Job]) -> Result<Bench, TextError> {
        if !LOCKINGS.contains(&self.locking.as_str()) {
            let accepted = LOCKINGS.join(", ");
            return Err(self.fault("locking", format!("there is no locking '{}'; accepted: {accepted}", self.locking)));
        }
        if self.bypass != "0" {
            let what = format!("'{}' is not accepted: no request bypasses a scheduler yet; accepted: 0", self.bypass);
            return Err(self.fault("bypass", what));
        }
        Bench::new(jobs, &self.setup).map_err(|error| match &error {
            BenchError::Device(what) => self.fault("device", what.clone()),
            BenchError::Scheduler(what) => self.fault("scheduler", what.clone()),
            BenchError::Setting(setting, what) => {
                self.fault(setting.split('=').next().unwrap_or_default(), what.clone())
            }
            _ => TextError { place: file.to_owned(), what: error.to_string() },
        })
    }

    fn fault(&self, name: &str, what: String) -> TextError {
        let place = self.places.iter().rfind(|(set, _)| set == name);
        TextError { place: place.map_or_else(|| format!("--{name}"), |(_, place)| place.clone()), what }
    }

    /// What `bench` runs on, in words.
    pub(crate) fn subject(&self, bench: &Bench) -> Subject {
        Subject {
            device: self.setup.device.clone(),
            scheduler: bench.queue().scheduler().to_owned(),
            locking: self.locking.clone(),
            bypass: self.bypass == "1",
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

    /// The two targets, alike but for the knob.
    pub(crate) fn targets(&self, base: &Target) -> [Target; 2] {
        self.values.each_ref().map(|value| {
            let mut target = base.clone();
            target.set(&self.knob, value, format!("--ab {}", self.text));
            target
        })
    }
}
