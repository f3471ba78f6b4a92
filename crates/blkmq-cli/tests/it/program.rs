//! The program from outside: what it prints, where, and with which exit code.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::run::{failed, has_all, json, printed, recording, refused, temporary};
use blkmq::{Locking, scheduler_names};

#[test]
fn order_counts_its_choices_in_words_and_as_json() {
    let (trace, queue) = (recording("prio", "trace.blktrace.0"), recording("prio", "queue.txt"));
    let classes = recording("prio", "classes.txt");
    let arguments = ["replay", "--order", &trace, "--queue", &queue, "--classes", &classes];
    let words = printed(&arguments);
    let json = json(&arguments);
    let count = |name: &str| json[name].as_u64().unwrap();
    assert_eq!(count("agree") + count("disagree"), count("choices"));
    assert!(words.starts_with(&format!("mq-deadline: {} choices, {} as Linux", count("choices"), count("agree"))));
    assert_eq!(json["first"].is_null(), count("disagree") == 0);
    assert_eq!(words.contains("Linux took"), count("disagree") > 0);
}

#[test]
fn the_first_disagreement_is_the_first_line_of_the_choices_that_differs() {
    let (trace, queue) = (recording("mixed", "trace.blktrace.0"), recording("mixed", "queue.txt"));
    let choices = temporary("choices", b"");
    let arguments = ["replay", &trace, "--order", "--queue", &queue, "--json", "--choices", &choices];
    let right = printed(&arguments);
    assert_eq!(right.trim_end(), r#"{"choices":1391,"agree":1391,"disagree":0,"first":null}"#);
    let of_linux = fs::read_to_string(&choices).unwrap();

    let wrong = printed(&[&arguments[..], &["--set", "iosched/fifo_batch=1"]].concat());
    let first = &serde_json::from_str::<serde_json::Value>(&wrong).unwrap()["first"];
    let ours = fs::read_to_string(&choices).unwrap();
    let (expected, found) = of_linux.lines().zip(ours.lines()).find(|(linux, ours)| linux != ours).unwrap();
    let line = |request: &serde_json::Value| {
        format!("{} {} {}", first["time_ns"], request["sector"], request["direction"].as_str().unwrap())
    };
    assert_eq!((line(&first["linux"]).as_str(), line(&first["ours"]).as_str()), (expected, found));
}

/// Red if the option is not heeded, or if knobs of the scheduler under which the trace was recorded are in its way.
#[test]
fn order_is_that_of_another_scheduler_if_one_is_named() {
    let (trace, queue) = (recording("expiry", "trace.blktrace.0"), recording("expiry", "queue.txt"));
    let [choices, depths] = ["choices-of-kyber", "depths"].map(|name| temporary(name, b""));
    let order = ["replay", "--order", &trace, "--queue", &queue];
    let kyber = [&order[..], &["--scheduler", "kyber", "--choices", &choices, "--adjustments", &depths]].concat();
    let lines = |path: &str| fs::read_to_string(path).unwrap().lines().count();
    let count = |arguments: &[&str]| json(arguments)["adjustments"].as_u64().map(|number| number as usize);
    assert_eq!((count(&kyber), lines(&depths)), (Some(0), 0));
    let nr_choices = lines(&choices);
    let strict = [&kyber[..], &["--set", "read_lat_nsec=1000", "--set", "iosched/write_lat_nsec=4000000000"]].concat();
    let more = count(&strict).unwrap();
    assert!(more > 0 && more == lines(&depths), "{more}");
    let words = printed(&strict);
    has_all(&words, &[&format!("kyber: {nr_choices} choices, "), &format!("\n{more} new depths\n")]);
    assert_eq!(count(&order), None);
    let text = refused(&[&order[..], &["--adjustments", &depths]].concat());
    assert!(text.contains("--adjustments: mq-deadline has no depths to adjust"), "{text}");
}

#[test]
fn a_broken_trace_is_refused_in_one_line() {
    let queue = recording("mixed", "queue.txt");
    let whole = fs::read(recording("mixed", "trace.blktrace.0")).unwrap();
    let mut swapped = whole.clone();
    swapped[..4].reverse();
    for (name, content, expected) in [
        ("short.blktrace.0", &whole[..100], "byte 56: the trace is truncated"),
        ("swapped.blktrace.0", &swapped[..], "byte 0: the bytes are swapped"),
        ("text.blktrace.0", b"kernel 6.12".as_slice(), "byte 0: not a blktrace record"),
        ("empty.blktrace.0", b"", "the trace is empty"),
    ] {
        let path = temporary(name, content);
        let text = refused(&["replay", "--order", &path, "--queue", &queue]);
        assert!(text.starts_with(&format!("blkmq: {path}: {expected}")), "{text}");
    }
    assert!(refused(&["replay", "--order", "/nowhere", "--queue", &queue]).contains("/nowhere: there is no such file"));
    assert!(refused(&["replay", "--order", "/", "--queue", &queue]).contains("directory"));
}

const COMMANDS: &str = "demo, bench, calibrate, judge, reproduce, replay, torture, simulate, devices, schedulers, serve, list, get, set, stat, clients, groups, dump";

#[test]
fn bad_words_are_named_beside_the_accepted_ones() {
    let (trace, queue) = (recording("mixed", "trace.blktrace.0"), recording("mixed", "queue.txt"));
    let order = ["replay", "--order", &trace, "--queue", &queue];
    let play = ["replay", &trace, "--device", "null"];
    let lockings = Locking::ALL.map(Locking::name).join(", ");
    let schedulers = scheduler_names().join(", ");
    for (arguments, word, accepted) in [
        (vec![], "command", COMMANDS),
        (vec!["repay"], "'repay'", COMMANDS),
        (vec!["--jsn"], "'--jsn'", "--help"),
        ([&order[..], &["--jsn"]].concat(), "'--jsn'", "--json"),
        ([&order[..], &["--set"]].concat(), "--set", "NAME=VALUE"),
        ([&order[..], &["--set", "scheduler=no-such-scheduler"]].concat(), "'no-such-scheduler'", "mq-deadline"),
        ([&order[..], &["--scheduler", "no-such-scheduler"]].concat(), "--scheduler no-such-scheduler", "kyber"),
        ([&order[..], &["--scheduler", "kyber", "--set", "fifo_batch=1"]].concat(), "'fifo_batch'", "read_lat_nsec"),
        ([&play[..], &["--queue", &queue]].concat(), "--device", "--queue"),
        ([&play[..], &["--adjustments", "depths"]].concat(), "--device", "--adjustments"),
        ([&play[..], &["--choices", "choices"]].concat(), "--device", "--choices"),
        ([&order[..], &["--set", "iosched/fifo_batch=x"]].concat(), "'x'", "whole number"),
        ([&order[..], &["--set", "iosched/a\nb=1"]].concat(), "'a\\nb'", "fifo_batch"),
        ([&order[..], &["--classes", &queue]].concat(), "'kernel 6.12", "FIRST END CLASS"),
        (vec!["replay", "--order", &trace, "--queue", &trace], "byte", "text"),
        (vec!["replay", "--order", &trace], "--queue", "required"),
        (vec!["replay", &trace], "--device", "required"),
        (vec!["replay", &trace, "--device", "null", "--order", "--queue", &queue], "--device", "cannot be used with"),
        ([&play[..], &["--locking", "no-such-locking"]].concat(), "'no-such-locking'", &*lockings),
        ([&play[..], &["--bypass", "2"]].concat(), "'2'", "0, 1"),
        ([&order[..], &["--bypass", "1"]].concat(), "--order", "--bypass"),
        ([&play[..], &["--clock", "wall"]].concat(), "'wall'", "real, virtual"),
        ([&play[..], &["--speed", "-1"]].concat(), "'-1'", "a number above 0"),
        ([&play[..], &["--speed", "fast"]].concat(), "'fast'", "0 or max"),
        ([&play[..], &["--scheduler", "no-such-scheduler"]].concat(), "'no-such-scheduler'", &*schedulers),
        ([&play[..], &["--set", "scheduler=no-such-scheduler"]].concat(), "'no-such-scheduler'", &*schedulers),
        ([&play[..], &["--set", "scheduler"]].concat(), "'scheduler'", "NAME=VALUE"),
        (vec!["replay", &trace, "--device", "nul"], "\"nul\"", "null, hdd, ram, ssd, cloud, file"),
        (vec!["replay", &queue, "--device", "null"], "not a blktrace record", "0x65617407"),
        (vec!["devices", "--jsn"], "'--jsn'", "did you mean '--json'? Accepted: "),
        (vec!["benhc"], "'benhc'", "did you mean 'bench'? Accepted: demo, bench, "),
        (vec!["xyzzy"], "'xyzzy'", "is not a command; accepted: demo, bench, "),
        (vec!["replay", "--order", &trace, "--queue", "/nowhere"], "/nowhere", "No such file"),
    ] {
        let text = refused(&arguments);
        assert!(text.contains(word) && text.contains(accepted), "{arguments:?}: {text}");
    }
}

#[test]
fn choices_that_cannot_be_written_are_a_failure_while_running() {
    let (trace, queue) = (recording("mixed", "trace.blktrace.0"), recording("mixed", "queue.txt"));
    let text = failed(&["replay", "--order", &trace, "--queue", &queue, "--choices", "/nowhere/choices"], 1);
    assert!(text.starts_with("blkmq: /nowhere/choices: "), "{text}");
}

/// A device that takes one request at a time, on virtual time.
const SLOW: [&str; 4] = ["--device", "null,irqmode=2,completion_nsec=700us,hw_queue_depth=1", "--clock", "virtual"];

/// Red if a text is printed by a macro that panics. Help and version are output like any other, and an error that
/// cannot be written still has its exit code.
#[test]
fn output_that_cannot_be_written_is_no_panic() {
    let full = || fs::File::options().write(true).open("/dev/full");
    if full().is_err() {
        println!("SKIP no /dev/full, which takes no byte");
        return;
    }
    let code = |command: &mut Command| command.output().expect("the program starts").status.code();
    for word in ["--help", "--version", "devices"] {
        let mut blkmq = Command::new(env!("CARGO_BIN_EXE_blkmq"));
        assert_eq!(code(blkmq.arg(word).stdout(full().expect("it was there"))), Some(1), "{word}");
    }
    let mut blkmq = Command::new(env!("CARGO_BIN_EXE_blkmq"));
    assert_eq!(code(blkmq.arg("repay").stderr(full().expect("it was there"))), Some(2));
}

/// A folder with the program in it, and nothing beside it. A link, because a file that this process wrote cannot be
/// started while a program that another thread starts has it open too.
fn lonely(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("the folder for tests is writable");
    fs::hard_link(env!("CARGO_BIN_EXE_blkmq"), folder.join("blkmq")).expect("it is the same file system");
    folder
}

/// The commands that are programs of their own, with these.
const BESIDE: [(&str, &str); 2] = [("torture", "blkmq-torture"), ("simulate", "blkmq-simulate")];

/// Red if `blkmq torture` or `blkmq simulate` reads options that are the other program's, takes another program than
/// the one beside it, or hides how that one ended.
#[test]
fn a_command_starts_the_program_that_lies_beside_it() {
    let folder = lonely("beside");
    for (command, program) in BESIDE {
        let program = folder.join(program);
        symlink(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/program/beside"), &program).expect("the folder is ours");
        for options in [&["--seed", "1", "--json"][..], &["--help"], &[]] {
            let child = Command::new(folder.join("blkmq")).arg(command).args(options).stdout(Stdio::piped()).spawn();
            let child = child.expect("the program starts");
            let id = child.id();
            let output = child.wait_with_output().expect("it ends");
            let expected = format!("{id} {} {}\n", program.display(), options.join(" "));
            assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
            assert_eq!(output.status.code(), Some(7));
        }
    }
}

/// Red if `blkmq simulate`, installed in another folder than `blkmq-simulate`, does not find it.
#[test]
fn a_command_starts_a_program_on_path_that_does_not_lie_beside_it() {
    let (folder, path) = (lonely("apart"), lonely("on-path"));
    for (command, program) in BESIDE {
        symlink(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/program/beside"), path.join(program))
            .expect("it is ours");
        let path = std::env::join_paths([&path, Path::new("/usr/bin"), Path::new("/bin")]).expect("a plain name");
        let output = Command::new(folder.join("blkmq")).args([command, "--seed", "1"]).env("PATH", path).output();
        let output = output.expect("the program starts");
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(7), "{text}");
        assert!(text.ends_with(" --seed 1\n"), "{text}");
    }
}

/// Red if a user who lacks such a program is not told where it is looked for and how to get it.
#[test]
fn a_program_that_is_missing_is_named_with_the_command_that_builds_it() {
    let folder = lonely("alone");
    for (command, program) in BESIDE {
        let output = Command::new(folder.join("blkmq")).args([command, "--seed", "1"]).env("PATH", &folder).output();
        let output = output.expect("the program starts");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), text.lines().count()), (Some(1), 1), "{text}");
        assert!(text.contains(&folder.join(program).display().to_string()), "{text}");
        assert!(text.contains(&format!("cargo build --release -p {program}'")), "{text}");
    }
}

#[test]
fn a_replay_counts_and_times_in_words_and_as_json() {
    let trace = recording("merge", "trace.blktrace.0");
    let arguments = [&["replay", &trace, "--scheduler", "mq-deadline", "--set", "nr_requests=64"], &SLOW[..]].concat();
    let (words, json) = (printed(&arguments), json(&arguments));
    assert_eq!((json["source"].as_str(), json["operations"].as_u64()), (Some("Q"), Some(5931)));
    let count = |part: &str, name: &str| json[part][name].as_u64().unwrap();
    assert_eq!((count("trace", "completed"), count("trace", "merges"), count("trace", "requests")), (5931, 5202, 729));
    assert_eq!(count("replay", "completed"), 5931);
    assert_eq!(count("replay", "merges"), count("replay", "merges_plug") + count("replay", "merges_scheduler"));
    assert_eq!(count("replay", "requests") + count("replay", "merges"), 5931);
    let row = |name: &str| {
        let line = words.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {words}"));
        line[name.len()..].split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(row("completed"), ["5931", "5931"]);
    assert_eq!(row("merges"), ["5202".to_owned(), count("replay", "merges").to_string()]);
    for kind in ["read", "write"] {
        for part in ["trace", "replay"] {
            let latency = &json[part]["latency_ns"][kind];
            let columns = ["p50", "p90", "p99", "p99.9", "max"].map(|name| latency[name].as_u64().unwrap());
            assert!(columns.is_sorted() && columns[0] > 0, "{latency}");
            let shown = columns.map(|ns| format!("{:.1}", ns as f64 / 1e3));
            assert_eq!(row(&format!("{kind:8}{part}")), shown);
        }
    }
}

#[test]
fn virtual_time_prints_the_same_twice() {
    let (trace, classes) = (recording("prio", "trace.blktrace.0"), recording("prio", "classes.txt"));
    let arguments = [&["replay", &trace, "--classes", &classes, "--set", "nr_requests=64"], &SLOW[..]].concat();
    let words = printed(&arguments);
    assert_eq!(words, printed(&arguments));
    // Each run gives the same result, and the classes change it.
    let without = printed(&[&["replay", &trace, "--set", "nr_requests=64"], &SLOW[..]].concat());
    assert_ne!(words, without);
}

/// Red if a setting does not reach the queue or the scheduler: each setting shows in the counts.
#[test]
fn settings_reach_the_queue_and_its_scheduler() {
    let trace = recording("merge", "trace.blktrace.0");
    let replay = |settings: &[&str]| {
        let json = json(&[&["replay", &trace], &SLOW[..], settings].concat());
        let merges = json["replay"]["merges_scheduler"].as_u64().unwrap();
        (merges, json["replay"]["latency_ns"]["read"]["p99"].as_u64().unwrap(), json["scheduler"].clone())
    };
    let (merges, p99, scheduler) = replay(&["--set", "nr_requests=64"]);
    assert!(merges > 5000 && scheduler == "mq-deadline", "{merges} {scheduler}");
    assert_eq!(replay(&["--set", "nomerges=2", "--set", "nr_requests=64"]).0, 0);
    assert_ne!(replay(&["--set", "nr_requests=2"]).1, p99);
    assert_ne!(replay(&["--set", "nr_requests=64", "--set", "iosched/fifo_batch=1"]).1, p99);
    assert_eq!(replay(&["--set", "scheduler=none"]).2, "none");
}

/// Red if a locking is not accepted, or is not the one that the report names.
#[test]
fn a_replay_is_played_under_any_locking() {
    let trace = recording("merge", "trace.blktrace.0");
    let arguments = |settings| [&["replay", &trace], &SLOW[..], settings].concat();
    for (settings, locking, bypass) in [
        (&[][..], "combining", true),
        (&["--locking", "batch"], "batch", false),
        (&["--set", "locking=single"], "single", false),
        (&["--bypass", "0"], "combining", false),
        (&["--locking", "single", "--bypass", "1"], "single", true),
    ] {
        let (words, json) = (printed(&arguments(settings)), json(&arguments(settings)));
        assert_eq!((&json["locking"], &json["bypass"]), (&locking.into(), &bypass.into()), "{settings:?}");
        let bypassed = json["replay"]["bypassed"].as_u64().unwrap();
        assert_eq!(bypassed > 0, bypass, "the trace begins with nothing in the queue: {settings:?}");
        let told = format!("scheduler mq-deadline, locking {locking}, bypass {}\n", u8::from(bypass));
        assert!(words.contains(&told), "{words}");
        let line = words.lines().find(|line| line.starts_with("past the scheduler")).unwrap();
        assert_eq!(line.split_whitespace().last(), Some(&*bypassed.to_string()));
    }
    assert!(!printed(&arguments(&["--scheduler", "none"])).contains("locking"));
}

#[test]
fn operations_beyond_the_devices_end_are_counted_and_told() {
    let trace = recording("mixed", "trace.blktrace.0");
    let arguments = ["replay", &trace, "--device", "ram,size=256M", "--speed", "max"];
    let (words, json) = (printed(&arguments), json(&arguments));
    // The recording reads in the first 256 MiB and writes behind them.
    let replay = &json["replay"];
    assert_eq!((&replay["completed"], &replay["refused"]["BeyondEnd"]), (&952.into(), &439.into()));
    has_all(&words, &["439 operations were not played: the operation reaches beyond the end of the device"]);
    has_all(&words, &["the trace reaches to sector 1048376, the device to sector 524288"]);
    let text = refused(&["replay", &trace, "--device", "ram,size=4K"]);
    assert!(text.contains("takes none of its operations; 1391: ") && text.contains("the device to sector 8"), "{text}");
}

#[test]
fn a_trace_without_operations_is_refused() {
    // The first record of a recording is a notice.
    let trace = fs::read(recording("mixed", "trace.blktrace.0")).unwrap();
    let first = 48 + usize::from(u16::from_le_bytes([trace[46], trace[47]]));
    let path = temporary("notice.blktrace.0", &trace[..first]);
    assert!(refused(&["replay", &path, "--device", "null"]).contains("no event is a Q, I or D"));
}

#[test]
fn devices_lists_every_parameter_with_its_default_and_range() {
    let text = printed(&["devices"]);
    let json = json(&["devices"]);
    for (device, shown) in blkmq::driver::spec::DEVICES.iter().zip(json.as_array().unwrap()) {
        let head = format!("\n{}\n    {}\n", device.name, device.about);
        let section = text.split_once(&head).unwrap_or_else(|| panic!("{head}: {text}")).1;
        let section = section.split("\n\n").next().unwrap();
        assert_eq!(shown["name"], device.name);
        for (parameter, shown) in device.parameters.iter().zip(shown["parameters"].as_array().unwrap()) {
            let begin = |line: &&str| {
                line.strip_prefix("      ")
                    .and_then(|line| line.strip_prefix(parameter.name))
                    .is_some_and(|rest| rest.starts_with(['=', ' ']))
            };
            let line = section.lines().find(begin).unwrap_or_else(|| panic!("{}: {section}", parameter.name));
            assert!(line.contains(&parameter.accepts.to_string()) && section.contains(parameter.about), "{line}");
            assert!(parameter.default.is_empty() || line.contains(&format!("={}", parameter.default)), "{line}");
            assert_eq!(shown["default"].as_str().unwrap_or(""), parameter.default);
        }
    }
}

#[test]
fn schedulers_lists_every_knob_with_its_default_and_range() {
    let text = printed(&["schedulers"]);
    for scheduler in blkmq_sched::SCHEDULERS {
        assert!(text.contains(&format!("\n{}\n", scheduler.name)));
        for knob in scheduler.knobs {
            let line = text.lines().find(|line| line.trim_start().starts_with(knob.name)).unwrap();
            assert!(line.contains(&format!("{}..{}", knob.min, knob.max)) && line.contains(knob.about), "{line}");
        }
    }
    for knob in blkmq::QUEUE_KNOBS {
        assert!(text.contains(&format!("\n      {} ", knob.name)) && text.contains(knob.about), "{text}");
    }
    assert!(text.starts_with("none\n"));
    let json = json(&["schedulers"]);
    assert_eq!((&json["schedulers"][0]["name"], &json["queue"][0]["name"]), (&"none".into(), &"nr_requests".into()));
    assert_eq!(json["schedulers"][1]["knobs"].as_array().unwrap().len(), blkmq_sched::SCHEDULERS[0].knobs.len());
}

#[test]
fn help_tells_examples_and_exit_codes() {
    for arguments in
        [&["--help"][..], &["replay", "--help"], &["devices", "--help"], &["schedulers", "--help"], &["help", "replay"]]
    {
        let text = printed(arguments);
        assert!(text.contains("Exit codes:") && text.contains("Usage: blkmq"), "{text}");
    }
    for command in ["replay", "devices", "schedulers"] {
        assert!(printed(&[command, "--help"]).contains("Examples:"));
    }
    assert!(printed(&["--version"]).starts_with("blkmq "));
}

/// Red before: a command without its argument did not say where the argument is explained, and `reproduce` not which
/// tables there are.
#[test]
fn a_missing_argument_is_explained_by_the_commands_help() {
    let error = refused(&["reproduce"]);
    assert!(error.ends_with("not provided: <TABLE>; 'blkmq reproduce --help' explains them\n"), "{error:?}");
}
