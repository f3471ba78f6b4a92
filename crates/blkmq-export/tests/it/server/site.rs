//! What tests with TLS begin with: an authority, a server with its files, and clients that encrypt.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use blkmq_export::nbd::{option_replies, options};
use blkmq_export::{Allow, Builder, Export, Level, Server, Tls};
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion};

use crate::server::client::{Client, option};
use crate::server::papers::{Authority, Paper};
use crate::server::{builder, queue};

pub(crate) type Encrypted = Client<StreamOwned<ClientConnection, UnixStream>>;

/// The warnings of a server.
pub(crate) type Warnings = Arc<Mutex<Vec<String>>>;

/// Starts a server. Returns it with its warnings.
pub(crate) fn start_telling(builder: Builder) -> (Server, Warnings) {
    let warnings = Warnings::default();
    let log = {
        let warnings = Arc::clone(&warnings);
        move |level: Level, line: &str| {
            if level == Level::Warning {
                warnings.lock().expect("nobody panicked").push(line.to_owned());
            }
        }
    };
    (builder.log(log).start().expect("the server is right"), warnings)
}

/// A server whose export is for every client that is let in.
pub(crate) fn open_to_all() -> Builder {
    builder().export(Export::new("", queue("ram,size=1M")).allowing(Allow::Anybody))
}

/// An authority, and a folder with the files of a server: from these a test makes its server and clients.
pub(crate) struct Site {
    pub(crate) authority: Authority,
    pub(crate) folder: tempfile::TempDir,
}

impl Site {
    pub(crate) fn new() -> Self {
        let (authority, folder) = (Authority::new(), tempfile::tempdir().expect("there is room for a folder"));
        authority.equip(folder.path());
        Self { authority, folder }
    }

    pub(crate) fn tls(&self) -> Tls {
        Tls::from_folder(self.folder.path(), false).expect("the folder has what it takes")
    }

    pub(crate) fn builder(&self, device: &str) -> Builder {
        builder().export(Export::new("", queue(device))).tls(self.tls())
    }

    pub(crate) fn server(&self, device: &str) -> Server {
        self.builder(device).start().expect("the server is right")
    }

    /// Starts a server. Returns it with its warnings.
    pub(crate) fn telling(&self, device: &str) -> (Server, Warnings) {
        start_telling(self.builder(device))
    }

    fn config(&self, versions: &[&'static SupportedProtocolVersion], paper: Option<&Paper>) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.certificate()).expect("the certificate is one");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions);
        let builder = builder.expect("the versions are known").with_root_certificates(roots);
        let mut config = match paper {
            None => builder.with_no_client_auth(),
            Some(paper) => builder
                .with_client_auth_cert(vec![paper.certificate.clone()], paper.key())
                .expect("the key belongs to the certificate"),
        };
        config.enable_secret_extraction = true;
        Arc::new(config)
    }

    pub(crate) fn tls_session(
        &self,
        versions: &[&'static SupportedProtocolVersion],
        paper: Option<&Paper>,
    ) -> ClientConnection {
        let name = "localhost".try_into().expect("this is a name");
        ClientConnection::new(self.config(versions, paper), name).expect("the configuration is right")
    }

    /// A client that has asked for encryption, and not chosen an export yet.
    pub(crate) fn client(&self, server: &Server) -> Encrypted {
        encrypt(Client::pair(server), self.tls_session(&[&TLS13], None))
    }

    /// A client that shows a certificate, if it has one, and has not chosen an export yet.
    pub(crate) fn encrypted(&self, server: &Server, paper: Option<&Paper>) -> Encrypted {
        encrypt(Client::pair(server), self.tls_session(&[&TLS13], paper))
    }

    /// A client that shows a certificate. `None` if it is not let in.
    pub(crate) fn shows(&self, server: &Server, paper: Option<&Paper>) -> Option<Encrypted> {
        let mut client = encrypt(Client::pair(server), self.tls_session(&[&TLS13], paper));
        client.stream.write_all(&option(options::LIST, &[])).ok()?;
        // In TLS 1.3 a client learns only now whether the server accepts its certificate.
        client.try_take::<1>().ok()?;
        Some(client)
    }
}

/// Asks for TLS, and continues inside TLS.
pub(crate) fn encrypt(mut client: Client, tls_session: ClientConnection) -> Encrypted {
    start_tls(&mut client);
    Client::over(StreamOwned::new(tls_session, client.stream))
}

pub(crate) fn start_tls(client: &mut Client) {
    assert_eq!(client.ask(options::STARTTLS, &[]), [(option_replies::ACK, vec![])]);
}
