//! Errors of the device: what they make of a task, and how they are logged.

use std::sync::Arc;

use blkmq::SECTOR_SIZE;
use blkmq::{Bio, Op, Status};

use super::task::Task;
use crate::ask::Ask;
use crate::engine::Engine;
use crate::failure::Failure;
use crate::log::Topic;

/// Called when an operation of the task ended with an error. The task fails, unless there is another way to do it.
pub(super) fn note_failure(task: &mut Task, bio: &Bio, status: Status) {
    let is_refused = matches!(status, Status::Unsupported | Status::NotPermitted);
    if let (Op::WriteZeroes, true, Ask::WriteZeroes { fast: false, .. }) = (bio.op, is_refused, task.ask) {
        // The device cannot write zeroes after all, or not in this way. From here on the zeroes are sent as data. Such
        // a task has one operation at a time.
        task.by_writing = true;
        task.next = bio.sector * SECTOR_SIZE as u64;
        return;
    }
    if task.failure.is_none() {
        task.failure = Failure::of_status(status).map(Box::new);
    }
}

/// Logs the failed operations of a connection, once for each kind: a full disk may fail thousands in a second.
pub(super) struct Failures {
    engine: Arc<Engine>,
    /// The client's number.
    client: u64,
    /// The number of its export.
    export: usize,
    told: Vec<(Op, Status)>,
}

impl Failures {
    pub(super) fn new(engine: Arc<Engine>, client: u64, export: usize) -> Self {
        Self { engine, client, export, told: Vec::new() }
    }

    /// Called when the device failed an operation.
    #[cold]
    pub(super) fn note(&mut self, bio: &Bio, status: Status) {
        let kind = (bio.op, status);
        if self.told.contains(&kind) {
            return;
        }
        self.told.push(kind);
        let (client, name) = (self.client, &self.engine.exports[self.export].name);
        let what = match bio.op {
            Op::Read => "a read",
            Op::Write => "a write",
            Op::Flush => "a flush",
            Op::Discard => "a discard",
            Op::WriteZeroes => "a write of zeroes",
        };
        let place = if bio.op == Op::Flush { String::new() } else { format!(" at sector {}", bio.sector) };
        self.engine.warn(Topic::Device, format_args!(
            "client {client}, export {name:?}: {what}{place} failed: {status}; further ones of this client are not told"
        ));
    }
}

impl std::fmt::Debug for Failures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Failures").field("told", &self.told).finish_non_exhaustive()
    }
}
