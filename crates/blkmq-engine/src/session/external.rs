//! Requests whose data lies in memory that the front-end provides, as that of a virtual machine.

use blkmq::SECTOR_SIZE;
use blkmq::{Bio, Buffers, Flags, Op};

use super::Session;
use super::rmw::changing;
use super::task::{Task, TaskId};
use crate::ask::{Ask, Request};
use crate::failure::{Cause, Failure};

impl<F: Copy + Default> Session<F> {
    /// Takes a read or write whose data the front-end provides: from, or to, `buffers`. They are taken out if the
    /// request is. `None` if the bounds allow no further request; such a request needs no memory of the engine.
    /// [`reclaim`](Self::reclaim) gives the buffers back.
    ///
    /// The request must be of whole blocks of the device, its buffers together as long as the request, and each of them
    /// a multiple of 512 bytes long; otherwise it fails with [`Cause::Invalid`]. So does a request that is too long for
    /// one operation if one of the buffers does not [belong to another owner](blkmq::Buffer::borrowed). A front-end
    /// that has other requests copies their data from and to memory of the engine.
    pub fn take_external(&mut self, request: &Request<F>, buffers: &mut Buffers) -> Option<TaskId> {
        if !self.tasks.has_room() {
            return None;
        }
        let is_whole = self.rmw.skip(request.offset | request.length) == 0;
        let moves_data = matches!(request.ask, Ask::Read | Ask::Write { .. });
        let len = if let Buffers::One(buffer) = &*buffers { buffer.len() } else { buffers.len() };
        let failure = if let Some(failure) = self.fault(request) {
            Some(failure)
        } else if !is_whole || !moves_data || len as u64 != request.length {
            Some(Failure::new(Cause::Invalid, "the buffers do not hold whole blocks, as many as the request has"))
        } else if self.is_abandoned && request.ask.only_tells() {
            Some(Failure::gone())
        } else {
            None
        };
        let id = self.enter_whole(request, request.offset..request.offset.saturating_add(request.length), [0; 2])?;
        if failure.is_none() && request.ask == Ask::Read {
            self.pool.zero_for_read(buffers);
        }
        let task = self.tasks.get_mut(id);
        task.is_external = true;
        if failure.is_none() && request.length <= self.plan.data {
            (task.next, task.outstanding) = (task.end, 1);
            let operation = operation(request.ask, request.offset, request.length, std::mem::take(buffers));
            self.push(id, operation);
            return Some(id);
        }
        task.external = std::mem::take(buffers);
        if failure.is_some() {
            (task.failure, task.taken) = (failure.map(Box::new), None);
        }
        self.go_on(id);
        Some(id)
    }

    /// Returns the buffers that the front-end provides for a finished task. If the task took several operations, these
    /// are what is left of the buffers, and only good to be used again. Of a task that was refused they are all there,
    /// perhaps in a list.
    pub fn reclaim(&mut self, id: TaskId) -> Buffers {
        std::mem::take(&mut self.tasks.get_mut(id).external)
    }
}

/// Returns the operation with these buffers, from a byte of the device on.
#[inline]
fn operation(ask: Ask, offset: u64, len: u64, buffers: Buffers) -> Bio {
    let (op, flags) = match ask {
        Ask::Write { fua } => (Op::Write, changing(fua)),
        _ => (Op::Read, Flags::NONE),
    };
    Bio::new(op, offset / SECTOR_SIZE as u64, len / SECTOR_SIZE as u64, buffers).with_flags(flags)
}

/// Returns the next operation of a task that takes several, and whose buffers are external: these bytes of it.
pub(super) fn next_operation(task: &mut Task, offset: u64, len: u64) -> Option<Bio> {
    let buffers = if task.next == task.end {
        std::mem::take(&mut task.external)
    } else {
        let Some(buffers) = split_front(&mut task.external, len as usize) else {
            let failure = Failure::new(Cause::Invalid, "the request is too long for buffers that it owns");
            task.failure = Some(Box::new(failure));
            task.outstanding -= 1;
            return None;
        };
        buffers
    };
    Some(operation(task.ask, offset, len, buffers))
}

/// Cuts the first `len` bytes off. `None`, and no buffer is lost, if one that would have to be cut owns its memory.
#[cold]
fn split_front(buffers: &mut Buffers, mut len: usize) -> Option<Buffers> {
    let mut rest = match std::mem::take(buffers) {
        Buffers::None => return None,
        Buffers::One(buffer) => vec![buffer],
        Buffers::Many(all) => all,
        Buffers::Pages(mut pages) => match pages.split_off(len) {
            Some(rest) => {
                *buffers = rest.into();
                return Some(Buffers::Pages(pages));
            }
            None => {
                *buffers = Buffers::Pages(pages);
                return None;
            }
        },
    };
    let mut count = 0;
    while let Some(buffer) = rest.get_mut(count) {
        if buffer.len() > len {
            if len > 0 {
                let Some(behind) = buffer.split_off(len) else {
                    *buffers = Buffers::Many(rest);
                    return None;
                };
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use blkmq::Buffer;
    use blkmq::event::EventFd;

    use super::*;
    use crate::ask::Hints;
    use crate::clients::{FrontEnd, Source};
    use crate::engine::Bounds;
    use crate::export::tests::export;
    use crate::export::{Allow, Export, Identity, Permit};
    use crate::harness;

    /// Returns a session for one request at a time, beside an engine that allows more.
    fn session(device: &str, nr_slots: usize) -> Session<u16> {
        session_of(export(device), true, nr_slots)
    }

    /// `is_own`: the client is one that the operator has named, or else one with the user 7.
    fn session_of(export: Export, is_own: bool, nr_slots: usize) -> Session<u16> {
        let (engine, bell) = (harness::engine(export, 1), Arc::new(EventFd::new().unwrap()));
        if !is_own {
            let entry = engine.clients.join(FrontEnd::Nbd, "a test".into(), Source::User(7), bell).unwrap();
            return Session::of_thread(&engine, 0, (&entry, 0), engine.bounds, nr_slots);
        }
        let entry = engine.clients.enter(FrontEnd::Ublk, "a test".into(), vec![Arc::clone(&bell), bell]);
        let bounds = Bounds { requests: 1, ..engine.bounds };
        Session::of_thread(&engine, 0, (&entry, 1), bounds, nr_slots)
    }

    /// Red if a hint is lost or does more than it says, if a change is not synchronous without one, or if the bounds
    /// are the engine's.
    #[test]
    #[cfg_attr(miri, ignore = "there are no descriptors")]
    fn hints_are_those_of_the_operations() {
        let [read, write] = [Ask::Read, Ask::Write { fua: true }];
        let none = Hints::default();
        for (ask, hints, expected) in [
            (read, none, Flags::NONE),
            (read, Hints { meta: true, ..none }, Flags { meta: true, ..Flags::NONE }),
            (read, Hints { sync: true, ..none }, Flags { sync: true, ..Flags::NONE }),
            (write, Hints { meta: true, ..none }, Flags { meta: true, sync: true, fua: true, ..Flags::NONE }),
        ] {
            let mut session = session("ram,size=1M", 8);
            let request = Request { hints, ..Request::new(ask, 0, 4096, 3) };
            let buffers = || Buffers::One(Buffer::zeroed(4096));
            assert!(session.take_external(&request, &mut buffers()).is_some());
            assert!(session.take_external(&request, &mut buffers()).is_none(), "its bounds are its own");
            assert_eq!(session.waiting[0].flags, expected, "{ask:?}, {hints:?}");
        }
    }

    /// Red before a buffer was lost whose request is too long for it: the front-end may have told others where it is.
    #[test]
    #[cfg_attr(miri, ignore = "there are no descriptors")]
    fn a_buffer_that_cannot_be_cut_comes_back() {
        let mut session = session("hdd,size=1M,max_sectors=8", 1);
        assert_eq!(session.plan.data, 4096);
        let request = Request::new(Ask::Read, 0, 8192, 3);
        let id = session.take_external(&request, &mut Buffers::One(Buffer::zeroed(8192))).unwrap();
        let (finished, failure) = session.next_finished().unwrap();
        assert_eq!((finished, failure.map(|failure| failure.cause)), (id, Some(Cause::Invalid)));
        assert_eq!(session.reclaim(id).len(), 8192);
    }

    /// Red if a session lets a client change an export that it may only read, with a front-end that does not check.
    #[test]
    #[cfg_attr(miri, ignore = "there are no descriptors")]
    fn a_client_that_may_only_read_changes_nothing() {
        let changes = [
            Ask::Write { fua: false },
            Ask::Discard { fua: false },
            Ask::WriteZeroes { fua: false, no_hole: false, fast: false },
        ];
        let permit = Permit { who: Identity::User(7), writes: false, priority: None };
        let for_reading = Export { allow: Some(Allow::Listed(vec![permit])), ..export("null,size=1M") };
        let mut of_reader = session_of(for_reading, false, 8);
        let mut of_owner = session_of(Export { read_only: true, ..export("null,size=1M") }, true, 8);
        let cause_of = |session: &mut Session<u16>, id: TaskId| {
            if matches!(session.ask(id), Ask::Tell { .. }) && session.tasks.get(id).is_receiving {
                session.end_payload(id);
            }
            let (finished, failure) = session.next_finished().expect("it was refused");
            assert_eq!(finished, id);
            session.forget(id);
            failure.map(|failure| failure.cause)
        };
        for session in [&mut of_reader, &mut of_owner] {
            for ask in changes {
                let id = session.take(&Request::new(ask, 0, 4096, 3)).expect("there is no other request");
                assert_eq!(cause_of(session, id), Some(Cause::NotPermitted), "{ask:?}");
            }
            let mut buffers = Buffers::One(Buffer::zeroed(4096));
            let id = session.take_external(&Request::new(changes[0], 0, 4096, 3), &mut buffers).expect("as above");
            assert_eq!(cause_of(session, id), Some(Cause::NotPermitted));
            assert!(session.waiting.is_empty(), "the queue gets nothing");
            assert!(session.take(&Request::new(Ask::Read, 0, 4096, 3)).is_some() && session.waiting.len() == 1);
        }
    }

    /// Red if a session without `set_now` measures a request from the start of the clock, or from before its thread
    /// slept.
    #[test]
    #[cfg_attr(miri, ignore = "there are no descriptors")]
    fn a_request_is_measured_from_when_it_is_taken() {
        let mut session = session("ram,size=1M", 8);
        for _ in 0..2 {
            let before = session.queue.clock().now();
            let id = session.take(&Request::new(Ask::Read, 0, 4096, 3)).expect("there is no other request");
            let taken = session.tasks.get(id).taken.expect("it is measured");
            assert!(taken >= before, "{taken:?} is before {before:?}");
            let mut submitter = session.queue.submitter(&blkmq::Client::new("test")).expect("there is a place");
            session.submit(&mut submitter);
            while session.next_finished().is_none() {
                session.drive(&mut submitter);
            }
            session.forget(id);
            assert!(!session.drive(&mut submitter), "the thread sleeps next");
        }
    }

    /// Red before zeroes that were to be made by the device, or not at all, were sent as data to a device that makes
    /// none.
    #[test]
    #[cfg_attr(miri, ignore = "there are no descriptors")]
    fn zeroes_that_are_to_be_fast_are_never_sent() {
        for (fast, expected) in [(true, blkmq::Op::WriteZeroes), (false, blkmq::Op::Write)] {
            let mut session = session("null,size=1M", 8);
            let ask = Ask::WriteZeroes { fua: false, no_hole: true, fast };
            session.take(&Request::new(ask, 0, 4096, 3)).unwrap();
            assert_eq!(session.waiting[0].op, expected);
        }
    }
}
