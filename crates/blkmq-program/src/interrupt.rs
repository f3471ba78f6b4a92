//! Ctrl-C, or a signal from the program `timeout`, ends a run early. The results so far are still printed.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;
use signal_hook::low_level::pipe;

use crate::failure::Failure;

/// Signals that come this soon after the first are the same request: `timeout` sends one to the program and one to its
/// group.
const AT_ONCE: Duration = Duration::from_secs(1);

/// A flag that Ctrl-C and SIGTERM set: the run takes no more operations and waits for those that are outstanding. A
/// second Ctrl-C, a second later or more, ends the program without waiting. Called once.
pub fn flag() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let is_impatient = Arc::new(AtomicBool::new(false));
    // If no handler can be set, Ctrl-C ends the program as usual.
    let _ = listen(&stop, &is_impatient);
    stop
}

fn listen(stop: &Arc<AtomicBool>, is_impatient: &Arc<AtomicBool>) -> io::Result<()> {
    let received = receive(&[SIGINT, SIGTERM])?;
    for signal in [SIGINT, SIGTERM] {
        // The exit code is the one that shells report for a program that the signal has ended.
        flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(is_impatient))?;
        flag::register(signal, Arc::clone(stop))?;
    }
    let is_impatient = Arc::clone(is_impatient);
    for_each(received, "signals", move || {
        thread::sleep(AT_ONCE);
        is_impatient.store(true, Ordering::Relaxed);
    })
}

/// Calls `notify` for Ctrl-C and SIGTERM: for the first one, and for each that comes a second later or more. Called
/// once.
pub fn tell(notify: impl Fn() + Send + 'static) -> io::Result<()> {
    let mut first: Option<Instant> = None;
    for_each(receive(&[SIGINT, SIGTERM])?, "signals", move || {
        if first.is_none_or(|first| first.elapsed() >= AT_ONCE) {
            notify();
        }
        first.get_or_insert_with(Instant::now);
    })
}

/// A socket that receives a byte for each of these signals.
fn receive(signals: &[i32]) -> io::Result<UnixStream> {
    let (receiver, sender) = UnixStream::pair()?;
    for signal in signals {
        pipe::register(*signal, sender.try_clone()?)?;
    }
    Ok(receiver)
}

/// Calls `notify` in a thread of this name for each signal that is received.
fn for_each(mut received: UnixStream, name: &str, mut notify: impl FnMut() + Send + 'static) -> io::Result<()> {
    let run = move || {
        while received.read_exact(&mut [0]).is_ok() {
            notify();
        }
    };
    thread::Builder::new().name(name.to_owned()).spawn(run).map(drop)
}

/// From now on a write beyond the largest file that the process may have (`ulimit -f`, systemd's `LimitFSIZE`) fails by
/// `EFBIG`, and ends nothing. A program that is started keeps the usual signal.
pub fn outlive_file_size_limit() {
    // The flag is of no use, but handlers are not inherited by other programs, as an ignored signal is. If no handler
    // can be set, such a write ends the program as usual.
    let _ = flag::register(SIGXFSZ, Arc::default());
}

/// SIGHUP, which does not end the program from now on.
#[derive(Debug)]
pub struct Hangups(UnixStream);

impl Hangups {
    /// Keeps each SIGHUP that comes. Called once, and starts no thread.
    pub fn keep() -> io::Result<Self> {
        receive(&[SIGHUP]).map(Self)
    }

    /// Calls `notify` for each SIGHUP, also for those that have come already.
    pub fn tell(self, notify: impl Fn() + Send + 'static) -> io::Result<()> {
        for_each(self.0, "reload", notify)
    }
}

/// How an interrupted run ends, after its results have been printed, if there are any.
pub fn failure(name: &str) -> Failure {
    Failure::Running(format!("{name}: interrupted before its end"))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use signal_hook::low_level::raise;

    use super::*;

    /// Red (the test's process ends) if SIGHUP ends a program that is not ready yet; or red if it is forgotten then.
    #[test]
    fn a_hangup_that_comes_early_is_told_later() {
        let hangups = Hangups::keep().expect("there are descriptors");
        raise(SIGHUP).expect("a process may signal itself");
        let (tell, told) = mpsc::channel();
        hangups.tell(move || _ = tell.send(())).expect("there is a thread");
        assert_eq!(told.recv(), Ok(()));
        raise(SIGHUP).expect("a process may signal itself");
        assert_eq!(told.recv(), Ok(()));
    }
}
