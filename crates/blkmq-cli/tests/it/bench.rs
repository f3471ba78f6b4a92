//! `blkmq bench` from outside: its output next to fio's, its comparisons, and what it refuses.

use std::collections::BTreeSet;
use std::process::Command;

use crate::run::{blkmq_with_descriptors, has_all, json, printed, refused, temporary};
use blkmq::{Locking, scheduler_names};
use serde_json::Value;

/// A job file with which fio and blkmq can be compared. The only job in the file has these lines.
fn job(name: &str, lines: &str) -> String {
    temporary(name, format!("[global]\nioengine=null\nbs=4k\nsize=1m\n[j]\n{lines}\n").as_bytes())
}

fn bench(arguments: &[&str]) -> Value {
    json(&[&["bench"], arguments].concat())
}

/// The paths to all values, one path for each.
fn keys(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        // The names of bins are latencies, which differ from run to run.
        Value::Object(_) if path.ends_with("/bins") => drop(found.insert(path.to_owned())),
        Value::Object(map) => map.iter().for_each(|(key, value)| keys(value, &format!("{path}/{key}"), found)),
        Value::Array(list) => list.iter().for_each(|value| keys(value, &format!("{path}/[]"), found)),
        _ => drop(found.insert(path.to_owned())),
    }
}

fn key_set(value: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    keys(value, "", &mut found);
    found
}

/// Red if a key that fio's JSON has for a job is missing from ours, or if a further key is not under `blkmq`.
#[test]
fn the_json_has_fios_keys() {
    if Command::new("fio").arg("--version").output().is_err() {
        println!("SKIP fio is not installed: scripts/tools fio");
        return;
    }
    for (number, lines) in [
        "rw=read",
        "rw=randrw\niodepth=8\niodepth_batch_submit=4\niodepth_batch_complete=4",
        "rw=randwrite\nfsync=4\nnorandommap",
        "rw=randread\ngtod_reduce=1\ntime_based=1\nruntime=1",
        "rw=write\nnumjobs=3",
        "rw=write\nnumjobs=3\ngroup_reporting\nthread",
        "rw=randread\nrate_iops=2000\nthinktime=10",
        "rw=write\ndescription=two words\npercentile_list=50:99.9",
        "rw=write\nclat_percentiles=0\nlat_percentiles=1\nfsync=8",
        "rw=write\ndisable_clat=1",
        "rw=randwrite\nrandom_distribution=zipf:1.2\nprio=3\nprioclass=2\nstonewall",
        "rw=read\nnumber_ios=10\n[k]\nrw=write\nblocksize=8k",
    ]
    .into_iter()
    .enumerate()
    {
        let path = job(&format!("keys-{number}.fio"), lines);
        let format = if number % 2 == 0 { "--output-format=json" } else { "--output-format=json+" };
        let output = Command::new("fio").args([format, &path]).output().expect("fio starts");
        let theirs: Value = serde_json::from_slice(&output.stdout).expect("fio prints JSON");
        let mut ours: Value = serde_json::from_str(&printed(&["bench", &path, format])).expect("it prints JSON");
        let layer = ours.as_object_mut().and_then(|map| map.remove("blkmq")).expect("there is a key blkmq");
        let (ours, theirs) = (key_set(&ours), key_set(&theirs));
        let missing: Vec<_> = theirs.difference(&ours).collect();
        let foreign: Vec<_> = ours.difference(&theirs).collect();
        assert!(missing.is_empty() && foreign.is_empty(), "{lines}: without {missing:?}, but with {foreign:?}");
        let of_layer = "batch_size_mean bypass bypassed contended cpu_ns_per_request device dispatch_batches \
                        dispatched dispatched_fast gate holds locking merges merges_insert merges_plug requests \
                        scheduler staged stamps trylock_failed wait_share wakeups";
        assert_eq!(layer.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" "), of_layer);
    }
}

/// fio's own converter reads the histograms, and its tables hold what it read. Red without histograms: the converter
/// then writes tables that have only a head, and accepts them.
#[test]
fn fios_converter_reads_the_histograms() {
    let converter = "fio_jsonplus_clat2csv";
    if Command::new(converter).arg("--help").output().is_err() {
        println!("SKIP {converter} is not installed: scripts/tools fio");
        return;
    }
    let path = job("bins.fio", "rw=randrw\niodepth=8\n[k]\nrw=write");
    let device = ["--device", "null,irqmode=2,completion_nsec=50us"];
    let json = printed(&[&["bench", &path, "--output-format=json+"][..], &device].concat());
    let found: Value = serde_json::from_str(&json).expect("it prints JSON");
    let (json, csv) = (temporary("bins.json", json.as_bytes()), temporary("bins.csv", b""));
    for validate in [&[][..], &["--validate"]] {
        let output = Command::new(converter).args([&*json, &csv]).args(validate).output().expect("it starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    for (number, direction) in [(0, "read"), (0, "write"), (1, "write")] {
        let clat = &found["jobs"][number][direction]["clat_ns"];
        let bins = clat["bins"].as_object().unwrap_or_else(|| panic!("{clat} has bins"));
        assert_eq!(bins.values().filter_map(Value::as_u64).sum::<u64>(), clat["N"].as_u64().unwrap(), "{clat}");
        let table =
            std::fs::read_to_string(csv.replace(".csv", &format!("_job{number}.csv"))).expect("it wrote a table");
        let column =
            table.lines().next().unwrap().split(", ").position(|name| name == format!("{direction}_clat_ns_count"));
        let cells = table.lines().skip(1).filter_map(|line| line.split(", ").nth(column.expect("it is there")));
        assert_eq!(cells.filter_map(|cell| cell.trim().parse::<u64>().ok()).sum::<u64>(), clat["N"].as_u64().unwrap());
    }
    assert!(bench(&[&path])["jobs"][0]["read"]["clat_ns"].get("bins").is_none(), "json has none");
    let text = refused(&["bench", &path, "--output-format=json+", "--ab", "iostats=0,1"]);
    assert!(text.contains("json+") && text.contains("no histograms"), "{text}");
}

/// Compares a device that takes all requests of two classes with one that takes only a few. On the second device all
/// jobs together do an eighth of the operations, and the idle job does nothing. Red if only the sum is compared, or if
/// a job that did nothing has no ratio.
#[test]
fn a_comparison_tells_what_each_job_gets() {
    let head = "[global]\nioengine=libaio\nrw=randread\niodepth=16\nsize=64m\n";
    let jobs = format!("{head}[gold]\nprioclass=1\n[idle]\nprioclass=3\n[idle]\nprioclass=3\n");
    let path = temporary("each.fio", jobs.as_bytes());
    let device = "device=null,irqmode=2,completion_nsec=100us,hw_queue_depth=64::null,irqmode=2,completion_nsec=100us,hw_queue_depth=4";
    let arguments =
        ["bench", &path, "--clock", "virtual", "--scheduler", "mq-deadline", "--set", "nr_requests=64", "--ab", device];
    let found = json(&arguments);
    let [gold, idle, other] = &found["jobs"].as_array().unwrap()[..] else { panic!("three jobs: {found}") };
    assert_eq!([&gold["job"], &idle["job"], &other["job"]], ["gold", "idle #1", "idle #2"]);
    let ratio = |job: &Value, what: &str| {
        let found = &job[what]["ratio"];
        let [low, middle, high] = ["low", "ratio", "high"].map(|name| found[name].as_f64().unwrap());
        assert!(0.0 < low && low <= middle && middle <= high && found["rounds"] == 16, "{what}: {job}");
        middle
    };
    let all = found["ratio"].as_f64().unwrap();
    assert!((0.1..0.15).contains(&all), "{found}");
    assert!((ratio(gold, "iops") - 0.25).abs() < 0.01 && ratio(gold, "p50_ns") > 3.0, "{gold}");
    assert!(ratio(idle, "iops") < 0.001 && ratio(idle, "p50_ns") > 100.0 && ratio(idle, "p99_ns") > 100.0, "{idle}");
    let words = printed(&arguments);
    assert!(words.contains("IOPS of all jobs together"), "{words}");
    for row in ["gold     IOPS ", "idle #1  IOPS ", "         p50 us", "         p99 us"] {
        assert!(words.lines().any(|line| line.starts_with(row)), "{row}: {words}");
    }
}

#[test]
fn the_numbers_of_a_run_fit_together() {
    let path = job("numbers.fio", "rw=randrw\niodepth=4\nnumjobs=2\ngroup_reporting");
    let found = bench(&[&path, "--device", "null,irqmode=2,completion_nsec=10us", "--scheduler", "mq-deadline"]);
    let [job] = &found["jobs"].as_array().unwrap()[..] else { panic!("one group: {found}") };
    let (read, write) = (&job["read"], &job["write"]);
    let number = |value: &Value| value.as_u64().unwrap();
    let ios = number(&read["total_ios"]) + number(&write["total_ios"]);
    assert_eq!(ios, 512, "two threads, 1 MiB each, by 4 KiB");
    assert_eq!(number(&read["io_bytes"]), 4096 * number(&read["total_ios"]));
    assert_eq!(number(&found["blkmq"]["requests"]) + number(&found["blkmq"]["merges"]), ios);
    assert_eq!(found["blkmq"]["scheduler"], "mq-deadline");
    assert_eq!(job["iodepth_submit"]["4"], 100.0, "one by one");
    let clat = &read["clat_ns"];
    assert_eq!(clat["N"], read["total_ios"]);
    let median = number(&clat["percentile"]["50.000000"]);
    // Not every single latency is that long: a thread that dispatches another thread's request uses the clock reading
    // of its own batch, and that reading may be older than the request.
    assert!(median >= 10_000, "the device takes 10 us: {clat}");
    assert!((number(&clat["min"])..=number(&clat["max"])).contains(&median), "{clat}");
    let shares: f64 = ["latency_ns", "latency_us", "latency_ms"]
        .iter()
        .flat_map(|unit| job[unit].as_object().unwrap().values())
        .map(|share| share.as_f64().unwrap())
        .sum();
    assert!((shares - 100.0).abs() < 1e-6, "every operation is in one bucket: {shares}");
}

#[test]
fn words_tell_the_same_as_json() {
    let path = job("words.fio", "rw=write\nnumber_ios=100");
    let arguments = ["bench", &path, "--device", "null,irqmode=2,completion_nsec=100us", "--clock", "virtual"];
    let words = printed(&arguments);
    for expected in ["scheduler none", "virtual time", "requests to the driver  "] {
        assert!(words.contains(expected), "{expected}: {words}");
    }
    let requests = words.lines().find(|line| line.starts_with("requests to the driver")).unwrap();
    assert!(requests.ends_with(" 100"), "{words}");
    // A hundred operations of 100 us, one after the other.
    let row: Vec<&str> = words.lines().find(|line| line.starts_with("j ")).unwrap().split_whitespace().collect();
    assert_eq!(row[..3], ["j", "write", "10.0K"], "{words}");
    assert_eq!(row[4..8], ["100.0"; 4], "{words}");
    // Everything except the CPU time, which is the machine's, is the same each time.
    let timeless =
        |words: &str| words.lines().filter(|line| !line.contains("CPU")).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(timeless(&printed(&arguments)), timeless(&words));
}

/// A device that takes four requests at a time, on virtual time. Requests that wait do so in the scheduler.
const FEW_TAGS: [&str; 6] =
    ["--device", "null,irqmode=2,hw_queue_depth=4", "--clock", "virtual", "--scheduler", "mq-deadline"];

/// Red if the locking does not decide whether requests may bypass the scheduler, or if it decides against the option.
#[test]
fn the_bypass_goes_with_the_locking() {
    let path = job("bypass.fio", "rw=randread");
    for (arguments, locking, bypass) in [
        (&[][..], "combining", true),
        (&["--locking", "single"], "single", false),
        (&["--locking", "batch"], "batch", false),
        (&["--set", "locking=staged"], "staged", false),
        (&["--bypass", "0"], "combining", false),
        (&["--set", "bypass=0"], "combining", false),
        (&["--locking", "single", "--bypass", "1"], "single", true),
        (&["--locking", "single", "--set", "bypass=1"], "single", true),
    ] {
        let found = &bench(&[&[&*path][..], &FEW_TAGS, arguments].concat())["blkmq"];
        assert_eq!((&found["locking"], &found["bypass"]), (&locking.into(), &bypass.into()), "{arguments:?}");
        // One at a time, so nothing ever waits.
        let expected = if bypass { &found["requests"] } else { &Value::from(0) };
        assert_eq!((&found["requests"], &found["bypassed"]), (&256.into(), expected), "{arguments:?}");
    }
}

/// Sixteen operations at a time, of which the device takes four. With a single thread there is no other thread to leave
/// requests to, or to wait for.
#[test]
fn the_lockings_count_what_they_do() {
    let path = job("counts.fio", "rw=randread\niodepth=16\niodepth_batch_submit=16\niodepth_batch_complete=16");
    // A round whose requests merge leaves a last batch that is not full.
    let run = |arguments: &[&str]| {
        bench(&[&[&*path][..], &FEW_TAGS, &["--set", "nomerges=2"], arguments].concat())["blkmq"].clone()
    };
    let [single, batch, combining] = ["single", "batch", "combining"].map(|locking| run(&["--locking", locking]));
    for found in [&single, &batch, &combining] {
        for alone in ["contended", "staged", "trylock_failed"] {
            assert_eq!(found[alone], 0, "{found}");
        }
        assert!(found["holds"].as_u64().unwrap() >= found["dispatch_batches"].as_u64().unwrap(), "{found}");
        let [requests, bypassed, chosen, through] =
            ["requests", "bypassed", "dispatched", "dispatched_fast"].map(|name| found[name].as_u64().unwrap());
        assert_eq!(requests - bypassed, chosen + through, "{found}");
        let woken = found["wakeups"].as_object().unwrap();
        assert!(woken.len() == 4 && woken.values().all(|number| *number == 0), "a single thread wakes nobody: {found}");
    }
    let gate = |found: &Value| ["opened", "shut", "shut_ns"].map(|name| found["gate"][name].as_u64());
    assert_eq!([&single, &combining].map(gate), [[Some(0); 3]; 2], "the gate opened before the run, or never");
    let mean = |found: &Value| found["batch_size_mean"].as_f64().unwrap();
    assert_eq!((mean(&single), &single["dispatch_batches"]), (1.0, &single["requests"]));
    let (requests, batches) = (batch["requests"].as_u64().unwrap(), batch["dispatch_batches"].as_u64().unwrap());
    assert_eq!((batches, mean(&batch)), (requests.div_ceil(4), requests as f64 / batches as f64), "as many as tags");
    let number = |name: &str| combining[name].as_u64().unwrap();
    let passes = (1..number("requests")).contains(&number("bypassed"));
    assert!(passes, "what finds tags passes, the rest waits: {combining}");
    let ordered = (number("requests") - number("bypassed")) as f64;
    assert!((mean(&combining) - ordered / number("dispatch_batches") as f64).abs() < 1e-9, "{combining}");
}

/// Four threads meet at the scheduler sooner or later, on any number of processors.
#[test]
fn waits_are_measured_when_that_is_wanted() {
    let path = job("waits.fio", "rw=randread\niodepth=4\nnumjobs=4\ngroup_reporting\ntime_based\nruntime=1");
    let device = ["--device", "null,irqmode=0", "--scheduler", "mq-deadline", "--bypass", "0"];
    for (locking, kind) in [("single", "lock_ns"), ("combining", "staged_ns")] {
        let arguments = [&[&*path][..], &device, &["--locking", locking]].concat();
        let found = bench(&[&arguments[..], &["--waits"]].concat())["blkmq"].clone();
        let waits = &found["waits"][kind];
        let number = |value: &Value| value.as_u64().unwrap();
        assert!(number(&waits["N"]) > 0 && waits["mean"].as_f64() <= Some(number(&waits["max"]) as f64), "{found}");
        assert!(number(&waits["percentile"]["50.000000"]) <= number(&waits["percentile"]["99.900000"]), "{found}");
        if locking == "combining" {
            // There may be a few more: requests that a thread wanted to leave when the other thread had just gone.
            assert!(number(&waits["N"]) >= number(&found["staged"]), "{found}");
        }
        let words = printed(&[&["bench"][..], &arguments, &["--waits"]].concat());
        assert!(words.contains("p50 p99 p99.9"), "{words}");
        assert!(bench(&arguments)["blkmq"].get("waits").is_none());
    }
}

/// Red if a merge is counted at the wrong place. Neighbours merge in the scheduler if they come one by one while the
/// device is busy, and in the plug if they come together.
#[test]
fn merges_are_told_by_where_they_happen() {
    let device = ["--device", "null,irqmode=2,hw_queue_depth=1", "--clock", "virtual", "--scheduler", "mq-deadline"];
    for (name, lines, where_, not) in [
        (
            "merge-plug.fio",
            "rw=write\niodepth=16\niodepth_batch_submit=16\niodepth_batch_complete=16",
            "merges_plug",
            "merges_insert",
        ),
        ("merge-insert.fio", "rw=write\niodepth=16", "merges_insert", "merges_plug"),
    ] {
        let path = job(name, lines);
        let found = &bench(&[&[&*path][..], &device].concat())["blkmq"];
        assert!(found[where_].as_u64() > Some(0) && found[not] == 0, "{name}: {found}");
        assert_eq!(found[where_], found["merges"], "{name}");
    }
}

/// Red if there is no blank between a latency of 20 s and the cell before it, or between a long name and the next cell.
#[test]
fn numbers_of_any_size_are_apart() {
    let job = b"[a job of more than 16 letters]\nrw=randread\nsize=1m\nnumber_ios=2\n";
    let path = temporary("apart.fio", job);
    let device = "null,irqmode=2,completion_nsec=20s";
    let words = printed(&["bench", &path, "--clock", "virtual", "--device", device]);
    let row = words.lines().find(|line| line.starts_with("a job")).unwrap();
    let cells: Vec<&str> = row.strip_prefix("a job of more than 16 letters").unwrap().split_whitespace().collect();
    assert_eq!(cells, [&["read", "0", "0.0"][..], &["20000000.0"; 6]].concat(), "{words}");
}

#[test]
fn words_tell_how_a_scheduler_is_shared() {
    let path = job("shared.fio", "rw=randread");
    let words = printed(&[&["bench", &*path][..], &FEW_TAGS, &["--locking", "combining"]].concat());
    assert!(words.contains("scheduler mq-deadline, locking combining, bypass 1\n"), "{words}");
    let cells = |title: &str| words.lines().find_map(|line| line.strip_prefix(title)).unwrap_or_default().trim();
    let passed: Vec<_> = cells("past the scheduler").split_whitespace().take(3).collect();
    assert_eq!(passed, ["256", "100.0", "%"], "{words}");
    assert_eq!((cells("scheduler held"), cells("requests per hold")), ("0", "0.00"), "{words}");
    has_all(cells("of it waiting"), &["(for the scheduler's lock, and in polls that found no completion)"]);
    let words = printed(&["bench", &path, "--locking", "combining"]);
    assert!(!words.contains("locking") && !words.contains("past the scheduler"), "nothing is shared: {words}");
}

/// A rate counts the operations that completed within the slices. If operations that are outstanding at the end of a
/// slice counted, they would hide that a device is slow. Red if they count: there are 32 requests more in each slice of
/// 20.
#[test]
fn a_slow_device_does_not_look_quick() {
    let path = job("slow.fio", "rw=randread\niodepth=32\nnorandommap");
    let device = "device=null,irqmode=2,completion_nsec=4ms,hw_queue_depth=1::null,irqmode=2,completion_nsec=5ms,hw_queue_depth=1";
    let found = bench(&[&path, "--clock", "virtual", "--ab", device]);
    let number = |name: &str| found[name].as_f64().unwrap();
    assert!((number("ratio") - 0.8).abs() < 0.05, "{found}");
    assert!((found["iops"]["a"]["median"].as_f64().unwrap() - 250.0).abs() <= 10.0, "{found}");
}

#[test]
fn every_knob_can_be_compared() {
    let path = job("knobs.fio", "rw=randread\niodepth=4");
    for (knob, a, b) in [
        ("scheduler", "none", "mq-deadline"),
        ("locking", "single", "combining"),
        ("bypass", "0", "1"),
        ("stamps", "1", "0"),
        ("accounting", "shared", "per-thread"),
        ("nomerges", "0", "2"),
        ("iosched/fifo_batch", "1", "16"),
        ("iostats", "0", "1"),
    ] {
        let ab = format!("{knob}={a},{b}");
        let arguments =
            ["bench", &path, "--scheduler", "mq-deadline", "--ab", &ab, "--rounds", "2", "--runtime", "5ms"];
        let found = json(&arguments);
        assert_eq!((&found["knob"], &found["a"], &found["b"]), (&knob.into(), &a.into(), &b.into()));
        assert_eq!(found["rounds"], 2);
        assert!(found["ratio"].as_f64().unwrap() > 0.0);
    }
}

/// Red if the report does not say that a figure was measured with the coarse clock: applications pay for exact stamps.
#[test]
fn the_clock_of_a_figure_is_said() {
    let path = job("stamps.fio", "rw=randread\ngtod_reduce=1");
    let timed = job("timed.fio", "rw=randread");
    let takes_time = ["--device", "null,irqmode=2,completion_nsec=10us"];
    let is_virtual = [&takes_time[..], &["--clock", "virtual"]].concat();
    for (file, arguments, stamps) in [
        (&path, &[][..], "coarse"),
        (&path, &["--set", "stamps=1"], "exact"),
        (&path, &["--set", "stamps=0"], "none"),
        (&path, &takes_time, "exact"),
        (&timed, &[], "exact"),
        (&timed, &is_virtual, "virtual"),
    ] {
        let arguments = [&["bench", &**file][..], arguments].concat();
        let found = json(&arguments);
        assert_eq!(found["blkmq"]["stamps"], stamps, "{arguments:?}");
        let words = printed(&arguments);
        let line = words.lines().find(|line| line.starts_with("stamps "));
        assert_eq!(line.is_some_and(|line| line.contains(&format!(" {stamps}, "))), stamps != "virtual", "{words}");
    }
    let found = bench(&[&path, "--ab", "stamps=0,1", "--rounds", "2", "--runtime", "5ms"]);
    assert_eq!((&found["stamps"]["a"], &found["stamps"]["b"]), (&"none".into(), &"exact".into()));
    let text = refused(&[&["bench", &path, "--set", "stamps=1"][..], &is_virtual].concat());
    assert!(text.contains("--set stamps=1") && text.contains("leave out --clock virtual"), "{text}");
}

#[test]
fn bad_words_are_named_beside_the_accepted_ones() {
    let path = job("bad.fio", "rw=randread\niodepth=4");
    let lockings = Locking::ALL.map(Locking::name).join(", ");
    let schedulers = scheduler_names().join(", ");
    let unknown = job("unknown.fio", "rw=randread\nwindmill=4");
    let huge = job("huge.fio", "rw=randread\noffset=400g");
    let ab = |text: &'static str| vec!["bench", path.as_str(), "--ab", text];
    for (arguments, word, accepted) in [
        (vec!["bench"], "JOB.fio", "required"),
        (vec!["bench", "/nowhere.fio"], "/nowhere.fio", "No such file"),
        (vec!["bench", &unknown], "unknown.fio: line 7", "windmill"),
        (vec!["bench", &huge], "job j", "ends at byte"),
        (vec!["bench", &path, "--option", "windmill=4"], "windmill", "--option"),
        (vec!["bench", &path, "--device", "nul"], "--device", "null, "),
        (vec!["bench", &path, "--scheduler", "no-such-scheduler"], "'no-such-scheduler'", &*schedulers),
        (vec!["bench", &path, "--locking", "no-such-locking"], "'no-such-locking'", &*lockings),
        (vec!["bench", &path, "--set", "locking=no-such-locking"], "--set locking=no-such-locking", &*lockings),
        (vec!["bench", &path, "--bypass", "2"], "'2'", "0, 1"),
        (vec!["bench", &path, "--set", "bypass=2"], "--set bypass=2", "0, 1"),
        (vec!["bench", &path, "--runtime", "5"], "'5'", "5s"),
        (vec!["bench", &path, "--runtime", "0s"], "'0s'", "above 0"),
        (vec!["bench", &path, "--set", "nr_request=1"], "--set nr_request=1", "nr_requests"),
        (vec!["bench", &path, "--set", "device=ram"], "'device'", "nr_requests"),
        (vec!["bench", &path, "--rounds", "3"], "--ab", "required"),
        (vec!["bench", &path, "--clock", "virtual", "--runtime", "1s"], "virtual time does not pass", "irqmode=2"),
        (vec!["bench", &path, "--jsn"], "'--jsn'", "--json"),
        (ab("scheduler"), "--ab scheduler", "KNOB=A,B"),
        (ab("scheduler=none"), "--ab scheduler=none", "KNOB=A,B"),
        (ab("nomerges=0,1,2"), "nomerges=0,1,2", "KNOB=A,B"),
        (ab("nomerges=,1"), "nomerges=,1", "KNOB=A,B"),
        (ab("nomerges=0,3"), "--ab nomerges=0,3", "0..2"),
        (ab("windmill=0,3"), "'windmill'", "nomerges"),
        (ab("locking=single,no-such-locking"), "--ab locking=single,no-such-locking", &*lockings),
        (ab("bypass=0,2"), "--ab bypass=0,2", "accepted: 0, 1"),
        (ab("scheduler=none,no-such-scheduler"), "'no-such-scheduler'", &*schedulers),
        (ab("device=null::nul"), "\"nul\"", "null, "),
    ] {
        let text = refused(&arguments);
        assert!(text.contains(word) && text.contains(accepted), "{arguments:?}: {text}");
    }
}

#[test]
fn an_unknown_option_is_passed_over_if_asked_for() {
    let path = job("lenient.fio", "rw=randread\nwindmill=4");
    let output = crate::run::blkmq(&["bench", &path, "--lenient"]);
    assert_eq!(output.status.code(), Some(0));
    let warning = String::from_utf8(output.stderr).unwrap();
    assert!(warning.lines().count() == 1 && warning.contains("line 7") && warning.contains("windmill"), "{warning}");
}

/// Red if a file without an engine runs at depth 1 and the user is not told. fio does the same, and reports it
/// likewise.
#[test]
fn a_depth_without_effect_is_told_beside_what_was_measured() {
    let path = temporary("depth.fio", b"[j]\nrw=randread\nsize=1m\niodepth=32\n");
    let output = crate::run::blkmq(&["bench", &path, "--json"]);
    assert_eq!(output.status.code(), Some(0));
    let warning = String::from_utf8(output.stderr).unwrap();
    assert!(warning.lines().count() == 1 && warning.contains("depth.fio: line 4: option 'iodepth'"), "{warning}");
    assert!(warning.contains("write 'ioengine=libaio' for 32"), "{warning}");
    let found: Value = serde_json::from_slice(&output.stdout).expect("it prints JSON");
    assert_eq!(found["jobs"][0]["iodepth_level"]["1"], 100.0, "{found}");
}

/// Each ring takes a descriptor, and so does each thread. Red if rings that the user has not asked for leave too few
/// descriptors for the threads.
#[test]
fn threads_share_a_ring_where_descriptors_are_few() {
    let disk = temporary("few-descriptors.img", &[7; 1 << 20]);
    let path = job("few-descriptors.fio", "rw=randread\nnumjobs=64\nnumber_ios=4");
    let run = |more: &str| {
        let device = format!("file,path={disk}{more}");
        let output = blkmq_with_descriptors(100, &["bench", &path, "--device", &device]);
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert_eq!(run(""), (Some(0), String::new()));
    let (code, told) = run(",submit_queues=64,owned=1");
    assert!(code == Some(2) && told.contains("Too many open files"), "{code:?} {told}");
}
