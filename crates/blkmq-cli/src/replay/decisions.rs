//! The output of a replay of decisions: how often ours are Linux's.

use std::io::{self, Write};
use std::path::Path;

use blkmq_workbench::TextError;
use blkmq_workbench::oracle::{Score, Share};
use serde::Serialize;

use blkmq_program::{Failure, json};

/// The file of decisions cannot be opened.
pub(super) fn unreadable(path: &Path, error: &io::Error) -> TextError {
    TextError { place: path.display().to_string(), what: error.to_string() }
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
