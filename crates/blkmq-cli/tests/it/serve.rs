//! `blkmq serve`, and the commands that speak to a running server, from outside.

use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::run::has_all;
use crate::served::{AtEnd, Config, READ, Served, WRITE, ended, locking, program, scheduler, until};
use rustix::process::{Signal, getuid};
use serde_json::{Value, json};

/// A device whose requests take so long that they can be seen.
const SLOW: &str = "null,memory_backed=1,irqmode=2,completion_nsec=300ms,hw_queue_depth=4,size=1G";

#[test]
fn every_command_tells_what_the_server_has() {
    let server = Served::start(&["--device", "ram,size=64M", "--export", "a b/c=ram,size=1M", "--read-only"]);
    let listed = server.json(&["list"]);
    let queues = &listed[0]["queues"];
    assert_eq!((&queues[0]["name"], &queues[1]["name"]), (&json!("default"), &json!("a b/c")));
    let uri = format!("nbd+unix:///a%20b/c?socket={}", server.folder.join("nbd").display());
    assert_eq!((&queues[1]["uris"], &queues[1]["size_bytes"]), (&json!([uri]), &json!(1 << 20)));
    let line = format!("  default: ram,size=64M, 64 MiB read-only, scheduler {}\n", scheduler("mq-deadline"));
    has_all(&server.say(&["list"]), &[&line]);

    assert_eq!(server.say(&["get", "default", "scheduler"]), scheduler("mq-deadline") + "\n");
    assert_eq!(server.say(&["get", "a b/c", "iosched/fifo_batch"]), "16\n");
    assert_eq!(server.say(&["get"]).lines().count(), 2 * server.say(&["get", "a b/c"]).lines().count());
    assert_eq!(server.json(&["get", "default", "nomerges"])["value"], "0");
    // Red before the column of values was as wide as the longest knob.
    let shown = server.say(&["get"]);
    let columns: HashSet<_> = shown.lines().map(|line| line.rfind("  ")).collect();
    assert_eq!(columns.len(), 1, "{shown}");
    assert_eq!(server.say(&["set", "a b/c", "scheduler", "none"]), scheduler("none") + "\n");
    assert_eq!(server.json(&["set", "default", "nomerges", "2"])["value"], "2");
    assert_eq!(server.say(&["set", "default", "nomerges", "2"]), "2\n", "what is so already is no error");
    assert_eq!(server.say(&["get", "default", "scheduler"]), scheduler("mq-deadline") + "\n", "the other one stays");

    let mut client = server.connect("a b/c");
    assert_eq!(client.read(4096, 8192), [0; 8192]);
    assert_eq!(client.write(0, &[1; 512]), 1, "not permitted");
    let clients = server.json(&["clients"])["connections"].clone();
    let known = ["number", "queue", "requests", "bytes"].map(|name| clients[0][name].clone());
    assert_eq!(known, [json!(1), json!("a b/c"), json!(2), json!(8192)]);
    let me = format!("user:{}@a b/c", getuid().as_raw());
    assert_eq!(server.say(&["clients"]).matches(&me).count(), 2, "it and its client");
    assert!(server.say(&["dump", "a b/c"]).starts_with("word "));

    let stat: Value = serde_json::from_str(&server.get("/queues/a%20b%2Fc/stat")).unwrap();
    assert_eq!((&stat["read_ios"], &stat["read_sectors"], &stat["in_flight"]), (&json!(1), &json!(16), &json!(0)));
    assert_eq!(stat["inflight"], json!([0, 0]));
    assert_eq!((&stat["health"], &stat["trouble"]), (&json!("good"), &Value::Null));
    assert_eq!(stat.as_object().unwrap().len(), 17 + 8);
    let metrics = server.get("/metrics");
    let labels = "queue=\"a b/c\",export=\"a b/c\",front_end=\"nbd\",client=\"1\",peer=\"";
    let requests = format!("\nblkmq_client_requests_total{{{labels}");
    has_all(&metrics, &["\nblkmq_read_bytes_total{queue=\"a b/c\"} 8192\n", &requests]);
    assert!(metrics.ends_with("\n# EOF\n"));
}

#[test]
fn stat_shows_averages_once_and_differences_again_and_again() {
    let server = Served::start(&[]);
    let mut client = server.connect("");
    client.write(0, &[1; 1 << 20]);
    let once = server.say(&["stat"]);
    assert!(once.starts_with("queue             r/s       w/s     rMB/s"), "{once}");
    let row = |report: Value| report["queues"][0].clone();
    assert!(row(server.json(&["stat", "default"]))["wMB/s"].as_f64() > Some(0.0));
    // In this pause everything is written before the first report.
    let arguments = ["stat", "-w", "10ms", "--json", "--control", &server.control];
    let mut watching =
        program(&server.folder, &arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    for _ in 0..3 {
        let report = row(serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap());
        assert_eq!((&report["queue"], &report["w/s"]), (&json!("default"), &json!(0.0)));
        assert_eq!((&report["health"], &report["limiter"]), (&json!("good"), &Value::Null));
        assert_eq!(report.as_object().unwrap().len(), 15);
    }
    server.http(b"POST /stop HTTP/1.1\r\n\r\n");
    for line in lines {
        serde_json::from_str::<Value>(&line.unwrap()).unwrap();
    }
    let end = ended(&watching.wait_with_output().unwrap(), 1);
    assert!(end.starts_with(&format!("blkmq: {}: ", server.control)), "{end}");
}

#[test]
fn knobs_change_while_a_client_is_busy() {
    let server = Served::start(&["--device", "null,memory_backed=1,irqmode=2,completion_nsec=20us,size=16M"]);
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let work = |part: u64| {
        let mut client = server.connect("");
        let mut round = 0_u64;
        while !stop.load(Ordering::Relaxed) {
            let data = [(round + part) as u8; 8192];
            let at = part * (1 << 20) + round % 100 * 8192;
            assert_eq!(client.write(at, &data), 0);
            assert_eq!(client.read(at, 8192), data);
            round += 1;
            rounds.fetch_add(1, Ordering::Relaxed);
        }
    };
    thread::scope(|scope| {
        // The test waits for the workers also when it fails.
        let _ends = AtEnd(|| stop.store(true, Ordering::Relaxed));
        let workers = [0, 1, 2].map(|part| scope.spawn(move || work(part)));
        for (knob, value, shown) in [
            ("scheduler", "none", scheduler("none")),
            ("scheduler", "mq-deadline", scheduler("mq-deadline")),
            ("iosched/fifo_batch", "1", "1".to_owned()),
            ("locking", "single", locking("single")),
            ("nr_requests", "2", "2".to_owned()),
            ("bypass", "0", "0".to_owned()),
            ("nomerges", "1", "1".to_owned()),
            ("locking", "combining", locking("combining")),
            ("scheduler", "none", scheduler("none")),
        ] {
            assert_eq!(server.say(&["set", knob, value]), format!("{shown}\n"), "{knob}");
            // Work goes on after each change, or a worker has failed.
            let before = rounds.load(Ordering::Relaxed);
            until(|| rounds.load(Ordering::Relaxed) > before + 10 || workers.iter().any(|worker| worker.is_finished()));
        }
    });
    let stat: Value = serde_json::from_str(&server.get("/queues/default/stat")).unwrap();
    let done = rounds.load(Ordering::Relaxed);
    assert!(stat["write_ios"].as_u64() >= Some(done) && stat["read_ios"].as_u64() >= Some(done), "{stat}");
}

#[test]
fn run_gives_the_command_the_server_and_takes_its_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let run = |command: &str| program(folder.path(), &["serve", "--run", command]).output().unwrap();
    let out = ended(&run("test -S \"$unixsocket\" && echo \"$uri\""), 0);
    assert!(out.starts_with(&format!("nbd+unix:///?socket={}/blkmq/", folder.path().display())), "{out}");
    assert_eq!(out.lines().count(), 1, "the server itself says nothing: {out}");
    for (command, code) in [("exit 3", 3), ("kill -9 $$", 137), ("no-such-command 2>/dev/null", 127)] {
        let output = run(command);
        let said = (&output.stdout[..], &output.stderr[..]);
        assert_eq!((output.status.code(), said), (Some(code), (&[][..], &[][..])), "{command}");
    }
    // The commands find it, and the server outlives a command that uses it.
    let program = env!("CARGO_BIN_EXE_blkmq");
    let out = ended(&run(&format!("'{program}' set scheduler none && '{program}' clients --json")), 0);
    assert_eq!(out, scheduler("none") + "\n{\"clients\":[],\"connections\":[]}\n");
    assert_eq!(fs::read_dir(folder.path().join("blkmq")).unwrap().count(), 0, "nothing is left");
}

#[test]
fn sigterm_ends_the_command_too() {
    let folder = tempfile::tempdir().unwrap();
    let mut serve = program(folder.path(), &["serve", "--run", "echo running; exec sleep 600"]);
    let mut child = serve.stdout(Stdio::piped()).spawn().unwrap();
    let line = BufReader::new(child.stdout.take().unwrap()).lines().next();
    assert_eq!(line.unwrap().unwrap(), "running");
    let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15), "as the command ended");
}

#[test]
fn sigterm_answers_what_was_asked_and_leaves_nothing() {
    let mut server = Served::start(&["--device", SLOW]);
    let mut client = server.connect("");
    for cookie in 0..8 {
        client.send(WRITE, cookie, cookie << 20, 4096, &[cookie as u8; 4096]);
    }
    // All have entered, though some may be over already.
    let entered = || {
        let stat: Value = serde_json::from_str(&server.get("/queues/default/stat")).unwrap();
        stat["in_flight"].as_u64().unwrap() + stat["write_ios"].as_u64().unwrap()
    };
    until(|| entered() >= 8);
    server.signal(Signal::TERM);
    let mut answered: Vec<_> = std::iter::from_fn(|| client.receive()).collect();
    answered.sort_unstable();
    assert_eq!(answered, (0..8).map(|cookie| (cookie, 0)).collect::<Vec<_>>());
    let (code, error) = server.end();
    // The device is slow, so the server may say which client it waits for.
    let waits = "blkmq: serve: waits for 1 client";
    assert!(code == Some(0) && error.lines().all(|line| line.starts_with(waits)), "{error}");
    assert_eq!(fs::read_dir(&server.folder).unwrap().count(), 0, "nothing is left");
}

#[test]
fn a_later_signal_does_not_wait_for_who_does_not_read() {
    let mut server = Served::start(&[]);
    let mut client = server.connect("");
    for cookie in 0..32 {
        client.send(READ, cookie, 0, 1 << 20, &[]);
    }
    // Without a second signal the drain would last until the client reads. Signals within a second of the first one
    // count as the same signal.
    while server.child.try_wait().unwrap().is_none() {
        server.signal(Signal::TERM);
        thread::sleep(Duration::from_millis(50));
    }
    let (code, error) = server.end();
    let last = error.lines().last();
    assert_eq!((code, last), (Some(1), Some("blkmq: serve: ended at once, without waiting for clients")), "{error}");
}

#[test]
fn stop_is_answered_before_the_server_ends() {
    let mut server = Served::start(&[]);
    let (head, body) = server.http(b"POST /stop HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 202 Accepted\r\n"), "{head}");
    assert_eq!(body, "{\"stopping\":true}\n");
    assert_eq!(server.end(), (Some(0), String::new()));
    assert_eq!(fs::read_dir(&server.folder).unwrap().count(), 0, "nothing is left");
}

#[test]
fn bad_words_are_named_with_their_place_and_what_would_be_right() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |arguments: &[&str]| ended(&program(folder.path(), arguments).output().unwrap(), 2);
    for (verifies, file) in [(&[][..], "server-cert.pem"), (&["--tls-verify-peer", "--allow", "any"], "ca-cert.pem")] {
        let error = refused(&[&["serve", "--tls", "on", "--tls-certificates", "/nowhere"], verifies].concat());
        assert!(error.starts_with(&format!("blkmq: --tls-certificates: /nowhere/{file}: No such file")), "{error}");
    }
    assert!(!folder.path().join("blkmq").exists(), "nothing was begun");
    let known = blkmq::scheduler_names().join(", ");
    let no_scheduler = format!("--scheduler: unknown scheduler 'no-such-scheduler'; there are: {known}");
    for (arguments, words) in [
        (&["--device", "tape"][..], "--device: there is no device \"tape\"; there are: null"),
        (&["--scheduler", "no-such-scheduler"], &no_scheduler),
        (&["--locking", "x"], "--locking: "),
        (&["--scheduler", "kyber", "--locking", "staged"], "--scheduler: the locking staged has one order for all"),
        (&["--bypass", "2"], "--bypass: bypass: 2 is not within 0..1"),
        (&["--set", "a=b"], "--set a=b: unknown knob 'a'; there are: scheduler, locking, size, nr_requests"),
        (&["--set", "nomerges"], "NAME=VALUE"),
        (&["--nbd", "tcp:127.0.0.1"], "--nbd: 'tcp:127.0.0.1': "),
        (&["--max-connections", "0"], "--max-connections"),
        (&["--memory", "much"], "--memory: 'much' is not a number of bytes, as in 500M or 4G"),
        (&["--memory", "1M"], "memory: 1048576 bytes are too few for 256 connections; give at least "),
        (&["--drain-timeout", "soon"], "--drain-timeout: 'soon' is not a time above 0"),
        (&["--config", "/nowhere.toml"], "/nowhere.toml: "),
        (&["/nowhere.img"], "/nowhere.img: device file: /nowhere.img: No such file"),
        (
            &["nosuch.img"],
            "nosuch.img: No such file or directory (os error 2); with a size it is made, as in file,path=nosuch.img,size=1G",
        ),
        (&["nosuch"], "a file is named as ./NAME, file:NAME or file,path=NAME"),
        (&["a.img,b.img"], "a comma within a value is written twice: path=a.img,,b.img"),
        (&["disk", "--device", "ram"], "cannot be used with"),
    ] {
        let error = refused(&[&["serve"], arguments].concat());
        assert!(error.contains(words), "{arguments:?}: {error}");
    }
    let name = std::ffi::OsStr::from_bytes(b"disk\xff.img");
    let error = ended(&program(folder.path(), &["serve"]).arg(name).output().unwrap(), 2);
    assert!(error.contains(": a path that is not UTF-8 cannot be served; give it another name"), "{error}");
    let file = Config::new("[[export]]\nname = \"a\"\ndevice = \"ram,size=1\"");
    let error = refused(&["serve", "--config", &file.path()]);
    assert!(error.starts_with(&format!("blkmq: {}: line 3: device ram: ", file.path())), "{error}");

    let server = Served::start(&["--export", "a=null", "--export", "b=null"]);
    let commands = ["get nomerges", "set nomerges 1", "dump"].map(|line| line.split(' ').collect::<Vec<_>>());
    for arguments in commands {
        let error = ended(&server.output(&arguments), 2);
        assert!(error.contains("name one of the queues that this server has: a, b"), "{error}");
    }
    for (arguments, words) in [
        (&["get", "c", "nomerges"][..], "there is no queue 'c'; there are: a, b"),
        (&["stat", "c"], "there is no queue 'c'; there are: a, b"),
        (&["get", "a", "nomerge"], "unknown knob 'nomerge'; there are: scheduler, locking, size, nr_requests"),
        (&["set", "a", "nomerges", "x"], "nomerges: 'x' is not a whole number"),
        (&["set", "a", "nomerges", "-1"], "nomerges: -1 is not within 0..2"),
        (&["set", "a"], "a value is missing: blkmq set a VALUE; the words are [QUEUE] KNOB"),
        (&["set", "a", "scheduler"], "a value is missing: blkmq set a scheduler VALUE; "),
        (&["set", "a", "weight", "client=x"], "a value is missing: blkmq set a weight client=x VALUE; "),
        (&["stat", "-w", "0s"], "'0s' is not a time above 0"),
    ] {
        let error = ended(&server.output(arguments), 2);
        assert!(error.contains(words), "{arguments:?}: {error}");
    }
}

#[test]
fn a_file_describes_several_exports() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("disks.toml");
    let text = "nbd = [\"nbd\", \"tcp:127.0.0.1:0\"]\ncontrol = \"control\"\nscheduler = \"mq-deadline\"\n\
                [[export]]\nname = \"fast\"\ndevice = \"ram,size=1M\"\nscheduler = \"none\"\nweight = 500\n\
                [[export]]\nname = \"slow\"\ndevice = \"ram,size=2M\"\nread_only = true\ndescription = \"old\"\n\
                priority = \"idle\"\nset = { \"iosched/fifo_batch\" = 4 }\n";
    fs::write(&file, text).unwrap();
    // The file's sockets are in the folder that the program runs in.
    let list = format!("'{}' list --json --control control", env!("CARGO_BIN_EXE_blkmq"));
    let mut serve = program(folder.path(), &["serve", "--config", "disks.toml", "--run", &list]);
    let output = serve.current_dir(folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    // Each export has a queue of its own, which no other export shares.
    let expected = ["blkmq: fast: the weight of fast (500) does ", "blkmq: slow: the priority of slow (idle) does "];
    assert!(said.lines().count() == 2 && expected.iter().all(|line| said.contains(line)), "{said}");
    let listed: Value = serde_json::from_slice(&output.stdout).unwrap();
    let queues = &listed[0]["queues"];
    assert_eq!((&queues[0]["name"], &queues[1]["name"]), (&json!("fast"), &json!("slow")));
    assert_eq!((&queues[1]["read_only"], &queues[1]["description"]), (&json!(true), &json!("old")));
    assert_eq!(queues[0]["knobs"]["scheduler"], scheduler("none"));
    assert_eq!(queues[1]["knobs"]["iosched/fifo_batch"], "4");
    let uris: Vec<_> = queues[1]["uris"].as_array().unwrap().iter().map(|uri| uri.as_str().unwrap()).collect();
    assert!(uris[0].starts_with("nbd+unix:///slow?socket=/") && uris[1].starts_with("nbd://127.0.0.1:"), "{uris:?}");
}

/// Red if the file is opened for writing although clients may only read, or if written data does not reach it.
#[test]
fn a_file_is_served_by_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    fs::write(&path, vec![7; 1 << 20]).unwrap();
    let disk = path.to_str().unwrap();
    {
        let server = Served::start(&[disk]);
        let mut client = server.connect("");
        assert_eq!(client.read(8192, 4096), [7; 4096]);
        assert_eq!(client.write(4096, &[9; 4096]), 0);
    }
    assert_eq!(fs::read(&path).unwrap()[4096..8192], [9; 4096]);
    let spec = format!("file,path={disk}");
    let named = format!("again={spec}");
    // Two servers can have the file at once, because both only read.
    let server = Served::start(&["--device", &spec, "--export", &named, "--read-only"]);
    let also = Served::start(&[disk, "--read-only"]);
    for mut client in [server.connect(""), server.connect("again"), also.connect("")] {
        assert_eq!(client.read(4096, 4096), [9; 4096]);
        assert_eq!(client.write(0, &[1; 512]), 1, "not permitted");
    }
    let spec = format!("{spec},lock_timeout=0");
    let error = ended(&program(folder.path(), &["serve", "--device", &spec]).output().unwrap(), 2);
    assert_eq!(error, format!("blkmq: --device: device file: {disk}: in use by another server\n"));
}

/// Red if a server gives up because another server, which is about to end, still has the file, or if it waits without
/// saying so.
#[test]
fn a_server_waits_for_the_one_before_it_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk.img").display().to_string();
    let first = Served::start(&["--device", &format!("file,path={disk},size=1M")]);
    let mut next = program(folder.path(), &["serve", &disk]).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(next.stderr.take().unwrap()).lines();
    let line = said.next().unwrap().unwrap();
    let waits = "in use by another server, or one that was killed is not gone yet; waiting for 30s at most";
    assert_eq!(line, format!("blkmq: {disk}: {waits}"));
    first.signal(Signal::KILL);
    let line = said.next().unwrap().unwrap();
    assert!(line.starts_with(&format!("default: {disk}")) || line.contains("file,path="), "it serves: {line}");
    next.kill().unwrap();
    next.wait().unwrap();
}

/// Red if the size is looked up when the server starts, or if an old client may go past the size that it was told.
#[test]
fn clients_that_come_after_a_file_has_grown_see_its_size() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    fs::write(&path, vec![7; 1 << 20]).unwrap();
    let make_long = |len| fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(len).unwrap();
    let mut server = Served::start(&[path.to_str().unwrap()]);
    let mut old = server.connect("");
    assert_eq!((old.size, server.say(&["get", "size"])), (1 << 20, "2048\n".to_owned()));
    make_long(3 << 20);
    let mut new = server.connect("");
    assert_eq!((new.size, server.say(&["get", "size"])), (3 << 20, "6144\n".to_owned()));
    assert_eq!(server.json(&["list"])[0]["queues"][0]["size_bytes"], 3 << 20);
    assert_eq!(new.write((3 << 20) - 4096, &[9; 4096]), 0);
    assert_eq!(old.write((1 << 20) - 4096, &[8; 4096]), 0);
    assert_eq!(old.write(1 << 20, &[8; 4096]), 28, "no space: it was told of one MiB");
    assert_eq!(new.read((1 << 20) - 4096, 8192), [[8; 4096], [0; 4096]].concat());
    assert_eq!(new.read((3 << 20) - 4096, 4096), [9; 4096]);

    make_long(2 << 20);
    assert_eq!(server.connect("").size, 3 << 20, "a device that shrinks is no smaller");
    assert_eq!(new.read(0, 4096), [7; 4096]);
    drop((old, new));
    let (code, said) = server.terminate();
    let warning =
        "blkmq: export \"\": the device has 4096 sectors, not 6144 as before; a queue's device may grow but not shrink";
    // A server whose regular check of the devices comes in time says this too.
    let loss = "blkmq: the device of queue 'default' has failed: the file became shorter at ";
    let (found, others): (Vec<_>, Vec<_>) = said.lines().partition(|line| *line == warning);
    assert_eq!((code, found.len()), (Some(0), 1), "{said}");
    assert!(others.iter().all(|line| line.starts_with(loss)), "{said}");
}
