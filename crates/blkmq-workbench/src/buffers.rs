//! Buffers that are used again.

use std::collections::HashMap;

use blkmq::{Buffer, Buffers};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Buffers that are not in use, by length.
#[derive(Debug)]
pub(crate) struct BufferPool {
    spare: HashMap<usize, Vec<Buffer>>,
    /// Bytes of the buffers in the pool, and the most that it keeps.
    bytes: usize,
    most_bytes: usize,
    /// What new buffers are filled with, where a device may look at their contents.
    fill: Option<SmallRng>,
}

impl BufferPool {
    /// A pool that keeps this many bytes. `fills`: whether new buffers get contents that do not compress.
    pub(crate) fn new(most_bytes: usize, fills: bool) -> Self {
        Self { spare: HashMap::new(), bytes: 0, most_bytes, fill: fills.then(|| SmallRng::seed_from_u64(1)) }
    }

    /// Takes a buffer of this length, or makes one.
    pub(crate) fn take(&mut self, len: usize) -> Buffer {
        if let Some(buffer) = self.spare.get_mut(&len).and_then(Vec::pop) {
            self.bytes -= len;
            return buffer;
        }
        let mut buffer = Buffer::zeroed(len);
        if let Some(rng) = &mut self.fill {
            rng.fill_bytes(&mut buffer);
        }
        buffer
    }

    /// Keeps the buffer of an operation, if there is one and it fits.
    pub(crate) fn put(&mut self, buffers: Buffers) {
        if let Buffers::One(buffer) = buffers
            && buffer.len() <= self.most_bytes - self.bytes
        {
            self.bytes += buffer.len();
            self.spare.entry(buffer.len()).or_default().push(buffer);
        }
    }
}
