//! Images of a Ceph cluster, through librbd.
//!
//! librbd is loaded when the first image is opened. All requests of an image go to one handle of librbd's, from as many
//! threads as submit, and librbd's own threads do the rest. They tell by an eventfd of what is done, so a thread that
//! sleeps is woken once for all that is done by then.
//!
//! What librbd has is not given up: a request whose time is over stays borrowed until librbd answers. While the cluster
//! does not answer, as when the OSDs are down, requests wait.
//!
//! librbd keeps no order of requests that overlap and are with it at the same time: a read that is asked for after a
//! write may find what was there before, unless the write had been answered. The block layer keeps none either, and
//! neither does Linux, so clients that care wait.
//!
//! # How it is built
//!
//! The block layer calls in by [`Rbd`], and nothing else does. The `library` has librbd, the image and the requests
//! that librbd has, and all that is unsafe. The `size` says where requests have to end.

mod library;
mod size;
#[cfg(test)]
mod tests;

use std::ffi::CString;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{PathBuf, absolute};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use blkmq::SECTOR_SIZE;
use blkmq::driver::spec::{Accepts, DeviceDescription, Parameter, SpecError, Value, Values};
use blkmq::driver::{Batch, Done, Driver, Health, NextEvent, TimeoutAction, Topology};
use blkmq::{Limits, Op, RqId, Status, Time};

use crate::{HW_QUEUE_DEPTH, OpenError};
use library::{Api, Cluster, Image, MAX_SEGMENTS, Operation, Pool};

/// The largest transfer, in bytes: most images have objects of this size. A larger request would become several.
const MAX_BYTES: u64 = 4 << 20;

/// The longest discard, and the longest zeroing, in sectors: 1 GiB.
const MAX_RANGE_SECTORS: u32 = 1 << 21;

/// The parameters of the device.
///
#[doc = include_str!("../docs/rbd.md")]
pub const PARAMETERS: &[Parameter] = &[
    Parameter::new("pool", Accepts::Text, "", "the pool"),
    Parameter::new("image", Accepts::Text, "", "the image"),
    Parameter::new("snapshot", Accepts::Text, "", "a snapshot of the image, which is read only"),
    Parameter::new("namespace", Accepts::Text, "", "the namespace of the pool that has the image"),
    Parameter::new("id", Accepts::Text, "admin", "the client of the cluster, without its type"),
    Parameter::new("client", Accepts::Text, "", "the same with its type, as in client.admin"),
    Parameter::new(
        "conf",
        Accepts::Path,
        "",
        "the configuration of the cluster; without it what $CEPH_CONF names, or /etc/ceph/ceph.conf",
    ),
    Parameter::new(
        "cache",
        Accepts::Switch,
        "0",
        "1: librbd may keep what is written in memory until a flush; 0: what is answered is on the disks of the OSDs",
    ),
    Parameter::new("read_only", Accepts::Switch, "0", "opens it for reading only; whatever changes it is refused"),
    Parameter::new(
        "connect_timeout",
        Accepts::Time { max: 1 << 50 },
        "30s",
        "how long the monitors have to answer when the device is opened, in whole seconds",
    ),
    HW_QUEUE_DEPTH,
];

/// The device as specs name it.
pub(super) const DEVICE: DeviceDescription =
    DeviceDescription::new("rbd", "an image of a Ceph cluster, through librbd", PARAMETERS, |values| {
        Ok(Arc::new(Rbd::from_values(values)?))
    })
    .with_offers(offers);

/// What this system offers the device.
fn offers() -> String {
    match library::load() {
        Ok(api) => format!("librbd {}", library::version(api)),
        Err(error) => error.to_string(),
    }
}

/// Which image is opened, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The pool.
    pub pool: String,
    /// The namespace of the pool that has the image.
    pub namespace: Option<String>,
    /// The image.
    pub image: String,
    /// The snapshot of the image that is opened instead. It is read only.
    pub snapshot: Option<String>,
    /// The client of the cluster, as in `client.admin`.
    pub client: String,
    /// The configuration of the cluster. `None`: the one that Ceph finds by itself.
    pub conf: Option<PathBuf>,
    /// Whether librbd may keep what is written in memory until a flush.
    pub cache: bool,
    /// Whether the image is opened read-only.
    pub read_only: bool,
    /// How long the monitors have to answer when the device is opened; counts in whole seconds, at least one.
    pub connect_timeout: Duration,
    /// Tags of the hardware queue, 1 to 4096.
    pub depth: u16,
}

impl Config {
    /// Creates an image, with defaults for everything else.
    pub fn new(pool: impl Into<String>, image: impl Into<String>) -> Self {
        Self {
            pool: pool.into(),
            namespace: None,
            image: image.into(),
            snapshot: None,
            client: "client.admin".to_owned(),
            conf: None,
            cache: false,
            read_only: false,
            connect_timeout: Duration::from_secs(30),
            depth: 128,
        }
    }

    fn from_values(values: &Values) -> Result<Self, SpecError> {
        let text = |name| match values.get(name) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        };
        let (Some(pool), Some(image)) = (text("pool"), text("image")) else {
            return Err(SpecError::new("the pool or the image is missing, as in rbd,pool=rbd,image=disk"));
        };
        if values.is_given("id") && values.is_given("client") {
            return Err(SpecError::new("give id or client, not both"));
        }
        let defaults = Self::new(pool, image);
        Ok(Self {
            namespace: text("namespace"),
            snapshot: text("snapshot"),
            client: text("client").or_else(|| Some(format!("client.{}", text("id")?))).unwrap_or(defaults.client),
            conf: match values.get("conf") {
                Some(Value::Path(path)) => Some(path),
                _ => None,
            },
            cache: values.is_on("cache"),
            read_only: values.is_on("read_only"),
            connect_timeout: Duration::from_nanos(values.number("connect_timeout")),
            depth: values.number("hw_queue_depth"),
            ..defaults
        })
    }

    /// Returns true if nothing on the device can be changed.
    const fn is_read_only(&self) -> bool {
        self.read_only || self.snapshot.is_some()
    }
}

impl fmt::Display for Config {
    /// Returns the image as Ceph's own programs name it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.pool)?;
        self.namespace.iter().try_for_each(|namespace| write!(f, "{namespace}/"))?;
        f.write_str(&self.image)?;
        self.snapshot.iter().try_for_each(|snapshot| write!(f, "@{snapshot}"))
    }
}

/// An image of a Ceph cluster.
#[derive(Debug)]
pub struct Rbd {
    config: Config,
    version: String,
    image: Image,
    /// Whether an answer may come before the data is on the disks of the OSDs.
    is_cached: bool,
    /// The values of librbd's options for discards: the granularity in bytes, and whether less is left alone.
    discards: [Option<String>; 2],
    /// Whether a request was overdue since librbd has last answered.
    is_late: AtomicBool,
    /// Whether the cluster does not let this client in any more.
    is_shut_out: AtomicBool,
}

impl Rbd {
    /// Loads librbd, connects to the cluster and opens the image.
    ///
    /// # Errors
    /// Why there is no such image for this device, in one sentence.
    pub fn open(config: Config) -> Result<Self, OpenError> {
        Self::open_with(config, library::load, &|_| ())
    }

    fn from_values(values: &Values) -> Result<Self, SpecError> {
        Ok(Self::open_with(Config::from_values(values)?, library::load, &|text| values.tell(text))?)
    }

    fn open_with(
        config: Config,
        load: impl FnOnce() -> Result<&'static Api, OpenError>,
        tell: &dyn Fn(&str),
    ) -> Result<Self, OpenError> {
        let api = load().map_err(|error| error.at(&config))?;
        let image = Self::open_image(api, &config).map_err(|error| error.at(&config))?;
        // The pool or the image may have values of their own, which count more than what is asked for here.
        let [cache, persistent] = image.options(["rbd_cache", "rbd_persistent_cache_mode"]);
        let is_off = |value: &Option<String>, off| value.as_deref() == Some(off);
        let has_none = is_off(&cache, "false") && (persistent.is_none() || is_off(&persistent, "disabled"));
        let is_cached = !config.is_read_only() && !has_none;
        if is_cached && !config.cache {
            tell(&format!("{config}: has a cache, as its pool or image says (rbd config image list): flushes matter"));
        }
        let discards = image.options(["rbd_discard_granularity_bytes", "rbd_skip_partial_discard"]);
        let (is_late, is_shut_out) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Self { version: library::version(api), image, is_cached, discards, is_late, is_shut_out, config })
    }

    fn open_image(api: &'static Api, config: &Config) -> Result<Image, OpenError> {
        let conf = config.conf.as_ref().map(|path| CString::new(path.as_os_str().as_bytes())).transpose();
        let conf = conf.map_err(|_| OpenError::new("the path of the configuration has a byte 0"))?;
        let cache = if config.cache { "true" } else { "false" };
        let timeout = config.connect_timeout.as_secs().max(1).to_string();
        let options = [("rbd_cache", cache), ("client_mount_timeout", &timeout)];
        let cluster = Cluster::new(api, &config.client, conf.as_deref(), &options)?;
        cluster.connect(&config.client)?;
        let pool = Pool::open(cluster, &config.pool, config.namespace.as_deref())?;
        Image::open(pool, &config.image, config.snapshot.as_deref(), config.read_only, config.depth)
    }

    /// What librbd's answer means: the number of bytes for a read, 0 for others, or a negative error number.
    fn status(&self, operation: &Operation, result: i64) -> Status {
        if result < 0 {
            return self.failed(i32::try_from(-result).unwrap_or(libc::EIO));
        }
        let is_whole = operation.op != Op::Read || result as u64 == operation.bytes;
        // What lies past the end of the image was cut off, perhaps without an error.
        if is_whole && (operation.op == Op::Flush || self.image.size().holds(operation.end())) {
            Status::Ok
        } else {
            Status::IoError
        }
    }

    #[cold]
    fn failed(&self, errno: i32) -> Status {
        match errno {
            // Ceph's number for a client that is on the cluster's list of those that are shut out.
            libc::ESHUTDOWN => self.is_shut_out.store(true, Ordering::Relaxed),
            // librbd may be asked again for what it had no memory for. It does not say so of anything else.
            libc::EAGAIN => return Status::IoError,
            _ => (),
        }
        Status::from_errno(errno)
    }
}

impl Driver for Rbd {
    fn name(&self) -> &'static str {
        "rbd"
    }

    fn limits(&self) -> Limits {
        let is_read_only = self.config.is_read_only();
        let range = if is_read_only { 0 } else { MAX_RANGE_SECTORS };
        let max_bytes = self.image.object_size().clamp(1 << 16, MAX_BYTES) as u32;
        Limits {
            capacity_sectors: self.image.size().report() / SECTOR_SIZE as u64,
            logical_block_size: SECTOR_SIZE as u32,
            physical_block_size: 4096,
            max_sectors: max_bytes / SECTOR_SIZE as u32,
            max_segments: MAX_SEGMENTS,
            max_segment_size: max_bytes,
            max_discard_sectors: range,
            max_write_zeroes_sectors: range,
            write_cache: self.is_cached,
            read_only: is_read_only,
            ..Limits::default()
        }
    }

    fn health(&self) -> Health {
        if self.is_shut_out.load(Ordering::Relaxed) {
            let what = "the cluster has shut this client out (blocklisted); the device has to be opened anew";
            return Health::Failed(format!("{}: {what}", self.config));
        }
        if let Some(loss) = self.image.size().loss() {
            return Health::Failed(format!("{}: {loss}", self.config));
        }
        if self.is_late.load(Ordering::Relaxed) {
            let what = "a request has waited for longer than io_timeout, and the cluster has answered none since";
            return Health::Away(format!("{}: {what}", self.config));
        }
        Health::Good
    }

    fn identity(&self) -> Option<String> {
        let told = || std::env::var_os("CEPH_CONF").map(PathBuf::from);
        let conf = self.config.conf.clone().or_else(told).unwrap_or_else(|| "/etc/ceph/ceph.conf".into());
        Some(format!("rbd {} of {}", self.config, absolute(conf).unwrap_or_default().display()))
    }

    fn topology(&self) -> Topology {
        Topology::new(1, self.config.depth)
    }

    /// librbd takes requests from several threads at once, and works for some microseconds on each.
    fn is_concurrent(&self) -> bool {
        true
    }

    /// COST: for each request, a lock that no other thread waits for, and librbd's work to take it: some microseconds.
    fn queue_rqs(&self, _hctx: u16, batch: &mut Batch<'_>, _now: Time) {
        while let Some(rq) = batch.next_request() {
            let operation = Operation::of(&rq);
            if operation.op != Op::Flush && !self.image.size().holds(operation.end()) {
                batch.finish(rq, Status::IoError);
            } else {
                self.image.ask(batch, rq, |result| self.status(&operation, result));
            }
        }
    }

    /// COST: a system call; for each completion a lock that no other thread waits for, and five short calls of librbd.
    fn poll(&self, _hctx: u16, done: &mut Done<'_>, _now: Time) {
        let nr = self.image.take(done, |operation, result| self.status(operation, result));
        if nr > 0 && self.is_late.load(Ordering::Relaxed) {
            self.is_late.store(false, Ordering::Relaxed);
        }
    }

    fn next_event(&self, _hctx: u16) -> NextEvent {
        // The descriptor tells of everything.
        NextEvent::Never
    }

    fn ready_fd(&self, _hctx: u16) -> Option<BorrowedFd<'_>> {
        Some(self.image.fd())
    }

    fn timeout(&self, _hctx: u16, _id: RqId, _now: Time) -> TimeoutAction {
        // librbd cannot give a request up: it might still write when a later request has written to the same place.
        self.is_late.store(true, Ordering::Relaxed);
        TimeoutAction::ResetTimer
    }

    /// Without this, other clients wait for half a minute when they change the image, for this one to answer.
    fn close(&self) {
        self.image.close();
    }

    fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        let how = match (self.config.is_read_only(), self.is_cached) {
            (true, _) => "read only",
            (false, true) => "with a cache",
            (false, false) => "without a cache",
        };
        let (bytes, object) = (self.image.size().present(), self.image.object_size());
        writeln!(out, "rbd {} ({bytes} bytes, objects of {object}, {how}, librbd {})", self.config, self.version)?;
        let [granularity, skips] = self.discards.each_ref().map(|value| value.as_deref().unwrap_or("?"));
        writeln!(out, "  discards in units of {granularity} bytes, less is left alone: {skips}")?;
        writeln!(out, "  {} requests with librbd", self.image.nr_in_flight())
    }
}
