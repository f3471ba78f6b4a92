//! Requests that are not answered yet.

use blkmq::{Buffer, Buffers, IoPriority, Time};

use crate::ask::{Ask, Hints};
use crate::failure::Failure;

/// The number of a task among those of its session: from 0 to one less than the requests that the bounds allow.
pub type TaskId = u16;

/// A request, from the time when it is taken until it is forgotten.
#[derive(Debug, Default)]
pub(super) struct Task {
    pub(super) ask: Ask,
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) priority: Option<IoPriority>,
    pub(super) hints: Hints,
    /// Zeroes are sent to the device as data, because it cannot make them itself.
    pub(super) by_writing: bool,
    /// The bytes of the device for which no operation was made yet: from `next` to `end`.
    pub(super) next: u64,
    pub(super) end: u64,
    /// Operations that were made and are not over.
    pub(super) outstanding: u32,
    /// Data of the request is still to come.
    pub(super) is_receiving: bool,
    /// When all data of the request was there. `None` if the request was refused.
    pub(super) taken: Option<Time>,
    /// Why the request failed, if it did. It is rare, and takes as little room as can be.
    pub(super) failure: Option<Box<Failure>>,
    /// Bytes that the request is charged for while it lasts.
    pub(super) charge: usize,
    /// Bytes of buffers that are promised to the request.
    pub(super) promised: usize,
    /// The data that was read, in whole blocks.
    pub(super) data: Vec<Buffer>,
    /// Bytes at the start of the data that the client did not ask for.
    pub(super) skip: usize,
    /// Bytes at the end of the data that the client did not ask for.
    pub(super) surplus: usize,
    /// Whether the front-end provides the buffers for the data.
    pub(super) is_external: bool,
    /// The buffers that the front-end provides, unless an operation has them.
    pub(super) external: Buffers,
}

impl Task {
    /// Returns the data that was read and that the client asked for.
    #[inline]
    pub(super) fn wanted(&self) -> impl Iterator<Item = &[u8]> {
        let last = self.data.len().wrapping_sub(1);
        self.data.iter().enumerate().map(move |(index, buffer)| {
            let from = if index == 0 { self.skip } else { 0 };
            let until = buffer.len() - if index == last { self.surplus } else { 0 };
            &buffer[from..until]
        })
    }
}

/// All tasks of a connection, in places that are used again. There are as many places as there were tasks at a time.
#[derive(Debug)]
pub(super) struct Tasks {
    most: u16,
    places: Vec<Task>,
    free: Vec<TaskId>,
}

impl Tasks {
    pub(super) fn new(most: u16) -> Self {
        Self { most, places: Vec::new(), free: Vec::new() }
    }

    #[cold]
    fn add(&mut self) -> Option<TaskId> {
        let id = TaskId::try_from(self.places.len()).ok().filter(|id| *id < self.most)?;
        self.places.push(Task::default());
        Some(id)
    }

    /// Takes a place, whose fields are left from its last use. `None` if all places are in use.
    #[inline]
    pub(super) fn take(&mut self) -> Option<TaskId> {
        self.free.pop().or_else(|| self.add())
    }

    #[inline]
    pub(super) fn give(&mut self, id: TaskId) {
        self.free.push(id);
    }

    #[inline]
    pub(super) fn get(&self, id: TaskId) -> &Task {
        &self.places[usize::from(id)]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: TaskId) -> &mut Task {
        &mut self.places[usize::from(id)]
    }

    /// Returns the tasks that change something and have operations in progress.
    pub(super) fn changing(&self) -> impl Iterator<Item = (TaskId, &Task)> {
        let is_changing = |task: &Task| task.outstanding > 0 && task.ask.changes();
        (0..).zip(&self.places).filter(move |(_, task)| is_changing(task))
    }

    #[inline]
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty() || self.places.len() < usize::from(self.most)
    }

    /// Returns true if every request is forgotten.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.free.len() == self.places.len()
    }
}
