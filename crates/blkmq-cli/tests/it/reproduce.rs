//! `blkmq reproduce` from outside.

use std::io::{BufRead, BufReader};

use crate::run::{has_all, interrupt, printed, refused, spawn};
use blkmq::Locking;
use blkmq_sched::SCHEDULERS;
use serde_json::Value;

fn number(value: &Value, name: &str) -> f64 {
    value[name].as_f64().unwrap_or_else(|| panic!("{name} is a number: {value}"))
}

fn labelled<'a>(table: &'a Value, label: &str) -> &'a Value {
    let rows = table["rows"].as_array().expect("it is a list");
    rows.iter().find(|row| row["label"] == label).unwrap_or_else(|| panic!("{label}: {table}"))
}

/// Checks that every locking has its rows on every device, with and without a bypass, and that each row is compared
/// with the row `single` and with the row without a scheduler on the same device.
fn ways_are_compared(table: &Value) {
    let median = |row: &Value| number(&row["iops"], "median");
    let suffixes = if table["name"] == "scaling" { &[", 1 queue", ", 32 queues"][..] } else { &[""] };
    for suffix in suffixes {
        let [none, single] = ["none", "single"].map(|label| labelled(table, &format!("{label}{suffix}")));
        assert!(single["ratio"].is_null() && single["gain"].is_null() && none["ratio_to_none"].is_null(), "{table}");
        assert!(none["bypassed_percent"].is_null(), "there is nothing to bypass: {none}");
        let ways = Locking::ALL.iter().flat_map(|locking| [(locking, "0", ""), (locking, "1", ", bypass")]);
        for (locking, bypass, passing) in ways {
            let row = labelled(table, &format!("{locking}{passing}{suffix}"));
            let settings: Vec<_> =
                row["settings"].as_array().expect("it is a list").iter().filter_map(Value::as_str).collect();
            let expected = ["scheduler=mq-deadline", &format!("locking={locking}"), &format!("bypass={bypass}")];
            assert_eq!(settings[..3], expected);
            assert_eq!(row["device"], single["device"]);
            assert_eq!(row["ratio_to_none"]["base"], none["label"]);
            let passed = number(row, "bypassed_percent");
            assert!((0.0..=100.0).contains(&passed) && (bypass == "1" || passed == 0.0), "{row}");
            if row["label"] != single["label"] {
                assert_eq!(row["ratio"]["base"], single["label"]);
                let ratio = number(&row["ratio"], "ratio");
                assert!((number(row, "gain") - (ratio - 1.0)).abs() < 1e-9, "after/before - 1: {row}");
            }
            if table["name"] == "merge" {
                let ratios =
                    [("ratio_to_none", none), ("ratio", single)].map(|(name, base)| (&row[name], median(base)));
                for (ratio, base) in ratios.into_iter().filter(|(ratio, _)| !ratio.is_null()) {
                    assert!((number(ratio, "ratio") - median(row) / base).abs() < 1e-9, "{row}");
                }
            }
        }
    }
}

/// Checks that every scheduler has its rows at every depth, with its default number of requests and with Linux's,
/// beside the row without a scheduler.
fn flood_has_its_rows(flood: &Value) {
    let rows = flood["rows"].as_array().expect("it is a list");
    let schedulers = ["none"].into_iter().chain(SCHEDULERS.iter().map(|scheduler| scheduler.name));
    for scheduler in schedulers {
        for depth in [32, 128, 1023] {
            let is_it =
                |row: &&Value| row["scheduler"] == scheduler && row["device"] == format!("ssd,hw_queue_depth={depth}");
            let found: Vec<&Value> = rows.iter().filter(is_it).filter(|row| row["job"] == "flood.fio").collect();
            let rooms: Vec<_> = found.iter().map(|row| row["nr_requests"].as_u64()).collect();
            let all = [None, Some(2 * u64::min(depth, 128))];
            assert_eq!(rooms, if scheduler == "none" { &all[..1] } else { &all[..] }, "{scheduler}: {flood}");
        }
    }
    for row in rows {
        let [p50, p99, p99_9] = ["p50_ns", "p99_ns", "p99_9_ns"].map(|name| number(row, name));
        assert!(0.0 < p50 && p50 <= p99 && p99 <= p99_9, "{row}");
        assert!(number(row, "reads_per_second") <= 1200.0 && number(row, "write_bytes_per_second") > 1e8, "{row}");
        assert_eq!(row["p99_of_none"].is_null(), row["scheduler"] == "none", "{row}");
    }
}

/// What a bound brings is judged by the tests of the library and of the step response; here a reader waits for less
/// with one, and each ceiling was found.
fn limiter_has_its_rows(limiter: &Value) {
    let rows = limiter["rows"].as_array().expect("it is a list");
    let bound = |wanted: &str| rows.iter().filter(|row| row["bound"] == wanted).count();
    assert_eq!((bound("none"), bound("24 requests"), bound("the limiter")), (1, 1, 3));
    // kyber is what the queue had, with its default target, with one within a tenth of the limiter's, and a shorter
    // one.
    let targets = |scheduler: &str| -> Vec<f64> {
        let is_it = |row: &&Value| row["scheduler"] == scheduler && !row["target_ns"].is_null();
        rows.iter().filter(is_it).map(|row| number(row, "target_ns")).collect()
    };
    let (kyber, limiter_s) = (targets("kyber"), targets("mq-deadline"));
    assert!(kyber.len() == 3 && kyber[0] == 2e6 && limiter_s.len() == 1, "{limiter}");
    assert!((kyber[1] / limiter_s[0] - 1.0).abs() < 0.1 && kyber[2] < kyber[1], "{limiter}");
    let p50 = |row: &Value| number(row, "p50_ns");
    assert!(rows.iter().all(|row| 0.0 < p50(row) && p50(row) <= number(row, "p99_9_ns")), "{limiter}");
    let steps = limiter["steps"]["steps"].as_array().expect("it is a list");
    assert!(steps.len() == 3 && steps.iter().all(|step| number(step, "found_after_ns") <= 2e9), "{limiter}");
}

#[test]
fn a_flood_is_the_same_each_time_and_longer_if_that_is_wanted() {
    let flood = |runtime| {
        let words = printed(&["reproduce", "flood", "--runtime", runtime]);
        words.split_once('\n').expect("the first line names the machine").1.to_owned()
    };
    let words = flood("5ms");
    assert_eq!(words, flood("5ms"));
    assert!(words.contains("The model 'ssd', 5 ms of virtual time; the reader wants 1000 reads/s"), "{words}");
    let row = words.lines().find(|line| line.contains("mq-deadline, nr_requests=64")).expect("it has its row");
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(cells[..5], ["32", "128", "threads", "x", "4"], "{row}");
    assert!(cells[7..].iter().all(|cell| cell.parse::<f64>().is_ok()) && cells.len() == 13, "{row}");
    assert!(words.contains("none 75 ms, mq-deadline 101 ms"), "{words}");
    assert_ne!(words, flood("10ms"));
}

#[test]
fn words_name_machine_date_and_command() {
    let words = printed(&["reproduce", "batch", "--rounds", "2", "--runtime", "5ms"]);
    assert!(words.starts_with("measured on ") && words.contains("by 'blkmq reproduce batch"), "{words}");
    assert!(words.contains("\nbatch-16x32.fio, 2 rounds of slices of 5 ms. Published: Yu Kuai 2025"), "{words}");
    let row = |label: &str| words.lines().find(|line| line.starts_with(label)).unwrap().to_owned();
    assert!(row("single  ").contains("263K"), "{words}");
    assert!(row("batch  ").contains("475K  +80.6 %"), "{words}");
    assert!(words.contains("fewer than 16 rounds"), "{words}");
    let title = row("     ");
    has_all(&title, &["IOPS", "gain", "of none", "stamps", "CPU ns", "waiting", "at work", "merged", "KiB", "passed"]);
    has_all(&title, &["published"]);
    has_all(&words, &["\nPublished gains:\n  263K -> 475K     +80.6 %  Yu Kuai 2025"]);
}

#[test]
fn an_unknown_table_is_named_beside_the_known_ones() {
    let names = "scaling, batch, merge, slow, accounting, flood, limiter, all";
    has_all(&refused(&["reproduce", "windmill"]), &["'windmill'", names]);
    has_all(&refused(&["reproduce", "batch", "--rounds", "1"]), &["1", "2.."]);
}

/// Minutes of computing: run by the step `long`, and not by the step `test`.
mod long {
    use super::{flood_has_its_rows, labelled, limiter_has_its_rows, number, ways_are_compared};
    use crate::run::json;

    #[test]
    fn every_table_has_its_rows_beside_what_was_published() {
        let found = json(&["reproduce", "all", "--rounds", "2", "--runtime", "5ms"]);
        assert!(found["command"].as_str().unwrap().starts_with("blkmq reproduce all --rounds 2"), "{found}");
        assert!(found["machine"].as_str().unwrap().contains(" CPUs"), "{found}");
        let tables = found["tables"].as_array().unwrap();
        let names: Vec<_> = tables.iter().map(|table| table["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["scaling", "batch", "merge", "slow", "accounting"]);
        flood_has_its_rows(&found["flood"]);
        limiter_has_its_rows(&found["limiter"]);
        for row in tables.iter().flat_map(|table| table["rows"].as_array().unwrap()) {
            let iops = &row["iops"];
            let [low, median, high] =
                ["lower_quartile", "median", "upper_quartile"].map(|name| iops[name].as_f64().unwrap());
            assert!(0.0 < low && low <= median && median <= high, "{row}");
            // On virtual time the CPU time would include that of the model, so it is not reported.
            assert_eq!(row["cpu_ns_per_request"].as_f64().is_none_or(|ns| ns <= 0.0), row["device"] == "hdd", "{row}");
            if row["device"] != "hdd" {
                let [cpu, waiting, work] =
                    ["cpu_ns_per_request", "wait_share", "work_ns_per_request"].map(|name| number(row, name));
                assert!((cpu * (1.0 - waiting) - work).abs() < 1.0, "{row}");
            }
            if let Some(ratio) = row["ratio"].as_object() {
                let [low, middle, high] = ["low", "ratio", "high"].map(|name| ratio[name].as_f64().unwrap());
                assert!(0.0 <= low && low <= middle && middle <= high, "{row}");
            }
        }
        for table in &tables[..4] {
            ways_are_compared(table);
        }
        let row = |table: usize, label| labelled(&tables[table], label);
        let published = ["single, 1 queue", "single, 32 queues"].map(|label| row(0, label)["published_iops"].as_f64());
        assert_eq!(published, [Some(879e3), Some(901e3)]);
        assert!((row(1, "batch")["published_gain"].as_f64().unwrap() - 0.806).abs() < 0.001);
        assert_eq!(row(3, "single")["device"], "ssd,iops=66000");
        // The clock by which each figure was made.
        let stamps = [row(0, "single, 1 queue"), row(2, "single"), row(3, "single"), row(4, "statistics off")];
        let last = &row(4, "off, and without time stamps")["stamps"];
        assert_eq!(stamps.map(|row| &row["stamps"]), ["coarse", "virtual", "exact", "exact"]);
        assert_eq!(last, "none");
        // The disk's table is on virtual time, so its figures are the same everywhere.
        let disk = row(2, "single");
        assert!(disk["merged_percent"].as_f64() >= disk["published_merged_percent"].as_f64(), "{disk}");
        assert!((20e3..27e3).contains(&disk["iops"]["median"].as_f64().unwrap()), "{disk}");
        // An operation that joins a request of 4 KiB makes it longer.
        let (bytes, merged) = (disk["request_bytes_mean"].as_f64().unwrap(), disk["merged_percent"].as_f64().unwrap());
        assert!((bytes / 4096.0 * (1.0 - merged / 100.0) - 1.0).abs() < 1e-6, "{disk}");
        let figure = &tables[2]["figures"][0];
        assert!((figure["gain"].as_f64().unwrap() + 0.729).abs() < 0.001 && figure["before"] == 23_454.0, "{figure}");
    }
}

/// Red if the rows of a flood come only at the end, or if Ctrl-C loses those that came before.
#[test]
fn rows_of_a_flood_come_one_by_one_and_stay() {
    let mut program = spawn(&["reproduce", "flood", "--runtime", "200ms"]);
    let mut lines = BufReader::new(program.stdout.take().expect("it is piped")).lines().map_while(Result::ok);
    let is_row = |line: &String| line.starts_with("   32  ");
    assert!(lines.any(|line| is_row(&line)), "a row comes while the others are measured");
    interrupt(&program);
    let rest: Vec<String> = lines.collect();
    assert!(!rest.iter().any(|line| line.starts_with("Published")), "it was interrupted: {rest:?}");
    let output = program.wait_with_output().expect("it ends");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("flood: interrupted before its end"), "{error}");
}
