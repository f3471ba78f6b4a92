//! Controller, buffer, channels and dies: when a command is over, as a function of what was asked before.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use blkmq_sched::Time;

use super::collector::Collector;
use super::config::Config;
use crate::driver::random;
use crate::request::limits::SECTOR_SIZE;

/// What a request asks for, as far as time is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CommandKind {
    Read,
    /// A write that is over when it is in the buffer.
    Write,
    /// A write that is over when it, and what came before it, is in the flash.
    WriteThrough,
    Flush,
    /// A change of the tables alone.
    Note,
}

/// A part that serves one request at a time, in order. A request counts from when it was asked, so that a transfer that
/// has to wait for its data does not block the way for others.
#[derive(Debug, Clone, Copy, Default)]
struct FifoServer {
    free: Time,
}

impl FifoServer {
    /// How long a request takes that is asked at `now` and takes `ns` by itself.
    fn take(&mut self, now: Time, ns: u64) -> u64 {
        self.free = self.free.max(now).after(ns);
        self.free.since(now)
    }
}

/// A die. Reads go before programs, but wait for the step that is under way.
#[derive(Debug, Clone, Copy, Default)]
struct Die {
    read_free: Time,
    /// When it has done all that it was given to program, and what it began to copy.
    program_free: Time,
    /// Rows that it copies when it has nothing else to do.
    debt: u64,
}

impl Die {
    /// Rows that a die owes at most. What it does not get to is part of the stretches in which all must be copied.
    const MAX_DEBT: u64 = 8;

    /// Brings the die up to `now`: while it had nothing to do, it copied. `step` is what copying a row takes.
    fn advance(&mut self, now: Time, step: u64) {
        let idle = now.since(self.read_free.max(self.program_free));
        if self.debt > 0 && idle > 0 {
            let begun = idle.div_ceil(step.max(1)).min(self.debt);
            self.debt -= begun;
            self.program_free = self.read_free.max(self.program_free).after(begun * step);
        }
    }
}

/// The SSD, as the times at which its parts are free. Nothing here waits or is looked at: the end of each command is
/// computed when the command comes. Such times are exact for a controller that takes commands in the order in which
/// they come.
#[derive(Debug)]
pub struct Flash {
    config: Config,
    /// When the last command came. The clocks of threads may differ a little.
    now: Time,
    /// When the controller can take on the next command, and how long one command occupies it.
    next_fetch: Time,
    per_command: u64,
    /// When each command that the controller works on is over. Some may be over already.
    at_work: BinaryHeap<Reverse<Time>>,
    /// For each row of the buffer that is full, when it is in the flash. Some may be there already.
    in_buffer: BinaryHeap<Reverse<Time>>,
    buffer_rows: usize,
    /// Bytes that were ever written, including what flushes left empty in rows.
    written: u64,
    /// When all that was written is in the flash, the row that is not full excepted.
    all_programmed: Time,
    next_die: usize,
    dies: Box<[Die]>,
    channels: Box<[FifoServer]>,
    to_computer: FifoServer,
    from_computer: FifoServer,
    collector: Collector,
}

/// Nanoseconds that so many bytes take.
fn transfer(bytes: u64, mbps: u64) -> u64 {
    bytes * 1000 / mbps
}

impl Flash {
    pub(super) fn new(config: Config) -> Self {
        let buffer_rows = (config.buffer / config.row()) as usize;
        Self {
            now: Time(0),
            next_fetch: Time(0),
            per_command: (1_000_000_000 + config.iops / 2) / config.iops,
            at_work: BinaryHeap::with_capacity(config.slots),
            in_buffer: BinaryHeap::with_capacity(buffer_rows),
            buffer_rows,
            written: 0,
            all_programmed: Time(0),
            next_die: 0,
            dies: vec![Die::default(); config.channels * config.dies].into(),
            channels: vec![FifoServer::default(); config.channels].into(),
            to_computer: FifoServer::default(),
            from_computer: FifoServer::default(),
            collector: Collector::new(&config),
            config,
        }
    }

    /// When a command that comes at `now` is over.
    ///
    /// COST: some comparisons per page, and a place in a heap as large as the controller's number of slots.
    pub(super) fn submit(&mut self, work: CommandKind, start: u64, nr_sectors: u64, now: Time) -> Time {
        self.now = self.now.max(now);
        let fetched = self.fetch();
        let (start, bytes) = (start * SECTOR_SIZE as u64, nr_sectors * SECTOR_SIZE as u64);
        let end = match work {
            CommandKind::Read => self.read(start, bytes, fetched),
            CommandKind::Write => self.write(bytes, fetched),
            CommandKind::WriteThrough => {
                let buffered = self.write(bytes, fetched);
                self.flush(buffered)
            }
            CommandKind::Flush => self.flush(fetched),
            CommandKind::Note => fetched,
        };
        self.at_work.push(Reverse(end));
        let is_write = matches!(work, CommandKind::Write | CommandKind::WriteThrough);
        end.after(if is_write { self.config.write_latency } else { self.config.latency })
    }

    /// When the controller takes the command on: in order, at its own pace, and not before it has a slot for the
    /// command.
    fn fetch(&mut self) -> Time {
        let mut at = self.now.max(self.next_fetch);
        if self.at_work.len() == self.config.slots
            && let Some(Reverse(first)) = self.at_work.pop()
        {
            at = at.max(first);
        }
        self.next_fetch = at.after(self.per_command);
        at
    }

    /// What a die takes to copy a row.
    fn copy(&self) -> u64 {
        self.config.row_pages * self.config.read + self.config.program
    }

    /// Where a page lies. Neighbours lie on neighbouring dies, and the first page of a row lies anywhere.
    fn place(&self, page: u64) -> (usize, u64) {
        let nr_dies = self.dies.len() as u64;
        let chance = random::of(self.config.seed, page / nr_dies);
        let die = (page % nr_dies + chance % nr_dies) % nr_dies;
        let is_slow = random::of(chance, page).is_multiple_of(3);
        (die as usize, if is_slow { self.config.read_slow } else { self.config.read })
    }

    fn read(&mut self, start: u64, bytes: u64, fetched: Time) -> Time {
        let (page, mut at, last) = (self.config.page, start, start + bytes);
        let mut end = fetched;
        while at < last {
            let piece = (page - at % page).min(last - at);
            let (number, read) = self.place(at / page);
            at += piece;
            let copy = self.copy();
            let die = &mut self.dies[number];
            die.advance(fetched, copy);
            let mut begin = fetched.max(die.read_free);
            let programming = die.program_free.since(begin);
            if programming > 0 {
                // Steps follow each other without a gap, so this is what is left of the present step.
                begin = begin.after(programming % self.config.program.max(1));
                die.program_free = die.program_free.after(read);
            }
            die.read_free = begin.after(read);
            let ready = die.read_free;
            let channel = &mut self.channels[number % self.config.channels];
            end = end.max(ready.after(channel.take(fetched, transfer(piece, self.config.channel_mbps))));
        }
        end.after(self.to_computer.take(fetched, transfer(bytes, self.config.link_mbps)))
    }

    /// When the data is in the buffer.
    fn write(&mut self, bytes: u64, fetched: Time) -> Time {
        let size = self.config.row();
        let (first, behind) = (self.written / size, (self.written + bytes).div_ceil(size));
        // The rows that this write begins, and the one that was begun before and is not full.
        let not_full = (behind - first) as usize;
        let mut has_room = fetched;
        while self.in_buffer.len() + not_full > self.buffer_rows
            && let Some(Reverse(gone)) = self.in_buffer.pop()
        {
            has_room = has_room.max(gone);
        }
        let buffered = has_room.after(self.from_computer.take(has_room, transfer(bytes, self.config.link_mbps)));
        self.written += bytes;
        (first..self.written / size).for_each(|_| self.program(buffered));
        buffered
    }

    /// A row of the buffer is full: the next die programs it.
    fn program(&mut self, now: Time) {
        let copies = self.collector.program(self.config.row());
        let copy = self.copy();
        let die = &mut self.dies[self.next_die];
        die.advance(now, copy);
        if copies == 0 {
            die.debt = (die.debt + self.config.gc_background).min(Die::MAX_DEBT);
        }
        die.program_free = die.program_free.max(now).after(copies * copy + self.config.program);
        self.all_programmed = self.all_programmed.max(die.program_free);
        self.in_buffer.push(Reverse(die.program_free));
        self.next_die = (self.next_die + 1) % self.dies.len();
    }

    /// When all that was written is in the flash, including a row that is not full.
    fn flush(&mut self, fetched: Time) -> Time {
        let size = self.config.row();
        if !self.written.is_multiple_of(size) {
            let at = fetched.max(self.from_computer.free);
            self.program(at);
            self.written = self.written.next_multiple_of(size);
        }
        fetched.max(self.all_programmed)
    }

    /// How many bytes can be written before the collection begins or ends, and whether rows are being copied first.
    pub(super) fn collection(&self) -> (u64, bool) {
        (self.collector.left(), self.collector.is_slow())
    }
}
