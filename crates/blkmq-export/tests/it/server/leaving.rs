//! Clients that are gone, and clients that do nothing: the server does no work for them and does not wait for them.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use blkmq::RequestQueue;
use blkmq_export::nbd::commands;
use blkmq_export::{Address, Bounds, Export, Server};

use crate::server::client::{Client, request, write};
use crate::server::ending::until;
use crate::server::{builder, queue, serving};

/// The number of reads that a client asks for, each of 1 MiB. The server may begin only those that the bounds allow.
const READS: u64 = 1000;
const AT_ONCE: u64 = 4;

fn start(q: &RequestQueue) -> Server {
    let export = Export::new("", q.clone());
    let bounds = Bounds { requests: 64, bytes: (AT_ONCE as usize) << 20 };
    builder().export(export).listen(Address::loopback(0)).bounds(bounds).start().expect("it can listen there")
}

/// The bytes of all these reads.
fn reads() -> Vec<u8> {
    (0..READS).flat_map(|cookie| request(commands::READ, 0, cookie, 0, 1 << 20)).collect()
}

/// Red if the requests of a client that is gone are begun like those of other clients: the device would read 1000 MiB
/// for no client. With TCP only the first replies show that the client is gone, and until then the server sends what
/// the socket takes.
#[test]
fn nothing_is_read_for_a_client_that_has_closed() {
    for is_tcp in [false, true] {
        let q = queue("ram,size=1M");
        let server = start(&q);
        let quiesce = q.quiesce();
        if is_tcp {
            Client::tcp(&server).send(&reads());
        } else {
            Client::simple(&server).send(&reads());
        }
        drop(quiesce);
        until(|| server.clients().is_empty());
        let begun = q.disk_stats().read_ios;
        assert!(begun <= 16 * AT_ONCE, "{begun} of {READS} were begun, over TCP: {is_tcp}");
    }
}

/// Red if the writes of a client that is gone are dropped together with its reads: the client may have left in order,
/// with a goodbye or without.
#[test]
fn what_a_client_wrote_whole_before_it_closed_is_written() {
    for says_goodbye in [false, true] {
        let q = queue("ram,size=16M");
        let server = start(&q);
        let quiesce = q.quiesce();
        let mut client = Client::simple(&server);
        for cookie in 0..32 {
            client.send(&write(cookie, cookie << 12, &[7; 4096]));
            client.send(&request(commands::READ, 0, 100 + cookie, 0, 1 << 20));
        }
        if says_goodbye {
            client.request(commands::DISC, 0, 0, 0, 0);
        }
        drop(client);
        drop(quiesce);
        until(|| server.clients().is_empty());
        assert!(Client::simple(&server).read(0, 32 * 4096) == Ok(vec![7; 32 * 4096]));
        assert!(q.disk_stats().read_ios <= 2 * AT_ONCE + 1);
    }
}

/// Red if a client that has only shut down its own direction is taken for a client that is gone.
#[test]
fn a_client_that_only_stops_sending_is_answered_by_tcp_too() {
    let q = queue("ram,size=1M");
    let server = start(&q);
    let mut client = Client::tcp(&server);
    client.send(&reads()[..28 * 20]);
    client.stream.shutdown(std::net::Shutdown::Write).expect("the socket is connected");
    for _ in 0..20 {
        assert_eq!(client.reply(|_| 1 << 20).1, Ok(vec![0; 1 << 20]));
    }
    assert!(client.is_closed());
}

/// Red (hangs) if `Transmission::check_stall` sets no limit to the time in which a client reads nothing.
#[test]
fn a_client_that_reads_nothing_is_cut_off_and_others_are_not() {
    for is_tcp in [false, true] {
        let timeout = Some(Duration::from_millis(300));
        let server = serving("ram,size=1M").listen(Address::loopback(0)).stall_timeout(timeout).start().unwrap();
        let mut idle = Client::simple(&server);
        let mut deaf: Box<dyn Write> =
            if is_tcp { Box::new(Client::tcp(&server).stream) } else { Box::new(Client::simple(&server).stream) };
        deaf.write_all(&reads()[..28 * 60]).unwrap();
        until(|| server.clients().len() == 1);
        assert!(deaf.write_all(&[0; 1 << 20]).is_err(), "the connection is closed");
        assert_eq!(idle.read(0, 512), Ok(vec![0; 512]), "a client that has nothing to read stays");
    }
}

/// Red (hangs) if `Transmission::check_stall` sets no limit to the time in which a client sends nothing of a request
/// that has begun: no other client could have the memory of that request.
#[test]
fn a_client_that_stops_within_a_write_is_cut_off() {
    let server = serving("ram,size=1M").stall_timeout(Some(Duration::from_millis(300))).start().unwrap();
    let mut mute = Client::simple(&server);
    mute.request(commands::WRITE, 0, 0, 0, 65536);
    mute.send(&[1; 100]);
    assert!(mute.is_closed());
    until(|| server.clients().is_empty());
}

/// Red (hangs) if `Transmission::see_off` does not call `check_stall`: a TCP client that has said goodbye need not
/// take what it asked for before.
#[test]
fn a_client_that_says_goodbye_and_reads_nothing_is_not_seen_off_for_ever() {
    let timeout = Some(Duration::from_millis(300));
    let server = serving("ram,size=1M").listen(Address::loopback(0)).stall_timeout(timeout).start().unwrap();
    let mut client = Client::tcp(&server);
    client.send(&reads()[..28 * 2]);
    client.request(commands::DISC, 0, 0, 0, 0);
    until(|| server.clients().is_empty());
}

/// Red if the answers are not counted, or if the list does not say when the client last read.
#[test]
fn the_list_of_clients_tells_which_of_them_reads_nothing() {
    let server = start(&queue("ram,size=1M"));
    let mut client = Client::<UnixStream>::simple(&server);
    assert_eq!(client.read(0, 512), Ok(vec![0; 512]));
    until(|| server.clients()[0].unanswered == 0);
    assert_eq!(server.clients()[0].unread, None);
    client.send(&reads()[..28 * 3]);
    until(|| server.clients()[0].unread.is_some_and(|unread| unread > Duration::from_millis(10)));
    let info = &server.clients()[0];
    assert_eq!((info.requests, info.unanswered), (4, 3));
    let mut rest = vec![0; 3 * (16 + (1 << 20))];
    client.stream.read_exact(&mut rest).unwrap();
    until(|| server.clients()[0].unanswered == 0 && server.clients()[0].unread.is_none());
}
