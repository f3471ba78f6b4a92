//! A real server, driven by a naive client that knows only the protocol's numbers and nothing of the server's code.

mod access;
mod bounds;
mod bytes;
mod certificates;
mod client;
mod commands;
mod conformance;
mod device;
mod ending;
mod forger;
mod leaving;
mod memory;
mod options;
mod papers;
mod site;
mod tls;

use std::path::PathBuf;
use std::time::Duration;

use blkmq::RequestQueue;
use blkmq::driver::spec;
use blkmq_export::{Address, Bounds, Builder, Export, Server};
use tempfile::TempDir;

fn queue(device: &str) -> RequestQueue {
    let driver = spec::open(device).expect("the device is right");
    RequestQueue::builder(driver).build().expect("so is its queue")
}

/// A builder with time limits on which no test depends.
fn builder() -> Builder {
    Server::builder().negotiation_timeout(Duration::from_secs(3600))
}

/// A builder of a server with this device as its default export.
fn serving(device: &str) -> Builder {
    builder().export(Export::new("", queue(device)))
}

/// The same for a server that listens at a socket, in a folder of its own.
fn listening(device: &str) -> (TempDir, PathBuf, Builder) {
    let folder = tempfile::tempdir().expect("there is room for a folder");
    let path = folder.path().join("socket");
    let builder = serving(device).listen(Address::unix(&path));
    (folder, path, builder)
}

/// A server with this device as its default export, for clients by socket pair.
fn server(device: &str) -> Server {
    serving(device).start().expect("the server is right")
}

fn server_with(q: &RequestQueue, bounds: Bounds) -> Server {
    builder().export(Export::new("", q.clone())).bounds(bounds).start().expect("the server is right")
}
