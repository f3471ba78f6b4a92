//! Real storage behind the block layer: files and block devices through io_uring, exports of NBD servers, and images of
//! Ceph clusters.
//!
//! A device is opened by its spec, as the devices of the crate blkmq are. A file may be named by its path alone
//! ([`canonical`]):
//!
//! ```no_run
//! let disk = blkmq_drivers::open("file,path=disk.img,submit_queues=2")?;
//! let q = blkmq::RequestQueue::builder(disk).scheduler("mq-deadline").build()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Each device is a module, and a program that does not use specs opens it there, by a `Config`.

mod error;
pub mod file;
mod length;
mod naming;
pub mod nbd;
pub mod rbd;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use blkmq::driver::Driver;
use blkmq::driver::spec::{self, Accepts, DeviceDescription, Opener, Parameter, SpecError};

pub use error::OpenError;
pub use naming::canonical;

/// The parameter of every device of this crate for the depth of its hardware queues. The kernel allows far more
/// requests in flight on a ring.
const HW_QUEUE_DEPTH: Parameter = Parameter::new(
    "hw_queue_depth",
    Accepts::Count { unit: "", min: 1, max: 4096 },
    "128",
    "requests that a hardware queue takes at once",
);

const DEVICES: [DeviceDescription; 3] = [file::DEVICE, nbd::DEVICE, rbd::DEVICE];

/// Returns every device that a spec can name, those of the crate blkmq included.
#[must_use]
pub fn devices() -> Vec<DeviceDescription> {
    spec::DEVICES.iter().copied().chain(DEVICES).collect()
}

/// Opens the device that `spec` describes.
///
/// # Errors
/// What is wrong with the spec, or with the file that it names.
pub fn open(spec: &str) -> Result<Arc<dyn Driver>, SpecError> {
    open_for(spec, &Opener::SILENT)
}

/// Opens the device that `spec` describes, for a program that says something of itself. The program is told what the
/// call waits for, such as another server that still has the file, and what is not as requested, such as when the
/// system forbids io_uring.
///
/// # Errors
/// As of [`open`].
pub fn open_for(spec: &str, opener: &Opener<'_>) -> Result<Arc<dyn Driver>, SpecError> {
    spec::open_one_of(&devices(), &canonical(spec), opener).map_err(|error| help(spec, error))
}

/// Checks that `spec` names a device and gives its parameters values that they accept. Nothing is opened.
///
/// # Errors
/// What is wrong with the spec.
pub fn check(spec: &str) -> Result<(), SpecError> {
    spec::check_one_of(&devices(), &canonical(spec)).map_err(|error| help(spec, error))
}

/// Returns the same error. If the spec names no device, it may be meant as the name of a file.
fn help(spec: &str, error: SpecError) -> SpecError {
    let name = spec::words(&canonical(spec)).into_iter().next();
    let is_known = name.is_none_or(|name| devices().iter().any(|device| device.name == name));
    if is_known { error } else { error.and(naming::HELP) }
}

/// Takes a lock whose last owner may have panicked. The data under the lock is consistent between two steps.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the lock if it is free. `None` if another thread has it.
fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
