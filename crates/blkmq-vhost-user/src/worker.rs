//! A thread that serves some of a device's rings.
//!
//! It goes round by round. It takes what has arrived on its rings, or a part of that ([`PROMPT_ROUND`]), submits that
//! together, takes what is over, and shows each guest's ring once what was given back. When there is nothing to be
//! done, it looks again or sleeps as [`blkmq::idle`] says. Another thread reaches it by its mailbox: so what a lane
//! has is one thread's at any time.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{io, thread};

use blkmq::event::EventFd;
use blkmq::idle::Idle;
use blkmq::{Bio, Clock, Notify, RejectReason, Submitter};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::lane::{Lane, Signals};
use crate::ring::{Chain, Fault};

/// The most requests that one ring gives a round where the device is done with all of a round before the round ends, as
/// memory is. The guest then works on the first answers, and asks for more, while this thread goes on. With longer
/// rounds the two would wait for each other by turns. Other devices get all that has arrived as one plug, since there
/// is more to be merged and put in order.
const PROMPT_ROUND: usize = 8;

/// A descriptor of a lane that may change while the lane works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    Call,
    Error,
}

/// Why a ring is to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Halt {
    /// It goes on when something is changed. What it has taken is done.
    Pause,
    /// It may never go on here. Of a request of many parts no further part is begun.
    End,
}

/// What a worker is asked for.
#[derive(Debug)]
pub(crate) enum Order {
    /// To serve a ring.
    Start(Box<Lane>),
    /// To give a ring back when nothing of it is in progress.
    Stop(u16, Halt, Sender<Box<Lane>>),
    Enable(u16, bool),
    Change(u16, Signal, Option<OwnedFd>),
    /// To end, once it has no ring.
    End,
}

/// What a worker tells of a ring that it does not serve any more, until the ring is stopped.
pub(crate) type Trouble = (u16, Fault);

/// What other threads leave for a worker.
#[derive(Debug)]
struct Mailbox {
    orders: Mutex<Vec<Order>>,
    /// Set behind an order.
    has_any: AtomicBool,
    /// The worker has panicked.
    is_lost: AtomicBool,
    bell: Arc<EventFd>,
}

/// A worker, as seen by the thread that started it.
#[derive(Debug)]
pub(crate) struct Worker {
    mailbox: Arc<Mailbox>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Worker {
    /// Starts a worker. Of rings with faults it tells by `troubles`, and rings `told` then, and when it panics.
    pub(crate) fn start(
        name: String,
        mut submitter: Submitter,
        troubles: Sender<Trouble>,
        told: Arc<EventFd>,
    ) -> io::Result<Self> {
        let bell = submitter.eventfd()?;
        let mailbox = Arc::new(Mailbox {
            orders: Mutex::default(),
            has_any: AtomicBool::new(false),
            is_lost: AtomicBool::new(false),
            bell,
        });
        let inside = Inside {
            mailbox: Arc::clone(&mailbox),
            submitter,
            lanes: Vec::new(),
            stops: Vec::new(),
            chain: Chain::default(),
            waiting: VecDeque::new(),
            first: 0,
            has_kicks: false,
            is_prompt: false,
            is_ending: false,
            idle: Idle::new(),
            troubles,
            told,
        };
        let thread = thread::Builder::new().name(name).spawn(move || inside.run())?;
        Ok(Self { mailbox, thread: Some(thread) })
    }

    /// Leaves an order.
    pub(crate) fn order(&self, order: Order) {
        self.mailbox.orders.lock().unwrap_or_else(PoisonError::into_inner).push(order);
        // Release: pairs with the Acquire of the worker's look, which then finds the order.
        self.mailbox.has_any.store(true, Ordering::Release);
        self.mailbox.bell.notify();
    }
}

impl Worker {
    /// Whether the worker's thread is over: it has panicked, for nothing has told it to end.
    pub(crate) fn has_ended(&self) -> bool {
        // Relaxed: nothing is read that the worker has left behind.
        let is_lost = self.mailbox.is_lost.load(Ordering::Relaxed);
        is_lost || self.thread.as_ref().is_none_or(thread::JoinHandle::is_finished)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.order(Order::End);
        if let Some(thread) = self.thread.take() {
            // The thread's panic was told by the hook, and its rings are lost with it.
            let _ = thread.join();
        }
    }
}

/// Tells the session when the worker panics. Dropped before what the worker has, which may take time to go.
struct Guard {
    mailbox: Arc<Mailbox>,
    told: Arc<EventFd>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if thread::panicking() {
            // Relaxed: the descriptor wakes the session, which looks anew at each step.
            self.mailbox.is_lost.store(true, Ordering::Relaxed);
            self.told.notify();
        }
    }
}

/// A ring, and how it is.
#[derive(Debug)]
struct Served {
    lane: Box<Lane>,
    is_broken: bool,
}

/// A worker's own.
#[derive(Debug)]
struct Inside {
    mailbox: Arc<Mailbox>,
    /// Before the lanes: its end waits for operations, and these have memory of the lanes.
    submitter: Submitter,
    lanes: Vec<Served>,
    stops: Vec<(u16, Sender<Box<Lane>>)>,
    chain: Chain,
    /// Operations that the submitter has not taken yet.
    waiting: VecDeque<Bio>,
    /// The ring that is looked at first.
    first: usize,
    /// Guests are asked to kick.
    has_kicks: bool,
    /// The device was done with all that the last round took, and had nothing before, within the round.
    is_prompt: bool,
    is_ending: bool,
    idle: Idle,
    troubles: Sender<Trouble>,
    told: Arc<EventFd>,
}

impl Inside {
    /// COST: no system call for a round in which something was done, but one for each guest that wants to be told.
    /// Before the thread sleeps: one for each look that the idle policy allows. One to sleep, and one for each guest
    /// that has kicked.
    fn run(mut self) {
        let _guard = Guard { mailbox: Arc::clone(&self.mailbox), told: Arc::clone(&self.told) };
        loop {
            // Acquire: pairs with the Release behind an order.
            if self.mailbox.has_any.load(Ordering::Acquire) {
                self.read_mail();
            }
            let was_idle = self.is_idle();
            let has_taken = self.take();
            let mut is_busy = has_taken | self.submit();
            is_busy |= self.drive();
            if has_taken {
                self.is_prompt = was_idle && self.is_idle();
            }
            for served in &mut self.lanes {
                served.lane.publish();
            }
            self.stop_idle();
            if self.is_ending && self.lanes.is_empty() {
                return;
            }
            if is_busy {
                self.idle.end();
            } else {
                self.rest();
            }
        }
    }

    fn read_mail(&mut self) {
        // Before the orders are taken: one that comes later sets it again.
        self.mailbox.has_any.store(false, Ordering::Release);
        let orders = std::mem::take(&mut *self.mailbox.orders.lock().unwrap_or_else(PoisonError::into_inner));
        for order in orders {
            match order {
                Order::Start(lane) => {
                    // What the guest has made available before this, it may have kicked for in vain.
                    self.has_kicks = false;
                    // What the last server has given back, it may not have told of. A guest whose event lies behind
                    // that would not be told of anything later either.
                    Signals::ring(lane.signals.call.as_ref());
                    self.lanes.push(Served { lane, is_broken: false });
                }
                Order::Stop(number, halt, done) => {
                    if let Some(lane) = self.lane(number) {
                        lane.begins_no_part = halt == Halt::End;
                    }
                    self.stops.push((number, done));
                }
                Order::Enable(number, is_enabled) => {
                    if let Some(lane) = self.lane(number) {
                        lane.is_enabled = is_enabled;
                    }
                }
                Order::Change(number, signal, file) => {
                    if let Some(lane) = self.lane(number) {
                        match signal {
                            Signal::Call => {
                                lane.signals.call = file;
                                // What was given back meanwhile, the guest may not know of.
                                Signals::ring(lane.signals.call.as_ref());
                            }
                            Signal::Error => lane.signals.error = file,
                        }
                    }
                }
                Order::End => self.is_ending = true,
            }
        }
    }

    fn lane(&mut self, number: u16) -> Option<&mut Lane> {
        self.lanes.iter_mut().find(|served| served.lane.number == number).map(|served| &mut *served.lane)
    }

    fn is_stopping(&self, number: u16) -> bool {
        self.is_ending || self.stops.iter().any(|(stopped, _)| *stopped == number)
    }

    /// Takes what has arrived. Returns whether there was anything.
    fn take(&mut self) -> bool {
        if !self.waiting.is_empty() {
            // No room: what is more is left with the guests.
            return false;
        }
        let mut has_any = false;
        for step in 0..self.lanes.len() {
            let index = (self.first + step) % self.lanes.len();
            let served = &self.lanes[index];
            if served.is_broken || !served.lane.is_open() || self.is_stopping(served.lane.number) {
                continue;
            }
            // A guest may go on asking for what is answered at once. Other rings, and orders, have their turn.
            let most = if self.is_prompt { PROMPT_ROUND } else { served.lane.size() };
            for _ in 0..most {
                let Self { lanes, chain, waiting, .. } = self;
                match lanes[index].lane.take(chain, waiting) {
                    Ok(true) => {
                        if !has_any {
                            has_any = true;
                            self.idle.arrive();
                        }
                    }
                    Ok(false) => break,
                    Err(fault) => {
                        self.give_up(index, fault);
                        break;
                    }
                }
            }
        }
        self.first = self.first.wrapping_add(1);
        if has_any && std::mem::take(&mut self.has_kicks) {
            self.lanes.iter_mut().for_each(|served| served.lane.refuse_kicks());
        }
        has_any
    }

    /// Serves a ring no more. What is in progress is still answered.
    fn give_up(&mut self, index: usize, fault: Fault) {
        let served = &mut self.lanes[index];
        served.is_broken = true;
        Signals::ring(served.lane.signals.error.as_ref());
        // A session that has ended needs no word.
        let _ = self.troubles.send((served.lane.number, fault));
        self.told.notify();
    }

    /// Hands operations to the submitter until it takes no more. Returns whether it took any.
    fn submit(&mut self) -> bool {
        let mut has_taken = false;
        while !self.waiting.is_empty() {
            let (taken, rejected) = self.submitter.submit_batch(&mut self.waiting);
            has_taken |= taken > 0;
            match rejected {
                Some(RejectReason::Bad(status)) => {
                    let bio = self.waiting.pop_front().expect("a rejected operation stays in front");
                    self.settle(bio, status);
                    has_taken = true;
                }
                _ => break,
            }
        }
        has_taken
    }

    fn settle(&mut self, bio: Bio, status: blkmq::Status) {
        let number = (bio.user_data >> 16) as u16;
        let Self { lanes, waiting, .. } = self;
        let served = lanes.iter_mut().find(|served| served.lane.number == number);
        served.expect("a ring stays until it is idle").lane.settle(bio, status, waiting);
    }

    /// Drives the queue, and settles the operations that are over. Returns whether there were any.
    fn drive(&mut self) -> bool {
        if self.submitter.nr_outstanding() == 0 {
            return false;
        }
        self.submitter.poll();
        let Self { submitter, lanes, waiting, .. } = self;
        let nr = submitter.reap_all(|done| {
            let number = (done.bio.user_data >> 16) as u16;
            let served = lanes.iter_mut().find(|served| served.lane.number == number);
            served.expect("a ring stays until it is idle").lane.settle(done.bio, done.status, waiting);
        });
        (nr > 0) | self.submit()
    }

    /// Whether nothing is with the queue, or waits for it.
    fn is_idle(&self) -> bool {
        self.submitter.nr_outstanding() == 0 && self.waiting.is_empty()
    }

    /// Gives back the rings that were asked for and have nothing in progress.
    fn stop_idle(&mut self) {
        let mut at = 0;
        while at < self.stops.len() {
            let number = self.stops[at].0;
            let index = self.lanes.iter().position(|served| served.lane.number == number);
            match index {
                Some(index) if !self.lanes[index].lane.is_idle() => at += 1,
                Some(index) => {
                    let (_, done) = self.stops.swap_remove(at);
                    // A session that has ended takes no ring back.
                    let _ = done.send(self.lanes.swap_remove(index).lane);
                }
                // Nobody waits for a ring that is not here.
                None => drop(self.stops.swap_remove(at)),
            }
        }
        if self.is_ending {
            self.lanes.retain(|served| !served.lane.is_idle());
        }
    }

    /// Called when there was nothing to do: looks again, or sleeps.
    fn rest(&mut self) {
        let is_waiting = self.submitter.nr_outstanding() > 0;
        let is_real = matches!(self.submitter.queue().clock(), Clock::Real(_));
        if !is_waiting && is_real && !self.is_ending && self.idle.look() {
            return;
        }
        if !self.has_kicks {
            self.has_kicks = true;
            let mut has_any = false;
            for index in 0..self.lanes.len() {
                if self.lanes[index].is_broken {
                    continue;
                }
                match self.lanes[index].lane.ask_for_kicks() {
                    Ok(is_there) => has_any |= is_there && self.can_take(index),
                    Err(fault) => self.give_up(index, fault),
                }
            }
            if has_any {
                return;
            }
        }
        self.sleep(is_waiting);
    }

    /// Whether a ring that has something may be taken from now. Otherwise, what ends that wakes this thread.
    fn can_take(&self, index: usize) -> bool {
        let lane = &self.lanes[index].lane;
        self.waiting.is_empty() && lane.is_open() && lane.has_room() && !self.is_stopping(lane.number)
    }

    /// Sleeps until a guest kicks, an operation completes, the queue wants to be driven, or an order comes.
    fn sleep(&mut self, is_waiting: bool) {
        // As in a connection of the NBD server: the device's descriptors may wait for a thread that polls, so they come
        // before the time is read.
        let device = if is_waiting { self.submitter.device_fds() } else { Vec::new() };
        let wakeup = self.submitter.next_wakeup();
        let clock = self.submitter.queue().clock();
        let timeout = wakeup.map(|wakeup| match clock {
            Clock::Virtual(_) => Duration::ZERO,
            Clock::Real(_) => Duration::from_nanos(wakeup.since(clock.now())),
        });
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let bell = self.mailbox.bell.as_fd();
        let kicked = |served: &&Served| served.lane.signals.kick.is_some();
        let kicks = self.lanes.iter().filter(kicked).filter_map(|served| served.lane.signals.kick.as_ref());
        let mut fds = vec![PollFd::from_borrowed_fd(bell, PollFlags::IN)];
        fds.extend(kicks.map(|kick| PollFd::new(kick, PollFlags::IN)));
        let nr_kicks = fds.len() - 1;
        fds.extend(device.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)));
        // The error is a signal or a lack of memory. In both cases the caller looks again.
        let nr_ready = poll(&mut fds, timeout.as_ref()).unwrap_or(0);
        if let (Clock::Virtual(clock), Some(wakeup), 0) = (clock, wakeup, nr_ready) {
            // As in a submitter's wait, sleeping moves a virtual clock.
            clock.advance_to(wakeup);
        }
        if !fds[0].revents().is_empty() {
            self.mailbox.bell.drain();
        }
        let ready: Vec<_> = fds[1..=nr_kicks].iter().map(PollFd::revents).collect();
        for (served, ready) in self.lanes.iter_mut().filter(|served| kicked(&&**served)).zip(ready) {
            if !ready.is_empty() {
                served.lane.drain_kicks();
            }
        }
    }
}
