//! Which clients may use an export, and what a client sees of an export that it may not use.

use std::fs;
use std::os::unix::fs::MetadataExt;

use blkmq_export::nbd::{commands, option_replies, options, transmission};
use blkmq_export::{Allow, Export, Identity, Permit, Server, Tls};

use crate::server::client::{Client, named};
use crate::server::ending::until;
use crate::server::site::{Encrypted, Site, start_telling};
use crate::server::{builder, queue};

const NOT_PERMITTED: u32 = 1;

fn certificate(name: &str, writes: bool) -> Permit {
    Permit { who: Identity::Certificate(name.to_owned()), writes, priority: None }
}

fn user(user: u32, writes: bool) -> Permit {
    Permit { who: Identity::User(user), writes, priority: None }
}

fn export(name: &str, permits: &[Permit]) -> Export {
    Export::new(name, queue("ram,size=1M")).allowing(Allow::Listed(permits.to_vec()))
}

/// The names that a client is told.
fn list<S: std::io::Read + std::io::Write>(client: &mut Client<S>) -> Vec<String> {
    let mut replies = client.ask(options::LIST, &[]);
    assert_eq!(replies.pop(), Some((option_replies::ACK, vec![])));
    let name = |(_, data): (u32, Vec<u8>)| {
        let length = u32::from_be_bytes(data[..4].try_into().expect("it has four bytes")) as usize;
        String::from_utf8(data[4..4 + length].to_vec()).expect("a name is UTF-8")
    };
    replies.into_iter().map(name).collect()
}

/// The message to a client that is refused an export.
fn refusal<S: std::io::Read + std::io::Write>(client: &mut Client<S>, export: &str) -> String {
    let [(kind, text)] = &client.ask(options::GO, &[&named(export)[..], &[0, 0]].concat())[..] else {
        panic!("a refusal is one reply");
    };
    assert_eq!(*kind, option_replies::ERR_POLICY);
    String::from_utf8(text.clone()).expect("a sentence is UTF-8")
}

/// Red if the list is ignored when a client asks for, lists or describes an export, or if `writes` is ignored.
#[test]
fn a_certificate_opens_the_exports_that_name_it_as_far_as_they_say() {
    let site = Site::new();
    let tls = Tls::from_folder(site.folder.path(), true).unwrap().required();
    let exports = [
        export("db", &[certificate("gold", true), certificate("silver", false)]),
        export("secret", &[certificate("gold", true)]),
    ];
    let [db, secret] = exports;
    let (server, warnings) = start_telling(builder().export(db).export(secret).tls(tls));
    let come = |name: &str| -> Encrypted {
        let paper = site.authority.sign(name, &[], 7);
        site.encrypted(&server, Some(&paper))
    };
    let mut gold = come("gold");
    assert_eq!(list(&mut gold), ["db", "secret"]);
    let (_, flags) = gold.go("db");
    assert_eq!(flags & transmission::READ_ONLY, 0);
    assert_eq!(gold.write(0, &[7; 512]), Ok(vec![]));

    let mut silver = come("silver");
    assert_eq!(list(&mut silver), ["db"]);
    let expected = "the certificate \"silver\" is not among those whom the server allows export \"secret\"";
    assert_eq!(refusal(&mut silver, "secret"), expected);
    let asked = silver.ask(options::INFO, &[&named("secret")[..], &[0, 0]].concat());
    assert_eq!((asked.len(), asked[0].0), (1, option_replies::ERR_POLICY), "nothing is told of it");
    silver.ask(options::STRUCTURED_REPLY, &[]);
    let query = [&named("secret")[..], &0_u32.to_be_bytes()].concat();
    assert_eq!(silver.ask(options::LIST_META_CONTEXT, &query)[0].0, option_replies::ERR_POLICY);
    silver.is_structured = true;
    let (_, flags) = silver.go("db");
    let changes = transmission::SEND_TRIM | transmission::SEND_WRITE_ZEROES;
    assert_eq!(flags & (transmission::READ_ONLY | changes), transmission::READ_ONLY);
    assert_eq!(silver.read(0, 512), Ok(vec![7; 512]));
    for kind in [commands::TRIM, commands::WRITE_ZEROES] {
        assert_eq!(silver.call(kind, 0, 0, 512, &[]), Err(NOT_PERMITTED));
    }
    assert_eq!(silver.write(0, &[8; 512]), Err(NOT_PERMITTED));

    let mut bronze = come("bronze");
    assert!(list(&mut bronze).is_empty());
    assert!(refusal(&mut bronze, "db").starts_with("the certificate \"bronze\" is not among those"));
    bronze.option(options::EXPORT_NAME, b"db");
    assert!(bronze.try_take::<1>().is_err(), "the old way in is shut too");
    let mut nameless = come("");
    assert!(refusal(&mut nameless, "db").contains("is not among those"));
    until(|| server.rejections().denied == 3);
    until(|| warnings.lock().unwrap().len() >= 3);
    let told = warnings.lock().unwrap();
    let of_silver = told.iter().filter(|line| line.contains("silver")).count();
    assert_eq!(of_silver, 1, "asking twice is told once: {told:?}");
}

/// Red if names are compared in the form in which they are shown, which is cut to 64 characters.
#[test]
fn a_name_is_compared_whole() {
    let site = Site::new();
    let tls = Tls::from_folder(site.folder.path(), true).unwrap();
    let (short, long) = ("x".repeat(64), "x".repeat(65));
    let [first, second] = [("a", &short), ("b", &long)].map(|(name, who)| export(name, &[certificate(who, false)]));
    let server = builder().export(first).export(second).tls(tls).start().unwrap();
    for (name, expected) in [(&short, "a"), (&long, "b")] {
        let paper = site.authority.sign(name, &[], 7);
        assert_eq!(list(&mut site.encrypted(&server, Some(&paper))), [expected]);
    }
}

/// Red if the user of a socket is not looked up, or if the user of another socket is used.
#[test]
fn a_user_of_a_unix_socket_opens_the_exports_that_name_it() {
    let me = fs::metadata("/proc/self").unwrap().uid();
    let exports =
        [export("mine", &[user(me, true)]), export("read", &[user(me, false)]), export("theirs", &[user(!me, true)])];
    let start = || -> Server {
        exports.iter().cloned().fold(builder(), |builder, export| builder.export(export)).start().unwrap()
    };
    let server = start();
    let mut client = Client::pair(&server);
    assert_eq!(list(&mut client), ["mine", "read"]);
    let expected = format!("the user {me} is not among those whom the server allows export \"theirs\"");
    assert_eq!(refusal(&mut client, "theirs"), expected);
    assert_ne!(client.go("read").1 & transmission::READ_ONLY, 0);
    let mut client = Client::pair(&server);
    client.go("mine");
    assert_eq!(client.write(0, &[1; 512]), Ok(vec![]));

    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let theirs = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    server.serve(listener.accept().unwrap().0.into(), None).unwrap();
    let mut client = Client::over(theirs);
    client.exchange_greetings();
    assert!(list(&mut client).is_empty(), "a TCP socket has no user");
}

/// Red if an export without a list is open to every client with a certificate, or if a list can be written that lets no
/// client in.
#[test]
fn a_server_that_wants_certificates_does_not_start_before_it_is_said_whose() {
    let site = Site::new();
    let verifying = || Tls::from_folder(site.folder.path(), true).unwrap();
    let of = |export: Export, tls: Option<Tls>| {
        let builder = builder().export(export);
        let builder = tls.into_iter().fold(builder, |builder, tls| builder.tls(tls));
        builder.start().map(drop).map_err(|error| error.to_string())
    };
    let unsaid = || Export::new("a", queue("ram,size=1M"));
    let refused = of(unsaid(), Some(verifying())).unwrap_err();
    assert!(refused.starts_with("export \"a\" has no list of clients, although clients have to show"), "{refused}");
    assert_eq!(of(unsaid().allowing(Allow::Anybody), Some(verifying())), Ok(()));
    assert_eq!(of(unsaid(), None), Ok(()));
    let without = of(export("a", &[certificate("gold", true)]), None).unwrap_err();
    assert!(without.contains("but no client has to show one"), "{without}");
    assert!(of(export("a", &[]), None).unwrap_err().contains("allows nobody"));
    assert!(of(export("a", &[certificate("", true)]), Some(verifying())).unwrap_err().contains("without a name"));
}

/// Red if a client is served whose certificate has a name that reads otherwise than it is, as with the characters that
/// turn a line around: it could pass for another client where names are shown. Red too if the refusal repeats them.
#[test]
fn a_certificate_with_a_name_that_hides_something_opens_nothing() {
    let site = Site::new();
    let tls = Tls::from_folder(site.folder.path(), true).unwrap().required();
    let open = Export::new("db", queue("ram,size=1M")).allowing(Allow::Anybody);
    let (server, warnings) = start_telling(builder().export(open).tls(tls));
    let paper = site.authority.sign("evil\u{202e}dlog", &[], 7);
    let mut client = site.encrypted(&server, Some(&paper));
    assert_eq!(list(&mut client), [""; 0]);
    let expected = "the name in the client's certificate, \"evil\u{fffd}dlog\", has characters that control a line or \
                    cannot be seen; no such client is served";
    assert_eq!(refusal(&mut client, "db"), expected);
    assert_eq!(server.rejections().denied, 1);
    drop(client);
    drop(server);
    let warnings = warnings.lock().unwrap();
    assert_eq!(warnings.iter().filter(|line| line.contains(&format!("is refused: {expected}"))).count(), 1);
}
