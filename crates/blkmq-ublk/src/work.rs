//! Where requests of the kernel become requests of the engine, and finished ones become results.
//!
//! Each tag has a buffer of its own. The kernel has the buffer while it has the tag: it puts the data of writes there
//! before a request arrives, and takes the data of reads from there once the result is told. Meanwhile the buffer goes
//! with the request. With zero copy a tag has a name for the kernel's pages instead, which goes with the request.

use std::sync::Arc;
use std::time::Duration;

use blkmq::SECTOR_SIZE;
use blkmq::pages::{PageSource, Pages};
use blkmq::{Buffer, Buffers, Submitter, Time};
use blkmq_engine::{Ask, Cause, Failure, Hints, Request, Session, TaskId};

use crate::abi::{Descriptor, flag, op};

/// What a tag has, and where its request is.
#[derive(Debug)]
struct Tag {
    /// Nothing while it goes with a request.
    data: Buffers,
    /// Whether a request of this tag is on its way.
    is_working: bool,
}

/// The requests of one queue that are on their way.
#[derive(Debug)]
pub struct Work {
    /// Bytes of the largest request, and of each buffer.
    most: u32,
    /// The data stays in pages of the kernel.
    has_pages: bool,
    /// Bytes of a logical block.
    block: u64,
    /// Nothing may be changed. The kernel does not look at that for all requests: a device of the device mapper passes
    /// writes on.
    is_read_only: bool,
    tags: Box<[Tag]>,
    /// Its requests are known by their tags.
    session: Session<u16>,
}

/// What the kernel is told of an error: the number of what the queue said, if the queue had a part in it.
fn failed(failure: &Failure) -> i32 {
    let errno = failure.status.and_then(blkmq::Status::errno).unwrap_or(match failure.cause {
        Cause::NotPermitted => libc::EPERM,
        Cause::Io => libc::EIO,
        Cause::NoMemory => libc::ENOMEM,
        Cause::Invalid => libc::EINVAL,
        Cause::NoSpace => libc::ENOSPC,
        Cause::Unsupported => libc::EOPNOTSUPP,
        Cause::Shutdown => libc::ESHUTDOWN,
    });
    -errno
}

/// What a descriptor asks for. `None` if there is no such operation.
fn ask(descriptor: &Descriptor) -> Option<(Ask, Hints)> {
    let has = |flag| descriptor.op_flags & flag != 0;
    let fua = has(flag::FUA);
    let ask = match descriptor.op_flags as u8 {
        op::READ => Ask::Read,
        op::WRITE => Ask::Write { fua },
        op::FLUSH => Ask::Flush,
        op::DISCARD => Ask::Discard { fua: false },
        // The kernel has a way of its own if the device cannot make them.
        op::WRITE_ZEROES => Ask::WriteZeroes { fua, no_hole: has(flag::NOUNMAP), fast: true },
        _ => return None,
    };
    let hints = match ask {
        Ask::Flush => Hints::default(),
        // A program waits for what is read of swap. For other reads, the kernel does not tell whether one does.
        _ => Hints { meta: has(flag::META), sync: has(flag::SWAP) },
    };
    Some((ask, hints))
}

/// Makes a tag's data so many bytes long, which are not more than it has.
fn set_len(data: &mut Buffers, len: u32) {
    match data {
        Buffers::One(buffer) => _ = buffer.set_len(len as usize),
        Buffers::Pages(pages) => pages.set_len(len),
        Buffers::None | Buffers::Many(_) => (),
    }
}

#[cold]
fn refuse(session: &mut Session<u16>, tag: u16, cause: Cause, why: &'static str) -> Option<TaskId> {
    session.refuse(tag, Failure::new(cause, why), false)
}

impl Work {
    /// For this many tags, with buffers of `most` bytes, at a session for as many requests. With `pages` the data is
    /// there instead, under the names of the tags. If it is read-only, what would change the device is refused. `None`
    /// if there is not so much memory.
    #[must_use]
    pub fn new(
        session: Session<u16>,
        (depth, most): (u16, u32),
        pages: Option<Arc<dyn PageSource>>,
        is_read_only: bool,
    ) -> Option<Self> {
        let data = |tag: u16| match &pages {
            Some(source) => Some(Pages::new(Arc::clone(source), tag.into(), most).into()),
            None => Buffer::try_zeroed(most as usize).map(Buffers::One),
        };
        let tags = (0..depth).map(|tag| Some(Tag { data: data(tag)?, is_working: false })).collect::<Option<_>>()?;
        let block = session.queue().limits().logical_block_size.into();
        Some(Self { most, has_pages: pages.is_some(), block, is_read_only, tags, session })
    }

    /// The address of a tag's buffer, for the kernel. It stays the same for good. 0 if the data stays with the kernel.
    ///
    /// # Panics
    /// If there is no such tag, or its request is on its way.
    #[must_use]
    pub fn address(&mut self, tag: u16) -> u64 {
        match &mut self.tags[usize::from(tag)].data {
            Buffers::One(buffer) => buffer.as_mut_ptr().expose_provenance() as u64,
            Buffers::Pages(_) => 0,
            _ => unreachable!("the data is here between two requests"),
        }
    }

    /// The data of a tag's buffer, while no request has it.
    #[must_use]
    pub fn data(&mut self, tag: u16) -> Option<&mut [u8]> {
        self.tags.get_mut(usize::from(tag))?.data.iter_mut().next().map(|buffer| &mut buffer[..])
    }

    /// The address of a buffer as a tag has it, for data that is not used. It is never freed. 0 if there is not so much
    /// memory, or if the data stays with the kernel.
    #[must_use]
    pub fn spare(&self) -> u64 {
        if self.has_pages {
            return 0;
        }
        let address = |mut buffer: Buffer| {
            let address = buffer.as_mut_ptr().expose_provenance() as u64;
            std::mem::forget(buffer);
            address
        };
        Buffer::try_zeroed(self.most as usize).map_or(0, address)
    }

    /// The tags whose requests are on their way.
    #[must_use]
    pub fn working(&self) -> Vec<u16> {
        self.tags.iter().zip(0..).filter(|(tag, _)| tag.is_working).map(|(_, number)| number).collect()
    }

    /// Whether no request is on its way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.session.is_idle()
    }

    /// Tells the time, from which requests that arrive now are measured.
    pub fn set_now(&mut self, now: Time) {
        self.session.set_now(now);
    }

    /// Takes a request of the kernel. A request that makes no sense, or may not be, is over at once, with an error. A
    /// tag that does not exist, or has a request already, is left alone.
    pub fn arrive(&mut self, number: u16, descriptor: &Descriptor) {
        let Self { most, block, is_read_only, tags, session, .. } = self;
        let Some(tag) = tags.get_mut(usize::from(number)).filter(|tag| !tag.is_working) else { return };
        let taken = match ask(descriptor) {
            None => refuse(session, number, Cause::Unsupported, "there is no such operation"),
            Some((ask, _)) if *is_read_only && ask.changes() => {
                refuse(session, number, Cause::NotPermitted, "nothing can be written")
            }
            Some((Ask::Flush, hints)) => {
                session.take(&Request { ask: Ask::Flush, offset: 0, length: 0, priority: None, hints, own: number })
            }
            Some((ask, hints)) => {
                let offset = descriptor.start_sector.saturating_mul(SECTOR_SIZE as u64);
                let length = u64::from(descriptor.nr_sectors) * SECTOR_SIZE as u64;
                let request = Request { ask, offset, length, priority: None, hints, own: number };
                let moves_data = matches!(ask, Ask::Read | Ask::Write { .. });
                let is_whole = length > 0 && (offset | length).is_multiple_of(*block);
                if !is_whole || (moves_data && length > u64::from(*most)) {
                    refuse(session, number, Cause::Invalid, "the kernel asks for whole blocks, and not for so many")
                } else if moves_data {
                    let mut data = std::mem::take(&mut tag.data);
                    set_len(&mut data, length as u32);
                    session.take_external(&request, &mut data)
                } else {
                    session.take(&request)
                }
            }
        };
        debug_assert!(taken.is_some(), "the session has a place for each tag, and nothing needs its memory");
        tag.is_working = true;
    }

    /// How long the thread may sleep before it submits again, if nothing wakes it.
    #[must_use]
    pub fn max_sleep(&self) -> Option<Duration> {
        self.session.max_sleep()
    }

    /// Hands operations to the submitter until it takes no more. Returns whether it took any.
    pub fn submit(&mut self, submitter: &mut Submitter) -> bool {
        self.session.submit(submitter)
    }

    /// Drives the queue, and settles what is over. Returns whether there was anything.
    pub fn drive(&mut self, submitter: &mut Submitter) -> bool {
        self.session.drive(submitter)
    }

    /// A tag whose request is over, with what the kernel is told: bytes, or an error number below 0.
    pub fn next_over(&mut self) -> Option<(u16, i32)> {
        let (id, failure) = self.session.next_finished()?;
        let number = *self.session.own(id);
        let tag = &mut self.tags[usize::from(number)];
        let mut data = match self.session.reclaim(id) {
            // That of a request that the session refused.
            Buffers::Many(mut buffers) => buffers.pop().map_or(Buffers::None, Buffers::One),
            data => data,
        };
        if !data.is_empty() {
            set_len(&mut data, self.most);
            tag.data = data;
        }
        tag.is_working = false;
        let result = match failure {
            Some(failure) => {
                self.session.count_error(failure.cause);
                failed(&failure)
            }
            None if matches!(self.session.ask(id), Ask::Read | Ask::Write { .. }) => self.session.range(id).1 as i32,
            None => 0,
        };
        self.session.forget(id);
        Some((number, result))
    }

    /// Called when the kernel may write into the buffers of its tags, and no thread will hear when that ends: they are
    /// never freed.
    pub fn leave_buffers(&mut self) {
        for tag in &mut self.tags {
            if let Buffers::One(buffer) = std::mem::take(&mut tag.data) {
                std::mem::forget(buffer);
            }
        }
    }
}

#[cfg(test)]
mod tests;
