//! The disk as a machine: what happens at which time, as a function of what was asked when.

use std::collections::VecDeque;
use std::fmt;

use blkmq_sched::{RqId, Time};

use super::cache::{Cache, Extent};
use super::config::Config;
use super::mechanics::Mechanics;
use super::read_ahead::ReadAhead;
use crate::driver::pending::Commands;
use crate::request::Status;
use crate::request::limits::SECTOR_SIZE;

/// What the interface needs for a command beside its data, in nanoseconds.
const LINK_OVERHEAD: u64 = 10_000;

/// The longest piece that is written back without looking whether a read waits, in sectors: 1 MiB.
const WRITE_BACK_MOST: u64 = 2048;

/// How many other commands may be preferred to a command before it comes first. A real disk bounds this by a timer;
/// what matters here is a bound.
const MOST_OVERTAKEN: u64 = 256;

/// What a request asks for, as far as time is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CommandKind {
    Read,
    /// A write that is done when it is on the platter.
    WriteThrough,
    /// A write that is done when it is in the cache.
    WriteCached,
    Flush,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Command {
    pub(super) id: RqId,
    pub(super) status: Status,
    pub(super) work: CommandKind,
    pub(super) start: u64,
    pub(super) end: u64,
}

#[derive(Debug)]
enum Task {
    Command(Command),
    WriteBack(Extent),
}

/// The disk. Every list is as long as the queue is deep, so nothing is allocated once the disk is made.
///
/// Nothing here depends on how often the disk is looked at: events take place in the order of their times, however late
/// [`advance`](Self::advance) is told of the time.
#[derive(Debug)]
pub struct Drive {
    link_mbps: u64,
    now: Time,
    mechanics: Mechanics,
    cache: Cache,
    read_ahead: ReadAhead,
    /// Commands that wait for the heads, the oldest first, each with how many choices had been made before it came.
    mechanical: Vec<(u64, Command)>,
    choices: u64,
    /// Whether the heads wrote back last: reads and writing back take turns while both are wanted.
    wrote_back: bool,
    /// Writes that wait for room in the cache, and flushes, in the order in which they came.
    cached: VecDeque<Command>,
    /// Data on its way between computer and disk, each with the time when it has arrived; one after the other.
    link: VecDeque<(Time, Command)>,
    link_free: Time,
    /// What the heads are doing, and until when.
    job: Option<(Time, Task)>,
    /// Commands that are over, and since when.
    finished: VecDeque<(Time, Command)>,
}

impl From<&Config> for Drive {
    fn from(config: &Config) -> Self {
        let depth = usize::from(config.hw_queue_depth);
        let sectors = |bytes: u64| bytes / SECTOR_SIZE as u64;
        Self {
            link_mbps: config.link_mbps,
            now: Time(0),
            mechanics: Mechanics::new(config),
            cache: Cache::new(config.cache_segments, sectors(config.cache_size)),
            read_ahead: ReadAhead::new(sectors(config.read_ahead), sectors(config.size)),
            mechanical: Vec::with_capacity(depth),
            choices: 0,
            wrote_back: false,
            cached: VecDeque::with_capacity(depth),
            link: VecDeque::with_capacity(depth),
            link_free: Time(0),
            job: None,
            finished: VecDeque::with_capacity(depth),
        }
    }
}

impl Drive {
    /// Takes a command at the time that [`advance`](Self::advance) was told last.
    pub(super) fn submit(&mut self, command: Command) {
        debug_assert!(
            command.start < command.end || command.work == CommandKind::Flush,
            "a read or a write has sectors: {command:?}"
        );
        match command.work {
            CommandKind::WriteCached | CommandKind::Flush => self.cached.push_back(command),
            CommandKind::Read if self.has_in_memory(command) => self.transfer(command),
            CommandKind::Read | CommandKind::WriteThrough => {
                self.mechanical.push((self.choices, command));
            }
        }
        self.go_on();
    }

    /// Lets everything happen that happens until `now`. If an earlier call told a later time, that time counts.
    pub(super) fn advance(&mut self, now: Time) {
        while let Some(due) = self.next_step()
            && due <= now
        {
            self.now = due;
            // When data arrives at the same time as the heads finish, it is known when they choose what to do next.
            if self.link.front().is_some_and(|(arrival, _)| *arrival == due) {
                self.end_transfer();
            } else {
                self.end_job();
            }
            self.go_on();
        }
        self.now = self.now.max(now);
    }

    /// When something happens next, whether a command is then over or not.
    fn next_step(&self) -> Option<Time> {
        let transfer = self.link.front().map(|(due, _)| *due);
        let job = self.job.as_ref().map(|(due, _)| *due);
        transfer.into_iter().chain(job).min()
    }

    pub(super) fn pop(&mut self) -> Option<(Time, Command)> {
        self.finished.pop_front()
    }

    /// Commands that are not over, and sectors of the cache that are to be written.
    pub(super) fn load(&self) -> (usize, u64) {
        let at_work = usize::from(matches!(&self.job, Some((_, Task::Command(_)))));
        let waiting = self.mechanical.len() + self.cached.len() + self.link.len() + at_work;
        (waiting, self.cache.dirty_sectors())
    }

    /// What the lists hold without allocating.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> [usize; 5] {
        let Self { mechanical, cached, link, finished, cache, .. } = self;
        [mechanical.capacity(), cached.capacity(), link.capacity(), finished.capacity(), cache.capacity()]
    }

    fn has_in_memory(&mut self, Command { start, end, .. }: Command) -> bool {
        self.cache.covers(start, end) || self.read_ahead.look(start, end, self.now, &self.mechanics)
    }

    fn finish(&mut self, command: Command) {
        self.finished.push_back((self.now, command));
    }

    fn transfer(&mut self, command: Command) {
        let bytes = (command.end - command.start) * SECTOR_SIZE as u64;
        let ns = bytes * 1000 / self.link_mbps;
        self.link_free = self.link_free.max(self.now).after(ns + LINK_OVERHEAD);
        self.link.push_back((self.link_free, command));
    }

    fn end_transfer(&mut self) {
        let Some((_, command)) = self.link.pop_front() else { return };
        if command.work == CommandKind::WriteCached {
            self.cache.insert(command.start, command.end);
        }
        self.finish(command);
    }

    fn end_job(&mut self) {
        let Some((_, task)) = self.job.take() else { return };
        match task {
            Task::WriteBack(piece) => {
                self.mechanics.moved_to(piece.end);
                self.cache.written(piece);
            }
            Task::Command(command) => {
                self.mechanics.moved_to(command.end);
                if command.work == CommandKind::Read {
                    self.read_ahead.begin(command.start, command.end, self.now);
                }
                self.finish(command);
            }
        }
    }

    /// Starts what can be started now.
    fn go_on(&mut self) {
        self.admit();
        if self.job.is_none() {
            self.dispatch();
        }
    }

    /// Admits writes to the cache in order, as long as there is room. A flush among them is over when all before it is
    /// on the platter.
    fn admit(&mut self) {
        while let Some(&command) = self.cached.front() {
            if command.work == CommandKind::Flush {
                if !self.cache.is_clean() {
                    return;
                }
                self.finish(command);
            } else if self.cache.reserve(command.end - command.start) {
                self.transfer(command);
            } else {
                return;
            }
            self.cached.pop_front();
        }
    }

    /// Gives the idle heads something to do: a command, or some of the cache if no command waits for them. If the cache
    /// must make room or become clean, the two take turns.
    fn dispatch(&mut self) {
        let is_wanted = self.mechanical.is_empty() || (!self.cached.is_empty() && !self.wrote_back);
        if is_wanted && let Some(piece) = self.cache.take(self.mechanics.position(), WRITE_BACK_MOST) {
            self.wrote_back = true;
            self.start(Task::WriteBack(piece), piece.start, piece.end);
        } else if let Some(nearest) = self.nearest() {
            self.wrote_back = false;
            self.choices += 1;
            let command = self.mechanical.remove(nearest).1;
            let mut start = command.start;
            if command.work == CommandKind::Read {
                start = self.read_ahead.rest(command.start, command.end, self.now, &self.mechanics);
            }
            self.start(Task::Command(command), start, command.end);
        }
    }

    /// The command with the shortest access time, and among equals the oldest, unless a command was overtaken too
    /// often.
    fn nearest(&self) -> Option<usize> {
        let (choices_before, _) = self.mechanical.first()?;
        if self.choices - choices_before >= MOST_OVERTAKEN {
            return Some(0);
        }
        (0..self.mechanical.len()).min_by_key(|&at| self.mechanics.wait(self.mechanical[at].1.start, self.now))
    }

    fn start(&mut self, task: Task, start: u64, end: u64) {
        self.read_ahead.end(self.now, &self.mechanics);
        let took = self.mechanics.wait(start, self.now) + self.mechanics.transfer(end - start);
        self.job = Some((self.now.after(took), task));
    }
}

impl Commands for Drive {
    fn next_event(&self) -> Option<Time> {
        self.finished.front().map(|(at, _)| *at).or_else(|| self.next_step())
    }

    fn pop_finished(&mut self, now: Time) -> Option<(RqId, Status)> {
        self.advance(now);
        self.pop().map(|(_, command)| (command.id, command.status))
    }

    /// Tells what the heads and the interface are working on. Which of the other commands the heads choose next is not
    /// known before they are free: a command that comes meanwhile may be nearer.
    fn due_times(&self) -> impl Iterator<Item = (RqId, Time)> {
        let timed = self.finished.iter().chain(&self.link).map(|(at, command)| (command.id, *at));
        let job = self.job.iter().filter_map(|(due, task)| match task {
            Task::Command(command) => Some((command.id, *due)),
            Task::WriteBack(_) => None,
        });
        timed.chain(job)
    }

    /// Gives up a command as far as it can be told from others. What the heads or the interface are working on goes on,
    /// and then belongs to no command.
    fn forget(&mut self, id: RqId) {
        self.mechanical.retain(|(_, command)| command.id != id);
        self.cached.retain(|command| command.id != id);
        self.finished.retain(|(_, command)| command.id != id);
    }

    /// The lists are as long as the queue is deep.
    fn reserve(&mut self, _depth: usize) {}

    fn show(&self, _hctx: usize, out: &mut dyn fmt::Write) -> fmt::Result {
        let (commands, dirty) = self.load();
        writeln!(out, "commands={commands} dirty_sectors={dirty}")
    }
}
