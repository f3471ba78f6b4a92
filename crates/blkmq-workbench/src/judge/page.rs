//! A judgement as the sections of a report.

use super::deadlines::LONGEST;
use super::row::{INDEX, Row};
use super::shares::{CONNECTIONS, TEST as SHARES, victim_case};
use super::verdict::{distinct, schedulers, verdict};
use super::{TESTS, Test};
use crate::report::{Axis, Bar, Bars, Content, Group, Line, Lines, Scale, Section, Table, Unit, milliseconds};

/// From this ratio of the longest bar to the shortest on, the axis is logarithmic.
const SPAN: f64 = 30.0;

/// The sections of a report about `rows`: what they come to, the plots of each test, and a table of all rows.
#[must_use]
pub fn sections(rows: &[Row]) -> Vec<Section> {
    let mut sections = vec![summary(rows)];
    for test in &TESTS {
        let own: Vec<&Row> = rows.iter().filter(|row| row.id == test.id).collect();
        for unit in distinct(own.iter().map(|row| row.unit)) {
            let of_unit: Vec<&Row> = own.iter().copied().filter(|row| row.unit == unit).collect();
            sections.push(bars(test, unit, &of_unit));
        }
        if test.id == SHARES.id && !own.is_empty() {
            sections.push(victims(&own));
        }
    }
    sections.push(table(rows));
    sections
}

/// The verdict, with the counts that it comes from.
fn summary(rows: &[Row]) -> Section {
    let head = ["scheduler", "targets met", "targets", "longest wait"].map(str::to_owned).to_vec();
    let line = |scheduler: &str| {
        let own = || rows.iter().filter(|row| row.scheduler == scheduler);
        let count = |passes: Option<bool>| own().filter(|row| row.pass == passes).count();
        let (met, missed) = (count(Some(true)), count(Some(false)));
        let waits = own().filter(|row| row.case.ends_with(LONGEST)).map(|row| row.value).reduce(f64::max);
        let wait = waits.map_or_else(String::new, milliseconds);
        vec![scheduler.to_owned(), met.to_string(), (met + missed).to_string(), wait]
    };
    let (note, rows) = (verdict(rows), schedulers(rows).into_iter().map(line).collect());
    Section { title: "Verdict".to_owned(), note, content: Content::Table(Table { head, rows }) }
}

fn bars(test: &Test, unit: &'static str, rows: &[&Row]) -> Section {
    let series = distinct(rows.iter().map(|row| row.scheduler.clone()));
    let cases = distinct(rows.iter().map(|row| &*row.case));
    let bar = |case: &str, scheduler: &String| {
        let row = rows.iter().find(|row| row.case == case && row.scheduler == *scheduler);
        row.map(|row| Bar::new(row.value))
    };
    let groups = cases.iter().map(|case| Group {
        name: (*case).to_owned(),
        bars: series.iter().map(|scheduler| bar(case, scheduler)).collect(),
    });
    let meanings = distinct(rows.iter().map(|row| row.meaning)).join(" ");
    let scale = scale_of(rows.iter().map(|row| row.value));
    let content = Bars { value: Axis::new(unit, scale, Unit::Number), baseline: 0.0, groups: groups.collect(), series };
    let of_unit = if unit == INDEX { String::new() } else { format!(" in {unit}") };
    let title = format!("{}{of_unit}: {}", test.id, test.title);
    Section { title, note: meanings, content: Content::Bars(content) }
}

/// A logarithmic scale where the longest bar would leave nothing to see of the shortest.
fn scale_of(values: impl Iterator<Item = f64>) -> Scale {
    let visible = values.filter(|value| value.is_finite() && *value > 0.0);
    let (least, most) = visible.fold((f64::INFINITY, 0.0), |(least, most), value| (value.min(least), value.max(most)));
    if most >= SPAN * least { Scale::Log } else { Scale::Linear }
}

/// What a victim keeps, by the aggressor's connections.
fn victims(rows: &[&Row]) -> Section {
    let line = |scheduler: &String| {
        let share = |connections: u32| {
            let case = victim_case(connections);
            let row = rows.iter().find(|row| row.case == case && row.scheduler == *scheduler);
            row.map(|row| (f64::from(connections), row.value))
        };
        Line { name: scheduler.clone(), points: CONNECTIONS.into_iter().filter_map(share).collect() }
    };
    let schedulers = distinct(rows.iter().map(|row| row.scheduler.clone()));
    let lines = Lines {
        x: Axis::linear("connections of the aggressor", Unit::Number),
        y: Axis::linear("what the victim gets", Unit::Percent),
        lines: schedulers.iter().map(line).collect(),
    };
    let note = "What one client keeps beside another one of so many connections, each in a group of its own; half is its share.";
    Section {
        title: format!("{}: a victim beside an aggressor", SHARES.id),
        note: note.to_owned(),
        content: Content::Lines(lines),
    }
}

fn table(rows: &[Row]) -> Section {
    let head = ["test", "scheduler", "case", "value", "unit", "target", "pass"].map(str::to_owned).to_vec();
    let line = |row: &Row| {
        let target = row.target.map_or_else(String::new, |target| target.to_string());
        let pass = match row.pass {
            Some(true) if row.is_too_long() => "yes, and too long",
            Some(true) => "yes",
            Some(false) => "no",
            None => "",
        };
        let words = [row.id, &row.scheduler, &row.case, &row.value.to_string(), row.unit, &target, pass];
        words.map(str::to_owned).to_vec()
    };
    let content = Content::Table(Table { head, rows: rows.iter().map(line).collect() });
    let note = "A row without a target is about something that the scheduler does not promise.";
    Section { title: "All rows".to_owned(), note: note.to_owned(), content }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if bars that differ by tens share a linear axis, on which the short ones cannot be seen.
    #[test]
    fn bars_that_differ_by_tens_have_a_logarithmic_axis() {
        assert_eq!(scale_of([1.4, 134.0, 0.0].into_iter()), Scale::Log);
        assert_eq!(scale_of([98.0, 40.0, f64::INFINITY].into_iter()), Scale::Linear);
        assert_eq!(scale_of([0.0].into_iter()), Scale::Linear);
    }
}
