//! What a judgement comes to, in a few sentences.

use super::deadlines::LONGEST;
use super::row::Row;
use super::{deadlines, flood};
use crate::report::milliseconds;

/// What the rows come to: who misses targets, who is quickest beside a flood, and how long anybody waits.
#[must_use]
pub fn verdict(rows: &[Row]) -> String {
    let sentences = [targets(rows), beside_flood(rows), longest_wait(rows)];
    sentences.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// Each scheduler once, in the order of the rows.
#[must_use]
pub fn schedulers(rows: &[Row]) -> Vec<&str> {
    distinct(rows.iter().map(|row| &*row.scheduler))
}

/// Each value once, in the order of the first time.
pub(super) fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    values.fold(Vec::new(), |mut seen, value| {
        if !seen.contains(&value) {
            seen.push(value);
        }
        seen
    })
}

fn targets(rows: &[Row]) -> Option<String> {
    let counts = schedulers(rows).into_iter().map(|scheduler| {
        let aimed = rows.iter().filter(|row| row.scheduler == scheduler && row.pass.is_some());
        (scheduler, aimed.clone().filter(|row| row.pass == Some(false)).count(), aimed.count())
    });
    let aiming: Vec<_> = counts.filter(|(.., aimed)| *aimed > 0).collect();
    let missing: Vec<String> = aiming
        .iter()
        .filter(|(_, missed, _)| *missed > 0)
        .map(|(scheduler, missed, aimed)| format!("{scheduler} misses {missed} of its {aimed} targets"))
        .collect();
    match (missing.is_empty(), aiming.len() - missing.len()) {
        (_, 0) if missing.is_empty() => None,
        (true, _) => Some("Every scheduler does what it promises.".to_owned()),
        (false, 0) => Some(format!("{}.", missing.join(", "))),
        (false, _) => Some(format!("{}; every other scheduler does what it promises.", missing.join(", "))),
    }
}

/// The quickest scheduler for a reader beside the largest flood of writes, and what the reader has without one.
fn beside_flood(rows: &[Row]) -> Option<String> {
    let case = flood::headline();
    let of_case = || rows.iter().filter(|row| row.id == flood::TEST.id && row.case == case);
    let best = of_case().min_by(|a, b| a.value.total_cmp(&b.value))?;
    let mut text = format!(
        "Beside {}, 99 of 100 reads take no longer than {} with {}",
        case.trim_end_matches(": p99"),
        milliseconds(best.value),
        best.scheduler
    );
    if let Some(none) = of_case().find(|row| row.scheduler == "none" && row.value > best.value) {
        text += &format!(", and {} with none", milliseconds(none.value));
    }
    Some(text + ".")
}

/// Who waits longest, and whether anybody would put up with it.
fn longest_wait(rows: &[Row]) -> Option<String> {
    let waits = rows.iter().filter(|row| row.id == deadlines::TEST.id && row.case.ends_with(LONGEST));
    let worst = waits.max_by(|a, b| a.value.total_cmp(&b.value))?;
    let who = worst.case.trim_end_matches(LONGEST).trim_end_matches(": ");
    let mut text = format!("The longest wait is {} with {} ({who})", milliseconds(worst.value), worst.scheduler);
    if worst.is_too_long() {
        text += if worst.pass == Some(true) { ": as promised, and too long" } else { ": too long" };
    }
    Some(text + ".")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::row::{Figure, Target};

    fn row(id: &'static str, scheduler: &str, case: &str, value: f64, target: Option<f64>) -> Row {
        let figure = Figure::new(case, value, "ms", "");
        figure.aims(target.is_some(), Target::AtMost(target.unwrap_or_default())).row(id, scheduler)
    }

    /// Red if the sentences leave out who misses targets, call a wait of ten seconds good, or praise the slowest.
    #[test]
    fn a_judgement_comes_to_a_few_sentences() {
        let mut rows = vec![
            row("Q7", "none", "32 writers: p99", 134.0, None),
            row("Q7", "kyber", "32 writers: p99", 1.4, Some(4.0)),
            row("Q8", "none", "the idle class: longest wait", 2.0, None),
            row("Q8", "mq-deadline", "the idle class: longest wait", 10_018.0, Some(10_050.0)),
        ];
        assert_eq!(
            verdict(&rows),
            "Every scheduler does what it promises. Beside 32 writers, 99 of 100 reads take no longer than 1.4 ms with \
             kyber, and 134 ms with none. The longest wait is 10 s with mq-deadline (the idle class): as promised, and too \
             long."
        );
        assert!(rows[3].is_too_long() && !rows[0].is_too_long());
        rows.push(row("Q5", "kyber", "p99 added", 9.0, Some(2.0)));
        assert!(verdict(&rows).starts_with("kyber misses 1 of its 2 targets; every other scheduler does"));
        assert_eq!(verdict(&rows[4..]), "kyber misses 1 of its 1 targets.");
        assert_eq!(verdict(&[]), "");
    }
}
