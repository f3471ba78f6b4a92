//! `blkmq judge --oracle`: how near bfq is to Linux's.

use std::io::{self, Write};
use std::path::Path;

use blkmq_workbench::oracle::{self, Figure, JobOutcome, LEAST_SHARES, Recording, Row, Share, Summary};
use serde_json::json;

use blkmq_program::{Failure, columns, json};

/// Judges the recordings of a folder, and prints the table.
pub(super) fn run(folder: &Path, as_json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    let rows = oracle::judge(&Recording::folders(folder)?)?;
    let groups = oracle::summaries(&rows);
    if as_json {
        return json::print(&json!({ "recordings": rows, "groups": groups }), out);
    }
    for group in &groups {
        let name = group.group.name;
        writeln!(out, "{name}  {}", group.group.what)?;
        let own: Vec<&Row> = rows.iter().filter(|row| row.group == name).collect();
        write_table(&own, group, out)?;
        writeln!(out)?;
    }
    writeln!(out, "Outcomes: the same load on virtual time, and what of it lies where Linux's runs lie")?;
    write_outcomes(&rows, out)?;
    writeln!(out)?;
    let missed = misses(&rows, &groups);
    if missed.is_empty() {
        writeln!(out, "Nothing is missed.")?;
    } else {
        writeln!(out, "missed:")?;
        missed.iter().try_for_each(|line| writeln!(out, "  {line}"))?;
    }
    Ok(())
}

/// A line for each recording, and one for the means.
fn write_table(rows: &[&Row], group: &Summary, out: &mut dyn Write) -> io::Result<()> {
    let head = ["", "stay", "switch", "nothing", "plain", "balanced", "inside", "expirations", "part", "made"];
    let mut lines = Vec::new();
    let part = |part: Option<f64>| part.map_or_else(|| "-".to_owned(), |part| format!("{part:.4}"));
    let of = |share: Share| format!("{}/{}", share.alike, share.all);
    for row in rows {
        let score = &row.score;
        // What is hardly contested is told, and not judged.
        let balanced = match row.balanced {
            Some(balanced) if !row.is_contested => format!("({balanced:.4})"),
            balanced => part(balanced),
        };
        lines.push(vec![
            format!("  {}", row.name),
            of(score.stay),
            of(score.switch),
            of(score.nothing),
            part(row.plain),
            balanced,
            part(score.inside.part()),
            of(score.expired),
            part(score.expired.part()),
            score.made.to_string(),
        ]);
    }
    let mut means = vec![String::new(); head.len()];
    "  mean".clone_into(&mut means[0]);
    means[5] = part(group.mean_balanced);
    means[8] = part(group.mean_expired);
    lines.push(means);
    columns::write(&head, lines, 1, 6, out)
}

/// A line for each recording whose load is modelled: of how many jobs the share is Linux's, and so on.
fn write_outcomes(rows: &[Row], out: &mut dyn Write) -> io::Result<()> {
    let head = ["", "shares", "mean", "p99", "expirations"];
    let mut lines = Vec::new();
    for row in rows {
        let Some(outcome) = &row.outcome else { continue };
        let of_jobs = |figure: fn(&JobOutcome) -> &Figure| count(outcome.jobs.iter().map(figure));
        lines.push(vec![
            format!("  {}", row.name),
            of_jobs(|job| &job.share),
            of_jobs(|job| &job.mean_ms),
            of_jobs(|job| &job.p99_ms),
            count(outcome.expired.iter()),
        ]);
    }
    let Share { all, alike } = oracle::shares(rows);
    let mut sum = vec![String::new(); head.len()];
    "  all shares".clone_into(&mut sum[0]);
    sum[1] = format!("{alike}/{all}");
    lines.push(sum);
    columns::write(&head, lines, 1, 6, out)
}

fn count<'a>(figures: impl Iterator<Item = &'a Figure> + Clone) -> String {
    format!("{}/{}", figures.clone().filter(|figure| figure.is_linuxs()).count(), figures.count())
}

/// What is missed, a line for each group and each recording that misses anything.
fn misses(rows: &[Row], groups: &[Summary]) -> Vec<String> {
    let of_groups = groups.iter().map(|group| (format!("group {}", group.group.name), &group.missed));
    let of_rows = rows.iter().map(|row| (row.name.clone(), &row.missed));
    let missed = of_groups.chain(of_rows).filter(|(_, missed)| !missed.is_empty());
    let mut lines: Vec<String> = missed.map(|(name, missed)| format!("{name}: {}", missed.join("; "))).collect();
    if let Some(part) = oracle::shares(rows).part().filter(|part| *part < LEAST_SHARES) {
        lines.push(format!("shares: Linux's in {part:.2} of the recordings, under {LEAST_SHARES}"));
    }
    lines
}
