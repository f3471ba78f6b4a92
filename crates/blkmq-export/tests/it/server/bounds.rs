//! The bounds of what a connection may hold, so that no other client suffers from it.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use blkmq::driver::spec;
use blkmq::{Clock, RequestQueue, VirtualClock};
use blkmq_export::nbd::{commands, option_replies, options};
use blkmq_export::{Bounds, Export, Server};
use rustls::StreamOwned;
use rustls::version::TLS13;

use crate::server::client::{Client, named, request, write};
use crate::server::ending::until;
use crate::server::site::{Site, start_telling, start_tls};
use crate::server::{builder, listening, queue, server_with, serving};

/// A client that does not read waits alone, loses nothing, and makes the server hold little. With TLS, too.
pub(crate) fn check_that_only_the_deaf_wait<S: Read + Write>(server: &Server, [mut deaf, mut other]: [Client<S>; 2]) {
    let mut bytes = Vec::new();
    (0..64).for_each(|cookie| bytes.extend(request(commands::READ, 0, cookie, 0, 1 << 20)));
    deaf.send(&bytes);
    // The server takes as many reads as the bounds allow, and answers them as far as the socket takes the answers.
    let taken = || server.clients()[0].requests;
    until(|| taken() >= 4);
    for round in 0..100 {
        assert_eq!(other.write(0, &[round; 4096]), Ok(vec![]));
        assert_eq!(other.read(0, 4096), Ok(vec![round; 4096]));
    }
    // A socket, and a TLS session, hold less than 1 MiB of answers, so only some can have been sent completely.
    assert!(taken() <= 8, "{} of 64 requests were taken", taken());
    for _ in 0..64 {
        assert_eq!(deaf.reply(|_| 1 << 20).1.map(|data| data.len()), Ok(1 << 20));
    }
}

#[test]
fn who_does_not_read_waits_alone_and_loses_nothing() {
    let server = server_with(&queue("ram,size=16M"), Bounds { requests: 16, bytes: 4 << 20 });
    check_that_only_the_deaf_wait(&server, [(); 2].map(|()| Client::simple(&server)));
}

/// Red (hangs) if the connection takes no requests until the client has taken its answers: this client first sends more
/// requests, and waits until all of them are taken.
#[test]
fn what_is_sent_before_the_answers_are_taken_is_done() {
    let q = queue("ram,size=16M");
    let server = server_with(&q, Bounds { requests: 16, bytes: 4 << 20 });
    let (mut deaf, mut other) = (Client::simple(&server), Client::simple(&server));
    deaf.request(commands::READ, 0, 0, 0, 1 << 20);
    while server.clients()[0].requests == 0 {
        thread::yield_now();
    }
    deaf.send(&write(1, 1 << 20, &vec![7; 1 << 20]));
    while other.read(1 << 20, 4096) != Ok(vec![7; 4096]) {
        thread::yield_now();
    }
    assert_eq!(deaf.reply(|_| 1 << 20), (0, Ok(vec![0; 1 << 20])));
    assert_eq!(deaf.reply(|_| 0), (1, Ok(vec![])));
}

#[test]
fn small_bounds_slow_down_and_refuse_nothing_that_fits() {
    let q = queue("null,size=16M,memory_backed=1,irqmode=2,completion_nsec=10us");
    for requests in [1, 2, 7] {
        let server = server_with(&q, Bounds { requests, bytes: 65536 });
        let mut client = Client::structured(&server);
        let mut bytes = Vec::new();
        for cookie in 0..200_u64 {
            bytes.extend(write(cookie, cookie * 65536, &[cookie as u8; 65536]));
            bytes.extend(request(commands::FLUSH, 0, 1000 + cookie, 0, 0));
        }
        let mut writer = client.stream.try_clone().unwrap();
        thread::scope(|scope| {
            scope.spawn(move || writer.write_all(&bytes).unwrap());
            for _ in 0..400 {
                assert_eq!(client.reply(|_| 0).1, Ok(vec![]));
            }
        });
        for cookie in 0..200_u64 {
            assert_eq!(client.read(cookie * 65536, 65536), Ok(vec![cookie as u8; 65536]));
        }
        assert_eq!(client.read(0, 65536 + 512), Err(22));
        assert_eq!(client.write(0, &vec![0; 65536 + 512]), Err(22));
        client.leave();
    }
}

#[test]
fn there_is_room_for_256_connections() {
    let (_folder, path, builder) = listening("ram,size=16M");
    let server = builder.start().unwrap();
    let connect = |_| {
        let mut client = Client::connect(&path);
        client.go("");
        client
    };
    let mut clients: Vec<_> = (0..256).map(connect).collect();
    for (index, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.write(index as u64 * 512, &[index as u8; 512]), Ok(vec![]));
    }
    assert_eq!(server.clients().len(), 256);
    for (index, client) in clients.iter_mut().enumerate().rev() {
        let other = 255 - index;
        assert_eq!(client.read(other as u64 * 512, 512), Ok(vec![other as u8; 512]));
    }
    clients.into_iter().for_each(Client::leave);
}

/// Red if a connection that has chosen nothing takes a place: the client would wait for connections that say nothing.
#[test]
fn strangers_that_say_nothing_keep_no_client_out() {
    let (_folder, path, builder) = listening("ram,size=16M");
    let server = builder.max_connections(1).start().unwrap();
    let strangers: Vec<_> = (0..16).map(|_| UnixStream::connect(&path).unwrap()).collect();
    until(|| server.clients().len() == strangers.len());
    let mut client = Client::connect(&path);
    client.go("");
    assert_eq!(client.read(0, 4096), Ok(vec![0; 4096]));
    client.leave();
}

/// Red if silent connections of one user keep their places while other clients wait for one: the new client would not
/// be greeted.
#[test]
fn a_stranger_that_has_said_nothing_for_long_goes_when_its_place_is_needed() {
    let (_folder, path, builder) = listening("ram,size=16M");
    let server = builder.start().unwrap();
    let strangers: Vec<_> = (0..100).map(|_| UnixStream::connect(&path).unwrap()).collect();
    // Some are turned away at once. Once the others have been silent for a while, one of them has to end for each
    // client that comes.
    until(|| server.rejections().crowded > 0);
    until(|| {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.read_exact(&mut [0; 18]).is_ok()
    });
    assert!(server.clients().len() <= 128);
    // The connection that has been there for longest has been greeted, and is closed now.
    let mut oldest = &strangers[0];
    oldest.read_exact(&mut [0; 18]).unwrap();
    assert!(matches!(oldest.read(&mut [0]), Ok(0) | Err(_)));
}

/// Red if what a client sends in its handshake does not count: this client would be the one that was silent for
/// longest, and would be disconnected.
#[test]
fn a_slow_handshake_is_not_silent() {
    let site = Site::new();
    let server = site.server("ram,size=1M");
    let (ours, theirs) = UnixStream::pair().unwrap();
    let seen = theirs.try_clone().unwrap();
    server.serve(theirs.into(), Some("a test")).unwrap();
    let mut slow = Client::greet(ours);
    start_tls(&mut slow);
    let mut tls_session = site.tls_session(&[&TLS13], None);
    let mut hello = Vec::new();
    tls_session.write_tls(&mut hello).unwrap();
    // As many connections as one user may have.
    let others: Vec<_> = (1..64)
        .map(|_| {
            let mut other = Client::pair(&server);
            other.ask(options::LIST, &[]);
            other
        })
        .collect();
    // The pause is longer than a connection may be silent when its place is needed.
    thread::sleep(Duration::from_millis(1100));
    for byte in &hello[..2] {
        slow.send(&[*byte]);
        until(|| rustix::io::ioctl_fionread(&seen).unwrap() == 0);
    }
    drop(seen);
    let _newcomer = Client::pair(&server);
    slow.send(&hello[2..]);
    let mut slow = Client::over(StreamOwned::new(tls_session, slow.stream));
    slow.go("");
    assert_eq!(slow.read(0, 512), Ok(vec![0; 512]));
    drop(others);
}

/// Red if a client that finds the server full gets no answer, or is let in; if a second try of the same client counts
/// as another client; or if the log reports either of them twice.
#[test]
fn a_client_too_many_is_told_so_and_counted() {
    let (server, warnings) = start_telling(serving("ram,size=16M").max_connections(1));
    let first = Client::simple(&server);
    let mut second = Client::pair(&server);
    let go = [&named("")[..], &[0, 0]].concat();
    let refused =
        (option_replies::ERR_POLICY, b"the server has as many clients as it may, 1; try again later".to_vec());
    for _ in 0..3 {
        assert_eq!(second.ask(options::GO, &go), std::slice::from_ref(&refused));
    }
    let mut third = Client::pair(&server);
    third.option(options::EXPORT_NAME, b"");
    assert!(third.is_closed(), "there is no answer to that which says no");
    assert_eq!(server.rejections().full, 2);
    assert_eq!(second.ask(options::INFO, &go).last(), Some(&(option_replies::ACK, vec![])), "to ask takes no place");
    first.leave();
    until(|| server.clients().iter().all(|client| client.export.is_none()));
    second.go("");
    assert_eq!(second.read(0, 4096), Ok(vec![0; 4096]));
    drop(server);
    let line = "from a test is refused: the server has as many clients as it may, 1; try again later";
    assert_eq!(*warnings.lock().unwrap(), [2, 3].map(|number| format!("client {number} {line}")));
}

/// Red if the client for which its queue has no thread's place is closed without a reply, as it was; if its place among
/// the server's clients, of which there is one, is lost with that; or if the log does not say once which limit it was.
#[test]
fn a_client_for_which_its_queue_has_no_place_is_told_so_and_may_try_again() {
    let driver = spec::open("ram,size=1M").unwrap();
    let q = RequestQueue::builder(driver).slots(1).build().unwrap();
    // Threads of the program that has the server.
    let mut others: Vec<_> = (0..1023).map(|_| q.submitter(&blkmq::Client::new("other")).unwrap()).collect();
    let builder = builder().export(Export::new("disk", q)).export(Export::new("", queue("ram,size=1M")));
    let (server, warnings) = start_telling(builder.max_connections(1));
    let go = [&named("disk")[..], &[0, 0]].concat();
    let why = "export \"disk\" takes no further connection now: a queue takes at most 1023 threads; try again later";
    let mut client = Client::pair(&server);
    for _ in 0..3 {
        assert_eq!(client.ask(options::GO, &go), [(option_replies::ERR_POLICY, why.as_bytes().to_vec())]);
        assert_eq!(server.clients()[0].export, None);
    }
    let mut old = Client::pair(&server);
    old.option(options::EXPORT_NAME, b"disk");
    assert!(old.is_closed(), "there is no answer to that which says no");
    assert_eq!((server.rejections().queue_full, server.rejections().full), (2, 0));
    // The queue of another export has places.
    Client::simple(&server).leave();
    until(|| server.clients().len() == 1);
    others.pop();
    client.go("disk");
    assert_eq!(client.read(0, 512), Ok(vec![0; 512]));
    drop(server);
    let warnings = warnings.lock().unwrap();
    let told = |number| format!("client {number} from a test is refused: {why}");
    assert_eq!(*warnings, [told(1), told(2)]);
}

#[test]
fn few_slots_slow_down_and_refuse_nothing() {
    for slots in [1, 3] {
        let driver = spec::open("null,size=16M,memory_backed=1,irqmode=2,completion_nsec=10us").unwrap();
        let q = RequestQueue::builder(driver).slots(slots).build().unwrap();
        let server = server_with(&q, Bounds::default());
        let mut client = Client::simple(&server);
        (0..100).for_each(|cookie| client.send(&write(cookie, cookie * 4096, &[cookie as u8; 4096])));
        for _ in 0..100 {
            assert_eq!(client.reply(|_| 0).1, Ok(vec![]));
        }
        let data = client.read(0, 100 * 4096).unwrap();
        assert!(data.chunks(4096).zip(0..).all(|(block, index)| block == [index; 4096]));
    }
}

#[test]
fn a_connection_moves_a_clock_that_nobody_else_moves() {
    let clock = VirtualClock::new();
    let driver = spec::open("null,size=16M,memory_backed=1,irqmode=2,completion_nsec=10s").unwrap();
    let q = RequestQueue::builder(driver).clock(Clock::Virtual(clock.clone())).build().unwrap();
    let server = server_with(&q, Bounds::default());
    assert_eq!(Client::simple(&server).read(0, 4096), Ok(vec![0; 4096]));
    assert!(clock.now().0 >= 10_000_000_000);
}
