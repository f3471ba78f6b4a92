//! The command that a server is started for.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};

use crate::failure::Failure;

/// A command that runs.
#[derive(Debug)]
pub(super) struct Running {
    pid: Option<Pid>,
}

impl Running {
    /// Runs `text` by the shell, with what it needs to find the server; `ended` is told how it ends.
    pub(super) fn start(
        text: &str,
        uri: &str,
        socket: &str,
        ended: impl FnOnce(io::Result<ExitStatus>) + Send + 'static,
    ) -> io::Result<Self> {
        let mut child = Command::new("sh").args(["-c", text]).envs([("uri", uri), ("unixsocket", socket)]).spawn()?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        thread::Builder::new().name("command".to_owned()).spawn(move || ended(child.wait()))?;
        Ok(Self { pid })
    }

    /// Asks the command to end.
    pub(super) fn ask_to_end(&self) {
        self.send(Signal::TERM);
    }

    /// Ends the command.
    pub(super) fn kill(&self) {
        self.send(Signal::KILL);
    }

    fn send(&self, signal: Signal) {
        if let Some(pid) = self.pid {
            // One that has just ended needs no signal.
            let _ = kill_process(pid, signal);
        }
    }
}

/// What the end of a command is for the server that was started for it.
pub(super) fn outcome(status: io::Result<ExitStatus>) -> Result<(), Failure> {
    match status.map(code) {
        Ok(0) => Ok(()),
        Ok(code) => Err(Failure::Command(code)),
        Err(error) => Err(Failure::Running(format!("--run: {error}"))),
    }
}

/// The exit code of a command, as shells tell it.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(code).unwrap_or(1)
}
