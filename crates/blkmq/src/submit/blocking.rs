//! Reads and writes that block, for a thread that wants one block now.

use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::ops::Range;

use crate::queue::{QueueError, RequestQueue};
use crate::request::Status;
use crate::request::bio::{Bio, SECTOR_SIZE};
use crate::request::buffer::Buffer;
use crate::request::client::Client;
use crate::submit::Submitter;
use blkmq_sched::Op;

/// A submitter whose reads and writes block, with the methods of [`FileExt`](std::os::unix::fs::FileExt).
///
/// Offsets and lengths are in bytes, and multiples of the device's [logical block
/// size](crate::Limits::logical_block_size): other ones are [`ErrorKind::InvalidInput`], as with `O_DIRECT`. An error
/// of the device has the operation in [`io::Error::get_ref`], as [`Failed`](crate::Failed). A call waits for as long as
/// the queue is frozen or the device does not answer.
///
/// ```
/// use blkmq::blocking::BlockingSubmitter;
/// use blkmq::driver::spec;
/// use blkmq::{Client, RequestQueue};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let q = RequestQueue::builder(spec::open("ram,size=64M")?).build()?;
/// let disk = BlockingSubmitter::new(&q, &Client::new("me"))?;
/// disk.write_all_at(&[7; 4096], 8192)?;
/// disk.sync_data()?;
/// let mut block = [0; 4096];
/// disk.read_exact_at(&mut block, 8192)?;
/// assert_eq!(block, [7; 4096]);
/// # Ok(())
/// # }
/// ```
///
/// It belongs to one thread at a time, as a [`Submitter`] does.
///
/// COST: the data is copied between the caller's memory and a buffer, and one request is in flight at a time.
#[derive(Debug)]
pub struct BlockingSubmitter {
    inner: RefCell<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Nothing is outstanding between two calls.
    submitter: Submitter,
    /// The buffer of the last request, for the next one.
    buffer: Buffer,
}

impl BlockingSubmitter {
    /// A new submitter, serving `client`.
    ///
    /// # Errors
    /// Those of [`RequestQueue::submitter`].
    pub fn new(q: &RequestQueue, client: &Client) -> Result<Self, QueueError> {
        let inner = Inner { submitter: q.submitter(client)?, buffer: Buffer::zeroed(0) };
        Ok(Self { inner: RefCell::new(inner) })
    }

    /// Reads from the byte `offset` on, and returns how many bytes were read. Fewer than `buf` takes are read only at
    /// the end of the device, where the answer is 0, or in front of an error.
    ///
    /// # Errors
    /// Nothing was read, because the offset or the length is not aligned or the device failed.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let inner = &mut *self.inner.borrow_mut();
        let len = inner.len_within(buf.len(), offset)?;
        inner.in_pieces(len, offset, |inner, piece, sector| {
            let to = &mut buf[piece];
            inner.set_buffer_len(to.len());
            let bio = inner.run(|buffer| Bio::read(sector, buffer))?;
            let buffer = bio.buffers.into_iter().next().expect("a read returns its buffer");
            to.copy_from_slice(&buffer);
            inner.buffer = buffer;
            Ok(())
        })
    }

    /// Reads exactly as many bytes as `buf` takes, from the byte `offset` on.
    ///
    /// # Errors
    /// Those of [`read_at`](Self::read_at), and [`ErrorKind::UnexpectedEof`] if the device ends before. Then the
    /// contents of `buf` are unspecified.
    pub fn read_exact_at(&self, mut buf: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !buf.is_empty() {
            match self.read_at(buf, offset)? {
                0 => return Err(io::Error::new(ErrorKind::UnexpectedEof, "the device ends before the buffer is full")),
                read => (buf, offset) = (&mut buf[read..], offset + read as u64),
            }
        }
        Ok(())
    }

    /// Writes from the byte `offset` on, and returns how many bytes were written. Fewer than `buf` has are written only
    /// at the end of the device, or in front of an error. The data may be in the device's volatile cache until
    /// [`sync_data`](Self::sync_data).
    ///
    /// # Errors
    /// Nothing was written, because the offset or the length is not aligned, the device ends there
    /// ([`ErrorKind::StorageFull`]) or the device failed.
    pub fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        let inner = &mut *self.inner.borrow_mut();
        let len = inner.len_within(buf.len(), offset)?;
        if len == 0 && !buf.is_empty() {
            return Err(io::Error::new(ErrorKind::StorageFull, Status::NoSpace.to_string()));
        }
        inner.in_pieces(len, offset, |inner, piece, sector| {
            let from = &buf[piece];
            inner.set_buffer_len(from.len());
            inner.buffer.copy_from_slice(from);
            let bio = inner.run(|buffer| Bio::write(sector, buffer))?;
            inner.buffer = bio.buffers.into_iter().next().expect("a write returns its buffer");
            Ok(())
        })
    }

    /// Writes all of `buf`, from the byte `offset` on.
    ///
    /// # Errors
    /// Those of [`write_at`](Self::write_at). Part of the data may have been written.
    pub fn write_all_at(&self, mut buf: &[u8], mut offset: u64) -> io::Result<()> {
        while !buf.is_empty() {
            let written = self.write_at(buf, offset)?;
            (buf, offset) = (&buf[written..], offset + written as u64);
        }
        Ok(())
    }

    /// Makes durable what has been written.
    ///
    /// # Errors
    /// The device failed, or cannot be asked to flush its cache ([`Limits::no_flush`](crate::Limits::no_flush)).
    pub fn sync_data(&self) -> io::Result<()> {
        self.inner.borrow_mut().run(|_| Bio::flush()).map(drop)
    }
}

impl Inner {
    /// How many of `len` bytes from `offset` on are on the device.
    fn len_within(&self, len: usize, offset: u64) -> io::Result<usize> {
        let limits = self.submitter.queue().limits();
        let block = u64::from(limits.logical_block_size);
        if !offset.is_multiple_of(block) || !(len as u64).is_multiple_of(block) {
            let what =
                format!("{len} bytes at {offset}: both must be multiples of the logical block size, {block} bytes");
            return Err(io::Error::new(ErrorKind::InvalidInput, what));
        }
        let behind = (limits.capacity_sectors * SECTOR_SIZE as u64).saturating_sub(offset);
        Ok(usize::try_from(behind).map_or(len, |behind| len.min(behind)))
    }

    /// Does `len` bytes from `offset` on, one request's worth after another: `each` gets the piece of the caller's
    /// memory, and its first sector. Returns how many bytes were done, and an error only if there are none.
    fn in_pieces(
        &mut self,
        len: usize,
        offset: u64,
        mut each: impl FnMut(&mut Self, Range<usize>, u64) -> io::Result<()>,
    ) -> io::Result<usize> {
        let most = self.submitter.queue().limits().max_op_sectors(Op::Read) as usize * SECTOR_SIZE;
        let mut done = 0;
        while done < len {
            let piece = done..done + most.min(len - done);
            let sector = (offset + done as u64) / SECTOR_SIZE as u64;
            match each(self, piece.clone(), sector) {
                Ok(()) => done = piece.end,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    fn set_buffer_len(&mut self, len: usize) {
        if !self.buffer.set_len(len) {
            self.buffer = Buffer::zeroed(len);
        }
    }

    /// Submits the operation that `make` makes of the buffer, and waits for it.
    fn run(&mut self, make: impl FnOnce(Buffer) -> Bio) -> io::Result<Bio> {
        let buffer = std::mem::replace(&mut self.buffer, Buffer::zeroed(0));
        self.submitter.submit(make(buffer))?;
        self.submitter.wait(1, None);
        let completion = self.submitter.reap().expect("a submitter waits until its operation is over");
        Ok(completion.into_result()?.bio)
    }
}
