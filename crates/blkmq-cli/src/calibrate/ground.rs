//! The device that is measured: how it is opened, and what keeps it from being measured.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use blkmq::driver::Driver;
use blkmq::driver::spec::{self, Opener};
use blkmq_workbench::bench::{Bench, BenchError, ClockKind, Setup};
use blkmq_workbench::device::{holds_data, is_real};
use blkmq_workbench::{Job, TextError};

use crate::device::{self, given};
use crate::target::Time;
use blkmq_program::render::size;
use blkmq_program::{Failure, notice};

/// The least device on which the loads have room.
const LEAST_BYTES: u64 = 4 << 20;
/// The parameter that this command is about.
const DEPTH: &str = "hw_queue_depth";
/// The knob of a queue that bounds the work with the device, and its value for one that finds the bound by itself.
pub(super) const LIMITER: &str = "wbt_lat_usec";
pub(super) const AUTO: i64 = -1;
/// The most hardware queues that are loaded: each has a thread.
const MAX_QUEUES: u16 = 64;

/// What may be done to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Permits {
    pub(super) writes: bool,
    /// The device may hold data, which may be lost.
    pub(super) overwrite: bool,
}

/// How a queue is put in front of the device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Front {
    /// `None`: the device's own depth.
    pub(super) depth: Option<u32>,
    /// `None`: the one that a server takes by default.
    pub(super) scheduler: Option<&'static str>,
    /// Whether the queue bounds the work with the device by itself: `wbt_lat_usec` is -1.
    pub(super) has_limiter: bool,
}

/// A device that may be measured.
#[derive(Debug)]
pub(super) struct Ground {
    /// As the user gave it, but for short forms.
    given: String,
    /// As it is opened.
    spec: String,
    /// Whether virtual time is used, and each opening makes a new device.
    pub(super) is_model: bool,
    /// Whether the device says that it turns.
    pub(super) is_rotational: bool,
    /// Hardware queues that plain requests go to, and the depth of each.
    pub(super) queues: u16,
    pub(super) depth: u16,
    pub(super) bytes: u64,
    pub(super) block: u64,
    /// The longest request, in bytes.
    pub(super) longest: u64,
    /// The share of the device that takes up no room: reads there never reach a disk.
    pub(super) hole_share: f64,
    /// Keeps a block device that is only read from being used by another program.
    _claim: Option<File>,
}

/// The spec with another value of a parameter.
fn with(spec: &str, name: &str, value: &str) -> String {
    let is_it = |word: &str| word.strip_prefix(name).is_some_and(|rest| rest.starts_with('='));
    let words = spec::words(spec);
    let kept = words.iter().enumerate().filter(|(at, word)| *at == 0 || !is_it(word));
    let kept: Vec<String> = kept.map(|(_, word)| spec::write_word(word)).collect();
    format!("{},{name}={value}", kept.join(","))
}

/// Claims a block device that is to be read, so that a mounted one is refused. `None` for anything else.
fn claim(path: &str) -> Result<Option<File>, String> {
    let path = Path::new(path);
    if !path.metadata().is_ok_and(|found| found.file_type().is_block_device()) {
        return Ok(None);
    }
    match OpenOptions::new().read(true).custom_flags(libc::O_EXCL | libc::O_CLOEXEC).open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Err(format!(
            "{}: mounted, or another program has it for itself; what it does would count as the device's, and it would \
             be slowed down. Unmount it, or say force=1",
            path.display()
        )),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

impl Ground {
    /// How many hardware queues there are, and how long the device is if it is no model.
    pub(super) fn reach(&self) -> (u16, Option<u64>) {
        (self.queues, (!self.is_model).then_some(self.bytes))
    }

    /// Opens the device once, looks whether it may be measured, and closes it.
    pub(super) fn open(device: &str, permits: Permits) -> Result<Self, Failure> {
        let fault = |what: String| TextError { place: device.to_owned(), what };
        let given_spec = blkmq_drivers::canonical(device).into_owned();
        let mut spec = given_spec.clone();
        let mut held = None;
        if device::name(&spec) == "file" {
            // A server that has the file is not waited for: the file is in use.
            if given(&spec, "lock_timeout").is_none() {
                spec = with(&spec, "lock_timeout", "0");
            }
            if !permits.writes {
                if given(&spec, "force").as_deref() != Some("1") {
                    held = given(&spec, "path").map_or(Ok(None), |path| claim(&path)).map_err(fault)?;
                }
                spec = with(&spec, "read_only", "1");
            }
        }
        let driver = open(&spec).map_err(|error| fault(error.to_string()))?;
        let (limits, topology) = (driver.limits(), driver.topology());
        let bytes = limits.size_bytes();
        if bytes < LEAST_BYTES {
            let what = format!("it has {}, and the loads need at least {}", size(bytes), size(LEAST_BYTES));
            return Err(fault(what).into());
        }
        if permits.writes && limits.read_only {
            return Err(fault("it is read-only; leave out --writes".to_owned()).into());
        }
        // A device of the crate blkmq is made anew by each opening, so it holds nothing of anybody's.
        let name = driver.name();
        let is_own = !is_real(name);
        if permits.writes && !is_own {
            if !permits.overwrite && holds_data(&*driver, bytes) {
                let what = format!(
                    "--writes writes all over it: any of its {} may be overwritten, mostly with zeroes. It may hold data: \
                     give one that is empty, or --overwrite if the data may be lost",
                    size(bytes)
                );
                return Err(fault(what).into());
            }
            notice(&format!("writing all over {given_spec}: any of its {} may be overwritten", size(bytes)));
        }
        let hole_share = if is_own { 0.0 } else { device::hole_share(&*driver) };
        device::warn_of_holes(&given_spec, hole_share);
        Ok(Self {
            is_model: is_own && driver.takes_time() && name != "ram",
            is_rotational: limits.rotational,
            queues: topology.default_queues.min(MAX_QUEUES),
            depth: topology.depth,
            bytes,
            block: u64::from(limits.logical_block_size),
            longest: u64::from(limits.max_op_sectors(blkmq::Op::Read)) * 512,
            hole_share,
            given: given_spec,
            spec,
            _claim: held,
        })
    }

    pub(super) fn clock(&self) -> Time {
        if self.is_model { Time::Virtual } else { Time::Real }
    }

    /// The spec as the user gave it.
    pub(super) fn device(&self) -> &str {
        &self.given
    }

    /// The spec as the user gave it, with another depth.
    pub(super) fn device_at(&self, depth: u32) -> String {
        with(&self.given, DEPTH, &depth.to_string())
    }

    /// Whether the depth of the device's queues can be set.
    pub(super) fn has_depth(&self) -> bool {
        let name = device::name(&self.given);
        let is_depth = |parameter: &spec::Parameter| parameter.name == DEPTH;
        blkmq_drivers::devices().iter().any(|known| known.name == name && known.parameters.iter().any(is_depth))
    }

    /// A queue for these jobs, in front of the device as a server opens it.
    pub(super) fn bench(&self, front: Front, jobs: &[Job]) -> Result<Bench, Failure> {
        let Front { depth, scheduler, has_limiter } = front;
        let spec = depth.map_or_else(|| self.spec.clone(), |depth| with(&self.spec, DEPTH, &depth.to_string()));
        let fault = |what: String| TextError { place: spec.clone(), what };
        let driver = open(&spec).map_err(|error| fault(error.to_string()))?;
        let clock = if self.is_model { ClockKind::Virtual } else { ClockKind::Real };
        let mut setup = Setup { clock, scheduler: scheduler.map(Into::into), ..Setup::new(spec.as_str()) };
        if has_limiter {
            setup.settings.push((LIMITER.to_owned(), AUTO.to_string()));
        }
        Bench::over(driver, jobs, &setup).map_err(|error| fault(error.to_string()).into())
    }

    /// Why the device cannot be measured, from an error of a run.
    pub(super) fn failure(&self, error: &BenchError) -> Failure {
        Failure::Running(format!("{}: {error}", self.given))
    }
}

/// Opens the device as a server does, which does not know how many submitters it will have.
fn open(spec: &str) -> Result<Arc<dyn Driver>, spec::SpecError> {
    blkmq_drivers::open_for(spec, &Opener { tell: &notice, ..Opener::SILENT })
}

/// Whether a block device is rotational, if a file lies on one of which the system knows.
pub(super) fn of_sysfs(spec: &str) -> Option<bool> {
    let path = given(spec, "path")?;
    let found = std::fs::metadata(path).ok()?;
    let number = {
        use std::os::unix::fs::MetadataExt;
        if found.file_type().is_block_device() { found.rdev() } else { found.dev() }
    };
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let read = |queue: &str| std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/{queue}/rotational"));
    let text = read("queue").or_else(|_: io::Error| read("../queue")).ok()?;
    Some(text.trim() == "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if the depth that the user gave stays beside the other one, which a spec refuses.
    #[test]
    fn a_parameter_of_a_spec_is_replaced() {
        assert_eq!(with("null", "hw_queue_depth", "4"), "null,hw_queue_depth=4");
        assert_eq!(with("ssd,hw_queue_depth=32,seed=1", "hw_queue_depth", "4"), "ssd,seed=1,hw_queue_depth=4");
        assert_eq!(with("file,path=a,path2=b", "path", "c"), "file,path2=b,path=c");
        assert_eq!(with("file,path=a,,b,force=1", "force", "0"), "file,path=a,,b,force=0");
        assert_eq!(given("file,path=a=b,force=1", "path").as_deref(), Some("a=b"));
        assert_eq!(given("file,path=a,,force=1", "path").as_deref(), Some("a,force=1"));
        assert_eq!(given("path=a", "path"), None, "the first word is a name");
    }

    /// Red if writing is allowed where data may be lost, or refused where nothing can be.
    #[test]
    fn writes_need_leave_only_where_something_is_kept() {
        let folder = tempfile::tempdir().expect("there is room");
        let path = folder.path().join("disk");
        std::fs::write(&path, vec![1; 8 << 20]).expect("there is room");
        let spec = format!("file,path={}", path.display());
        let open = |device: &str, writes, overwrite| Ground::open(device, Permits { writes, overwrite });
        assert!(open(&spec, false, false).is_ok() && open(&spec, true, true).is_ok());
        let Err(Failure::Input(text)) = open(&spec, true, false) else { panic!("it is refused") };
        assert!(text.contains("any of its 8 MiB may be overwritten") && text.contains("--overwrite"), "{text}");
        assert!(open("null,memory_backed=1", true, false).is_ok(), "made anew by each opening");
        let empty = format!("file,path={},size=8M", folder.path().join("empty").display());
        assert!(open(&empty, true, false).is_ok(), "it has just been made");
        assert!(open(&empty, false, false).expect("it is there now").hole_share > 0.99);
    }
}
