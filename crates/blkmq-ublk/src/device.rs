//! A block device, from its wish to its end.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use blkmq::event::EventFd;
use blkmq::pages::PageSource;
use blkmq::{RequestQueue, Submitter};
use blkmq_engine::{Bounds, Engine, Entry, FrontEnd, Session};

use crate::abi::{DeviceInfo, MAX_NR_QUEUES, MAX_QUEUE_DEPTH, Parameters, attribute, feature};
use crate::character::Character;
use crate::control::{Control, block_path, character_path};
use crate::descriptors::{Descriptors, page};
use crate::error::Error;
use crate::growth::{Growth, POLL_INTERVAL};
use crate::opening::{open, take_over};
use crate::ownership::{is_ours, ownership_tag};
use crate::pages::{self, Pages};
use crate::parameters::{most_bytes, parameters};
use crate::queue::{KernelSide, Queue, Shared};
use crate::threads::{Ended, Threads};
use crate::work::Work;

/// How long the end of a device waits for its threads when no request moves any more.
const GRACE: Duration = Duration::from_secs(5);
/// How long threads that are left may do nothing before they have ended.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// What a block device is to be like, beside what follows from its queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The number in its name; `None` takes any.
    pub id: Option<u32>,
    /// Its queues, each with a thread.
    pub queues: u16,
    /// Requests of a queue at a time. Without `zero_copy` each has a buffer for the largest request, at most 512 KiB.
    pub depth: u16,
    /// The block device outlives its server, and waits for the next one. If the device exists and waits, it is taken
    /// over, with the queues and the depth that it has.
    pub recover: bool,
    /// The data of requests stays where the kernel has it, and the device behind the queue moves it there. Then
    /// requests have no buffers. A device that is taken over stays as it was made.
    pub zero_copy: bool,
    /// Nothing may be changed.
    pub read_only: bool,
    /// What the device stands in front of, as [`Driver::identity`](blkmq::driver::Driver::identity) names it. A device
    /// is taken over only by the same name: its users would see another disk.
    pub name: String,
}

impl Default for Options {
    /// One queue, 128 requests deep.
    fn default() -> Self {
        let (recover, zero_copy, read_only) = (false, false, false);
        Self { id: None, queues: 1, depth: 128, recover, zero_copy, read_only, name: String::new() }
    }
}

/// A device that the kernel knows, and that has no block device yet, or one that waits. It has no thread yet either:
/// the process can give up rights before it has. Dropping the value removes the device, if it was made for it.
#[derive(Debug)]
pub struct Added {
    inner: Option<Inner>,
    maps: Vec<Descriptors>,
    /// The device existed before.
    is_recovered: bool,
}

#[derive(Debug)]
struct Inner {
    control: Control,
    info: DeviceInfo,
    /// Sectors of the block device, as far as the kernel was told. `None` if it cannot be told of growth.
    told: Option<u64>,
    /// Nothing may be changed.
    is_read_only: bool,
    /// The character device, until the threads have it.
    file: Option<Arc<Character>>,
    q: RequestQueue,
}

impl Added {
    /// Makes a device in front of a queue, or takes over the one that waits.
    ///
    /// # Errors
    /// The options or the queue's limits cannot be had, or the kernel refuses. Then no device is left behind that was
    /// not there.
    pub fn new(control: Control, q: &RequestQueue, options: &Options) -> Result<Self, Error> {
        let limits = q.limits();
        if !(1..=MAX_NR_QUEUES).contains(&options.queues) {
            return Err(Error::Queues(options.queues));
        }
        if !(1..=MAX_QUEUE_DEPTH).contains(&options.depth) {
            return Err(Error::Depth(options.depth));
        }
        let wished = parameters(&limits, page(), options.read_only)?;
        let features = control.features()?;
        let recovered = match options.id.filter(|_| options.recover) {
            Some(id) => take_over(&control, id, &wished, &options.name, || pages::check(features, &limits))?,
            None => None,
        };
        let open = |info, old: &Parameters| {
            // It may have been smaller when it was made, and a device that was made read-only stays so.
            let told = (features & feature::UPDATE_SIZE != 0).then_some(old.dev_sectors);
            let is_read_only = (old.attrs | wished.attrs) & attribute::READ_ONLY != 0;
            Self::opened(control.clone(), (info, told, is_read_only), q, recovered.is_some())
        };
        if let Some((info, old)) = &recovered {
            return open(*info, old);
        }
        let recovery = feature::USER_RECOVERY | feature::USER_RECOVERY_REISSUE;
        if options.recover && features & recovery != recovery {
            return Err(Error::TooOld);
        }
        if options.zero_copy {
            pages::check(features, &limits)?;
        }
        let wishes = [(options.recover, recovery), (options.zero_copy, feature::SUPPORT_ZERO_COPY)];
        let wishes = wishes.iter().filter(|(is_wished, _)| *is_wished).fold(0, |flags, (_, wish)| flags | wish);
        let info = control.add(&DeviceInfo {
            nr_hw_queues: options.queues,
            queue_depth: options.depth,
            max_io_buf_bytes: most_bytes(&limits, page()),
            dev_id: options.id.unwrap_or(u32::MAX),
            flags: feature::CMD_IOCTL_ENCODE | wishes,
            server_flags: ownership_tag(&options.name),
            ..DeviceInfo::default()
        })?;
        let made = control.set_parameters(info.dev_id, &wished);
        made.and_then(|()| open(info, &wished)).inspect_err(|_| {
            // The first error counts.
            let _ = control.delete(info.dev_id);
        })
    }

    fn opened(
        control: Control,
        (info, told, is_read_only): (DeviceInfo, Option<u64>, bool),
        q: &RequestQueue,
        is_recovered: bool,
    ) -> Result<Self, Error> {
        let file = open(info.dev_id)?;
        let map = |queue| Descriptors::map(&file, queue, info.queue_depth);
        let maps = (0..info.nr_hw_queues).map(map).collect::<Result<Vec<_>, _>>();
        let maps = maps.map_err(|error| Error::Device(character_path(info.dev_id), error))?;
        let file = Some(Arc::new(Character::new(file.into()).map_err(Error::System)?));
        let inner = Inner { control, info, told, is_read_only, file, q: q.clone() };
        Ok(Self { inner: Some(inner), maps, is_recovered })
    }

    /// The device's number.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.inner.as_ref().map_or(0, |inner| inner.info.dev_id)
    }

    /// Begins to serve, as a client of the engine's export of this index, in front of whose queue the device was made.
    /// Each queue of the device has a thread. Then the block device is there. `ended` is called when the last of the
    /// threads has ended, whatever ended it, with what failed first if anything did.
    ///
    /// # Errors
    /// The queue does not take so many submitters, the system gives no thread, or the kernel refuses.
    ///
    /// # Panics
    /// If the export has another queue.
    pub fn start(
        mut self,
        engine: &Arc<Engine>,
        export: usize,
        ended: impl Fn(Option<Error>) + Send + Sync + 'static,
    ) -> Result<Device, Error> {
        let Some(inner) = self.inner.take() else { unreachable!("it is taken here alone") };
        assert!(inner.q.same_queue(&engine.exports[export].queue), "a device stays in front of its queue");
        let mut device = Device {
            inner,
            engine: Arc::clone(engine),
            entry: None,
            threads: Vec::new(),
            shared: Vec::new(),
            running: None,
            growth: None,
            is_over: false,
        };
        let id = device.id();
        let started = device.launch(std::mem::take(&mut self.maps), export, Box::new(ended));
        let started = started.and_then(|()| device.inner.control.start(id, self.is_recovered));
        match started.and_then(|()| device.watch_growth()) {
            Ok(()) => {
                device.engine.warn_of_rest(export, device.path());
                Ok(device)
            }
            Err(error) => {
                // The first error counts.
                let _ = if self.is_recovered { device.give_up() } else { device.remove() };
                device.is_over = true;
                Err(error)
            }
        }
    }
}

impl Drop for Added {
    fn drop(&mut self) {
        if let (Some(Inner { control, info, file, .. }), false) = (self.inner.take(), self.is_recovered) {
            // The kernel removes a device only when its character device is closed.
            self.maps.clear();
            drop(file);
            // No caller could do anything about it.
            let _ = control.delete(info.dev_id);
        }
    }
}

/// A block device that is served. Dropping it leaves it to the next server, as [`leave`](Self::leave) does, and removes
/// it only if it cannot outlive its server.
#[derive(Debug)]
pub struct Device {
    inner: Inner,
    engine: Arc<Engine>,
    /// What is known of it among the engine's clients.
    entry: Option<Arc<Entry>>,
    /// Each ends with what this thread has to drop for it: see [`Queue::run`].
    threads: Vec<JoinHandle<Option<KernelSide>>>,
    shared: Vec<Arc<Shared>>,
    running: Option<Threads>,
    growth: Option<Growth>,
    is_over: bool,
}

/// Ends the service of a block device although the device behind it has not given back its requests, when the process
/// is to end at once.
#[derive(Debug)]
pub struct Abandoner(Vec<Arc<Shared>>);

impl Abandoner {
    /// The threads end. What they have fails, or waits for the next server. The memory of these requests is not given
    /// back before the process ends.
    pub fn abandon(&self) {
        self.0.iter().for_each(|shared| shared.abandon());
    }
}

impl Device {
    /// What each of the threads needs, in the order of the device's queues.
    fn equip(&mut self, file: &Character, export: usize) -> Result<Vec<(Work, Submitter)>, Error> {
        let Self { inner: Inner { info, is_read_only, .. }, engine, entry, shared, .. } = self;
        let is_read_only = *is_read_only || engine.exports[export].read_only;
        let make = |_| {
            let bell = Arc::new(EventFd::new()?);
            Ok(Shared::new(bell, info.has(feature::USER_RECOVERY)))
        };
        *shared = (0..info.nr_hw_queues).map(make).collect::<Result<_, _>>().map_err(Error::System)?;
        let bells = shared.iter().map(|shared| Arc::clone(&shared.bell)).collect();
        let entry = entry.insert(engine.clients.enter(FrontEnd::Ublk, format!("ublk{}", info.dev_id), bells));
        let bounds = Bounds { requests: info.queue_depth, ..engine.bounds };
        let equip = |thread: usize| {
            let (submitter, session) =
                Session::of_own(engine, export, (entry, thread), bounds).map_err(Error::Queue)?;
            let pages = || Arc::new(Pages::new(Arc::clone(file.number()), thread as u16)) as Arc<dyn PageSource>;
            let pages = info.has(feature::SUPPORT_ZERO_COPY).then(pages);
            let work = Work::new(session, (info.queue_depth, info.max_io_buf_bytes), pages, is_read_only)
                .ok_or_else(|| Error::System(io::Error::from(io::ErrorKind::OutOfMemory)))?;
            Ok((work, submitter))
        };
        (0..shared.len()).map(equip).collect()
    }

    /// Starts the threads, and waits until each has fetched.
    fn launch(&mut self, maps: Vec<Descriptors>, export: usize, ended: Ended) -> Result<(), Error> {
        // The threads alone have it: the kernel removes a device only when its character device is closed.
        let Some(file) = self.inner.file.take() else { return Ok(()) };
        let ready = self.equip(&file, export)?;
        let (info, (tell, told)) = (self.inner.info, mpsc::channel());
        let nr = ready.len();
        let (running, members) = Threads::new(nr, ended);
        self.running = Some(running);
        for ((((work, submitter), map), member), number) in ready.into_iter().zip(maps).zip(members).zip(0..) {
            let (tell, file) = (tell.clone(), Arc::clone(&file));
            let shared = Arc::clone(&self.shared[usize::from(number)]);
            let serve = move || {
                // It is the last to be dropped: the character device is closed by then, or the next to be closed.
                let member = member;
                let begun = Queue::begin((file, map), (&info, number), shared, work, submitter);
                let (queue, told) = begun.map_or_else(|error| (None, Err(error)), |queue| (Some(queue), Ok(())));
                let _ = tell.send(told);
                // The device hears so of a thread that panics before it tells anything.
                drop(tell);
                let (result, kernel_side) = queue.map_or((Ok(()), None), Queue::run);
                member.end(result);
                kernel_side
            };
            let name = format!("ublk{} {number}", info.dev_id);
            self.threads.push(thread::Builder::new().name(name).spawn(serve).map_err(Error::System)?);
        }
        drop(tell);
        for _ in 0..nr {
            let begun = told.recv().unwrap_or_else(|_| Err(io::Error::other("a thread of a queue has not begun")));
            begun.map_err(Error::System)?;
        }
        Ok(())
    }

    /// Makes the block device larger whenever the device behind the queue has become larger.
    fn watch_growth(&mut self) -> Result<(), Error> {
        let Inner { control, info, told: Some(told), q, .. } = &self.inner else { return Ok(()) };
        let (control, info, pid) = (control.clone(), *info, std::process::id() as i32);
        let tell = move |sectors| {
            // The number may be another device's by now.
            let is_ours = control.info(info.dev_id).is_ok_and(|found| is_ours(&found, &info, pid));
            is_ours && control.update_size(info.dev_id, sectors).is_ok()
        };
        let name = format!("ublk{} size", info.dev_id);
        let growth = Growth::watch(name, q.clone(), *told, POLL_INTERVAL, tell);
        self.growth = Some(growth.map_err(Error::System)?);
        Ok(())
    }

    /// A number that changes whenever a request moves.
    fn nr_moves(&self) -> u64 {
        let nr = |shared: &Arc<Shared>| shared.nr_moves.load(Ordering::Relaxed);
        self.shared.iter().map(nr).fold(0, u64::wrapping_add)
    }

    /// Waits for the threads while requests move. Those that the device behind them keeps are left behind.
    fn wait(&mut self) -> Result<(), Error> {
        let threads = std::mem::take(&mut self.threads);
        let wait = |limit| self.running.as_ref().is_none_or(|running| running.wait(limit, || self.nr_moves()));
        let is_over = wait(GRACE);
        if !is_over {
            // The kernel fails or keeps the requests then, and no longer waits for them.
            self.abandoner().abandon();
        }
        if is_over || wait(SHUTDOWN_TIMEOUT) {
            threads.into_iter().for_each(|thread| drop(thread.join()));
        } else {
            // A thread whose value is dropped would drop its kernel side itself.
            std::mem::forget(threads);
        }
        if is_over { Ok(()) } else { Err(Error::Stuck(self.id(), GRACE)) }
    }

    /// Ends the threads although the kernel has their tags, which it then takes as those of a server that is gone.
    fn give_up(&mut self) -> Result<(), Error> {
        self.growth = None;
        self.shared.iter().for_each(|shared| shared.give_up());
        self.wait()
    }

    /// The device's number.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.inner.info.dev_id
    }

    /// What another thread ends the device's service with while this one waits for it.
    #[must_use]
    pub fn abandoner(&self) -> Abandoner {
        Abandoner(self.shared.clone())
    }

    /// The path of the block device.
    #[must_use]
    pub fn path(&self) -> String {
        block_path(self.id())
    }

    /// What the kernel has made of the device.
    #[must_use]
    pub fn info(&self) -> &DeviceInfo {
        &self.inner.info
    }

    /// Whether the block device outlives its server.
    #[must_use]
    pub fn is_recoverable(&self) -> bool {
        self.inner.info.has(feature::USER_RECOVERY)
    }

    /// Whether the data of requests stays where the kernel has it.
    #[must_use]
    pub fn is_zero_copy(&self) -> bool {
        self.inner.info.has(feature::SUPPORT_ZERO_COPY)
    }

    /// Removes the block device: its requests are done, what the kernel has in memory for it is written, and then it is
    /// gone. Of a device that outlives its server the kernel writes nothing by itself: that has to be flushed before.
    ///
    /// # Errors
    /// The kernel refuses, or its requests are not over and none has moved for some seconds.
    pub fn end(mut self) -> Result<(), Error> {
        self.remove()
    }

    /// Leaves the block device to the next server. Requests that are on their way are given to that one too.
    ///
    /// # Errors
    /// The device behind it does not give requests back. A block device that cannot outlive its server is removed as by
    /// [`end`](Self::end), with its errors.
    pub fn leave(mut self) -> Result<(), Error> {
        self.part()
    }

    /// Gives the device up if it outlives its server, and removes it otherwise.
    fn part(&mut self) -> Result<(), Error> {
        match self.is_recoverable() {
            true if std::mem::replace(&mut self.is_over, true) => Ok(()),
            true => self.give_up(),
            false => self.remove(),
        }
    }

    /// Whether the number is still this device's. Another process may have removed the device, and made another one.
    fn is_there(&self) -> Result<bool, Error> {
        match self.inner.control.info(self.id()) {
            Ok(found) => Ok(is_ours(&found, &self.inner.info, std::process::id() as i32)),
            Err(Error::NoDevice(_)) => Ok(false),
            // It is just being removed: its files go first.
            Err(error) if error.errno() == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn remove(&mut self) -> Result<(), Error> {
        self.growth = None;
        if std::mem::replace(&mut self.is_over, true) {
            return Ok(());
        }
        let id = self.id();
        let stopped = match self.is_there() {
            Ok(true) => self.inner.control.stop_while(id, || self.nr_moves()),
            // Another process has removed it.
            Ok(false) => return self.give_up(),
            Err(error) => Err(error),
        };
        match stopped {
            // The threads end by themselves.
            Ok(()) => {
                let ended = self.wait();
                ended.and(self.delete())
            }
            Err(Error::NoDevice(_)) => self.give_up(),
            Err(error) => {
                // The first error counts.
                let _ = self.give_up();
                let _ = self.delete();
                Err(error)
            }
        }
    }

    /// Gives the number back. The kernel does that only when the character device is closed, which threads that were
    /// left have done too.
    fn delete(&self) -> Result<(), Error> {
        if !self.is_there()? {
            return Ok(());
        }
        match self.inner.control.delete(self.id()) {
            Err(Error::NoDevice(_)) => Ok(()),
            ended => ended,
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // No caller could do anything about it.
        let _ = self.part();
        if let Some(entry) = &self.entry {
            self.engine.clients.leave(entry.number);
        }
    }
}
