//! The buffers of a worker, and what they hold.

use blkmq::Buffer;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::Worker;
use crate::bench::partial::Partials;
use crate::bench::pattern::Operation;
use crate::bench::plan::mix;
use crate::job::Direction;

/// The contents of new buffers.
#[derive(Debug)]
pub(super) struct Fill {
    pub(super) rng: SmallRng,
}

impl Fill {
    pub(super) fn new(seed: u64) -> Self {
        Self { rng: SmallRng::seed_from_u64(mix(seed, 10)) }
    }

    /// A buffer whose contents compress and deduplicate badly, as fio's buffers do.
    pub(super) fn buffer(&mut self, bytes: u64) -> Buffer {
        let mut buffer = Buffer::zeroed(usize::try_from(bytes).expect("an operation fits memory"));
        self.rng.fill_bytes(&mut buffer);
        buffer
    }

    /// A buffer of this length: the given one, if possible.
    #[inline(never)]
    fn fit(&mut self, buffer: Option<Buffer>, bytes: u64) -> Buffer {
        let fits = |buffer: &mut Buffer| usize::try_from(bytes).is_ok_and(|len| buffer.set_len(len));
        buffer.and_then(|mut buffer| fits(&mut buffer).then_some(buffer)).unwrap_or_else(|| self.buffer(bytes))
    }
}

impl Worker {
    /// Makes the buffers in advance, so that the run allocates none.
    pub(super) fn make_buffers(&mut self) {
        let job = &self.plan.job;
        let moving = job.operations.directions().filter(|direction| *direction != Direction::Trim);
        if let Some(bytes) = moving.map(|direction| *job.bs[direction].bounds().end()).max() {
            self.spare.extend(self.new_buffers(bytes));
            self.spare.iter_mut().for_each(|buffer| self.fill.rng.fill_bytes(buffer));
        }
        let around = if self.plan.is_partial { self.new_buffers(self.plan.longest()) } else { Vec::new() };
        let partials = Partials::new(&self.plan, &self.stage.range_locks, self.flags.read, around);
        self.partials = partials.map(Box::new);
        self.is_watched |= self.partials.is_some();
    }

    /// Buffers of this length, one for each operation that the job may have outstanding.
    fn new_buffers(&self, bytes: u64) -> Vec<Buffer> {
        let job = &self.plan.job;
        let (count, len) = (job.iodepth as usize, usize::try_from(bytes).expect("an operation fits memory"));
        if job.fixedbufs {
            self.submitter.queue().register_buffers(count, len)
        } else {
            (0..count).map(|_| Buffer::zeroed(len)).collect()
        }
    }

    /// A buffer for an operation, with what it writes.
    pub(super) fn buffer(&mut self, operation: &Operation) -> Buffer {
        let mut buffer = match self.spare.pop() {
            Some(buffer) if buffer.len() as u64 == operation.bytes => buffer,
            other => self.fill.fit(other, operation.bytes),
        };
        if let Some(verifier) = &mut self.verifier {
            verifier.prepare(operation, &mut buffer);
        }
        buffer
    }
}
