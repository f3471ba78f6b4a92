//! The output of a replay in order of dispatch: the choices of our scheduler next to those of Linux.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use blkmq_workbench::order::{Agreement, Choice, Request};
use serde::Serialize;

use blkmq_program::{Failure, json};

/// The most disagreements that are described in words.
const TOLD: usize = 5;

/// Writes our choices to a file.
pub(super) fn write_choices(path: &Path, agreement: &Agreement) -> Result<(), Failure> {
    write(path, |out| agreement.write_choices(out))
}

/// Writes the depths that our scheduler's control changed to a file.
pub(super) fn write_adjustments(path: &Path, agreement: &Agreement, scheduler: &str) -> Result<(), Failure> {
    if agreement.adjustments.is_none() {
        return Err(Failure::Input(format!("--adjustments: {scheduler} has no depths to adjust; kyber has")));
    }
    write(path, |out| agreement.write_adjustments(out))
}

/// Writes a file.
pub(super) fn write(path: &Path, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
    let write = || {
        let mut out = BufWriter::new(File::create(path)?);
        content(&mut out)?;
        out.flush()
    };
    write().map_err(|error| Failure::writing(path.display(), &error))
}

/// The comparison in words.
pub(super) fn tell(agreement: &Agreement, scheduler: &str, out: &mut dyn Write) -> Result<(), Failure> {
    let (choices, agree) = (agreement.choices.len(), agreement.agree());
    if choices == 0 {
        writeln!(out, "The device took no request in this trace: there is nothing to compare.")?;
        return Ok(());
    }
    let disagree = choices - agree;
    writeln!(
        out,
        "{scheduler}: {choices} choices, {agree} as Linux, {disagree} otherwise: {:.2} % agreement",
        agreement.percent()
    )?;
    for choice in agreement.disagreements().take(TOLD) {
        writeln!(out, "  {choice}")?;
    }
    if disagree > TOLD {
        writeln!(out, "  and {} more", disagree - TOLD)?;
    }
    if let Some(adjustments) = &agreement.adjustments {
        writeln!(out, "{} new depths", adjustments.len())?;
    }
    Ok(())
}

/// The comparison for programs.
pub(super) fn tell_programs(agreement: &Agreement, out: &mut dyn Write) -> Result<(), Failure> {
    json::print(&Summary::of(agreement), out)
}

#[derive(Debug, Serialize)]
struct Summary {
    choices: usize,
    agree: usize,
    disagree: usize,
    /// How many depths were changed; `None` if the scheduler has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    adjustments: Option<usize>,
    first: Option<Disagreement>,
}

/// A choice on which Linux and our scheduler differ.
#[derive(Debug, Serialize)]
struct Disagreement {
    time_ns: u64,
    linux: Chosen,
    ours: Option<Chosen>,
}

#[derive(Debug, Serialize)]
struct Chosen {
    sector: u64,
    direction: char,
    waited_ns: u64,
}

impl Summary {
    fn of(agreement: &Agreement) -> Self {
        let (choices, agree) = (agreement.choices.len(), agreement.agree());
        let first = agreement.disagreements().next().map(Disagreement::of);
        let adjustments = agreement.adjustments.as_ref().map(Vec::len);
        Self { choices, agree, disagree: choices - agree, adjustments, first }
    }
}

impl Disagreement {
    fn of(choice: &Choice) -> Self {
        Self { time_ns: choice.time, linux: Chosen::of(choice.linux), ours: choice.ours.map(Chosen::of) }
    }
}

impl Chosen {
    fn of(rq: Request) -> Self {
        Self { sector: rq.sector, direction: rq.direction(), waited_ns: rq.waited }
    }
}
