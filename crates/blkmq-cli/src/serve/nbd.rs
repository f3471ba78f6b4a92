//! The NBD server in front of the queues.

use std::collections::BTreeMap;
use std::net::ToSocketAddrs;
use std::os::fd::OwnedFd;
use std::path::absolute;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use blkmq::RequestQueue;
use blkmq_export::{
    Address, ClientInfo, Engine, Export, FrontEnd, Level, Placement, Server, StartError, Stop, Tls, TlsError,
};
use blkmq_workbench::TextError;

use super::config;
use super::given::Given;
use super::limits;
use super::machine;
use super::plan::Plan;
use super::standby::Standby;
use crate::control::exports::Exports;
use crate::operator;
use blkmq_program::Failure;

/// The pause between two checks of the clients that a server still has while it drains.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Reads the path of a Unix socket, whose file gets these permissions, or `tcp:HOST:PORT`.
pub(super) fn address(given: &Given, mode: u32) -> Result<Address, TextError> {
    let text = &given.text;
    let Some(place) = text.strip_prefix("tcp:") else {
        let refuse =
            |what: &str| Err(given.fault(format!("'{text}': {what}, as in /tmp/disk.sock or tcp:127.0.0.1:10809")));
        return match text.as_str() {
            "" => refuse("an address is the path of a socket, or tcp:HOST:PORT"),
            _ if text.contains("://") => refuse("the server's URI follows from its address; give the address"),
            _ if is_port(text) => {
                let port = text.trim_start_matches(':');
                let host = if port.contains(':') { "" } else { "127.0.0.1:" };
                let what = format!("give tcp:{host}{port} for TCP, or ./{text} for a Unix socket of that name");
                Err(given.fault(format!("'{text}': {what}")))
            }
            _ => Ok(Address::Unix { path: text.into(), mode }),
        };
    };
    let wrong = |what: String| given.fault(format!("'{text}': {what}; give tcp:HOST:PORT, as in tcp:127.0.0.1:10809"));
    let mut found = place.to_socket_addrs().map_err(|error| wrong(error.to_string()))?;
    found.next().map(Address::Tcp).ok_or_else(|| wrong("the host has no address".to_owned()))
}

/// Whether a text is `PORT` or `HOST:PORT`, and not the path of a socket in a folder.
fn is_port(text: &str) -> bool {
    let port = text.rsplit(':').next().unwrap_or_default();
    !text.contains('/') && !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())
}

/// Reads the certificates.
pub(super) fn tls(planned: &config::Tls) -> Result<Tls, TextError> {
    let wrong = |error: TlsError| planned.folder.fault(error.to_string());
    let tls = Tls::from_folder(&planned.folder.text, planned.verifies_peer).map_err(wrong)?;
    Ok(if planned.is_required { tls.required() } else { tls })
}

/// Whether this user may not read the certificates.
pub(super) fn may_not_read(planned: &config::Tls) -> bool {
    Tls::from_folder(&planned.folder.text, planned.verifies_peer).is_err_and(|error| error.is_denied())
}

/// The path of a Unix socket, from the root.
pub(super) fn socket(address: &Address) -> Option<String> {
    match address {
        Address::Unix { path, .. } => Some(absolute(path).ok()?.display().to_string()),
        _ => None,
    }
}

/// The server, until it has drained.
type Slot = Arc<Mutex<Option<Server>>>;
/// The server of machines, until it has drained.
type Machines = Arc<Mutex<Option<blkmq_vhost_user::Server>>>;

fn lock<T>(slot: &Mutex<T>) -> MutexGuard<'_, T> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An NBD server that runs.
pub(super) struct Nbd {
    slot: Slot,
    stop: Stop,
    /// For each address in turn, one for each export.
    uris: Vec<String>,
    /// What it shares with machines and block devices.
    engine: Arc<Engine>,
    nr_exports: usize,
    /// Serves machines beside it, and ends with it.
    machines: Machines,
    /// Waits for the clients at the end.
    drainer: Standby,
}

impl Nbd {
    /// Listens at `addresses`, and with the sockets that were handed over. The files of sockets that come with a mode,
    /// from a server whose place this one takes, get it. Then, before the first client, the server does what `give_up`
    /// says.
    pub(super) fn start(
        plan: &Plan,
        queues: &[RequestQueue],
        placements: &BTreeMap<String, Arc<Placement>>,
        addresses: &[Address],
        handed: Vec<(OwnedFd, Option<u32>)>,
        tls: Option<Tls>,
        give_up: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<Self, Failure> {
        let stall_timeout = limits::stall_timeout(plan.stall_timeout.as_ref())?;
        let mut builder = Server::builder().log(say).stall_timeout(stall_timeout);
        if let Some(tls) = tls {
            builder = builder.tls(tls);
        }
        for (socket, mode) in handed {
            builder = match mode {
                Some(mode) => builder.inherited_socket(socket, mode),
                None => builder.socket(socket),
            };
        }
        if let Some(bytes) = plan.memory.as_ref().map(limits::memory).transpose()? {
            builder = builder.memory(bytes);
        }
        if let Some(most) = plan.max_connections {
            builder = builder.max_connections(most.into());
        }
        for address in addresses {
            builder = builder.listen(address.clone());
        }
        for (planned, q) in plan.exports.iter().zip(queues) {
            let mut export = Export::new(planned.name.text.clone(), q.clone()).described(planned.description.clone());
            export.read_only = planned.read_only;
            export.weight = planned.weight.unwrap_or(export.weight);
            export.priority = planned.priority;
            export.allow = planned.allow.clone();
            export.placement = Arc::clone(&placements[planned.queue()]);
            builder = builder.export(export);
        }
        let failure = |error: StartError| match error.is_bad_configuration() {
            true => Failure::Input(error.to_string()),
            false => Failure::Running(error.to_string()),
        };
        let bound = builder.bind().map_err(failure)?;
        give_up()?;
        let server = bound.start().map_err(failure)?;
        let (uris, stop, engine) = (server.uris().to_vec(), server.stop(), Arc::clone(server.engine()));
        let (slot, nr_exports) = (Arc::new(Mutex::new(Some(server))), queues.len());
        let drainer = Standby::start("drain").map_err(|error| Failure::Running(format!("serve: {error}")))?;
        Ok(Self { slot, stop, uris, engine, nr_exports, machines: Machines::default(), drainer })
    }

    /// The engine, whose exports have the numbers of the plan's.
    pub(super) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Serves machines beside the clients, until the server is drained.
    pub(super) fn serve_beside(&self, machines: blkmq_vhost_user::Bound) -> Result<(), Failure> {
        let server = machines.serve(&self.engine).map_err(machine::failure)?;
        *lock(&self.machines) = Some(server);
        Ok(())
    }

    /// The URIs of the export with this number: one for each address.
    pub(super) fn uris(&self, export: usize) -> Vec<String> {
        self.uris.iter().skip(export).step_by(self.nr_exports).cloned().collect()
    }

    /// The exports, for the control socket.
    pub(super) fn exports(&self, plan: &Plan) -> Exports {
        let queue = |export: &config::Export| (export.name.text.clone(), export.queue().to_owned());
        Exports { server: Arc::clone(&self.slot), queues: plan.exports.iter().map(queue).collect() }
    }

    /// Takes no more requests. Calls `done` when the requests that were taken are answered and the clients are gone.
    pub(super) fn drain(&self, done: impl FnOnce() + Send + 'static) {
        self.stop.drain();
        let (slot, machines) = (Arc::clone(&self.slot), Arc::clone(&self.machines));
        self.drainer.run(move || {
            // The server stays in its slot until its clients are gone, so that `blkmq clients` shows the clients that
            // it waits for.
            while lock(&slot).as_ref().is_some_and(|server| server.clients().iter().any(is_connection)) {
                thread::sleep(LOOK_EVERY);
            }
            // Before the other one, which ends the log if there is no client any more.
            let machines = lock(&machines).take();
            machines.into_iter().for_each(blkmq_vhost_user::Server::wait);
            let server = lock(&slot).take();
            if let Some(server) = server {
                server.wait();
            }
            done();
        });
    }

    /// The clients that are still connected.
    pub(super) fn waited_for(&self) -> Vec<ClientInfo> {
        let mut clients = lock(&self.slot).as_ref().map(Server::clients).unwrap_or_default();
        clients.retain(is_connection);
        clients
    }

    /// A function that tells which block devices are served, also when the server has ended.
    pub(super) fn devices(&self) -> impl Fn() -> Vec<ClientInfo> + use<> {
        let engine = Arc::clone(&self.engine);
        move || engine.clients.list().into_iter().filter(|client| client.front_end == FrontEnd::Ublk).collect()
    }

    /// Closes all connections, even if requests are not answered.
    pub(super) fn end_now(&self) {
        self.stop.now();
    }
}

/// Whether it is a client of NBD, or a machine. Block devices end when such clients are gone.
fn is_connection(client: &ClientInfo) -> bool {
    client.front_end != FrontEnd::Ublk
}

/// Writes what should not happen to standard error. That clients come and go is not written.
fn say(level: Level, text: &str) {
    if level == Level::Warning {
        operator::say(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_paths_or_ports() {
        let read = |text: &str| address(&Given { text: text.to_owned(), place: "--nbd".to_owned() }, 0o600);
        assert_eq!(read("tcp:127.0.0.1:0"), Ok(Address::loopback(0)));
        assert_eq!(read("a/b.sock"), Ok(Address::unix("a/b.sock")));
        assert_eq!(read("./10809"), Ok(Address::unix("./10809")));
        assert_eq!(read("disk2"), Ok(Address::unix("disk2")));
        for bad in ["", "tcp:", "tcp:127.0.0.1", "tcp:127.0.0.1:99999", "nbd://localhost", "nbd+unix:///?socket=a"] {
            let error = read(bad).unwrap_err().to_string();
            assert!(error.starts_with("--nbd: ") && error.contains("as in "), "{error}");
        }
        // Red before: a port, and a host with a port, became the names of Unix sockets.
        for (bad, right) in [
            ("10809", "127.0.0.1:10809"),
            (":1", "127.0.0.1:1"),
            ("localhost:10809", "localhost:10809"),
            ("[::1]:0", "[::1]:0"),
        ] {
            let error = read(bad).unwrap_err().to_string();
            assert!(error.contains(&format!("give tcp:{right} for TCP, or ./{bad} for a Unix socket")), "{error}");
        }
    }
}
