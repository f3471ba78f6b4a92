//! The queue in front of a device that is served.

use std::collections::BTreeMap;
use std::sync::Arc;

use blkmq::{Locking, QueueError, RequestQueue};
use blkmq_workbench::TextError;

use super::config::{Disk, Export, Given, Settings};

/// The queue of each export.
pub(super) fn build_all(exports: &[Export]) -> Result<Vec<Arc<RequestQueue>>, TextError> {
    let mut by_name = BTreeMap::new();
    for export in exports {
        if let Disk::Own { device, settings } = &export.disk {
            by_name.insert(export.queue(), build(device, settings)?);
        }
    }
    Ok(exports.iter().map(|export| Arc::clone(&by_name[export.queue()])).collect())
}

/// Opens the device, and builds the queue.
fn build(device: &Given, settings: &Settings) -> Result<Arc<RequestQueue>, TextError> {
    let driver = blkmq_drivers::open(&device.text).map_err(|error| device.fault(error.to_string()))?;
    let mut builder = RequestQueue::builder(driver);
    // Whether requests may pass the scheduler by depends on the locking that the queue is built with.
    if let Some(locking) = &settings.locking {
        builder = builder.locking(locking.text.parse::<Locking>().map_err(|what| locking.fault(what))?);
    }
    if let Some(scheduler) = &settings.scheduler {
        builder = builder.scheduler(&scheduler.text);
    }
    let q = builder.build().map_err(|error| match (&error, &settings.scheduler) {
        (QueueError::UnknownScheduler(_), Some(scheduler)) => scheduler.fault(error.to_string()),
        _ => device.fault(error.to_string()),
    })?;
    let bypass = settings.bypass.iter().map(|value| ("bypass", value));
    for (name, value) in bypass.chain(settings.set.iter().map(|(name, value)| (name.as_str(), value))) {
        q.set_knob(name, &value.text)
            .and_then(|change| change.wait())
            .map_err(|error| value.fault(error.to_string()))?;
    }
    Ok(q)
}
