//! The folder where servers put their sockets by default, and where commands look for them.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use blkmq_export::SocketFile;
use rustix::process::{Pid, geteuid, test_kill_process};

use blkmq_program::Failure;

/// What a control socket's name ends in.
const CONTROL: &str = "control";
/// What the socket for NBD's name ends in.
const NBD: &str = "nbd";

/// The path of the folder, whether it exists or not.
pub(crate) fn path() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute()) {
        Some(folder) => folder.join("blkmq"),
        None => format!("/tmp/blkmq-{}", geteuid().as_raw()).into(),
    }
}

/// Refuses a folder that another user owns or can write to: that user could replace our socket.
fn check(path: &Path) -> Result<(), Failure> {
    let wrong = |what: &str| Err(Failure::Running(format!("{}: {what}", path.display())));
    let found = fs::symlink_metadata(path).map_err(|error| Failure::writing(path.display(), &error))?;
    if !found.is_dir() {
        return wrong("not a folder, and the sockets of servers go into one of that name; remove it");
    }
    if found.uid() != geteuid().as_raw() {
        return wrong("the folder belongs to another user; set XDG_RUNTIME_DIR, or use --nbd and --control");
    }
    if found.mode() & 0o077 != 0 {
        return wrong("others may use this folder; make it yours alone by 'chmod 700'");
    }
    Ok(())
}

/// Makes the folder if it does not exist, and removes the sockets of servers that were killed.
pub(crate) fn make() -> Result<PathBuf, Failure> {
    let path = path();
    match DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(Failure::writing(path.display(), &error)),
        _ => check(&path),
    }?;
    for (_, socket) in sockets(&path)?.into_iter().filter(|(pid, socket)| is_dead(*pid) && is_stale(socket)) {
        // Another server may have removed it at the same time.
        let _ = fs::remove_file(socket);
    }
    Ok(path)
}

/// The sockets that this process puts into the folder: for NBD, and for control.
pub(crate) fn own(folder: &Path) -> [PathBuf; 2] {
    [NBD, CONTROL].map(|kind| folder.join(format!("{}.{kind}", std::process::id())))
}

/// The control sockets of the servers that run, in the order of their names.
pub(crate) fn servers() -> Result<Vec<PathBuf>, Failure> {
    let path = path();
    if fs::symlink_metadata(&path).is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        return Ok(Vec::new());
    }
    check(&path)?;
    let controls = sockets(&path)?.into_iter().map(|(_, socket)| socket);
    Ok(controls.filter(|path| path.extension() == Some(OsStr::new(CONTROL)) && !is_stale(path)).collect())
}

/// Everything in the folder that is named after a process, and its number, in the order of the names.
fn sockets(folder: &Path) -> Result<Vec<(i32, PathBuf)>, Failure> {
    let entries = fs::read_dir(folder).map_err(|error| Failure::writing(folder.display(), &error))?;
    let number = |path: &Path| path.file_stem().and_then(OsStr::to_str).and_then(|name| name.parse().ok());
    let mut sockets: Vec<_> =
        entries.flatten().map(|entry| entry.path()).filter_map(|path| Some((number(&path)?, path))).collect();
    sockets.sort();
    Ok(sockets)
}

/// Whether no process has that number.
fn is_dead(pid: i32) -> bool {
    Pid::from_raw(pid).is_some_and(|pid| test_kill_process(pid) == Err(rustix::io::Errno::SRCH))
}

/// Whether this is a socket on which no process listens any more.
fn is_stale(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
        && UnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

/// Listens at a path, for this user only. A socket that a process left there is replaced, and nothing else is.
pub(crate) fn listen(path: &Path) -> Result<(UnixListener, SocketFile), Failure> {
    SocketFile::listen(path.to_owned(), 0o600, 128).map_err(|error| Failure::writing(path.display(), &error))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_socket_is_ones_own_and_goes_again() {
        let path = std::env::temp_dir().join(format!("blkmq-test-{}.control", std::process::id()));
        let (listener, socket) = listen(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(matches!(listen(&path), Err(Failure::Running(text)) if text.contains("another server listens there")));
        drop((listener, socket));
        assert!(!path.exists());

        drop(UnixListener::bind(&path).unwrap());
        assert!(is_stale(&path));
        let (_listener, socket) = listen(&path).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "a file").unwrap();
        drop(socket);
        assert!(path.exists(), "what another one put there stays");
        assert!(matches!(listen(&path), Err(Failure::Running(text)) if text.contains("is no socket; remove it")));
        fs::remove_file(&path).unwrap();
    }
}
