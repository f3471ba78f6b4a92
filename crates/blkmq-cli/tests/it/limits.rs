//! What `blkmq serve` does when clients ask for too much, or do too little.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

use crate::run::has_all;
use crate::served::{Nbd, READ, Served, until};
use rustix::process::Signal;
use serde_json::json;

/// Red if a client too many waits without an answer, or if the operator is not told of it.
#[test]
fn a_client_too_many_is_told_so_and_so_is_the_operator() {
    let mut server = Served::start(&["--max-connections", "1"]);
    let first = server.connect("");
    let (_, said) = server.refusal();
    assert!(said.contains("the server has as many clients as it may, 1; try again later"), "{said}");
    let metrics = server.get("/metrics");
    assert!(metrics.contains("\nblkmq_connections_rejected_total{reason=\"max_connections\"} 1\n"), "{metrics}");
    assert!(metrics.contains("\nblkmq_connections_rejected_total{reason=\"too_many_negotiating\"} 0\n"), "{metrics}");
    drop(first);
    let (code, error) = server.terminate();
    assert!(code == Some(0) && error.contains(" is refused: the server has as many clients as it may, 1"), "{error}");
}

/// A server that ends its drain after this time, and a client that does not read the replies to its 32 requests.
fn stuck(drain_timeout: &str) -> (Served, Nbd) {
    let server = Served::start(&["--drain-timeout", drain_timeout]);
    let mut client = server.connect("");
    (0..32).for_each(|cookie| client.send(READ, cookie, 0, 1 << 20, &[]));
    // Replies wait for the client when no more of them is made.
    let mut before = json!(null);
    until(|| {
        let connection = server.json(&["clients"])["connections"][0].clone();
        let [requests, bytes] = ["requests", "bytes"].map(|key| &connection[key]);
        let is_stuck = *requests == json!(32) && *bytes != json!(0) && *bytes == before;
        before = bytes.clone();
        is_stuck
    });
    (server, client)
}

/// Red if the operator is not told which client keeps the server from ending, or if the last line does not say that the
/// client was left. Hangs if `Drain::due` never returns `Due::End`: the drain then has no time limit.
#[test]
fn a_drain_says_whom_it_waits_for_and_ends_by_itself() {
    let (mut server, client) = stuck("600ms");
    let (code, error) = server.terminate();
    assert_eq!(code, Some(1), "{error}");
    let [waits, ended] = error.lines().collect::<Vec<_>>()[..] else { panic!("{error}") };
    assert!(waits.starts_with("blkmq: serve: waits for 1 client, 1 s more at most: client 1 from "), "{error}");
    has_all(waits, &[" at \"default\" with 3", " requests not answered, which has not read for "]);
    assert_eq!(ended, "blkmq: serve: ended after 600ms, without waiting any longer for 1 client");
    drop(client);
}

/// Hangs if what the server says at its end is waited for, although no program reads it.
#[test]
fn the_end_does_not_wait_for_a_program_that_reads_nothing() {
    let (mut server, _client) = stuck("100ms");
    // Another description of the pipe than the server's own, which is to wait for room.
    let pipe = format!("/proc/{}/fd/2", server.child.id());
    let mut pipe = File::options().write(true).custom_flags(libc::O_NONBLOCK).open(pipe).unwrap();
    // The last byte: the kernel counts whole pages.
    for bytes in [&[b'-'; 4096][..], b"-"] {
        while pipe.write(bytes).is_ok() {}
    }
    server.signal(Signal::TERM);
    assert_eq!(server.child.wait().unwrap().code(), Some(1));
}
