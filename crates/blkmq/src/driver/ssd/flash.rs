//! Controller, buffer, channels and dies: when a command is over, as a function of what was asked before.

use blkmq_sched::Time;

use super::collector::Collector;
use super::config::Config;
use crate::driver::random;
use crate::request::limits::SECTOR_SIZE;

/// What a request asks for, as far as time is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
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
struct Way {
    free: Time,
}

impl Way {
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
    program_free: Time,
}

/// The SSD, as the times at which its parts are free. Nothing here waits or is looked at: the end of each command is
/// computed when the command comes. Such times are exact for a controller that takes commands in the order in which
/// they come.
#[derive(Debug)]
pub(super) struct Flash {
    config: Config,
    /// When the last command came. The clocks of threads may differ a little.
    now: Time,
    /// When the controller can take on the next command, and how long one command occupies it.
    next_fetch: Time,
    per_command: u64,
    /// For each of the last writes, when it had found room in the buffer.
    had_room: Box<[Time]>,
    nr_writes: usize,
    /// For each place of the buffer, when its page is in the flash.
    programmed: Box<[Time]>,
    /// Bytes that were ever written, including what flushes left empty in pages.
    written: u64,
    /// When all that was written is in the flash, the page that is not full excepted.
    all_programmed: Time,
    next_die: usize,
    dies: Box<[Die]>,
    channels: Box<[Way]>,
    to_computer: Way,
    from_computer: Way,
    collector: Collector,
}

/// Nanoseconds that so many bytes take.
fn transfer(bytes: u64, rate: u64) -> u64 {
    (u128::from(bytes) * 1_000_000_000 / u128::from(rate)) as u64
}

impl Flash {
    pub(super) fn new(config: Config) -> Self {
        Self {
            now: Time(0),
            next_fetch: Time(0),
            per_command: (1_000_000_000 + config.iops / 2) / config.iops,
            had_room: vec![Time(0); config.write_slots].into(),
            nr_writes: 0,
            programmed: vec![Time(0); (config.buffer / config.page) as usize].into(),
            written: 0,
            all_programmed: Time(0),
            next_die: 0,
            dies: vec![Die::default(); config.channels * config.dies].into(),
            channels: vec![Way::default(); config.channels].into(),
            to_computer: Way::default(),
            from_computer: Way::default(),
            collector: Collector::new(&config),
            config,
        }
    }

    /// When a command that comes at `now` is over.
    ///
    /// COST: some comparisons per page.
    pub(super) fn submit(&mut self, work: Work, start: u64, nr_sectors: u64, now: Time) -> Time {
        self.now = self.now.max(now);
        let is_write = matches!(work, Work::Write | Work::WriteThrough);
        let fetched = self.fetch(is_write);
        let (start, bytes) = (start * SECTOR_SIZE as u64, nr_sectors * SECTOR_SIZE as u64);
        let end = match work {
            Work::Read => self.read(start, bytes, fetched),
            Work::Write => self.write(bytes, fetched),
            Work::WriteThrough => {
                let buffered = self.write(bytes, fetched);
                self.flush(buffered)
            }
            Work::Flush => self.flush(fetched),
            Work::Note => fetched,
        };
        end.after(self.config.latency)
    }

    /// When the controller takes the command on: in order, at its own pace, and not while too many writes wait for
    /// room.
    fn fetch(&mut self, is_write: bool) -> Time {
        let mut at = self.now.max(self.next_fetch);
        if is_write {
            at = at.max(self.had_room[self.nr_writes % self.had_room.len()]);
        }
        self.next_fetch = at.after(self.per_command);
        at
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
            let die = &mut self.dies[number];
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
            end = end.max(ready.after(channel.take(fetched, transfer(piece, self.config.channel_rate))));
        }
        end.after(self.to_computer.take(fetched, transfer(bytes, self.config.link_rate)))
    }

    /// When the data is in the buffer.
    fn write(&mut self, bytes: u64, fetched: Time) -> Time {
        let page = self.config.page;
        let (first, behind) = (self.written / page, (self.written + bytes).div_ceil(page));
        // Each place that the data touches is free when its earlier page is in the flash.
        let nr_places = self.programmed.len() as u64;
        let room = (first..behind).map(|page| self.programmed[(page % nr_places) as usize]).max();
        let has_room = room.map_or(fetched, |room| room.max(fetched));
        let slots = self.had_room.len();
        self.had_room[self.nr_writes % slots] = has_room;
        self.nr_writes += 1;
        let buffered = has_room.after(self.from_computer.take(has_room, transfer(bytes, self.config.link_rate)));
        self.written += bytes;
        (first..self.written / page).for_each(|page| self.program(page, buffered));
        buffered
    }

    /// A page of the buffer is full: the next die programs it.
    fn program(&mut self, page: u64, now: Time) {
        let copies = self.collector.program(self.config.page, now);
        let die = &mut self.dies[self.next_die];
        let copying = copies * (self.config.read + self.config.program);
        die.program_free = die.program_free.max(now).after(copying + self.config.program);
        self.all_programmed = self.all_programmed.max(die.program_free);
        let nr_places = self.programmed.len() as u64;
        self.programmed[(page % nr_places) as usize] = die.program_free;
        self.next_die = (self.next_die + 1) % self.dies.len();
    }

    /// When all that was written is in the flash, including a page that is not full.
    fn flush(&mut self, fetched: Time) -> Time {
        let page = self.config.page;
        if !self.written.is_multiple_of(page) {
            let at = fetched.max(self.from_computer.free);
            self.program(self.written / page, at);
            self.written = self.written.next_multiple_of(page);
        }
        fetched.max(self.all_programmed)
    }

    /// How much of the spare is used, in bytes, and whether pages are being copied.
    pub(super) fn collection(&self) -> (u64, bool) {
        (self.collector.used(), self.collector.is_slow())
    }
}
