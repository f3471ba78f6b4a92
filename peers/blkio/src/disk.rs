//! The server's device, connected, with memory that both sides see.

use std::mem::MaybeUninit;
use std::path::Path;
use std::ptr::NonNull;

use blkio::{Blkio, Blkioq, Completion, MemoryRegion};

use crate::Result;

/// A connected device. `blkio` owns the memory, which lives as long as this value and each of its queues.
pub(crate) struct Disk {
    blkio: Blkio,
    region: MemoryRegion,
    /// Bytes.
    pub(crate) capacity: u64,
}

/// A queue of the device, with its own part of the memory.
pub(crate) struct Queue {
    queue: Blkioq,
    memory: NonNull<u8>,
    len: usize,
}

// SAFETY: a queue and its part of the memory are used by one thread at a time, and the memory lives as long as the
// queue.
unsafe impl Send for Queue {}

impl Disk {
    /// Connects. Each of `nr_queues` queues gets `memory` bytes. `polled`: completions are looked for without a pause.
    pub(crate) fn connect(socket: &Path, nr_queues: usize, memory: usize, polled: bool) -> Result<(Self, Vec<Queue>)> {
        let mut blkio = Blkio::new("virtio-blk-vhost-user")?;
        blkio.set_str("path", socket.to_str().ok_or("the socket's path is no text")?)?;
        blkio.connect()?;
        let most = blkio.get_i32("max-queues")?;
        if nr_queues > most as usize {
            return Err(format!("the server has {most} queues, and {nr_queues} were asked for").into());
        }
        let (plain, polling) = if polled { (0, nr_queues) } else { (nr_queues, 0) };
        blkio.set_i32("num-queues", plain as i32)?;
        blkio.set_i32("num-poll-queues", polling as i32)?;
        let mut started = blkio.start()?;
        let each = memory.next_multiple_of(blkio.get_u64("mem-region-alignment")? as usize);
        let region = blkio.alloc_mem_region(each * nr_queues)?;
        blkio.map_mem_region(&region)?;
        let capacity = blkio.get_u64("capacity")?;
        let all = started.queues.drain(..).chain(started.poll_queues.drain(..));
        let queues = all.enumerate().map(|(index, mut queue)| {
            queue.set_completion_fd_enabled(!polled);
            let start = NonNull::new((region.addr + index * each) as *mut u8).ok_or("the memory has no address")?;
            Ok(Queue { queue, memory: start, len: each })
        });
        let queues = queues.collect::<Result<Vec<_>>>()?;
        Ok((Self { blkio, region, capacity }, queues))
    }

    /// Asks for the capacity once more, in bytes.
    pub(crate) fn capacity_now(&self) -> Result<u64> {
        Ok(self.blkio.get_u64("capacity")?)
    }

    /// Ends the use of the memory, when no request is outstanding.
    pub(crate) fn close(mut self, queues: Vec<Queue>) {
        drop(queues);
        self.blkio.unmap_mem_region(&self.region);
    }
}

impl Queue {
    /// The address of byte `offset` of the queue's memory, of which `len` bytes are used.
    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset + len <= self.len, "the request's memory is the queue's");
        // SAFETY: the offset lies within the memory, as just checked.
        unsafe { self.memory.as_ptr().add(offset) }
    }

    pub(crate) fn read(&mut self, start: u64, offset: usize, len: usize, id: usize) {
        let memory = self.at(offset, len);
        self.queue.read(start, memory, len, id, blkio::ReqFlags::empty());
    }

    pub(crate) fn write(&mut self, start: u64, offset: usize, len: usize, id: usize) {
        let memory = self.at(offset, len);
        self.queue.write(start, memory, len, id, blkio::ReqFlags::empty());
    }

    pub(crate) fn flush(&mut self) -> Result<i32> {
        self.queue.flush(0, blkio::ReqFlags::empty());
        self.one()
    }

    pub(crate) fn discard(&mut self, start: u64, len: u64) -> Result<i32> {
        self.queue.discard(start, len, 0, blkio::ReqFlags::empty());
        self.one()
    }

    pub(crate) fn write_zeroes(&mut self, start: u64, len: u64) -> Result<i32> {
        self.queue.write_zeroes(start, len, 0, blkio::ReqFlags::empty());
        self.one()
    }

    /// The result of the one request that is outstanding.
    pub(crate) fn one(&mut self) -> Result<i32> {
        let mut ret = 0;
        self.wait(1, |_, result| ret = result)?;
        Ok(ret)
    }

    /// Passes what was enqueued on, and waits for at least `least` completions. `over` gets the number that each
    /// request was given, and its result: 0, or a negative error number.
    pub(crate) fn wait(&mut self, least: usize, mut over: impl FnMut(usize, i32)) -> Result<()> {
        let mut done = [const { MaybeUninit::<Completion>::uninit() }; 128];
        let nr_done = self.queue.do_io(&mut done, least, None, None)?;
        for completion in &done[..nr_done] {
            // SAFETY: so many completions were written.
            let completion = unsafe { completion.assume_init_ref() };
            over(completion.user_data, completion.ret);
        }
        Ok(())
    }

    /// The bytes of the memory, when no request uses them.
    pub(crate) fn bytes(&mut self, offset: usize, len: usize) -> &mut [u8] {
        let memory = self.at(offset, len);
        // SAFETY: the memory is this queue's alone, the bytes are initialised (a new memory file has zeroes), and no
        // request that uses them is outstanding.
        unsafe { std::slice::from_raw_parts_mut(memory, len) }
    }
}
