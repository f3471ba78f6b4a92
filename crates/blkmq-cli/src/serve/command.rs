//! The command that a server is started for.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Command, ExitStatus};
use std::thread;

use blkmq_export::handed;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::notify;
use blkmq_program::{Failure, exit_code};

/// A command that is running.
#[derive(Debug)]
pub(super) struct Running {
    /// It names this process, and no later process with the same number.
    process: OwnedFd,
}

impl Running {
    /// Runs `text` by the shell, with the variables that it needs to find the server. `ended` is told how the command
    /// ends.
    pub(super) fn start(
        text: &str,
        uri: &str,
        socket: &str,
        ended: impl FnOnce(io::Result<ExitStatus>) + Send + 'static,
    ) -> io::Result<Self> {
        let mut shell = Command::new("sh");
        shell.args(["-c", text]).envs([("uri", uri), ("unixsocket", socket)]);
        for name in handed::VARIABLES.into_iter().chain([notify::VARIABLE]) {
            shell.env_remove(name);
        }
        let mut child = shell.spawn()?;
        let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).inspect_err(|_| {
            // The command must not run without the server that it was started for.
            let _ = child.kill();
        })?;
        thread::Builder::new().name("command".to_owned()).spawn(move || ended(child.wait()))?;
        Ok(Self { process })
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
        // A command that has just ended needs no signal.
        let _ = pidfd_send_signal(&self.process, signal);
    }
}

/// What the end of a command means for the server that was started for it.
pub(super) fn outcome(status: io::Result<ExitStatus>) -> Result<(), Failure> {
    match status.map(exit_code) {
        Ok(0) => Ok(()),
        Ok(code) => Err(Failure::Command(code)),
        Err(error) => Err(Failure::Running(format!("--run: {error}"))),
    }
}
