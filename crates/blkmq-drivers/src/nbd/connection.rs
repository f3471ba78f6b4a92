//! A connection: requests on their way to the server, and replies on their way back.
//!
//! Its two sides have a lock each: one thread at a time sends, one at a time receives. Who finds another receiving leaves, and
//! waits for that one before it sleeps. While replies are left the socket stays readable, so whoever then sleeps on it is awake at
//! once. While something is unsent the same descriptor tells when the socket takes more.
#![expect(unsafe_code, reason = "what was read is copied to memory that was noted when the request began")]

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use blkmq::driver::{Batch, Done, Loan, Request};
use blkmq::limits::SECTOR_SIZE;
use blkmq::{Op, Status};
use blkmq_nbd::{REQUEST_MAGIC, SIMPLE_REPLY_MAGIC, command_flags, commands};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};

use crate::{lock, try_lock};

/// Bytes of a reply without its data.
const REPLY_SIZE: usize = 16;
/// Bytes that are received at once.
const RECEIVED_AT_ONCE: usize = 256 << 10;
/// Bytes of memory that are kept for sending.
const KEPT: usize = 1 << 20;

/// A request that the server has.
///
/// # Invariant
/// While there is a loan, `pieces` name the memory of that request, which lives that long and which nobody else touches.
#[derive(Debug, Default)]
struct Asked {
    /// None while the tag is free.
    loan: Option<Loan>,
    is_read: bool,
    /// Start and length.
    pieces: Vec<(*mut u8, usize)>,
}

// SAFETY: by the invariant the addresses are good on every thread.
unsafe impl Send for Asked {}

impl Asked {
    /// Copies bytes to where the request wants them, from byte `at` on. Returns how many of them it takes.
    fn fill(&self, mut at: usize, mut bytes: &[u8]) -> usize {
        let mut taken = 0;
        for &(start, len) in &self.pieces {
            let skipped = at.min(len);
            at -= skipped;
            let now = bytes.len().min(len - skipped);
            // SAFETY: `skipped` is at most the piece's length.
            let to = unsafe { start.add(skipped) };
            // SAFETY: by the invariant the piece is the request's alone, and the bytes fit what is left of it.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, now) };
            bytes = &bytes[now..];
            taken += now;
        }
        taken
    }

    fn len(&self) -> usize {
        self.pieces.iter().map(|(_, len)| len).sum()
    }
}

/// What the socket has not taken yet.
#[derive(Debug, Default)]
struct Unsent {
    bytes: Vec<u8>,
    /// Of these so many are sent.
    sent: usize,
}

impl Unsent {
    fn is_empty(&self) -> bool {
        self.sent == self.bytes.len()
    }

    /// Forgets what is sent once that is everything, and gives back what a long wait has taken.
    fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(KEPT);
        self.sent = 0;
    }
}

/// What has come and is not done with.
#[derive(Debug)]
struct Received {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
    /// The tag whose data comes next, and how many bytes of it are there already.
    data: Option<(u16, usize)>,
}

/// A connection whose export is chosen.
pub(super) struct Connection {
    socket: OwnedFd,
    /// An epoll instance that watches the socket.
    readiness: OwnedFd,
    /// Who sends has this.
    unsent: Mutex<Unsent>,
    /// Who receives has this.
    received: Mutex<Received>,
    /// By tag. Each lock is taken by one thread at a time: by who starts the request, then by who finds its reply.
    asked: Box<[Mutex<Asked>]>,
    /// Something is unsent.
    is_behind: AtomicBool,
    /// Nothing more comes and goes.
    is_broken: AtomicBool,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut state = f.debug_struct("Connection");
        state.field("is_behind", &self.is_behind).field("is_broken", &self.is_broken).finish_non_exhaustive()
    }
}

fn head(flags: u16, command: u16, cookie: u64, offset: u64, len: u32) -> [u8; 28] {
    let mut head = [0; 28];
    head[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
    head[4..6].copy_from_slice(&flags.to_be_bytes());
    head[6..8].copy_from_slice(&command.to_be_bytes());
    head[8..16].copy_from_slice(&cookie.to_be_bytes());
    head[16..24].copy_from_slice(&offset.to_be_bytes());
    head[24..].copy_from_slice(&len.to_be_bytes());
    head
}

/// A command's number.
const fn number(op: Op) -> u16 {
    match op {
        Op::Read => commands::READ,
        Op::Write => commands::WRITE,
        Op::Flush => commands::FLUSH,
        Op::Discard => commands::TRIM,
        Op::WriteZeroes => commands::WRITE_ZEROES,
    }
}

impl Connection {
    /// A connection for `depth` requests at once.
    ///
    /// # Errors
    /// The system gives no descriptor.
    pub(super) fn new(socket: OwnedFd, depth: u16) -> io::Result<Self> {
        let readiness = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&readiness, &socket, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        let received = Received { bytes: vec![0; RECEIVED_AT_ONCE].into_boxed_slice(), start: 0, end: 0, data: None };
        Ok(Self {
            socket,
            readiness,
            unsent: Mutex::default(),
            received: Mutex::new(received),
            asked: (0..depth).map(|_| Mutex::default()).collect(),
            is_behind: AtomicBool::new(false),
            is_broken: AtomicBool::new(false),
        })
    }

    /// Readable while there are replies, the socket takes more of what is unsent, or the connection is broken. First it
    /// waits for who receives, as [`Driver::ready_fd`](blkmq::driver::Driver::ready_fd) asks for.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        drop(lock(&self.received));
        self.readiness.as_fd()
    }

    /// Starts the requests of a batch, in order.
    pub(super) fn start(&self, batch: &mut Batch<'_>) {
        let mut unsent = lock(&self.unsent);
        if self.is_broken.load(Ordering::Relaxed) {
            return batch.finish_all(Status::IoError);
        }
        while let Some(mut rq) = batch.next() {
            let tag = rq.tag();
            let mut asked = lock(&self.asked[usize::from(tag)]);
            assert!(
                asked.loan.is_none(),
                "tag {tag} is with the server already; each tag of a hardware queue is out once"
            );
            ask(&mut rq, &mut asked, &mut unsent.bytes);
            // The loan is there before the server can answer, for nothing is sent yet.
            asked.loan = Some(batch.lend(rq));
        }
        self.send(&mut unsent);
    }

    /// Sends what the socket takes.
    fn send(&self, unsent: &mut Unsent) {
        while !unsent.is_empty() {
            match send(&self.socket, &unsent.bytes[unsent.sent..], SendFlags::NOSIGNAL) {
                Ok(more) => unsent.sent += more,
                Err(Errno::INTR) => (),
                Err(Errno::AGAIN) => return self.watch(true),
                Err(_) => {
                    self.give_up();
                    unsent.sent = unsent.bytes.len();
                }
            }
        }
        unsent.clear();
        self.watch(false);
    }

    /// From now on the descriptor tells when the socket takes more, or does not. Called with `unsent`.
    fn watch(&self, is_behind: bool) {
        if is_behind != self.is_behind.load(Ordering::Relaxed) {
            self.is_behind.store(is_behind, Ordering::Relaxed);
            let more = if is_behind { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
            let events = epoll::EventFlags::IN | more;
            if epoll::modify(&self.readiness, &self.socket, epoll::EventData::new_u64(0), events).is_err() {
                self.give_up();
            }
        }
    }

    /// Nothing more comes and goes. The socket is readable from then on, so that whoever waits finds out.
    pub(super) fn give_up(&self) {
        self.is_broken.store(true, Ordering::Relaxed);
        let _ = shutdown(&self.socket, Shutdown::Both);
    }

    /// Takes replies, unless another thread is doing so.
    pub(super) fn reap(&self, done: &mut Done<'_>) {
        // Who starts requests sends as well.
        if self.is_behind.load(Ordering::Relaxed)
            && let Some(mut unsent) = try_lock(&self.unsent)
        {
            self.send(&mut unsent);
        }
        let Some(mut received) = try_lock(&self.received) else { return };
        let mut is_good = !self.is_broken.load(Ordering::Relaxed);
        while is_good {
            let Received { bytes, start, end, .. } = &mut *received;
            bytes.copy_within(*start..*end, 0);
            (*start, *end) = (0, *end - *start);
            let room = bytes.len() - *end;
            match recv(&self.socket, &mut bytes[*end..], RecvFlags::empty()) {
                Ok((0, _)) => is_good = false,
                Ok((more, _)) => {
                    received.end += more;
                    is_good = self.take_replies(&mut received, done);
                    if more < room {
                        break;
                    }
                }
                Err(Errno::INTR) => (),
                Err(Errno::AGAIN) => break,
                Err(_) => is_good = false,
            }
        }
        if !is_good {
            self.fail_all(done);
        }
    }

    /// Takes the replies that are there, the last of them perhaps in part. Returns whether they make sense.
    fn take_replies(&self, received: &mut Received, done: &mut Done<'_>) -> bool {
        loop {
            let here = &received.bytes[received.start..received.end];
            let Some((tag, have)) = received.data else {
                let Some(head) = here.first_chunk::<REPLY_SIZE>() else { return true };
                let Some((tag, errno)) = answered(head) else { return false };
                let Some(asked) = self.asked.get(usize::from(tag)).map(lock).filter(|asked| asked.loan.is_some())
                else {
                    return false;
                };
                received.start += REPLY_SIZE;
                if asked.is_read && errno == 0 {
                    received.data = Some((tag, 0));
                } else {
                    finish(asked, blkmq_nbd::Errno::status(errno), done);
                }
                continue;
            };
            // The loan is still there: only who receives ends it.
            let asked = lock(&self.asked[usize::from(tag)]);
            let taken = asked.fill(have, here);
            received.start += taken;
            if have + taken < asked.len() {
                received.data = Some((tag, have + taken));
                return true;
            }
            received.data = None;
            finish(asked, Status::Ok, done);
        }
    }

    /// Whatever was asked fails: the server may have done it or not. Called again by who finds the socket readable because of
    /// what was asked meanwhile.
    #[cold]
    fn fail_all(&self, done: &mut Done<'_>) {
        self.give_up();
        // Who is starting requests has either seen that the connection is broken or has their loans before this.
        drop(lock(&self.unsent));
        for asked in &self.asked {
            finish(lock(asked), Status::IoError, done);
        }
    }
}

/// Reads a reply: the tag that its cookie names, and the error number; `None` if it is no reply to a request of ours.
fn answered(head: &[u8; REPLY_SIZE]) -> Option<(u16, u32)> {
    let [m0, m1, m2, m3, e0, e1, e2, e3, 0, 0, 0, 0, 0, 0, t0, t1] = *head else { return None };
    let is_reply = u32::from_be_bytes([m0, m1, m2, m3]) == SIMPLE_REPLY_MAGIC;
    is_reply.then(|| (u16::from_be_bytes([t0, t1]), u32::from_be_bytes([e0, e1, e2, e3])))
}

/// The server has answered a request, or never will; nothing is done if there is none.
fn finish(mut asked: MutexGuard<'_, Asked>, status: Status, done: &mut Done<'_>) {
    let loan = asked.loan.take();
    drop(asked);
    if let Some(loan) = loan {
        done.give_back(loan, status);
    }
}

/// Writes a request as the protocol says, and notes where its data goes.
fn ask(rq: &mut Request<'_>, asked: &mut Asked, unsent: &mut Vec<u8>) {
    let op = rq.op();
    let flags = if rq.flags().fua && op != Op::Read && op != Op::Flush { command_flags::FUA } else { 0 };
    let (offset, len) = match op {
        Op::Flush => (0, 0),
        _ => (rq.sector() * SECTOR_SIZE as u64, rq.nr_sectors() * SECTOR_SIZE as u32),
    };
    unsent.extend_from_slice(&head(flags, number(op), rq.tag().into(), offset, len));
    asked.is_read = op == Op::Read;
    asked.pieces.clear();
    for segment in rq.segments() {
        if op == Op::Write {
            unsent.extend_from_slice(segment.bytes());
        } else {
            asked.pieces.push((segment.as_ptr(), segment.len()));
        }
    }
}

impl Drop for Connection {
    /// Servers tell one that leaves from one that breaks.
    fn drop(&mut self) {
        let _ = send(&self.socket, &head(0, commands::DISC, 0, 0, 0), SendFlags::NOSIGNAL);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// Red if it does not wait: who sleeps is awake at once then while another one receives, as often as it likes.
    #[test]
    #[cfg_attr(miri, ignore = "there are no sockets")]
    fn who_is_about_to_sleep_waits_for_who_receives() {
        let (ours, _theirs) = UnixStream::pair().expect("there are descriptors");
        let connection = Connection::new(ours.into(), 1).expect("there are descriptors");
        let received = lock(&connection.received);
        thread::scope(|scope| {
            let sleeper = scope.spawn(|| connection.fd());
            thread::sleep(Duration::from_millis(20));
            assert!(!sleeper.is_finished(), "it did not wait");
            drop(received);
        });
    }

    #[test]
    fn data_goes_to_the_pieces_in_order() {
        let (mut first, mut second) = ([0_u8; 3], [0_u8; 4]);
        let pieces = vec![(first.as_mut_ptr(), 3), (second.as_mut_ptr(), 4)];
        let asked = Asked { loan: None, is_read: true, pieces };
        assert_eq!(asked.len(), 7);
        assert_eq!(asked.fill(0, &[1, 2]), 2);
        assert_eq!(asked.fill(2, &[3, 4, 5]), 3);
        assert_eq!(asked.fill(5, &[6, 7, 8, 9]), 2, "what is beyond belongs to the next reply");
        assert_eq!((first, second), ([1, 2, 3], [4, 5, 6, 7]));
    }
}
