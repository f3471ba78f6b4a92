//! Whether the memory of devices in memory can be had. They take it as it is written, and a server that is out of
//! memory is killed, with all of its clients. `queue` asks before it serves.

use blkmq_export::{available_memory, available_swap};
use blkmq_workbench::TextError;

use super::given::Given;

/// The memory that the devices opened so far take when they are full.
#[derive(Debug, Default)]
pub(super) struct Memory {
    bytes: u64,
}

impl Memory {
    /// Adds a device of this size.
    ///
    /// # Errors
    /// The machine, a limit of the process or of its control groups does not allow so much. Memory that other programs
    /// have taken by the time that it is needed may still be missing then, and writes fail.
    pub(super) fn add(&mut self, size: u64, device: &Given) -> Result<(), TextError> {
        // The map of the pages and the overhead of the allocator take less than 1/64 of the pages.
        self.bytes = self.bytes.saturating_add(size.saturating_add(size / 64));
        match refusal(self.bytes, limit()) {
            Some(why) => Err(device.fault(format!(
                "{size} bytes of memory cannot be had: {why}; give a smaller size, or null,memory_backed=1, whose \
                 writes fail once there is no memory"
            ))),
            None => Ok(()),
        }
    }
}

/// The most that the control groups of this process and the machine's memory allow, with all that can be swapped out.
/// `None` if that is not known.
fn limit() -> Option<u64> {
    available_memory().map(|bytes| bytes.saturating_add(available_swap().unwrap_or(0)) as u64)
}

/// Why so much memory cannot be had, if it cannot.
fn refusal(bytes: u64, limit: Option<u64>) -> Option<String> {
    if let Some(limit) = limit.filter(|limit| *limit < bytes) {
        return Some(format!("the machine or the control group allows {limit}"));
    }
    let mut memory = Vec::<u8>::new();
    let reserved = usize::try_from(bytes).map_err(|error| error.to_string());
    let reserved = reserved.and_then(|bytes| memory.try_reserve_exact(bytes).map_err(|error| error.to_string()));
    // Memory that is not used would not be asked for.
    std::hint::black_box(&memory);
    reserved.err()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if a limit is passed over, or if memory that the system would never give is taken for given.
    #[test]
    fn memory_is_had_up_to_the_limits_and_as_far_as_the_system_gives_it() {
        assert_eq!(refusal(1 << 20, Some(1 << 20)), None);
        assert_eq!(refusal(1 << 20, None), None);
        let why = refusal((1 << 20) + 1, Some(1 << 20));
        assert_eq!(why.as_deref(), Some("the machine or the control group allows 1048576"));
        assert!(refusal(1 << 62, None).is_some() && refusal(u64::MAX, None).is_some());
    }

    /// Red if each of several devices is compared with all of the memory.
    #[test]
    fn devices_share_the_memory() {
        let device = Given::option("device", "ram");
        let mut memory = Memory::default();
        let Some(limit) = limit() else { return };
        assert_eq!(memory.add(1 << 20, &device), Ok(()));
        let error = memory.add(limit, &device).unwrap_err().to_string();
        assert!(error.starts_with(&format!("--device: {limit} bytes of memory cannot be had: ")), "{error}");
    }
}
