//! The memory that all connections share: it is bounded, taken as data arrives, and not kept by a single connection.

use std::io::{ErrorKind, Write};
use std::time::{Duration, Instant};

use blkmq_export::Server;
use blkmq_export::nbd::commands;

use crate::server::client::{Client, request};
use crate::server::ending::until;
use crate::server::{server, serving};

const MIB: usize = 1 << 20;

/// A server with at most 8 connections. Besides the part of each connection there is little memory.
fn tight() -> Server {
    serving("ram,size=64M").max_connections(8).memory(24 * MIB).start().expect("it is enough")
}

/// A client that asks for much, and reads nothing.
fn deaf(server: &Server) -> Client {
    let mut client = Client::simple(server);
    client.stream.set_nonblocking(true).expect("it is a socket");
    for cookie in 0..1000 {
        match client.stream.write(&request(commands::READ, 0, cookie, 0, MIB as u32)) {
            Ok(_) => (),
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
    }
    client
}

/// How many clients have replies to take, and take none.
fn nr_deaf(server: &Server) -> usize {
    server.clients().iter().filter(|client| client.unread.is_some()).count()
}

/// Red if a write gets memory for all of its data as soon as its header is there: a hundred times 32 MiB.
#[test]
fn a_hundred_writes_of_which_nothing_has_come_take_no_more_than_64_mib() {
    let server = server("ram,size=64M");
    let mut clients: Vec<_> = (0..100).map(|_| Client::simple(&server)).collect();
    clients.iter_mut().for_each(|client| client.send(&request(commands::WRITE, 0, 0, 0, 32 << 20)));
    until(|| server.clients().iter().all(|client| client.requests == 1 && client.memory > 0));
    let (used, most) = server.memory();
    assert!(used < 64 * MIB && used < most, "{used} of {most}");
    let mut other = Client::simple(&server);
    assert_eq!(other.write(0, &vec![7; 4 * MIB]), Ok(vec![]));
    assert_eq!(other.read(0, 4096), Ok(vec![7; 4096]));
    drop(clients);
    other.leave();
    until(|| server.memory().0 == 0);
}

/// Red (hangs) if a write that is half received holds its data until it gets memory for the rest: eight writes, each
/// larger than the memory for all, would each wait for what the others hold.
#[test]
fn writes_that_are_half_received_do_not_keep_each_other_waiting() {
    let server = tight();
    let mut clients: Vec<_> = (0..8).map(|_| Client::simple(&server)).collect();
    let len = 4 * MIB;
    for (index, client) in clients.iter_mut().enumerate() {
        client.send(&request(commands::WRITE, 0, 0, (index * len) as u64, len as u32));
    }
    // Each write in turn, except for its last byte.
    let piece = 128 << 10;
    for round in 0..len / piece {
        for (index, client) in clients.iter_mut().enumerate() {
            let last = usize::from(round == len / piece - 1);
            client.send(&vec![index as u8 + 1; piece - last]);
        }
    }
    for (index, client) in clients.iter_mut().enumerate() {
        client.send(&[index as u8 + 1]);
        assert_eq!(client.reply(|_| 0).1, Ok(vec![]));
    }
    for (index, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.read((index * len) as u64, MIB as u32), Ok(vec![index as u8 + 1; MIB]));
    }
}

/// Red (hangs) if connections have no part of their own: connections that ask for much and read nothing would keep all
/// memory from others.
#[test]
fn clients_that_read_nothing_leave_others_their_memory() {
    let server = tight();
    let _deaf: Vec<_> = (0..7).map(|_| deaf(&server)).collect();
    until(|| nr_deaf(&server) >= 4);
    let mut other = Client::simple(&server);
    for _ in 0..100 {
        assert_eq!(other.read(0, 65536), Ok(vec![0; 65536]));
        assert_eq!(other.write(0, &[0; 65536]), Ok(vec![]));
    }
    let (used, most) = server.memory();
    assert!(used <= most, "{used} of {most}");
}

/// Red (takes until the stall timeout) if a client that takes nothing keeps memory for which another one waits. Red too
/// if a client has to end that has no more than its own part.
#[test]
fn a_client_that_takes_nothing_loses_its_memory_to_one_that_waits_for_it() {
    let server = tight();
    let mut modest = Client::simple(&server);
    (0..4).for_each(|cookie| modest.send(&request(commands::READ, 0, cookie, 0, 128 << 10)));
    let _deaf: Vec<_> = (0..6).map(|_| deaf(&server)).collect();
    until(|| nr_deaf(&server) == 7);
    let mut other = Client::simple(&server);
    let start = Instant::now();
    assert_eq!(other.read(0, 4 << 20).map(|data| data.len()), Ok(4 * MIB));
    assert!(start.elapsed() < Duration::from_secs(150), "it waited for {:?}", start.elapsed());
    (0..4).for_each(|_| assert_eq!(modest.reply(|_| 128 << 10).1.map(|data| data.len()), Ok(128 << 10)));
}

/// Red if a server starts in which a connection could not have its part, or if the error does not say how much is
/// enough.
#[test]
fn too_little_memory_is_refused_with_what_would_do() {
    let error = serving("ram,size=1M").max_connections(2).memory(MIB).start().unwrap_err().to_string();
    let advice = "give at least 1572864, or allow fewer connections";
    assert_eq!(error, format!("memory: 1048576 bytes are too few for 2 connections; {advice}"));
}
