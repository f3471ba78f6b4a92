//! Whether the memory of devices in memory can be had. They take it as it is written, and a server that is out of
//! memory is killed, with all of its clients. `queue` asks before it serves.

use blkmq_export::available_memory;
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
        self.plan(size, device)?;
        Self::admit(size, device, not_given(self.bytes))
    }

    /// Adds a device of this size, as [`add`](Self::add), but asks the system for nothing: the server that runs may
    /// have the memory still.
    ///
    /// # Errors
    /// The machine or a control group does not allow so much.
    pub(super) fn plan(&mut self, size: u64, device: &Given) -> Result<(), TextError> {
        // The map of the pages and the overhead of the allocator take less than 1/64 of the pages.
        self.bytes = self.bytes.saturating_add(size.saturating_add(size / 64));
        Self::admit(size, device, above(self.bytes, limit()))
    }

    fn admit(size: u64, device: &Given, why_not: Option<String>) -> Result<(), TextError> {
        match why_not {
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
    available_memory().map(|bytes| bytes as u64)
}

/// That a limit allows less, if it does.
fn above(bytes: u64, limit: Option<u64>) -> Option<String> {
    limit.filter(|limit| *limit < bytes).map(|limit| format!("the machine or the control group allows {limit}"))
}

/// Why the system does not give so much memory, if it does not.
fn not_given(bytes: u64) -> Option<String> {
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
        assert_eq!(above(1 << 20, Some(1 << 20)), None);
        assert_eq!(above(1 << 20, None), None);
        let why = above((1 << 20) + 1, Some(1 << 20));
        assert_eq!(why.as_deref(), Some("the machine or the control group allows 1048576"));
        assert_eq!(not_given(1 << 20), None);
        assert!(not_given(1 << 62).is_some() && not_given(u64::MAX).is_some());
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
