//! Requests whose data lies in memory that the front-end has brought, as that of a virtual machine.

use blkmq::{Bio, Buffers};

use super::edges::changing;
use super::task::{Task, TaskId};
use super::{Desk, fits};
use crate::ask::{Ask, Request};
use crate::failure::{Cause, Failure};

impl<F: Copy + Default> Desk<F> {
    /// Takes a read or write whose data the front-end has brought: from, or to, `buffers`. They are taken out if the
    /// request is. `None` if the bounds allow no further request; such a request needs no memory of the engine.
    /// [`reclaim`](Self::reclaim) gives the buffers back.
    ///
    /// The request must be of whole blocks of the device, its buffers together as long as the request, and each of them
    /// a multiple of 512 bytes long; otherwise it fails with [`Cause::Invalid`]. So does a request that is too long for
    /// one operation if one of the buffers does not [belong to another owner](blkmq::Buffer::borrowed). A front-end
    /// that has other requests copies their data from and to memory of the engine.
    pub fn take_brought(&mut self, request: &Request<F>, buffers: &mut Buffers) -> Option<TaskId> {
        if !self.tasks.has_room() {
            return None;
        }
        let is_whole = self.edges.skip(request.offset | request.length) == 0;
        let moves_data = matches!(request.ask, Ask::Read | Ask::Write { .. });
        let failure = if !fits(request) || !is_whole || !moves_data || buffers.len() as u64 != request.length {
            Some(Failure::new(Cause::Invalid, "the buffers do not hold whole blocks, as many as the request has"))
        } else if self.is_abandoned && request.ask.only_tells() {
            Some(Failure::gone())
        } else {
            None
        };
        let id = self.enter(request, [0; 2])?;
        let task = self.tasks.get_mut(id);
        (task.brought, task.is_brought) = (std::mem::take(buffers), true);
        if failure.is_some() {
            (task.failure, task.taken) = (failure, None);
        }
        self.go_on(id);
        Some(id)
    }

    /// The buffers that the front-end has brought for a finished task. If the task took several operations, these are
    /// what is left of the buffers, and only good to be used again.
    pub fn reclaim(&mut self, id: TaskId) -> Buffers {
        std::mem::take(&mut self.tasks.get_mut(id).brought)
    }
}

/// The next operation of a task whose buffers were brought: these bytes of it.
pub(super) fn operation(task: &mut Task, sector: u64, len: u64) -> Option<Bio> {
    let buffers = if task.next == task.end {
        std::mem::take(&mut task.brought)
    } else {
        let Some(buffers) = split_front(&mut task.brought, len as usize) else {
            task.failure = Some(Failure::new(Cause::Invalid, "the request is too long for buffers that it owns"));
            task.outstanding -= 1;
            return None;
        };
        buffers
    };
    Some(match task.ask {
        Ask::Write { fua } => Bio::write(sector, buffers).with_flags(changing(fua)),
        _ => Bio::read(sector, buffers),
    })
}

/// Cuts the first `len` bytes off. `None`, with some of them lost, if a buffer that would have to be cut owns its
/// memory.
#[cold]
fn split_front(buffers: &mut Buffers, mut len: usize) -> Option<Buffers> {
    let mut rest = match std::mem::take(buffers) {
        Buffers::None => return None,
        Buffers::One(buffer) => vec![buffer],
        Buffers::Many(all) => all,
    };
    let mut count = 0;
    while let Some(buffer) = rest.get_mut(count) {
        if buffer.len() > len {
            if len > 0 {
                let behind = buffer.split_off(len)?;
                rest.insert(count + 1, behind);
                count += 1;
            }
            break;
        }
        len -= buffer.len();
        count += 1;
    }
    let behind = rest.split_off(count);
    *buffers = Buffers::Many(behind);
    Some(Buffers::Many(rest))
}
