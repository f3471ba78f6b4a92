//! How connections and servers end.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use blkmq::event::EventFd;
use blkmq_engine::Topic;
use blkmq_export::nbd::{commands, options};
use blkmq_export::{Address, Bounds, Export, FrontEnd, Level, Server};

use crate::server::client::{Client, request, write};
use crate::server::site::start_telling;
use crate::server::{builder, listening, queue, server, server_with, serving};

/// How often a thread that waits looks, a millisecond apart. Only a bug keeps it waiting for so long.
const MOST_LOOKS: u32 = 1_000_000;

/// Waits until this holds.
#[track_caller]
pub(crate) fn until(condition: impl Fn() -> bool) {
    for _ in 0..MOST_LOOKS {
        if condition() {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("what the test waits for has not come about after {MOST_LOOKS} looks");
}

/// A client with 64 writes in progress, which are not done while the queue is quiesced.
fn stuck(server: &Server) -> Client {
    let mut client = Client::simple(server);
    (0..64).for_each(|cookie| client.send(&write(cookie, cookie * 4096, &[1; 4096])));
    let number = server.clients().last().expect("it is connected").number;
    until(|| server.clients().iter().any(|client| client.number == number && client.requests == 64));
    client
}

#[test]
fn who_only_stops_sending_is_answered() {
    for device in ["ram,size=16M", "null,size=16M,memory_backed=1,irqmode=2,completion_nsec=100us"] {
        let q = queue(device);
        let server = server_with(&q, Bounds::default());
        let quiesce = q.quiesce();
        let mut half = stuck(&server);
        half.shut_writing();
        drop(quiesce);
        for _ in 0..64 {
            assert_eq!(half.reply(|_| 0).1, Ok(vec![]));
        }
        assert!(half.is_closed());
        until(|| server.clients().is_empty());
        assert_eq!(q.busy_tags(), 0);
    }
}

#[test]
fn who_leaves_within_the_data_of_a_write_writes_nothing_of_it() {
    let q = queue("ram,size=16M");
    let server = server_with(&q, Bounds::default());
    let mut client = Client::simple(&server);
    client.send(&write(9, 0, &[1; 65536])[..1028]);
    client.shut_writing();
    assert_eq!(client.reply(|_| 0), (9, Err(5)));
    assert!(client.is_closed());
    assert_eq!(Client::simple(&server).read(0, 65536), Ok(vec![0; 65536]));
}

#[test]
fn what_came_before_the_end_is_answered() {
    let server = server("null,size=16M,memory_backed=1,irqmode=2,completion_nsec=1ms");
    let mut client = Client::simple(&server);
    let mut bytes = Vec::new();
    (0..50).for_each(|cookie| bytes.extend(request(commands::READ, 0, cookie, 0, 512)));
    bytes.extend(request(commands::DISC, 0, 0, 0, 0));
    bytes.extend([0; 100]);
    client.send(&bytes);
    for _ in 0..50 {
        assert_eq!(client.reply(|_| 512).1, Ok(vec![0; 512]));
    }
    assert!(client.is_closed());
}

#[test]
fn a_drain_answers_what_has_arrived_and_then_closes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let q = queue("ram,size=16M");
    let export = Export::new("", q.clone());
    let bounds = Bounds { requests: 8, bytes: 65536 };
    let server = builder().export(export).listen(Address::unix(&path)).bounds(bounds).start().unwrap();
    let mut client = Client::connect(&path);
    client.go("");
    let mut idle = Client::connect(&path);
    idle.go("");
    let mut negotiating = Client::connect(&path);
    negotiating.option(options::LIST, &[]);
    negotiating.replies(options::LIST);
    // More requests than the bounds allow at a time, so that most of them are still in the socket, and a write that is
    // not complete.
    let quiesce = q.quiesce();
    let mut bytes = Vec::new();
    (0..100).for_each(|cookie| bytes.extend(request(commands::READ, 0, cookie, 0, 4096)));
    bytes.extend(&write(100, 0, &[1; 4096])[..128]);
    client.send(&bytes);
    server.stop().drain();
    assert!(negotiating.is_closed() && idle.is_closed());
    drop(quiesce);
    for _ in 0..100 {
        let (cookie, answer) = client.reply(|_| 4096);
        assert!(cookie < 100);
        assert_eq!(answer, Ok(vec![0; 4096]));
    }
    let (cookie, answer) = client.reply(|_| 0);
    assert_eq!(cookie, 100);
    assert!(answer.is_err());
    assert!(client.is_closed());
    server.wait();
    assert!(!path.exists());
    assert_eq!(q.busy_tags(), 0);
}

/// A server that listens at the loopback address, and its client with this many reads of 64 KiB. The client's socket
/// does not hold all the answers before the client reads, but both sockets together do.
fn asking_by_tcp(reads: u64) -> (Server, Client<TcpStream>) {
    let server = serving("ram,size=16M").listen(Address::loopback(0)).start().expect("it can listen there");
    let mut client = Client::tcp(&server);
    (0..reads).for_each(|cookie| client.request(commands::READ, 0, cookie, 0, 65536));
    until(|| server.clients()[0].requests == reads);
    (server, client)
}

/// Red if the connection is closed once the socket has taken the last answer: answers that are still on their way are
/// lost then, because a TCP socket that receives data after its end discards everything.
#[test]
fn no_answer_is_lost_of_a_tcp_client_that_goes_on_sending() {
    for is_drained in [true, false] {
        let (server, mut client) = asking_by_tcp(8);
        if is_drained {
            server.stop().drain();
        } else {
            client.request(commands::DISC, 0, 0, 0, 0);
        }
        for _ in 0..50 {
            // The server no longer answers these requests, and they may fail to be sent. Meanwhile the server ends.
            let _ = client.stream.write_all(&request(commands::READ, 0, 8, 0, 512));
            thread::sleep(Duration::from_millis(1));
        }
        for _ in 0..8 {
            assert_eq!(client.reply(|_| 65536).1, Ok(vec![0; 65536]));
        }
        // Some of the requests that the drain found in the socket may be answered.
        let mut rest = Vec::new();
        assert!(client.stream.read_to_end(&mut rest).is_ok() && rest.len().is_multiple_of(512 + 16));
        until(|| server.clients().is_empty());
    }
}

/// Red if the connection does not look for a stop while it waits for a client that takes no answer.
#[test]
fn now_ends_a_drain_that_waits_for_a_client_to_take_its_answers() {
    let (server, client) = asking_by_tcp(8);
    server.stop().drain();
    thread::sleep(Duration::from_millis(20));
    assert_eq!(server.clients().len(), 1, "the answers have not been taken");
    server.stop().now();
    server.wait();
    drop(client);
}

#[test]
fn now_closes_at_once_and_waits_for_the_queue() {
    let q = queue("ram,size=16M");
    let server = server_with(&q, Bounds::default());
    let (mut deaf, mut idle) = (Client::simple(&server), Client::simple(&server));
    let mut bytes = Vec::new();
    (0..64).for_each(|cookie| bytes.extend(request(commands::READ, 0, cookie, 0, 1 << 20)));
    deaf.send(&bytes);
    let mut negotiating = Client::pair(&server);
    let stop = server.stop();
    // A drain would wait for a client that does not read. `now` does not.
    stop.drain();
    stop.now();
    assert!(idle.is_closed() && negotiating.is_closed());
    let (_theirs, ours) = std::os::unix::net::UnixStream::pair().unwrap();
    assert!(server.serve(ours.into(), None).is_err());
    server.wait();
    assert_eq!(q.busy_tags(), 0);
    assert_eq!(Client::simple(&server_with(&q, Bounds::default())).read(0, 512), Ok(vec![0; 512]), "the queue works");
}

#[test]
fn a_server_that_is_dropped_is_gone() {
    let (_folder, path, builder) = listening("ram,size=16M");
    let server = builder.start().unwrap();
    let mut client = Client::connect(&path);
    client.go("");
    drop(server);
    assert!(client.is_closed() && !path.exists());
}

/// Red if a server waits for clients of other front-ends, which end later, or before what is logged of them after its
/// end was lost.
#[test]
fn a_block_device_outlives_the_server_with_its_log() {
    let (server, warnings) = start_telling(serving("ram,size=1M"));
    let engine = Arc::clone(server.engine());
    let device = engine.clients.enter(FrontEnd::Ublk, "ublk0".to_owned(), vec![Arc::new(EventFd::new().unwrap())]);
    server.stop().drain();
    server.wait();
    engine.warn(Topic::Device, format_args!("of {}", device.number));
    until(|| *warnings.lock().unwrap() == ["of 1"]);
}

#[test]
fn the_log_tells_who_came_and_why_they_left() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let log = {
        let lines = Arc::clone(&lines);
        move |level: Level, line: &str| lines.lock().unwrap().push((level, line.to_owned()))
    };
    let export = Export::new("a", queue("ram,size=1M"));
    let server = builder().export(export).log(log).start().unwrap();
    let mut client = Client::pair(&server);
    client.go("a");
    client.leave();
    until(|| server.clients().is_empty());
    let mut client = Client::pair(&server);
    client.option(options::EXPORT_NAME, b"b\n");
    assert!(client.is_closed());
    server.stop().drain();
    server.wait();
    let expected = [
        (Level::Info, "client 1 from a test uses export \"a\""),
        (Level::Info, "client 1 from a test left"),
        (Level::Warning, "client 2 from a test: there is no export \"b\\n\""),
    ];
    let lines = lines.lock().unwrap();
    let said: Vec<_> = lines.iter().map(|(level, line)| (*level, line.as_str())).collect();
    assert_eq!(said, expected);
}
