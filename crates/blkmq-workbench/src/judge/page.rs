//! A judgement as the sections of a report.

use super::row::Row;
use super::shares::{CONNECTIONS, TEST as SHARES, victim_case};
use super::{TESTS, Test};
use crate::report::{Axis, Bar, Bars, Content, Group, Line, Lines, Section, Table, Unit};

/// Each value once, in the order of the first time.
fn distinct<'r, T: PartialEq + 'r>(values: impl Iterator<Item = T>) -> Vec<T> {
    values.fold(Vec::new(), |mut seen, value| {
        if !seen.contains(&value) {
            seen.push(value);
        }
        seen
    })
}

/// The sections of a report about `rows`: the plots of each test, and a table of all rows.
#[must_use]
pub fn sections(rows: &[Row]) -> Vec<Section> {
    let mut sections = Vec::new();
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
    let label = if unit.is_empty() { "value".to_owned() } else { unit.to_owned() };
    let content = Bars { value: Axis::linear(label, Unit::Number), baseline: 0.0, groups: groups.collect(), series };
    let title = if unit.is_empty() {
        format!("{}: {}", test.id, test.title)
    } else {
        format!("{} in {unit}: {}", test.id, test.title)
    };
    Section { title, note: meanings, content: Content::Bars(content) }
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
        let pass = row.pass.map_or("", |pass| if pass { "yes" } else { "no" });
        let words = [row.id, &row.scheduler, &row.case, &row.value.to_string(), row.unit, &target, pass];
        words.map(str::to_owned).to_vec()
    };
    let content = Content::Table(Table { head, rows: rows.iter().map(line).collect() });
    let note = "A row without a target is about something that the scheduler does not promise.";
    Section { title: "All rows".to_owned(), note: note.to_owned(), content }
}
