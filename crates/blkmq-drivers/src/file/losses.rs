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
    /// The file, opened once more, by which the kernel is asked for what it has noted, and nothing else is done: the
    /// thread that asks has the lock.
    witness: Mutex<OwnedFd>,
    /// How it is asked; `None` where it answers nothing.
    question: Option<Question>,
    /// Data that is written lies in the page cache first.
    is_buffered: bool,
}

/// How the kernel is asked for what it has noted of a file since that was opened or this was last asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Question {
    /// By waiting for pages that are not there.
    Range,
    /// By a sync. What it looks at is not the file itself where file systems are stacked.
    Sync,
}

impl Question {
    /// The error that was noted.
    fn ask(self, witness: &OwnedFd) -> Result<(), i32> {
        // Behind every page, so that nothing is waited for: there is no file as long.
        const NOWHERE: i64 = 1 << 62;
        let file = witness.as_raw_fd();
        loop {
            let result = match self {
                // SAFETY: the call reads no memory.
                Self::Range => unsafe { libc::sync_file_range(file, NOWHERE, 1, libc::SYNC_FILE_RANGE_WAIT_BEFORE) },
                // SAFETY: as above.
                Self::Sync => unsafe { libc::fdatasync(file) },
            };
            if result == 0 {
                return Ok(());
            }
            match io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) {
                libc::EINTR => (),
                errno => return Err(errno),
            }
        }
    }

    /// What has failed if the answer is an error.
    const fn subject(self) -> &'static str {
        match self {
            Self::Range => "writing data back from the page cache",
            Self::Sync => "a sync",
        }
    }
}

impl Losses {
    /// `witness` is a file that was opened for this alone. `is_stacked`: the file system keeps no notes of its own, for
    /// it passes everything on to a file of another one.
    pub(super) fn new(witness: OwnedFd, is_stacked: bool, is_buffered: bool) -> Self {
        let mut losses = Self { first: OnceLock::new(), witness: Mutex::new(witness), question: None, is_buffered };
        let questions = if is_stacked { &[Question::Sync][..] } else { &[Question::Range, Question::Sync] };
        losses.question = questions.iter().copied().find(|question| losses.answers(*question));
        losses
    }

    /// Whether the system lets the question be asked. It is asked here once, so that later every error is a loss.
    fn answers(&self, question: Question) -> bool {
        match question.ask(&lock(&self.witness)) {
            Ok(()) => true,
            Err(libc::ENOSYS | libc::EPERM | libc::EINVAL | libc::ESPIPE) => false,
            // Of an earlier time, and nobody was told of it.
            Err(errno) => {
                self.note(question.subject(), errno);
                true
            }
        }
    }

    /// The first loss, if there was any, in one sentence.
    pub(super) fn first(&self) -> Option<&str> {
        self.first.get().map(String::as_str)
    }

    /// What the client of a request is told that the kernel has answered: `result` is the answer, and `status` what it
    /// means by itself.
    ///
    /// COST: of a success an atomic read, a lock, and a system call that waits for nothing; where the kernel is asked
    /// by a sync, a sync.
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
        self.is_buffered && (self.question.is_none() || verdict(errno) != Verdict::Failed(Status::NoSpace))
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
    ///
    /// A disk that could not empty its own cache is no such loss: the kernel notes nothing, and tells the sync alone
    /// that asked the disk. A sync of another hardware queue that was under way meanwhile, or of the same one, may be
    /// believed if its answer is found before that one's, though the disk may have dropped what it should have made
    /// durable. From when that answer is found nothing is believed.
    ///
    /// Where the kernel answers no question either, a loss is seen by the answers of syncs and durable writes alone; of
    /// two at the same time the second may be believed.
    fn is_kept(&self) -> bool {
        let Some(question) = self.question else { return true };
        let witness = lock(&self.witness);
        if self.first().is_some() {
            return false;
        }
        let answer = question.ask(&witness);
        if let Err(errno) = answer {
            self.note(question.subject(), errno);
        }
        answer.is_ok()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn losses(is_buffered: bool) -> Losses {
        let file = std::fs::File::open("Cargo.toml").expect("tests run where it is");
        Losses::new(file.into(), false, is_buffered)
    }

    /// Red if an answer that says that the kernel cannot be asked counts as no loss once it could be: the note would be
    /// used up, and a later sync believed.
    #[test]
    #[cfg_attr(miri, ignore = "only files can be synced there")]
    fn once_the_kernel_could_be_asked_every_error_is_a_loss() {
        for question in [Question::Range, Question::Sync] {
            let losses = losses(true);
            assert_eq!(losses.question, Some(Question::Range));
            // Neither question can be asked of a pipe.
            let (pipe, _) = io::pipe().expect("there are descriptors");
            let losses = Losses { witness: Mutex::new(pipe.into()), question: Some(question), ..losses };
            assert_eq!(losses.judge(Promise::Sync, Status::Ok, 0), Status::IoError, "{question:?}");
            let text = losses.first().expect("it is kept");
            assert!(text.starts_with(&format!("{} failed at 2", question.subject())), "{text}");
        }
    }

    /// Red if a file that cannot be asked fails every sync, or one that can be asked by a sync alone is not asked.
    #[test]
    #[cfg_attr(miri, ignore = "only files can be synced there")]
    fn the_kernel_is_asked_by_what_it_answers() {
        let (pipe, _) = io::pipe().expect("there are descriptors");
        let losses = Losses::new(pipe.into(), false, true);
        assert_eq!((losses.question, losses.judge(Promise::Sync, Status::Ok, 0)), (None, Status::Ok));
        let file = std::fs::File::open("Cargo.toml").expect("tests run where it is");
        assert_eq!(Losses::new(file.into(), true, true).question, Some(Question::Sync));
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
        for (is_buffered, is_asked, errno, is_loss) in [
            (true, true, libc::EIO, true),
            (true, true, libc::ENOSPC, false),
            (true, false, libc::ENOSPC, true),
            (false, true, libc::EIO, false),
            (false, true, libc::ENOSPC, false),
            (false, false, libc::EIO, false),
        ] {
            let mut losses = losses(is_buffered);
            losses.question = losses.question.filter(|_| is_asked);
            let case = format!("{is_buffered} {is_asked} {errno}");
            assert_eq!(losses.judge(Promise::Write, Status::IoError, -errno), Status::IoError, "{case}");
            assert_eq!(losses.first().is_some(), is_loss, "{case}");
            let later = if is_loss { Status::IoError } else { Status::Ok };
            assert_eq!(losses.judge(Promise::Sync, Status::Ok, 0), later, "{case}");
        }
    }
}
