//! `blkmq replay` of traces that are longer than what it holds in memory, and of traces that can be read only once.

use std::fs;
use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use crate::run::{blkmq_with_descriptors, memory, printed, recording, spawn, temporary};

/// How much more memory a replay may have of a trace eight times as long.
const GROWTH: u64 = 8 << 20;

/// Where each record of a trace begins, and the end.
fn records(trace: &[u8]) -> Vec<usize> {
    let (mut starts, mut at) = (vec![0], 0);
    while at < trace.len() {
        at += 48 + usize::from(u16::from_le_bytes([trace[at + 46], trace[at + 47]]));
        starts.push(at);
    }
    starts
}

/// A recording this many times in a row, a millisecond between two.
fn repeated(name: &str, times: u64) -> Vec<u8> {
    let trace = fs::read(recording(name, "trace.blktrace.0")).expect("the recording is in the repository");
    let starts = records(&trace);
    let time = |at: usize| u64::from_le_bytes(trace[at + 8..at + 16].try_into().expect("it is eight bytes"));
    let lasts = time(starts[starts.len() - 2]) + 1_000_000;
    let mut whole = Vec::new();
    let mut number = 0_u32;
    for turn in 0..times {
        let base = whole.len();
        whole.extend(&trace);
        for at in &starts[..starts.len() - 1] {
            number += 1;
            whole[base + at + 4..base + at + 8].copy_from_slice(&number.to_le_bytes());
            whole[base + at + 8..base + at + 16].copy_from_slice(&(time(*at) + turn * lasts).to_le_bytes());
        }
    }
    whole
}

/// The most memory that a run has, in bytes, and what it prints.
fn peak(arguments: &[&str]) -> (u64, String) {
    let mut program = spawn(arguments);
    let mut peak = 0;
    while program.try_wait().expect("it is a child").is_none() {
        peak = peak.max(memory(program.id(), "VmHWM").unwrap_or(0));
        thread::sleep(Duration::from_millis(2));
    }
    let Output { status, stdout, stderr } = program.wait_with_output().expect("it has ended");
    assert!(status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&stderr));
    (peak, String::from_utf8(stdout).expect("the program prints text"))
}

/// Runs with each of the arguments on a trace and on one eight times as long.
fn does_not_grow(name: &str, ways: &[&[&str]]) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("the folder for tests is writable");
    let traces = [8, 64].map(|times| {
        let path = folder.path().join(format!("{times}.blktrace.0"));
        fs::write(&path, repeated(name, times)).expect("the folder for tests is writable");
        path.display().to_string()
    });
    for way in ways {
        let peaks = traces.each_ref().map(|trace| peak(&[&["replay", trace, "--json"], *way].concat()).0);
        assert!(peaks[1] < peaks[0] + GROWTH, "{way:?}: {peaks:?} bytes");
    }
}

/// Red before the trace was streamed: the longer trace, of 48 MB, took 150 MB more.
#[test]
fn a_trace_eight_times_as_long_is_played_in_the_same_memory() {
    let device = ["--device", "null,irqmode=2", "--clock", "virtual", "--speed"];
    does_not_grow("merge", &[&[&device[..], &["max"]].concat(), &[&device[..], &["1"]].concat()]);
}

/// Red before the trace was streamed: the longer trace, of 31 MB, took 97 MB more.
#[test]
fn a_trace_eight_times_as_long_is_compared_in_the_same_memory() {
    let choices = temporary("choices-of-long", b"");
    let queue = recording("mixed", "queue.txt");
    does_not_grow("mixed", &[&["--order", "--queue", &queue, "--choices", &choices]]);
}

/// A record of a trace: an event of a read of 4 KiB by a process.
fn record(number: u32, action: u32, process: u32, time: u64, sector: u64) -> Vec<u8> {
    let longs = [time, sector].map(u64::to_le_bytes);
    let words = [4096, 1 << 16 | action, process, 0, 0, 0].map(u32::to_le_bytes);
    [&[0x6561_7407, number].map(u32::to_le_bytes).concat()[..], &longs.concat(), &words.concat()].concat()
}

/// A trace in which so many processes submit so many reads each.
fn readers(processes: u32, each: u32) -> Vec<u8> {
    let read = |at: u32| record(at, 1, 1 + at % processes, u64::from(at) * 1000, u64::from(at) * 8);
    (0..processes * each).flat_map(read).collect()
}

/// A trace of one process with one request at a time, and what BFQ decides: it serves each.
fn one_reader(number: u64) -> (Vec<u8>, String) {
    let (mut trace, mut decisions) = (Vec::new(), String::new());
    for at in 0..number {
        let (time, sector) = (1_000_000 + 100_000 * at, 8 * at);
        for (action, after) in [(12, 0), (7, 3000), (8, 50_000)] {
            trace.extend(record(at as u32, action, 1, time + after, sector));
        }
        decisions += &format!("{} ask 1\n", time + 1000);
        if at == 0 {
            decisions += &format!("{} slot 1S 10922\n", time + 1500);
        }
        decisions += &format!("{} serve 1S {sector} 8\n", time + 2000);
    }
    (trace, decisions)
}

/// Red before trace and decisions were streamed: the longer trace, of 46 MB, took 200 MB more.
#[test]
fn decisions_eight_times_as_many_are_compared_in_the_same_memory() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let [queue, processes, trace, decisions] = ["queue", "processes", "trace", "decisions"].map(path);
    fs::write(&queue, "scheduler [bfq]\n").unwrap();
    fs::write(&processes, "1 reader / 2 4\n").unwrap();
    let peaks = [40_000, 320_000].map(|number| {
        let (events, lines) = one_reader(number);
        fs::write(&trace, events).unwrap();
        fs::write(&decisions, lines).unwrap();
        let order = ["replay", "--order", &trace, "--queue", &queue, "--json"];
        let (bytes, text) = peak(&[&order[..], &["--decisions", &decisions, "--processes", &processes]].concat());
        assert!(text.contains(&format!("\"asks\":{number},")), "{text}");
        bytes
    });
    assert!(peaks[1] < peaks[0] + GROWTH, "{peaks:?} bytes");
}

/// Red if the pass that counts a process's requests leaves nothing of a pipe for the other one, and nothing says so.
#[test]
fn a_trace_from_a_pipe_is_not_compared_with_decisions() {
    let (trace, decisions) = one_reader(10);
    let [queue, processes, decisions] = [
        ("piped-queue", "scheduler [bfq]\n"),
        ("piped-processes", "1 reader / 2 4\n"),
        ("piped-decisions", &decisions),
    ]
    .map(|(name, text)| temporary(name, text.as_bytes()));
    let order = ["--order", "--queue", &queue, "--decisions", &decisions, "--processes", &processes];
    let output = from_pipe(&trace, &order);
    let text = String::from_utf8_lossy(&output.stderr);
    let expected =
        "blkmq: /dev/stdin: the trace is read twice, which only a regular file can be; write it to one first\n";
    assert_eq!((output.status.code(), &*text), (Some(2), expected));
}

/// Runs on the bytes of a trace that it reads from a pipe.
fn from_pipe(trace: &[u8], arguments: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_blkmq"))
        .args(["replay", "/dev/stdin"])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdin = program.stdin.take().expect("it is piped");
    stdin.write_all(trace).expect("the program reads all of it");
    drop(stdin);
    program.wait_with_output().expect("it ends")
}

/// Red if a trace is read twice, or read otherwise than from its beginning to its end.
#[test]
fn a_trace_from_a_pipe_is_replayed_as_one_from_a_file() {
    let (trace, queue) = (recording("prio", "trace.blktrace.0"), recording("prio", "queue.txt"));
    let bytes = fs::read(&trace).unwrap();
    for way in [&["--device", "null,irqmode=2", "--clock", "virtual"][..], &["--order", "--queue", &queue]] {
        let output = from_pipe(&bytes, way);
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(text, printed(&[&["replay", &trace], way].concat()), "{way:?}");
    }
}

/// Red if the files of the CPUs are not merged by time, if one of them is read without the others, or if the order
/// within a file counts: in each, records have changed places with others a few hundred before them.
#[test]
fn files_nearly_in_the_order_of_time_are_replayed_as_one_file_in_that_order() {
    let trace = fs::read(recording("depth4", "trace.blktrace.0")).unwrap();
    let mut records: Vec<&[u8]> = records(&trace).windows(2).map(|ends| &trace[ends[0]..ends[1]]).collect();
    let folder = TempDir::new().unwrap();
    let write = |name: &str, records: &[&[u8]]| fs::write(folder.path().join(name), records.concat()).unwrap();
    write("one", &records);
    records.chunks_mut(300).for_each(|chunk| chunk.reverse());
    for cpu in 0..5 {
        let own: Vec<&[u8]> = records.iter().skip(cpu).step_by(5).copied().collect();
        write(&format!("many.blktrace.{cpu}"), &own);
    }
    // A processor that was idle.
    write("many.blktrace.5", &[]);
    let [one, many] = ["one", "many"].map(|name| folder.path().join(name).display().to_string());
    let queue = recording("depth4", "queue.txt");
    for way in [&["--device", "null,irqmode=2", "--clock", "virtual"][..], &["--order", "--queue", &queue]] {
        let expected = printed(&[&["replay", &one], way].concat());
        for of in [&many, &format!("{many}.blktrace.2")] {
            assert_eq!(printed(&[&["replay", of], way].concat()), expected, "{of}");
        }
    }
}

/// Red if the error does not say where the operations were to go, and how they go somewhere else.
#[test]
fn a_temporary_file_that_cannot_be_made_is_named_with_the_variable_that_moves_it() {
    let output = Command::new(env!("CARGO_BIN_EXE_blkmq"))
        .args(["replay", &recording("mixed", "trace.blktrace.0"), "--device", "null"])
        .env("TMPDIR", "/nowhere")
        .output()
        .expect("the program starts");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), text.lines().count()), (Some(2), 1), "{text}");
    assert!(text.contains("a temporary file in /nowhere: ") && text.contains("TMPDIR names another folder"), "{text}");
}

/// Red if each process has a temporary file, however few operations it has.
#[test]
fn a_trace_of_many_processes_with_few_operations_needs_no_temporary_file() {
    let trace = temporary("few-operations", &readers(200, 3));
    let output = Command::new(env!("CARGO_BIN_EXE_blkmq"))
        .args(["replay", &trace, "--device", "null", "--speed", "max", "--json"])
        .env("TMPDIR", "/nowhere")
        .output()
        .expect("the program starts");
    let [text, error] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert_eq!((output.status.code(), &*error), (Some(0), ""));
    assert!(text.contains("\"operations\":600,"), "{text}");
}

/// Red if the error advises another folder, which has no more open files.
#[test]
fn a_limit_of_open_files_that_is_too_low_for_a_trace_is_named() {
    let trace = temporary("many-operations", &readers(50, 300));
    let arguments = ["replay", &trace, "--device", "null", "--speed", "max"];
    let output = blkmq_with_descriptors(40, &arguments);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), text.lines().count()), (Some(2), 1), "{text}");
    assert!(text.contains("Too many open files") && text.contains("'ulimit -n 256'"), "{text}");
    assert!(!text.contains("TMPDIR"), "{text}");
    let output = blkmq_with_descriptors(256, &arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
