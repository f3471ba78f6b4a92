//! Files and block devices. Each hardware queue has its own io_uring.
//!
//! Requests are started in the order in which they come, with one system call for all of a batch. What the kernel has
//! done is found on the ring without a system call. Any thread may look at the ring, unless each ring belongs to one
//! submitter. A thread that sleeps sleeps on the ring's descriptor. Polled hardware queues have a second ring, whose
//! completions are found by asking the device. If the disk does not poll, they work like other hardware queues.
//!
//! # How it is built
//!
//! The block layer calls in by [`File`], and nothing else does. `File` finds the engine of the hardware queue (`rings`,
//! `engine`): a `ring`, or a `threads` engine with its `pool` of threads where the system refuses io_uring (`refusal`
//! says why). The engine keeps the request as a `transfer`, which knows what is still to be asked of the kernel; one
//! with data in pages of the kernel has a `chain`. All engines share the `target`: the open file with its length and
//! `writeback_errors`. `opening` makes it.

mod chain;
mod engine;
mod journal;
mod named_file;
mod opening;
mod poller;
mod pool;
mod refusal;
mod registered;
mod ring;
mod rings;
mod status;
mod target;
mod threads;
mod transfer;
mod writeback_errors;

use std::fmt;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use blkmq::SECTOR_SIZE;
use blkmq::driver::spec::{Accepts, DeviceDescription, Parameter, SpecError, Value, Values};
use blkmq::driver::{Arena, Batch, Done, Driver, Extent, Health, NextEvent, Registration, Topology, TopologyError};
use blkmq::event::EventFd;
use blkmq::{Limits, MAX_HW_QUEUES, Time};
pub use engine::Choice;
use engine::Engine;
pub use journal::{Asked, Journal};
use rings::Rings;
use rustix::process::{Resource, getrlimit};
use target::Target;

use crate::{HW_QUEUE_DEPTH, OpenError};

/// The parameters of the device.
///
#[doc = include_str!("../docs/file.md")]
pub const PARAMETERS: &[Parameter] = &[
    Parameter::new("path", Accepts::Path, "", "the file or block device"),
    Parameter::new(
        "size",
        Accepts::Size { unit: 1, min: SECTOR_SIZE as u64, max: 1 << 62 },
        "",
        "makes a file of this size if there is none, as a hole; one that is there must have it",
    ),
    Parameter::new("direct", Accepts::Switch, "1", "goes past the page cache, if the file allows that"),
    Parameter::new("read_only", Accepts::Switch, "0", "opens it for reading only; whatever changes it is refused"),
    Parameter::new(
        "force",
        Accepts::Switch,
        "0",
        "opens a block device for writing though it is mounted, or another program has it for itself: both destroy each other's data",
    ),
    Parameter::new(
        "lock_timeout",
        Accepts::Time { max: 1 << 62 },
        "30s",
        "how long another server is waited for that has the file, as one has for a while that was killed",
    ),
    Parameter::new(
        "submit_queues",
        Accepts::Count { unit: "", min: 1, max: MAX_HW_QUEUES as u64 },
        "1",
        "hardware queues, each with a ring of its own; a program that knows its submitters, as `blkmq bench` does, has one owned by each, up to 256 and to a quarter of the descriptors that the process may have, if the spec gives none of submit_queues, owned, poll_queues and engine",
    ),
    HW_QUEUE_DEPTH,
    Parameter::new(
        "owned",
        Accepts::Switch,
        "0",
        "each hardware queue belongs to one submitter, which waits for no other; there are no more submitters than queues of a type",
    ),
    Parameter::new(
        "poll_queues",
        Accepts::Count { unit: "", min: 0, max: MAX_HW_QUEUES as u64 - 1 },
        "0",
        "further hardware queues for polled reads and writes, which need direct I/O and a disk that polls",
    ),
    Parameter::new(
        "engine",
        Accepts::Text,
        "any",
        "what does the requests: io_uring, threads, or any, which is io_uring unless the system forbids it",
    ),
];

/// The device as specs name it.
pub(super) const DEVICE: DeviceDescription = DeviceDescription::new(
    "file",
    "a file or a block device, through io_uring: direct I/O where the file allows it",
    PARAMETERS,
    |values| Ok(Arc::new(File::from_values(values)?)),
)
.with_offers(engine::Offers::here);

/// The most submitters that get a ring each without being asked for.
const MOST_OWNERS: u64 = 256;

/// Each ring takes a descriptor. Rings that were not asked for take this part of those that the process may have at
/// most, since each submitter takes one of its own, and the program has others.
const PART_OF_DESCRIPTORS: u64 = 4;

/// Returns true if `nr` submitters get a ring each without being asked for.
fn are_few_enough(nr: u16) -> bool {
    let may_have = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    (1..=MOST_OWNERS.min(may_have / PART_OF_DESCRIPTORS)).contains(&u64::from(nr))
}

/// How a file is to be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The file or block device.
    pub path: PathBuf,
    /// Bytes of the file that is made if there is none.
    pub size: Option<u64>,
    /// Whether reads and writes go past the page cache, if the file allows that.
    pub direct: bool,
    /// Whether the file is opened read-only.
    pub read_only: bool,
    /// Whether a block device is opened for writing even if it is mounted or another program has it exclusively.
    pub force: bool,
    /// How long to wait for another server that has the file. If that server was killed, this includes the time until
    /// the kernel has released what the server had.
    pub lock_timeout: Duration,
    /// Hardware queues, 1 to [`MAX_HW_QUEUES`].
    pub queues: u16,
    /// Polled hardware queues in addition; at most [`MAX_HW_QUEUES`] in all. Polled hardware queues need direct I/O.
    pub poll_queues: u16,
    /// Tags of each hardware queue, 1 to 4096.
    pub depth: u16,
    /// Whether each hardware queue belongs to one submitter, see [`Driver::is_owned`].
    pub owned: bool,
    /// What carries out the requests.
    pub engine: Choice,
}

impl Config {
    /// Creates a file, with defaults for everything else.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            size: None,
            direct: true,
            read_only: false,
            force: false,
            lock_timeout: Duration::from_secs(30),
            queues: 1,
            poll_queues: 0,
            depth: 128,
            owned: false,
            engine: Choice::Any,
        }
    }

    fn from_values(values: &Values) -> Result<Self, SpecError> {
        let Some(Value::Path(path)) = values.get("path") else {
            return Err(SpecError::new("a path is missing, as in file,path=disk.img"));
        };
        // A program that says how many submitters it has gets a ring for each, unless the spec says otherwise or the
        // system gives no rings. Rings that are polled are few, because disks have few such queues.
        let says = ["submit_queues", "owned", "poll_queues", "engine"].iter().any(|name| values.is_given(name));
        let fits = |nr: &u16| are_few_enough(*nr) && engine::Offers::find().is_ok();
        let nr_owners = values.nr_submitters().filter(|nr| !says && fits(nr));
        Ok(Self {
            path,
            size: values.is_given("size").then(|| values.number("size")),
            direct: values.is_on("direct"),
            read_only: values.is_on("read_only"),
            force: values.is_on("force"),
            lock_timeout: Duration::from_nanos(values.number("lock_timeout")),
            queues: nr_owners.unwrap_or_else(|| values.number("submit_queues")),
            poll_queues: values.number("poll_queues"),
            depth: values.number("hw_queue_depth"),
            owned: nr_owners.is_some() || values.is_on("owned"),
            engine: match values.get("engine") {
                Some(Value::Text(engine)) => engine.parse()?,
                _ => Choice::Any,
            },
        })
    }
}

/// A file or block device.
#[derive(Debug)]
pub struct File {
    config: Config,
    // This field is dropped before the descriptors, because its threads use them.
    rings: Arc<Rings>,
    target: Target,
}

impl File {
    /// Opens the file, and takes a lock on it that keeps other servers away. Waits for the lock as long as the
    /// configuration says.
    ///
    /// # Errors
    /// Why the file cannot be opened, or why the kernel gives no ring, in one sentence.
    pub fn open(config: Config) -> Result<Self, OpenError> {
        Self::open_with(config, None, &|_| ())
    }

    /// Opens the file with a journal that is told of everything that the kernel is asked for and that it answers.
    ///
    /// # Errors
    /// As of [`open`](Self::open).
    pub fn open_with_journal(config: Config, journal: Arc<dyn Journal>) -> Result<Self, OpenError> {
        Self::open_with(config, Some(journal), &|_| ())
    }

    fn open_with(config: Config, journal: Option<Arc<dyn Journal>>, tell: &dyn Fn(&str)) -> Result<Self, OpenError> {
        let target = Target::open(&config, tell)?;
        let file = Self { rings: Arc::new(Rings::new(config.engine, config.owned, journal)), target, config };
        file.make_rings(file.topology())?;
        if let Some(why) = file.rings.refusal() {
            tell(&format!("{}: threads do the requests: {why}", file.config.path.display()));
        }
        Ok(file)
    }

    fn from_values(values: &Values) -> Result<Self, SpecError> {
        Ok(Self::open_with(Config::from_values(values)?, None, &|text| values.tell(text))?)
    }

    /// Makes the rings that the hardware queues need. No request is in flight meanwhile.
    fn make_rings(&self, topology: Topology) -> Result<(), OpenError> {
        let path = self.config.path.display();
        let (queues, polled) = (topology.nr_queues(), usize::from(topology.poll_queues));
        if queues > MAX_HW_QUEUES {
            return Err(OpenError::new(format!("a file has 1 to {MAX_HW_QUEUES} hardware queues, not {queues}")));
        }
        if polled > 0 && !self.target.is_direct() {
            let what = "polled hardware queues need direct I/O, which is off or not for this file";
            return Err(OpenError::new(what).at(path));
        }
        let topology = Topology { depth: self.config.depth, ..topology };
        self.rings.make(&self.target, topology).map_err(|error| error.at(path))
    }

    fn engine(&self, hctx: u16) -> &dyn Engine {
        self.rings.get(hctx).expect("a hardware queue has had an engine since it was first there")
    }
}

impl Driver for File {
    fn name(&self) -> &'static str {
        "file"
    }

    fn limits(&self) -> Limits {
        let pages_align = if self.rings.take_pages() { self.target.pages_align() } else { 0 };
        Limits { pages_align, ..self.target.limits() }
    }

    fn health(&self) -> Health {
        let health = self.target.health();
        let Some(why) = self.rings.iter().find_map(|(_, engine)| engine.refusal()) else { return health };
        if !matches!(health, Health::Good | Health::Orphaned(_)) {
            return health;
        }
        let path = self.config.path.display();
        Health::Away(format!("{path}: requests fail until the system gives the device a thread: {why}"))
    }

    fn topology(&self) -> Topology {
        let Config { queues, poll_queues, depth, .. } = self.config;
        Topology { default_queues: queues, read_queues: 0, poll_queues, depth }
    }

    fn set_topology(&self, topology: Topology) -> Result<(), TopologyError> {
        self.make_rings(topology).map_err(TopologyError::refused)
    }

    fn identity(&self) -> Option<String> {
        self.target.identity().ok()
    }

    fn extent(&self, start: u64, bytes: u64) -> Extent {
        self.target.extent(start, bytes)
    }

    fn is_owned(&self) -> bool {
        self.config.owned
    }

    /// COST: a system call for all requests. For each request, a lock that no other thread waits for, and its pieces
    /// written to the ring. Once in a millisecond, and for each request that reaches the last block, a system call that
    /// asks for the file's size.
    fn queue_rqs(&self, hctx: u16, batch: &mut Batch<'_>, now: Time) {
        self.engine(hctx).start(&self.target, batch, now);
    }

    /// COST: a lock that no other thread waits for, and a look at the ring. For each completion another such lock. On a
    /// polled hardware queue with reads or writes in flight, a system call.
    fn poll(&self, hctx: u16, done: &mut Done<'_>, _now: Time) {
        self.engine(hctx).reap(&self.target, done);
    }

    fn next_event(&self, hctx: u16) -> NextEvent {
        // The next poll offers the kernel what it has not taken yet, and finds the requests that are polled for. The
        // descriptor tells of all others.
        let is_restless = self.rings.get(hctx).is_some_and(|engine| engine.is_restless());
        if is_restless { NextEvent::At(Time(0)) } else { NextEvent::Never }
    }

    fn ready_fd(&self, hctx: u16) -> Option<BorrowedFd<'_>> {
        self.rings.get(hctx).map(|engine| engine.fd())
    }

    /// COST: a system call, which also hands over what the kernel has not taken yet.
    fn sleep(&self, hctx: u16, bell: &EventFd, timeout: Option<Duration>) -> bool {
        self.engine(hctx).sleep(bell, timeout)
    }

    fn register(&self, arena: &Arena) -> Option<Registration> {
        // The page cache copies the data, and needs no registered pages.
        let registered = self.target.is_direct().then(|| self.rings.register(arena))??;
        Some(Box::new(registered))
    }

    /// Lets go of the pages of the kernel. If a program ends while the disk keeps requests, the kernel may hold one of
    /// its threads, and with it the rings, until requests of a block device end. They do not end while a ring has their
    /// pages.
    fn close(&self) {
        self.rings.iter().for_each(|(_, engine)| engine.let_go());
    }

    fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        writeln!(out, "file {} {}", self.config.path.display(), self.target)?;
        self.rings.show(out)?;
        for (index, bytes) in self.rings.iter().map(|(index, engine)| (index, engine.registered())) {
            if bytes > 0 {
                writeln!(out, "hctx {index}: {bytes} bytes of memory registered")?;
            }
        }
        for (index, poller) in self.rings.iter().filter_map(|(index, engine)| Some((index, engine.poller()?))) {
            let how = if poller.is_refused() { "the disk does not poll: goes by interrupts" } else { "polls" };
            writeln!(out, "hctx {index}: {how}")?;
        }
        Ok(())
    }
}
