//! Encrypted connections: how they come about, what must not be believed meanwhile, and what is sent over them.

use std::io::{ErrorKind, Read, Write};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use blkmq_export::nbd::{commands, option_replies, options};
use blkmq_export::{Address, Bounds, Export, Server};
use rustls::StreamOwned;
use rustls::version::{TLS12, TLS13};

use crate::server::bounds::check_that_only_the_deaf_wait;
use crate::server::client::{Client, option, request, write};
use crate::server::ending::until;
use crate::server::forger::{DATA, Forger, HANDSHAKE};
use crate::server::site::{Encrypted, Site, encrypt, start_tls};
use crate::server::{builder, queue};

/// What the server says until it closes the connection.
fn last_words(stream: &mut impl Read) -> Vec<u8> {
    let mut said = Vec::new();
    let end = stream.read_to_end(&mut said).map_err(|error| error.kind());
    assert!(matches!(end, Ok(_) | Err(ErrorKind::ConnectionReset)), "{end:?}");
    said
}

/// Waits until the server has logged this many warnings, and ends it. `is_right` holds for each of them.
fn check_warnings(server: Server, warnings: &Mutex<Vec<String>>, nr: usize, is_right: impl Fn(&String) -> bool) {
    // The warnings come from a thread of their own.
    until(|| warnings.lock().expect("no test panics with it").len() >= nr);
    drop(server);
    let warnings = warnings.lock().expect("no test panics with it");
    assert!(warnings.len() == nr && warnings.iter().all(is_right), "{warnings:?}");
}

/// Waits for the end. Returns true if the server said through TLS that nothing more comes.
fn is_closed_by_tls(client: &mut Encrypted) -> bool {
    match client.stream.read(&mut [0]) {
        Ok(len) => len == 0,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn who_asks_for_tls_gets_it_and_who_does_not_need_not() {
    let site = Site::new();
    let server = site.server("ram,size=16M");
    let data: Vec<u8> = (0..3 << 20).map(|index: u32| (index * 7 / 5) as u8).collect();
    for version in [&TLS12, &TLS13] {
        let mut client = encrypt(Client::pair(&server), site.tls_session(&[version], None));
        assert_eq!(client.ask(options::STARTTLS, &[])[0].0, option_replies::ERR_INVALID, "once is enough");
        client.agree_on_structure("");
        assert_eq!(client.go(""), (16 << 20, client_flags(&server)));
        assert_eq!(client.write(4096, &data), Ok(vec![]));
        assert_eq!(client.read(4096, data.len() as u32).as_ref(), Ok(&data));
        client.leave();
    }
    let mut plain = Client::simple(&server);
    assert_eq!(plain.read(4096, 512), Ok(data[..512].to_vec()));
    assert!(server.clients().iter().all(|client| client.name.is_none()));
}

/// The flags that a client without TLS sees.
fn client_flags(server: &Server) -> u16 {
    let mut client = Client::pair(server);
    client.agree_on_structure("");
    client.go("").1
}

#[test]
fn where_tls_is_required_nothing_else_goes_without_it() {
    let site = Site::new();
    let path = site.folder.path().join("socket");
    let builder = builder().export(Export::new("", queue("ram,size=1M"))).tls(site.tls().required());
    let server = builder.listen(Address::unix(&path)).listen(Address::loopback(0)).start().unwrap();
    assert_eq!(server.uris()[0], format!("nbds+unix:///?socket={}", path.display()));
    assert!(server.uris()[1].starts_with("nbds://127.0.0.1:"));
    let mut client = Client::pair(&server);
    assert_eq!(client.ask(options::LIST, &[])[0].0, option_replies::ERR_TLS_REQD);
    let mut client = encrypt(client, site.tls_session(&[&TLS13], None));
    client.go("");
    assert_eq!(client.read(0, 512), Ok(vec![0; 512]));
    let mut hasty = Client::pair(&server);
    hasty.option(options::EXPORT_NAME, b"");
    assert!(hasty.is_closed());
}

/// Red if `secure` keeps the input: the option is then answered inside TLS, as if the client had sent it there.
#[test]
fn what_somebody_adds_to_starttls_is_not_taken_for_the_clients_word() {
    let site = Site::new();
    let server = site.server("ram,size=1M");
    for added in [option(options::STRUCTURED_REPLY, &[]), option(options::LIST, &[])[..5].to_vec(), vec![0x16]] {
        let mut client = Client::pair(&server);
        client.send(&[option(options::STARTTLS, &[]), added].concat());
        assert_eq!(client.replies(options::STARTTLS), [(option_replies::ACK, vec![])]);
        let mut client = Client::over(StreamOwned::new(site.tls_session(&[&TLS13], None), client.stream));
        let error = client.stream.write_all(&option(options::ABORT, &[])).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset));
    }
}

/// Red if `TlsSession::receive` looks at the socket before it looks at what is decrypted or fetched: bytes that follow
/// the handshake in the same packet are no longer in the socket, and the server sleeps forever.
#[test]
fn an_option_that_comes_with_the_end_of_the_handshake_is_answered() {
    let site = Site::new();
    let server = site.server("ram,size=1M");
    let mut client = Client::pair(&server);
    start_tls(&mut client);
    let mut tls_session = site.tls_session(&[&TLS13], None);
    // The option waits in the TLS session, and is sent together with the last message of the handshake.
    tls_session.writer().write_all(&option(options::LIST, &[])).unwrap();
    let mut client = Client::over(StreamOwned::new(tls_session, client.stream));
    assert_eq!(client.replies(options::LIST).len(), 2);
}

/// Red if `TlsSession::receive` reports bytes as short for which it had no more room: they are decrypted, so the socket
/// does not become readable, and the server sleeps forever.
#[test]
fn many_requests_in_large_records_are_all_answered_however_little_room_there_is() {
    let site = Site::new();
    for (requests, bytes) in [(1, 65536), (7, 65536), (256, 64 << 20)] {
        let server = site.builder("ram,size=16M").bounds(Bounds { requests, bytes }).start().unwrap();
        let mut client = site.client(&server);
        client.go("");
        let mut bytes = Vec::new();
        (0..6000).for_each(|cookie| bytes.extend(request(commands::READ, 0, cookie, cookie % 100 * 512, 512)));
        (6000..6010).for_each(|cookie| bytes.extend(write(cookie, 0, &[cookie as u8; 40_960])));
        let sealed = seal(&mut client, &bytes);
        let mut writer = client.stream.sock.try_clone().unwrap();
        thread::scope(|scope| {
            scope.spawn(move || writer.write_all(&sealed).unwrap());
            for _ in 0..6010 {
                let (_, answer) = client.reply(|cookie| if cookie < 6000 { 512 } else { 0 });
                assert!(answer.is_ok());
            }
        });
        client.leave();
    }
}

/// The bytes in the form in which they go over the socket. The handshake is over.
fn seal(client: &mut Encrypted, bytes: &[u8]) -> Vec<u8> {
    let (tls_session, mut sealed) = (&mut client.stream.conn, Vec::new());
    tls_session.set_buffer_limit(None);
    tls_session.writer().write_all(bytes).expect("memory takes it");
    while tls_session.wants_write() {
        tls_session.write_tls(&mut sealed).expect("memory takes it");
    }
    sealed
}

#[test]
fn keys_change_while_requests_go_on() {
    let site = Site::new();
    let server = site.server("ram,size=1M");
    let mut client = site.client(&server);
    client.go("");
    for round in 0..10 {
        assert_eq!(client.write(0, &[round; 4096]), Ok(vec![]));
        client.stream.conn.refresh_traffic_keys().unwrap();
        assert_eq!(client.read(0, 4096), Ok(vec![round; 4096]));
    }
}

#[test]
fn who_does_not_read_waits_alone_and_what_waits_for_him_is_bounded() {
    let site = Site::new();
    let server = site.builder("ram,size=16M").bounds(Bounds { requests: 16, bytes: 4 << 20 }).start().unwrap();
    let clients = [(); 2].map(|()| {
        let mut client = site.client(&server);
        client.go("");
        client
    });
    check_that_only_the_deaf_wait(&server, clients);
}

#[test]
fn what_is_no_handshake_ends_the_connection() {
    let site = Site::new();
    let (server, warnings) = site.telling("ram,size=1M");
    let long = [&[0x16, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff][..], &[0; 0x4000 - 4]].concat();
    for garbage in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &option(options::LIST, &[]),
        // A hello of 16 MiB, and a record that is longer than allowed.
        &long,
        &[0x16, 3, 1, 0xff, 0xff, 1],
        &[0; 100],
    ] {
        let mut client = Client::pair(&server);
        start_tls(&mut client);
        let _ = client.stream.write_all(garbage);
        let said = last_words(&mut client.stream);
        assert!(said.is_empty() || said[0] == 0x15, "an alert at most: {said:?}");
    }
    check_warnings(server, &warnings, 5, |line| line.contains(": no encrypted connection came about: "));
}

#[test]
fn half_a_handshake_takes_no_longer_than_a_negotiation_may() {
    let site = Site::new();
    let timeout = Duration::from_millis(100);
    for said in [&[][..], &[0x16], &[0x16, 3, 1, 0, 100, 1, 0, 0, 96]] {
        let server = site.builder("ram,size=1M").negotiation_timeout(timeout).start().unwrap();
        let mut client = Client::pair(&server);
        client.option(options::STARTTLS, &[]);
        // The connection may be closed already, which is right too.
        let _ = client.try_take::<20>();
        let _ = client.stream.write_all(said);
        last_words(&mut client.stream);
    }
}

/// Red if `TlsSession::close` sends nothing: the client cannot tell such an end from a cut, so it reports an error.
#[test]
fn a_drain_answers_what_has_arrived_and_says_that_this_is_the_end() {
    let site = Site::new();
    let q = queue("ram,size=16M");
    let bounds = Bounds { requests: 8, bytes: 65536 };
    let server = builder().export(Export::new("", q.clone())).tls(site.tls()).bounds(bounds).start().unwrap();
    let (mut client, mut idle, mut negotiating) = (site.client(&server), site.client(&server), site.client(&server));
    client.go("");
    idle.go("");
    // The server also does not wait for a client that has all its answers and does not look for the end.
    let mut asleep = site.client(&server);
    asleep.go("");
    negotiating.ask(options::LIST, &[]);
    let mut shaking = Client::pair(&server);
    start_tls(&mut shaking);
    // More requests than the bounds allow at a time, in records of which the last one is not complete.
    let quiesce = q.quiesce();
    let mut bytes = Vec::new();
    (0..1000).for_each(|cookie| bytes.extend(request(commands::READ, 0, cookie, 0, 4096)));
    bytes.extend(request(commands::WRITE, 0, 1000, 0, 8192));
    let sealed = [seal(&mut client, &bytes), seal(&mut client, &[1; 8192])].concat();
    client.stream.sock.write_all(&sealed[..sealed.len() - 4000]).unwrap();
    server.stop().drain();
    assert!(is_closed_by_tls(&mut negotiating) && is_closed_by_tls(&mut idle));
    assert!(shaking.stream.read_to_end(&mut Vec::new()).is_ok());
    drop(quiesce);
    for cookie in 0..1000 {
        assert_eq!(client.reply(|_| 4096), (cookie, Ok(vec![0; 4096])));
    }
    let (cookie, answer) = client.reply(|_| 0);
    assert!(cookie == 1000 && answer.is_err());
    assert!(is_closed_by_tls(&mut client));
    server.wait();
    assert_eq!(q.busy_tags(), 0);
    assert!(is_closed_by_tls(&mut asleep));
}

/// Red if `has_closed` does not wait for the bytes that TLS has for the socket: the rest of the answers is then lost.
#[test]
fn a_disconnect_is_answered_to_the_end_however_late_the_client_reads() {
    let site = Site::new();
    let server = site.server("ram,size=16M");
    let mut client = site.client(&server);
    client.go("");
    let mut bytes = request(commands::READ, 0, 1, 0, 8 << 20);
    bytes.extend(request(commands::DISC, 0, 2, 0, 0));
    client.stream.write_all(&bytes).unwrap();
    until(|| server.clients()[0].requests == 1);
    assert_eq!(client.reply(|_| 8 << 20).1.map(|data| data.len()), Ok(8 << 20));
    assert!(is_closed_by_tls(&mut client));
}

/// Red if `has_output` looks only at the replies: a reply that TLS has taken and the socket has not is then never sent.
#[test]
fn what_tls_has_taken_reaches_a_client_that_reads_late() {
    let site = Site::new();
    let server = site.server("ram,size=16M");
    let mut other = site.client(&server);
    other.go("");
    // For some of these lengths, the socket holds everything except the 64 KiB that stay with TLS.
    for length in (1..20).map(|number| number * 32_768) {
        let mut client = site.client(&server);
        client.go("");
        client.request(commands::READ, 0, 1, 0, length);
        until(|| server.clients().last().unwrap().bytes == length.into());
        (0..20).for_each(|_| assert!(other.read(0, 4096).is_ok()));
        assert_eq!(client.reply(|_| length as usize).1.map(|data| data.len()), Ok(length as usize));
        client.leave();
    }
}

/// Red if `TlsSession::receive` does not report that TLS has ended: the socket stays open and silent, and the server
/// sleeps.
#[test]
fn who_ends_tls_and_nothing_else_is_let_go() {
    let site = Site::new();
    let server = site.server("ram,size=1M");
    for is_in in [false, true] {
        let mut client = site.client(&server);
        client.ask(options::LIST, &[]);
        if is_in {
            client.go("");
            // The request is in one packet with the end.
            client.stream.conn.writer().write_all(&request(commands::READ, 0, 1, 0, 512)).unwrap();
        }
        client.stream.conn.send_close_notify();
        client.stream.flush().unwrap();
        if is_in {
            assert_eq!(client.reply(|_| 512), (1, Ok(vec![0; 512])));
        }
        assert!(is_closed_by_tls(&mut client));
    }
    until(|| server.clients().is_empty());
}

#[test]
fn who_sends_nothing_over_and_over_keeps_no_thread_busy() {
    let site = Site::new();
    let (server, warnings) = site.telling("ram,size=1M");
    for version in [&TLS12, &TLS13] {
        let mut client = encrypt(Client::pair(&server), site.tls_session(&[version], None));
        client.go("");
        let mut forger = Forger::take_over(client.stream);
        forger.send(&[(DATA, &request(commands::READ, 0, 0, 0, 512))]).unwrap();
        until(|| server.clients()[0].requests == 1);
        while forger.send(&[(DATA, &[][..]); 100]).is_ok() {}
        until(|| server.clients().is_empty());
    }
    check_warnings(server, &warnings, 2, |line| line.contains("TooManyEmptyFragments"));
}

#[test]
fn nothing_is_negotiated_again_inside_tls() {
    let site = Site::new();
    let (server, warnings) = site.telling("ram,size=1M");
    for version in [&TLS12, &TLS13] {
        let mut client = encrypt(Client::pair(&server), site.tls_session(&[version], None));
        client.go("");
        let mut tls_session = site.tls_session(&[version], None);
        let mut hello = Vec::new();
        tls_session.write_tls(&mut hello).unwrap();
        let mut forger = Forger::take_over(client.stream);
        // The first attempt may be answered by a warning. A client that tries again is disconnected.
        let _ = forger.send(&[(HANDSHAKE, &hello[5..]), (HANDSHAKE, &hello[5..])]);
        let said = last_words(&mut forger.socket);
        assert!(said.len() < 100, "alerts, and no handshake: {said:?}");
    }
    check_warnings(server, &warnings, 2, |line| {
        ["TooManyRenegotiationRequests", "unexpected"].iter().any(|word| line.contains(word))
    });
}
