//! One queue of a device: a thread with a ring, a session of the engine, and a submitter.
//!
//! The kernel has each tag until a request comes for it, and again once the request's result is told. What has arrived
//! together goes through blkmq's queue as one plug, and results that are there together are told in one system call.
//! When nothing is to be done, the thread sleeps on its ring, which also watches the submitter's bell and the device's
//! descriptors.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use blkmq::event::EventFd;
use blkmq::idle::Idle;
use blkmq::{Clock, Notify, Submitter};

use crate::abi::DeviceInfo;
use crate::character::Character;
use crate::descriptors::Descriptors;
use crate::exchange::Exchange;
use crate::ring::Ring;
use crate::work::Work;

/// How often what is left on the ring is handed over at an end, if the kernel does not take it.
const TRIES_AT_END: usize = 100;
/// For how long no request has come when a queue ends that fails all that come.
const QUIET: Duration = Duration::from_millis(100);

/// What a queue's thread shares with the device.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) bell: Arc<EventFd>,
    /// The block device waits for the next server when this one ends. Requests that wait are not to fail, so nothing is
    /// stopped.
    outlives_server: bool,
    /// The thread is to end although the kernel has its tags.
    pub(crate) is_given_up: AtomicBool,
    /// The thread is to end although the device has requests of it too.
    pub(crate) is_abandoned: AtomicBool,
    /// How often requests have moved.
    pub(crate) nr_moves: AtomicU64,
}

impl Shared {
    pub(crate) fn new(bell: Arc<EventFd>, outlives_server: bool) -> Arc<Self> {
        let [is_given_up, is_abandoned] = [false; 2].map(AtomicBool::new);
        Arc::new(Self { bell, outlives_server, is_given_up, is_abandoned, nr_moves: AtomicU64::new(0) })
    }

    /// Ends the thread when the device has given its requests back, although the kernel has its tags.
    pub(crate) fn give_up(&self) {
        // Release: pairs with the Acquire of the queue's thread, which the bell wakes.
        self.is_given_up.store(true, Ordering::Release);
        self.bell.notify();
    }

    /// Ends the thread at once. See [`Queue::is_abandoned`].
    pub(crate) fn abandon(&self) {
        // Release: pairs with the Acquire of the queue's thread, which the bell wakes.
        self.is_abandoned.store(true, Ordering::Release);
        self.bell.notify();
    }
}

/// What the kernel knows of a queue. Buffers that the kernel may still use are never freed: see the drop of
/// [`Requests`].
pub(crate) struct KernelSide {
    /// It is dropped before the file.
    ring: Ring,
    /// It has the file.
    exchange: Exchange,
    descriptors: Descriptors,
}

/// A queue that is being served.
pub(crate) struct Queue {
    kernel_side: KernelSide,
    shared: Arc<Shared>,
    requests: Requests,
    /// Tags whose requests are not done here: they fail, or wait for the next server.
    left: Vec<u16>,
    idle: Idle,
}

/// What belongs to the requests.
struct Requests {
    /// It is dropped before the session in `work`, which has nothing in progress then.
    submitter: Submitter,
    work: Work,
    /// The kernel has not given back every tag for good.
    has_kernel_tags: bool,
}

impl Queue {
    /// Fetches with all tags. To be called by the thread that serves the queue.
    pub(crate) fn begin(
        (file, descriptors): (Arc<Character>, Descriptors),
        (info, number): (&DeviceInfo, u16),
        shared: Arc<Shared>,
        work: Work,
        submitter: Submitter,
    ) -> io::Result<Self> {
        let ring = Ring::new(info.queue_depth, Arc::clone(&shared.bell))?;
        let exchange = Exchange::new(file, number, info.queue_depth);
        let kernel_side = KernelSide { ring, exchange, descriptors };
        let requests = Requests { submitter, work, has_kernel_tags: true };
        let mut queue = Self { kernel_side, shared, requests, left: Vec::new(), idle: Idle::new() };
        let Self { kernel_side: KernelSide { ring, exchange, .. }, requests, .. } = &mut queue;
        exchange.begin(ring, |tag| requests.work.address(tag))?;
        ring.enter(0, None)?;
        Ok(queue)
    }

    /// Serves until the kernel has given back every tag for good, because the device is stopped, or until the queue is
    /// given up or abandoned. In these two cases the kernel has tags, and another thread has to drop the kernel side
    /// that is returned, once this thread has ended. A thread that drops the kernel side itself can lose a request:
    ///
    /// 1. The kernel has a request for this thread, which the thread takes the next time that it enters the kernel.
    /// 2. The kernel side's end cancels the commands that wait for a request. This request's command waits no more.
    /// 3. The thread, which is alive, takes the request. To the kernel it is with a server now, and no server gives it
    ///    back. The next server waits for it forever.
    ///
    /// A thread that has ended takes no request: the kernel keeps it for the next server, or fails it. A thread that
    /// fails in the middle drops its kernel side itself, since nothing waits for it then; of its queue a request can be
    /// lost so.
    ///
    /// COST: two system calls for all requests that came together: one tells their results, and one sleeps.
    pub(crate) fn run(mut self) -> (io::Result<()>, Option<KernelSide>) {
        let result = self.serve();
        let is_given_up = self.is_given_up();
        let is_abandoned = self.is_abandoned();
        let Self { kernel_side, requests, .. } = self;
        if is_abandoned && !requests.work.is_idle() {
            // What belongs to the requests stays in memory, since the device may still use it.
            std::mem::forget(requests);
        }
        (result, (is_given_up || is_abandoned).then_some(kernel_side))
    }

    fn serve(&mut self) -> io::Result<()> {
        loop {
            let mut is_busy = self.take_completions(self.is_given_up())?;
            is_busy |= self.drive();
            while let Some((tag, result)) = self.requests.work.next_over() {
                is_busy = true;
                let Self { kernel_side: KernelSide { ring, exchange, .. }, requests, .. } = self;
                exchange.tell(ring, tag, result, requests.work.address(tag))?;
            }
            // This check follows the bell's end, because the bell may have been rung for it.
            if (!self.requests.has_kernel_tags || self.is_given_up()) && self.requests.work.is_idle() {
                // The last results: without them the kernel takes their requests for lost, and gives them out again.
                return if self.shared.outlives_server { self.enter_all() } else { self.fail() };
            }
            // As above, behind the bell's end.
            if self.is_abandoned() {
                if self.shared.outlives_server {
                    // The results that are there, as above.
                    self.enter_all()?;
                } else {
                    self.left.extend(self.requests.work.working());
                    self.fail()?;
                }
                return Err(io::Error::other("it was left with requests on their way"));
            }
            if is_busy {
                self.shared.nr_moves.fetch_add(1, Ordering::Relaxed);
                self.idle.end();
                self.kernel_side.ring.enter(0, None)?;
            } else {
                self.rest()?;
            }
        }
    }

    fn is_given_up(&self) -> bool {
        // Acquire: pairs with the release of the device that gives the queue up.
        self.shared.is_given_up.load(Ordering::Acquire)
    }

    /// Whether the thread is to end although the device has requests, which fail, or wait for the next server. Its
    /// end tells the kernel that no thread serves them. Otherwise the kernel would not let the process go: a thread
    /// that waits until the block device is removed waits for these requests, no signal ends it, and while it is
    /// there the process has the ring and the character device.
    fn is_abandoned(&self) -> bool {
        // Acquire: pairs with the release of the device that leaves the queue.
        self.shared.is_abandoned.load(Ordering::Acquire)
    }

    /// Fails the requests that are left, and all that come, until the kernel has given back every tag for good, or asks
    /// for nothing any more. In both cases it learns at once that the queue's thread is gone. While it has no tag,
    /// Linux 6.12 learns that only when a request is overdue, after 30 s.
    fn fail(&mut self) -> io::Result<()> {
        let Self { kernel_side: KernelSide { ring, exchange, .. }, shared, requests, left, .. } = self;
        let addr = if exchange.is_over() { 0 } else { requests.work.spare() };
        let mut last = Instant::now();
        // A thread that has not had a processor for long still answers what it has.
        while !exchange.is_over() {
            for tag in left.drain(..) {
                // The device may still have the tag's own buffer.
                exchange.tell(ring, tag, -libc::EIO, addr)?;
            }
            ring.enter(1, Some(QUIET))?;
            exchange.take(ring, true, |tag| left.push(tag))?;
            if !left.is_empty() {
                shared.nr_moves.fetch_add(1, Ordering::Relaxed);
                last = Instant::now();
            } else if last.elapsed() >= QUIET {
                break;
            }
        }
        requests.has_kernel_tags = !exchange.is_over();
        Ok(())
    }

    /// Hands over all that is to be told, at an end.
    fn enter_all(&mut self) -> io::Result<()> {
        for _ in 0..TRIES_AT_END {
            if self.kernel_side.ring.is_empty() {
                break;
            }
            self.kernel_side.ring.enter(0, None)?;
            // The ring may be full. Requests that come now are left to the next server, and what a command ends with
            // changes nothing any more.
            let _ = self.take_completions(true);
        }
        Ok(())
    }

    /// Takes completions off the ring. Returns whether any requests arrived or tags came back. Of requests that arrive
    /// when the queue is given up nothing is done here: they wait for the next server, or [`fail`](Self::fail).
    fn take_completions(&mut self, is_given_up: bool) -> io::Result<bool> {
        let Self { kernel_side: KernelSide { ring, exchange, descriptors }, requests, left, idle, .. } = self;
        let Requests { submitter, work, .. } = requests;
        let mut has_any = false;
        let taken = exchange.take(ring, false, |tag| {
            if !has_any {
                // This comes before the work for the device, which takes time.
                idle.arrive();
                work.set_now(submitter.queue().clock().now());
            }
            has_any = true;
            if is_given_up { left.push(tag) } else { work.arrive(tag, &descriptors.get(tag)) }
        });
        requests.has_kernel_tags = !exchange.is_over();
        taken
    }

    /// Submits what has arrived, drives the queue, and settles what is over. Returns whether there was anything.
    fn drive(&mut self) -> bool {
        let Requests { submitter, work, .. } = &mut self.requests;
        work.submit(submitter) | work.drive(submitter)
    }

    /// Polls again, or sleeps. Called when there was no work.
    fn rest(&mut self) -> io::Result<()> {
        // Like other submitters, the thread sleeps while the device works, and polls for new requests alone.
        let is_alone = self.requests.submitter.nr_outstanding() == 0;
        if is_alone && matches!(self.requests.submitter.queue().clock(), Clock::Real(_)) {
            if self.idle.poll() {
                return self.kernel_side.ring.enter(0, None);
            }
        } else {
            self.idle.give_up();
        }
        self.kernel_side.ring.sleep(&self.requests.submitter, self.requests.work.max_sleep())
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        if self.has_kernel_tags {
            // The kernel may still write into the buffers of its tags, until the thread is over.
            self.work.leave_buffers();
        }
    }
}
