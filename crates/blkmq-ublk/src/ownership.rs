//! Whose a device is: the ownership tag that blkmq leaves in a device's information, and what is taken over by it.

use std::hash::{BuildHasher, Hasher, RandomState};

use crate::abi::{DeviceInfo, Parameters, feature, parameter};

/// What a device may not have that is taken over: data lies elsewhere then, or other commands are needed. Beside these,
/// kernels give a device features that it was not made with.
const UNSERVED: u64 = feature::NEED_GET_DATA
    | feature::UNPRIVILEGED_DEV
    | feature::USER_COPY
    | feature::ZONED
    | feature::AUTO_BUF_REG
    | feature::BATCH_IO;

/// The half of an ownership tag that is the same for the same name (FNV-1a).
fn tag_half(name: &str) -> u64 {
    let bytes = b"blkmq 1 ".iter().chain(name.as_bytes());
    let hash =
        bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3));
    (hash ^ hash << 32) & !0 << 32
}

/// An ownership tag for a new device: half of it says what the device stands in front of, and half is its own.
pub(crate) fn ownership_tag(name: &str) -> u64 {
    tag_half(name) | RandomState::new().build_hasher().finish() >> 32
}

/// Why a server must not take over this device, if it must not. `name`: what the device would stand in front of.
pub(crate) fn foreign(info: &DeviceInfo, parameters: &Parameters, name: &str) -> Option<String> {
    let unserved = info.flags & UNSERVED;
    if unserved != 0 {
        let names = feature::NAMES.iter().filter(|(bit, _)| unserved & bit != 0).map(|(_, name)| *name);
        let names = names.collect::<Vec<_>>().join(", ");
        return Some(format!("another program made it, with features that are not served here: {names}"));
    }
    if !info.has(feature::USER_RECOVERY_REISSUE) {
        return Some(
            "another program made it, so that requests which wait are not given to the next server".to_owned(),
        );
    }
    let unknown = parameters.types & !(parameter::BASIC | parameter::DISCARD | parameter::DEVT);
    if unknown != 0 {
        return Some(format!("another program made it, with parameters that are not known here ({unknown:#x})"));
    }
    if info.server_flags & !0 << 32 != tag_half(name) {
        return Some(
            "it was made by another program, or in front of other data; the next server has to open the same file, block \
             device or image"
                .to_owned(),
        );
    }
    None
}

/// Whether the device that has the number now is the one that this process has served, or still serves. Numbers are
/// given anew.
pub(crate) fn is_ours(found: &DeviceInfo, ours: &DeviceInfo, pid: i32) -> bool {
    // A device that was stopped, or not started yet, has no process.
    found.server_flags == ours.server_flags && (found.server_pid == pid || found.server_pid <= 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(name: &str) -> DeviceInfo {
        let flags = feature::USER_RECOVERY | feature::USER_RECOVERY_REISSUE | feature::CMD_IOCTL_ENCODE;
        DeviceInfo { flags, server_flags: ownership_tag(name), server_pid: 7, ..DeviceInfo::default() }
    }

    /// Red if a server takes over a device whose requests it would answer without their data, or with another disk.
    #[test]
    fn only_a_device_of_the_same_kind_and_name_is_taken_over() {
        let (made, plain) = (info("a=file"), Parameters { types: parameter::BASIC, ..Parameters::default() });
        assert_eq!(foreign(&made, &plain, "a=file"), None);
        let by_kernel = DeviceInfo { flags: made.flags | 1 << 1 | 1 << 13, ..made };
        let with_number = Parameters { types: plain.types | parameter::DISCARD | parameter::DEVT, ..plain };
        assert_eq!(foreign(&by_kernel, &with_number, "a=file"), None);
        for name in ["need_get_data", "unprivileged_dev", "user_copy", "zoned", "auto_buf_reg", "batch_io"] {
            let (bit, _) = feature::NAMES.iter().find(|(_, found)| *found == name).unwrap();
            let other = DeviceInfo { flags: made.flags | bit, ..made };
            assert!(foreign(&other, &plain, "a=file").unwrap().contains(name), "{name}");
        }
        let lost = DeviceInfo { flags: made.flags & !feature::USER_RECOVERY_REISSUE, ..made };
        assert!(foreign(&lost, &plain, "a=file").unwrap().contains("requests which wait"));
        let zoned = Parameters { types: plain.types | 1 << 3, ..plain };
        assert!(foreign(&made, &zoned, "a=file").unwrap().contains("parameters"));
        assert!(foreign(&made, &plain, "a=other").unwrap().contains("other data"));
        let unmarked = DeviceInfo { server_flags: 0, ..made };
        assert!(foreign(&unmarked, &plain, "a=file").unwrap().contains("other data"));
    }

    /// Red if the end of a server removes a device that got the number of its own, which another process has removed.
    #[test]
    fn a_number_that_was_given_anew_is_not_ours() {
        let ours = info("a");
        assert!(is_ours(&ours, &ours, 7));
        assert!(is_ours(&DeviceInfo { server_pid: -1, ..ours }, &ours, 7), "it was stopped");
        assert!(!is_ours(&DeviceInfo { server_pid: 8, ..ours }, &ours, 7), "another server has taken it over");
        let strangers = DeviceInfo { server_flags: 0, ..ours };
        assert!(!is_ours(&strangers, &ours, 7));
        // Another device in front of the same disk, made by the same words.
        let anew = DeviceInfo { server_flags: ours.server_flags ^ 1, server_pid: -1, ..ours };
        assert!(!is_ours(&anew, &ours, 7));
        assert_eq!((ownership_tag("a") ^ ownership_tag("a")) >> 32, 0);
    }
}
