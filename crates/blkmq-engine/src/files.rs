//! Files of a server: those of its sockets, and those that it reads more than once.

use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Mode, OFlags, fchmod};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};

/// The file of a Unix socket that a server has made. Dropping it removes the file, unless another file has taken its
/// place. While the socket is open, no other file gets its inode.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
    /// Whether another server listens at the file too, and continues to use it.
    stays: AtomicBool,
}

impl SocketFile {
    /// Listens at a new Unix socket, which does not block. Its file has these permissions before anybody can connect. A
    /// socket that a server has left behind is replaced, and nothing else is. Of several servers that start at one path
    /// at once, one listens there, and the others get an error. `backlog`: the most connections that may wait to be
    /// accepted.
    ///
    /// # Errors
    /// Something else is at the path, or the system refuses.
    pub fn listen(path: PathBuf, mode: u32, backlog: i32) -> io::Result<(UnixListener, Self)> {
        let name = SocketAddrUnix::new(&path)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // Until this socket listens, another server would take its file for one that was left behind.
        let _alone = lock_folder_of(&path)?;
        // The file gets these permissions without those that the process' mask takes away.
        fchmod(&socket, Mode::from_raw_mode(mode))?;
        if let Err(error) = bind(&socket, &name) {
            if error != Errno::ADDRINUSE {
                return Err(error.into());
            }
            remove_stale(&path)?;
            bind(&socket, &name)?;
        }
        let file = Self::at(path)?;
        // This comes before any client can connect: a socket that does not listen yet refuses connections.
        if fs::symlink_metadata(file.path())?.permissions().mode() & 0o7777 != mode {
            set_socket_mode(file.path(), Some(mode))?;
        }
        listen(&socket, backlog)?;
        Ok((UnixListener::from(socket), file))
    }

    /// The file that is at this path now.
    ///
    /// # Errors
    /// There is none, or its folder cannot be read.
    pub fn at(path: PathBuf) -> io::Result<Self> {
        let identity = Self::identity_of(&path)?;
        Ok(Self { path, identity, stays: AtomicBool::new(false) })
    }

    fn identity_of(path: &Path) -> io::Result<(u64, u64)> {
        let metadata = fs::symlink_metadata(path)?;
        Ok((metadata.dev(), metadata.ino()))
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// From now on the file is not removed.
    pub fn keep(&self) {
        // Relaxed: the last owner drops the value, and the thread that sets this flag is an owner before.
        self.stays.store(true, Ordering::Relaxed);
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Relaxed: as in `keep`.
        let stays = self.stays.load(Ordering::Relaxed);
        if !stays && Self::identity_of(&self.path).is_ok_and(|identity| identity == self.identity) {
            // Another process may have removed the file already.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Locks the folder of a path among the servers that make sockets there, until the value is dropped. `None` if this
/// process may not read the folder.
fn lock_folder_of(path: &Path) -> io::Result<Option<File>> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match File::open(folder) {
        Ok(folder) => {
            folder.lock()?;
            Ok(Some(folder))
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes the file of a socket that a server has left behind.
fn remove_stale(path: &Path) -> io::Result<()> {
    let in_the_way = |text: &str| Err(io::Error::new(io::ErrorKind::AddrInUse, text));
    let found = match fs::symlink_metadata(path) {
        // Its server has just ended.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    if !found.file_type().is_socket() {
        return in_the_way("the file is there and is no socket; remove it, or choose another path");
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => in_the_way(&format!("a socket is there, and whether it is in use cannot be told: {error}")),
        Ok(_) => in_the_way("another server listens there; choose another path"),
    }
}

/// Sets the permissions of a socket's file, and of nothing that a link at its path leads to. `mode`: `None` for those
/// that it has, which shows whether this process may set others. Returns what was found.
///
/// # Errors
/// The file is no socket, or the permissions cannot be set.
pub fn set_socket_mode(path: &Path, mode: Option<u32>) -> io::Result<Metadata> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    let found = file.metadata()?;
    if !found.file_type().is_socket() {
        return Err(io::Error::other("the file at its path is no socket"));
    }
    let permissions = mode.map_or_else(|| found.permissions(), Permissions::from_mode);
    // A descriptor of this kind cannot be passed to `fchmod`.
    fs::set_permissions(format!("/proc/self/fd/{}", file.as_raw_fd()), permissions)?;
    Ok(found)
}

/// Opens a file for reading without waiting. A pipe is refused with this text: to open one may block until another
/// program writes to it, and it gives its bytes only once.
///
/// # Errors
/// The file cannot be opened, or is not a regular one.
pub fn open_regular(path: &Path, refusal: &str) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other(refusal)) }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    /// Red in one of some ten rounds without the lock of the folder: a server took the file of one that did not listen
    /// yet for one that was left behind, removed it, and both had started.
    #[test]
    #[cfg_attr(miri, ignore = "there are no sockets")]
    fn of_servers_that_start_at_once_one_listens() {
        let folder = tempfile::tempdir().expect("there is room for a folder");
        let path = folder.path().join("socket");
        for _ in 0..200 {
            drop(UnixListener::bind(&path).expect("the path is free"));
            let start = Barrier::new(4);
            let listening: Vec<_> = thread::scope(|scope| {
                let servers = [(); 4].map(|()| {
                    scope.spawn(|| {
                        start.wait();
                        SocketFile::listen(path.clone(), 0o600, 16).ok()
                    })
                });
                servers.into_iter().filter_map(|server| server.join().expect("no server panics")).collect()
            });
            assert_eq!(listening.len(), 1, "the others find that one listens there");
            let mode = fs::symlink_metadata(&path).expect("its file is there").permissions().mode();
            assert_eq!(mode & 0o7777, 0o600);
            UnixStream::connect(&path).expect("it is at the path");
        }
    }
}
