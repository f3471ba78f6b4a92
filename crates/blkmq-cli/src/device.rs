//! Opening the device of a load, and what keeps the load from it.

use std::sync::Arc;

use blkmq::driver::Driver;
use blkmq::driver::spec::{Opener, words};
use blkmq_drivers::canonical;
use blkmq_workbench::bench::BenchError;
use blkmq_workbench::device::{holds_data, is_real};

use blkmq_program::notice;
use blkmq_program::render::size;

/// What a load does with its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Intent {
    /// The load runs on a virtual clock.
    pub(crate) is_virtual: bool,
    /// The load writes or trims.
    pub(crate) changes: bool,
    /// The load may overwrite data.
    pub(crate) overwrite: bool,
}

/// The name of a device that is given by a spec, or by a short form of one.
pub(crate) fn name(device: &str) -> String {
    words(&canonical(device)).into_iter().next().unwrap_or_default()
}

/// The value that a device's spec gives to a parameter.
pub(crate) fn given(device: &str, name: &str) -> Option<String> {
    let words = words(&canonical(device));
    words.iter().skip(1).find_map(|word| Some(word.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
}

/// The file that two devices cannot have open at the same time, if it is one.
pub(crate) fn contested(one: &str, other: &str) -> Option<String> {
    let path = |spec| given(spec, "path").filter(|_| name(spec) == "file");
    let (first, second) = (path(one)?, path(other)?);
    let only_reads = [one, other].iter().all(|spec| given(spec, "read_only").as_deref() == Some("1"));
    let found = |path: &str| std::fs::canonicalize(path).ok();
    let is_same = first == second || found(&first).is_some_and(|first| Some(first) == found(&second));
    (is_same && !only_reads).then_some(first)
}

/// The share of the device that is a hole.
pub(crate) fn hole_share(driver: &dyn Driver) -> f64 {
    let bytes = driver.limits().size_bytes();
    let (mut at, mut holes) = (0, 0);
    while at < bytes {
        let extent = driver.extent(at, bytes - at);
        holes += if extent.is_hole { extent.bytes } else { 0 };
        at += extent.bytes;
    }
    holes as f64 / bytes.max(1) as f64
}

/// Warns of holes in the device of a load that reads. Memory and models have none that matter.
pub(crate) fn warn_reader(spec: &str, driver: &dyn Driver) {
    if is_real(driver.name()) {
        warn_of_holes(spec, hole_share(driver));
    }
}

/// Warns of the share of a device that is a hole, if it is large enough to change what is measured.
pub(crate) fn warn_of_holes(spec: &str, share: f64) {
    if share > 0.01 {
        let percent = 100.0 * share;
        notice(&format!(
            "{spec}: {percent:.0} % of it are holes, and reads there do not reach a disk; fill it to measure the disk"
        ));
    }
}

/// Opens the device that `spec` describes for a load with so many submitters, if they are known.
///
/// # Errors
/// What is wrong with the spec; or the device is real storage, and the load runs on virtual time, or would overwrite
/// data although that is not allowed. A file that this call creates holds no data.
pub(crate) fn open(spec: &str, nr_submitters: Option<u16>, intent: Intent) -> Result<Arc<dyn Driver>, String> {
    let is_real = is_real(&name(spec));
    // Before the device is opened, which may make a file.
    if is_real && intent.is_virtual {
        return Err(format!("{spec}: {}; leave out --clock virtual", BenchError::RealTime));
    }
    let opener = Opener { tell: &notice, nr_submitters };
    let driver = blkmq_drivers::open_for(&canonical(spec), &opener).map_err(|error| error.to_string())?;
    let limits = driver.limits();
    let bytes = limits.size_bytes();
    if is_real && intent.changes && !intent.overwrite && !limits.read_only && holds_data(&*driver, bytes) {
        return Err(format!(
            "{spec}: it may hold data, and the load writes to it: any of its {} may be overwritten; give one that is empty, \
             or --overwrite if the data may be lost",
            size(bytes)
        ));
    }
    Ok(driver)
}
