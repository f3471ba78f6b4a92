//! `blkmq ublk add`: a server in the background.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use blkmq_export::SocketFile;
use blkmq_program::{Failure, exit_code};
use blkmq_ublk::Control;
use blkmq_ublk::control::{block_path, ids};
use clap::Args;

use crate::control::folder;
use crate::operator;

/// How long the last words of a server that has ended are waited for.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);
/// How often it is looked whether the server has ended before it serves.
const LOOK: Duration = Duration::from_millis(100);

#[derive(Debug, Args)]
pub(super) struct Add {
    /// The server's messages are added to this file. Without it they are shown until the block devices are there, and
    /// lost from then on.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// What 'blkmq serve' is to be given. Without --ublk among it, there is one block device as by '--ublk' alone.
    #[arg(value_name = "OPTIONS OF SERVE", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    serve: Vec<OsString>,
}

fn failed(what: &str, error: &io::Error) -> Failure {
    Failure::Running(format!("ublk add: {what}: {error}"))
}

/// The arguments of the server.
fn arguments(given: &[OsString]) -> Vec<&OsStr> {
    let is_ublk = |word: &OsString| word == "--ublk" || word.as_bytes().starts_with(b"--ublk=");
    let own = if given.iter().any(is_ublk) { None } else { Some(OsStr::new("--ublk")) };
    [OsStr::new("serve")].into_iter().chain(given.iter().map(OsString::as_os_str)).chain(own).collect()
}

/// Where the server says that it serves. In a folder of this user's, since other users may send to an abstract socket.
fn ready_socket() -> Result<(UnixDatagram, SocketFile), Failure> {
    let path = folder::make()?.join(format!("{}.ready", std::process::id()));
    // One that is left of a process with this number.
    let _ = fs::remove_file(&path);
    let bind = || {
        let ready = UnixDatagram::bind(&path)?;
        let file = SocketFile::at(path.clone())?;
        ready.set_read_timeout(Some(LOOK))?;
        Ok((ready, file))
    };
    bind().map_err(|error| failed(&path.display().to_string(), &error))
}

/// Prints the server's messages for as long as this process lives. The receiver is notified of their end.
fn show(mut from: impl Read + Send + 'static) -> io::Result<Receiver<()>> {
    let (tell, over) = mpsc::channel();
    let shown = move || {
        let _ = io::copy(&mut from, &mut io::stderr());
        let _ = tell.send(());
    };
    thread::Builder::new().name("messages".to_owned()).spawn(shown)?;
    Ok(over)
}

/// Waits until the server serves.
fn wait(server: &mut Child, ready: &UnixDatagram) -> Result<(), Failure> {
    let mut message = [0; 64];
    loop {
        match ready.recv(&mut message) {
            Ok(len) if message[..len].starts_with(b"READY=1") => return Ok(()),
            Ok(_) => (),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => (),
            Err(error) => return Err(failed("the server cannot be heard", &error)),
        }
        if let Some(status) = server.try_wait().map_err(|error| failed("the server", &error))? {
            return Err(Failure::Command(exit_code(status).max(1)));
        }
    }
}

impl Add {
    /// Starts the server, and writes the paths of its block devices when they are there.
    pub(super) fn run(&self, control: &Control, out: &mut dyn Write) -> Result<(), Failure> {
        let (ready, file) = ready_socket()?;
        let program = env::current_exe().map_err(|error| failed("this program", &error))?;
        let messages = match &self.log {
            Some(path) => {
                let file = OpenOptions::new().append(true).create(true).open(path);
                file.map_err(|error| failed(&path.display().to_string(), &error))?.into()
            }
            None => Stdio::piped(),
        };
        // In a process group of its own: what interrupts this command does not interrupt the server.
        let server = Command::new(program)
            .args(arguments(&self.serve))
            .env("NOTIFY_SOCKET", file.path())
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(messages)
            .spawn();
        let mut server = server.map_err(|error| failed("the server", &error))?;
        let shown = server.stderr.take().map(show).transpose().map_err(|error| failed("a thread", &error))?;
        wait(&mut server, &ready).inspect_err(|_| {
            // A command that the server has started may go on, and have the other end of the pipe.
            let _ = shown.map(|shown| shown.recv_timeout(SHUTDOWN_TIMEOUT));
            let place = self.log.as_ref().map(|path| format!("; see {}", path.display())).unwrap_or_default();
            operator::say(&format!("ublk add: the server has ended before it served{place}"));
        })?;
        let mut text = String::new();
        for id in ids().map_err(|error| failed("/dev", &error))? {
            if control.info(id).is_ok_and(|info| u32::try_from(info.server_pid) == Ok(server.id())) {
                text += &format!("{}\n", block_path(id));
            }
        }
        if text.is_empty() {
            return Err(Failure::Running("ublk add: the server serves, and has no block device any more".to_owned()));
        }
        out.write_all(text.as_bytes()).map_err(|error| failed("standard output", &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_has_a_block_device_whether_it_was_asked_for_or_not() {
        let given = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let with = |words: &[&str]| {
            arguments(&given(words)).iter().map(|word| word.to_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(with(&["--device", "ram"]), ["serve", "--device", "ram", "--ublk"]);
        assert_eq!(with(&["--ublk", "id=1", "--device", "ram"]), ["serve", "--ublk", "id=1", "--device", "ram"]);
        assert_eq!(with(&["--ublk=id=1"]), ["serve", "--ublk=id=1"]);
    }

    /// Red if a server that ends before it serves is waited for, or if its exit code is lost.
    #[test]
    fn a_server_that_ends_first_is_told_by_its_code() {
        let (ready, _other) = UnixDatagram::pair().unwrap();
        ready.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let mut server = Command::new("sh").args(["-c", "exit 2"]).spawn().unwrap();
        assert!(matches!(wait(&mut server, &ready), Err(Failure::Command(2))));
        let mut server = Command::new("sh").args(["-c", "exit 0"]).spawn().unwrap();
        assert!(matches!(wait(&mut server, &ready), Err(Failure::Command(1))), "it serves nothing");
    }

    /// Red if what else a server tells its manager is taken for its being ready.
    #[test]
    fn a_server_that_serves_says_so() {
        let (ready, other) = UnixDatagram::pair().unwrap();
        let mut server = Command::new("sleep").arg("600").spawn().unwrap();
        other.send(b"STATUS=1\n").unwrap();
        other.send(b"READY=1\n").unwrap();
        assert!(wait(&mut server, &ready).is_ok());
        ready.set_nonblocking(true).unwrap();
        assert!(ready.recv(&mut [0; 8]).is_err(), "both messages were read");
        server.kill().unwrap();
        server.wait().unwrap();
    }
}
