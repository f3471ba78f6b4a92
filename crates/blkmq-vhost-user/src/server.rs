//! The server: a socket for each device, and a thread that serves one front-end after the other.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;
use std::{error, fmt, fs, io, thread};

use blkmq::event::EventFd;
use rustix::fs::{Mode, fchmod};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with};

use crate::count::{Counters, Stats};
use crate::device::{Device, DeviceError};
use crate::quiet::Quiet;
use crate::session::{Ending, Session};
use crate::stop::Stop;

/// How much a line of the log matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Front-ends come and go.
    Info,
    /// Something happened that should not happen, but the server goes on.
    Warning,
}

/// Takes the lines that a server logs, from any of its threads.
pub type Log = Arc<dyn Fn(Level, &str) + Send + Sync>;

/// Why a server does not start.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// A device that cannot be.
    Device(PathBuf, DeviceError),
    /// A socket that cannot be listened at.
    Socket(PathBuf, io::Error),
    /// What the system refuses otherwise.
    System(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(socket, error) => write!(f, "the device at {} has {error}", socket.display()),
            Self::Socket(socket, error) => write!(f, "cannot listen at {}: {error}", socket.display()),
            Self::System(error) => error.fmt(f),
        }
    }
}

impl error::Error for StartError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Device(_, error) => Some(error),
            Self::Socket(_, error) | Self::System(error) => Some(error),
        }
    }
}

/// A socket at which a device waits for its front-end. The socket's file goes with it.
#[derive(Debug)]
struct Door {
    socket: OwnedFd,
    path: PathBuf,
}

impl Door {
    fn open(path: &Path, mode: u32) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // Linux makes the file with the socket's own permissions, so there is no time in which it has others.
        fchmod(&socket, Mode::from_raw_mode(mode))?;
        let address = SocketAddrUnix::new(path)?;
        if let Err(error) = bind(&socket, &address) {
            if error != rustix::io::Errno::ADDRINUSE || !is_left(path) {
                return Err(error.into());
            }
            fs::remove_file(path)?;
            bind(&socket, &address)?;
        }
        listen(&socket, 4)?;
        Ok(Self { socket, path: path.to_owned() })
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Whether a server that has ended has left this socket: nobody listens there.
fn is_left(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|data| data.file_type().is_socket());
    is_socket && UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// What the threads of a device share.
#[derive(Debug)]
struct Known {
    counters: Arc<[Counters]>,
    nr_sessions: AtomicU64,
    is_connected: AtomicBool,
}

/// Devices that are served.
#[derive(Debug)]
pub struct Server {
    stop: Stop,
    threads: Vec<thread::JoinHandle<()>>,
    known: Vec<Arc<Known>>,
}

/// Devices whose sockets are there, and that nobody serves yet. A front-end that connects waits.
#[derive(Debug)]
pub struct Bound(Vec<(Device, Door)>);

impl Bound {
    /// Makes the sockets of these devices.
    ///
    /// # Errors
    /// A device cannot be, or a socket cannot be listened at.
    pub fn new(devices: Vec<Device>) -> Result<Self, StartError> {
        for device in &devices {
            device.check().map_err(|error| StartError::Device(device.socket.clone(), error))?;
        }
        let open = |device: Device| match Door::open(&device.socket, device.mode) {
            Ok(door) => Ok((device, door)),
            Err(error) => Err(StartError::Socket(device.socket, error)),
        };
        devices.into_iter().map(open).collect::<Result<_, _>>().map(Self)
    }

    /// Serves the devices until [`Server::stop`], each by threads of its own.
    ///
    /// # Errors
    /// There are no descriptors or threads left.
    pub fn serve(self, log: Log) -> Result<Server, StartError> {
        let bells = self.0.iter().map(|_| EventFd::new().map(Arc::new)).collect::<Result<Vec<_>, _>>();
        let bells = bells.map_err(StartError::System)?;
        let stop = Stop::new(bells.clone());
        let mut server = Server { stop, threads: Vec::new(), known: Vec::new() };
        for ((device, door), bell) in self.0.into_iter().zip(bells) {
            let known = Arc::new(Known {
                counters: (0..device.nr_queues).map(|_| Counters::default()).collect(),
                nr_sessions: AtomicU64::new(0),
                is_connected: AtomicBool::new(false),
            });
            let (stop, log, shared) = (server.stop.clone(), Arc::clone(&log), Arc::clone(&known));
            let thread = thread::Builder::new().name("vhost-user".into());
            let thread = thread.spawn(move || serve(&device, &door, &bell, &stop, &shared, &log));
            match thread {
                Ok(thread) => server.threads.push(thread),
                Err(error) => {
                    server.stop.drain();
                    server.wait();
                    return Err(StartError::System(error));
                }
            }
            server.known.push(known);
        }
        Ok(server)
    }
}

impl Server {
    /// Serves devices, each at its own socket, until [`stop`](Self::stop).
    ///
    /// # Errors
    /// A device cannot be, a socket cannot be listened at, or there are no descriptors or threads left.
    pub fn start(devices: Vec<Device>, log: Log) -> Result<Self, StartError> {
        Bound::new(devices)?.serve(log)
    }

    /// What ends the server.
    #[must_use]
    pub fn stop(&self) -> Stop {
        self.stop.clone()
    }

    /// Waits until the server has ended.
    pub fn wait(self) {
        for thread in self.threads {
            // The thread's panic was told by the hook.
            let _ = thread.join();
        }
    }

    /// Whether the server has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.threads.iter().all(thread::JoinHandle::is_finished)
    }

    /// What a device, by its place in the list, has done for its guests. `None` if there is no such device.
    #[must_use]
    pub fn stats(&self, device: usize) -> Option<Stats> {
        let known = self.known.get(device)?;
        // Relaxed: only a count.
        Some(Counters::sum(&known.counters, known.nr_sessions.load(Ordering::Relaxed)))
    }

    /// Whether a front-end is connected to a device.
    #[must_use]
    pub fn is_connected(&self, device: usize) -> bool {
        // Relaxed: the answer may be wrong a moment later in any case.
        self.known.get(device).is_some_and(|known| known.is_connected.load(Ordering::Relaxed))
    }
}

/// Serves one front-end after the other. A further one waits until the one before it has gone.
fn serve(device: &Device, door: &Door, bell: &Arc<EventFd>, stop: &Stop, known: &Known, log: &Log) {
    let place = device.socket.display();
    // A front-end that goes wrong may connect again at once, and go wrong again.
    let mut quiet = Quiet::default();
    let mut warn = |text: String| match quiet.let_through(Instant::now()) {
        Some(0) => log(Level::Warning, &format!("{place}: {text}")),
        Some(nr) => log(Level::Warning, &format!("{place}: {text} (and {nr} lines before it were left out)")),
        None => (),
    };
    while !stop.is_stopped() {
        let socket = match accept_with(&door.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => socket,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => {
                bell.wait_beside(&[door.socket.as_fd()], None);
                continue;
            }
            Err(error) => {
                warn(format!("no front-end can be let in: {error}"));
                // Descriptors may come back.
                thread::sleep(std::time::Duration::from_millis(100));
                continue;
            }
        };
        log(Level::Info, &format!("{place}: a front-end has connected"));
        known.nr_sessions.fetch_add(1, Ordering::Relaxed);
        known.is_connected.store(true, Ordering::Relaxed);
        let ending = match Session::new(device, socket, bell, stop, &known.counters) {
            Ok(mut session) => session.run(),
            Err(ending) => ending,
        };
        known.is_connected.store(false, Ordering::Relaxed);
        match ending {
            Ending::Gone | Ending::Stopped => log(Level::Info, &format!("{place}: {ending}")),
            ending => warn(ending.to_string()),
        }
    }
}
