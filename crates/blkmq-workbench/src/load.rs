//! What a trace asks of a device: its operations, when each was submitted, and how long each took.

use std::collections::{HashMap, VecDeque};

use blkmq::{Class, Flags, Op};

use crate::blktrace::{Action, Category, Event};
use crate::{Classes, Latencies};

/// Which events of a trace are its operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Q: bios, as applications submitted them.
    Bios,
    /// I: requests as they were inserted, in a trace without Q.
    Insertions,
    /// D: requests as the device took them, in a trace without Q and I.
    Issues,
}

/// An operation of a trace. Times are nanoseconds since the first one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// The task that submitted it, numbered in the order of their first operations.
    pub process: usize,
    /// When it was submitted.
    pub time: u64,
    /// When the plug in which it waited was emptied; `time` if there was no plug.
    pub unplugged: u64,
    /// What to do.
    pub op: Op,
    /// First sector, in units of 512 bytes.
    pub sector: u64,
    /// Length in sectors.
    pub nr_sectors: u64,
    /// How to do it.
    pub flags: Flags,
    /// Its priority class.
    pub class: Class,
}

/// What happened to the operations under Linux.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Traced {
    /// Operations whose completion is in the trace.
    pub completed: u64,
    /// Bios and requests that joined a request.
    pub merges: u64,
    /// Requests that the device took.
    pub requests: u64,
    /// Nanoseconds from the first operation to the last completion.
    pub duration: u64,
    /// From an operation to its completion.
    pub latencies: Latencies,
    /// The most operations that each process had outstanding.
    pub peaks: Vec<usize>,
}

/// The operations of a trace.
#[derive(Debug, Clone, PartialEq)]
pub struct Load {
    /// The kind of events that the operations were taken from.
    pub source: Source,
    /// In the order in which they were submitted.
    pub operations: Vec<Operation>,
    /// What happened to them under Linux.
    pub traced: Traced,
}

impl Load {
    /// Takes the operations from `events`, ordered by time, and their priority classes from `classes`.
    #[must_use]
    pub fn new(events: &[Event<'_>], classes: &Classes) -> Self {
        let has = |action| events.iter().any(|event| event.action == action);
        let (source, action) = if has(Action::Queue) {
            (Source::Bios, Action::Queue)
        } else if has(Action::Insert) {
            (Source::Insertions, Action::Insert)
        } else {
            (Source::Issues, Action::Issue)
        };
        let mut reader = Reader::new(classes, action);
        for event in events.iter().filter(|event| is_io(event)) {
            reader.step(event);
        }
        Self { source, operations: reader.operations, traced: reader.traced }
    }

    /// The number of processes that submitted something.
    #[must_use]
    pub fn nr_processes(&self) -> usize {
        self.traced.peaks.len()
    }
}

/// Reads a trace event by event.
struct Reader<'a> {
    classes: &'a Classes,
    /// The kind of event that is an operation.
    action: Action,
    operations: Vec<Operation>,
    traced: Traced,
    processes: HashMap<u32, usize>,
    tasks: Vec<Task>,
    /// The time of the first operation.
    origin: u64,
    /// Pieces that have not completed, by direction and first sector, the oldest first.
    pieces: HashMap<(bool, u64), VecDeque<Piece>>,
    /// Flushes that have not completed. Flushes have no sectors.
    flushes: VecDeque<usize>,
    /// How many pieces of each operation have not completed.
    left: Vec<u32>,
}

/// What is known of a process.
#[derive(Debug, Default)]
struct Task {
    /// Whether a plug is open.
    plugged: bool,
    /// Operations that may still be in the plug.
    held: Vec<usize>,
    outstanding: usize,
}

/// A part of an operation that completes as one piece: the whole operation, unless that was split.
#[derive(Debug, Clone, Copy)]
struct Piece {
    operation: usize,
    end: u64,
}

impl<'a> Reader<'a> {
    fn new(classes: &'a Classes, action: Action) -> Self {
        Self {
            classes,
            action,
            operations: Vec::new(),
            traced: Traced::default(),
            processes: HashMap::new(),
            tasks: Vec::new(),
            origin: 0,
            pieces: HashMap::new(),
            flushes: VecDeque::new(),
            left: Vec::new(),
        }
    }

    fn step(&mut self, event: &Event<'_>) {
        if event.action == self.action {
            self.begin(event);
        }
        match event.action {
            Action::Plug => {
                if let Some(task) = self.task(event) {
                    task.plugged = true;
                }
            }
            Action::Unplug | Action::UnplugTimer => {
                self.unplug(event);
                if let Some(task) = self.task(event) {
                    task.plugged = false;
                }
            }
            Action::Insert => self.unplug(event),
            Action::Issue => {
                self.traced.requests += 1;
                self.unplug(event);
            }
            Action::BackMerge | Action::FrontMerge => {
                self.traced.merges += 1;
                // A process without a plug merges in the scheduler, so the operation is in the scheduler now.
                if self.task(event).is_some_and(|task| !task.plugged) {
                    self.unplug(event);
                }
            }
            Action::Split => self.split(event),
            Action::Complete => self.complete(event),
            _ => {}
        }
    }

    /// The state of the process that an event belongs to, if it has submitted anything.
    fn task(&mut self, event: &Event<'_>) -> Option<&mut Task> {
        let process = self.processes.get(&event.pid)?;
        self.tasks.get_mut(*process)
    }

    /// Called when an operation is submitted.
    fn begin(&mut self, event: &Event<'_>) {
        if self.operations.is_empty() {
            self.origin = event.time;
        }
        let index = self.operations.len();
        let process = *self.processes.entry(event.pid).or_insert(self.tasks.len());
        if process == self.tasks.len() {
            self.tasks.push(Task::default());
            self.traced.peaks.push(0);
        }
        let task = &mut self.tasks[process];
        task.held.push(index);
        task.outstanding += 1;
        self.traced.peaks[process] = self.traced.peaks[process].max(task.outstanding);
        let time = event.time.saturating_sub(self.origin);
        let operation = operation(event, process, time, self.classes.of(event.sector));
        if operation.op == Op::Flush {
            self.flushes.push_back(index);
        } else if let Some(end) = event.sector.checked_add(operation.nr_sectors) {
            self.add_piece(event.is_write(), event.sector, Piece { operation: index, end });
        }
        self.operations.push(operation);
        self.left.push(1);
    }

    fn add_piece(&mut self, is_write: bool, sector: u64, piece: Piece) {
        self.pieces.entry((is_write, sector)).or_default().push_back(piece);
    }

    /// Called when a process empties its plug: the operations in it go on.
    fn unplug(&mut self, event: &Event<'_>) {
        let time = event.time.saturating_sub(self.origin);
        let held = self.task(event).map(|task| std::mem::take(&mut task.held)).unwrap_or_default();
        // An operation that has completed cannot be in the plug any more, whatever the trace says of the plug.
        for index in held.into_iter().filter(|index| self.left[*index] > 0) {
            self.operations[index].unplugged = time;
        }
    }

    /// Called when an operation is split: it goes on in two pieces. The event is about the first piece.
    fn split(&mut self, event: &Event<'_>) {
        let Some(middle) = event.sector.checked_add(u64::from(event.nr_sectors())) else { return };
        let Some(pieces) = self.pieces.get_mut(&(event.is_write(), event.sector)) else { return };
        let Some(whole) = pieces.back_mut().filter(|whole| event.sector < middle && middle < whole.end) else { return };
        let rest = *whole;
        whole.end = middle;
        self.left[rest.operation] += 1;
        self.add_piece(event.is_write(), middle, rest);
    }

    /// Called when a request completes. Every piece of the request completes with it.
    fn complete(&mut self, event: &Event<'_>) {
        if !self.operations.is_empty() {
            self.traced.duration = event.time.saturating_sub(self.origin);
        }
        if event.bytes == 0 {
            if let Some(index) = self.flushes.pop_front() {
                self.finish(index, event);
            }
            return;
        }
        let end = event.sector.saturating_add(u64::from(event.nr_sectors()));
        let mut at = event.sector;
        while at < end
            && let Some(pieces) = self.pieces.get_mut(&(event.is_write(), at))
            && let Some(piece) = pieces.pop_front()
        {
            if piece.end > end {
                self.add_piece(event.is_write(), end, piece);
            } else {
                self.finish(piece.operation, event);
            }
            at = piece.end.max(at + 1);
        }
    }

    /// Called when a piece of an operation has completed.
    fn finish(&mut self, index: usize, event: &Event<'_>) {
        self.left[index] -= 1;
        if self.left[index] > 0 {
            return;
        }
        let operation = self.operations[index];
        let end = event.time.saturating_sub(self.origin);
        self.traced.completed += 1;
        self.traced.latencies.record(operation.op, end.saturating_sub(operation.time));
        self.tasks[operation.process].outstanding -= 1;
    }
}

/// Whether an event is about I/O of the block layer's own operations.
fn is_io(event: &Event<'_>) -> bool {
    !matches!(event.action, Action::Notify | Action::Message) && !event.category.contains(Category::PASSTHROUGH)
}

fn operation(event: &Event<'_>, process: usize, time: u64, class: Class) -> Operation {
    let has = |bit| event.category.contains(bit);
    let op = if event.bytes == 0 && has(Category::FLUSH) {
        Op::Flush
    } else if has(Category::DISCARD) {
        Op::Discard
    } else if event.is_write() {
        Op::Write
    } else {
        Op::Read
    };
    let flags = Flags {
        sync: has(Category::SYNC),
        preflush: op == Op::Write && has(Category::FLUSH),
        fua: has(Category::FUA),
        readahead: has(Category::AHEAD),
        meta: has(Category::META),
        ..Flags::default()
    };
    let sector = if op == Op::Flush { 0 } else { event.sector };
    // A length that is not a multiple of a sector is rounded up.
    let nr_sectors = u64::from(event.bytes).div_ceil(512);
    Operation { process, time, unplugged: time, op, sector, nr_sectors, flags, class }
}
