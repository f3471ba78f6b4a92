//! What becomes of a block device when its server ends.

use crate::abi::{DeviceInfo, feature};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExitPolicy {
    /// It waits for the next server. Requests that wait are not to fail, so nothing is stopped.
    Stays,
    /// It is removed in order.
    Goes,
}

impl ExitPolicy {
    pub(crate) fn of(info: &DeviceInfo) -> Self {
        if info.flags & feature::USER_RECOVERY != 0 { Self::Stays } else { Self::Goes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if an error of a server removes a block device that is to survive it, with all requests that wait.
    #[test]
    fn a_device_that_outlives_its_server_stays_however_the_server_ends() {
        let recovery = feature::USER_RECOVERY | feature::USER_RECOVERY_REISSUE;
        let info = |flags| DeviceInfo { flags: feature::CMD_IOCTL_ENCODE | flags, ..DeviceInfo::default() };
        assert_eq!([info(recovery), info(0)].map(|info| ExitPolicy::of(&info)), [ExitPolicy::Stays, ExitPolicy::Goes]);
    }
}
