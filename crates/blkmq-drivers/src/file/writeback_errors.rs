//! Writes that were acknowledged and may be lost. A driver checks for such writes before it believes any sync.
//!
//! Linux reports data that it could not write back only once for each time that the file was opened: to the first sync
//! that looks. After that the data counts as written, so the next sync succeeds. All rings, and so all clients, sync
//! through one opened file. Therefore the first loss is kept here: every later sync, and every later write that is to
//! be durable, fails until the file is opened anew.
//!
//! This holds for direct I/O too. The edges of zeroes, and writes that the file system cannot do directly, go through
//! the page cache. And a disk that failed to empty its own cache may not have the data any more when it is asked again.
#![expect(unsafe_code, reason = "the kernel is asked for what it has noted, by a system call that no crate has")]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, OnceLock};

use blkmq::Status;

use super::status::status_of;
use crate::length::Shorter;
use crate::lock;

/// The description of the failure if the kernel has noted an error.
const WRITE_BACK: &str = "writing data back from the page cache";

/// What an answer of the kernel makes durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Promise {
    /// Everything that was written before.
    Sync,
    /// The write itself.
    Write,
}

/// The writeback errors of one opened file.
#[derive(Debug)]
pub(super) struct WritebackErrors {
    /// The first loss, in one sentence. The sentence is never cleared.
    first: OnceLock<String>,
    /// The file, opened once more, to ask the kernel for the errors that it has noted. The thread that asks has the
    /// lock.
    witness: Mutex<OwnedFd>,
    /// Whether the kernel answers.
    can_be_asked: bool,
    /// If the kernel does not answer: the syncs of all rings that are in progress.
    syncs: Mutex<Syncs>,
    /// Whether written data goes to the page cache first.
    is_buffered: bool,
}

/// Asks the kernel for the error that it has noted of a file since the file was opened, or since the last call. The
/// call waits for pages that do not exist, so it does not wait.
///
/// # Errors
/// The error that was noted.
fn ask(witness: &OwnedFd) -> Result<(), i32> {
    // Past every page, so that there is nothing to wait for: no file is this long.
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
    /// The numbers of syncs whose answers are not judged yet, in order.
    under_way: Vec<u64>,
}

impl WritebackErrors {
    /// `witness` is a file that was opened once more for this. No sync and no durable write goes by it. `is_stacked`:
    /// the file system notes no errors of its own, because it passes everything on to a file of another file system.
    /// Only a sync looks at the notes of that file.
    pub(super) fn new(witness: OwnedFd, is_stacked: bool, is_buffered: bool) -> Self {
        let witness = Mutex::new(witness);
        let mut writeback_errors =
            Self { first: OnceLock::new(), witness, can_be_asked: false, syncs: Mutex::default(), is_buffered };
        writeback_errors.can_be_asked = !is_stacked && writeback_errors.is_answered();
        writeback_errors
    }

    /// Returns the descriptor by which the kernel is asked. What else is done by it uses up no error that the kernel
    /// has noted.
    pub(super) fn witness(&self) -> RawFd {
        lock(&self.witness).as_raw_fd()
    }

    /// Returns true if the system lets us ask the kernel. The driver tries once at the beginning, so that later every
    /// error is a loss.
    fn is_answered(&self) -> bool {
        match ask(&lock(&self.witness)) {
            Ok(()) => true,
            Err(libc::ENOSYS | libc::EPERM | libc::EINVAL | libc::ESPIPE) => false,
            // The error is from an earlier time, and no client was told of it.
            Err(errno) => {
                self.note(WRITE_BACK, errno);
                true
            }
        }
    }

    /// Returns true if the kernel is asked for the errors that it has noted. If the kernel cannot be asked, each sync
    /// is counted ([`note_sync`](Self::note_sync)), and a sync after each durable write makes it durable: a write that
    /// is durable by itself would use up the error that the kernel has noted for syncs.
    pub(super) const fn can_be_asked(&self) -> bool {
        self.can_be_asked
    }

    /// Called before the kernel is asked for a sync. Returns the sync's number, if syncs are counted.
    ///
    /// COST: a lock, if syncs are counted.
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

    /// Called when a sync's answer is found and [judged](Self::judge). Returns a number: all syncs with lower numbers
    /// have to be answered before the answer is [certain](Self::is_certain).
    pub(super) fn note_answer(&self, number: u64) -> u64 {
        let mut syncs = lock(&self.syncs);
        syncs.under_way.retain(|other| *other != number);
        syncs.next
    }

    /// Whether the success of a sync can be believed. `None` if that is not known yet, because a sync with a lower
    /// number than `until` is not answered. `until` is 0 if there is nothing to wait for.
    ///
    /// If several syncs run at the same time, the kernel reports a loss to only one of them, and the answer to that
    /// sync may be found after the answers to the others. The kernel has reported the loss to that sync before any of
    /// the others was answered. So when the answer to this sync was found, that sync was in progress, or it had been
    /// judged.
    pub(super) fn is_certain(&self, until: u64) -> Option<bool> {
        if until == 0 {
            return Some(true);
        }
        let is_over = lock(&self.syncs).under_way.first().is_none_or(|oldest| *oldest >= until);
        is_over.then(|| self.first().is_none())
    }

    /// Returns the first loss, if there was any, in one sentence.
    pub(super) fn first(&self) -> Option<&str> {
        self.first.get().map(String::as_str)
    }

    /// Returns the status for the client of a request that the kernel has answered. `result` is the answer, and
    /// `status` is the meaning of the answer by itself.
    ///
    /// COST: for a success an atomic read and, if the kernel is asked, a lock and a system call that waits for nothing.
    pub(super) fn judge(&self, promise: Promise, status: Status, result: i32) -> Status {
        if self.first().is_some() {
            return Status::IoError;
        }
        match (status, promise) {
            (Status::Ok, _) => return if self.is_kept() { Status::Ok } else { Status::IoError },
            // The kernel does not say which data it was, and will not report it again.
            (_, Promise::Sync) => self.note("a sync", -result),
            // The error may be that of the sync inside the write, and then it concerns earlier writes too.
            (_, Promise::Write) if self.is_in_doubt(-result) => self.note("a write that was to be durable", -result),
            // As far as is known, only the write itself has failed. The kernel has noted any other error.
            (_, Promise::Write) => _ = self.is_kept(),
        }
        status
    }

    /// Returns true if the error of a durable write by itself says that data of other clients may be lost. A lack of
    /// room or of permission does not say that: most often it was about the write itself, and nothing was changed. For
    /// anything else, the kernel is asked.
    fn is_in_doubt(&self, errno: i32) -> bool {
        let is_refused = matches!(status_of(errno), Some(Status::NoSpace | Status::NotPermitted));
        self.is_buffered && !is_refused
    }

    /// Returns true if nothing that was written before is lost, as far as the kernel can be asked. The success of a
    /// sync does not say that: of two syncs at the same time the kernel reports the loss to only one, and the answer to
    /// that one may be found after the answer to the other.
    ///
    /// If data could not be written back, the kernel noted that before the sync that waited for the data returned. This
    /// function is called after that. Through the witness the note is seen once, by the first thread that asks after
    /// the note was made. That thread sets `first` before it releases the lock. So either this thread sees the note, or
    /// it gets the lock after that thread and sees `first`. Writes that come while another ring's sync fails are no
    /// exception. If such writes are lost, a note is made before their own sync returns. If such writes are not lost,
    /// their sync fails all the same once `first` is set, which is allowed.
    ///
    /// If a disk could not empty its own cache, that is not such a loss: the kernel notes nothing, and reports it only
    /// to the sync that asked the disk. Another sync that was in progress at that time, of another hardware queue or of
    /// the same one, may be believed if its answer is found before the answer of that sync, although the disk may have
    /// dropped data that it should have made durable. Once the answer of that sync is found, no sync is believed.
    ///
    /// If the kernel cannot be asked, [`is_certain`](Self::is_certain) is used instead of this function.
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
    pub(super) fn is_shorter(&self, Shorter { found, reported }: Shorter) {
        let like = if found == 0 { ", like a disk that is gone" } else { "" };
        self.keep(
            "the file became shorter",
            &format!("it has {found} bytes, not {reported}{like}: what lay behind them is lost"),
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

    fn writeback_errors(is_buffered: bool) -> WritebackErrors {
        let file = std::fs::File::open("Cargo.toml").expect("tests run where it is");
        WritebackErrors::new(file.into(), false, is_buffered)
    }

    /// Returns the writeback errors of a file for which the kernel is not asked.
    fn unasked() -> WritebackErrors {
        let file = std::fs::File::open("Cargo.toml").expect("tests run where it is");
        WritebackErrors::new(file.into(), true, true)
    }

    /// Red if an answer that says that the kernel cannot be asked does not count as a loss once it could be asked: the
    /// note would be used up, and a later sync would be believed.
    #[test]
    #[cfg_attr(miri, ignore = "only files can be synced there")]
    fn once_the_kernel_could_be_asked_every_error_is_a_loss() {
        let writeback_errors = writeback_errors(true);
        assert!(writeback_errors.can_be_asked());
        // The kernel cannot be asked for a pipe.
        let (pipe, _) = io::pipe().expect("there are descriptors");
        let writeback_errors = WritebackErrors { witness: Mutex::new(pipe.into()), ..writeback_errors };
        assert_eq!(writeback_errors.judge(Promise::Sync, Status::Ok, 0), Status::IoError);
        let text = writeback_errors.first().expect("it is kept");
        assert!(text.starts_with("writing data back from the page cache failed at 2"), "{text}");
    }

    /// Red if every sync of a file fails for which the kernel cannot be asked, or if a file system is asked that notes
    /// no errors.
    #[test]
    #[cfg_attr(miri, ignore = "only files can be synced there")]
    fn the_kernel_is_asked_where_it_answers() {
        let (pipe, _) = io::pipe().expect("there are descriptors");
        for writeback_errors in [WritebackErrors::new(pipe.into(), false, true), unasked()] {
            assert_eq!(
                (writeback_errors.can_be_asked(), writeback_errors.judge(Promise::Sync, Status::Ok, 0)),
                (false, Status::Ok)
            );
        }
    }

    /// Red if a sync does not wait for a sync that was in progress at the same time, or if the loss that the other sync
    /// reports does not count. Red too if it waits for a sync that began later: two syncs that always overlap would
    /// wait for each other forever.
    #[test]
    fn a_sync_is_certain_once_those_beside_it_are_answered() {
        let writeback_errors = unasked();
        let [first, second] = [(); 2].map(|()| writeback_errors.note_sync().expect("they are counted"));
        let until = writeback_errors.note_answer(second);
        let third = writeback_errors.note_sync().expect("they are counted");
        assert_eq!(writeback_errors.is_certain(until), None);
        let first = writeback_errors.note_answer(first);
        assert_eq!((writeback_errors.is_certain(until), writeback_errors.is_certain(first)), (Some(true), None));
        writeback_errors.judge(Promise::Sync, Status::IoError, -libc::EIO);
        writeback_errors.note_answer(third);
        assert_eq!(
            (writeback_errors.is_certain(until), writeback_errors.is_certain(first)),
            (Some(false), Some(false))
        );
        assert_eq!(writeback_errors.is_certain(0), Some(true), "what promises nothing goes on");
    }

    /// Red if a sync that has failed is forgotten, or another promise is believed after it.
    #[test]
    fn nothing_is_believed_after_a_sync_that_failed() {
        for is_buffered in [false, true] {
            for errno in [libc::EIO, libc::ENOSPC, libc::EDQUOT, libc::EINVAL] {
                let writeback_errors = writeback_errors(is_buffered);
                for promise in [Promise::Sync, Promise::Write] {
                    assert_eq!(writeback_errors.judge(promise, Status::Ok, 0), Status::Ok);
                }
                assert_eq!(writeback_errors.first(), None);
                assert_eq!(
                    writeback_errors.judge(Promise::Sync, Status::NoSpace, -errno),
                    Status::NoSpace,
                    "it is told as it is"
                );
                for promise in [Promise::Sync, Promise::Write, Promise::Sync] {
                    assert_eq!(writeback_errors.judge(promise, Status::Ok, 0), Status::IoError);
                }
                let text = writeback_errors.first().expect("it is kept").to_owned();
                assert!(text.starts_with("a sync failed at 2") && text.ends_with("; open the file anew"), "{text}");
                writeback_errors.judge(Promise::Sync, Status::IoError, -libc::EROFS);
                assert_eq!(writeback_errors.first(), Some(&*text), "the first one counts");
            }
        }
    }

    /// Red if a full disk, or a bad sector under a direct write, counts as a loss of data that other clients have
    /// written; or if the error of a durable write counts only for that write where earlier data may be in the page
    /// cache.
    #[test]
    fn a_durable_write_that_failed_may_be_a_loss_for_others() {
        for (is_buffered, errno, is_loss) in [
            (true, libc::EIO, true),
            (true, libc::ENOSPC, false),
            (true, libc::EPERM, false),
            (false, libc::EIO, false),
            (false, libc::ENOSPC, false),
        ] {
            let writeback_errors = writeback_errors(is_buffered);
            let case = format!("{is_buffered} {errno}");
            assert_eq!(writeback_errors.judge(Promise::Write, Status::IoError, -errno), Status::IoError, "{case}");
            assert_eq!(writeback_errors.first().is_some(), is_loss, "{case}");
            let later = if is_loss { Status::IoError } else { Status::Ok };
            assert_eq!(writeback_errors.judge(Promise::Sync, Status::Ok, 0), later, "{case}");
        }
    }
}
