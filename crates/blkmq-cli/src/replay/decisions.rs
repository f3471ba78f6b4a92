//! The output of a replay of decisions: how often ours are Linux's.

use std::io::{self, Write};
use std::path::Path;

use blkmq_workbench::TextError;
use blkmq_workbench::oracle::{Score, Share};
use blkmq_workbench::order::Replayed;
use serde::Serialize;

use super::order::List;

use blkmq_program::{Failure, json};

/// The file of decisions cannot be opened.
pub(super) fn unreadable(path: &Path, error: &io::Error) -> TextError {
    TextError { place: path.display().to_string(), what: error.to_string() }
}

/// The files that list what our scheduler decides.
pub(super) struct Lists {
    choices: Option<List>,
    expirations: Option<List>,
}

impl Lists {
    /// Makes the files that are asked for.
    pub(super) fn create(choices: Option<&Path>, expirations: Option<&Path>) -> Result<Self, Failure> {
        let [choices, expirations] = [choices, expirations].map(|path| path.map(List::create).transpose());
        Ok(Self { choices: choices?, expirations: expirations? })
    }

    /// Writes what our scheduler decided at a step.
    pub(super) fn add(&mut self, replayed: &Replayed) -> Result<(), Failure> {
        if let (Some(list), Some(answer)) = (&mut self.choices, replayed.answer) {
            list.write(|out| answer.write(out))?;
        }
        match &mut self.expirations {
            Some(list) => replayed.expired.iter().try_for_each(|expired| list.write(|out| expired.write(out))),
            None => Ok(()),
        }
    }

    /// Writes what is still in memory.
    pub(super) fn finish(self) -> Result<(), Failure> {
        [self.choices, self.expirations].into_iter().flatten().try_for_each(List::finish)
    }
}

/// The comparison in words.
pub(super) fn tell(score: &Score, out: &mut dyn Write) -> Result<(), Failure> {
    let of = |share: Share| format!("{} of {}", share.alike, share.all);
    let part = |part: Option<f64>| part.map_or_else(|| "-".to_owned(), |part| format!("{part:.4}"));
    let contested = score.contested();
    writeln!(out, "bfq: asked {} times", score.asks)?;
    writeln!(out, "  contested    {} as Linux: {}", of(contested), part(contested.part()))?;
    writeln!(out, "    stays      {}", of(score.stay))?;
    writeln!(out, "    switches   {}", of(score.switch))?;
    writeln!(out, "    nothing    {}", of(score.nothing))?;
    writeln!(out, "  balanced     {}", part(score.balanced()))?;
    writeln!(out, "  inside       {}: {}", of(score.inside), part(score.inside.part()))?;
    writeln!(out, "  expirations  {} of Linux's, {} made", of(score.expired), score.made)?;
    Ok(())
}

/// The comparison for programs.
pub(super) fn tell_programs(score: &Score, out: &mut dyn Write) -> Result<(), Failure> {
    json::print(&Summary { plain: score.contested().part(), balanced: score.balanced(), score }, out)
}

#[derive(Debug, Serialize)]
struct Summary<'a> {
    plain: Option<f64>,
    balanced: Option<f64>,
    #[serde(flatten)]
    score: &'a Score,
}
