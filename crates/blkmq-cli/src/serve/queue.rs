//! The queue in front of a device that is served.

use std::collections::BTreeMap;
use std::sync::Arc;

use blkmq::driver::Driver;
use blkmq::driver::spec::{self, Opener, Parameter, SpecError};
use blkmq::{Locking, QueueError, RequestQueue};
use blkmq_workbench::TextError;
use blkmq_workbench::device::is_real;

use super::config::{Disk, Settings};
use super::given::Given;
use super::plan::Plan;
use super::ram::Memory;
use crate::control::shares::FAIR;
use crate::device;
use blkmq_program::notice;

/// The queue of each export.
pub(super) fn build_all(plan: &Plan) -> Result<Vec<RequestQueue>, TextError> {
    let exports = &plan.exports;
    let (mut by_name, mut memory) = (BTreeMap::new(), Memory::default());
    for export in exports {
        if let Disk::Own { device, settings } = &export.disk {
            // A device that other exports may write to is not opened read-only.
            let read_only = exports.iter().filter(|other| other.queue() == export.queue()).all(|other| other.read_only);
            let q = build(device, settings, read_only, plan.takes_fair(export.queue()))?;
            if q.driver().name() == "ram" {
                memory.add(q.limits().size_bytes(), device)?;
            }
            by_name.insert(export.queue(), q);
        }
    }
    Ok(exports.iter().map(|export| by_name[export.queue()].clone()).collect())
}

/// The device's spec. A device that no client may write to is opened read-only, if the device has that option. Such a
/// device may be a file without write permission, and one that other programs read too.
fn with_access(text: &str, read_only: bool) -> String {
    let (parameter, value) = parameter(text, "read_only");
    if read_only && parameter.is_some() && value.is_none() { format!("{text},read_only=1") } else { text.to_owned() }
}

/// A parameter of the device that a spec names, if the device has it, and the value that the spec gives to it.
fn parameter(text: &str, name: &str) -> (Option<Parameter>, Option<String>) {
    let own = device::name(text);
    let found = blkmq_drivers::devices().into_iter().find(|device| device.name == own);
    let parameter = found.and_then(|device| device.parameters.iter().find(|parameter| parameter.name == name).copied());
    (parameter, device::given(text, name))
}

/// Checks devices and settings, as far as that can be done without opening a device. Returns a queue for each export,
/// each in front of a device that stands for the export's.
pub(super) fn check_all(plan: &Plan) -> Result<Vec<RequestQueue>, TextError> {
    let exports = &plan.exports;
    let (mut by_name, mut memory) = (BTreeMap::new(), Memory::default());
    for export in exports {
        if let Disk::Own { device, settings } = &export.disk {
            blkmq_drivers::check(&device.text).map_err(|error| device.fault(error.to_string()))?;
            let stand_in = stand_in(&device.text).map_err(|error| device.fault(error.to_string()))?;
            let q = equip(stand_in, device, settings, plan.takes_fair(export.queue()))?;
            if q.driver().name() == "ram" {
                memory.plan(q.limits().size_bytes(), device)?;
            }
            by_name.insert(export.queue(), q);
        }
    }
    Ok(exports.iter().map(|export| by_name[export.queue()].clone()).collect())
}

/// A device in the place of the one that a spec names. The devices of the crate blkmq hold nothing, so they are opened;
/// another one is replaced by one in memory, with as many hardware queues of the same depth.
fn stand_in(text: &str) -> Result<Arc<dyn Driver>, SpecError> {
    if !is_real(&device::name(text)) {
        return spec::open(text);
    }
    let mut stand_in = "null,memory_backed=1".to_owned();
    for name in ["submit_queues", "hw_queue_depth"] {
        let (parameter, value) = parameter(text, name);
        if let Some(value) = value.or_else(|| Some(parameter?.default.to_owned())) {
            stand_in += &format!(",{name}={value}");
        }
    }
    spec::open(&stand_in)
}

/// Opens the device, and builds the queue.
fn build(device: &Given, settings: &Settings, read_only: bool, takes_fair: bool) -> Result<RequestQueue, TextError> {
    let driver =
        blkmq_drivers::open_for(&with_access(&device.text, read_only), &Opener { tell: &notice, ..Opener::SILENT });
    let driver = driver.map_err(|error| device.fault(error.to_string()))?;
    equip(driver, device, settings, takes_fair)
}

/// The queue in front of a device, with its settings. `takes_fair`: the scheduler is `fair`, since the settings name
/// none.
fn equip(
    driver: Arc<dyn Driver>,
    device: &Given,
    settings: &Settings,
    takes_fair: bool,
) -> Result<RequestQueue, TextError> {
    let mut builder = RequestQueue::builder(driver);
    // Whether requests may bypass the scheduler depends on the locking that the queue is built with.
    if let Some(locking) = &settings.locking {
        builder = builder.locking(locking.text.parse::<Locking>().map_err(|error| locking.fault(error.to_string()))?);
    }
    let named = settings.scheduler.as_ref().map(|scheduler| scheduler.text.as_str());
    if let Some(scheduler) = named.or(takes_fair.then_some(FAIR)) {
        builder = builder.scheduler(scheduler);
    }
    let q = builder.build().map_err(|error| match (&error, &settings.scheduler) {
        (QueueError::UnknownScheduler(_) | QueueError::OrdersWhole { .. }, Some(scheduler)) => {
            scheduler.fault(error.to_string())
        }
        _ => device.fault(error.to_string()),
    })?;
    let bypass = settings.bypass.iter().map(|value| ("bypass", value));
    for (name, value) in bypass.chain(settings.set.iter().map(|(name, value)| (name.as_str(), value))) {
        q.change_knob(name, &value.text).and_then(|change| change.wait()).map_err(|error| {
            let is_of_another = takes_fair && name.starts_with("iosched/");
            let why = if is_of_another { ", because clients have weights and no scheduler is named" } else { "" };
            value.fault(format!("{error}{why}"))
        })?;
    }
    Ok(q)
}
