//! A library in place of Ceph's, for tests: an image in memory, which answers when the test says so.
//!
//! A handle is the number of the fake, as an address that nothing follows. The fake of a thread is the one that the
//! thread has made last.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::ptr::without_provenance_mut;
use std::slice;
use std::sync::{Mutex, MutexGuard};

use super::super::ffi::{rados_ioctx_t, rados_t};
use super::super::*;

/// What librbd was asked for, and has not answered.
#[derive(Debug, Clone)]
pub(in crate::rbd) struct Pending {
    /// What it is: `read`, `write`, `flush`, `discard`, `zero`, or `thick zero`.
    pub(in crate::rbd) what: &'static str,
    pub(in crate::rbd) start: u64,
    pub(in crate::rbd) bytes: u64,
    pieces: Vec<iovec>,
    completion: usize,
}

#[derive(Default)]
struct State {
    contents: Vec<u8>,
    pending: Vec<Pending>,
    done: Vec<usize>,
    event: c_int,
    watch: Option<(unsafe extern "C" fn(*mut c_void), usize)>,
    /// What was called that opens or closes something.
    calls: Vec<String>,
    /// The next call of this name fails with this error number.
    failing: Vec<(&'static str, c_int)>,
    options: Vec<(CString, CString)>,
}

// SAFETY: the addresses are those of requests that are borrowed, and of what a watch was told; both live meanwhile.
unsafe impl Send for State {}

/// The images, each until the process ends. A handle is the number of one, from 1 on.
static IMAGES: Mutex<Vec<&Mutex<State>>> = Mutex::new(Vec::new());
/// The argument and the result of each completion.
static COMPLETIONS: Mutex<BTreeMap<usize, (usize, isize)>> = Mutex::new(BTreeMap::new());

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

fn state(handle: *mut c_void) -> MutexGuard<'static, State> {
    let image = lock(&IMAGES)[handle.addr() - 1];
    lock(image)
}

/// An image, and the cluster that has it.
pub(in crate::rbd) struct Fake(&'static Mutex<State>);

impl Fake {
    /// An image of so many bytes, and the next that this thread opens.
    pub(in crate::rbd) fn new(bytes: usize) -> Self {
        let options = [("rbd_cache", "false"), ("rbd_discard_granularity_bytes", "65536")];
        let string = |text| CString::new(text).expect("there is no byte 0");
        let options = options.map(|(name, value)| (string(name), string(value))).into();
        let state = State { contents: vec![0; bytes], options, ..State::default() };
        let state: &'static _ = Box::leak(Box::new(Mutex::new(state)));
        let mut images = lock(&IMAGES);
        images.push(state);
        CURRENT.set(images.len());
        Self(state)
    }

    /// The library.
    pub(in crate::rbd) fn load() -> Result<&'static Api, OpenError> {
        Ok(&API)
    }

    /// The next call of this name fails.
    pub(in crate::rbd) fn fail(&self, name: &'static str, errno: c_int) {
        lock(self.0).failing.push((name, errno));
    }

    /// Sets the value of an option.
    pub(in crate::rbd) fn set(&self, name: &str, value: &str) {
        let string = |text| CString::new(text).expect("there is no byte 0");
        lock(self.0).options.insert(0, (string(name), string(value)));
    }

    pub(in crate::rbd) fn calls(&self) -> Vec<String> {
        lock(self.0).calls.clone()
    }

    /// What the image holds.
    pub(in crate::rbd) fn contents(&self) -> Vec<u8> {
        lock(self.0).contents.clone()
    }

    pub(in crate::rbd) fn pending(&self) -> Vec<Pending> {
        lock(self.0).pending.clone()
    }

    /// Returns true if there are answers that were not taken.
    pub(in crate::rbd) fn has_answers(&self) -> bool {
        !lock(self.0).done.is_empty()
    }

    /// Does what was asked for and lies at this place of what is pending, and answers as librbd would; or answers
    /// `result`, if there is one, with nothing done.
    pub(in crate::rbd) fn answer(&self, place: usize, result: Option<isize>) {
        let mut state = lock(self.0);
        let pending = state.pending.remove(place);
        let done = result.unwrap_or_else(|| state.perform(&pending));
        lock(&COMPLETIONS).get_mut(&pending.completion).expect("it is not released").1 = done;
        state.done.push(pending.completion);
        // SAFETY: eight bytes are written to a descriptor that is open while the image is.
        let written = unsafe { libc::write(state.event, (&raw const ONE).cast(), 8) };
        assert_eq!(written, 8, "the event is open");
    }

    /// Makes the image larger or smaller, as another program would.
    pub(in crate::rbd) fn resize(&self, bytes: usize) {
        lock(self.0).contents.resize(bytes, 0);
        let watch = lock(self.0).watch;
        if let Some((changed, argument)) = watch {
            // SAFETY: there is a watch, so its argument lives.
            unsafe { changed(std::ptr::with_exposed_provenance_mut(argument)) };
        }
    }
}

static ONE: u64 = 1;

impl State {
    /// A call that may be one that fails.
    fn call(&mut self, name: &'static str, more: &str) -> c_int {
        self.calls.push(format!("{name}{more}"));
        self.result_of(name)
    }

    /// 0, or the error with which the next call of this name fails.
    fn result_of(&mut self, name: &'static str) -> c_int {
        let place = self.failing.iter().position(|(failing, _)| *failing == name);
        place.map_or(0, |place| -self.failing.remove(place).1)
    }

    fn perform(&mut self, asked: &Pending) -> isize {
        let size = self.contents.len();
        let start = asked.start as usize;
        if start >= size && asked.bytes > 0 {
            return -libc::EINVAL as isize;
        }
        // What lies behind the end is cut off without a word.
        let bytes = (asked.bytes as usize).min(size - start.min(size));
        let place = &mut self.contents[start..start + bytes];
        let mut at = 0;
        for piece in &asked.pieces {
            let len = piece.iov_len.min(bytes - at);
            let memory = piece.iov_base.cast::<u8>();
            let part = &mut place[at..at + len];
            if asked.what == "read" {
                // SAFETY: the memory is that of a borrowed request, and is to be written.
                unsafe { slice::from_raw_parts_mut(memory, len) }.copy_from_slice(part);
            } else {
                // SAFETY: the same, to be read.
                part.copy_from_slice(unsafe { slice::from_raw_parts(memory, len) });
            }
            at += len;
        }
        match asked.what {
            "read" => bytes as isize,
            "zero" | "thick zero" => {
                place.fill(0);
                0
            }
            _ => 0,
        }
    }
}

/// Writes a result to where the caller wants it.
fn put<T>(place: *mut T, value: T) {
    // SAFETY: the caller of each function of the library has room for its result.
    unsafe { place.write(value) };
}

fn words(text: *const c_char) -> String {
    // SAFETY: the caller of each function of the library gives a text that ends with a 0, or nothing.
    let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) });
    text.map_or_else(|| "-".to_owned(), |text| text.to_string_lossy().into_owned())
}

extern "C" fn create(cluster: *mut rados_t, _: *const c_char, name: *const c_char, _: u64) -> c_int {
    let handle = without_provenance_mut(CURRENT.get());
    put(cluster, handle);
    state(handle).call("create", &format!(" {}", words(name)))
}

extern "C" fn read_file(cluster: rados_t, path: *const c_char) -> c_int {
    state(cluster).call("conf", &format!(" {}", words(path)))
}

extern "C" fn set(cluster: rados_t, name: *const c_char, value: *const c_char) -> c_int {
    state(cluster).call("set", &format!(" {}={}", words(name), words(value)))
}

extern "C" fn connect(cluster: rados_t) -> c_int {
    state(cluster).call("connect", "")
}

extern "C" fn shutdown(cluster: rados_t) {
    state(cluster).call("shutdown", "");
}

extern "C" fn open_pool(cluster: rados_t, name: *const c_char, pool: *mut rados_ioctx_t) -> c_int {
    put(pool, cluster);
    state(cluster).call("pool", &format!(" {}", words(name)))
}

extern "C" fn set_namespace(pool: rados_ioctx_t, name: *const c_char) {
    state(pool).call("namespace", &format!(" {}", words(name)));
}

extern "C" fn destroy(pool: rados_ioctx_t) {
    state(pool).call("destroy", "");
}

extern "C" fn version(major: *mut c_int, minor: *mut c_int, extra: *mut c_int) {
    put(major, 1);
    put(minor, 16);
    put(extra, 0);
}

extern "C" fn open(pool: rados_ioctx_t, name: *const c_char, image: *mut rbd_image_t, at: *const c_char) -> c_int {
    put(image, pool);
    state(pool).call("open", &format!(" {} {}", words(name), words(at)))
}

extern "C" fn open_read_only(
    pool: rados_ioctx_t,
    name: *const c_char,
    image: *mut rbd_image_t,
    at: *const c_char,
) -> c_int {
    put(image, pool);
    state(pool).call("open read-only", &format!(" {} {}", words(name), words(at)))
}

extern "C" fn close(image: rbd_image_t) -> c_int {
    let mut state = state(image);
    assert!(state.pending.is_empty() && state.done.is_empty() && state.watch.is_none(), "nothing is in flight");
    state.call("close", "")
}

extern "C" fn stat(image: rbd_image_t, info: *mut rbd_image_info_t, len: usize) -> c_int {
    assert_eq!(len, size_of::<rbd_image_info_t>());
    let size = state(image).contents.len() as u64;
    let (block_name_prefix, parent_name) = ([0; 24], [0; 96]);
    let (obj_size, num_objs, order, parent_pool) = (1 << 20, size >> 20, 20, -1);
    put(info, rbd_image_info_t { size, obj_size, num_objs, order, block_name_prefix, parent_pool, parent_name });
    state(image).call("stat", "")
}

extern "C" fn get_size(image: rbd_image_t, size: *mut u64) -> c_int {
    put(size, state(image).contents.len() as u64);
    0
}

extern "C" fn list_options(image: rbd_image_t, options: *mut rbd_config_option_t, nr: *mut c_int) -> c_int {
    let state = state(image);
    for (place, (name, value)) in state.options.iter().enumerate() {
        let option =
            rbd_config_option_t { name: name.as_ptr().cast_mut(), value: value.as_ptr().cast_mut(), source: 0 };
        put(options.wrapping_add(place), option);
    }
    put(nr, state.options.len() as c_int);
    0
}

extern "C" fn clean_options(_: *mut rbd_config_option_t, _: c_int) {}

extern "C" fn watch(
    image: rbd_image_t,
    handle: *mut u64,
    changed: ffi::rbd_update_callback_t,
    argument: *mut c_void,
) -> c_int {
    put(handle, 7);
    let mut state = state(image);
    state.watch = changed.map(|changed| (changed, argument.expose_provenance()));
    state.call("watch", "")
}

extern "C" fn unwatch(image: rbd_image_t, handle: u64) -> c_int {
    assert_eq!(handle, 7);
    let mut state = state(image);
    state.watch = None;
    state.call("unwatch", "")
}

extern "C" fn notify(image: rbd_image_t, event: c_int, kind: c_int) -> c_int {
    assert_eq!(kind, ffi::EVENTFD);
    let mut state = state(image);
    state.event = event;
    state.call("notify", "")
}

extern "C" fn take_done(image: rbd_image_t, completions: *mut rbd_completion_t, room: c_int) -> c_int {
    let mut state = state(image);
    let nr = state.done.len().min(room as usize);
    for (place, completion) in state.done.drain(..nr).enumerate() {
        put(completions.wrapping_add(place), without_provenance_mut(completion));
    }
    nr as c_int
}

extern "C" fn new_completion(
    argument: *mut c_void,
    _: ffi::rbd_callback_t,
    completion: *mut rbd_completion_t,
) -> c_int {
    let mut completions = lock(&COMPLETIONS);
    let number = completions.last_key_value().map_or(1, |(last, _)| last + 1);
    completions.insert(number, (argument.addr(), 0));
    put(completion, without_provenance_mut(number));
    0
}

extern "C" fn argument(completion: rbd_completion_t) -> *mut c_void {
    without_provenance_mut(lock(&COMPLETIONS)[&completion.addr()].0)
}

extern "C" fn result(completion: rbd_completion_t) -> isize {
    lock(&COMPLETIONS)[&completion.addr()].1
}

extern "C" fn release(completion: rbd_completion_t) {
    lock(&COMPLETIONS).remove(&completion.addr()).expect("it is released once");
}

fn ask(image: rbd_image_t, what: &'static str, pieces: (*const iovec, c_int), range: (u64, u64), c: usize) -> c_int {
    let mut state = state(image);
    let result = state.result_of(what);
    if result != 0 {
        return result;
    }
    let nr = pieces.1 as usize;
    // SAFETY: the caller gives the address of so many pieces, or none.
    let pieces = if nr == 0 { Vec::new() } else { unsafe { slice::from_raw_parts(pieces.0, nr) }.to_vec() };
    let bytes = range.1 + pieces.iter().map(|piece| piece.iov_len as u64).sum::<u64>();
    state.pending.push(Pending { what, start: range.0, bytes, pieces, completion: c });
    0
}

const NO_PIECES: (*const iovec, c_int) = (ptr::null(), 0);

extern "C" fn readv(image: rbd_image_t, pieces: *const iovec, nr: c_int, at: u64, c: rbd_completion_t) -> c_int {
    ask(image, "read", (pieces, nr), (at, 0), c.addr())
}

extern "C" fn writev(image: rbd_image_t, pieces: *const iovec, nr: c_int, at: u64, c: rbd_completion_t) -> c_int {
    ask(image, "write", (pieces, nr), (at, 0), c.addr())
}

extern "C" fn discard(image: rbd_image_t, at: u64, bytes: u64, c: rbd_completion_t) -> c_int {
    ask(image, "discard", NO_PIECES, (at, bytes), c.addr())
}

extern "C" fn zero(image: rbd_image_t, at: u64, bytes: usize, c: rbd_completion_t, flags: c_int, _: c_int) -> c_int {
    let what = if flags == ffi::THICK_PROVISION { "thick zero" } else { "zero" };
    ask(image, what, NO_PIECES, (at, bytes as u64), c.addr())
}

extern "C" fn flush(image: rbd_image_t, c: rbd_completion_t) -> c_int {
    ask(image, "flush", NO_PIECES, (0, 0), c.addr())
}

static API: Api = Api {
    rados_create2: create,
    rados_conf_read_file: read_file,
    rados_conf_set: set,
    rados_connect: connect,
    rados_shutdown: shutdown,
    rados_ioctx_create: open_pool,
    rados_ioctx_set_namespace: set_namespace,
    rados_ioctx_destroy: destroy,
    rbd_version: version,
    rbd_open: open,
    rbd_open_read_only: open_read_only,
    rbd_close: close,
    rbd_stat: stat,
    rbd_get_size: get_size,
    rbd_config_image_list: list_options,
    rbd_config_image_list_cleanup: clean_options,
    rbd_update_watch: watch,
    rbd_update_unwatch: unwatch,
    rbd_set_image_notification: notify,
    rbd_poll_io_events: take_done,
    rbd_aio_create_completion: new_completion,
    rbd_aio_get_arg: argument,
    rbd_aio_get_return_value: result,
    rbd_aio_release: release,
    rbd_aio_readv: readv,
    rbd_aio_writev: writev,
    rbd_aio_discard: discard,
    rbd_aio_write_zeroes: zero,
    rbd_aio_flush: flush,
};
