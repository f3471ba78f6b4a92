//! Which certificates, keys and lists can be used, the errors for others, and how they change while a server runs.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use blkmq_export::Tls;
use blkmq_export::nbd::{option_replies, options};
use rustls::client::ResolvesClientCert;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ClientConnection, RootCertStore, SignatureScheme, StreamOwned};

use crate::server::client::{Client, option};
use crate::server::ending::until;
use crate::server::papers::{Authority, RsaPublic};
use crate::server::serving;
use crate::server::site::{Site, open_to_all, start_telling};

/// Private keys with their public keys, as 'openssl genrsa' makes them. For the largest size there is only a public
/// key; its modulus is just some number of that size.
const RSA: [(usize, &str); 7] = [
    (1024, include_str!("keys/rsa-1024.pem")),
    (2048, include_str!("keys/rsa-2048.pem")),
    (2056, include_str!("keys/rsa-2056.pem")),
    (3072, include_str!("keys/rsa-3072.pem")),
    (4096, include_str!("keys/rsa-4096.pem")),
    (8192, include_str!("keys/rsa-8192.pem")),
    (16384, include_str!("keys/rsa-16384.pem")),
];
/// A certificate of X.509 version 1, with its key.
const VERSION_1: &str = include_str!("keys/version-1.pem");
const VERSION_1_IS: &str = "it is a certificate of X.509 version 1, which does not say what it is for";

fn refusal(site: &Site, verifies_clients: bool) -> String {
    let text = Tls::from_folder(site.folder.path(), verifies_clients).expect_err("it is of no use").to_string();
    assert_eq!(text.lines().count(), 1, "{text}");
    text.strip_prefix(&format!("{}/", site.folder.path().display())).expect("the path comes first").to_owned()
}

fn write(site: &Site, name: &str, text: &str) {
    fs::write(site.folder.path().join(name), text).expect("there is room for a file");
}

/// Red if the size of the key is left to the provider of cryptography, which reports 'TooLarge' or
/// 'PrivateModulusLenNotMultipleOf512Bits'.
#[test]
fn a_server_uses_rsa_keys_of_the_sizes_that_can_sign_and_names_them_for_others() {
    let site = Site::new();
    for (bits, pem) in RSA.into_iter().filter(|(bits, _)| *bits <= 8192) {
        write(&site, "server-cert.pem", &site.authority.sign_key(&RsaPublic::of(pem)));
        write(&site, "server-key.pem", pem);
        if [2048, 3072, 4096].contains(&bits) {
            let tls = Tls::from_folder(site.folder.path(), false).unwrap();
            let server = serving("ram,size=1M").tls(tls).start().unwrap();
            site.client(&server).go("");
            continue;
        }
        let expected = format!(
            "server-key.pem: the RSA key has {bits} bits; a server's key is RSA of 2048, 3072 or 4096 bits, or ECDSA on the \
             curve P-256 or P-384, or Ed25519"
        );
        assert_eq!(refusal(&site, false), expected);
    }
}

/// Red if authorities are not checked at the start: later each client of such an authority would be refused.
#[test]
fn an_authority_whose_signatures_cannot_be_verified_is_refused_at_the_start() {
    let site = Site::new();
    for (bits, pem) in RSA {
        write(&site, "ca-cert.pem", &site.authority.sign_key(&RsaPublic::of(pem)));
        if (2048..=8192).contains(&bits) {
            Tls::from_folder(site.folder.path(), true).unwrap();
            continue;
        }
        let expected =
            format!("ca-cert.pem: its RSA key has {bits} bits; RSA keys of 2048 to 8192 bits can be verified");
        assert_eq!(refusal(&site, true), expected);
    }
}

/// Red if the version is not checked: an authority of version 1 is then believed, and for the others the message is
/// 'Other(OtherError(UnsupportedCertVersion))'.
#[test]
fn certificates_of_version_1_are_refused_with_a_sentence() {
    let site = Site::new();
    let good = fs::read_to_string(site.folder.path().join("ca-cert.pem")).unwrap();
    write(&site, "ca-cert.pem", VERSION_1);
    assert!(refusal(&site, true).starts_with(&format!("ca-cert.pem: {VERSION_1_IS}")));
    write(&site, "ca-cert.pem", &good);
    let own = Site::new();
    write(&own, "server-cert.pem", VERSION_1);
    write(&own, "server-key.pem", VERSION_1);
    assert!(refusal(&own, false).starts_with(&format!("server-cert.pem: {VERSION_1_IS}")));

    let tls = Tls::from_folder(site.folder.path(), true).unwrap();
    let (server, warnings) = start_telling(open_to_all().tls(tls));
    for (what, certificate, key) in [
        (VERSION_1_IS, VERSION_1.to_owned(), VERSION_1),
        ("its RSA key has 1024 bits; ", site.authority.sign_key(&RsaPublic::of(RSA[0].1)), RSA[1].1),
    ] {
        show(&site, &server, &certificate, key);
        until(|| !warnings.lock().unwrap().is_empty());
        let line = warnings.lock().unwrap().pop().expect("it was told");
        assert!(line.contains(&format!("TLS: the client's certificate: {what}")), "{line}");
    }
}

/// A resolver that always shows the same certificate.
#[derive(Debug)]
struct Shows(Arc<CertifiedKey>);

impl ResolvesClientCert for Shows {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Shows a certificate to the server, which does not let the client in.
fn show(site: &Site, server: &blkmq_export::Server, certificate: &str, key: &str) {
    let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).expect("it is one");
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("it is one");
    let key = rustls::crypto::ring::sign::any_supported_type(&key).expect("it can sign");
    let mut roots = RootCertStore::empty();
    roots.add(site.authority.certificate()).expect("it is one");
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().expect("there are some").with_root_certificates(roots);
    let shows = Shows(Arc::new(CertifiedKey::new(vec![certificate], key)));
    let config = builder.with_client_cert_resolver(Arc::new(shows));
    let name = "localhost".try_into().expect("this is a name");
    let tls_session = ClientConnection::new(Arc::new(config), name).expect("the configuration is right");
    let mut client = Client::pair(server);
    assert_eq!(client.ask(options::STARTTLS, &[]), [(option_replies::ACK, vec![])]);
    let mut client = Client::over(StreamOwned::new(tls_session, client.stream));
    let said = client.stream.write_all(&option(options::LIST, &[]));
    assert!(said.is_err() || client.try_take::<1>().is_err(), "it is not let in");
}

/// The time since the beginning of 1970.
fn now() -> Duration {
    SystemTime::UNIX_EPOCH.elapsed().expect("it is later than 1970")
}

/// Red if the verifier does not enforce the date: the list then counts forever.
#[test]
fn a_list_of_revoked_certificates_that_is_past_its_date_lets_nobody_in() {
    let site = Site::new();
    write(&site, "ca-crl.pem", &site.authority.revoke_until(66, now() - Duration::from_secs(60)));
    let refusal = refusal(&site, true);
    assert!(refusal.starts_with("ca-crl.pem: the list of revoked certificates was good until 20"), "{refusal}");

    // A list that ends while the server runs. A busy machine may take longer to start than the list lasts.
    let soon = |seconds| {
        write(&site, "ca-crl.pem", &site.authority.revoke_until(66, now() + Duration::from_secs(seconds)));
        Tls::from_folder(site.folder.path(), true).ok()
    };
    let tls = (0..10).find_map(|power| soon(2 << power)).expect("1024 seconds are enough");
    let (server, warnings) = start_telling(open_to_all().tls(tls.clone()));
    let alice = site.authority.sign("alice", &[], 67);
    until(|| site.shows(&server, Some(&alice)).is_none());
    until(|| !warnings.lock().unwrap().is_empty());
    let line = warnings.lock().unwrap().pop().expect("it was told");
    assert!(line.contains("the list of revoked certificates, ca-crl.pem, is past its date"), "{line}");
    write(&site, "ca-crl.pem", &site.authority.revoke(66));
    tls.reload().unwrap();
    assert!(site.shows(&server, Some(&alice)).is_some(), "the next list counts");
}

/// Red if `reload` takes over one file before it has read all of them, or if new connections keep the old
/// configuration.
#[test]
fn files_that_are_read_again_count_together_or_not_at_all() {
    let site = Site::new();
    let tls = Tls::from_folder(site.folder.path(), true).unwrap();
    let server = open_to_all().tls(tls.clone()).start().unwrap();
    let alice = site.authority.sign("alice", &[], 67);
    let lets_in = || site.shows(&server, Some(&alice)).is_some();
    let mut early = site.shows(&server, Some(&alice)).expect("it is signed");

    // Alice is revoked, but the key does not belong to the server's certificate.
    let key = fs::read_to_string(site.folder.path().join("server-key.pem")).unwrap();
    write(&site, "ca-crl.pem", &site.authority.revoke(67));
    write(&site, "server-key.pem", &site.authority.sign("another", &[], 9).key_pem());
    let error = tls.reload().unwrap_err().to_string();
    assert!(error.ends_with("server-key.pem: not the key of server-cert.pem"), "{error}");
    assert!(lets_in(), "the old set counts");

    write(&site, "server-key.pem", &key);
    tls.reload().unwrap();
    assert!(!lets_in(), "the new set counts");
    // The rest of the list, which has one export without a name, and its end.
    early.take::<43>();
    early.go("");
    assert_eq!(early.read(0, 512), Ok(vec![0; 512]), "a client that is in stays in");

    fs::remove_file(site.folder.path().join("ca-crl.pem")).unwrap();
    Authority::new().equip(site.folder.path());
    tls.reload().unwrap();
    assert!(!lets_in(), "another authority's");
}

#[test]
fn only_those_whom_the_authority_has_signed_come_in_and_they_have_names() {
    let site = Site::new();
    let tls = Tls::from_folder(site.folder.path(), true).unwrap().required();
    let server = open_to_all().tls(tls).start().unwrap();
    assert!(site.shows(&server, None).is_none());
    assert!(site.shows(&server, Some(&Authority::new().sign("alice", &[], 7))).is_none());
    until(|| server.clients().is_empty());
    let long = "x".repeat(100);
    for (common, alternatives, name) in [
        ("alice", &["host.example"][..], Some("alice")),
        ("", &["host.example", "other.example"], Some("host.example")),
        ("a\nb", &[], Some("a\u{fffd}b")),
        (&long, &[], Some(&long[..64])),
        ("", &[], None),
    ] {
        let paper = site.authority.sign(common, alternatives, 8);
        let mut client = site.shows(&server, Some(&paper)).expect("it is signed");
        assert_eq!(server.clients()[0].name.as_deref(), name);
        client.stream.sock.shutdown(std::net::Shutdown::Both).unwrap();
        until(|| server.clients().is_empty());
        drop(client.stream.read(&mut [0]));
    }
}

#[test]
fn what_is_wrong_with_a_file_is_told_with_its_name() {
    let site = Site::new();
    let folder = site.folder.path();
    let with = |name: &str, content: &str, verifies: bool| {
        let path = folder.join(name);
        let before = fs::read(&path).ok();
        fs::write(&path, content).unwrap();
        let error = refusal(&site, verifies);
        match before {
            Some(before) => fs::write(&path, before).unwrap(),
            None => fs::remove_file(&path).unwrap(),
        }
        error
    };
    for (name, what) in [
        ("ca-cert.pem", "certificate"),
        ("server-cert.pem", "certificate"),
        ("server-key.pem", "private key without a password"),
        ("ca-crl.pem", "list of revoked certificates"),
    ] {
        for empty in ["", "hello\n", "-----BEGIN PARAMETERS-----\nAAAA\n-----END PARAMETERS-----\n"] {
            assert_eq!(with(name, empty, true), format!("{name}: there is no {what} in it, in PEM"));
        }
        let error = with(name, "-----BEGIN CERTIFICATE-----\nAAAA\n", true);
        assert_eq!(error, format!("{name}: -----BEGIN CERTIFICATE----- has no end"));
    }
    let garbage = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    for name in ["ca-cert.pem", "server-cert.pem"] {
        let error = with(name, garbage, true);
        assert!(error.starts_with(&format!("{name}: the certificate cannot be used: ")), "{error}");
    }
    let key = with("server-key.pem", &garbage.replace("CERTIFICATE", "PRIVATE KEY"), false);
    assert!(key.starts_with("server-key.pem: "), "{key}");
    let other = site.authority.sign("another", &[], 9);
    assert_eq!(with("server-key.pem", &other.key_pem(), false), "server-key.pem: not the key of server-cert.pem");
    fs::remove_file(folder.join("ca-cert.pem")).unwrap();
    assert!(refusal(&site, true).starts_with("ca-cert.pem: No such file"));
    assert!(Tls::from_folder(folder, false).is_ok(), "without verification it is not needed");
    fs::remove_file(folder.join("server-key.pem")).unwrap();
    assert!(refusal(&site, false).starts_with("server-key.pem: No such file"));
    assert!(
        Tls::from_folder(Path::new("/nowhere"), false).unwrap_err().to_string().contains("server-cert.pem: No such")
    );
}
