//! `blkmq judge` from outside. That it tells broken schedulers is tested where the judge is, in blkmq-workbench.

use crate::run::{blkmq, has_all, json, printed, refused, temporary};
use serde_json::Value;

/// A device so slow that the tests are few operations.
const SLOW: &str = "null,irqmode=2,completion_nsec=1ms,hw_queue_depth=8";

/// Red if a row lacks a key, has another type, or if a row that aims at nothing passes or fails.
#[test]
fn the_rows_are_json_and_the_same_each_time() {
    let arguments = ["judge", "--device", SLOW, "--schedulers", "mq-deadline,none", "--tests", "q5,Q13", "--json"];
    let text = printed(&arguments);
    assert_eq!(text, printed(&arguments), "on virtual time two runs give the same bytes");
    let judged: Value = serde_json::from_str(&text).expect("it is JSON");
    assert_eq!((&judged["device"], &judged["clock"]), (&SLOW.into(), &"virtual".into()));
    let rows = judged["rows"].as_array().expect("there are rows");
    let ids: Vec<&str> = rows.iter().map(|row| row["id"].as_str().expect("a word")).collect();
    assert!(ids.contains(&"Q5") && ids.contains(&"Q13") && ids.is_sorted_by_key(|id| id.len()), "{ids:?}");
    for row in rows {
        let keys: Vec<&String> = row.as_object().expect("an object").keys().collect();
        assert_eq!(keys, ["case", "id", "pass", "scheduler", "target", "unit", "value"], "{row}");
        assert!(["mq-deadline", "none"].contains(&row["scheduler"].as_str().expect("a word")), "{row}");
        assert!(row["case"].is_string() && row["value"].is_number() && row["unit"].is_string(), "{row}");
        match &row["target"] {
            Value::Null => assert!(row["pass"].is_null(), "{row}"),
            target => {
                let target = target.as_str().expect("a word");
                let (relation, bound) = target.split_once(' ').expect("a relation and a number");
                assert!(["<=", ">="].contains(&relation) && bound.parse::<f64>().is_ok(), "{row}");
                assert_eq!(row["pass"], true, "{row}");
            }
        }
    }
}

/// Red if the table lacks a test, a scheduler, or what a figure means; or if the report is not written.
#[test]
fn people_get_a_table_with_sentences_and_a_page() {
    let page = temporary("judge.html", b"what was there before");
    let arguments = ["judge", "--device", "null", "--tests", "Q5,Q11", "--report", &page];
    let text = printed(&arguments);
    has_all(&text, &["device  null,irqmode=2,completion_nsec=100us,hw_queue_depth=8, a model, on virtual time"]);
    has_all(&text, &["\nverdict Every scheduler does what it promises.\n", "none meets 2 of 2 targets.\n"]);
    has_all(&text, &["\nQ5  a reader alone", "\nQ11  a reader of the real-time class"]);
    has_all(&text, &["99 of 100 reads took no longer.\n"]);
    has_all(&text, &["ok 0  What the scheduler adds to the time without a scheduler.\n"]);
    let table = text.lines().find(|line| line.contains("none") && line.contains("mq-deadline"));
    assert!(table.is_some(), "{text}");
    let page = std::fs::read_to_string(page).expect("the page is there");
    has_all(&page, &["Q11 in ms", "Verdict"]);
    assert!(page.starts_with("<!DOCTYPE html>") && !page.contains("before"), "{page}");
}

/// Red if bad input is accepted, or refused without a word of what would be right.
#[test]
fn bad_input_is_refused_with_what_would_be_right() {
    for (arguments, words) in [
        (&["--schedulers", "none,cfq"][..], &["--schedulers: 'cfq' is no scheduler", "none, mq-deadline"][..]),
        (&["--schedulers", "none,none"], &["'none' is given twice"]),
        (&["--tests", "Q4"], &["--tests: 'Q4' is no test", "Q5, Q6, Q7"]),
        (&["--device", "floppy"], &["--device: ", "there is no device \"floppy\""]),
        (&["--device", "null,irqmode=0"], &["--device: ", "takes no time", "irqmode=2"]),
        (&["--device", "ssd,size=1M"], &["--device: ", "bytes; the loads need at least 67108864"]),
        (&["--device", "file:no/such/file"], &["--device: ", "no/such/file"]),
        (&["--runtime", "soon"], &["is not a time above 0"]),
    ] {
        has_all(&refused(&[&["judge"], arguments].concat()), words);
    }
}

/// Red if a file that holds data is written to without being asked for, or if an empty one is refused.
#[test]
fn a_file_that_holds_data_is_refused() {
    let path = temporary("judge-data.img", &vec![7; 64 << 20]);
    let device = format!("file:{path}");
    let error = refused(&["judge", "--device", &device]);
    assert!(error.contains("may hold data") && error.contains("--overwrite"), "{error}");
    let byte = std::fs::read(&path).expect("it is there");
    assert!(byte.iter().all(|byte| *byte == 7), "nothing was written");
    let judged = |path: &str, more: &[&str]| {
        let device = format!("file,path={path},size=67108864");
        let arguments = ["judge", "--device", &device, "--tests", "Q5,Q10", "--runtime", "400ms", "--json"];
        let output = blkmq(&[&arguments, more].concat());
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        let judged: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
        assert_eq!(judged["clock"], "real");
        let values = judged["rows"].as_array().expect("there are rows").iter();
        assert!(values.filter(|row| row["case"] == "done").all(|row| row["value"].as_f64() > Some(0.0)), "{judged}");
    };
    judged(&path, &["--overwrite"]);
    let empty = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("judge-empty.img");
    let _ = std::fs::remove_file(&empty);
    judged(&empty.display().to_string(), &[]);
    std::fs::remove_file(path).and_then(|()| std::fs::remove_file(empty)).expect("they are there");
}

/// Red if a recording is left out, if what is missed is not told, or if the folder is not looked at.
#[test]
fn recordings_of_linux_are_judged() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../blkmq-workbench/tests/data/linux-6.12-bfq");
    let text = printed(&["judge", "--oracle", folder]);
    has_all(&text, &["\n  prio1248-sync-d1 ", "A  budgets", "\n  all shares", "Nothing is missed.\n"]);
    let judged = json(&["judge", "--oracle", folder]);
    let rows = judged["recordings"].as_array().expect("there are rows");
    assert_eq!(rows.len(), 4);
    for row in rows {
        assert!(row["balanced"].is_number() || row["name"] == "coop-together-d4", "{row}");
        assert!(row["outcome"]["jobs"][0]["share"]["linux"].is_array(), "{row}");
    }
    let other = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
    assert!(refused(&["judge", "--oracle", other]).contains("no recording is in there"));
}
