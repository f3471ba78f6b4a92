//! What the operator of a server is told while it runs. The server and its control socket call in.
//!
//! Standard error may be a pipe that no program reads, and then a thread that writes there waits forever. So once a
//! server serves, a thread that does nothing else says its lines, and neither requests nor the end wait for it. (A
//! thread that panics says so itself, since the process may end then.)

use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use blkmq_program::{Failure, notice};

/// The most lines that may wait. Further ones are lost, and counted.
const WAITING: usize = 1024;
/// How long the last lines may take.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(500);

enum Word {
    Line(String),
    /// Text of several lines, as it is.
    Page(String),
    /// Everything is said; the other end is notified.
    End(SyncSender<()>),
}

static VOICE: OnceLock<SyncSender<Word>> = OnceLock::new();
/// Lines and pages for which there was no room, and which no line has reported yet.
static LOST: AtomicU64 = AtomicU64::new(0);

fn leave(voice: &SyncSender<Word>, word: Word) {
    if voice.try_send(word).is_err() {
        LOST.fetch_add(1, Ordering::Relaxed);
    }
}

/// Lines are said by a thread of their own from now on.
///
/// # Errors
/// The system gives no thread.
pub(crate) fn begin() -> io::Result<()> {
    let (words, waiting) = sync_channel(WAITING);
    let tell = move || {
        for word in waiting {
            match word {
                Word::Line(text) => notice(&text),
                Word::Page(text) => write(&text),
                Word::End(acknowledge) => _ = acknowledge.send(()),
            }
            let lost = LOST.swap(0, Ordering::Relaxed);
            if lost > 0 {
                notice(&format!("messages were lost, for which standard error had no room: {lost}"));
            }
        }
    };
    thread::Builder::new().name("messages".to_owned()).spawn(tell)?;
    // A process has one server.
    let _ = VOICE.set(words);
    Ok(())
}

fn write(text: &str) {
    // If it cannot be written, no operator can be told, and clients are served all the same.
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Says something on standard error.
pub(crate) fn say(text: &str) {
    match VOICE.get() {
        Some(voice) => leave(voice, Word::Line(text.to_owned())),
        None => notice(text),
    }
}

/// Shows a text of several lines on standard error, behind what was said before.
pub(crate) fn show(text: String) {
    match VOICE.get() {
        Some(voice) => leave(voice, Word::Page(text)),
        None => write(&text),
    }
}

/// Says how it ended, and waits until all is said, but not for long.
pub(crate) fn end(outcome: Result<(), Failure>) -> Result<(), Failure> {
    let Some(voice) = VOICE.get() else { return outcome };
    let outcome = outcome.map_err(|failure| match &failure {
        Failure::Input(text) | Failure::Running(text) => {
            say(text);
            Failure::Command(failure.code())
        }
        _ => failure,
    });
    let (acknowledge, acknowledged) = sync_channel(1);
    // If so much waits that there is no room, no program reads it.
    if voice.try_send(Word::End(acknowledge)).is_ok() {
        let _ = acknowledged.recv_timeout(SHUTDOWN_TIMEOUT);
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if a gap in what the server says is not told.
    #[test]
    fn what_finds_no_room_is_counted() {
        let (voice, _waiting) = sync_channel(1);
        leave(&voice, Word::Line("one".to_owned()));
        assert_eq!(LOST.swap(0, Ordering::Relaxed), 0);
        leave(&voice, Word::Page("two".to_owned()));
        assert_eq!(LOST.swap(0, Ordering::Relaxed), 1);
    }
}
