//! The published measurements that are repeated here: their jobs, and the settings of each row of a table.

use serde::Serialize;

use crate::target::Time;

/// A published measurement.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) name: &'static str,
    /// The question that it answers.
    pub(super) about: &'static str,
    /// The job file's name, and its text.
    pub(super) file: &'static str,
    pub(super) job: &'static str,
    /// The author, and the machine.
    pub(super) published: &'static str,
    pub(super) clock: Time,
    pub(super) rows: Vec<Row>,
    /// Gains that others published, whatever the way to run the job.
    pub(super) figures: Vec<Figure>,
}

/// A way to run the job.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) label: String,
    pub(super) device: &'static str,
    /// What is set besides the device.
    pub(super) set: Vec<(&'static str, String)>,
    /// The row that this row's gain is measured from. The first row names itself.
    pub(super) base: usize,
    /// The row without a scheduler, if this one has one.
    pub(super) none: Option<usize>,
    pub(super) published: Published,
}

/// The numbers that were published for the way in which a row runs the job.
#[derive(Debug, Clone, Copy)]
pub(super) struct Published {
    /// Operations per second.
    pub(super) iops: Option<f64>,
    /// The operations per second of the row that the gain is measured from, if they were published again.
    pub(super) base_iops: Option<f64>,
    /// Percent of the operations that were merged.
    pub(super) merged: Option<f64>,
}

/// A published gain.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Figure {
    pub(super) what: &'static str,
    pub(super) machine: &'static str,
    /// Operations per second.
    pub(super) before: f64,
    pub(super) after: f64,
    /// The part of `before` that was gained.
    pub(super) gain: f64,
    /// What else changed.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) beside: &'static str,
}

const NOTHING: Published = Published { iops: None, base_iops: None, merged: None };

impl Published {
    const fn new(iops: f64) -> Self {
        Self { iops: Some(iops), ..NOTHING }
    }
}

fn figure(what: &'static str, machine: &'static str, [before, after]: [f64; 2], beside: &'static str) -> Figure {
    Figure { what, machine, before, after, gain: gain(before, after), beside }
}

/// Returns after/before - 1, as the published tables have it.
pub(super) fn gain(before: f64, after: f64) -> f64 {
    after / before - 1.0
}

/// The names of all tables, in the order of `reproduce all`.
pub(super) const NAMES: [&str; 5] = ["scaling", "batch", "merge", "slow", "accounting"];

/// The table of that name.
pub(super) fn table(name: &str) -> Table {
    match name {
        "scaling" => scaling(),
        "batch" => batch(),
        "merge" => merge(),
        "slow" => slow(),
        _ => accounting(),
    }
}

/// The lockings, and `staged` step by step, as its measures were taken one after the other.
const LOCKINGS: [&str; 6] = ["single", "staged:dispatch", "staged:dispatch+merges", "staged", "batch", "combining"];

/// The ways to order requests on one device, as rows of a table: no scheduler; then mq-deadline under each locking,
/// first without bypass and then with it. The gain of each row is over the first locking without bypass, which is
/// Linux's. `extra` holds settings for the rows with a scheduler, `published` the published numbers by the names of
/// rows.
fn ways(device: &'static str, extra: &[(&'static str, &str)], published: &[(&str, Published)]) -> Vec<Row> {
    let mut rows = vec![Row {
        label: "none".to_owned(),
        device,
        set: vec![("scheduler", "none".to_owned())],
        base: 1,
        none: None,
        published: NOTHING,
    }];
    for locking in LOCKINGS {
        for bypass in ["0", "1"] {
            let label = label(locking, bypass);
            let set = [("scheduler", "mq-deadline"), ("locking", locking), ("bypass", bypass)];
            let published = published_of(&label, published);
            rows.push(Row { label, device, set: settings(&set, extra), base: 1, none: Some(0), published });
        }
    }
    rows
}

/// The lockings under which BFQ has rows beside those of mq-deadline, and whether requests may bypass it.
const BFQ_WAYS: [(&str, &str); 5] =
    [("single", "0"), ("staged", "0"), ("batch", "0"), ("combining", "0"), ("combining", "1")];

/// `rows`, all on one device, and BFQ behind them. The gain of its rows is over its own first one.
fn with_bfq(mut rows: Vec<Row>, extra: &[(&'static str, &str)], published: &[(&str, Published)]) -> Vec<Row> {
    let (base, device) = (rows.len(), rows[0].device);
    for (locking, bypass) in BFQ_WAYS {
        let label = format!("bfq, {}", label(locking, bypass));
        let set = [("scheduler", "bfq"), ("locking", locking), ("bypass", bypass)];
        let published = published_of(&label, published);
        rows.push(Row { label, device, set: settings(&set, extra), base, none: Some(0), published });
    }
    rows
}

fn label(locking: &str, bypass: &str) -> String {
    format!("{locking}{}", if bypass == "1" { ", bypass" } else { "" })
}

fn settings(set: &[(&'static str, &str)], extra: &[(&'static str, &str)]) -> Vec<(&'static str, String)> {
    set.iter().chain(extra).map(|(name, value)| (*name, (*value).to_owned())).collect()
}

fn published_of(label: &str, published: &[(&str, Published)]) -> Published {
    published.iter().find(|(name, _)| *name == label).map_or(NOTHING, |(_, published)| *published)
}

/// The rows of several devices as rows of one table. Each row is compared only with rows on its own device.
fn on_each(devices: [(&str, Vec<Row>); 2]) -> Vec<Row> {
    let mut all = Vec::new();
    for (suffix, rows) in devices {
        let first = all.len();
        all.extend(rows.into_iter().map(|row| Row {
            label: format!("{}, {suffix}", row.label),
            base: first + row.base,
            none: row.none.map(|none| first + none),
            ..row
        }));
    }
    all
}

const RYZEN: &str = "7950X, 16 cores, 32 threads";
const XEON: &str = "2 x E5-2680v4, 28 cores, critical sections without I/O";

fn scaling() -> Table {
    Table {
        name: "scaling",
        about: "Does the scheduler's lock become the bottleneck of 32 threads with 4 requests each?",
        file: "scaling-32x4.fio",
        job: include_str!("../../../blkmq-workbench/jobs/scaling-32x4.fio"),
        published: "Axboe 2024: null_blk with one hardware queue, and an NVMe drive; 16 cores, 32 threads",
        clock: Time::Real,
        rows: on_each([
            (
                "1 queue",
                with_bfq(
                    ways(
                        "null,irqmode=0,submit_queues=1",
                        &[],
                        &[("single", Published::new(879e3)), ("staged", Published::new(2311e3))],
                    ),
                    &[],
                    &[],
                ),
            ),
            (
                "32 queues",
                with_bfq(
                    ways(
                        "null,irqmode=0,submit_queues=32",
                        &[],
                        &[("single", Published::new(901e3)), ("staged", Published::new(2610e3))],
                    ),
                    &[],
                    &[("bfq, single", Published::new(567e3)), ("bfq, staged", Published::new(1551e3))],
                ),
            ),
        ]),
        figures: vec![
            figure(
                "Axboe 2024, the day before: one dispatcher, then also no merges while contended; null_blk",
                RYZEN,
                [1313e3, 1980e3],
                "",
            ),
            figure(
                "then also insertion buckets; null_blk",
                RYZEN,
                [1980e3, 2300e3],
                "time lost to lock contention 50 % -> 18 %",
            ),
            figure(
                "the series: all three; null_blk",
                RYZEN,
                [879e3, 2311e3],
                "time lost to lock contention 93.6 % -> 21.1 %",
            ),
            figure(
                "the same with separate insertion lists (Van Assche); null_blk",
                RYZEN,
                [879e3, 2867e3],
                "contention 93.6 % -> 6 %",
            ),
            figure("the series; NVMe drive", RYZEN, [901e3, 2610e3], "contention 94.5 % -> 24.6 %"),
            figure("with insertion lists; NVMe drive", RYZEN, [901e3, 3162e3], "contention 94.5 % -> 5 %"),
            figure("Axboe 2024, BFQ: all three; NVMe drive", RYZEN, [567e3, 1551e3], "contention 96 % -> 30 %"),
            figure("folly: a mutex, flat combining; 32 threads", XEON, [1.06e6, 3.51e6], ""),
            figure("folly: a mutex, a lock that combines; 32 threads", XEON, [1.06e6, 6.40e6], ""),
        ],
    }
}

/// The end of the names of rows in which no request has to wait.
pub(crate) const QUICK: &str = ", 1 queue";
/// The end of the names of rows in which requests wait.
pub(crate) const WAITING: &str = ", requests wait";

/// The same on one hardware queue, in the steps that tell the lockings and the bypass apart.
pub(super) fn scaling_in_short() -> Table {
    let is_kept = |row: &Row| {
        let name = row.label.strip_suffix(QUICK).unwrap_or_default();
        matches!(name, "none" | "single" | "single, bypass" | "staged" | "batch" | "combining" | "combining, bypass")
    };
    let table = scaling();
    // The first two rows, to which the others are compared, stay where they are.
    Table { rows: table.rows.into_iter().filter(is_kept).collect(), figures: Vec::new(), ..table }
}

/// The same job on a device that takes fewer requests at once than the job has outstanding, so that most requests wait.
pub(super) fn waiting_in_short() -> Table {
    let device = "null,irqmode=2,completion_nsec=50000,submit_queues=1,hw_queue_depth=16";
    let is_kept =
        |row: &Row| matches!(&*row.label, "none" | "single" | "single, bypass" | "combining" | "combining, bypass");
    let rows = ways(device, &[], &[]).into_iter().filter(is_kept);
    Table {
        name: "waiting",
        about: "And where requests wait, because the device takes 16 of the 128 requests at once, for 50 us each?",
        published: "",
        rows: rows.map(|row| Row { label: format!("{}{WAITING}", row.label), ..row }).collect(),
        figures: Vec::new(),
        ..scaling()
    }
}

fn batch() -> Table {
    Table {
        name: "batch",
        about: "What does dispatching one request per hold of the lock cost 16 writers with 32 requests each?",
        file: "batch-16x32.fio",
        job: include_str!("../../../blkmq-workbench/jobs/batch-16x32.fio"),
        published: "Yu Kuai 2025: null_blk with 128 submit queues, depth 1024, no completion delay; Kunpeng-920",
        clock: Time::Real,
        rows: with_bfq(
            ways(
                "null,irqmode=0,submit_queues=128,hw_queue_depth=1024",
                &[],
                &[("single", Published::new(263e3)), ("batch", Published::new(475e3))],
            ),
            &[],
            &[("bfq, single", Published::new(124e3)), ("bfq, batch", Published::new(292e3))],
        ),
        figures: vec![
            figure("Yu Kuai 2025, v1: batches; null_blk", "Kunpeng-920, 256 cores", [263e3, 475e3], ""),
            figure("v4; null_blk", "Kunpeng-920, 128 cores", [256e3, 594e3], ""),
            figure("v4; NVMe drive", "Kunpeng-920, 128 cores", [258e3, 568e3], ""),
            figure("Le Moal 2025, v4; null_blk", "Xeon, 16 cores", [613e3, 940e3], ""),
            figure("Yu Kuai 2025, v1, BFQ: batches; null_blk", "Kunpeng-920, 256 cores", [124e3, 292e3], ""),
            figure("v4, BFQ; null_blk", "Kunpeng-920, 128 cores", [153e3, 283e3], ""),
            figure("v4, BFQ; NVMe drive", "Kunpeng-920, 128 cores", [142e3, 214e3], ""),
        ],
    }
}

/// As many requests as the published disk had.
const SMALL_ROOM: &[(&str, &str)] = &[("nr_requests", "64")];

fn merge() -> Table {
    let single = Published { merged: Some(95.0), ..Published::new(23_454.0) };
    Table {
        name: "merge",
        about: "Are the requests of 64 sequential writers on one hard disk merged before the tags run out?",
        file: "merge-64x32.fio",
        job: include_str!("../../../blkmq-workbench/jobs/merge-64x32.fio"),
        published: "Linux kernel test robot 2024: one hard disk, queue depth 32, nr_requests 64",
        clock: Time::Virtual,
        rows: with_bfq(ways("hdd", SMALL_ROOM, &[("single", single)]), SMALL_ROOM, &[]),
        figures: vec![figure(
            "Linux kernel test robot 2024: insertion lists, inserted when something is dispatched",
            "one hard disk, Ice Lake, 64 threads",
            [23_454.0, 6_361.0],
            "merged 95.0 % -> 46.4 %, request 80.9 KiB -> 7.5 KiB",
        )],
    }
}

fn slow() -> Table {
    Table {
        name: "slow",
        about: "What do 32 threads with 4 requests each gain if the device, not the lock, is the bottleneck?",
        file: "scaling-32x4.fio",
        job: include_str!("../../../blkmq-workbench/jobs/scaling-32x4.fio"),
        published: "Axboe 2024: a drive of 66K operations a second in a Dell R7525",
        clock: Time::Real,
        rows: ways("ssd,iops=66000", &[], &[("single", Published::new(66e3))]),
        figures: vec![figure(
            "Axboe 2024: one dispatcher, insertion buckets, no merges while contended",
            "Dell R7525",
            [66e3, 66e3],
            "system time 12.6 % -> 10.7 %",
        )],
    }
}

const NULL_48: &str = "null,irqmode=0,submit_queues=48";

fn accounting() -> Table {
    let row = |label: &str, set: [(&'static str, &str); 2], published| Row {
        label: label.to_owned(),
        device: NULL_48,
        set: [("scheduler", "none")].iter().chain(&set).map(|(name, value)| (*name, (*value).to_owned())).collect(),
        base: 0,
        none: None,
        published,
    };
    let per_thread = Published { base_iops: Some(21.4e6), ..Published::new(20.4e6) };
    Table {
        name: "accounting",
        about: "What do statistics cost 32 synchronous readers, and what do time stamps?",
        file: "accounting-32.fio",
        job: include_str!("../../../blkmq-workbench/jobs/accounting-32.fio"),
        published: "Axboe 2017: null_blk with 48 submit queues; off, on before the change, off and on after it",
        clock: Time::Real,
        rows: vec![
            row("statistics off", [("iostats", "0"), ("stamps", "1")], Published::new(21.0e6)),
            row("on, one counter of all threads", [("accounting", "shared"), ("stamps", "1")], Published::new(2.6e6)),
            row("on, each thread for itself", [("accounting", "per-thread"), ("stamps", "1")], per_thread),
            row("off, and without time stamps", [("iostats", "0"), ("stamps", "0")], NOTHING),
        ],
        figures: vec![],
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
        let series = scaling().figures.into_iter().find(|figure| figure.after == 2311e3).unwrap();
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
        let has_bfq = |name| table(name).rows.iter().any(|row| row.label == "bfq, combining");
        assert!(has_bfq("batch") && has_bfq("merge"), "BFQ has its rows");
        let names = NAMES.into_iter().filter(|name| *name != "accounting");
        for table in names.map(table).chain([scaling_in_short(), waiting_in_short()]) {
            let name = table.name;
            assert!(table.rows.len() > 2, "{name}: there is more than `none` and `single`");
            for row in &table.rows {
                let base = &table.rows[row.base];
                let (own, label) = match row.label.strip_prefix("bfq, ") {
                    Some(_) => ("bfq", base.label.strip_prefix("bfq, ").expect("it is compared with its own")),
                    None => ("mq-deadline", &*base.label),
                };
                assert!(base.device == row.device && label.starts_with("single"), "{name}: {row:?}");
                assert!(base.set.contains(&("scheduler", own.to_owned())), "{name}: {row:?}");
                assert!(base.set.contains(&("bypass", "0".to_owned())), "{name}: {base:?}");
                let none = row.none.map(|none| &table.rows[none]);
                assert_eq!(none.is_none(), row.label.starts_with("none"), "{name}: {row:?}");
                assert!(
                    none.is_none_or(|none| none.device == row.device && none.set == [("scheduler", "none".to_owned())])
                );
            }
        }
    }
}
