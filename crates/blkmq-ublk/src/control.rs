//! Commands to the control device.
//!
//! The kernel may take as long as it likes for a command, and some kernels take forever: a device is removed when its
//! character device is closed, and a block device when its requests are over. So each command runs in a thread of its
//! own, with a ring of its own, and the caller waits for a limited time. The thread owns the memory that the kernel
//! reads and writes. A thread that is not answered stays behind with this memory.
#![expect(unsafe_code, reason = "memory is handed to the kernel")]

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use io_uring::{IoUring, cqueue, opcode, squeue, types};

use crate::abi::{
    CONTROL_PATH, CONTROL_SIZE, ControlCommand, ControlOp, DeviceInfo, INFO_SIZE, PARAMETERS_SIZE, Parameters, State,
    control, feature,
};
use crate::error::Error;
use crate::stall::until_stalled;

/// How long a command may take, unless it is told otherwise.
pub const LIMIT: Duration = Duration::from_secs(10);

/// Bytes of a path in front of what a command takes.
const PATH_SIZE: usize = 32;

/// The control device.
#[derive(Debug, Clone)]
pub struct Control {
    file: Arc<File>,
    limit: Duration,
}

/// Hands the command to the kernel, and waits for as long as that takes.
fn wait_for(file: &File, op: u32, mut command: ControlCommand, data: &mut Vec<u8>) -> io::Result<()> {
    let mut ring: IoUring<squeue::Entry128, cqueue::Entry> = IoUring::builder().build(1)?;
    command.addr = if data.is_empty() { 0 } else { data.as_mut_ptr().expose_provenance() as u64 };
    command.len = data.len() as u16;
    let mut cmd = [0; 80];
    cmd[..CONTROL_SIZE].copy_from_slice(&command.to_bytes());
    let entry = opcode::UringCmd80::new(types::Fd(file.as_raw_fd()), op).cmd(cmd).build();
    // SAFETY: the file is open and the memory at `addr` is there until the completion has come: this function returns
    // before only if the kernel has not taken the entry.
    let pushed = unsafe { ring.submission().push(&entry) };
    pushed.map_err(|_| io::Error::other("the ring is full"))?;
    loop {
        let submitted = ring.submit_and_wait(1);
        if let Some(entry) = ring.completion().next() {
            let result = entry.result();
            return if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) };
        }
        match submitted {
            Err(error) if error.kind() != io::ErrorKind::Interrupted && !ring.submission().is_empty() => {
                return Err(error);
            }
            _ => (),
        }
    }
}

/// Runs `work` in a thread of its own. `None` if it is not over although nothing has moved for the limit. Where the
/// system gives no thread the caller does the work, without a limit: a device is then still ended in order.
fn limited<T: Send + 'static>(
    limit: Duration,
    moved: impl Fn() -> u64,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    limited_by(thread::Builder::new().name("ublk control".to_owned()), limit, moved, work)
}

/// The same in a thread that this builder makes.
fn limited_by<T: Send + 'static>(
    builder: thread::Builder,
    limit: Duration,
    moved: impl Fn() -> u64,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (tell, over) = mpsc::sync_channel(1);
    let work = Arc::new(Mutex::new(Some(work)));
    let take = |work: &Mutex<Option<_>>| work.lock().unwrap_or_else(PoisonError::into_inner).take();
    let theirs = Arc::clone(&work);
    let spawned = builder.spawn(move || _ = tell.send(take(&theirs).map(|work| work())));
    if spawned.is_err() {
        return take(&work).map(|work| work());
    }
    until_stalled(limit, moved, |pause| match over.recv_timeout(pause) {
        Ok(done) => Some(done),
        Err(RecvTimeoutError::Timeout) => None,
        Err(RecvTimeoutError::Disconnected) => Some(None),
    })?
}

impl Control {
    /// Opens the control device.
    ///
    /// # Errors
    /// There is none, or it may not be opened.
    pub fn open() -> Result<Self, Error> {
        let opened = OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open(CONTROL_PATH);
        let file = opened.map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => Error::NoPermission("opening /dev/ublk-control"),
            _ => Error::NoControl(error),
        })?;
        Ok(Self { file: Arc::new(file), limit: LIMIT })
    }

    /// The same device, with another limit for each command.
    #[must_use]
    pub fn limited(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Has the kernel do a command, with memory that the command reads or writes. Returns the memory.
    fn run(&self, op: ControlOp, command: ControlCommand, data: Vec<u8>) -> Result<Vec<u8>, Error> {
        self.run_while(|| 0, op, command, data)
    }

    /// The same. The limit counts from the last change of `moved`.
    fn run_while(
        &self,
        moved: impl Fn() -> u64,
        ControlOp(name, op): ControlOp,
        command: ControlCommand,
        mut data: Vec<u8>,
    ) -> Result<Vec<u8>, Error> {
        let file = Arc::clone(&self.file);
        let work = move || wait_for(&file, op, command, &mut data).map(|()| data);
        let done = limited(self.limit, moved, work).ok_or(Error::NoAnswer(name, self.limit))?;
        done.map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM) => Error::NoPermission(name),
            Some(libc::ENODEV) if command.dev_id != u32::MAX => Error::NoDevice(command.dev_id),
            _ => Error::Command(name, error),
        })
    }

    /// The features that the kernel has.
    ///
    /// # Errors
    /// The kernel is too old to tell, or refuses.
    pub fn features(&self) -> Result<u64, Error> {
        let answer = self.run(control::GET_FEATURES, of_device(u32::MAX), vec![0; 8]);
        let answer = answer.map_err(|error| match error.errno() {
            Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ENOTTY) => Error::TooOld,
            _ => error,
        })?;
        let features = u64::from_ne_bytes(answer.try_into().expect("the memory is as long as it was"));
        if features & feature::CMD_IOCTL_ENCODE == 0 { Err(Error::TooOld) } else { Ok(features) }
    }

    /// Makes a device. Returns what the kernel has made of the wish.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn add(&self, info: &DeviceInfo) -> Result<DeviceInfo, Error> {
        let answer = self.run(control::ADD_DEV, of_device(info.dev_id), info.to_bytes().to_vec());
        let answer = answer.map_err(|error| match error.errno() {
            Some(libc::EEXIST) => {
                Error::Exists(info.dev_id, self.info(info.dev_id).map_or(State::Live, |found| found.state))
            }
            Some(libc::EACCES | libc::ENOSPC) => Error::TooManyDevices,
            _ => error,
        })?;
        Ok(info_of(&answer, 0))
    }

    /// Says what a block device is to be like, before it is started.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn set_parameters(&self, id: u32, parameters: &Parameters) -> Result<(), Error> {
        self.run(control::SET_PARAMS, of_device(id), parameters.to_bytes().to_vec()).map(drop)
    }

    /// What a block device is like.
    ///
    /// # Errors
    /// There is no such device, or the kernel refuses.
    pub fn parameters(&self, id: u32) -> Result<Parameters, Error> {
        // The kernel looks for the length in what it is to fill.
        let memory = Parameters::default().to_bytes().to_vec();
        let answer = self.run(control::GET_PARAMS, of_device(id), memory)?;
        let bytes: &[u8; PARAMETERS_SIZE] = answer[..].try_into().expect("the memory is as long as it was");
        Ok(Parameters::from_bytes(bytes))
    }

    /// What the kernel knows of a device.
    ///
    /// # Errors
    /// There is no such device, or the kernel refuses.
    pub fn info(&self, id: u32) -> Result<DeviceInfo, Error> {
        let mut memory = vec![0; PATH_SIZE + INFO_SIZE];
        let command = ControlCommand { dev_path_len: PATH_SIZE as u16, ..of_device(id) };
        let path = character_path(id);
        memory[..path.len()].copy_from_slice(path.as_bytes());
        let answer = self.run(control::GET_DEV_INFO2, command, memory)?;
        Ok(info_of(&answer, PATH_SIZE))
    }

    /// Makes the block device of a device whose queues have fetched or will. `is_recovered`: it exists, and waits.
    ///
    /// # Errors
    /// The kernel refuses, or the queues have not fetched in time.
    pub fn start(&self, id: u32, is_recovered: bool) -> Result<(), Error> {
        let op = if is_recovered { control::END_USER_RECOVERY } else { control::START_DEV };
        let command = ControlCommand { data: std::process::id().into(), ..of_device(id) };
        self.run(op, command, Vec::new()).map(drop)
    }

    /// Makes a block device that is in use so many sectors long.
    ///
    /// # Errors
    /// There is no such device, or the kernel refuses, as one without [`feature::UPDATE_SIZE`] does.
    pub fn update_size(&self, id: u32, sectors: u64) -> Result<(), Error> {
        self.run(control::UPDATE_SIZE, ControlCommand { data: sectors, ..of_device(id) }, Vec::new()).map(drop)
    }

    /// Takes over a device whose server is gone.
    ///
    /// # Errors
    /// The device has a server, or cannot be taken over.
    pub fn begin_recovery(&self, id: u32) -> Result<(), Error> {
        let begun = self.run(control::START_USER_RECOVERY, of_device(id), Vec::new());
        begun.map(drop).map_err(|error| match error.errno() {
            Some(libc::EBUSY) => Error::Served(id),
            _ => error,
        })
    }

    /// Has the kernel write what it has in memory for a block device that no other program or file system has. Takes as
    /// long as the kernel writes something.
    ///
    /// # Errors
    /// A program or a file system has the block device ([`Error::Device`] with `EBUSY`), or a write fails, or none has
    /// ended in time.
    pub fn write_back(&self, id: u32) -> Result<(), Error> {
        let path = block_path(id);
        let work = move || {
            let flags = libc::O_EXCL | libc::O_CLOEXEC | libc::O_NONBLOCK;
            OpenOptions::new().read(true).custom_flags(flags).open(path)?.sync_all()
        };
        match limited(self.limit, || nr_ended(id), work) {
            None => Err(Error::NoAnswer("writing what is in memory", self.limit)),
            // There is no block device, and nothing is left to write.
            Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Some(written) => written.map_err(|error| Error::Device(block_path(id), error)),
        }
    }

    /// Removes a block device, when its requests are over. The device itself stays.
    ///
    /// # Errors
    /// There is no such device, or the kernel refuses, or its requests are not over and none has ended in time.
    pub fn stop(&self, id: u32) -> Result<(), Error> {
        self.stop_while(id, || nr_ended(id))
    }

    /// The same, by the device's server: the kernel first writes what it has in memory, through this very server. The
    /// limit counts from the last change of `moved`.
    pub(crate) fn stop_while(&self, id: u32, moved: impl Fn() -> u64) -> Result<(), Error> {
        self.run_while(moved, control::STOP_DEV, of_device(id), Vec::new()).map(drop)
    }

    /// Removes a device, when no process has its character device open.
    ///
    /// # Errors
    /// There is no such device, or the kernel refuses, or a server does not close it in time.
    pub fn delete(&self, id: u32) -> Result<(), Error> {
        self.run(control::DEL_DEV, of_device(id), Vec::new()).map(drop)
    }
}

/// A command for a device, without further numbers.
fn of_device(dev_id: u32) -> ControlCommand {
    ControlCommand { dev_id, ..ControlCommand::default() }
}

fn info_of(memory: &[u8], at: usize) -> DeviceInfo {
    let bytes: &[u8; INFO_SIZE] = memory[at..].try_into().expect("the memory is as long as it was");
    DeviceInfo::from_bytes(bytes)
}

/// How many requests of a block device have ended, as the kernel counts them. 0 if it does not tell.
fn nr_ended(id: u32) -> u64 {
    fs::read_to_string(format!("/sys/block/ublkb{id}/stat")).map_or(0, |text| nr_ended_of(&text))
}

/// The requests that have ended in a line of `/sys/block/NAME/stat`: reads, writes, discards and flushes.
fn nr_ended_of(stat: &str) -> u64 {
    let number = |index: usize| stat.split_whitespace().nth(index).and_then(|word| word.parse::<u64>().ok());
    [0, 4, 11, 15].into_iter().filter_map(number).fold(0, u64::wrapping_add)
}

/// The path of a device's character device.
#[must_use]
pub fn character_path(id: u32) -> String {
    format!("/dev/ublkc{id}")
}

/// The path of a device's block device.
#[must_use]
pub fn block_path(id: u32) -> String {
    format!("/dev/ublkb{id}")
}

/// The numbers of all devices, in order.
///
/// # Errors
/// `/dev` cannot be read.
pub fn ids() -> io::Result<Vec<u32>> {
    let names = fs::read_dir("/dev")?.flatten().map(|entry| entry.file_name());
    let mut ids: Vec<_> = names.filter_map(|name| id_of(name.to_str()?)).collect();
    ids.sort_unstable();
    Ok(ids)
}

/// The number in the name of a character device.
fn id_of(name: &str) -> Option<u32> {
    let digits = name.strip_prefix("ublkc")?;
    if digits.starts_with('+') { None } else { digits.parse().ok() }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn names_of_character_devices_have_a_number() {
        let found = ["ublkc0", "ublkc17", "ublkb0", "ublk-control", "ublkc", "ublkc+1", "ublkcx"].map(id_of);
        assert_eq!(found, [Some(0), Some(17), None, None, None, None, None]);
        assert_eq!((character_path(3), block_path(3)), ("/dev/ublkc3".to_owned(), "/dev/ublkb3".to_owned()));
        assert!(character_path(u32::MAX).len() < PATH_SIZE, "an end of the path is left");
    }

    /// Red if the numbers of sectors or of merges count, or if flushes do not.
    #[test]
    fn the_kernel_counts_what_has_ended() {
        let stat = "     110        2     6688       32       20       53     1240       40        0       60       72        3        0     4096        5        7       2\n";
        assert_eq!(nr_ended_of(stat), 110 + 20 + 3 + 7);
        assert_eq!((nr_ended_of("1 0 0 0 2"), nr_ended_of("")), (3, 0), "as of an older kernel");
    }

    /// Red if the caller waits for what is not over, or gets no answer that is there.
    #[test]
    #[cfg_attr(miri, ignore = "Miri wants all threads over at its end")]
    fn what_takes_for_ever_is_given_up_and_what_is_over_is_told() {
        assert_eq!(limited(Duration::from_secs(600), || 0, || 7), Some(7));
        let (hold, held) = mpsc::channel::<()>();
        assert_eq!(limited(Duration::from_millis(20), || 0, move || held.recv().is_ok()), None);
        drop(hold);
    }

    /// Red if a command fails where no thread can be made, as under a limit of processes: the kernel would not be told
    /// that a device ends, and would not write what it has to.
    #[test]
    #[cfg_attr(miri, ignore = "Miri makes a thread with a stack of any size")]
    fn a_command_needs_no_thread() {
        let refused = thread::Builder::new().stack_size(1 << 62);
        assert_eq!(
            limited_by(refused, Duration::from_secs(600), || 0, || thread::current().id()),
            Some(thread::current().id())
        );
    }

    /// Red if the limit counts from the beginning: then the end of a device fails what the kernel has still to write.
    #[test]
    fn what_goes_on_is_waited_for() {
        let (hold, held) = mpsc::channel::<()>();
        let looks = Cell::new(0);
        let moved = || {
            looks.set(looks.get() + 1);
            if looks.get() == 100 {
                hold.send(()).unwrap();
            }
            looks.get()
        };
        assert_eq!(limited(Duration::from_millis(10), moved, move || held.recv().is_ok()), Some(true));
    }

    /// Red if a missing module is told in the system's words alone.
    #[test]
    fn without_the_module_the_error_says_what_to_type() {
        let error = Error::NoControl(io::Error::from_raw_os_error(libc::ENOENT)).to_string();
        assert!(error.contains("modprobe ublk_drv"), "{error}");
    }
}
