//! The server: a socket for each device, and a thread that serves one front-end after the other.

use std::path::PathBuf;
use std::sync::Arc;
use std::{io, thread};

use blkmq::event::EventFd;
use blkmq_engine::{Acceptor, Address, Engine, Listener, Phase, Topic};

use crate::connection::{Connection, Ending};
use crate::device::{Device, DeviceError};
use crate::protocol::wire::WireError;

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A device that cannot be.
    #[error("the device at {socket} has {1}", socket = .0.display())]
    Device(PathBuf, #[source] DeviceError),
    /// A socket that cannot be listened at.
    #[error("cannot listen at {socket}: {1}", socket = .0.display())]
    Socket(PathBuf, #[source] io::Error),
    /// What the system refuses otherwise.
    #[error("{0}")]
    System(#[source] io::Error),
}

/// Devices that are served, until the engine is [stopped](Engine::stop).
#[derive(Debug)]
pub struct Server {
    threads: Vec<thread::JoinHandle<()>>,
}

/// Devices whose sockets are there, and that nobody serves yet. A front-end that connects waits.
#[derive(Debug)]
pub struct Bound(Vec<(Device, Listener)>);

impl Bound {
    /// Makes the sockets of these devices.
    ///
    /// # Errors
    /// A device cannot be, or a socket cannot be listened at.
    pub fn new(devices: Vec<Device>) -> Result<Self, StartError> {
        for device in &devices {
            device.check().map_err(|error| StartError::Device(device.socket.clone(), error))?;
        }
        let open =
            |device: Device| match Listener::open(&Address::Unix { path: device.socket.clone(), mode: device.mode }) {
                Ok(listener) => Ok((device, listener)),
                Err(error) => Err(StartError::Socket(device.socket, error)),
            };
        devices.into_iter().map(open).collect::<Result<_, _>>().map(Self)
    }

    /// Serves the devices, each by threads of its own. A machine is a client of the engine while its front-end is
    /// connected. When the engine is told to end ([`Engine::stop`]), no more requests are taken from the machines'
    /// rings, those that were taken are answered, and the front-ends are disconnected. What is left in the rings is the
    /// next server's, for which a front-end may wait.
    ///
    /// # Errors
    /// A device behind a queue has not one whole sector; or there are no descriptors or threads left. Then the engine
    /// is told to end.
    ///
    /// # Panics
    /// If a device names an export that the engine has not.
    pub fn serve(self, engine: &Arc<Engine>) -> Result<Server, StartError> {
        for (device, _) in &self.0 {
            assert!(device.export < engine.exports.len(), "there is no export {}", device.export);
            let limits = engine.exports[device.export].queue.limits();
            if limits.missing_bytes > 0 && limits.whole_sectors() == 0 {
                engine.stop.drain();
                let error = DeviceError::NoBlock(limits.size_bytes());
                return Err(StartError::Device(device.socket.clone(), error));
            }
        }
        let mut server = Server { threads: Vec::new() };
        for (device, listener) in self.0 {
            engine.warn_of_rest(device.export, device.socket.display());
            let started = EventFd::new().and_then(|bell| {
                let (engine, bell) = (Arc::clone(engine), Arc::new(bell));
                engine.stop.ring_too(&bell);
                let thread = thread::Builder::new().name("vhost-user".into());
                thread.spawn(move || serve(&device, listener, &bell, &engine))
            });
            match started {
                Ok(thread) => server.threads.push(thread),
                Err(error) => {
                    engine.stop.drain();
                    server.wait();
                    return Err(StartError::System(error));
                }
            }
        }
        Ok(server)
    }
}

impl Server {
    /// Makes the sockets of these devices, and serves the devices. See [`Bound::new`] and [`Bound::serve`].
    ///
    /// # Errors
    /// Those of the two.
    ///
    /// # Panics
    /// If a device names an export that the engine has not.
    pub fn start(devices: Vec<Device>, engine: &Arc<Engine>) -> Result<Self, StartError> {
        Bound::new(devices)?.serve(engine)
    }

    /// Waits until the engine is told to end, and all front-ends are gone.
    pub fn wait(self) {
        for thread in self.threads {
            // The thread's panic was told by the hook.
            let _ = thread.join();
        }
    }
}

/// Serves one front-end after the other. A further one waits until the one before it has gone.
fn serve(device: &Device, listener: Listener, bell: &Arc<EventFd>, engine: &Arc<Engine>) {
    let (place, listeners) = (device.socket.display(), [listener]);
    let mut acceptor = Acceptor::new(&listeners, bell);
    while engine.stop.phase() == Phase::Running {
        let accepted = acceptor.accept(true, |client| {
            engine.inform(format_args!("{place}: a front-end has connected"));
            let ending = match Connection::new(device, engine, client.socket, bell) {
                Ok(mut connection) => connection.run(),
                Err(ending) => ending,
            };
            match ending {
                Ending::Wire(WireError::Closed) | Ending::Stopped => engine.inform(format_args!("{place}: {ending}")),
                ending => engine.warn(Topic::Ending, format_args!("{place}: {ending}")),
            }
            Ok(())
        });
        if let Err(error) = accepted {
            engine.warn(Topic::Server, format_args!("{place}: no front-end can be let in: {error}"));
        }
    }
}
