//! A device that exists: its character device is opened, and one that waits for a server is taken over.

use std::fs::{File, OpenOptions};
use std::thread;
use std::time::{Duration, Instant};

use crate::abi::{DeviceInfo, Parameters, State, feature};
use crate::control::{Control, character_path};
use crate::error::Error;
use crate::ownership::foreign;
use crate::parameters::difference;

/// How long a device that is to be taken over may take to notice that its server is gone. If every tag is with the
/// server, Linux 6.12 notices only when a request is overdue, which is after 30 s.
const NOTICE: Duration = Duration::from_secs(45);
/// The pause between two polls of such a device.
const PAUSE: Duration = Duration::from_millis(20);

/// Opens a device's character device. It may appear a moment after the device, and an old server may have it for a
/// moment more.
pub(crate) fn open(id: u32) -> Result<File, Error> {
    let (path, deadline) = (character_path(id), Instant::now() + NOTICE);
    loop {
        match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(file) => return Ok(file),
            Err(error) => {
                let may_pass = matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EBUSY | libc::ENXIO));
                if !may_pass || Instant::now() > deadline {
                    return Err(Error::Device(path, error));
                }
            }
        }
        thread::sleep(PAUSE);
    }
}

/// Takes over the device, once it has noticed that its server is gone. Returns what it is and what it is like. `None`
/// if there is no such device. `wished`: what the device would have to be like, in front of what has this name.
/// `zero_copy`: whether it could be one whose data stays with the kernel.
pub(crate) fn take_over(
    control: &Control,
    id: u32,
    wished: &Parameters,
    name: &str,
    zero_copy: impl Fn() -> Result<(), Error>,
) -> Result<Option<(DeviceInfo, Parameters)>, Error> {
    // If one queue has a tag and another has none, the kernel notices at the first one, and answers no command before
    // it has noticed at the second one.
    let (control, deadline) = (control.clone().limited(NOTICE), Instant::now() + NOTICE);
    loop {
        let info = match control.info(id) {
            Err(Error::NoDevice(_)) => return Ok(None),
            info => info?,
        };
        if !info.has(feature::USER_RECOVERY) {
            return Err(Error::NoRecovery(id));
        }
        if info.state == State::Dead {
            return Err(Error::Exists(id, State::Dead));
        }
        // All of this comes before the first step.
        let old = control.parameters(id)?;
        if let Some(what) = difference(&old, wished).or_else(|| foreign(&info, &old, name)) {
            return Err(Error::Differs(id, what));
        }
        if info.has(feature::SUPPORT_ZERO_COPY) {
            zero_copy()?;
        }
        let begun = match info.state {
            State::Quiesced | State::FailIo => control.begin_recovery(id),
            _ => Err(Error::Served(id)),
        };
        match begun {
            Ok(()) => return Ok(Some((info, old))),
            Err(Error::Served(_)) if Instant::now() < deadline => thread::sleep(PAUSE),
            Err(error) => return Err(error),
        }
    }
}
