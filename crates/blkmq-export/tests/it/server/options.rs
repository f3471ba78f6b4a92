//! Finding a server and choosing an export.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use blkmq_export::nbd::{option_replies, options, transmission};
use blkmq_export::{Address, Bounds, Export, StartError};

use crate::server::client::{Client, named, option};
use crate::server::device::Device;
use crate::server::ending::until;
use crate::server::{builder, queue, server, serving};

#[test]
fn a_client_finds_its_export_by_name_at_a_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a socket");
    let server = builder()
        .export(Export::new("", queue("ram,size=1M")))
        .export(Export::new("other", queue("ram,size=2M")).described("the other").read_only())
        .listen(Address::unix(&path))
        .start()
        .unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let escaped = path.to_str().unwrap().replace(' ', "%20");
    let expected = [format!("nbd+unix:///?socket={escaped}"), format!("nbd+unix:///other?socket={escaped}")];
    assert_eq!(server.uris(), expected);

    let mut client = Client::connect(&path);
    let kinds: Vec<_> = client.ask(options::LIST, &[]).into_iter().map(|reply| reply.0).collect();
    assert_eq!(kinds, [option_replies::SERVER, option_replies::SERVER, option_replies::ACK]);
    assert_eq!(client.ask(options::GO, &[named("none"), vec![0, 0]].concat())[0].0, option_replies::ERR_UNKNOWN);
    let (size, flags) = client.go("other");
    assert_eq!(size, 2 << 20);
    assert_eq!(flags & (transmission::READ_ONLY | transmission::SEND_TRIM), transmission::READ_ONLY);
    assert_eq!(client.read(0, 512), Ok(vec![0; 512]));

    let clients = server.clients();
    assert_eq!((clients.len(), clients[0].number, clients[0].export.as_deref()), (1, 1, Some("other")));
    assert_eq!((clients[0].requests, clients[0].bytes), (1, 512));
    assert!(clients[0].peer.contains(&format!("process {}", std::process::id())), "{}", clients[0].peer);
    client.leave();
    drop(server);
    assert!(!path.exists());
}

/// Red (hangs) if the server asks every device for its size when a client connects.
#[test]
fn a_device_that_does_not_answer_holds_up_nobody_but_who_wants_it() {
    let device = Device::new();
    let says = Arc::clone(&device.says);
    let server = builder()
        .export(Export::new("silent", device.queue()))
        .export(Export::new("other", queue("ram,size=2M")))
        .start()
        .unwrap();
    let silence = says.lock().unwrap();
    let mut waiting = Client::pair(&server);
    waiting.option(options::GO, &[&named("silent")[..], &[0, 0]].concat());
    let mut client = Client::pair(&server);
    assert_eq!(client.ask(options::LIST, &[]).len(), 3);
    assert_eq!(client.go("other").0, 2 << 20);
    assert_eq!(client.read(0, 512), Ok(vec![0; 512]));
    drop(silence);
    assert_eq!(waiting.replies(options::GO).last().unwrap().0, option_replies::ACK);
    assert_eq!(waiting.read(0, 512), Ok(vec![0; 512]));
}

#[test]
fn a_client_comes_by_tcp() {
    let server = serving("ram,size=1M").listen(Address::loopback(0)).start().unwrap();
    let client = Client::tcp(&server);
    assert_eq!(server.clients()[0].peer, client.stream.local_addr().unwrap().to_string());
}

#[test]
fn the_oldest_way_in_works_too() {
    let server = server("ram,size=1M");
    let mut client = Client::pair(&server);
    client.option(options::EXPORT_NAME, b"");
    let head = client.take::<10>();
    assert_eq!(head[..8], (1_u64 << 20).to_be_bytes());
    assert_eq!(client.write(512, &[7; 512]), Ok(vec![]));
    assert_eq!(client.read(512, 512), Ok(vec![7; 512]));

    let mut client = Client::pair(&server);
    client.option(options::EXPORT_NAME, b"none");
    assert!(client.is_closed());
}

#[test]
fn many_options_in_one_piece_are_answered_in_turn() {
    let server = server("ram,size=1M");
    let mut client = Client::pair(&server);
    // More replies than a socket holds, to a client that reads none before it has sent everything.
    let inquiry = option(options::INFO, &[named(""), vec![0, 2, 0, 1, 0, 2]].concat());
    client.send(&inquiry.repeat(1000));
    for _ in 0..1000 {
        assert_eq!(client.replies(options::INFO).last().unwrap().0, option_replies::ACK);
    }
    client.go("");
}

#[test]
fn who_aborts_is_let_go() {
    let server = server("ram,size=1M");
    let mut client = Client::pair(&server);
    assert_eq!(client.ask(options::ABORT, &[]), [(option_replies::ACK, vec![])]);
    assert!(client.is_closed());
}

/// Red if a client that takes too long to choose an export is not disconnected, or hangs if it is not counted.
#[test]
fn who_takes_too_long_is_dropped() {
    let server = serving("ram,size=1M").negotiation_timeout(Duration::from_millis(30)).start().unwrap();
    for sent in [&[][..], b"\0\0\0\x03IHAVE"] {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        server.serve(theirs.into(), None).unwrap();
        // The connection may be closed already, which is right too.
        let _ = ours.write_all(sent);
        let mut said = [0; 18];
        ours.read_exact(&mut said).unwrap();
        let end = ours.read(&mut [0]).map_err(|error| error.kind());
        assert!(matches!(end, Ok(0) | Err(ErrorKind::ConnectionReset)), "{end:?}");
    }
    until(|| server.rejections().late == 2);
}

#[test]
fn a_server_that_makes_no_sense_does_not_start() {
    let export = || Export::new("a", queue("ram,size=1M"));
    let error = |builder: blkmq_export::Builder| builder.start().unwrap_err().to_string();
    assert_eq!(error(builder()), "a server has at least one export");
    let twice = builder().export(export()).export(export());
    assert_eq!(error(twice), "two exports have the name \"a\"; clients could not tell them apart");
    let bounds = |requests, bytes| builder().export(export()).bounds(Bounds { requests, bytes });
    assert_eq!(error(bounds(0, 65536)), "0 requests at a time; give a number from 1 to 32768");
    assert_eq!(error(bounds(1, 65535)), "65535 bytes at a time; give at least 65536, the largest block");
    let none = builder().export(export()).max_connections(0);
    assert_eq!(error(none), "no connection is allowed; give at least 1");
    let nowhere = builder().export(export()).listen(Address::unix("/nowhere/socket"));
    assert!(matches!(nowhere.start(), Err(StartError::Listen(..))));
}
