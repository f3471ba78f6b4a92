//! What a server knows of its clients, and does for each of them, seen from outside.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::served::{Config, Served, flood, until};
use rustix::process::Signal;

/// The number of requests that the flooding client keeps outstanding.
const DEPTH: u64 = 128;
/// The number of reads of the other client.
const READS: usize = 16;

/// A server whose device takes one request at a time, and longer for it than a busy machine mostly takes to wake a
/// client. On its queue there are an ordinary export and one with a priority.
fn with_priority(priority: &str) -> Served {
    let text = format!(
        "device = \"null,irqmode=2,completion_nsec=1ms,hw_queue_depth=1,size=1G\"\nscheduler = \"mq-deadline\"\n\
         [[export]]\nname = \"other\"\nqueue = \"default\"\npriority = \"{priority}\"\n"
    );
    Config::new(&text).serve()
}

/// How many reads of the flood are answered while one read of the other client is in progress: the median of many.
fn overtaken(server: &Served) -> u64 {
    let (answered, ends) = (AtomicU64::new(0), AtomicBool::new(false));
    let (mut many, mut other) = (server.connect(""), server.connect("other"));
    thread::scope(|scope| {
        scope.spawn(|| flood(&mut many, DEPTH, &answered, &ends));
        while answered.load(Ordering::Relaxed) < 2 * DEPTH {
            thread::yield_now();
        }
        let mut passed: Vec<u64> = (0..READS)
            .map(|number| {
                let before = answered.load(Ordering::Relaxed);
                // These sectors are past all sectors of the flood, so the order of sectors does not bring the read to
                // the front.
                other.read((512 << 20) + number as u64 * 4096, 512);
                answered.load(Ordering::Relaxed) - before
            })
            .collect();
        ends.store(true, Ordering::Relaxed);
        passed.sort_unstable();
        passed[READS / 2]
    })
}

/// Red if the export's priority does not reach the queue's client, if the scheduler ignores it, or if the flood takes
/// the scheduler's room (for two requests, with such a device) again and again. The second server shows that only the
/// priority makes the difference.
#[test]
fn a_client_with_a_higher_class_does_not_wait_for_the_others() {
    let (ahead, alike) = (overtaken(&with_priority("rt/0")), overtaken(&with_priority("be/4")));
    assert!(alike > DEPTH / 2, "{alike} reads of the flood went before one of the same class");
    // A busy machine wakes the other client late. The flood continues meanwhile, in both cases.
    assert!(8 * ahead < alike, "{ahead} reads of the flood went before one of a higher class, {alike} of the same");
}

#[test]
fn exports_of_one_queue_are_counted_together() {
    let server = with_priority("rt/3");
    let (mut one, mut other) = (server.connect(""), server.connect("other"));
    one.read(0, 4096);
    (0..3).for_each(|_| drop(other.read(0, 4096)));
    drop(one);
    // A client that has left still counts for its queue, but is no longer listed.
    while server.json(&["clients"])["connections"].as_array().unwrap().len() > 1 {
        thread::sleep(Duration::from_millis(10));
    }
    let listed = server.json(&["list"]);
    assert_eq!(listed[0]["queues"].as_array().unwrap().len(), 1);
    assert_eq!(listed[0]["queues"][0]["uris"].as_array().unwrap().len(), 2);
    assert_eq!(server.json(&["clients"])["connections"][0]["queue"], "default");
    let metrics = server.get("/metrics");
    for line in [
        "blkmq_reads_completed_total{queue=\"default\"} 4",
        "blkmq_request_duration_seconds_count{queue=\"default\",front_end=\"nbd\",operation=\"read\"} 4",
        "blkmq_request_duration_seconds_bucket{queue=\"default\",front_end=\"nbd\",operation=\"read\",le=\"+Inf\"} 4",
        // The device takes a millisecond.
        "blkmq_request_duration_seconds_bucket{queue=\"default\",front_end=\"nbd\",operation=\"read\",le=\"0.000065536\"} 0",
    ] {
        assert!(metrics.contains(&format!("\n{line}\n")), "{line}: {metrics}");
    }
    let own = "blkmq_client_request_duration_seconds_count{queue=\"default\",export=\"other\",front_end=\"nbd\",client=\"2\",";
    let is_own = |line: &&str| line.starts_with(own) && line.contains(",operation=\"read\"}");
    let own: Vec<_> = metrics.lines().filter(is_own).collect();
    assert!(own.len() == 1 && own[0].ends_with(" 3"), "{own:?}: {metrics}");
    assert!(!metrics.contains("operation=\"write\""), "what there was not is not shown");
}

/// Red before machines were clients of the server's engine: no command showed them, and a server that ends did not know
/// of them.
#[test]
fn a_machine_is_a_client_beside_others() {
    let folder = tempfile::tempdir().expect("there is room for a folder");
    let socket = folder.path().join("vm").display().to_string();
    let mut server =
        Served::start(&["--device", "ram,size=1M", "--vhost-user", &format!("{socket},threads=2,queues=2")]);
    let mut machine = UnixStream::connect(&socket).expect("the server listens");
    let client = server.connect("");
    let found = || server.json(&["clients"])["connections"].as_array().expect("a list").clone();
    until(|| found().len() == 2);
    let found = found().into_iter().find(|client| client["front_end"] == "vhost-user").expect("the machine is there");
    assert_eq!((&found["peer"], &found["client"]), (&socket.clone().into(), &format!("{socket}@default").into()));
    let metrics = server.get("/metrics");
    assert!(metrics.contains("\nblkmq_clients{front_end=\"vhost-user\"} 1\n"), "{metrics}");
    drop(client);
    server.signal(Signal::TERM);
    assert_eq!(machine.read(&mut [0]).expect("the server disconnects"), 0);
    assert_eq!(server.end(), (Some(0), String::new()));
}
