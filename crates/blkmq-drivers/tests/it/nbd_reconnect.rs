//! The device `nbd` while its server is away, and when the server is back.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{run, status_of, submitter};
use crate::pretend::{SIZE, accept, greet, request};
use blkmq::driver::{Health, Topology, spec};
use blkmq::{Bio, Buffer, Flags, RequestQueue, Status};
use blkmq_export::{Address, Export, Server};
use blkmq_nbd::{SimpleReply, commands, transmission};
use tempfile::TempDir;

pub(crate) const BLOCK: usize = 4096;

/// A folder, and the path of a socket in it.
fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("there is room");
    let socket = folder.path().join("a");
    (folder, socket)
}

/// The same with a server's socket that listens.
pub(crate) fn listener() -> (TempDir, PathBuf, UnixListener) {
    let (folder, socket) = folder();
    let listener = UnixListener::bind(&socket).expect("nobody else has the name");
    (folder, socket, listener)
}

/// A disk that outlives its servers.
fn disk(device: &str) -> RequestQueue {
    RequestQueue::builder(spec::open(device).expect("the device is right")).build().expect("so is its queue")
}

fn serve(disk: &RequestQueue, socket: &Path) -> Server {
    let server = Server::builder().export(Export::new("", disk.clone())).listen(Address::unix(socket));
    server.start().expect("the server is right")
}

pub(crate) fn open(socket: &Path, parameters: &str) -> RequestQueue {
    let spec = format!("nbd,uri=nbd+unix:///?socket={}{parameters}", socket.display());
    RequestQueue::builder(blkmq_drivers::open(&spec).expect("the server is there")).build().expect("so is its queue")
}

/// Waits without a limit until the device has the wanted health.
pub(crate) fn until(q: &RequestQueue, is_so: impl Fn(&Health) -> bool) -> Health {
    loop {
        let health = q.driver().health();
        if is_so(&health) {
            return health;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn write(block: u64, byte: u8) -> Bio {
    Bio::write(block * (BLOCK / 512) as u64, Buffer::from(&[byte; BLOCK][..]))
}

fn fua(bio: Bio) -> Bio {
    bio.with_flags(Flags { fua: true, ..Flags::NONE })
}

pub(crate) fn read(block: u64) -> Bio {
    Bio::read(block * (BLOCK / 512) as u64, Buffer::zeroed(BLOCK))
}

const CACHED: &str = "null,size=4M,memory_backed=1,cache_size=1M";

/// Red if a request that was in flight is not sent again, or if a request that comes while the server is away is not
/// kept: the operation would fail, or never be over.
#[test]
fn requests_wait_for_a_server_that_is_started_anew() {
    const BLOCKS: u64 = 128;
    let (_folder, socket) = folder();
    let disk = disk("ram,size=4M");
    let mut server = Some(serve(&disk, &socket));
    let q = open(&socket, ",submit_queues=2,hw_queue_depth=16,reconnect_delay=600s,keeps_cache=1");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for number in 0..2_u64 {
            let mut submitter = submitter(&q);
            let is_over = &is_over;
            scope.spawn(move || {
                let blocks = || (number * BLOCKS..(number + 1) * BLOCKS).step_by(3);
                let mut round = 0_u8;
                while !is_over.load(Ordering::Relaxed) || round == 0 {
                    round = round.wrapping_add(1);
                    let over = run(&mut submitter, blocks().map(|block| write(block, round)).chain([Bio::flush()]));
                    assert!(over.iter().all(|done| done.status.is_ok()), "{over:?}");
                    for done in run(&mut submitter, blocks().map(read)) {
                        assert!(done.status.is_ok(), "{done:?}");
                        let data = &done.bio.buffers.iter().next().expect("a read has a buffer")[..];
                        assert!(data.iter().all(|byte| *byte == round), "sector {}", done.bio.sector);
                    }
                }
            });
        }
        for _ in 0..5 {
            thread::sleep(Duration::from_millis(50));
            drop(server.take());
            until(&q, |health| matches!(health, Health::Away(_)));
            server = Some(serve(&disk, &socket));
            until(&q, |health| *health == Health::Good);
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

/// The cookie of the next request, which has no data.
fn cookie(stream: &mut UnixStream) -> u64 {
    request(stream).expect("the client asks").cookie
}

/// The good reply to a read, with its data.
fn reply(cookie: u64) -> Vec<u8> {
    [&SimpleReply { errno: 0, cookie }.encode()[..], &[7; BLOCK]].concat()
}

/// Red if the device does not connect again by itself.
#[test]
fn without_a_delay_requests_fail_until_the_server_is_back() {
    let (_folder, socket) = folder();
    let disk = disk("ram,size=4M");
    let server = serve(&disk, &socket);
    let q = open(&socket, "");
    let mut submitter = submitter(&q);
    assert_eq!(status_of(&mut submitter, fua(write(1, 1))), Status::Ok);
    drop(server);
    // The thread that uses the connection finds that it is broken.
    assert_eq!(status_of(&mut submitter, read(1)), Status::IoError);
    let away = until(&q, |health| matches!(health, Health::Away(_)));
    assert!(away.trouble().is_some_and(|text| text.contains("the server is away for")), "{away:?}");
    assert_eq!(status_of(&mut submitter, read(1)), Status::IoError);
    let _server = serve(&disk, &socket);
    until(&q, |health| *health == Health::Good);
    assert_eq!(status_of(&mut submitter, read(1)), Status::Ok);
}

/// Red (hangs) if `Link::restore` keeps requests when `reconnect_delay` is over.
#[test]
fn requests_that_have_waited_for_too_long_fail() {
    let (_folder, socket) = folder();
    let disk = disk("ram,size=4M");
    let server = serve(&disk, &socket);
    let q = open(&socket, ",reconnect_delay=200ms");
    let mut submitter = submitter(&q);
    drop(server);
    let over = run(&mut submitter, (0..8).map(read));
    assert!(over.iter().all(|done| done.status == Status::IoError), "{over:?}");
    let _server = serve(&disk, &socket);
    until(&q, |health| *health == Health::Good);
    assert_eq!(status_of(&mut submitter, read(1)), Status::Ok);
}

/// Red if a flush succeeds after the server was away with a write that it had answered: the write may have been only in
/// the server's cache.
#[test]
fn a_flush_says_nothing_good_of_writes_that_the_server_may_have_lost() {
    let (_folder, socket) = folder();
    let disk = disk(CACHED);
    let server = serve(&disk, &socket);
    let q = open(&socket, ",reconnect_delay=600s");
    let mut submitter = submitter(&q);
    assert_eq!(status_of(&mut submitter, write(1, 1)), Status::Ok);
    drop(server);
    let _server = serve(&disk, &socket);
    assert_eq!(status_of(&mut submitter, read(1)), Status::Ok, "what needs no promise goes on");
    assert_eq!(status_of(&mut submitter, Bio::flush()), Status::IoError);
    assert_eq!(status_of(&mut submitter, Bio::flush()), Status::IoError, "not for once");
    assert_eq!(status_of(&mut submitter, fua(write(2, 2))), Status::IoError);
    assert_eq!(status_of(&mut submitter, write(2, 2)), Status::Ok);
    until(&q, |health| matches!(health, Health::Failed(text) if text.contains("may be lost")));
}

/// Red if data that a flush covered counts as lost, or if the operator's setting has no effect.
#[test]
fn what_was_flushed_or_outlives_the_server_is_not_lost() {
    for (parameters, is_flushed) in [("", true), (",keeps_cache=1", false)] {
        let (_folder, socket) = folder();
        let disk = disk(CACHED);
        let server = serve(&disk, &socket);
        let q = open(&socket, &format!(",reconnect_delay=600s{parameters}"));
        let mut submitter = submitter(&q);
        assert_eq!(status_of(&mut submitter, write(1, 1)), Status::Ok);
        if is_flushed {
            assert_eq!(status_of(&mut submitter, Bio::flush()), Status::Ok);
        }
        drop(server);
        let _server = serve(&disk, &socket);
        assert_eq!(status_of(&mut submitter, fua(write(2, 2))), Status::Ok, "{parameters}");
        assert_eq!(status_of(&mut submitter, Bio::flush()), Status::Ok, "{parameters}");
        until(&q, |health| *health == Health::Good);
    }
}

/// Red if any export is accepted: requests would go to another disk.
#[test]
fn a_smaller_export_is_not_taken_for_the_one_that_was_there() {
    let (_folder, socket) = folder();
    let (large, small) = (disk("ram,size=4M"), disk("ram,size=2M"));
    let server = serve(&large, &socket);
    let q = open(&socket, ",reconnect_delay=600s");
    drop(server);
    let server = serve(&small, &socket);
    thread::scope(|scope| {
        let mut submitter = submitter(&q);
        let waits = scope.spawn(move || status_of(&mut submitter, read(1)));
        until(&q, |health| {
            health.trouble().is_some_and(|text| text.contains("promises each connection something else"))
        });
        assert!(!waits.is_finished(), "it waits for the right one");
        drop(server);
        let _server = serve(&large, &socket);
        assert_eq!(waits.join().expect("no assertion there"), Status::Ok);
    });
}

/// Red if a request fails because it is overdue while it waits for a server.
#[test]
fn a_request_that_waits_for_longer_than_the_timeout_is_done_by_the_next_server() {
    let (_folder, socket) = folder();
    let disk = disk("ram,size=4M");
    let server = serve(&disk, &socket);
    let q = open(&socket, ",reconnect_delay=600s");
    q.set_knob("io_timeout", "30").unwrap();
    drop(server);
    thread::scope(|scope| {
        let mut submitter = submitter(&q);
        let waits = scope.spawn(move || status_of(&mut submitter, read(1)));
        until(&q, |health| matches!(health, Health::Away(_)));
        thread::sleep(Duration::from_millis(200));
        assert!(!waits.is_finished(), "it waits for longer than the timeout");
        let _server = serve(&disk, &socket);
        assert_eq!(waits.join().expect("no assertion there"), Status::Ok);
    });
}

/// Red if the time before a request was sent again counts: the next server would have only the rest of the timeout.
#[test]
fn the_next_server_has_the_whole_timeout() {
    const TIMEOUT: Duration = Duration::from_secs(2);
    let (_folder, socket, listener) = listener();
    let server = thread::spawn(move || {
        let accept = || accept(&listener, SIZE, 0);
        let mut first = accept();
        cookie(&mut first);
        drop(first);
        let mut second = accept();
        let began = Instant::now();
        cookie(&mut second);
        // Until the client closes the connection.
        assert_eq!(second.read(&mut [0; 256]).unwrap(), 0);
        let lasted = began.elapsed();
        let mut third = accept();
        let cookie = cookie(&mut third);
        third.write_all(&reply(cookie)).unwrap();
        lasted
    });
    let q = open(&socket, ",reconnect_delay=600s");
    q.set_knob("io_timeout", &TIMEOUT.as_millis().to_string()).unwrap();
    assert_eq!(status_of(&mut submitter(&q), read(1)), Status::Ok);
    let lasted = server.join().unwrap();
    assert!(lasted >= TIMEOUT, "it was given up after {lasted:?}");
}

/// Red (hangs) if `Link::come_up` lets hardware queues come up one by one: the first one would keep a connection to a
/// server that is gone. The same if it keeps the size that this server told: the export of the next server would be too
/// small.
#[test]
fn a_server_that_goes_again_before_all_are_connected_is_no_server() {
    let (_folder, socket, listener) = listener();
    let (is_open, opened) = std::sync::mpsc::channel();
    let server = thread::spawn(move || {
        let accept = |size| accept(&listener, size, transmission::CAN_MULTI_CONN);
        let first = [accept(SIZE), accept(SIZE)];
        opened.recv().unwrap();
        drop(first);
        // The server speaks to the first hardware queue, and is gone before it has spoken to the second.
        let first = accept(2 * SIZE);
        drop((listener.accept().unwrap(), first));
        let answer = |mut stream: UnixStream| {
            while let Some(read) = request(&mut stream).filter(|request| request.kind == commands::READ) {
                stream.write_all(&reply(read.cookie)).unwrap();
            }
        };
        let streams = [accept(SIZE), accept(SIZE)];
        thread::scope(|scope| {
            streams.map(|stream| scope.spawn(move || answer(stream))).map(|thread| thread.join().unwrap())
        });
    });
    let q = open(&socket, ",submit_queues=2,reconnect_delay=600s");
    is_open.send(()).unwrap();
    thread::scope(|scope| {
        let waits = [1, 2].map(|block| {
            let mut submitter = submitter(&q);
            scope.spawn(move || status_of(&mut submitter, read(block)))
        });
        assert_eq!(waits.map(|thread| thread.join().expect("no assertion there")), [Status::Ok; 2]);
    });
    until(&q, |health| *health == Health::Good);
    drop(q);
    server.join().unwrap();
}

/// Red if one more hardware queue gets a connection to an earlier server: flushes by the others, which are connected to
/// the next server, would say nothing of what this server answers.
#[test]
fn one_more_hardware_queue_is_with_the_server_of_the_others_or_refused() {
    let (_folder, socket, listener) = listener();
    let (is_dialled, dialled) = std::sync::mpsc::channel();
    let server = thread::spawn(move || {
        let accept = || listener.accept().unwrap().0;
        let greet = |stream: &mut UnixStream| greet(stream, SIZE, transmission::CAN_MULTI_CONN);
        let mut first = accept();
        greet(&mut first);
        let mut more = accept();
        drop(first);
        is_dialled.send(()).unwrap();
        let mut next = accept();
        greet(&mut next);
        let cookie = cookie(&mut next);
        next.write_all(&reply(cookie)).unwrap();
        // Everything works again when the server that was there before talks to the new connection.
        greet(&mut more);
        let _ = next.read(&mut [0; 28]);
    });
    let q = open(&socket, ",reconnect_delay=600s");
    thread::scope(|scope| {
        let q = &q;
        let more = scope.spawn(|| q.driver().set_topology(Topology { default_queues: 2, ..q.driver().topology() }));
        dialled.recv().unwrap();
        assert_eq!(status_of(&mut submitter(q), read(1)), Status::Ok);
        let error = more.join().unwrap().unwrap_err();
        assert!(error.to_string().contains("the server is away"), "{error}");
    });
    drop(q);
    server.join().unwrap();
}
