//! A thread that serves some of a device's rings.
//!
//! In each round it takes requests from its rings, at most [`PROMPT_ROUND`] of each if the device completes them at
//! once, submits them as one plug, answers completed ones, and publishes each ring's answers once. Without work it
//! polls again or sleeps, as [`blkmq::idle`] decides. Other threads send it orders, so each ring server belongs to one
//! thread at any time. Requests are tasks of the thread's session.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::{io, thread};

use blkmq::event::EventFd;
use blkmq::idle::Idle;
use blkmq::{Clock, Notify, Submitter};
use blkmq_engine::{PollFlags, Session, Watch};

use crate::external::{Lists, MAX_PIECES};
use crate::kicks::Kicks;
use crate::notifier::Notifier;
use crate::protocol::message::Signal;
use crate::ring::{Chain, Fault};
use crate::ring_server::{Own, RingServer, Signals};

/// The most requests that one ring gives a round where the device is done with all of a round before the round ends, as
/// memory is. The guest then works on the first answers, and asks for more, while this thread goes on. With longer
/// rounds the two would wait for each other by turns. Other devices get all that has arrived as one plug, since there
/// is more to be merged and put in order.
const PROMPT_ROUND: usize = 8;

/// Why a ring is to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Halt {
    /// It goes on when something is changed. What it has taken is done.
    Pause,
    /// It may never go on here. Of a request of many parts no further part is begun, and no request that is in the
    /// record and has still to wait for memory.
    End,
}

/// A message to a worker.
#[derive(Debug)]
pub(crate) enum Order {
    /// To serve a ring.
    Start(Box<RingServer>),
    /// To give a ring back when nothing of it is in progress.
    Stop(u16, Halt, Sender<Box<RingServer>>),
    Enable(u16, bool),
    /// To use another call or error descriptor.
    Change(u16, Signal, Option<OwnedFd>),
    /// To end, once it has no ring.
    End,
}

/// The number of a ring that a worker serves no more, and why.
pub(crate) type RingFault = (u16, Fault);

/// What a worker shares with other threads.
#[derive(Debug)]
struct Mailbox {
    orders: Mutex<Vec<Order>>,
    /// Set behind an order.
    has_any: AtomicBool,
    /// The worker has panicked.
    is_lost: AtomicBool,
    bell: Arc<EventFd>,
    kicks: Kicks,
    notifier: Notifier,
}

impl Mailbox {
    /// Signals an eventfd of the front-end, if there is one.
    fn signal(&self, eventfd: Option<&OwnedFd>) {
        eventfd.into_iter().for_each(|eventfd| self.notifier.signal(eventfd));
    }
}

/// A worker, as seen by the thread that started it.
#[derive(Debug)]
pub(crate) struct Worker {
    mailbox: Arc<Mailbox>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Worker {
    /// Starts a worker, which `bell` wakes; the submitter notifies it. Of rings with faults the worker tells by
    /// `faults`, and rings `connection_bell` then, and when it panics.
    pub(crate) fn start(
        name: String,
        (submitter, session, bell): (Submitter, Session<Own>, Arc<EventFd>),
        faults: Sender<RingFault>,
        connection_bell: Arc<EventFd>,
    ) -> io::Result<Self> {
        let mailbox = Arc::new(Mailbox {
            orders: Mutex::default(),
            has_any: AtomicBool::new(false),
            is_lost: AtomicBool::new(false),
            bell,
            kicks: Kicks::new()?,
            notifier: Notifier::new()?,
        });
        let thread = WorkerThread {
            mailbox: Arc::clone(&mailbox),
            submitter,
            session,
            ring_servers: Vec::new(),
            stops: Vec::new(),
            chain: Chain::default(),
            lists: Lists::default(),
            first: 0,
            has_kicks: false,
            is_prompt: false,
            is_ending: false,
            idle: Idle::new(),
            faults,
            connection_bell,
        };
        let thread = thread::Builder::new().name(name).spawn(move || thread.run())?;
        Ok(Self { mailbox, thread: Some(thread) })
    }

    /// Has the worker serve a ring.
    ///
    /// # Errors
    /// The system cannot wait for the ring's kicks.
    pub(crate) fn begin(&self, ring_server: Box<RingServer>) -> io::Result<()> {
        ring_server.signals.kick.iter().try_for_each(|kick| self.mailbox.kicks.add(kick))?;
        self.order(Order::Start(ring_server));
        Ok(())
    }

    /// The descriptors of a ring that the worker has given back.
    pub(crate) fn signals_of(&self, ring_server: RingServer) -> Signals {
        let signals = ring_server.signals;
        signals.kick.iter().for_each(|kick| self.mailbox.kicks.remove(kick));
        signals
    }

    /// Whether a descriptor of the front-end is an eventfd.
    pub(crate) fn is_eventfd(&self, file: &OwnedFd) -> bool {
        self.mailbox.notifier.is_eventfd(file)
    }

    /// Leaves an order.
    pub(crate) fn order(&self, order: Order) {
        self.mailbox.orders.lock().unwrap_or_else(PoisonError::into_inner).push(order);
        // Release: pairs with the worker's Acquire, so that a worker which sees the flag finds the order.
        self.mailbox.has_any.store(true, Ordering::Release);
        self.mailbox.bell.notify();
    }

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

/// Notifies the connection when the worker panics. Dropped before the worker's operations, which may take time to end.
struct Guard {
    mailbox: Arc<Mailbox>,
    connection_bell: Arc<EventFd>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if thread::panicking() {
            // Relaxed: the bell wakes the connection, which re-checks at each step.
            self.mailbox.is_lost.store(true, Ordering::Relaxed);
            self.connection_bell.notify();
        }
    }
}

fn find(ring_servers: &mut [Box<RingServer>], number: u16) -> Option<&mut Box<RingServer>> {
    ring_servers.iter_mut().find(|ring_server| ring_server.number == number)
}

/// What the thread of a worker has.
#[derive(Debug)]
struct WorkerThread {
    mailbox: Arc<Mailbox>,
    /// Before the session and the ring servers: its end waits for operations, which belong to the session's tasks and
    /// have memory of the ring servers.
    submitter: Submitter,
    session: Session<Own>,
    #[expect(clippy::vec_box, reason = "a ring server comes and goes in a box")]
    ring_servers: Vec<Box<RingServer>>,
    stops: Vec<(u16, Sender<Box<RingServer>>)>,
    chain: Chain,
    lists: Lists,
    /// The ring that is polled first.
    first: usize,
    /// Guests are asked to kick.
    has_kicks: bool,
    /// The device was done with all that the last round took, and had nothing before, within the round.
    is_prompt: bool,
    is_ending: bool,
    idle: Idle,
    faults: Sender<RingFault>,
    connection_bell: Arc<EventFd>,
}

impl WorkerThread {
    /// COST: no system call for a round in which something was done, but one for each guest that wants to be told.
    /// Before the thread sleeps: one for each poll that the idle policy allows. One to sleep, and one more if a guest
    /// has kicked.
    fn run(mut self) {
        let _guard = Guard { mailbox: Arc::clone(&self.mailbox), connection_bell: Arc::clone(&self.connection_bell) };
        loop {
            // Acquire: pairs with the Release behind an order.
            if self.mailbox.has_any.load(Ordering::Acquire) {
                self.read_mail();
            }
            let was_idle = self.session.is_idle();
            let has_taken = self.take();
            let mut is_busy = has_taken | self.session.submit(&mut self.submitter);
            is_busy |= self.session.drive(&mut self.submitter);
            is_busy |= self.finish();
            if has_taken {
                self.is_prompt = was_idle && self.session.is_idle();
            }
            for ring_server in &mut self.ring_servers {
                if ring_server.publish() {
                    self.mailbox.signal(ring_server.signals.call.as_ref());
                }
            }
            self.stop_idle();
            if self.is_ending && self.ring_servers.is_empty() {
                return self.session.leave();
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
                Order::Start(ring_server) => {
                    // A stop that is left was one more for the ring as it was before, which has been given back.
                    self.stops.retain(|(stopped, _)| *stopped != ring_server.number);
                    // The guest may have kicked before this ring was watched.
                    self.has_kicks = false;
                    // What the last server has given back, it may not have told of. A guest whose event lies behind
                    // that would not be told of anything later either.
                    self.mailbox.signal(ring_server.signals.call.as_ref());
                    self.ring_servers.push(ring_server);
                }
                Order::Stop(number, halt, done) => {
                    let Self { ring_servers, session, .. } = self;
                    if let (Halt::End, Some(ring_server)) = (halt, find(ring_servers, number)) {
                        ring_server.begin_no_part(session);
                    }
                    self.stops.push((number, done));
                }
                Order::Enable(number, is_enabled) => {
                    if let Some(ring_server) = find(&mut self.ring_servers, number) {
                        ring_server.is_enabled = is_enabled;
                    }
                }
                Order::Change(number, signal, file) => {
                    if let Some(ring_server) = find(&mut self.ring_servers, number) {
                        *ring_server.signals.get_mut(signal) = file;
                        if signal == Signal::Call {
                            // What was given back meanwhile, the guest may not know of.
                            self.mailbox.signal(ring_server.signals.call.as_ref());
                        }
                    }
                }
                Order::End => self.is_ending = true,
            }
        }
    }

    fn is_stopping(&self, number: u16) -> bool {
        self.is_ending || self.stops.iter().any(|(stopped, _)| *stopped == number)
    }

    /// Takes what has arrived. Returns whether there was anything.
    fn take(&mut self) -> bool {
        let mut has_any = false;
        for ring_server in &mut self.ring_servers {
            has_any |= ring_server.catch_up(&mut self.session);
        }
        if self.session.has_backlog() {
            // No room: what is more is left with the guests.
            return has_any;
        }
        let (mut has_new, mut nr_pieces) = (false, self.nr_pieces());
        for step in 0..self.ring_servers.len() {
            let index = (self.first + step) % self.ring_servers.len();
            if !self.is_served(index) {
                continue;
            }
            // A guest may go on asking for what is answered at once. Other rings, and orders, have their turn.
            let most = if self.is_prompt { PROMPT_ROUND } else { self.ring_servers[index].size.into() };
            let Self { ring_servers, chain, lists, session, submitter, idle, .. } = self;
            let ring_server = &mut ring_servers[index];
            for _ in 0..most {
                if !session.has_room() || nr_pieces >= MAX_PIECES {
                    break;
                }
                match ring_server.take(chain) {
                    Ok(Some(taken)) => {
                        if !has_new {
                            has_new = true;
                            idle.arrive();
                            session.set_now(submitter.queue().clock().now());
                        }
                        nr_pieces -= ring_server.nr_pieces;
                        ring_server.begin(taken, chain, session, lists);
                        nr_pieces += ring_server.nr_pieces;
                    }
                    Ok(None) => break,
                    Err(fault) => {
                        self.give_up(index, fault);
                        break;
                    }
                }
            }
        }
        self.first = self.first.wrapping_add(1);
        if has_new && std::mem::take(&mut self.has_kicks) {
            self.ring_servers.iter_mut().for_each(|ring_server| ring_server.virtqueue.refuse_kicks());
        }
        has_any | has_new
    }

    /// The pieces of all requests in progress. They take memory that counts as no client's, so they have a bound.
    fn nr_pieces(&self) -> usize {
        self.ring_servers.iter().map(|ring_server| ring_server.nr_pieces).sum()
    }

    /// Whether requests are taken from this ring.
    fn is_served(&self, index: usize) -> bool {
        let ring_server = &self.ring_servers[index];
        !ring_server.is_broken && ring_server.is_enabled && !self.is_stopping(ring_server.number)
    }

    /// Serves a ring no more. What is in progress is still answered.
    fn give_up(&mut self, index: usize, fault: Fault) {
        let ring_server = &mut self.ring_servers[index];
        ring_server.is_broken = true;
        self.mailbox.signal(ring_server.signals.error.as_ref());
        // A connection that has ended needs no word.
        let _ = self.faults.send((ring_server.number, fault));
        self.connection_bell.notify();
    }

    /// Answers what is over. Returns whether there was anything.
    fn finish(&mut self) -> bool {
        let Self { session, ring_servers, lists, .. } = self;
        let mut has_any = false;
        while let Some((id, failure)) = session.next_finished() {
            has_any = true;
            let ring_server = find(ring_servers, session.own(id).ring);
            ring_server.expect("a ring stays until it is idle").finish(id, failure, session, lists);
        }
        if has_any {
            session.shrink();
        }
        has_any
    }

    /// Gives back the rings that were asked for and have nothing in progress.
    fn stop_idle(&mut self) {
        let mut at = 0;
        while at < self.stops.len() {
            let number = self.stops[at].0;
            let index = self.ring_servers.iter().position(|ring_server| ring_server.number == number);
            match index {
                Some(index) if !self.ring_servers[index].is_idle() => at += 1,
                Some(index) => {
                    let (_, done) = self.stops.swap_remove(at);
                    // A connection that has ended takes no ring back.
                    let _ = done.send(self.ring_servers.swap_remove(index));
                }
                // Nobody waits for a ring that is not here.
                None => drop(self.stops.swap_remove(at)),
            }
        }
        if self.is_ending {
            self.ring_servers.retain(|ring_server| !ring_server.is_idle());
        }
    }

    /// Polls again, or sleeps. Called after a round without work.
    fn rest(&mut self) {
        let is_waiting = self.submitter.nr_outstanding() > 0;
        let is_real = matches!(self.submitter.queue().clock(), Clock::Real(_));
        if !is_waiting && is_real && !self.is_ending && self.idle.poll() {
            return;
        }
        if !self.has_kicks {
            self.has_kicks = true;
            let mut has_any = false;
            for index in 0..self.ring_servers.len() {
                if self.ring_servers[index].is_broken {
                    continue;
                }
                match self.ring_servers[index].virtqueue.ask_for_kicks() {
                    Ok(is_there) => has_any |= is_there && self.can_take(index),
                    Err(fault) => self.give_up(index, fault),
                }
            }
            if has_any {
                return;
            }
        }
        self.sleep();
    }

    /// Whether a ring that has something may be taken from now. Otherwise, what ends that wakes this thread.
    fn can_take(&self, index: usize) -> bool {
        let has_room = !self.session.has_backlog() && self.session.has_room() && self.nr_pieces() < MAX_PIECES;
        has_room && self.is_served(index) && self.ring_servers[index].has_room()
    }

    /// Sleeps until a guest kicks, an operation completes, the queue wants to be driven, or an order comes.
    fn sleep(&mut self) {
        let Self { submitter, session, mailbox, .. } = self;
        let mut watches = [Watch::new(&mailbox.kicks, PollFlags::IN)];
        // The kernel is out of memory. The caller polls again.
        let _ = blkmq_engine::sleep(submitter, &mut watches, &mailbox.bell, session.max_sleep());
        if !watches[0].ready.is_empty() {
            mailbox.kicks.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use blkmq_engine::FrontEnd;

    use super::*;
    use crate::ring::tests::Guest;
    use crate::ring_server::Terms;
    use crate::ring_server::tests::{Hand, engine};

    /// Red before a stop that came once more, when the ring had just been given back, was forgotten: it took the ring
    /// that was started after it, and the connection waited for that ring forever.
    #[test]
    fn a_stop_takes_no_ring_that_is_started_later() {
        let engine = engine("ram,size=1M");
        let Hand { mut submitter, session, .. } = Hand::new(&engine, FrontEnd::VhostUser);
        let [bell, connection_bell] = [(); 2].map(|()| Arc::new(EventFd::new().unwrap()));
        submitter.set_notify(Some(bell.clone()));
        let worker =
            Worker::start("test".to_owned(), (submitter, session, bell), channel().0, connection_bell).unwrap();
        let guest = Guest::new(8, false, true);
        let ring_server = RingServer::new(0, 8, guest.ring(), &guest.memory, Arc::new(Terms::plain()));
        // The two orders come together.
        let mut orders = worker.mailbox.orders.lock().unwrap();
        orders.push(Order::Stop(0, Halt::End, channel().0));
        orders.push(Order::Start(Box::new(ring_server)));
        drop(orders);
        let (done, ring_servers) = channel();
        worker.order(Order::Enable(0, true));
        worker.order(Order::Stop(0, Halt::End, done));
        assert!(ring_servers.recv().is_ok(), "the ring is there");
    }
}
