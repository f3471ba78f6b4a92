//! `blkmq simulate`: what it prints and writes, and what it refuses.

use std::fs;

use crate::run::{blkmq, printed, refused, temporary};
use serde_json::Value;

const JOB: &str =
    "[test]\nrw=randread\nioengine=io_uring\niodepth=4\niodepth_batch_submit=4\niodepth_batch_complete=4\n";

fn scaling<'a>(job: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["scaling", "--machine", "7950x", "--requests", "500", "--job", job][..], more].concat()
}

/// Red if a field of the published form is missing, if rows are for other threads than asked for, or if the file holds
/// something else than what is printed.
#[test]
fn rows_are_printed_as_a_table_and_as_json() {
    let job = temporary("rows.fio", JOB.as_bytes());
    let file = temporary("rows.json", b"what was there before, which is longer than nothing".repeat(99).as_slice());
    let threads = ["--threads", "1,2,..,5", "--bypass", "off"];
    let table = printed(&scaling(&job, &[&threads[..], &["--json", &file]].concat()));
    let text = printed(&scaling(&job, &[&threads[..], &["--json"]].concat()));
    assert_eq!(fs::read_to_string(file).expect("it was written"), text);
    let json: Value = serde_json::from_str(&text).expect("it is JSON");
    assert_eq!(
        (&json["modelled"], &json["machine"], &json["locking"]),
        (&true.into(), &"7950x".into(), &"combining".into())
    );
    let rows = json["rows"].as_array().expect("there are rows");
    let threads: Vec<u64> = rows.iter().filter_map(|row| row["threads"].as_u64()).collect();
    assert_eq!(threads, [1, 2, 4, 5]);
    for row in rows {
        for name in ["requests_per_s", "ratio_to_none", "wait_share", "requests_per_hold"] {
            assert!(row[name].is_f64(), "{name}: {row}");
        }
        assert!(row["gate_shut_share"].is_null() && row["wakeups_per_request"]["completed"].is_f64(), "{row}");
        assert!(row["lines_per_request"].is_object() && row["combining_share"].is_array(), "{row}");
        for name in ["batch", "hold_ns", "staged_ns", "combining_ns", "others_ns"] {
            assert!(row[name]["p99"].is_u64() && row[name]["mean"].is_f64(), "{name}: {row}");
        }
    }
    assert!(rows[2]["lines_per_request"]["queue.staging"].as_f64() > Some(0.0));
    assert!(table.starts_with("modelled: "), "{table}");
    let head = table.lines().nth(1).unwrap_or_default();
    for title in ["req/hold", "hold ns", "gate shut %", "woken, per request"] {
        assert!(head.contains(title), "{title}: {table}");
    }
    let begins: Vec<&str> = table.lines().skip(2).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(begins, ["1", "2", "4", "5"], "{table}");
}

#[test]
fn a_page_has_the_curves_and_says_that_all_is_modelled() {
    let job = temporary("page.fio", JOB.as_bytes());
    let page = temporary("page.html", b"");
    printed(&scaling(&job, &["--threads", "1,2", "--html", &page]));
    let text = fs::read_to_string(page).expect("it was written");
    for part in ["<svg", "Requests per second", "Lines that move", "Nothing was measured", "blkmq simulate scaling"] {
        assert!(text.contains(part), "{part}");
    }
}

/// Red if a band is not as wide as its runs, if the run in the middle is not shown, or if the table, the file and the
/// page do not say the same.
#[test]
fn several_seeds_give_a_median_and_a_band() {
    let job = temporary("seeds.fio", JOB.as_bytes());
    let page = temporary("seeds.html", b"");
    let arguments = |more: &[&'static str]| {
        let rest = [&["--threads", "8", "--bypass", "off", "--json"], more].concat();
        let json: Value = serde_json::from_str(&printed(&scaling(&job, &rest))).expect("it is JSON");
        json["rows"][0].clone()
    };
    let mut alone: Vec<f64> = ["1", "2", "3"]
        .map(|seed| arguments(&["--seed", seed])["requests_per_s"].as_f64().expect("it is a number"))
        .to_vec();
    alone.sort_by(f64::total_cmp);
    let row = arguments(&["--seeds", "3"]);
    assert_eq!(row["requests_per_s"].as_f64(), Some(alone[1]), "{row}");
    assert_eq!(row["band"]["requests_per_s"], serde_json::json!([alone[0], alone[2]]), "{row}");
    assert!(alone[0] < alone[2], "the seed decides something: {alone:?}");
    let more = ["--threads", "4,8", "--bypass", "off", "--seeds", "3", "--html", &page];
    let table = printed(&scaling(&job, &more));
    assert!(table.contains("3 seeds from 1") && table.contains("lowest") && table.contains("highest"), "{table}");
    let text = fs::read_to_string(page).expect("it was written");
    assert!(text.contains("modelled, lowest") && text.contains("none, highest"));
}

/// Red if a machine of which only ranges are known is refused, or gets a line that nothing stands for.
#[test]
fn a_machine_without_a_matrix_gives_a_band_and_no_line() {
    let job = temporary("ranges.fio", JOB.as_bytes());
    let profile = |name: &str, ns: &str| {
        let text = format!("cpu = 'C'\nsource = 'S'\n[[level]]\nname = 'm'\ncpus = 4\n{ns}\n");
        temporary(name, text.as_bytes())
    };
    let rows = |machine: &str| {
        let arguments = ["scaling", "--machine", machine, "--requests", "500", "--job", &job, "--bypass", "off"];
        let table = printed(&[&arguments[..], &["--threads", "4"]].concat());
        let json = printed(&[&arguments[..], &["--threads", "4", "--json"]].concat());
        let json: Value = serde_json::from_str(&json).expect("it is JSON");
        (table, json["rows"][0].clone())
    };
    let (table, row) = rows(&profile("ranges.toml", "low = 20\nhigh = 200"));
    let alone = [("far.toml", "ns = 200"), ("near.toml", "ns = 20")];
    let alone = alone.map(|(name, ns)| rows(&profile(name, ns)).1["requests_per_s"].as_f64().expect("a number"));
    assert_eq!(row["band"]["requests_per_s"], serde_json::json!(alone), "{row}");
    assert!(alone[0] < 0.8 * alone[1] && row["requests_per_s"].is_null(), "{row}");
    assert!(table.contains("only bounds are known"), "{table}");
    let begins: Vec<String> = table.lines().skip(3).map(|line| line.split_whitespace().take(2).collect()).collect();
    assert_eq!(begins, ["4lowest", "4highest"], "{table}");
}

/// Red if t0, a matrix, or an option of the job has no effect.
#[test]
fn what_is_asked_for_is_modelled() {
    let job = temporary("asked.fio", JOB.as_bytes());
    let matrix = temporary("matrix.csv", b",\n300,\n");
    let profile = temporary("m.toml", b"cpu = 'C'\nsource = 'S'\n[[level]]\nname = 'm'\ncpus = 2\nns = 10\n");
    let rate = |machine: &str, more: &[&str]| {
        let arguments =
            [&["scaling", "--machine", machine, "--requests", "500", "--job", &job, "--json"], more].concat();
        let json: Value = serde_json::from_str(&printed(&arguments)).expect("it is JSON");
        json["rows"][0]["requests_per_s"].as_f64().expect("it is a number")
    };
    let one = rate("7950x", &["--threads", "1", "--scheduler", "none"]);
    let slow = rate("7950x", &["--threads", "1", "--scheduler", "none", "--t0", "1000"]);
    assert!((1e9 / slow - 1e9 / one - 1000.0).abs() < 1.0, "{one} {slow}");
    let shallow = rate("7950x", &["--threads", "1", "--scheduler", "none", "--option", "iodepth=1"]);
    assert!(shallow < 0.8 * one, "{one} {shallow}");
    let [near, far] = [&profile, &matrix].map(|machine| rate(machine, &["--threads", "2", "--bypass", "off"]));
    assert!(far < 0.5 * near, "{near} {far}");
}

/// Red if something wrong is run, or if the message does not say what was wrong and what would be right.
#[test]
fn bad_input_is_refused_in_one_line() {
    let job = temporary("good.fio", JOB.as_bytes());
    let bad = |name: &str, text: &str| temporary(name, text.as_bytes());
    let two = bad("two.fio", "[a]\n[b]\n");
    let rate = bad("rate.fio", "[a]\nrate_iops=5\n");
    let sizes = bad("sizes.fio", "[a]\nbsrange=4k-8k\n");
    let far = bad("far.fio", "[a]\nsize=1g\noffset_increment=300g\n");
    let (toml, matrix) = (bad("bad.toml", "cpu = 5\n"), bad("bad.csv", "1,2\n3,4\n"));
    let of = |job: &str, more: &[&str]| refused(&scaling(job, &[&["--threads", "2"], more].concat()));
    let on = |machine: &str| refused(&["scaling", "--threads", "2", "--job", &job, "--machine", machine]);
    for (said, word, right) in [
        (refused(&[]), "a command is missing", "scaling"),
        (refused(&["scalin"]), "'scalin'", "scaling"),
        (refused(&scaling(&job, &[])), "--threads", "required"),
        (refused(&scaling(&job, &["--threads", "1,zwei"])), "'zwei'", "1,2,4,..,128"),
        (of("/nowhere.fio", &[]), "/nowhere.fio", "No such file"),
        (of(&two, &[]), "2 jobs", "one job"),
        (of(&rate, &[]), "rate.fio: [a]: rate, rate_iops", "leave it out"),
        (of(&sizes, &[]), "sizes.fio: [a]: bs", "bs=4k"),
        (of(&far, &[]), "the area of thread 2", "--device"),
        (of(&job, &["--option", "rw=trim"]), "Discard of 8 sectors", "--device"),
        (of(&job, &["--option", "bs=512", "--device", "null,bs=4096"]), "Read of 1 sectors", "--device"),
        (of(&job, &["--device", "null,badblocks=0-999999999"]), "operation of the load failed", "badblocks"),
        (of(&job, &["--option", "bs=4m", "--option", "iodepth=256"]), "bs, iodepth: 256 operations", "outstanding"),
        (of(&job, &["--option", "iodepht=5"]), "'iodepht'", "'iodepth'"),
        (of(&job, &["--scheduler", "deadline"]), "'deadline'", "mq-deadline"),
        (of(&job, &["--locking", "lock"]), "'lock'", "combining"),
        (of(&job, &["--scheduler", "kyber", "--locking", "staged"]), "kyber", "staged"),
        (of(&job, &["--lock", "mutex"]), "'mutex'", "futex, queued, ticket"),
        (of(&job, &["--accounting", "global"]), "'global'", "per-thread, shared"),
        (of(&job, &["--bypass", "maybe"]), "'maybe'", "on, off"),
        (of(&job, &["--device", "nul"]), "\"nul\"", "null, hdd"),
        (of(&job, &["--t0", "-1"]), "-1", "--t0"),
        (refused(&["scaling", "--job", &job, "--machine", "7950x", "--threads", "2", "--requests", "5"]), "5", "100"),
        (of(&job, &["--json", "/nowhere/rows.json"]), "--json /nowhere/rows.json", "cannot be written"),
        (of(&job, &["--html", "/nowhere/page.html"]), "/nowhere/page.html", "cannot be written"),
        (on("7950"), "--machine 7950", "7950x, 7773x"),
        (on(&toml), "bad.toml: no profile", "cpu"),
        (on(&matrix), "bad.csv: no matrix: row 1, column 1", "below the diagonal"),
    ] {
        assert!(said.contains(word) && said.contains(right), "{word}: {said}");
    }
}

/// Red if a field of the published form is missing, if rows of other sources are shown, if the exit code does not say
/// whether the model is too far off, or if the counters of this source are further off than they were when this was
/// written, which was more than is asked of all.
#[test]
fn the_model_is_held_against_what_was_published() {
    let (code, out, error) = outcome(&["validate", "--source", "concurrency-hierarchy", "--json"]);
    let json: Value = serde_json::from_str(&out).expect("it is JSON");
    let rows = json["rows"].as_array().expect("there are rows");
    assert!(rows.len() > 40 && rows.iter().all(|row| row["source"] == "concurrency-hierarchy"), "{out}");
    for row in rows {
        assert!(row["case"].is_string() && row["published"].is_f64() && row["counts"].is_boolean(), "{row}");
        assert!(row["model"].is_f64() == row["error"].is_f64(), "{row}");
    }
    let median = json["median_abs_error"].as_f64().expect("enough rows have a model");
    assert!(median <= 0.3, "{median}");
    assert_eq!(json["median_by_source"]["concurrency-hierarchy"].as_f64(), Some(median));
    let is_right = json["order_right"].as_bool().expect("it says whether the orders are right");
    assert_eq!(code == 0, is_right && median <= 0.25, "{error}");
    assert_eq!(error.contains("the model is off in"), code != 0, "{error}");
}

/// Red if a way is not measured, or not modelled, or if one is not what the other is: the times of one thread without a
/// scheduler are made equal, and what is measured lies between the least and the greatest run. How far both are apart
/// otherwise says nothing beside other tests.
#[test]
fn this_machine_is_measured_and_modelled() {
    let (_, out, error) = outcome(&["native", "--rounds", "1", "--length", "20", "--json"]);
    if error.contains("a machine needs two") {
        return println!("SKIP this machine has one CPU, and to measure how far CPUs are apart takes two");
    }
    let json: Value = serde_json::from_str(&out).unwrap_or_else(|bad| panic!("{bad}: {out}{error}"));
    let rows = json["rows"].as_array().expect("there are rows");
    let ways: Vec<(&str, u64)> =
        rows.iter().filter_map(|row| Some((row["way"].as_str()?, row["threads"].as_u64()?))).collect();
    let ordered = ["single", "batch", "combining"].map(|locking| format!("mq-deadline, {locking}"));
    let all = std::iter::once("none").chain(ordered.iter().map(String::as_str));
    assert_eq!(ways, all.flat_map(|way| [(way, 1), (way, 2)]).collect::<Vec<_>>());
    for row in rows {
        let [measured, least, greatest, model, error] = ["measured", "least", "greatest", "model", "error"]
            .map(|name| row[name].as_f64().unwrap_or_else(|| panic!("{name}: {row}")));
        assert!(0.0 < least && least <= measured && measured <= greatest, "{row}");
        assert!(model > 0.0 && (error - (model / measured - 1.0)).abs() < 1e-9, "{row}");
    }
    // The percentage is a whole number.
    let error = rows[0]["error"].as_f64().expect("it is a number");
    assert!(error.abs() < 0.05, "{out}");
}

/// The exit code of a run, and what it prints.
fn outcome(arguments: &[&str]) -> (i32, String, String) {
    let output = blkmq(arguments);
    let [out, error] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("it prints text"));
    (output.status.code().expect("no signal ends it"), out, error)
}
