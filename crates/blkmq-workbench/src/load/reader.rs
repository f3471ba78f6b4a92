//! Reads a trace event by event, and follows its operations until they complete.

use std::collections::btree_map::{BTreeMap, Entry};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::mem;

use blkmq::Op;

use super::lane::Lane;
use super::spool::Record;
use super::{FOLLOWED, Load, MAX_LANES, Source, Traced};
use crate::Classes;
use crate::blktrace::{Action, Event};

pub(super) struct Reader<'a> {
    classes: &'a Classes,
    /// The kind of event that is an operation.
    source: Source,
    /// The number of operations so far, which is the number of the next one.
    nr_operations: u64,
    has_changes: bool,
    end: u64,
    traced: Traced,
    processes: HashMap<u32, usize>,
    /// The process of the last event of a process that has submitted anything: its pid, and its number. Events of one
    /// process often come in a row.
    last: Option<(u32, usize)>,
    tasks: Vec<Task>,
    /// The time of the first operation.
    origin: u64,
    /// The operations that have not completed, by number.
    followed: BTreeMap<u64, OpenOperation>,
    /// Pieces that have not completed, by direction and first sector, the oldest first.
    pieces: HashMap<(bool, u64), VecDeque<Piece>>,
    /// Flushes that have not completed. Flushes have no sectors.
    flushes: VecDeque<u64>,
    /// Operations that are no longer followed although they have not completed, and whose pieces may still be there.
    abandoned: u64,
    lanes: Vec<Lane>,
}

/// What is known of a process.
#[derive(Debug, Default)]
struct Task {
    /// Whether a plug is open.
    plugged: bool,
    /// Operations that may still be in the plug, in order.
    held: VecDeque<u64>,
    outstanding: usize,
}

/// An operation that has not completed.
#[derive(Debug, Clone, Copy)]
struct OpenOperation {
    process: usize,
    record: Record,
    /// How many pieces of it have not completed.
    left: u32,
    /// It may still be in its task's plug.
    is_held: bool,
}

/// A part of an operation that completes as one piece: the whole operation, unless that was split.
#[derive(Debug, Clone, Copy)]
struct Piece {
    operation: u64,
    end: u64,
}

impl<'a> Reader<'a> {
    pub(super) fn new(classes: &'a Classes, source: Source) -> Self {
        Self {
            classes,
            source,
            nr_operations: 0,
            has_changes: false,
            end: 0,
            traced: Traced::default(),
            processes: HashMap::new(),
            last: None,
            tasks: Vec::new(),
            origin: 0,
            followed: BTreeMap::new(),
            pieces: HashMap::new(),
            flushes: VecDeque::new(),
            abandoned: 0,
            lanes: Vec::new(),
        }
    }

    pub(super) const fn source(&self) -> Source {
        self.source
    }

    /// Begins anew with operations of another kind, of which there were none yet. Events before the first operation
    /// count, and have no other effect.
    pub(super) fn restart(&mut self, source: Source) {
        let Traced { merges, requests, .. } = self.traced;
        *self = Self { traced: Traced { merges, requests, ..Traced::default() }, ..Self::new(self.classes, source) };
    }

    /// Takes in the next event.
    ///
    /// # Errors
    /// A temporary file cannot be written.
    pub(super) fn step(&mut self, event: &Event) -> io::Result<()> {
        if Source::of(event.action) == Some(self.source) {
            self.begin(event)?;
        }
        match event.action {
            Action::Plug => {
                if let Some(task) = self.task(event) {
                    task.plugged = true;
                }
            }
            Action::Unplug | Action::UnplugTimer => {
                self.unplug(event)?;
                if let Some(task) = self.task(event) {
                    task.plugged = false;
                }
            }
            Action::Insert => self.unplug(event)?,
            Action::Issue => {
                self.traced.requests += 1;
                self.unplug(event)?;
            }
            Action::BackMerge | Action::FrontMerge => {
                self.traced.merges += 1;
                // A process without a plug merges in the scheduler, so the operation is in the scheduler now.
                if self.task(event).is_some_and(|task| !task.plugged) {
                    self.unplug(event)?;
                }
            }
            Action::Split => self.split(event),
            Action::Complete => self.complete(event)?,
            _ => {}
        }
        Ok(())
    }

    /// Ends the trace. Operations that may still be in a plug were in none.
    ///
    /// # Errors
    /// A temporary file cannot be written.
    pub(super) fn finish(mut self) -> io::Result<Load> {
        while let Some((number, followed)) = self.followed.pop_first() {
            self.abandon(number, followed)?;
        }
        Ok(Load {
            source: self.source,
            traced: self.traced,
            nr_operations: self.nr_operations,
            has_changes: self.has_changes,
            end: self.end,
            spools: self.lanes.into_iter().map(|lane| lane.spool.finish()).collect::<io::Result<_>>()?,
        })
    }

    /// The state of the process that an event belongs to, if it has submitted anything.
    fn task(&mut self, event: &Event) -> Option<&mut Task> {
        let process = match self.last {
            Some((pid, process)) if pid == event.pid => process,
            _ => *self.processes.get(&event.pid)?,
        };
        self.last = Some((event.pid, process));
        self.tasks.get_mut(process)
    }

    /// The number of the process that an event belongs to, in the order of the first operations.
    fn process(&mut self, event: &Event) -> usize {
        let process = *self.processes.entry(event.pid).or_insert(self.tasks.len());
        if process == self.tasks.len() {
            self.tasks.push(Task::default());
            self.traced.peaks.push(0);
            if process < MAX_LANES {
                self.lanes.push(Lane::new());
            }
        }
        process
    }

    /// Called when an operation is submitted.
    fn begin(&mut self, event: &Event) -> io::Result<()> {
        if self.nr_operations == 0 {
            self.origin = event.time;
        }
        let number = self.nr_operations;
        self.nr_operations += 1;
        let process = self.process(event);
        let task = &mut self.tasks[process];
        task.held.push_back(number);
        task.outstanding += 1;
        self.traced.peaks[process] = self.traced.peaks[process].max(task.outstanding);
        let record = Record::new(event, event.time.saturating_sub(self.origin), self.classes.of(event.sector));
        self.lanes[process % MAX_LANES].begin(number, record.time);
        let operation = record.operation();
        self.has_changes |= !matches!(operation.op, Op::Read | Op::Flush);
        self.end = self.end.max(operation.sector.saturating_add(operation.nr_sectors));
        if operation.op == Op::Flush {
            self.flushes.push_back(number);
        } else if let Some(end) = event.sector.checked_add(operation.nr_sectors) {
            self.add_piece(event.is_write(), event.sector, Piece { operation: number, end });
        }
        self.followed.insert(number, OpenOperation { process, record, left: 1, is_held: true });
        self.abandon_before((number + 1).saturating_sub(FOLLOWED))
    }

    fn add_piece(&mut self, is_write: bool, sector: u64, piece: Piece) {
        self.pieces.entry((is_write, sector)).or_default().push_back(piece);
    }

    /// Follows no operation of a number below `horizon` any more.
    fn abandon_before(&mut self, horizon: u64) -> io::Result<()> {
        while let Some(first) = self.followed.first_entry().filter(|first| *first.key() < horizon) {
            let (number, followed) = first.remove_entry();
            self.abandon(number, followed)?;
            self.abandoned += 1;
        }
        if self.abandoned == FOLLOWED {
            self.abandoned = 0;
            self.flushes.retain(|number| self.followed.contains_key(number));
            self.pieces.retain(|_, pieces| {
                pieces.retain(|piece| self.followed.contains_key(&piece.operation));
                !pieces.is_empty()
            });
        }
        Ok(())
    }

    /// Called when an operation is followed no more. It then counts as in no plug.
    fn abandon(&mut self, number: u64, followed: OpenOperation) -> io::Result<()> {
        if followed.is_held { self.leave_plug(number, &followed) } else { Ok(()) }
    }

    /// Called when it is known when an operation left its plug.
    fn leave_plug(&mut self, number: u64, followed: &OpenOperation) -> io::Result<()> {
        let OpenOperation { process, record, .. } = *followed;
        let held = &mut self.tasks[process].held;
        if let Ok(at) = held.binary_search(&number) {
            held.remove(at);
        }
        self.lanes[process % MAX_LANES].unplug(number, record)
    }

    /// Called when a process empties its plug: the operations in it go on.
    fn unplug(&mut self, event: &Event) -> io::Result<()> {
        let time = event.time.saturating_sub(self.origin);
        let held = self.task(event).map(|task| mem::take(&mut task.held)).unwrap_or_default();
        for number in held {
            let Some(followed) = self.followed.get_mut(&number) else { continue };
            followed.is_held = false;
            followed.record.unplugged = time;
            let followed = *followed;
            self.leave_plug(number, &followed)?;
        }
        Ok(())
    }

    /// Called when an operation is split: it goes on in two pieces. The event is about the first piece.
    fn split(&mut self, event: &Event) {
        let Some(middle) = event.sector.checked_add(u64::from(event.nr_sectors())) else { return };
        let Some(pieces) = self.pieces.get_mut(&(event.is_write(), event.sector)) else { return };
        let Some(whole) = pieces.back_mut().filter(|whole| event.sector < middle && middle < whole.end) else { return };
        let Some(followed) = self.followed.get_mut(&whole.operation) else { return };
        followed.left += 1;
        let rest = *whole;
        whole.end = middle;
        self.add_piece(event.is_write(), middle, rest);
    }

    /// Called when a request completes. Every piece of the request completes with it.
    fn complete(&mut self, event: &Event) -> io::Result<()> {
        if self.nr_operations > 0 {
            self.traced.duration = event.time.saturating_sub(self.origin);
        }
        if event.bytes == 0 {
            return self.flushes.pop_front().map_or(Ok(()), |number| self.finish_piece(number, event));
        }
        let end = event.sector.saturating_add(u64::from(event.nr_sectors()));
        let mut at = event.sector;
        while at < end
            && let Some(piece) = self.take_piece(event.is_write(), at)
        {
            if piece.end > end {
                self.add_piece(event.is_write(), end, piece);
            } else {
                self.finish_piece(piece.operation, event)?;
            }
            at = piece.end.max(at + 1);
        }
        Ok(())
    }

    /// Removes the oldest piece that begins at a sector.
    fn take_piece(&mut self, is_write: bool, sector: u64) -> Option<Piece> {
        let pieces = self.pieces.get_mut(&(is_write, sector))?;
        let piece = pieces.pop_front();
        if pieces.is_empty() {
            self.pieces.remove(&(is_write, sector));
        }
        piece
    }

    /// Called when a piece of an operation has completed.
    fn finish_piece(&mut self, number: u64, event: &Event) -> io::Result<()> {
        let Entry::Occupied(mut followed) = self.followed.entry(number) else { return Ok(()) };
        followed.get_mut().left -= 1;
        if followed.get().left > 0 {
            return Ok(());
        }
        let followed = followed.remove();
        let OpenOperation { process, record, .. } = followed;
        let end = event.time.saturating_sub(self.origin);
        self.traced.completed += 1;
        self.traced.latencies.record(record.op(), end.saturating_sub(record.time));
        self.tasks[process].outstanding -= 1;
        // An operation that has completed cannot be in the plug any more, whatever the trace says of the plug.
        self.abandon(number, followed)
    }

    /// How many entries there are of operations that have not completed.
    #[cfg(test)]
    pub(super) fn nr_open(&self) -> usize {
        let pieces: usize = self.pieces.values().map(VecDeque::len).sum();
        self.followed.len() + pieces + self.flushes.len()
    }
}
