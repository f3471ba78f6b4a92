//! The conformance checks of front-ends.

use std::sync::Arc;

use blkmq_engine::harness::{CONNECTIONS, TestClient, TestServer, check};
use blkmq_engine::{Ask, Engine, least_memory};
use blkmq_export::nbd::{commands, transmission};
use blkmq_export::{Address, Export, FrontEnd, Server};
use tempfile::TempDir;

use crate::server::builder;
use crate::server::client::Client;

struct Nbd {
    folder: TempDir,
    engine: Arc<Engine>,
    server: Option<Server>,
}

struct NbdClient {
    client: Client,
    terms: (u64, bool),
    /// The bytes that each request has in its answer, by cookie.
    lengths: Vec<usize>,
}

impl TestServer for Nbd {
    const FRONT_END: FrontEnd = FrontEnd::Nbd;
    const DEPTH: usize = 16;
    type Client = NbdClient;

    fn start(export: Export) -> Self {
        let folder = tempfile::tempdir().expect("there is room for a folder");
        let builder = builder().export(export).listen(Address::unix(folder.path().join("socket")));
        let builder = builder.max_connections(CONNECTIONS).memory(least_memory(CONNECTIONS));
        let server = builder.start().expect("the server is right");
        Self { folder, engine: Arc::clone(server.engine()), server: Some(server) }
    }

    fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    fn connect(&self) -> Option<NbdClient> {
        let stream = std::os::unix::net::UnixStream::connect(self.folder.path().join("socket")).ok()?;
        let mut client = Client::greet(stream);
        let (size, flags) = client.go("");
        Some(NbdClient { client, terms: (size, flags & transmission::READ_ONLY != 0), lengths: Vec::new() })
    }

    fn wait(&mut self) {
        self.server.take().expect("it is waited for once").wait();
    }
}

impl TestClient for NbdClient {
    fn terms(&mut self) -> (u64, bool) {
        self.terms
    }

    fn send(&mut self, ask: Ask, offset: u64, data: &[u8]) {
        let kind = match ask {
            Ask::Read => commands::READ,
            Ask::Write { .. } => commands::WRITE,
            Ask::Flush => commands::FLUSH,
            Ask::Discard { .. } => commands::TRIM,
            Ask::WriteZeroes { .. } => commands::WRITE_ZEROES,
            Ask::Cache | Ask::Tell { .. } => panic!("no check asks for {ask:?}"),
        };
        self.client.request(kind, 0, self.lengths.len() as u64, offset, data.len() as u32);
        self.lengths.push(if kind == commands::READ { data.len() } else { 0 });
        if kind == commands::WRITE {
            self.client.send(data);
        }
    }

    fn receive(&mut self) -> Option<Vec<u8>> {
        self.client.reply(|cookie| self.lengths[cookie as usize]).1.ok()
    }

    fn wait_closed(&mut self) {
        assert!(self.client.is_closed());
    }
}

/// Red if a client that may only read changes something, if a latency or an error is not counted, if a client that is
/// gone leaves something behind, or if a drain or a lack of memory loses a request.
#[test]
fn nbd_passes_the_conformance_checks() {
    check::<Nbd>();
}
