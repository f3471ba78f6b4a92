//! The published measurements that are repeated here: their jobs, and the settings of each row of a table.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::target::Time;

/// The file of tables.
#[derive(Debug, Deserialize)]
struct Tables {
    table: Vec<Table>,
}

/// A published measurement.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Table {
    pub(super) name: String,
    /// The question that it answers.
    pub(super) about: String,
    /// The job file's name.
    pub(super) file: String,
    /// The author, and the machine.
    pub(super) published: String,
    pub(super) clock: Time,
    /// Each adds rows for the ways to order requests on it.
    #[serde(default)]
    devices: Vec<Device>,
    /// Whether BFQ has rows on each device.
    #[serde(default)]
    bfq: bool,
    #[serde(default)]
    pub(super) rows: Vec<Row>,
    /// Gains that others published, whatever the way to run the job.
    #[serde(default)]
    pub(super) figures: Vec<Figure>,
}

/// A device on which a table has rows.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Device {
    /// The end of the names of its rows, if there are others.
    name: Option<String>,
    spec: String,
    /// Settings of the rows with a scheduler.
    #[serde(default)]
    set: Vec<(String, String)>,
    /// The published numbers by the names of rows.
    #[serde(default)]
    published: HashMap<String, Published>,
}

/// A way to run the job.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Row {
    pub(super) label: String,
    pub(super) device: String,
    /// What is set besides the device.
    pub(super) set: Vec<(String, String)>,
    /// The row that this row's gain is measured from. The first row names itself.
    #[serde(default)]
    pub(super) base: usize,
    /// The row without a scheduler, if this one has one.
    pub(super) none: Option<usize>,
    #[serde(default)]
    pub(super) published: Published,
}

/// The numbers that were published for the way in which a row runs the job.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Published {
    /// Operations per second.
    pub(super) iops: Option<f64>,
    /// The operations per second of the row that the gain is measured from, if they were published again.
    pub(super) base_iops: Option<f64>,
    /// Percent of the operations that were merged.
    pub(super) merged: Option<f64>,
}

/// A published gain.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Figure {
    pub(super) what: String,
    pub(super) machine: String,
    /// Operations per second.
    pub(super) before: f64,
    pub(super) after: f64,
    /// The part of `before` that was gained.
    #[serde(skip_deserializing)]
    pub(super) gain: f64,
    /// What else changed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) beside: String,
}

/// Returns after/before - 1, as the published tables have it.
pub(super) fn gain(before: f64, after: f64) -> f64 {
    after / before - 1.0
}

/// The names of all tables, in the order of `reproduce all`.
pub(super) const NAMES: [&str; 5] = ["scaling", "batch", "merge", "slow", "accounting"];

/// The table of that name.
pub(super) fn table(name: &str) -> Table {
    let Tables { table } = toml::from_str(include_str!("tables.toml")).expect("the tables are well formed");
    let mut table = table.into_iter().find(|table| table.name == name).expect("it is one of the tables");
    for device in &table.devices {
        device.add_rows(table.bfq, &mut table.rows);
    }
    for figure in &mut table.figures {
        figure.gain = gain(figure.before, figure.after);
    }
    table
}

/// The end of the names of rows in which no request has to wait.
pub(crate) const QUICK: &str = ", 1 queue";
/// The end of the names of rows in which requests wait.
pub(crate) const WAITING: &str = ", requests wait";

/// The rows of a table whose names end so, in the steps that tell the lockings and the bypass apart.
pub(super) fn in_short(name: &str, end: &str) -> Table {
    let mut table = table(name);
    let is_step = |way: &str| match way {
        "none" | "single" | "single, bypass" | "combining" | "combining, bypass" => true,
        "staged" | "batch" => end == QUICK,
        _ => false,
    };
    // The first two rows, to which the others are compared, stay where they are.
    table.rows.retain(|row| row.label.strip_suffix(end).is_some_and(is_step));
    table.figures.clear();
    table
}

/// The lockings, and `staged` step by step, as its measures were taken one after the other.
const LOCKINGS: [&str; 6] = ["single", "staged:dispatch", "staged:dispatch+merges", "staged", "batch", "combining"];

/// The lockings under which BFQ has rows beside those of mq-deadline, and whether requests may bypass it.
const BFQ_WAYS: [(&str, &str); 5] =
    [("single", "0"), ("staged", "0"), ("batch", "0"), ("combining", "0"), ("combining", "1")];

impl Table {
    /// The text of the job file.
    pub(super) fn job(&self) -> &'static str {
        match &*self.file {
            "scaling-32x4.fio" => include_str!("../../../blkmq-workbench/jobs/scaling-32x4.fio"),
            "batch-16x32.fio" => include_str!("../../../blkmq-workbench/jobs/batch-16x32.fio"),
            "merge-64x32.fio" => include_str!("../../../blkmq-workbench/jobs/merge-64x32.fio"),
            "accounting-32.fio" => include_str!("../../../blkmq-workbench/jobs/accounting-32.fio"),
            other => unreachable!("no table has the job '{other}'"),
        }
    }
}

impl Device {
    /// Adds rows for the ways to order requests: no scheduler; then mq-deadline under each locking, first without
    /// bypass and then with it; then BFQ. The gain of a row is over the scheduler's first row, which is Linux's way.
    fn add_rows(&self, has_bfq: bool, rows: &mut Vec<Row>) {
        let none = rows.len();
        let mut add = |way: &str, set: &[(&str, &str)], base| {
            let own = set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            rows.push(Row {
                label: self.name.as_ref().map_or_else(|| way.to_owned(), |name| format!("{way}, {name}")),
                device: self.spec.clone(),
                set: own.chain(self.set.iter().filter(|_| way != "none").cloned()).collect(),
                base,
                none: (way != "none").then_some(none),
                published: self.published.get(way).copied().unwrap_or_default(),
            });
        };
        add("none", &[("scheduler", "none")], none + 1);
        let ways = LOCKINGS.iter().flat_map(|locking| [(*locking, "0"), (*locking, "1")]);
        let of_bfq = BFQ_WAYS.into_iter().filter(|_| has_bfq);
        let first_of_bfq = none + 1 + 2 * LOCKINGS.len();
        let each = ways.map(|way| ("mq-deadline", "", none + 1, way));
        for (scheduler, prefix, base, (locking, bypass)) in
            each.chain(of_bfq.map(|way| ("bfq", "bfq, ", first_of_bfq, way)))
        {
            let way = format!("{prefix}{locking}{}", if bypass == "1" { ", bypass" } else { "" });
            add(&way, &[("scheduler", scheduler), ("locking", locking), ("bypass", bypass)], base);
        }
    }
}

#[cfg(test)]
mod tests {
    use blkmq::Locking;

    use super::*;

    #[test]
    fn each_locking_has_its_rows() {
        let known: Vec<Locking> = LOCKINGS.iter().map(|name| name.parse().unwrap()).collect();
        assert!(Locking::ALL.iter().all(|locking| known.contains(locking)));
    }

    /// Red if a gain is the ratio.
    #[test]
    fn a_gain_is_what_came_on_top() {
        let series = table("scaling").figures.into_iter().find(|figure| figure.after == 2311e3).unwrap();
        assert!((series.gain - 1.629).abs() < 0.001 && (gain(23_454.0, 6_361.0) + 0.729).abs() < 0.001);
    }

    #[test]
    fn a_name_has_its_table() {
        for name in NAMES {
            assert_eq!(table(name).name, name);
        }
    }

    /// Red if a row is compared with a row on another device, or not with `single`.
    #[test]
    fn every_row_is_compared_with_those_on_its_device() {
        let setting = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let has_bfq = |name| table(name).rows.iter().any(|row| row.label == "bfq, combining");
        assert!(has_bfq("batch") && has_bfq("merge"), "BFQ has its rows");
        let names = NAMES.into_iter().filter(|name| *name != "accounting");
        for table in names.map(table).chain([in_short("scaling", QUICK), in_short("waiting", WAITING)]) {
            let name = &table.name;
            assert!(table.rows.len() > 2, "{name}: there is more than `none` and `single`");
            for row in &table.rows {
                let base = &table.rows[row.base];
                let (own, label) = match row.label.strip_prefix("bfq, ") {
                    Some(_) => ("bfq", base.label.strip_prefix("bfq, ").expect("it is compared with its own")),
                    None => ("mq-deadline", &*base.label),
                };
                assert!(base.device == row.device && label.starts_with("single"), "{name}: {row:?}");
                assert!(base.set.contains(&setting("scheduler", own)), "{name}: {row:?}");
                assert!(base.set.contains(&setting("bypass", "0")), "{name}: {base:?}");
                let none = row.none.map(|none| &table.rows[none]);
                assert_eq!(none.is_none(), row.label.starts_with("none"), "{name}: {row:?}");
                assert!(
                    none.is_none_or(|none| none.device == row.device && none.set == [setting("scheduler", "none")])
                );
            }
        }
    }
}
