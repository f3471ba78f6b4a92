//! The output of a replay in order of dispatch: the choices of our scheduler next to those of Linux.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use blkmq_workbench::order::{Agreement, Choice, Request};
use serde::Serialize;

use blkmq_program::{Failure, json};

/// A file that is written line by line, if it is asked for.
pub(super) struct List<'a>(Option<(&'a Path, BufWriter<File>)>);

impl<'a> List<'a> {
    /// Makes the file, empty.
    pub(super) fn create(path: Option<&'a Path>) -> Result<Self, Failure> {
        let create = |path: &'a Path| match File::create(path) {
            Ok(file) => Ok((path, BufWriter::new(file))),
            Err(error) => Err(Failure::writing(path.display(), &error)),
        };
        path.map(create).transpose().map(Self)
    }

    pub(super) fn write(&mut self, lines: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
        let Some((path, out)) = &mut self.0 else { return Ok(()) };
        lines(out).map_err(|error| Failure::writing(path.display(), &error))
    }

    /// Writes what is still in memory.
    pub(super) fn finish(mut self) -> Result<(), Failure> {
        self.write(|out| out.flush())
    }
}

/// The comparison in words. `has_depths`: the scheduler takes tokens, of which it changes the depths.
pub(super) fn tell(
    agreement: &Agreement,
    scheduler: &str,
    has_depths: bool,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let Agreement { choices, agree, ref disagreements, adjustments } = *agreement;
    if choices == 0 {
        writeln!(out, "The device took no request in this trace: there is nothing to compare.")?;
        return Ok(());
    }
    let disagree = agreement.disagree();
    writeln!(
        out,
        "{scheduler}: {choices} choices, {agree} as Linux, {disagree} otherwise: {:.2} % agreement",
        agreement.percent()
    )?;
    for choice in disagreements {
        writeln!(out, "  {choice}")?;
    }
    let shown = disagreements.len() as u64;
    if disagree > shown {
        writeln!(out, "  and {} more", disagree - shown)?;
    }
    if has_depths {
        writeln!(out, "{adjustments} new depths")?;
    }
    Ok(())
}

/// The comparison for programs.
pub(super) fn tell_programs(agreement: &Agreement, has_depths: bool, out: &mut dyn Write) -> Result<(), Failure> {
    let Agreement { choices, agree, ref disagreements, adjustments } = *agreement;
    let summary = Summary {
        choices,
        agree,
        disagree: agreement.disagree(),
        adjustments: has_depths.then_some(adjustments),
        first: disagreements.first().map(Disagreement::of),
    };
    json::print(&summary, out)
}

#[derive(Debug, Serialize)]
struct Summary {
    choices: u64,
    agree: u64,
    disagree: u64,
    /// How many depths were changed; `None` if the scheduler has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    adjustments: Option<u64>,
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
