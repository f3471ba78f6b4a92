//! `blkmq calibrate` from outside: its figures beside those of a sweep by hand, and what it refuses.

use std::fmt::Write as _;
use std::fs;

use crate::run::{blkmq, failed, interrupted, json, printed, refused, temporary};
use rustix::fs::{FlockOperation, flock};
use serde_json::Value;

fn calibrated(arguments: &[&str]) -> Value {
    json(&[&["calibrate"], arguments].concat())
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is a number"))
}

/// A load of what was found, by its direction and whether it is at random places.
fn load<'a>(found: &'a Value, way: &str, is_random: bool) -> &'a Value {
    let loads = found["loads"].as_array().expect("there are loads");
    loads.iter().find(|load| load["way"] == way && load["is_random"] == is_random).expect("the load was measured")
}

/// A sweep by hand: depths and operations a second, of one job after the other with `blkmq bench`.
fn sweep(
    name: &str,
    device: &[&str],
    lines: impl Fn(usize) -> &'static str,
    depths: &[u32],
    ms: u32,
) -> Vec<(u32, f64)> {
    let mut text =
        format!("[global]\nioengine=libaio\nnorandommap\ntime_based\nruntime={ms}ms\nramp_time={}ms\n", ms / 2);
    for (at, depth) in depths.iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = write!(text, "[d{depth}]\nstonewall\n{}\niodepth={depth}\n", lines(at));
    }
    let file = temporary(name, text.as_bytes());
    let found = json(&[&["bench", &file, "--scheduler", "none", "--device"], device].concat());
    let iops = |job: &Value| number(&job["read"]["iops"]) + number(&job["write"]["iops"]);
    depths.iter().copied().zip(found["jobs"].as_array().expect("jobs").iter().map(iops)).collect()
}

/// The highest rate of a sweep, and the least depth that reaches 0.95 of it.
fn ceiling_and_knee(sweep: &[(u32, f64)]) -> (f64, u32) {
    let ceiling = sweep.iter().map(|(_, iops)| *iops).fold(0.0, f64::max);
    let reach = sweep.iter().filter(|(_, iops)| *iops >= 0.95 * ceiling);
    (ceiling, reach.map(|(depth, _)| *depth).min().expect("the highest reaches it"))
}

/// Compares a load of what was found with a sweep by hand.
fn compare(what: &str, load: &Value, sweep: &[(u32, f64)]) {
    let (ceiling, knee) = ceiling_and_knee(sweep);
    let found = number(&load["ceiling_iops"]);
    assert!((0.9..=1.1).contains(&(found / ceiling)), "{what}: the ceiling is {found}, by hand {ceiling}: {sweep:?}");
    let bytes = number(&load["ceiling_bytes_per_second"]);
    assert!((bytes / found / number(&load["bytes"]) - 1.0).abs() < 1e-9, "{what}: {bytes}");
    let at = number(&load["knee"]["depth"]);
    let apart = (at - f64::from(knee)).abs();
    assert!(apart <= (0.1 * f64::from(knee)).max(1.0), "{what}: the knee is {at}, by hand {knee}: {sweep:?}");
}

/// What `--check` prints of a configuration that can be served. It warns of models, which keep no data.
fn checked(path: &str) -> String {
    let output = blkmq(&["serve", "--check", path]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("the program prints text")
}

/// Red if a credit is not found, or another than there is.
#[test]
fn a_burst_has_the_credit_that_the_volume_has() {
    let found = calibrated(&["cloud,iops=2000,mbps=100,burst=3s,hw_queue_depth=64"]);
    let early = |way, is_random| load(&found, way, is_random)["early"].clone();
    let small = early("read", true);
    let credit = number(&small["burst"]["credit_ios"]);
    assert!((0.9..=1.1).contains(&(credit / 6000.0)), "3 s of 2000 a second are saved up: {small}");
    assert!((0.95..=1.05).contains(&(number(&small["later_iops"]) / 2000.0)), "{small}");
    let ceiling = number(&load(&found, "read", true)["ceiling_iops"]);
    assert!((0.95..=1.05).contains(&(ceiling / 2000.0)), "what was saved up does not count: {ceiling}");
}

/// Red if the block is not one that a server takes, if the reader is not better off by it, if a limiter does not find
/// the ceilings that the sweep found, or if the words or the page say something else than the JSON.
#[test]
fn the_proposal_can_be_served_and_is_better_for_a_reader() {
    let device = "cloud,iops=20000,mbps=500,hw_queue_depth=256";
    let found = calibrated(&[device]);
    let toml = found["proposal"]["toml"].as_str().expect("a proposal");
    let path = temporary("calibrated.toml", toml.as_bytes());
    let checked = checked(&path);
    assert!(checked.starts_with("good: disk at "), "{checked}");
    let depth = number(&found["proposal"]["hw_queue_depth"]);
    assert_eq!(depth, number(&load(&found, "read", true)["knee"]["depth"]), "the highest knee");
    assert!(toml.contains(&format!("device = \"cloud,iops=20000,mbps=500,hw_queue_depth={depth}\"")), "{toml}");
    let cases = found["floods"][0]["cases"].as_array().expect("cases");
    let p99 = |case: &Value| number(&case["p99_ns"]);
    let now = &cases[0];
    assert_eq!((&now["case"], &now["scheduler"]), (&"as it is".into(), &"mq-deadline".into()));
    let name = format!("{}, depth {depth}", found["proposal"]["scheduler"].as_str().expect("a name"));
    let then = cases.iter().find(|case| case["case"] == *name).expect("the proposed case was measured");
    assert!(p99(then) < 0.5 * p99(now), "{then} beside {now}");
    assert!(number(&then["flood_iops"]) > 0.9 * number(&now["flood_iops"]), "{then} beside {now}");

    assert!(load(&found, "read", true)["early"]["burst"].is_null(), "it has no credit: {found}");
    for flood in found["floods"].as_array().expect("floods") {
        let swept = number(&flood["swept_bytes_per_second"]);
        let cases = flood["cases"].as_array().expect("cases");
        for scheduler in ["mq-deadline", "bfq"] {
            let case =
                cases.iter().find(|case| case["case"] == format!("{scheduler}, limiter")).expect("it was measured");
            assert_eq!(case["scheduler"], scheduler);
            let found = number(&case["limiter"]["ceiling_bytes_per_second"]);
            assert!((0.9..=1.1).contains(&(found / swept)), "{case}: by the sweep {swept}");
        }
        let has_limiter = |case: &&Value| !case["limiter"].is_null();
        let names: Vec<_> = cases.iter().filter(has_limiter).map(|case| case["case"].clone()).collect();
        let own = format!("fair, depth {depth}");
        assert_eq!(names, ["fair", &own, "mq-deadline, limiter", "bfq, limiter", "fair, limiter"], "{flood}");
        // The reader has one read at a time beside 128, so the device is bounded for its share.
        let fair = cases.iter().find(|case| case["case"] == "fair").expect("it was measured");
        assert!(p99(fair) < 0.5 * p99(&cases[0]), "{fair} beside {}", cases[0]);
        assert!(number(&fair["flood_iops"]) > 0.9 * number(&cases[0]["flood_iops"]), "{fair} beside {}", cases[0]);
    }

    let page = temporary("calibrated.html", b"");
    let words = printed(&["calibrate", device, "--report", &page]);
    let html = fs::read_to_string(&page).expect("the page was written");
    let row = words.lines().find(|line| line.starts_with("reads of 4 KiB")).expect("the load has a row");
    let cells: Vec<&str> = row["reads of 4 KiB".len()..].split_whitespace().collect();
    assert_eq!(cells[2], depth.to_string(), "the knee: {row}");
    for cell in cells {
        assert!(html.contains(&format!("<td>{cell}</td>")), "{cell}");
    }
    let row = words.lines().find(|line| line.contains("mq-deadline, limiter  paced ")).expect("the limiter has a row");
    for cell in row.split("  ").map(str::trim).filter(|cell| !cell.is_empty()) {
        assert!(html.contains(&format!("<td>{cell}</td>")), "{cell}");
    }
    assert!(
        words.ends_with(toml) && words.contains("name no depth and no scheduler: the server takes fair"),
        "{words}"
    );
    assert!(words.contains("a model, on virtual time") && html.contains("Times are virtual"), "{words}");
    assert_eq!(html.matches("<svg ").count(), 2);
}

/// Red if a limiter that keeps the writers going, with a shorter p99 of the reader than a depth brings, is not
/// proposed, or if a server does not take the block. On this volume a depth is either too small for small writes or too
/// large for large ones.
#[test]
fn a_limiter_is_proposed_where_it_is_better_than_a_depth() {
    let device = "cloud,iops=50000,mbps=1500,write_unit=262144,hw_queue_depth=64";
    let found = calibrated(&[device, "--writes"]);
    let proposal = &found["proposal"];
    assert_eq!((&proposal["wbt_lat_usec"], &proposal["hw_queue_depth"]), (&(-1).into(), &Value::Null), "{proposal}");
    let [toml, scheduler] = ["toml", "scheduler"].map(|name| proposal[name].as_str().expect("a proposal"));
    assert!(toml.contains(&format!("device = \"{device}\"\nscheduler = \"{scheduler}\"\n")), "{toml}");
    assert!(toml.ends_with("set = { wbt_lat_usec = -1 }\n"), "{toml}");
    let path = temporary("calibrated-limiter.toml", toml.as_bytes());
    assert!(checked(&path).starts_with("good: disk at "));
    let (mut with, mut depth) = (1.0, 1.0);
    for flood in found["floods"].as_array().expect("floods") {
        let cases = flood["cases"].as_array().expect("cases");
        let case =
            |name: &str| cases.iter().find(|case| case["case"].as_str().is_some_and(|case| case.starts_with(name)));
        let [now, limiter, none] = ["as it is", &format!("{scheduler}, limiter"), "none, depth"]
            .map(|name| case(name).expect("it was measured"));
        assert!(number(&limiter["flood_iops"]) >= 0.95 * number(&now["flood_iops"]), "{limiter} beside {now}");
        with *= number(&limiter["p99_ns"]);
        depth *= number(&none["p99_ns"]);
    }
    assert!(with <= depth, "{with} and {depth}: {found}");
}

/// Red if the depth of a device with several hardware queues is that of one, or the other way round.
#[test]
fn a_depth_is_that_of_each_hardware_queue() {
    let found = calibrated(&["cloud,iops=40000,submit_queues=4,latency=1ms,spread=0,hw_queue_depth=64"]);
    let small = load(&found, "read", true);
    let knee = number(&small["knee"]["depth"]);
    assert!((36.0..=42.0).contains(&knee), "40,000 a second of 1 ms each are 40 at once: {small}");
    let cases = found["floods"][0]["cases"].as_array().expect("cases");
    assert_eq!(cases[0]["scheduler"], "none", "as a server takes it");
    let each = format!("none, depth {}", (knee / 4.0).ceil());
    assert!(cases.iter().any(|case| case["case"] == each), "{each}: {found}");
}

/// A file with data on the machine's time. Red if reading changes it, if anything is missing, or if the figures do not
/// fit together. The machine does other things meanwhile, so a second sweep may differ by more than 10 %: the ceiling
/// is compared with the median of three runs at one depth, and a factor of three is allowed.
#[test]
fn a_file_is_measured_and_not_changed() {
    let content: Vec<u8> = (0..16 << 20).map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let path = temporary("calibrate.img", &content);
    let device = format!("file,path={path},hw_queue_depth=4");
    let found = calibrated(&[&device]);
    assert!(fs::read(&path).expect("it is there") == content, "nothing is written without --writes");
    assert_eq!((&found["clock"], &found["hw_queue_depth"]), (&"real".into(), &4.into()));
    for load in found["loads"].as_array().expect("loads") {
        let (ceiling, depth) = (number(&load["ceiling_iops"]), number(&load["knee"]["depth"]));
        assert!(ceiling > 0.0 && (1.0..=4.0).contains(&depth), "{load}");
        for point in load["points"].as_array().expect("points") {
            let [p50, p99, p99_9] = ["p50_ns", "p99_ns", "p99_9_ns"].map(|name| number(&point[name]));
            assert!(0.0 < p50 && p50 <= p99 && p99 <= p99_9 && number(&point["iops"]) > 0.0, "{point}");
        }
    }
    let mut rates: Vec<f64> =
        (0..3).map(|_| sweep("file.fio", &[&device], |_| "rw=randread\nbs=4k", &[4], 500)[0].1).collect();
    rates.sort_by(f64::total_cmp);
    let ceiling = number(&load(&found, "read", true)["ceiling_iops"]);
    assert!((1.0 / 3.0..=3.0).contains(&(ceiling / rates[1])), "{ceiling}, by hand {rates:?}");
    let toml = temporary("calibrated-file.toml", found["proposal"]["toml"].as_str().expect("a proposal").as_bytes());
    assert!(checked(&toml).starts_with("good: disk at "));
}

/// Red if one of these is not refused, before anything is measured, or if a file is changed.
#[test]
fn what_must_not_be_measured_is_refused() {
    let path = temporary("calibrate-kept.img", &[7; 8 << 20]);
    let device = format!("file:{path}");
    let text = refused(&["calibrate", &device, "--writes"]);
    assert!(text.contains("any of its 8 MiB may be overwritten") && text.contains("--overwrite"), "{text}");
    assert!(fs::read(&path).expect("it is there").iter().all(|byte| *byte == 7));
    let text = refused(&["calibrate", &device, "--overwrite"]);
    assert!(text.contains("--writes"), "{text}");
    let text = refused(&["calibrate", &format!("file,path={path},read_only=1"), "--writes", "--overwrite"]);
    assert!(text.contains("read-only; leave out --writes"), "{text}");
    let lock = fs::File::open(&path).expect("it is there");
    flock(&lock, FlockOperation::LockExclusive).expect("nobody else has it");
    let text = refused(&["calibrate", &device]);
    assert!(text.contains("in use by another server"), "{text}");
    flock(&lock, FlockOperation::LockShared).expect("nobody else has it");
    let text = refused(&["calibrate", &device, "--writes", "--overwrite"]);
    assert!(text.contains("in use by another server"), "{text}");
    let text = refused(&["calibrate", "file:/no/such/file"]);
    assert!(text.contains("/no/such/file") && text.contains("No such file"), "{text}");
    let text = refused(&["calibrate", "null,size=1M"]);
    assert!(text.contains("null,size=1M: it has 1 MiB, and the loads need at least 4 MiB"), "{text}");
    assert!(refused(&["calibrate", "windmill"]).contains("there is no device \"windmill\""));
    assert!(refused(&["calibrate"]).contains("DEVICE"));
    let text = refused(&["calibrate", "null", "--report", "/no/such/folder/page.html"]);
    assert!(text.contains("the file cannot be written"), "{text}");
}

/// Red if a device that fails is reported as measured.
#[test]
fn an_error_of_the_device_is_one() {
    let text = failed(&["calibrate", "null,irqmode=2,memory_backed=1,badblocks=0-100000000000"], 1);
    assert!(text.starts_with("blkmq: null,irqmode=2,memory_backed=1,badblocks=0-100000000000: job load: "), "{text}");
}

/// Red if Ctrl-C does not end a measurement that would go on, or if what is known by then is not printed.
#[test]
fn an_interrupted_measurement_tells_what_it_knows() {
    let page = temporary("interrupted.html", b"");
    fs::remove_file(&page).expect("it was just made");
    let output = interrupted(&["calibrate", "null"], &page);
    let (words, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert_eq!(error, "blkmq: null: interrupted before its end\n");
    assert!(words.starts_with("device    null, ") && !words.contains("[[export]]"), "{words}");
    assert!(fs::read_to_string(&page).expect("the page was written").contains("<h2>Ceilings</h2>"));
}

/// Red if a file of holes is measured as if it were a disk, without a word.
#[test]
fn holes_are_told() {
    let path = temporary("holes.img", b"");
    fs::File::options().write(true).open(&path).and_then(|file| file.set_len(8 << 20)).expect("it is a file");
    let page = temporary("holes.html", b"");
    fs::remove_file(&page).expect("it was just made");
    let output = interrupted(&["calibrate", &format!("file,path={path},hw_queue_depth=1")], &page);
    let (words, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("100 % of it are holes"), "{error}");
    assert!(words.contains("100 % of the device; reads there reach no disk"), "{words}");
}

/// Minutes of computing: run by the step `long`, and not by the step `test`.
mod long {
    use super::{calibrated, ceiling_and_knee, compare, load, number, sweep};

    /// The acceptance of the models that are read: red if a ceiling or a knee is more than 10 % from that of a sweep by
    /// hand (of a knee of few, more than one). The sweep has the depths around the knee one by one.
    #[test]
    fn ceilings_and_knees_of_models_are_those_of_a_sweep_by_hand() {
        let random = |_| "rw=randread\nbs=4k";
        let sequence = |_| "rw=read\nbs=256k";
        for (device, small, large, ms) in [
            ("cloud", (20..36).chain([64, 256, 1023]).collect::<Vec<u32>>(), vec![1, 2, 3, 4, 8, 64, 1023], 300),
            (
                "ssd",
                (72..110).step_by(2).chain([128, 256, 1023]).collect(),
                vec![1, 2, 3, 4, 5, 6, 7, 8, 16, 64, 1023],
                200,
            ),
            ("hdd", (16..33).collect(), vec![1, 2, 3, 4, 6, 8, 16, 32], 100_000),
        ] {
            let found = calibrated(&[device]);
            assert_eq!((&found["clock"], &found["writes"]), (&"virtual".into(), &false.into()));
            assert_eq!(found["loads"].as_array().map(Vec::len), Some(2), "reads alone: {found}");
            let on = [device, "--clock", "virtual"];
            let by_hand = sweep(&format!("{device}-small.fio"), &on, random, &small, ms);
            compare(&format!("{device}, 4 KiB"), load(&found, "read", true), &by_hand);
            let by_hand = sweep(&format!("{device}-large.fio"), &on, sequence, &large, ms.max(1000));
            compare(&format!("{device}, 256 KiB"), load(&found, "read", false), &by_hand);
            let least = number(&found["least_latency_ns"]);
            let alone = load(&found, "read", true)["points"][0].clone();
            assert_eq!((number(&alone["depth"]), number(&alone["p50_ns"])), (1.0, least));
        }
    }

    /// Writes and the mix: on a volume, whose writes count as several operations, and on an SSD whose buffer takes the
    /// first writes at once. Red if a write that finds the buffer empty counts, or if a direction is measured as
    /// another one.
    #[test]
    fn ceilings_of_writes_are_those_of_the_steady_state() {
        let depths: Vec<u32> = (1..=10).chain([12, 16, 24, 32, 48, 64]).collect();
        for (device, ms) in [
            ("cloud,iops=20000,mbps=500,write_unit=2048,hw_queue_depth=64", 500),
            ("ssd,channels=1,dies=4,gc_copies=0,gc_background=0,hw_queue_depth=64", 2000),
        ] {
            let found = calibrated(&[device, "--writes"]);
            assert_eq!(found["loads"].as_array().map(Vec::len), Some(6), "{found}");
            assert!(found["floods"].as_array().expect("floods").iter().all(|flood| flood["way"] == "writes"));
            let on = [device, "--clock", "virtual"];
            let by_hand = sweep("writes.fio", &on, |_| "rw=randwrite\nbs=4k", &depths, ms);
            compare(&format!("{device}: writes"), load(&found, "write", true), &by_hand);
            // The ceiling alone, since what reads and writes do to each other makes a curve without a sharp knee. The
            // first depth does writes alone: an SSD whose buffer is empty keeps it so under the mix, and does a third
            // more.
            let lines = |at| if at == 0 { "rw=randwrite\nbs=4k" } else { "rw=randrw\nrwmixread=70\nbs=4k" };
            let by_hand = sweep("mix.fio", &on, lines, &[64, 64, 48, 32], ms);
            let (ceiling, _) = ceiling_and_knee(&by_hand[1..]);
            let mix = number(&load(&found, "mix", true)["ceiling_iops"]);
            assert!((0.9..=1.1).contains(&(mix / ceiling)), "{device}: {mix}, by hand {ceiling}");
        }
    }
}
