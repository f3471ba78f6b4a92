//! Exports of servers as devices: exports of our own server, and of servers that break the protocol.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;

use crate::common::{run, status_of, submitter};
use crate::model::Model;
use crate::nbd_reconnect::listener;
use crate::pretend::{SIZE, accept, greet, request};
use blkmq::driver::Driver;
use blkmq::{Bio, Buffer, Flags, Locking, RejectReason, RequestQueue, Status};
use blkmq_export::{Address, Export, Server};
use blkmq_nbd::{Request, SimpleReply, command_flags, commands, transmission};

const SECTOR: usize = 512;

fn open(socket: &Path, parameters: &str) -> Result<Arc<dyn Driver>, String> {
    let spec = format!("nbd,uri=nbd+unix:///?socket={}{parameters}", socket.display());
    blkmq_drivers::open(&spec).map_err(|error| error.to_string())
}

fn queue(socket: &Path, parameters: &str, locking: Locking) -> RequestQueue {
    let driver = open(socket, parameters).expect("the server has the export");
    RequestQueue::builder(driver).locking(locking).build().expect("the device makes sense")
}

/// A server of ours whose default export is this device.
fn serve(device: &str, socket: &Path, change: impl FnOnce(Export) -> Export) -> Server {
    let driver = blkmq_drivers::open(device).expect("the device is right");
    let q = RequestQueue::builder(driver).build().expect("so is its queue");
    let server = Server::builder().export(change(Export::new("", q))).listen(Address::unix(socket));
    server.start().expect("the server is right")
}

/// Red if random operations of every kind, many at once, do not leave what bytes in memory have.
#[test]
fn an_export_holds_what_was_written_under_every_locking() {
    const SIZE: usize = 8 << 20;
    let folder = tempfile::tempdir().unwrap();
    for locking in Locking::ALL {
        let socket = folder.path().join(locking.name());
        let _server = serve("ram,size=8M", &socket, |export| export);
        let q = queue(&socket, ",submit_queues=2,hw_queue_depth=16", locking);
        let mut submitters = [submitter(&q), submitter(&q)];
        let mut model = Model::new(0, SIZE / SECTOR, SECTOR, 5);
        model.change_by_two(&mut submitters, locking);
    }
}

#[test]
fn the_device_is_what_the_export_is() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("a");
    let _server = serve("null,size=3M,bs=4096,rotational=1,memory_backed=1,cache_size=1M", &socket, Export::read_only);
    let limits = open(&socket, "").unwrap().limits();
    // The server accepts any bytes, so the device ignores the size that the server prefers.
    assert_eq!((limits.capacity_sectors, limits.logical_block_size, limits.physical_block_size), (6144, 512, 4096));
    assert!(limits.read_only && limits.rotational && limits.write_cache && limits.fua);
    assert_eq!((limits.max_discard_sectors, limits.max_write_zeroes_sectors), (0, 0));
    let q = queue(&socket, "", Locking::Single);
    assert!(submitter(&q).submit(Bio::write(0, Buffer::zeroed(4096))).is_err(), "refused before the server has to");
    for (uri, words) in [("nbd+unix:///b?socket=", "no export 'b'"), ("nbd+unix:///?socket=/nowhere", "No such file")] {
        let error = blkmq_drivers::open(&format!("nbd,uri={uri}{}", socket.display())).unwrap_err().to_string();
        assert!(error.starts_with("device nbd: ") && error.contains(words), "{error}");
    }
}

/// A server that does every request without an error. At the end it returns the flags and the command of each.
fn obey(listener: UnixListener, more: u16) -> thread::JoinHandle<Vec<(u16, u16)>> {
    thread::spawn(move || {
        let mut stream = accept(&listener, SIZE, more);
        let mut asked = Vec::new();
        while let Some(request) = request(&mut stream).filter(|request| request.kind != commands::DISC) {
            let Request { flags, kind, cookie, length, .. } = request;
            asked.push((flags, kind));
            let mut data = vec![0; length as usize];
            if kind == commands::WRITE {
                stream.read_exact(&mut data).expect("the client talks on");
            }
            stream.write_all(&reply(0, cookie)).expect("the client talks on");
            if kind == commands::READ {
                stream.write_all(&data).expect("the client talks on");
            }
        }
        asked
    })
}

/// Red if the server is not told of FUA because it has no flush, or if a flush that no device makes is answered with
/// success.
#[test]
fn fua_reaches_a_server_that_has_no_flush() {
    const CAN: u16 = transmission::SEND_FUA | transmission::SEND_TRIM | transmission::SEND_WRITE_ZEROES;
    let (_folder, socket, listener) = listener();
    let server = obey(listener, CAN);
    let q = queue(&socket, "", Locking::Single);
    let limits = q.limits();
    assert_eq!((limits.write_cache, limits.fua, limits.no_flush), (false, true, true));
    let mut submitter = submitter(&q);
    let refused = submitter.submit(Bio::flush()).expect_err("the server cannot be asked for it");
    assert_eq!(refused.reason, RejectReason::Bad(Status::Unsupported));
    for flags in [Flags { fua: true, ..Flags::NONE }, Flags::NONE] {
        let bios = [Bio::write(0, Buffer::zeroed(SECTOR)), Bio::discard(0, 8), Bio::write_zeroes(0, 8)];
        for bio in bios {
            assert_eq!(status_of(&mut submitter, bio.with_flags(flags)), Status::Ok);
        }
    }
    drop((submitter, q));
    let asked = server.join().unwrap();
    let all = [commands::WRITE, commands::TRIM, commands::WRITE_ZEROES];
    let expected: Vec<_> =
        [command_flags::FUA, 0].iter().flat_map(|flags| all.map(|command| (*flags, command))).collect();
    assert_eq!(asked, expected);
}

/// Red if the server may leave a hole where there must be none.
#[test]
fn zeroes_without_a_hole_are_asked_for_as_such() {
    let (_folder, socket, listener) = listener();
    let server = obey(listener, transmission::SEND_FUA | transmission::SEND_WRITE_ZEROES);
    let q = queue(&socket, "", Locking::Single);
    let mut submitter = submitter(&q);
    let (nounmap, fua) = (Flags { nounmap: true, ..Flags::NONE }, Flags { nounmap: true, fua: true, ..Flags::NONE });
    for flags in [Flags::NONE, nounmap, fua] {
        let zeroes = Bio::write_zeroes(0, 8).with_flags(flags);
        assert_eq!(status_of(&mut submitter, zeroes), Status::Ok);
    }
    drop((submitter, q));
    let expected = [0, command_flags::NO_HOLE, command_flags::NO_HOLE | command_flags::FUA];
    assert_eq!(server.join().unwrap(), expected.map(|flags| (flags, commands::WRITE_ZEROES)));
}

/// Red if our server promises its clients what the server behind its device has not promised.
#[test]
fn an_export_of_an_export_promises_no_more_than_that_one() {
    use transmission::{CAN_MULTI_CONN, SEND_FLUSH, SEND_FUA};
    let folder = tempfile::tempdir().unwrap();
    for (number, (more, promised)) in [
        (0, 0),
        (SEND_FUA, SEND_FUA),
        (SEND_FLUSH, SEND_FLUSH | SEND_FUA | CAN_MULTI_CONN),
        (SEND_FLUSH | SEND_FUA, SEND_FLUSH | SEND_FUA | CAN_MULTI_CONN),
        (transmission::READ_ONLY, SEND_FLUSH | SEND_FUA | CAN_MULTI_CONN),
    ]
    .into_iter()
    .enumerate()
    {
        let [far, near] = ["far", "near"].map(|name| folder.path().join(format!("{name}{number}")));
        let last = obey(UnixListener::bind(&far).unwrap(), more);
        let ours = serve(&format!("nbd,uri=nbd+unix:///?socket={}", far.display()), &near, |export| export);
        let limits = open(&near, "").unwrap().limits();
        let has = |flag: u16| promised & flag != 0;
        assert_eq!((limits.write_cache, limits.fua), (has(SEND_FLUSH), has(SEND_FUA)), "{more:#x}");
        assert_eq!(open(&near, ",submit_queues=2").is_ok(), has(CAN_MULTI_CONN), "{more:#x}");
        drop(ours);
        assert_eq!(last.join().unwrap(), []);
    }
}

/// Talks like a server up to the first request, and then sends what `answer` makes of the request's cookie. If that is
/// nothing, it closes the connection.
fn pretend(mut stream: UnixStream, answer: fn(u64) -> Vec<u8>) {
    greet(&mut stream, SIZE, 0);
    let mut bytes = [0; 256];
    let answer = answer(request(&mut stream).expect("the client talks on").cookie);
    // Each byte is sent by itself, so that some replies come in parts.
    for byte in &answer {
        stream.write_all(&[*byte]).expect("the client talks on");
    }
    if answer.is_empty() {
        return;
    }
    // This lasts until the client closes the connection, which it must do.
    while stream.read(&mut bytes).is_ok_and(|len| len > 0) {}
}

/// A reply without an error, whose magic number is wrong unless `wrong` is 0.
fn reply(wrong: u8, cookie: u64) -> Vec<u8> {
    let mut reply = SimpleReply { errno: 0, cookie }.encode();
    reply[3] ^= wrong;
    reply.to_vec()
}

/// Red if an invalid reply is ignored: the request would wait forever.
#[test]
fn a_server_that_talks_nonsense_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let answers: [fn(u64) -> Vec<u8>; 4] = [
        |cookie| reply(1, cookie),
        |cookie| reply(0, cookie | 1 << 40),
        |_| reply(0, 4095),
        // A good reply, and then one more for the same request.
        |cookie| [reply(0, cookie), vec![7; SECTOR], reply(0, cookie)].concat(),
    ];
    for (number, answer) in answers.into_iter().enumerate() {
        let socket = folder.path().join(number.to_string());
        let listener = UnixListener::bind(&socket).unwrap();
        let server = thread::spawn(move || pretend(listener.accept().unwrap().0, answer));
        let q = queue(&socket, ",hw_queue_depth=4", Locking::Single);
        let mut submitter = submitter(&q);
        let first = run(&mut submitter, [Bio::read(0, Buffer::zeroed(SECTOR))]).remove(0);
        if number == 3 {
            assert_eq!(first.status, Status::Ok);
            assert_eq!(first.bio.buffers.iter().next().unwrap()[..], [7; SECTOR]);
        } else {
            assert_eq!(first.status, Status::IoError, "answer {number}");
        }
        let second = run(&mut submitter, [Bio::read(0, Buffer::zeroed(SECTOR))]).remove(0);
        assert_eq!(second.status, Status::IoError, "answer {number}");
        server.join().unwrap();
    }
}

/// Red if a connection that breaks leaves requests behind, or still takes new ones.
#[test]
fn when_the_server_goes_every_request_fails() {
    let (_folder, socket, listener) = listener();
    let server = thread::spawn(move || pretend(listener.accept().unwrap().0, |_| Vec::new()));
    let q = queue(&socket, ",hw_queue_depth=64", Locking::Combining);
    let mut submitter = submitter(&q);
    for sector in 0..32 {
        submitter.submit(Bio::read(sector * 16, Buffer::zeroed(SECTOR))).unwrap();
    }
    submitter.flush_plug();
    server.join().unwrap();
    let over = run(&mut submitter, [Bio::read(0, Buffer::zeroed(SECTOR))]);
    assert_eq!(over.len(), 33);
    assert!(over.iter().all(|done| done.status == Status::IoError), "{over:?}");
    assert_eq!(q.busy_tags(), 0);
}

/// Red if no thread is woken when the socket takes more: the server reads only after everything is submitted.
#[test]
fn what_the_socket_does_not_take_is_sent_later() {
    const WRITES: usize = 48;
    let (_folder, socket, listener) = listener();
    let (go, wait) = std::sync::mpsc::channel();
    let server = thread::spawn(move || {
        let mut stream = accept(&listener, SIZE, 0);
        wait.recv().unwrap();
        let mut seen = Vec::new();
        for _ in 0..WRITES {
            let (write, mut data) = (request(&mut stream).unwrap(), vec![0; 1 << 19]);
            stream.read_exact(&mut data).unwrap();
            seen.push(data[0]);
            assert!(data.iter().all(|byte| *byte == data[0]), "data is whole and in its place");
            stream.write_all(&reply(0, write.cookie)).unwrap();
        }
        seen
    });
    let q = queue(&socket, ",hw_queue_depth=64", Locking::Combining);
    let mut submitter = submitter(&q);
    for number in 0..WRITES {
        submitter.submit(Bio::write(0, Buffer::from(&vec![number as u8; 1 << 19][..]))).unwrap();
        submitter.flush_plug();
    }
    go.send(()).unwrap();
    let over = run(&mut submitter, []);
    assert_eq!(over.iter().filter(|done| done.status.is_ok()).count(), WRITES, "{over:?}");
    let mut seen = server.join().unwrap();
    seen.sort_unstable();
    assert_eq!(seen, (0..WRITES as u8).collect::<Vec<_>>());
}

/// Red (hangs) if the device waits without a limit for a server that says nothing.
#[test]
fn a_server_that_says_nothing_is_left_after_the_timeout() {
    let (_folder, socket, listener) = listener();
    let server = thread::spawn(move || {
        let mut stream = accept(&listener, SIZE, 0);
        // This lasts until the client closes the connection.
        while stream.read(&mut [0; 256]).is_ok_and(|len| len > 0) {}
    });
    let q = queue(&socket, "", Locking::Single);
    q.set_knob("io_timeout", "50").unwrap();
    let mut submitter = submitter(&q);
    let over = run(&mut submitter, (0..4).map(|number| Bio::read(number * 64, Buffer::zeroed(SECTOR))));
    assert!(over.iter().all(|done| done.status == Status::IoError), "{over:?}");
    server.join().unwrap();
}
