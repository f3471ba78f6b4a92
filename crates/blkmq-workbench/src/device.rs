//! What a program asks of a device before it runs a load on it.

use blkmq::driver::{Driver, spec};

/// Whether the device of this name, the first word of a spec and [`Driver::name`], is real storage: it works in the
/// machine's time, and holds data that outlives the program. The devices of the crate blkmq and those of the program's
/// own are not.
#[must_use]
pub fn is_real(name: &str) -> bool {
    let is_known = blkmq_drivers::devices().iter().any(|device| device.name == name);
    is_known && !spec::DEVICES.iter().any(|device| device.name == name)
}

/// Whether a device of so many bytes may hold data, as far as its driver reports.
#[must_use]
pub fn holds_data(driver: &dyn Driver, bytes: u64) -> bool {
    let mut at = 0;
    while driver.keeps_data() && at < bytes {
        let extent = driver.extent(at, bytes - at);
        if !extent.is_zero {
            return true;
        }
        at += extent.bytes;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if a model is held for storage, or storage for a model.
    #[test]
    fn real_devices_are_those_that_outlive_the_program() {
        let real: Vec<_> =
            blkmq_drivers::devices().iter().map(|device| device.name).filter(|name| is_real(name)).collect();
        assert_eq!(real, ["file", "nbd", "rbd"]);
        assert!(!is_real("windmill") && !is_real(""));
    }
}
