//! How a file is opened: its descriptors, the lock that keeps other servers away, and which files are refused.
//!
//! The [target](super::target) alone calls in, once, by [`Opened::new`].

use std::fs::{FileType, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, UNIX_EPOCH};

use blkmq::SECTOR_SIZE;
use blkmq::driver::spec;
use rustix::fs::{AtFlags, FlockOperation, OFlags, SeekFrom, StatxFlags};
use rustix::fs::{fcntl_getfl, fcntl_setfl, flock, fstatfs, ioctl_blksszget, major, minor, seek, statx};
use rustix::io::Errno;

use super::Config;
use crate::OpenError;

/// The alignment for direct I/O, in bytes, if the kernel does not tell the true one.
const SAFE_ALIGN: u32 = 4096;

/// After this time the driver says that it waits for the lock on the file, and it no longer tries to claim a block
/// device. A server that was killed is mostly gone earlier.
const TELL_AFTER: Duration = Duration::from_secs(1);
/// The pause between two tries to get the lock, or the claim on a block device.
const TRY_EVERY: Duration = Duration::from_millis(20);

/// A file that is opened, locked and checked.
#[derive(Debug)]
pub(super) struct Opened {
    /// The descriptor that goes past the page cache, if the file allows that.
    pub(super) direct: Option<OwnedFd>,
    /// The descriptor that goes through the page cache. It has the lock.
    pub(super) buffered: OwnedFd,
    /// The descriptor through which the kernel is asked for writeback errors.
    pub(super) witness: OwnedFd,
    /// The alignment of addresses in memory for direct I/O, in bytes.
    pub(super) memory_align: usize,
    /// Requests begin and end at multiples of this number of bytes.
    pub(super) block_size: u32,
    /// Bytes of the file.
    pub(super) bytes: u64,
    pub(super) is_block_device: bool,
    /// Whether the disk may be one that polls.
    pub(super) may_poll: bool,
    /// Whether the file system passes everything on to a file of another file system, as an overlay does. Only syncs
    /// look at the errors noted for that file.
    pub(super) is_stacked: bool,
}

impl Opened {
    /// Opens the file as `config` says. `tell` is called with what the driver waits for.
    ///
    /// # Errors
    /// Why this file cannot be used, in one sentence that begins with its path.
    pub(super) fn new(config: &Config, tell: &dyn Fn(&str)) -> Result<Self, OpenError> {
        let path = config.path.display();
        Self::without_path(config, &|text| tell(&format!("{path}: {text}"))).map_err(|error| error.at(path))
    }

    /// As [`new`](Self::new), without the path in errors.
    fn without_path(config: &Config, tell: &dyn Fn(&str)) -> Result<Self, OpenError> {
        let (buffered, made) = open(config, 0).map_err(|error| unopened(config, error))?;
        let metadata = buffered.metadata()?;
        let kind = metadata.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(OpenError::new("neither a file nor a block device"));
        }
        lock(&buffered, config, tell)?;
        if let (true, Some(size)) = (made, config.size)
            && let Err(error) = make(&buffered, &config.path, size)
        {
            // A file that is left over would count as an existing file at the next try.
            let _ = std::fs::remove_file(&config.path);
            return Err(error.into());
        }
        let sysfs = Path::new("/sys/dev/block");
        if kind.is_block_device() {
            check_zones(sysfs, metadata.rdev())?;
        }
        let witness = witness(config, &buffered, kind)?;
        let bytes = size_of(&buffered)?;
        let (direct, memory_align, file_align) = direct(config, &buffered, bytes)?;
        let is_on_tmpfs = is_on(libc::TMPFS_MAGIC, &buffered, kind);
        for file in direct.iter().map(AsFd::as_fd).chain([buffered.as_fd()]) {
            set_flags(file, is_on_tmpfs).map_err(io::Error::from)?;
        }
        let device_block = if kind.is_block_device() {
            ioctl_blksszget(&buffered).map_err(io::Error::from)?
        } else {
            SECTOR_SIZE as u32
        };
        let block_size = file_align.max(device_block);
        check_size(config, kind, bytes, block_size)?;
        Ok(Self {
            direct,
            witness,
            memory_align: memory_align as usize,
            block_size,
            bytes,
            is_block_device: kind.is_block_device(),
            may_poll: may_poll(sysfs, if kind.is_block_device() { metadata.rdev() } else { metadata.dev() }),
            is_stacked: is_on(libc::OVERLAYFS_SUPER_MAGIC, &buffered, kind),
            buffered: buffered.into(),
        })
    }
}

/// Opens the file with additional flags. Returns whether the file was created.
fn open(config: &Config, flags: i32) -> io::Result<(std::fs::File, bool)> {
    let mut options = OpenOptions::new();
    options.read(true).write(!config.read_only).custom_flags(flags | libc::O_CLOEXEC);
    match options.open(&config.path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && config.size.is_some() && !config.read_only => {
            Ok((options.create_new(true).open(&config.path)?, true))
        }
        opened => Ok((opened?, false)),
    }
}

/// Returns why a file cannot be opened, and how one that is missing is made.
fn unopened(config: &Config, error: io::Error) -> OpenError {
    let folder = config.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let may_be_made = config.size.is_none() && !config.read_only && folder.is_dir();
    if error.kind() == io::ErrorKind::NotFound && may_be_made {
        let path = spec::write_word(&config.path.display().to_string());
        let what = format!("{error}; with a size it is made, as in file,path={path},size=1G");
        return OpenError::system(what, error);
    }
    error.into()
}

/// Returns which file or block device this is, as it stays while the machine runs.
pub(super) fn identity(file: &OwnedFd) -> io::Result<String> {
    let metadata = std::fs::File::from(file.try_clone()?).metadata()?;
    let place = |device| format!("{}:{}", major(device), minor(device));
    if metadata.file_type().is_block_device() {
        // A number is given anew, as that of a loop device; the sequence number of the disk is not (Linux 5.15).
        let disk = Path::new("/sys/dev/block").join(place(metadata.rdev()));
        let read = |name| std::fs::read_to_string(disk.join(name)).ok();
        let number = ["diskseq", "../diskseq"].into_iter().find_map(read).unwrap_or_default();
        return Ok(format!("block device {}, disk {}", place(metadata.rdev()), number.trim()));
    }
    // The number of a file that is removed is given to the next one.
    let made = metadata.created().ok().and_then(|made| made.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    Ok(format!("file {} of {}, made at {} ns", metadata.ino(), place(metadata.dev()), made.as_nanos()))
}

/// Opens the same file once more, with additional flags.
fn open_again(config: &Config, flags: i32, first: &std::fs::File) -> io::Result<std::fs::File> {
    let (file, _) = open(config, flags)?;
    let identity = |file: &std::fs::File| file.metadata().map(|found| (found.dev(), found.ino()));
    if identity(&file)? != identity(first)? {
        return Err(io::Error::other("another file took its place while it was opened; try again"));
    }
    Ok(file)
}

/// Opens the file once more. Through this descriptor the kernel is asked for writeback errors.
///
/// If a block device is opened for writing, this descriptor also claims the device. The kernel then gives the device to
/// no file system, and to no other program that asks for exclusive use.
fn witness(config: &Config, buffered: &std::fs::File, kind: FileType) -> Result<OwnedFd, OpenError> {
    let claims = kind.is_block_device() && !config.read_only && !config.force;
    let began = Instant::now();
    loop {
        match open_again(config, if claims { libc::O_EXCL } else { 0 }, buffered) {
            Ok(file) => return Ok(file.into()),
            // A server that was killed, and whose lock is gone, may have the device for a moment more.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && claims => {
                if began.elapsed() >= TELL_AFTER.min(config.lock_timeout) {
                    let what = "mounted, or another program has it for itself; unmount it, or say force=1, with which \
                                both destroy each other's data";
                    return Err(OpenError::system(what, error));
                }
                thread::sleep(TRY_EVERY);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Gives a new file its size, and makes the file and its name in the folder durable.
fn make(file: &std::fs::File, path: &Path, size: u64) -> io::Result<()> {
    file.set_len(size)?;
    file.sync_all()?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(".".as_ref());
    match std::fs::File::open(folder)?.sync_all() {
        // Some file systems have nothing to sync for a folder.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        synced => synced,
    }
}

/// Returns a setting of the disk with this number. `sysfs` is the folder with an entry for each block device. `None`
/// without sysfs, and for what is no disk, such as the number of a file system in memory.
fn disk_setting(sysfs: &Path, device: u64, name: &str) -> Option<String> {
    let entry = sysfs.join(format!("{}:{}", major(device), minor(device)));
    // A partition has the properties of its disk.
    let read = |queue| std::fs::read_to_string(entry.join(queue).join(name)).ok();
    ["queue", "../queue"].into_iter().find_map(read).map(|setting| setting.trim().to_owned())
}

/// Refuses a device whose zones must be written from beginning to end.
fn check_zones(sysfs: &Path, device: u64) -> Result<(), OpenError> {
    match disk_setting(sysfs, device, "zoned").as_deref() {
        None | Some("none") => Ok(()),
        Some(model) => Err(OpenError::new(format!(
            "a zoned block device ({model}), whose zones are written from beginning to end; clients write anywhere"
        ))),
    }
}

/// Returns true if the disk may be one that polls. Only a disk that says that it does not poll is certain. Older
/// kernels, such as 6.1, take polled operations for such a disk without a word. The operations then end by interrupts,
/// and a thread that polls for them would find none.
fn may_poll(sysfs: &Path, device: u64) -> bool {
    disk_setting(sysfs, device, "io_poll").as_deref() != Some("0")
}

/// Takes the lock on the file. Two servers that write to one file would destroy each other's data.
///
/// If a server was killed, the kernel releases its file some time after the server is gone: when everything that its
/// rings had begun is done, and when a thread of the kernel has had time for it.
fn lock(file: &std::fs::File, config: &Config, tell: &dyn Fn(&str)) -> Result<(), OpenError> {
    const IN_USE: &str = "in use by another server";
    let how =
        if config.read_only { FlockOperation::NonBlockingLockShared } else { FlockOperation::NonBlockingLockExclusive };
    let (began, limit) = (Instant::now(), config.lock_timeout);
    let mut is_reported = false;
    loop {
        let waited = began.elapsed();
        match flock(file, how) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) if waited < limit => {
                if !is_reported && waited >= TELL_AFTER {
                    tell(&format!("{IN_USE}, or one that was killed is not gone yet; waiting for {limit:?} at most"));
                    is_reported = true;
                }
                thread::sleep(TRY_EVERY.min(limit - waited));
            }
            Err(Errno::WOULDBLOCK) if limit.is_zero() => return Err(OpenError::new(IN_USE)),
            Err(Errno::WOULDBLOCK) => return Err(OpenError::new(format!("{IN_USE}, and still so after {limit:?}"))),
            Err(error) => return Err(OpenError::from(io::Error::from(error)).at("it cannot be locked")),
        }
    }
}

/// Returns the descriptor that goes past the page cache, if direct I/O works, and the alignments in memory and in the
/// file that it needs.
///
/// A file whose size is not a multiple of the alignment for direct I/O goes through the page cache. So every byte of
/// the file can be reached.
fn direct(config: &Config, buffered: &std::fs::File, bytes: u64) -> io::Result<(Option<OwnedFd>, u32, u32)> {
    const NONE: (Option<OwnedFd>, u32, u32) = (None, 1, SECTOR_SIZE as u32);
    if !config.direct {
        return Ok(NONE);
    }
    let file = match open_again(config, libc::O_DIRECT, buffered) {
        Ok(file) => file,
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return Ok(NONE),
        Err(error) => return Err(error),
    };
    let stat = statx(buffered, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)?;
    let is_reported = stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
    let reported = is_reported.then_some((stat.stx_dio_mem_align, stat.stx_dio_offset_align));
    Ok(aligns(reported, bytes).map_or(NONE, |(memory, offset)| (Some(file.into()), memory, offset)))
}

/// Returns the alignments of addresses in memory and of places in the file for direct I/O, in bytes. The alignment in
/// the file is at least a sector, because requests consist of sectors. `reported` is from the file system. `None` if
/// direct I/O cannot reach all of a file with this many bytes.
fn aligns(reported: Option<(u32, u32)>, bytes: u64) -> Option<(u32, u32)> {
    match reported.unwrap_or((SAFE_ALIGN, SAFE_ALIGN)) {
        // The file system says that direct I/O does not work for this file, although it lets us open the file for
        // direct I/O.
        (0, _) | (_, 0) => None,
        (memory, offset) => {
            let offset = offset.max(SECTOR_SIZE as u32);
            bytes.is_multiple_of(offset.into()).then_some((memory, offset))
        }
    }
}

/// Returns true if the file is a file in a file system of this kind. The nodes of devices may be in such a file system
/// too.
fn is_on(magic: libc::c_long, file: &std::fs::File, kind: FileType) -> bool {
    kind.is_file() && fstatfs(file).is_ok_and(|found| found.f_type == magic)
}

/// Asks for settings that make reads and writes cheaper.
///
/// No program needs to know when a disk was last read. So access times are not noted, if the kernel lets us choose.
///
/// If a file system does not say that it can be asked not to wait, another thread of the kernel does everything instead
/// of the ring. tmpfs does not say so, although it waits for nothing but memory. This function says it instead.
fn set_flags(file: BorrowedFd<'_>, is_on_tmpfs: bool) -> rustix::io::Result<()> {
    if is_on_tmpfs {
        fcntl_setfl(file, fcntl_getfl(file)? | OFlags::NONBLOCK)?;
    }
    // Only the file's owner may choose this, and some systems do not have the flag.
    let _ = fcntl_setfl(file, fcntl_getfl(file)? | OFlags::NOATIME);
    Ok(())
}

/// Returns the number of bytes of a file or block device.
pub(super) fn size_of(file: impl AsFd) -> io::Result<u64> {
    Ok(seek(file, SeekFrom::End(0))?)
}

fn check_size(config: &Config, kind: FileType, bytes: u64, block_size: u32) -> Result<(), OpenError> {
    if let Some(wanted) = config.size
        && wanted != bytes
    {
        return Err(OpenError::new(format!("it has {bytes} bytes, not {wanted}; leave size= out to take it as it is")));
    }
    // The bytes that a file has of its last block are reached through the page cache.
    if kind.is_block_device() && !bytes.is_multiple_of(block_size.into()) {
        return Err(OpenError::new(format!(
            "it has {bytes} bytes, which are no whole blocks of {block_size}; give the device a size of whole blocks"
        )));
    }
    if bytes == 0 {
        return Err(OpenError::new(format!(
            "it has {bytes} bytes, less than one block of {block_size}; size=1G makes a file that is not there"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if direct I/O goes to another file that has the name by then, without a lock, while syncs go to the file
    /// that had it.
    #[test]
    fn a_file_that_takes_the_place_of_another_meanwhile_is_refused() {
        let [first, second] =
            ["first", "second"].map(|name| std::env::temp_dir().join(format!("blkmq-{name}-{}", std::process::id())));
        let [first, second] = [first, second].map(|path| Config { size: Some(1 << 20), ..Config::new(path) });
        let opened = [&first, &second].map(|config| open(config, 0).expect("it can be made").0);
        let found = direct(&second, &opened[0], 0);
        assert!(direct(&first, &opened[0], 0).is_ok());
        for config in [&first, &second] {
            std::fs::remove_file(&config.path).expect("it was just made");
        }
        let error = found.expect_err("they are two files").to_string();
        assert_eq!(error, "another file took its place while it was opened; try again");
    }

    #[test]
    fn when_a_file_was_read_is_not_noted_and_direct_ways_stay_so() {
        let path = std::env::temp_dir().join(format!("blkmq-atime-{}", std::process::id()));
        let opened =
            Opened::new(&Config { size: Some(1 << 20), ..Config::new(&path) }, &|_| ()).expect("it can be made");
        std::fs::remove_file(&path).expect("it was just made");
        for file in [Some(&opened.buffered), opened.direct.as_ref()].into_iter().flatten() {
            assert!(fcntl_getfl(file).expect("it is open").contains(OFlags::NOATIME));
        }
        if let Some(file) = &opened.direct {
            assert!(fcntl_getfl(file).expect("it is open").contains(OFlags::DIRECT));
        }
    }

    /// Red if a device is accepted whose driver refuses most writes, or if a device without zones is refused.
    #[test]
    fn zoned_devices_are_refused() {
        let sysfs = tempfile::tempdir().expect("there is room");
        for (name, model) in [("8:0", "none\n"), ("8:16", "host-managed\n"), ("8:32", "host-aware\n")] {
            std::fs::create_dir_all(sysfs.path().join(name).join("queue")).expect("it is writable");
            std::fs::create_dir_all(sysfs.path().join(name).join("part")).expect("it is writable");
            std::fs::write(sysfs.path().join(name).join("queue/zoned"), model).expect("it is writable");
        }
        std::os::unix::fs::symlink("8:16/part", sysfs.path().join("8:17")).expect("it is writable");
        let checked = |minor| check_zones(sysfs.path(), rustix::fs::makedev(8, minor));
        assert!(checked(0).is_ok() && checked(48).is_ok());
        for minor in [16, 17, 32] {
            let error = checked(minor).expect_err("it is zoned").to_string();
            assert!(error.starts_with("a zoned block device (host-"), "{error}");
        }
    }

    /// Red if a disk or a partition that says that it does not poll is polled, or if another one is not.
    #[test]
    fn a_disk_that_does_not_poll_is_known() {
        let sysfs = tempfile::tempdir().expect("the folder for tests is writable");
        for (disk, setting) in [("8:0", "0\n"), ("8:16", "1\n")] {
            let queue = sysfs.path().join(disk).join("queue");
            std::fs::create_dir_all(&queue).expect("it is writable");
            std::fs::create_dir(sysfs.path().join(disk).join("part")).expect("it is writable");
            std::fs::write(queue.join("io_poll"), setting).expect("it is writable");
        }
        std::os::unix::fs::symlink("8:0/part", sysfs.path().join("8:1")).expect("it is writable");
        std::os::unix::fs::symlink("8:16/part", sysfs.path().join("8:17")).expect("it is writable");
        let may = [0, 1, 16, 17, 32].map(|minor| may_poll(sysfs.path(), rustix::fs::makedev(8, minor)));
        assert_eq!(may, [false, false, true, true, true]);
    }

    /// Red if direct I/O is used for a file that ends within a sector, because its file system asks for a smaller
    /// alignment: bytes past the end of the file would be written.
    #[test]
    fn a_file_is_reached_directly_in_whole_sectors_or_more() {
        for (reported, bytes, expected) in [
            (Some((4, 1)), 1024, Some((4, 512))),
            (Some((4, 1)), 1000, None),
            (Some((4, 256)), 1280, None),
            (Some((4, 4096)), 4096, Some((4, 4096))),
            (Some((4, 4096)), 1024, None),
            (Some((0, 0)), 4096, None),
            (None, 4096, Some((4096, 4096))),
            (None, 512, None),
        ] {
            assert_eq!(aligns(reported, bytes), expected, "{reported:?}, {bytes} bytes");
        }
    }

    /// Red if the file system that has the device's node is taken for the file system on the device.
    #[test]
    fn a_device_is_no_file_in_memory() {
        let is_on_tmpfs = |path: &std::path::Path| {
            let file = std::fs::File::open(path).expect("it can be read");
            let kind = file.metadata().expect("the kernel tells").file_type();
            is_on(libc::TMPFS_MAGIC, &file, kind)
        };
        let tmpfs = std::path::Path::new("/dev/shm");
        if tmpfs.is_dir() {
            let path = tmpfs.join(format!("blkmq-tmpfs-{}", std::process::id()));
            std::fs::write(&path, "").expect("anybody may");
            assert!(is_on_tmpfs(&path));
            std::fs::remove_file(&path).expect("it was just made");
        }
        assert!(!is_on_tmpfs("/dev/null".as_ref()) && !is_on_tmpfs("/proc/self/status".as_ref()));
    }
}
