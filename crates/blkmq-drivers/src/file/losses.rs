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

/// What has failed if the kernel has noted an error.
const WRITE_BACK: &str = "writing data back from the page cache";

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
    /// The kernel answers.
    can_be_asked: bool,
    /// Where it does not: the syncs that are under way, by all rings.
    syncs: Mutex<Syncs>,
    /// Data that is written lies in the page cache first.
    is_buffered: bool,
}

/// Asks the kernel for what it has noted of a file since that was opened or this was last asked, by waiting for pages
/// that are not there.
///
/// # Errors
/// The error that was noted.
fn ask(witness: &OwnedFd) -> Result<(), i32> {
    // Behind every page, so that nothing is waited for: there is no file as long.
    const NOWHERE: i64 = 1 << 62;
    loop {
        // SAFETY: the call reads no memory.
        let result =
            unsafe { libc::sync_file_range(witness.as_raw_fd(), NOWHERE, 1, libc::SYNC_FILE_RANGE_WAIT_BEFORE) };
        if result == 0 {
            return Ok(());
        }
        match io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) {
            libc::EINTR => (),
            errno => return Err(errno),
        }
    }
}

/// Syncs of a file, by number in the order in which the kernel is asked for them.
#[derive(Debug, Default)]
struct Syncs {
    next: u64,
    /// Those whose answers are not judged yet, in order.
    under_way: Vec<u64>,
}

impl Losses {
    /// `witness` is a file that was opened for this alone. `is_stacked`: the file system keeps no notes of its own, for
    /// it passes everything on to a file of another one, whose notes only a sync looks at.
    pub(super) fn new(witness: OwnedFd, is_stacked: bool, is_buffered: bool) -> Self {
        let witness = Mutex::new(witness);
        let mut losses =
            Self { first: OnceLock::new(), witness, can_be_asked: false, syncs: Mutex::default(), is_buffered };
        losses.can_be_asked = !is_stacked && losses.is_answered();
        losses
    }

    /// Whether the system lets the kernel be asked. It is asked here once, so that later every error is a loss.
    fn is_answered(&self) -> bool {
        match ask(&lock(&self.witness)) {
            Ok(()) => true,
            Err(libc::ENOSYS | libc::EPERM | libc::EINVAL | libc::ESPIPE) => false,
            // Of an earlier time, and nobody was told of it.
            Err(errno) => {
                self.note(WRITE_BACK, errno);
                true
            }
        }
    }

    /// Whether the kernel is asked for what it has noted. Where it cannot be, each sync is counted
    /// ([`note_sync`](Self::note_sync)), and writes are made durable by a sync behind them: a write that is durable by
    /// itself would use up what the kernel has noted for syncs.
    pub(super) const fn can_be_asked(&self) -> bool {
        self.can_be_asked
    }

    /// The kernel is asked for a sync next. Returns the sync's number, if syncs are counted.
    ///
    /// COST: where they are, a lock.
    pub(super) fn note_sync(&self) -> Option<u64> {
        if self.can_be_asked {
            return None;
        }
        let mut syncs = lock(&self.syncs);
        let number = syncs.next;
        syncs.next += 1;
        syncs.under_way.push(number);
        Some(number)
    }

    /// A sync's answer is found, and [judged](Self::judge). Returns up to which number others are to be answered before
    /// that answer is [certain](Self::is_certain).
    pub(super) fn note_answer(&self, number: u64) -> u64 {
        let mut syncs = lock(&self.syncs);
        syncs.under_way.retain(|other| *other != number);
        syncs.next
    }

    /// Whether the success of a sync is to be believed, if that can be told already: all syncs with lower numbers than
    /// `until` are answered. 0 where there is nothing to wait for.
    ///
    /// Of syncs at the same time the kernel tells one alone of a loss, and the answer to that one may be found after
    /// the answers to others. It has told that one before any of the others was answered, so that one was under way
    /// when the answer to this one was found, or had been judged.
    pub(super) fn is_certain(&self, until: u64) -> Option<bool> {
        if until == 0 {
            return Some(true);
        }
        let is_over = lock(&self.syncs).under_way.first().is_none_or(|oldest| *oldest >= until);
        is_over.then(|| self.first().is_none())
    }

    /// The first loss, if there was any, in one sentence.
    pub(super) fn first(&self) -> Option<&str> {
        self.first.get().map(String::as_str)
    }

    /// What the client of a request is told that the kernel has answered: `result` is the answer, and `status` what it
    /// means by itself.
    ///
    /// COST: of a success an atomic read and, where the kernel is asked, a lock and a system call that waits for
    /// nothing.
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

    /// Whether a durable write's error alone says that data of others may be lost. A lack of room does not: most often
    /// there was no room for the write itself, nothing was changed, and of what else there is the kernel is asked.
    fn is_in_doubt(&self, errno: i32) -> bool {
        self.is_buffered && verdict(errno) != Verdict::Failed(Status::NoSpace)
    }

    /// Whether nothing is lost of what was written before, as far as the kernel can be asked. A sync that has succeeded
    /// does not say so by itself: of two at the same time the kernel tells one alone of the loss, and the answer to
    /// that one may be found after the answer to the other.
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
    /// Where the kernel cannot be asked, [`is_certain`](Self::is_certain) takes the place of this.
    fn is_kept(&self) -> bool {
        if !self.can_be_asked {
            return true;
        }
        let witness = lock(&self.witness);
        if self.first().is_some() {
            return false;
        }
        let answer = ask(&witness);
        if let Err(errno) = answer {
            self.note(WRITE_BACK, errno);
        }
        answer.is_ok()
    }

    fn note(&self, what: &str, errno: i32) {
        let error = io::Error::from_raw_os_error(errno);
        self.keep(&format!("{what} failed"), &format!("{error}: data that was acknowledged may be lost"));
    }

    /// Another program has cut the file short.
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

    /// Of a file that the kernel is not asked of.
    fn unasked() -> Losses {
        let file = std::fs::File::open("Cargo.toml").expect("tests run where it is");
        Losses::new(file.into(), true, true)
    }

    /// Red if an answer that says that the kernel cannot be asked counts as no loss once it could be: the note would be
    /// used up, and a later sync believed.
    #[test]
    #[cfg_attr(miri, ignore = "only files can be synced there")]
    fn once_the_kernel_could_be_asked_every_error_is_a_loss() {
        let losses = losses(true);
        assert!(losses.can_be_asked());
        // It cannot be asked of a pipe.
        let (pipe, _) = io::pipe().expect("there are descriptors");
        let losses = Losses { witness: Mutex::new(pipe.into()), ..losses };
        assert_eq!(losses.judge(Promise::Sync, Status::Ok, 0), Status::IoError);
        let text = losses.first().expect("it is kept");
        assert!(text.starts_with("writing data back from the page cache failed at 2"), "{text}");
    }

    /// Red if a file that cannot be asked fails every sync, or a file system is asked that keeps no notes of its own.
    #[test]
    #[cfg_attr(miri, ignore = "only files can be synced there")]
    fn the_kernel_is_asked_where_it_answers() {
        let (pipe, _) = io::pipe().expect("there are descriptors");
        for losses in [Losses::new(pipe.into(), false, true), unasked()] {
            assert_eq!((losses.can_be_asked(), losses.judge(Promise::Sync, Status::Ok, 0)), (false, Status::Ok));
        }
    }

    /// Red if a sync that was under way beside it is not waited for, or what that one has lost does not count. Red too
    /// if a sync that began later is waited for: two that always overlap would wait for each other for ever.
    #[test]
    fn a_sync_is_certain_once_those_beside_it_are_answered() {
        let losses = unasked();
        let [first, second] = [(); 2].map(|()| losses.note_sync().expect("they are counted"));
        let until = losses.note_answer(second);
        let third = losses.note_sync().expect("they are counted");
        assert_eq!(losses.is_certain(until), None);
        let first = losses.note_answer(first);
        assert_eq!((losses.is_certain(until), losses.is_certain(first)), (Some(true), None));
        losses.judge(Promise::Sync, Status::IoError, -libc::EIO);
        losses.note_answer(third);
        assert_eq!((losses.is_certain(until), losses.is_certain(first)), (Some(false), Some(false)));
        assert_eq!(losses.is_certain(0), Some(true), "what promises nothing goes on");
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
        for (is_buffered, errno, is_loss) in [
            (true, libc::EIO, true),
            (true, libc::ENOSPC, false),
            (false, libc::EIO, false),
            (false, libc::ENOSPC, false),
        ] {
            let losses = losses(is_buffered);
            let case = format!("{is_buffered} {errno}");
            assert_eq!(losses.judge(Promise::Write, Status::IoError, -errno), Status::IoError, "{case}");
            assert_eq!(losses.first().is_some(), is_loss, "{case}");
            let later = if is_loss { Status::IoError } else { Status::Ok };
            assert_eq!(losses.judge(Promise::Sync, Status::Ok, 0), later, "{case}");
        }
    }
}
