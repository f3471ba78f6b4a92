//! What a run came to, in words and for JSON.

use std::io::Write;

use blkmq_program::Failure;
use blkmq_program::render::{counted, short};
use serde::Serialize;

/// The results. Seeds and hashes have 64 bits and are written as text, because readers of JSON may know numbers only up
/// to 2^53.
#[derive(Debug, Serialize)]
pub(super) struct Found {
    pub(super) version: String,
    pub(super) seed: String,
    /// Operations of clean worlds. The next fields count clean worlds too.
    pub(super) requests: u64,
    pub(super) worlds: u64,
    pub(super) steps: u64,
    pub(super) hash: String,
    pub(super) seconds: f64,
    /// The world that took the most steps for each operation.
    pub(super) heaviest: Option<HeaviestWorld>,
    /// Whether Ctrl-C ended the run.
    pub(super) interrupted: bool,
    pub(super) failure: Option<FoundFailure>,
}

#[derive(Debug, Serialize)]
pub(super) struct HeaviestWorld {
    pub(super) seed: String,
    pub(super) requests: u64,
    pub(super) steps_per_request: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct FoundFailure {
    pub(super) seed: String,
    pub(super) requests: u64,
    pub(super) rule: &'static str,
    pub(super) what: String,
    pub(super) step: u64,
    pub(super) time_ns: u64,
    pub(super) cpu: u16,
    /// The command that plays only this world.
    pub(super) repeat: String,
    /// Whether no shorter world that had to be tried fails. False if the search took too long, or was not wanted.
    pub(super) shortest: bool,
    pub(super) repeatable: bool,
    pub(super) history: Vec<String>,
    pub(super) left_out: u64,
}

impl Found {
    /// Says in words what a run came to.
    pub(super) fn write(&self, out: &mut dyn Write) -> Result<(), Failure> {
        let Self { seed, requests, worlds, steps, hash, seconds, .. } = self;
        if let Some(failure) = &self.failure {
            writeln!(out, "clean until then: {}, {}", counted(*worlds, "world"), counted(*requests, "request"))?;
            return failure.write(&self.version, out);
        }
        if *worlds == 0 {
            writeln!(out, "no world was played to its end")?;
            return Ok(());
        }
        let (worlds, rate, steps) =
            (counted(*worlds, "world"), short(*requests as f64 / seconds), short(*steps as f64));
        writeln!(out, "{worlds}, {steps} steps in {seconds:.1} s; {rate} requests/s")?;
        if let Some(HeaviestWorld { seed, requests, steps_per_request }) = &self.heaviest {
            let each = short(*steps_per_request as f64);
            writeln!(out, "most steps for an operation: {each}, in the world of seed {seed}, requests {requests}")?;
        }
        writeln!(out, "clean: seed {seed}, requests {requests}, hash {hash}")?;
        Ok(())
    }
}

impl FoundFailure {
    fn write(&self, version: &str, out: &mut dyn Write) -> Result<(), Failure> {
        let Self { seed, requests, rule, what, repeat, .. } = self;
        writeln!(out, "what happened to the operations and requests concerned, what changed the queue, and the end:")?;
        if self.left_out > 0 {
            writeln!(out, "  ({} earlier lines are left out; --replay tells them)", self.left_out)?;
        }
        for line in &self.history {
            writeln!(out, "  {line}")?;
        }
        writeln!(out, "broken: {rule}: {what}")?;
        writeln!(out, "seed {seed}, {} of its world; {version}", counted(*requests, "request"))?;
        if !self.shortest {
            writeln!(out, "the search for a shorter one was not completed: a shorter one may fail too")?;
        }
        if !self.repeatable {
            writeln!(
                out,
                "a second play of this world went another way: the rig itself is at fault, or the time that it measured"
            )?;
        }
        writeln!(out, "repeat: {repeat}")?;
        Ok(())
    }
}
