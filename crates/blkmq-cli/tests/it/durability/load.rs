//! A random load of writes, zeroes, discards and flushes, by one client of several, each in a part of the device of its
//! own.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

use blkmq::{Bio, Buffer, Flags, Submitter};

use crate::device::Random;
use crate::durability::journal::Log;
use crate::durability::ledger::{Ledger, SECTOR};
use crate::served::{FLUSH, FUA, Nbd, TRIM, WRITE, WRITE_ZEROES};

/// Bytes of a block. Each operation covers whole blocks.
pub(crate) const BLOCK: usize = 4096;
/// Blocks of each client.
const BLOCKS: usize = 24;
/// Bytes of all clients.
pub(crate) const fn bytes_of(nr_clients: usize) -> usize {
    nr_clients * BLOCKS * BLOCK
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Write,
    Zero,
    Discard,
    Flush,
}

/// An operation, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Operation {
    pub(crate) kind: Kind,
    pub(crate) bytes: Range<usize>,
    /// Durable when it is answered.
    pub(crate) fua: bool,
    /// A flush comes first.
    pub(crate) preflush: bool,
}

/// Where operations go.
pub(crate) trait Port {
    /// Whether an operation may ask for a flush before it.
    const HAS_PREFLUSH: bool;

    /// Whether an operation is durable when it is answered. `wished`: the load wants it so.
    fn is_durable(&self, _kind: Kind, wished: bool) -> bool {
        wished
    }

    /// Asks for an operation. Returns false if the server is gone.
    fn ask(&mut self, operation: &Operation, cookie: u64, data: &[u8]) -> bool;

    /// Waits for an answer: the cookie, and whether the operation is done. `None` if the server is gone.
    fn answer(&mut self) -> Option<(u64, bool)>;
}

impl Port for Nbd {
    const HAS_PREFLUSH: bool = false;

    fn ask(&mut self, operation: &Operation, cookie: u64, data: &[u8]) -> bool {
        let kind = match operation.kind {
            Kind::Write => WRITE,
            Kind::Zero => WRITE_ZEROES,
            Kind::Discard => TRIM,
            Kind::Flush => FLUSH,
        };
        let flags = if operation.fua { FUA } else { 0 };
        let Range { start, end } = operation.bytes;
        self.try_send(flags, kind, cookie, start as u64, (end - start) as u32, data).is_ok()
    }

    fn answer(&mut self) -> Option<(u64, bool)> {
        self.receive().map(|(cookie, error)| (cookie, error == 0))
    }
}

impl Port for Submitter {
    const HAS_PREFLUSH: bool = true;

    fn ask(&mut self, operation: &Operation, cookie: u64, data: &[u8]) -> bool {
        let (sector, nr) = ((operation.bytes.start / SECTOR) as u64, (operation.bytes.len() / SECTOR) as u64);
        let bio = match operation.kind {
            Kind::Write => Bio::write(sector, Buffer::from(data)),
            Kind::Zero => Bio::write_zeroes(sector, nr),
            Kind::Discard => Bio::discard(sector, nr),
            Kind::Flush => Bio::flush(),
        };
        let flags = Flags { fua: operation.fua, preflush: operation.preflush, ..Flags::default() };
        self.submit(bio.with_flags(flags).with_user_data(cookie)).expect("there is a slot");
        true
    }

    fn answer(&mut self) -> Option<(u64, bool)> {
        self.wait(1, None);
        let done = self.reap().expect("something is outstanding");
        Some((done.bio.user_data, done.status.is_ok()))
    }
}

/// What an answer to an operation promises.
struct Promise {
    operation: Operation,
    number: u64,
    /// What the operation's flush covers: the operation is a flush, or asks for one before it.
    covered: Option<Vec<u64>>,
}

/// One client.
pub(crate) struct Worker<'a, P> {
    pub(crate) port: P,
    number: usize,
    random: Random,
    ledger: &'a Mutex<Ledger>,
    log: Option<&'a Log>,
    flushes: bool,
    promises: BTreeMap<u64, Promise>,
    next_cookie: u64,
    pub(crate) answers: u64,
    pub(crate) errors: u64,
}

impl<'a, P: Port> Worker<'a, P> {
    /// The client with this number. The client's random choices follow from the seed.
    pub(crate) fn new(port: P, number: usize, seed: u64, ledger: &'a Mutex<Ledger>) -> Self {
        let random = Random(seed.wrapping_mul(31).wrapping_add(number as u64));
        let promises = BTreeMap::new();
        Self { port, number, random, ledger, log: None, flushes: true, promises, next_cookie: 0, answers: 0, errors: 0 }
    }

    /// Tells the log what is asked and answered.
    pub(crate) fn logged(mut self, log: &'a Log) -> Self {
        self.log = Some(log);
        self
    }

    /// Makes the worker ask for no flush, so that only FUA makes anything durable.
    pub(crate) fn without_flushes(mut self) -> Self {
        self.flushes = false;
        self
    }

    fn ledger(&self) -> MutexGuard<'a, Ledger> {
        self.ledger.lock().expect("no test goes on after a panic")
    }

    /// This many steps, each of which asks for an operation or takes an answer. Returns false if the server is gone.
    pub(crate) fn steps(&mut self, count: u64) -> bool {
        const MOST: usize = 16;
        (0..count).all(|_| {
            let asks = self.promises.is_empty() || self.promises.len() < MOST && !self.random.one_in(3);
            if asks { self.ask() } else { self.take_answer() }
        })
    }

    /// Takes the answers that are still to come. Returns false if the server is gone.
    pub(crate) fn finish(&mut self) -> bool {
        while !self.promises.is_empty() {
            if !self.take_answer() {
                return false;
            }
        }
        true
    }

    fn operation(&mut self) -> Operation {
        let kind = match self.random.below(20) {
            0..=12 => Kind::Write,
            13..=14 => Kind::Zero,
            15 => Kind::Discard,
            _ if self.flushes => Kind::Flush,
            _ => Kind::Write,
        };
        if kind == Kind::Flush {
            return Operation { kind, bytes: 0..0, fua: false, preflush: false };
        }
        let first = self.random.below(BLOCKS as u64) as usize;
        let len = 1 + self.random.below(4.min((BLOCKS - first) as u64)) as usize;
        let start = (self.number * BLOCKS + first) * BLOCK;
        let fua = self.random.one_in(4);
        let preflush = P::HAS_PREFLUSH && kind == Kind::Write && self.random.one_in(8);
        let fua = self.port.is_durable(kind, fua);
        Operation { kind, bytes: start..start + len * BLOCK, fua, preflush }
    }

    /// Asks for an operation, unless it would overlap with one in progress: then the order of the two is not known.
    fn ask(&mut self) -> bool {
        let operation = self.operation();
        let Range { start, end } = operation.bytes;
        let meets = |promise: &Promise| promise.operation.bytes.start < end && start < promise.operation.bytes.end;
        if operation.kind != Kind::Flush && self.promises.values().any(meets) {
            return true;
        }
        let (mut number, mut covered) = (0, None);
        {
            let mut ledger = self.ledger();
            if operation.kind == Kind::Flush || operation.preflush {
                covered = Some(ledger.covered());
            }
            if operation.kind != Kind::Flush {
                number = ledger.asked(start / SECTOR..end / SECTOR, operation.kind != Kind::Write);
            }
        }
        let data =
            if operation.kind == Kind::Write { number.to_le_bytes().repeat((end - start) / 8) } else { Vec::new() };
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        if let Some(log) = self.log {
            log.operation(self.number, cookie, &operation);
        }
        let is_asked = self.port.ask(&operation, cookie, &data);
        self.promises.insert(cookie, Promise { operation, number, covered });
        is_asked
    }

    fn take_answer(&mut self) -> bool {
        let Some((cookie, is_done)) = self.port.answer() else { return false };
        if let Some(log) = self.log {
            log.over(self.number, cookie, is_done);
        }
        let Promise { operation, number, covered } =
            self.promises.remove(&cookie).expect("what was asked for is answered once");
        if is_done {
            let mut ledger = self.ledger();
            if let Some(covered) = covered {
                ledger.flushed(&covered);
            }
            if operation.kind != Kind::Flush {
                let sectors = operation.bytes.start / SECTOR..operation.bytes.end / SECTOR;
                ledger.answered(sectors, number, operation.fua);
            }
        }
        self.answers += 1;
        self.errors += u64::from(!is_done);
        true
    }
}
