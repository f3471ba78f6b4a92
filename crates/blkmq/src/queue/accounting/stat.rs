//! What is shown: the numbers of Linux's `/sys/block/X/stat`.

use std::fmt;

/// The statistics of a queue, or of a named range of its sectors, in the order and with the units of the kernel's
/// `stat` file. [`Display`](fmt::Display) prints the line of that file.
///
/// Requests are counted, not operations: several operations that merged are one request and some merges. Requests that
/// failed count like others. Writes of zeroes, and operations that only flush, count as writes. Sectors are of 512
/// bytes. Ticks are milliseconds, summed in nanoseconds from the submission of each request to its completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct DiskStats {
    /// Reads that completed.
    pub read_ios: u64,
    /// Reads that joined another one.
    pub read_merges: u64,
    /// Sectors of reads that completed.
    pub read_sectors: u64,
    /// Time that these reads took, in ms.
    pub read_ticks: u64,
    /// Writes that completed.
    pub write_ios: u64,
    /// Writes that joined another one.
    pub write_merges: u64,
    /// Sectors of writes that completed.
    pub write_sectors: u64,
    /// Time that these writes took, in ms.
    pub write_ticks: u64,
    /// Requests that have entered and are not over: those that wait, and those that the driver has or is about to get.
    pub in_flight: u64,
    /// Time in which there was something in the queue, in ms. The time is measured in ticks of 2^20 ns, and is never
    /// more than has passed.
    pub io_ticks: u64,
    /// Time that all requests took, flushes included, in ms.
    pub time_in_queue: u64,
    /// Discards that completed.
    pub discard_ios: u64,
    /// Discards that joined another one.
    pub discard_merges: u64,
    /// Sectors of discards that completed.
    pub discard_sectors: u64,
    /// Time that these discards took, in ms.
    pub discard_ticks: u64,
    /// Flushes that the queue sent to the device and that completed; of a range always 0.
    pub flush_ios: u64,
    /// Time that these flushes took, in ms.
    pub flush_ticks: u64,
}

impl DiskStats {
    /// All 17 numbers in the kernel's order.
    #[must_use]
    pub const fn fields(&self) -> [u64; 17] {
        [
            self.read_ios,
            self.read_merges,
            self.read_sectors,
            self.read_ticks,
            self.write_ios,
            self.write_merges,
            self.write_sectors,
            self.write_ticks,
            self.in_flight,
            self.io_ticks,
            self.time_in_queue,
            self.discard_ios,
            self.discard_merges,
            self.discard_sectors,
            self.discard_ticks,
            self.flush_ios,
            self.flush_ticks,
        ]
    }
}

/// One line, each number at the right of eight columns, as in the kernel's file, without the newline.
impl fmt::Display for DiskStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, field) in self.fields().into_iter().enumerate() {
            let gap = if at == 0 { "" } else { " " };
            write!(f, "{gap}{field:>8}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_the_kernels() {
        let stat = DiskStats { read_ios: 1, in_flight: 123_456_789, flush_ticks: 17, ..DiskStats::default() };
        let line = stat.to_string();
        assert_eq!(line.split_whitespace().count(), 17);
        assert!(line.starts_with("       1        0"), "{line}");
        assert!(line.contains(" 123456789        0"), "a long number pushes the others on: {line}");
        assert!(line.ends_with("       17"), "{line}");
    }
}
