//! The device `nbd` when its server says that it is about to end: the device leaves in good order, and asks the next
//! server.

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{run, submitter};
use crate::nbd_reconnect::{BLOCK, listener, open, read, until};
use crate::pretend::{SIZE, accept, greet, request};
use blkmq::driver::{Health, Topology};
use blkmq::{Bio, Buffer, Completion, RequestQueue, Status};
use blkmq_nbd::{Errno, SimpleReply, commands, transmission};

/// Waits until the server is away, as far as the device knows.
fn until_away(q: &RequestQueue) {
    until(q, |health| matches!(health, Health::Away(_)));
}

/// The status of a read, and the byte that all of its data has.
fn outcome(done: &Completion) -> (Status, u8) {
    let data = &done.bio.buffers.iter().next().expect("a read has a buffer")[..];
    assert!(data.iter().all(|byte| *byte == data[0]), "the data is of one server");
    (done.status, data[0])
}

/// What a client does on a connection.
enum Deed {
    /// The server reads a block through the connection with this descriptor.
    Read { block: u64, cookie: u64, stream: UnixStream, over: RawFd },
    /// The server says that it leaves.
    Leaves,
    /// The server closes the connection without saying that it leaves.
    Breaks,
}

impl Deed {
    /// Waits for the client's next deed.
    fn of(stream: &mut UnixStream) -> Self {
        let over = stream.as_raw_fd();
        let Some(request) = request(stream) else { return Self::Breaks };
        if request.kind == commands::DISC {
            return Self::Leaves;
        }
        assert_eq!(request.kind, commands::READ);
        let stream = stream.try_clone().expect("there are descriptors");
        Self::Read { block: request.offset / BLOCK as u64, cookie: request.cookie, stream, over }
    }

    /// The block that is read, and the connection through which the client reads it.
    fn place(&self) -> (u64, RawFd) {
        let Self::Read { block, over, .. } = self else { panic!("the client is gone") };
        (*block, *over)
    }
}

/// Answers a read: with data that consists of this byte, or with the message that the server is about to end.
fn answer(deed: &mut Deed, byte: Option<u8>) {
    let Deed::Read { cookie, stream, .. } = deed else { panic!("there is nothing to answer") };
    let errno = if byte.is_some() { 0 } else { Errno::Shutdown.number() };
    let data = byte.map_or(vec![], |byte| vec![byte; BLOCK]);
    let reply = [&SimpleReply { errno, cookie: *cookie }.encode()[..], &data].concat();
    stream.write_all(&reply).expect("the client waits");
}

/// A client that may have several connections.
fn client(listener: &UnixListener) -> UnixStream {
    accept(listener, SIZE, transmission::CAN_MULTI_CONN)
}

/// Accepts a client's connection, and answers each read there with 8 until the client is gone. Returns how many.
fn serve_next(listener: &UnixListener) -> usize {
    let mut stream = client(listener);
    let mut nr_answered = 0;
    while let mut deed @ Deed::Read { .. } = Deed::of(&mut stream) {
        answer(&mut deed, Some(8));
        nr_answered += 1;
    }
    nr_answered
}

/// Accepts a client's connection, and tells what the client does there until it is gone.
fn hear(listener: &UnixListener, tell: &Sender<Deed>) {
    let (mut stream, tell) = (client(listener), tell.clone());
    thread::spawn(move || {
        loop {
            let deed = Deed::of(&mut stream);
            let is_over = !matches!(deed, Deed::Read { .. });
            if tell.send(deed).is_err() || is_over {
                return;
            }
        }
    });
}

/// The next reads, by block.
fn reads<const N: usize>(deeds: &Receiver<Deed>) -> [Deed; N] {
    let mut reads = [(); N].map(|()| deeds.recv().expect("the client is there"));
    reads.sort_by_key(|deed| deed.place().0);
    reads
}

/// Red if the device waits until the server closes the connection, or until the request is overdue: it then ends
/// without a farewell.
#[test]
fn a_server_that_is_about_to_go_and_stays_is_left_for_the_next_one() {
    for (parameters, expected) in [(",reconnect_delay=600s", (Status::Ok, 8)), ("", (Status::IoError, 0))] {
        let (_folder, socket, listener) = listener();
        let server = thread::spawn(move || {
            let mut first = client(&listener);
            answer(&mut Deed::of(&mut first), None);
            assert!(matches!(Deed::of(&mut first), Deed::Leaves), "it leaves in good order");
            serve_next(&listener);
            drop(first);
        });
        let q = open(&socket, parameters);
        let mut submitter = submitter(&q);
        assert_eq!(outcome(&run(&mut submitter, [read(1)])[0]), expected, "{parameters}");
        while outcome(&run(&mut submitter, [read(1)])[0]) != (Status::Ok, 8) {
            thread::sleep(Duration::from_millis(5));
        }
        drop((submitter, q));
        server.join().unwrap();
    }
}

/// Red if the device sends anything more to the server that is about to end, over any connection; if it leaves before
/// that server has answered its requests; or if the next server does these requests once more. A server that has
/// panicked may leave the test hanging.
#[test]
fn what_the_server_has_is_answered_by_it_and_all_else_by_the_next_one() {
    let (_folder, socket, listener) = listener();
    let (is_asked, asked) = mpsc::channel();
    let server = thread::spawn(move || {
        let (tell, deeds) = mpsc::channel();
        hear(&listener, &tell);
        hear(&listener, &tell);
        let [mut refused, mut second, mut third] = reads(&deeds);
        answer(&mut refused, None);
        asked.recv().expect("the client asks for more");
        answer(&mut second, Some(7));
        // Neither connection leaves before the other one, even if it waits for no answer.
        thread::sleep(Duration::from_millis(50));
        assert!(deeds.try_recv().is_err(), "it waits for the third");
        answer(&mut third, Some(7));
        for _ in 0..2 {
            assert!(matches!(deeds.recv(), Ok(Deed::Leaves)), "it leaves in good order");
        }
        hear(&listener, &tell);
        hear(&listener, &tell);
        let mut again = reads::<3>(&deeds);
        assert_eq!(again.each_ref().map(|deed| deed.place().0), [2, 8, 9]);
        assert_ne!(again[1].place().1, again[2].place().1, "the client asked for more by both connections");
        again.iter_mut().for_each(|deed| answer(deed, Some(8)));
        assert!(!matches!(deeds.recv(), Ok(Deed::Read { .. })), "all is answered");
    });
    let q = open(&socket, ",submit_queues=2,reconnect_delay=600s");
    thread::scope(|scope| {
        let ask = |blocks: &'static [u64]| {
            let mut submitter = submitter(&q);
            scope.spawn(move || {
                let over = run(&mut submitter, blocks.iter().map(|block| read(2 * block)));
                over.iter()
                    .map(|done| (done.bio.sector / (2 * BLOCK / 512) as u64, outcome(done).1))
                    .collect::<Vec<_>>()
            })
        };
        let first = [ask(&[1, 2]), ask(&[3])];
        until_away(&q);
        // By both hardware queues, which submitters take in turn.
        let mut more = [8, 9].map(|block| {
            let mut submitter = submitter(&q);
            submitter.submit(read(block)).expect("there is a slot");
            submitter.flush_plug();
            submitter
        });
        is_asked.send(()).unwrap();
        for submitter in &mut more {
            assert_eq!(outcome(&run(submitter, [])[0]), (Status::Ok, 8));
        }
        let mut over: Vec<_> = first.map(|thread| thread.join().expect("no assertion there")).concat();
        over.sort_unstable();
        assert_eq!(over, [(1, 8), (2, 7), (3, 7)]);
    });
    drop(q);
    server.join().unwrap();
}

/// A server that answers one request with ESHUTDOWN and does not answer the next.
fn leaves_and_hangs(listener: &UnixListener) {
    let mut first = client(listener);
    answer(&mut Deed::of(&mut first), None);
    assert!(matches!(Deed::of(&mut first), Deed::Read { .. }));
    assert!(matches!(Deed::of(&mut first), Deed::Breaks), "there is no good order without an answer");
}

/// Red (hangs) if `Connection::is_late` does not give up the connection: the device then waits until half of
/// `reconnect_delay` is over, which is 12 hours here.
#[test]
fn what_a_server_that_is_about_to_go_does_not_answer_in_time_is_done_by_the_next_one() {
    let (_folder, socket, listener) = listener();
    let server = thread::spawn(move || {
        leaves_and_hangs(&listener);
        let mut nr_answered = 0;
        while nr_answered < 2 {
            nr_answered += serve_next(&listener);
        }
    });
    let q = open(&socket, ",reconnect_delay=86400s");
    q.set_knob("io_timeout", "2000").unwrap();
    // Too far apart to merge.
    let over = run(&mut submitter(&q), [read(1), read(100)]);
    assert_eq!(over.iter().map(outcome).collect::<Vec<_>>(), [(Status::Ok, 8); 2]);
    drop(q);
    server.join().unwrap();
}

/// Red if `Link::time_left` leaves the server that is about to end the whole delay: the requests then fail. Red (hangs)
/// if it gives that server time until a request is overdue, which is an hour here.
#[test]
fn a_server_that_is_about_to_go_and_hangs_leaves_time_for_the_next_one() {
    let (_folder, socket, listener) = listener();
    let server = thread::spawn(move || {
        leaves_and_hangs(&listener);
        serve_next(&listener);
    });
    let q = open(&socket, ",reconnect_delay=20s");
    q.set_knob("io_timeout", "3600000").unwrap();
    thread::scope(|scope| {
        let mut submitter = submitter(&q);
        // Too far apart to merge.
        let waits = scope.spawn(move || run(&mut submitter, [read(1), read(100)]));
        until_away(&q);
        let mut submitter = crate::common::submitter(&q);
        assert_eq!(outcome(&run(&mut submitter, [read(200)])[0]), (Status::Ok, 8));
        let over = waits.join().expect("no assertion there");
        assert_eq!(over.iter().map(outcome).collect::<Vec<_>>(), [(Status::Ok, 8); 2]);
    });
    drop(q);
    server.join().unwrap();
}

/// Runs a client against servers that answer each read by saying that they are about to end, or by breaking the
/// connection. One server accepts the client as soon as another has lost it. Returns how many servers accepted.
fn with_useless_servers(parameters: &str, is_polite: bool, client: impl FnOnce(&RequestQueue)) -> usize {
    let (_folder, socket, listener) = listener();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let servers = scope.spawn(|| {
            for nr_accepted in 0.. {
                let mut stream = listener.accept().expect("the client comes").0;
                if is_over.load(Ordering::Relaxed) {
                    return nr_accepted;
                }
                greet(&mut stream, SIZE, 0);
                while let mut deed @ Deed::Read { .. } = Deed::of(&mut stream) {
                    if !is_polite {
                        break;
                    }
                    answer(&mut deed, None);
                }
            }
            unreachable!("the client has an end")
        });
        let q = open(&socket, parameters);
        client(&q);
        // The test ends only when no server is in the middle of a message.
        until(&q, |health| *health == Health::Good);
        is_over.store(true, Ordering::Relaxed);
        drop(q);
        let _last = UnixStream::connect(&socket).expect("the listener is there");
        servers.join().expect("no assertion there")
    })
}

/// Red (hangs) if each of these outages restarts the time for which a request waits. Red if the next server is asked
/// without a pause.
#[test]
fn a_request_that_no_server_does_fails_in_time() {
    for is_polite in [true, false] {
        let nr_accepted = with_useless_servers(",reconnect_delay=1s", is_polite, |q| {
            assert_eq!(outcome(&run(&mut submitter(q), [read(1)])[0]).0, Status::IoError);
        });
        // Without a pause there are hundreds.
        assert!((3..30).contains(&nr_accepted), "{nr_accepted} connections");
    }
}

/// Red if the device makes a new connection for each request.
#[test]
fn requests_that_no_server_does_share_its_connections() {
    let nr_accepted = with_useless_servers("", true, |q| {
        let mut submitter = submitter(q);
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(1) {
            assert_eq!(outcome(&run(&mut submitter, [read(1)])[0]).0, Status::IoError);
            thread::sleep(Duration::from_millis(1));
        }
    });
    assert!((2..30).contains(&nr_accepted), "{nr_accepted} connections");
}

/// Red if whole requests that the socket has not taken yet go to the server that is about to end. Red (hangs) if they
/// count as sent although they do not go there: the device would wait for their answers.
#[test]
fn what_is_unsent_is_for_the_next_server() {
    const NR: u64 = 24;
    const LEN: usize = 256 << 10;
    /// Reads and answers writes until the client does something else. Returns the number of writes.
    fn serve(stream: &mut UnixStream, most: u64, errno: u32) -> u64 {
        for nr_answered in 0..most {
            let request = request(stream).filter(|request| request.kind == commands::WRITE);
            let Some(request) = request else { return nr_answered };
            stream.read_exact(&mut vec![0; LEN]).expect("no request is sent in part");
            let reply = SimpleReply { errno, cookie: request.cookie };
            stream.write_all(&reply.encode()).expect("the client waits");
        }
        most
    }
    for (parameters, is_kept) in [(",reconnect_delay=600s,keeps_cache=1", true), (",keeps_cache=1", false)] {
        let (_folder, socket, listener) = listener();
        let (is_away, away) = mpsc::channel();
        let server = thread::spawn(move || {
            let accept = || accept(&listener, 2 * NR * LEN as u64, 0);
            let mut first = accept();
            assert_eq!(serve(&mut first, 1, Errno::Shutdown.number()), 1);
            away.recv().expect("the client sees it");
            let nr_first = serve(&mut first, NR, 0);
            let nr_second = serve(&mut accept(), NR, 0);
            (nr_first, nr_second)
        });
        let q = open(&socket, parameters);
        let nr_good = thread::scope(|scope| {
            let mut submitter = submitter(&q);
            let waits = scope.spawn(move || {
                // Too far apart to merge.
                let far = |number: u64| 2 * number * (LEN / 512) as u64;
                run(&mut submitter, (0..NR).map(|number| Bio::write(far(number), Buffer::zeroed(LEN))))
            });
            until_away(&q);
            is_away.send(()).unwrap();
            let over = waits.join().expect("no assertion there");
            over.iter().filter(|done| done.status.is_ok()).count() as u64
        });
        until(&q, |health| *health == Health::Good);
        drop(q);
        let (nr_first, nr_second) = server.join().unwrap();
        // A socket has room for one or two of them.
        assert!(nr_first < NR / 2, "{nr_first} writes went to the server that was about to go");
        assert_eq!(nr_good, nr_first + nr_second, "{parameters}");
        assert!(nr_good == NR || !is_kept, "{nr_good} writes are good");
    }
}

/// Red (hangs) if `Link::connect`, when the leaving server accepts one more hardware queue, also gives up connections
/// that are not closed: the outstanding answer then does not come.
#[test]
fn one_more_hardware_queue_does_not_disturb_a_leave_in_good_order() {
    let (_folder, socket, listener) = listener();
    let (is_refused, refused) = mpsc::channel();
    let server = thread::spawn(move || {
        let mut first = client(&listener);
        answer(&mut Deed::of(&mut first), None);
        let mut outstanding = Deed::of(&mut first);
        let _more = client(&listener);
        refused.recv().expect("the client goes on");
        answer(&mut outstanding, Some(7));
        assert!(matches!(Deed::of(&mut first), Deed::Leaves), "it leaves in good order");
        serve_next(&listener);
    });
    let q = open(&socket, ",reconnect_delay=600s");
    thread::scope(|scope| {
        let mut submitter = submitter(&q);
        // Too far apart to merge.
        let waits = scope.spawn(move || run(&mut submitter, [read(1), read(100)]));
        until_away(&q);
        let error = q.driver().set_topology(Topology { default_queues: 2, ..q.driver().topology() }).unwrap_err();
        assert!(error.to_string().contains("the server is away"), "{error}");
        is_refused.send(()).unwrap();
        let over = waits.join().expect("no assertion there");
        let mut over: Vec<_> = over.iter().map(outcome).collect();
        over.sort_unstable_by_key(|(_, byte)| *byte);
        assert_eq!(over, [(Status::Ok, 7), (Status::Ok, 8)]);
    });
    drop(q);
    server.join().unwrap();
}
