//! librbd, as far as the driver uses it: an image that is open, what it is asked for, and what it answers.
//!
//! librbd is loaded when an image is opened, and never before. So programs do not depend on it.
//!
//! librbd tells of completions by an eventfd. From then on each completion of the image lies in a list of librbd's
//! until the driver takes it from there; nothing else may release a completion.
#![expect(unsafe_code, reason = "librbd is a C library, is loaded by name, and follows the addresses of a request")]

mod cluster;
mod ffi;
#[cfg(test)]
pub(super) mod tests;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard};

use blkmq::SECTOR_SIZE;
use blkmq::driver::{Batch, BorrowedRequest, Done, Request};
use blkmq::event::EventFd;
use blkmq::{Op, Status};

pub(super) use cluster::{Cluster, Pool};
use cluster::{check, text};
pub(super) use ffi::Api;
use ffi::{iovec, rbd_completion_t, rbd_config_option_t, rbd_image_info_t, rbd_image_t};

use super::size::Size;
use crate::{OpenError, lock, try_lock};

/// The most pieces of memory in one request.
pub(super) const MAX_SEGMENTS: u16 = 256;

/// The most completions that are taken by one call.
const MOST_TAKEN: usize = 64;

/// Returns the libraries, loaded once and kept until the process ends, because they have threads.
///
/// # Errors
/// Why they cannot be had, and which package has them.
pub(super) fn load() -> Result<&'static Api, OpenError> {
    static LOADED: OnceLock<Api> = OnceLock::new();
    if let Some(api) = LOADED.get() {
        return Ok(api);
    }
    let [rados, rbd] = [c"librados.so.2", c"librbd.so.1"].map(open_library);
    let (rados, rbd) = (rados?, rbd?);
    let find = |name: &'static CStr| {
        let library = if name.to_bytes().starts_with(b"rados_") { rados } else { rbd };
        // SAFETY: the library is open, and never closed; the name ends with a 0.
        let address = unsafe { libc::dlsym(library.as_ptr(), name.as_ptr()) };
        let what = || format!("librbd here has no {}: that of Ceph 16 or later has it", name.to_string_lossy());
        if address.is_null() { Err(OpenError::new(what())) } else { Ok(address) }
    };
    // SAFETY: the two libraries with these names have functions with these names and types; their interfaces of these
    // numbers only grow. A test compares the declarations with the headers.
    let api = unsafe { Api::find(find) }?;
    Ok(LOADED.get_or_init(|| api))
}

fn open_library(name: &'static CStr) -> Result<NonNull<c_void>, OpenError> {
    // SAFETY: the name ends with a 0. What the library does when it is loaded is its own business, as with every
    // library that a program depends on.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    NonNull::new(library).ok_or_else(|| {
        // SAFETY: the call has no conditions.
        let said = unsafe { libc::dlerror() };
        // SAFETY: a text of the C library that ends with a 0, until the next such call of this thread.
        let said = (!said.is_null()).then(|| unsafe { CStr::from_ptr(said) }.to_string_lossy().into_owned());
        let said = said.unwrap_or_default();
        let name = name.to_string_lossy();
        OpenError::new(format!("{name} cannot be loaded; Debian's package librbd1 has it: {said}"))
    })
}

/// Returns the version of librbd.
pub(super) fn version(api: &Api) -> String {
    let (mut major, mut minor, mut extra) = (0, 0, 0);
    // SAFETY: the call writes three numbers.
    unsafe { (api.rbd_version)(&raw mut major, &raw mut minor, &raw mut extra) };
    format!("{major}.{minor}.{extra}")
}

/// What the image was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Operation {
    pub(super) op: Op,
    /// Where in the image, in bytes.
    pub(super) start: u64,
    pub(super) bytes: u64,
    /// Whether zeroes keep the room that they take.
    keeps_room: bool,
}

impl Operation {
    /// What a request asks for.
    pub(super) fn of(rq: &Request<'_>) -> Self {
        let sectors = |nr: u64| nr * SECTOR_SIZE as u64;
        let (start, bytes) = match rq.op() {
            Op::Flush => (0, 0),
            _ => (sectors(rq.sector()), sectors(rq.nr_sectors().into())),
        };
        Self { op: rq.op(), start, bytes, keeps_room: rq.flags().nounmap }
    }

    /// Returns where it ends.
    pub(super) const fn end(&self) -> u64 {
        self.start + self.bytes
    }
}

/// A request that librbd has.
///
/// # Invariant
/// While the request is borrowed, `pieces` name the memory of its request, which lives and does not move, and do not
/// move themselves.
#[derive(Debug)]
struct Flight {
    /// The request, borrowed. `None` while the tag is free.
    borrowed: Option<BorrowedRequest>,
    operation: Operation,
    pieces: Vec<iovec>,
}

// SAFETY: by the invariant the addresses are valid on every thread. Only librbd follows them.
unsafe impl Send for Flight {}

/// What librbd's own thread knows of an image.
#[derive(Debug)]
struct Watched {
    api: &'static Api,
    handle: rbd_image_t,
    size: Size,
}

// SAFETY: librbd takes calls for an image from several threads at once.
unsafe impl Send for Watched {}
// SAFETY: as above.
unsafe impl Sync for Watched {}

impl Watched {
    fn look(&self) {
        let mut bytes = 0;
        // SAFETY: the image is open, because watches end before it is closed; the call writes one number.
        if unsafe { (self.api.rbd_get_size)(self.handle, &raw mut bytes) } >= 0 {
            self.size.note(bytes);
        }
    }
}

/// Called by librbd when the image has changed, on a thread that librbd has for this.
extern "C" fn has_changed(argument: *mut c_void) {
    // SAFETY: the argument is that of the watch: a `Watched` that lives until the watch has ended.
    let watched = unsafe { &*argument.cast::<Watched>() };
    watched.look();
}

/// An image that is open.
#[derive(Debug)]
pub(super) struct Image {
    /// Whether the handle is open. It is closed with this lock taken for writing, and used otherwise with this lock
    /// taken for reading. Locks are taken in the order `is_open`, `taking`, `flights`.
    is_open: RwLock<bool>,
    watched: Arc<Watched>,
    /// The watch of an image that may change.
    watch: Option<u64>,
    object_size: u64,
    /// Readable when there are completions.
    event: EventFd,
    /// The requests by tag. Each lock is taken by one thread at a time: first by the thread that asks, then by the
    /// thread that takes the completion.
    flights: Box<[Mutex<Flight>]>,
    /// The lock of the thread that takes completions.
    taking: Mutex<()>,
    /// Closed after the image.
    _pool: Pool,
}

// SAFETY: librbd and librados take calls for an image, a pool and a cluster from several threads at once. Each handle
// is closed once, by `drop`.
unsafe impl Send for Image {}
// SAFETY: as above.
unsafe impl Sync for Image {}

impl Image {
    /// Opens an image, or a snapshot of it, for `depth` requests at once.
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub(super) fn open(
        pool: Pool,
        name: &str,
        snapshot: Option<&str>,
        is_read_only: bool,
        depth: u16,
    ) -> Result<Self, OpenError> {
        let api = pool.cluster.api;
        let (image, at) = (text(name)?, snapshot.map(text).transpose()?);
        let event = EventFd::new()?;
        let (result, handle) = pool.image(&image, at.as_deref(), is_read_only || snapshot.is_some());
        check(result, |errno| match (errno, snapshot) {
            (libc::ENOENT, Some(snapshot)) if pool.has(&image) => {
                format!("image '{name}' has no snapshot '{snapshot}'")
            }
            (libc::ENOENT, _) => format!("there is no image '{name}'"),
            _ => format!("image '{name}' cannot be opened"),
        })?;
        let place = || Mutex::new(Flight::new());
        let mut image = Self {
            is_open: RwLock::new(true),
            watched: Arc::new(Watched { api, handle, size: Size::new(0) }),
            watch: None,
            object_size: 0,
            event,
            flights: (0..depth).map(|_| place()).collect(),
            taking: Mutex::default(),
            _pool: pool,
        };
        image.begin(is_read_only || snapshot.is_some())?;
        Ok(image)
    }

    /// Asks for completions by the event, and for news of the size.
    fn begin(&mut self, is_fixed: bool) -> Result<(), OpenError> {
        let Watched { api, handle, .. } = *self.watched;
        let mut info = rbd_image_info_t {
            size: 0,
            obj_size: 0,
            num_objs: 0,
            order: 0,
            block_name_prefix: [0; 24],
            parent_pool: 0,
            parent_name: [0; 96],
        };
        // SAFETY: the image is open; the call writes so many bytes.
        let result = unsafe { (api.rbd_stat)(handle, &raw mut info, size_of_val(&info)) };
        check(result, |_| "the image's size is not to be had".to_owned())?;
        self.object_size = info.obj_size;
        self.watched.size.note(info.size);
        // SAFETY: the image is open, and asked this once. The descriptor is open until the image is closed.
        let result = unsafe { (api.rbd_set_image_notification)(handle, self.event.as_fd().as_raw_fd(), ffi::EVENTFD) };
        check(result, |_| "librbd tells of no completions".to_owned())?;
        if is_fixed {
            return Ok(());
        }
        let (mut watch, argument) = (0, Arc::as_ptr(&self.watched).cast_mut().cast());
        // SAFETY: the image is open; the call writes a number. The argument lives until the watch has ended.
        let result = unsafe { (api.rbd_update_watch)(handle, &raw mut watch, Some(has_changed), argument) };
        check(result, |_| "librbd does not tell when the image's size changes".to_owned())?;
        self.watch = Some(watch);
        // The size may have changed before the watch began.
        self.watched.look();
        Ok(())
    }

    /// Returns the image's size, as far as librbd has told.
    pub(super) fn size(&self) -> &Size {
        &self.watched.size
    }

    /// Returns the number of bytes of the objects that the image consists of.
    pub(super) const fn object_size(&self) -> u64 {
        self.object_size
    }

    /// Returns the values that librbd's options have for this image, in the order of `names`. The pool and the image
    /// may have values of their own. `None` if librbd does not tell.
    pub(super) fn options<const N: usize>(&self, names: [&str; N]) -> [Option<String>; N] {
        let Watched { api, handle, .. } = *self.watched;
        let none = rbd_config_option_t { name: ptr::null_mut(), value: ptr::null_mut(), source: 0 };
        let mut options = vec![none; 512];
        let mut nr = options.len() as c_int;
        // SAFETY: the image is open; the call writes no more options than there is room for, and how many these are.
        if unsafe { (api.rbd_config_image_list)(handle, options.as_mut_ptr(), &raw mut nr) } < 0 {
            return [const { None }; N];
        }
        let string = |text: *mut c_char| {
            // SAFETY: the call has written a text that ends with a 0, which lives until the clean-up.
            let text = NonNull::new(text).map(|text| unsafe { CStr::from_ptr(text.as_ptr()) });
            text.map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
        };
        let nr_options = usize::try_from(nr).unwrap_or(0).min(options.len());
        let all: Vec<_> =
            options[..nr_options].iter().map(|option| (string(option.name), string(option.value))).collect();
        // SAFETY: these are the options that the call has written; their texts are not used any more.
        unsafe { (api.rbd_config_image_list_cleanup)(options.as_mut_ptr(), nr) };
        names.map(|name| all.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone()))
    }

    /// Asks for the next request of a batch, which goes back to its submitter at once with this status if librbd
    /// refuses it.
    ///
    /// COST: a lock that no other thread waits for but the one that takes the completion; a list of the request's
    /// pieces; librbd's work.
    pub(super) fn ask<'q>(&self, batch: &mut Batch<'q>, mut rq: Request<'q>, refused: impl FnOnce(i64) -> Status) {
        let is_open = self.is_open();
        if !*is_open {
            return batch.finish(rq, Status::IoError);
        }
        let tag = rq.tag();
        let flight = try_lock(&self.flights[usize::from(tag)]).filter(|flight| flight.borrowed.is_none());
        let Some(mut flight) = flight else {
            batch.refuse(rq);
            panic!("tag {tag} is with librbd already; each tag of a hardware queue is out once");
        };
        flight.take_down(&mut rq);
        let result = self.hand_over(&flight, tag);
        // A thread that finds the completion waits for the lock of the flight, and then finds the borrowed request.
        if result < 0 {
            batch.finish(rq, refused(result.into()));
        } else {
            flight.borrowed = Some(batch.borrow(rq));
        }
    }

    /// Hands a request over. If the result is negative, librbd has not taken the request and does not answer.
    fn hand_over(&self, flight: &Flight, tag: u16) -> c_int {
        let Watched { api, handle, .. } = *self.watched;
        let mut completion = ptr::null_mut();
        let argument = ptr::without_provenance_mut(tag.into());
        // SAFETY: the call writes one handle. The argument is a number, and there is no callback.
        let result = unsafe { (api.rbd_aio_create_completion)(argument, None, &raw mut completion) };
        if result < 0 {
            return result;
        }
        let Flight { operation: Operation { op, start, bytes, keeps_room }, ref pieces, .. } = *flight;
        let (first, nr) = (pieces.as_ptr(), pieces.len() as c_int);
        let result = match op {
            // SAFETY: the image and the completion are open. The pieces name the request's memory, to be written. The
            // memory lives until the completion was taken: until the caller borrows the request, the caller has it.
            Op::Read => unsafe { (api.rbd_aio_readv)(handle, first, nr, start, completion) },
            // SAFETY: as above, to be read.
            Op::Write => unsafe { (api.rbd_aio_writev)(handle, first, nr, start, completion) },
            // SAFETY: the image and the completion are open.
            Op::Flush => unsafe { (api.rbd_aio_flush)(handle, completion) },
            // SAFETY: as above.
            Op::Discard => unsafe { (api.rbd_aio_discard)(handle, start, bytes, completion) },
            Op::WriteZeroes => {
                let flags = if keeps_room { ffi::THICK_PROVISION } else { 0 };
                // SAFETY: as above.
                unsafe { (api.rbd_aio_write_zeroes)(handle, start, bytes as usize, completion, flags, 0) }
            }
        };
        if result < 0 {
            // SAFETY: librbd has not taken the completion, and it is not used any more.
            unsafe { (api.rbd_aio_release)(completion) };
        }
        result
    }

    /// Ends the requests that librbd has answered, each with the status that its answer means. Returns how many these
    /// are. Does nothing while another thread does this.
    ///
    /// COST: a system call; for each answer a lock that no other thread waits for, and five short calls.
    pub(super) fn take(&self, done: &mut Done<'_>, status: impl Fn(&Operation, i64) -> Status) -> usize {
        let is_open = self.is_open();
        let Some(_side) = try_lock(&self.taking).filter(|_| *is_open) else { return 0 };
        let mut nr = 0;
        self.take_all(|borrowed, operation, result| {
            nr += 1;
            done.give_back(borrowed, status(&operation, result));
        });
        nr
    }

    fn is_open(&self) -> RwLockReadGuard<'_, bool> {
        self.is_open.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the image, unless librbd has requests. Everything fails from then on.
    pub(super) fn close(&self) {
        let mut is_open = self.is_open.write().unwrap_or_else(PoisonError::into_inner);
        if *is_open && self.nr_in_flight() == 0 {
            *is_open = false;
            self.close_handle();
        }
    }

    /// Closes the handle, once. No other thread uses it, and librbd has no requests.
    fn close_handle(&self) {
        let Watched { api, handle, .. } = *self.watched;
        if let Some(watch) = self.watch {
            // SAFETY: the image is open, and the watch its own. The call returns once no callback runs.
            unsafe { (api.rbd_update_unwatch)(handle, watch) };
        }
        // SAFETY: the image is open, has no request and no watch, and is not used any more.
        unsafe { (api.rbd_close)(handle) };
    }

    /// Takes the completions that there are. The caller has the lock, or is alone.
    fn take_all(&self, mut over: impl FnMut(BorrowedRequest, Operation, i64)) {
        let Watched { api, handle, .. } = *self.watched;
        // What comes from here on makes the event readable once more.
        self.event.drain();
        let mut completions: [rbd_completion_t; MOST_TAKEN] = [ptr::null_mut(); MOST_TAKEN];
        loop {
            let room = MOST_TAKEN as c_int;
            // SAFETY: the image is open; the call writes no more handles than there is room for.
            let nr = unsafe { (api.rbd_poll_io_events)(handle, completions.as_mut_ptr(), room) };
            let nr = usize::try_from(nr).unwrap_or(0);
            for completion in &completions[..nr] {
                // SAFETY: librbd has handed it over just now.
                let tag = unsafe { (api.rbd_aio_get_arg)(*completion) }.addr();
                // SAFETY: as above.
                let result = unsafe { (api.rbd_aio_get_return_value)(*completion) };
                // SAFETY: as above; it is not used any more.
                unsafe { (api.rbd_aio_release)(*completion) };
                let mut flight = lock(&self.flights[tag]);
                let borrowed = flight.borrowed.take().expect("librbd answers what it was asked, once");
                let operation = flight.operation;
                drop(flight);
                over(borrowed, operation, result as i64);
            }
            if nr < MOST_TAKEN {
                return;
            }
        }
    }

    /// Readable when there are completions. The call first waits for the thread that takes them, as
    /// [`Driver::ready_fd`](blkmq::driver::Driver::ready_fd) asks for.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        drop(lock(&self.taking));
        self.event.as_fd()
    }

    /// Returns how many requests librbd has.
    pub(super) fn nr_in_flight(&self) -> usize {
        self.flights.iter().filter(|flight| lock(flight).borrowed.is_some()).count()
    }
}

impl Flight {
    fn new() -> Self {
        let operation = Operation { op: Op::Flush, start: 0, bytes: 0, keeps_room: false };
        Self { borrowed: None, operation, pieces: Vec::with_capacity(MAX_SEGMENTS.into()) }
    }

    /// Notes what a request asks for.
    fn take_down(&mut self, rq: &mut Request<'_>) {
        self.operation = Operation::of(rq);
        self.pieces.clear();
        let piece =
            |segment: blkmq::driver::Segment<'_>| iovec { iov_base: segment.as_ptr().cast(), iov_len: segment.len() };
        self.pieces.extend(rq.segments().map(piece));
    }
}

impl Drop for Image {
    /// librbd may use the memory of requests until it has answered them. So this waits for all answers.
    fn drop(&mut self) {
        if !*self.is_open() {
            return;
        }
        // No submitter waits for such a request any more, or its queue would have this driver.
        self.take_all(|borrowed, _, _| drop(borrowed));
        while self.nr_in_flight() > 0 {
            self.event.wait_beside(&[], None);
            self.take_all(|borrowed, _, _| drop(borrowed));
        }
        self.close_handle();
    }
}
