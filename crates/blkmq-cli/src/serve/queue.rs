//! The queue in front of a device that is served.

use std::collections::BTreeMap;
use std::sync::Arc;

use blkmq::driver::Driver;
use blkmq::driver::spec::{self, DeviceDescription, Opener};
use blkmq::{Locking, QueueError, RequestQueue};
use blkmq_workbench::TextError;

use super::config::{Disk, Export, Settings};
use super::given::Given;
use super::ram::Memory;
use blkmq_program::notice;

/// The queue of each export.
pub(super) fn build_all(exports: &[Export]) -> Result<Vec<Arc<RequestQueue>>, TextError> {
    let (mut by_name, mut memory) = (BTreeMap::new(), Memory::default());
    for export in exports {
        if let Disk::Own { device, settings } = &export.disk {
            // A device that other exports may write to is not opened read-only.
            let read_only = exports.iter().filter(|other| other.queue() == export.queue()).all(|other| other.read_only);
            let q = build(device, settings, read_only)?;
            if q.driver().name() == "ram" {
                memory.add(q.limits().size_bytes(), device)?;
            }
            by_name.insert(export.queue(), q);
        }
    }
    Ok(exports.iter().map(|export| Arc::clone(&by_name[export.queue()])).collect())
}

/// Checks devices and settings, as far as that can be done without opening the devices.
pub(super) fn check_all(exports: &[Export]) -> Result<(), TextError> {
    let mut memory = Memory::default();
    for export in exports {
        if let Disk::Own { device, settings } = &export.disk {
            check(device, settings)?;
            // To open one takes no memory.
            if device.text == "ram" || device.text.starts_with("ram,") {
                let driver = spec::open(&device.text).map_err(|error| device.fault(error.to_string()))?;
                memory.plan(driver.limits().size_bytes(), device)?;
            }
        }
    }
    Ok(())
}

/// The device's spec. A device that no client may write to is opened read-only, if the device has that option. Such a
/// device may be a file without write permission, and one that other programs read too.
fn with_access(text: &str, read_only: bool) -> String {
    let mut words = text.split(',');
    let name = words.next();
    let is_given = words.any(|word| word.split('=').next() == Some("read_only"));
    let has = |device: &DeviceDescription| device.parameters.iter().any(|parameter| parameter.name == "read_only");
    let knows = blkmq_drivers::devices().iter().any(|device| Some(device.name) == name && has(device));
    if read_only && knows && !is_given { format!("{text},read_only=1") } else { text.to_owned() }
}

/// Checks a device and its settings.
fn check(device: &Given, settings: &Settings) -> Result<(), TextError> {
    blkmq_drivers::check(&device.text).map_err(|error| device.fault(error.to_string()))?;
    let stand_in = spec::open("null,hw_queue_depth=1024").map_err(|error| device.fault(error.to_string()))?;
    equip(stand_in, device, settings).map(drop)
}

/// Opens the device, and builds the queue.
fn build(device: &Given, settings: &Settings, read_only: bool) -> Result<Arc<RequestQueue>, TextError> {
    let driver =
        blkmq_drivers::open_for(&with_access(&device.text, read_only), &Opener { tell: &notice, ..Opener::SILENT });
    let driver = driver.map_err(|error| device.fault(error.to_string()))?;
    equip(driver, device, settings)
}

/// The queue in front of a device, with its settings.
fn equip(driver: Arc<dyn Driver>, device: &Given, settings: &Settings) -> Result<Arc<RequestQueue>, TextError> {
    let mut builder = RequestQueue::builder(driver);
    // Whether requests may bypass the scheduler depends on the locking that the queue is built with.
    if let Some(locking) = &settings.locking {
        builder = builder.locking(locking.text.parse::<Locking>().map_err(|error| locking.fault(error.to_string()))?);
    }
    if let Some(scheduler) = &settings.scheduler {
        builder = builder.scheduler(&scheduler.text);
    }
    let q = builder.build().map_err(|error| match (&error, &settings.scheduler) {
        (QueueError::UnknownScheduler(_) | QueueError::OrdersWhole { .. }, Some(scheduler)) => {
            scheduler.fault(error.to_string())
        }
        _ => device.fault(error.to_string()),
    })?;
    let bypass = settings.bypass.iter().map(|value| ("bypass", value));
    for (name, value) in bypass.chain(settings.set.iter().map(|(name, value)| (name.as_str(), value))) {
        q.change_knob(name, &value.text)
            .and_then(|change| change.wait())
            .map_err(|error| value.fault(error.to_string()))?;
    }
    Ok(q)
}
