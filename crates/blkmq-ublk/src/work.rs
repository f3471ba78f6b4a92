//! Where requests of the kernel become operations of the queue, and finished operations become results.
//!
//! Each tag has a buffer of its own. The kernel has the buffer while it has the tag: it puts the data of writes there
//! before a request arrives, and takes the data of reads from there once the result is told. Meanwhile the buffer goes
//! with the operation.

use std::collections::VecDeque;

use blkmq::limits::SECTOR_SIZE;
use blkmq::{Bio, Buffer, Buffers, Completion, Flags, RejectReason, Status, Submitter};

use crate::abi::{Descriptor, flag, op};

/// What a tag has, and where its request is.
#[derive(Debug)]
struct Tag {
    /// `None` while it goes with an operation.
    buffer: Option<Buffer>,
    /// Whether a request of this tag is on its way.
    is_working: bool,
    /// Bytes of the request.
    bytes: usize,
}

/// The requests of one queue that are on their way.
#[derive(Debug)]
pub struct Work {
    /// Bytes of each buffer.
    most: usize,
    tags: Box<[Tag]>,
    /// Operations that the submitter has not taken yet.
    waiting: VecDeque<Bio>,
    /// Tags whose requests are over, with what the kernel is told.
    over: Vec<(u16, i32)>,
}

/// What the kernel is told of an error.
fn failed(status: Status) -> i32 {
    -status.errno().unwrap_or(libc::EIO)
}

/// The operation that a descriptor asks for, without its data. An error number if there is no such operation.
fn operation(descriptor: &Descriptor) -> Result<Bio, i32> {
    let &Descriptor { op_flags, nr_sectors, start_sector } = descriptor;
    let has = |flag| op_flags & flag != 0;
    let flags = Flags {
        fua: has(flag::FUA),
        meta: has(flag::META),
        // As with the other servers, a program may wait for it: the kernel does not tell, and has itself let pass what
        // is urgent.
        sync: op_flags as u8 != op::READ || has(flag::SWAP),
        ..Flags::NONE
    };
    let nr_sectors = u64::from(nr_sectors);
    match op_flags as u8 {
        op::READ => Ok(Bio::new(blkmq::Op::Read, start_sector, nr_sectors, Buffers::None)
            .with_flags(Flags { fua: false, ..flags })),
        op::WRITE => Ok(Bio::new(blkmq::Op::Write, start_sector, nr_sectors, Buffers::None).with_flags(flags)),
        op::FLUSH => Ok(Bio::flush()),
        op::DISCARD => Ok(Bio::discard(start_sector, nr_sectors).with_flags(Flags { fua: false, ..flags })),
        op::WRITE_ZEROES => {
            let flags = Flags { nounmap: has(flag::NOUNMAP), ..flags };
            Ok(Bio::write_zeroes(start_sector, nr_sectors).with_flags(flags))
        }
        _ => Err(-libc::EOPNOTSUPP),
    }
}

impl Work {
    /// For this many tags, with buffers of `most` bytes. `None` if there is not so much memory.
    #[must_use]
    pub fn new(depth: u16, most: usize) -> Option<Self> {
        let tag = |_| Some(Tag { buffer: Some(Buffer::try_zeroed(most)?), is_working: false, bytes: 0 });
        let tags = (0..depth).map(tag).collect::<Option<_>>()?;
        let waiting = VecDeque::with_capacity(depth.into());
        Some(Self { most, tags, waiting, over: Vec::with_capacity(depth.into()) })
    }

    /// The address of a tag's buffer, for the kernel. It stays the same for good.
    ///
    /// # Panics
    /// If there is no such tag, or its request is on its way.
    #[must_use]
    pub fn address(&mut self, tag: u16) -> u64 {
        let buffer = self.tags[usize::from(tag)].buffer.as_mut().expect("the buffer is here between two requests");
        buffer.as_mut_ptr().expose_provenance() as u64
    }

    /// The data of a tag's buffer, while no request has it.
    #[must_use]
    pub fn data(&mut self, tag: u16) -> Option<&mut [u8]> {
        self.tags.get_mut(usize::from(tag))?.buffer.as_deref_mut()
    }

    /// Whether no request is on its way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.over.is_empty() && self.tags.iter().all(|tag| !tag.is_working)
    }

    /// Takes a request of the kernel. A request that makes no sense is over at once, with an error. A tag that does not
    /// exist, or has a request already, is left alone.
    pub fn arrive(&mut self, number: u16, descriptor: &Descriptor) {
        let most = self.most;
        let Some(tag) = self.tags.get_mut(usize::from(number)).filter(|tag| !tag.is_working) else { return };
        tag.is_working = true;
        tag.bytes = 0;
        let mut bio = match operation(descriptor) {
            Ok(bio) => bio.with_user_data(number.into()),
            Err(result) => return self.over.push((number, result)),
        };
        if matches!(bio.op, blkmq::Op::Read | blkmq::Op::Write) {
            let bytes = bio.nr_sectors.saturating_mul(SECTOR_SIZE as u64);
            let fits = usize::try_from(bytes).is_ok_and(|bytes| (1..=most).contains(&bytes));
            match tag.buffer.take_if(|_| fits) {
                Some(mut buffer) => {
                    tag.bytes = bytes as usize;
                    buffer.set_len(tag.bytes);
                    bio.buffers = Buffers::One(buffer);
                }
                None => return self.over.push((number, -libc::EINVAL)),
            }
        }
        self.waiting.push_back(bio);
    }

    /// Hands operations to the submitter until it takes no more. Returns whether it took any.
    pub fn submit(&mut self, submitter: &mut Submitter) -> bool {
        let mut has_taken = false;
        while !self.waiting.is_empty() {
            let (taken, rejected) = submitter.submit_batch(&mut self.waiting);
            has_taken |= taken > 0;
            match rejected {
                Some(RejectReason::Bad(status)) => {
                    let Some(bio) = self.waiting.pop_front() else { break };
                    self.end(bio, status);
                }
                Some(_) => break,
                None => (),
            }
        }
        has_taken
    }

    /// Called when an operation is over.
    pub fn settle(&mut self, done: Completion) {
        self.end(done.bio, done.status);
    }

    fn end(&mut self, bio: Bio, status: Status) {
        let number = bio.user_data as u16;
        let tag = &mut self.tags[usize::from(number)];
        if let Buffers::One(mut buffer) = bio.buffers {
            buffer.set_len(self.most);
            tag.buffer = Some(buffer);
        }
        let result = if status.is_ok() { tag.bytes as i32 } else { failed(status) };
        self.over.push((number, result));
    }

    /// A tag whose request is over, with what the kernel is told: bytes, or an error number below 0.
    pub fn next_over(&mut self) -> Option<(u16, i32)> {
        let (number, result) = self.over.pop()?;
        self.tags[usize::from(number)].is_working = false;
        Some((number, result))
    }
}

#[cfg(test)]
mod tests;
