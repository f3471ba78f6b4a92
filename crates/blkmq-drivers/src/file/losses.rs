//! What was acknowledged and may be lost: asked before any sync is believed.
//!
//! Linux tells of data that it could not write back once for each time that the file was opened: to the first sync that
//! looks. The data counts as written from then on, so the next sync succeeds. All rings, and so all clients, sync by
//! one opened file. Therefore the first loss is kept here: every later sync, and every later write that is to be
//! durable, fails, until the file is opened anew.
//!
//! That is so for direct I/O too. The edges of zeroes, and writes that the file system cannot do directly, go through
//! the page cache; and a disk that failed to empty its own cache need not have the data any more when it is asked
//! again.
#![expect(unsafe_code, reason = "the kernel is asked for what it has noted, by a system call that no crate has")]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, OnceLock};

use blkmq::Status;

use super::length::Shorter;
use super::status::{Verdict, verdict};
use crate::lock;

/// What an answer of the kernel is to make durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Promise {
    /// Everything that was written before.
    Sync,
    /// The write itself.
    Write,
}

/// What one opened file has lost.
#[derive(Debug)]
pub(super) struct Losses {
    /// The first loss, in one sentence. It stays.
    first: OnceLock<String>,
    /// The file, opened once more, by which the kernel is asked for what it has noted, and nothing else is done:
    /// whoever asks has the lock. `None` where the file system keeps its notes elsewhere.
    witness: Option<Mutex<OwnedFd>>,
    /// Data that is written lies in the page cache first.
    is_buffered: bool,
}

impl Losses {
    pub(super) fn new(witness: Option<OwnedFd>, is_buffered: bool) -> Self {
        Self { first: OnceLock::new(), witness: witness.map(Mutex::new), is_buffered }
    }

    /// The first loss, if there was any, in one sentence.
    pub(super) fn first(&self) -> Option<&str> {
        self.first.get().map(String::as_str)
    }

    /// What the client is told whom the kernel has answered: `result` is the answer, and `status` what it means by
    /// itself.
    ///
    /// COST: of a success an atomic read, a lock, and a system call that waits for nothing.
    pub(super) fn judge(&self, promise: Promise, status: Status, result: i32) -> Status {
        if self.first().is_some() {
            return Status::IoError;
        }
        match (status, promise) {
            (Status::Ok, _) => return if self.is_kept() { Status::Ok } else { Status::IoError },
            // Which data it was the kernel does not say, nor will it say so again.
            (_, Promise::Sync) => self.note("a sync", -result),
            // The error may be that of the sync within, and then it is that of earlier writes too.
            (_, Promise::Write) if self.is_in_doubt(-result) => self.note("a write that was to be durable", -result),
            // The write itself has failed, as far as one can tell. The kernel has its notes of what else has.
            (_, Promise::Write) => _ = self.is_kept(),
        }
        status
    }

    /// Whether a durable write's error alone says that data of others may be lost. A lack of room does so only where
    /// the kernel cannot be asked: most often there was no room for the write itself, and nothing was changed.
    fn is_in_doubt(&self, errno: i32) -> bool {
        self.is_buffered && (self.witness.is_none() || verdict(errno) != Verdict::Failed(Status::NoSpace))
    }

    /// Whether nothing is lost of what was written before. A sync that has succeeded does not say so by itself: of two
    /// at the same time the kernel tells one alone of the loss, and the answer to that one may be found after the
    /// answer to the other.
    ///
    /// Data that could not be written back was noted by the kernel before the sync returned that waited for it, and
    /// this is called after that. By the witness the note is seen once, by the first thread that asks after it was
    /// made; that thread sets `first` before it lets go of the lock. So either this thread sees the note, or it has the
    /// lock after that thread, and sees `first`. Writes that come while another ring's sync fails are no exception: if
    /// they are lost a note is made before their own sync returns, and if they are not, their sync fails all the same
    /// once `first` is set, which is allowed.
    fn is_kept(&self) -> bool {
        let Some(witness) = &self.witness else { return true };
        let witness = lock(witness);
        if self.first().is_some() {
            return false;
        }
        let noted = ask(&witness);
        if let Some(errno) = noted {
            self.note("writing data back from the page cache", errno);
        }
        noted.is_none()
    }

    fn note(&self, what: &str, errno: i32) {
        let error = io::Error::from_raw_os_error(errno);
        self.keep(&format!("{what} failed"), &format!("{error}: data that was acknowledged may be lost"));
    }

    /// Somebody has cut the file short.
    pub(super) fn is_shorter(&self, Shorter { found, told }: Shorter) {
        self.keep(
            "the file became shorter",
            &format!("it has {found} bytes, not {told}: what lay behind them is lost"),
        );
    }

    fn keep(&self, what: &str, why: &str) {
        self.first.get_or_init(|| {
            let now = jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M:%SZ");
            format!("{what} at {now}: {why}; open the file anew")
        });
    }
}

/// The error that the kernel has noted since the file was opened or this was last asked.
fn ask(witness: &OwnedFd) -> Option<i32> {
    // Behind every page, so that nothing is waited for: there is no file as long.
    const NOWHERE: i64 = 1 << 62;
    // SAFETY: the call reads no memory.
    let result = unsafe { libc::sync_file_range(witness.as_raw_fd(), NOWHERE, 1, libc::SYNC_FILE_RANGE_WAIT_BEFORE) };
    let errno = (result < 0).then(|| io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO));
    // A system that does not let us ask has not said that anything was lost.
    errno.filter(|errno| ![libc::ENOSYS, libc::EPERM, libc::EINVAL, libc::ESPIPE].contains(errno))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn losses(is_buffered: bool) -> Losses {
        let file = std::fs::File::open("Cargo.toml").expect("tests run where it is");
        Losses::new(Some(file.into()), is_buffered)
    }

    /// Red if a sync that has failed is forgotten, or another promise is believed after it.
    #[test]
    fn nothing_is_believed_after_a_sync_that_failed() {
        for is_buffered in [false, true] {
            for errno in [libc::EIO, libc::ENOSPC, libc::EDQUOT, libc::EINVAL] {
                let losses = losses(is_buffered);
                for promise in [Promise::Sync, Promise::Write] {
                    assert_eq!(losses.judge(promise, Status::Ok, 0), Status::Ok);
                }
                assert_eq!(losses.first(), None);
                assert_eq!(
                    losses.judge(Promise::Sync, Status::NoSpace, -errno),
                    Status::NoSpace,
                    "it is told as it is"
                );
                for promise in [Promise::Sync, Promise::Write, Promise::Sync] {
                    assert_eq!(losses.judge(promise, Status::Ok, 0), Status::IoError);
                }
                let text = losses.first().expect("it is kept").to_owned();
                assert!(text.starts_with("a sync failed at 2") && text.ends_with("; open the file anew"), "{text}");
                losses.judge(Promise::Sync, Status::IoError, -libc::EROFS);
                assert_eq!(losses.first(), Some(&*text), "the first one counts");
            }
        }
    }

    /// Red if a full disk, or a bad sector under a direct write, is taken for a loss of what others have written; or a
    /// durable write's error for its own alone, where earlier data may lie in the page cache.
    #[test]
    fn a_durable_write_that_failed_may_be_a_loss_for_others() {
        for (is_buffered, has_witness, errno, is_loss) in [
            (true, true, libc::EIO, true),
            (true, true, libc::ENOSPC, false),
            (true, false, libc::ENOSPC, true),
            (false, true, libc::EIO, false),
            (false, true, libc::ENOSPC, false),
            (false, false, libc::EIO, false),
        ] {
            let mut losses = losses(is_buffered);
            losses.witness = losses.witness.filter(|_| has_witness);
            let case = format!("{is_buffered} {has_witness} {errno}");
            assert_eq!(losses.judge(Promise::Write, Status::IoError, -errno), Status::IoError, "{case}");
            assert_eq!(losses.first().is_some(), is_loss, "{case}");
            let later = if is_loss { Status::IoError } else { Status::Ok };
            assert_eq!(losses.judge(Promise::Sync, Status::Ok, 0), later, "{case}");
        }
    }
}
