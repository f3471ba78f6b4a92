//! Files that are opened, or refused.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{run, submitter};
use crate::mount::Mount;
use blkmq::driver::spec::Opener;
use blkmq::{Bio, Buffer, Flags, Op, RequestQueue, Status};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use tempfile::TempDir;

/// A folder on a disk, and the name of a file there.
fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("the folder for tests is writable");
    let path = folder.path().join("disk");
    (folder, path)
}

/// The error for a spec, and the messages before it.
fn refused(spec: &str) -> (String, Vec<String>) {
    let said = RefCell::new(Vec::new());
    let opened = blkmq_drivers::open_for(
        spec,
        &Opener { tell: &|text| said.borrow_mut().push(text.to_owned()), ..Opener::SILENT },
    );
    (opened.map(drop).expect_err("it is refused").to_string(), said.into_inner())
}

/// Red if the driver does not wait for a file that another server has, if it waits without saying so, or if it waits
/// forever.
#[test]
fn a_file_in_use_is_waited_for_with_a_word_and_then_refused() {
    let (_folder, path) = folder();
    let path = path.display();
    let first = blkmq_drivers::open(&format!("file,path={path},size=1M")).expect("it can be made");
    for (limit, shown, is_told) in [("0", None, false), ("100ms", Some("100ms"), false), ("1200ms", Some("1.2s"), true)]
    {
        let (error, said) = refused(&format!("file,path={path},lock_timeout={limit}"));
        let after = shown.map(|shown| format!(", and still so after {shown}")).unwrap_or_default();
        assert_eq!(error, format!("device file: {path}: in use by another server{after}"));
        let waits = "in use by another server, or one that was killed is not gone yet; waiting for 1.2s at most";
        assert_eq!(said, if is_told { vec![format!("{path}: {waits}")] } else { Vec::new() });
    }
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| blkmq_drivers::open(&format!("file,path={path}")).map(drop));
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!waiting.is_finished(), "half a minute is not over");
        drop(first);
        waiting.join().expect("it ends").expect("the lock comes free");
    });
}

/// Red if a program that says how many submitters it has does not get a ring for each, if it gets them though the spec
/// says something else, or if a number that no device has hinders the opening.
#[test]
fn a_program_that_knows_its_submitters_has_a_ring_for_each() {
    let (_folder, path) = folder();
    let opened = |nr_submitters, more: &str| {
        let spec = format!("file,path={},size=1M{more}", path.display());
        let driver = blkmq_drivers::open_for(&spec, &Opener { nr_submitters, ..Opener::SILENT }).expect("it opens");
        (driver.topology().default_queues, driver.is_owned())
    };
    let shown = blkmq_drivers::devices().into_iter().find_map(|device| device.offers()).expect("one asks the kernel");
    let of_three = if shown.starts_with("io_uring") { (3, true) } else { (1, false) };
    assert_eq!(opened(Some(3), ""), of_three);
    assert_eq!(opened(Some(3), ",hw_queue_depth=8"), of_three, "the depth says nothing of rings");
    assert_eq!(opened(None, ""), (1, false));
    assert_eq!(opened(Some(3), ",submit_queues=2"), (2, false));
    assert_eq!(opened(Some(3), ",owned=0"), (1, false));
    assert_eq!(opened(Some(3), ",engine=threads"), (1, false));
    assert_eq!([opened(Some(0), ""), opened(Some(257), "")], [(1, false); 2]);
}

/// Red if the dump or the list of devices does not say what carries out the requests, whose rings there are, or what of
/// the kernel's offers they use.
#[test]
fn what_was_chosen_is_told() {
    let (_folder, path) = folder();
    let shown = |more: &str| {
        let driver = blkmq_drivers::open(&format!("file,path={},size=1M{more}", path.display())).expect("it opens");
        let mut shown = String::new();
        driver.show(&mut shown).expect("a text takes everything");
        shown.lines().nth(1).expect("the second line is about the rings").to_owned()
    };
    assert_eq!(shown(",engine=threads"), "threads do the requests");
    let device = blkmq_drivers::devices().into_iter().find(|device| device.name == "file").expect("it is there");
    let here = device.offers().expect("the device asks the kernel");
    let Some(owned) = here.strip_prefix("io_uring; a ring that belongs to one submitter has ") else {
        println!("SKIP the rest of what was chosen: {here}");
        return;
    };
    assert_eq!(shown(",submit_queues=3,owned=1"), format!("rings: 3, each of one submitter; {owned}"));
    let shared = owned.replace("cooperative task work", "task work by interrupts");
    assert_eq!(shown(",submit_queues=2"), format!("rings: 2, shared by all submitters; {shared}"));
}

/// Does everything that may be done to the last sectors of a file with this many bytes, and compares the file with an
/// array of the same length. Data bytes are 1 to 255.
fn check_odd_end(path: &Path, bytes: usize, words: &str, random: &mut SmallRng) {
    let sectors = bytes.div_ceil(512);
    let mut model: Vec<u8> = (0..bytes).map(|_| random.random_range(1..=255)).collect();
    fs::write(path, &model).expect("the folder for tests is writable");
    let device = blkmq_drivers::open(&format!("file,path={}{words}", path.display())).expect("any size is good");
    let q = RequestQueue::builder(device).scheduler("none").build().expect("the device makes sense");
    let limits = q.limits();
    let told = (limits.capacity_sectors, limits.missing_bytes, limits.size_bytes(), limits.logical_block_size);
    assert_eq!(told, (sectors as u64, (sectors * 512 - bytes) as u16, bytes as u64, 512));
    let mut submitter = submitter(&q);
    for _ in 0..100 {
        let first = random.random_range(0..sectors);
        let nr_sectors = random.random_range(1..=sectors - first);
        let (sector, range) = (first as u64, first * 512..((first + nr_sectors) * 512).min(bytes));
        let flags = Flags { fua: random.random(), ..Flags::NONE };
        let bio = match random.random_range(0..4) {
            0 => {
                let data: Vec<u8> = (0..nr_sectors * 512).map(|_| random.random_range(1..=255)).collect();
                let len = range.len();
                model[range.clone()].copy_from_slice(&data[..len]);
                let (one, other) = data.split_at(random.random_range(0..nr_sectors) * 512);
                let pieces = [one, other].into_iter().filter(|piece| !piece.is_empty());
                Bio::write(sector, pieces.map(Buffer::from).collect::<Vec<_>>()).with_flags(flags)
            }
            1 => {
                model[range.clone()].fill(0);
                Bio::write_zeroes(sector, nr_sectors as u64).with_flags(Flags { nounmap: random.random(), ..flags })
            }
            2 => {
                model[range.clone()].fill(0);
                Bio::discard(sector, nr_sectors as u64).with_flags(flags)
            }
            _ => Bio::read(sector, Buffer::from(&vec![0xaa; nr_sectors * 512][..])),
        };
        let done = run(&mut submitter, [bio, Bio::flush()]);
        assert!(done.iter().all(|done| done.status == Status::Ok), "{bytes} bytes{words}: {done:?}");
        for bio in done.iter().map(|done| &done.bio).filter(|bio| bio.op == Op::Read) {
            let found: Vec<u8> = bio.buffers.iter().flat_map(|buffer| buffer.iter().copied()).collect();
            assert!(found[..range.len()] == model[range.clone()], "{bytes} bytes{words}: {range:?}");
            assert!(found[range.len()..].iter().all(|byte| *byte == 0), "{bytes} bytes{words}: behind the end");
        }
        assert!(fs::read(path).expect("it is there") == model, "{bytes} bytes{words}: {range:?}");
    }
    // A file that became longer is served with its old length. A file that became shorter fails requests for the lost
    // part.
    fs::write(path, [&model[..], &[7; 4096]].concat()).expect("the folder for tests is writable");
    assert_eq!(q.revalidate(), Ok(sectors as u64));
    fs::write(path, &model[..bytes - 1]).expect("the folder for tests is writable");
    let last = Bio::write(sectors as u64 - 1, Buffer::from(&[9; 512][..]));
    assert_eq!(run(&mut submitter, [last])[0].status, Status::IoError);
    assert_eq!(fs::read(path).expect("it is there").len(), bytes - 1, "a write makes it no longer");
}

/// Red if the end of a file is left out without an error (1000 bytes were once served as 512), if a write extends the
/// file to whole sectors, or if a read of the missing part shows what the memory held before.
#[test]
fn a_file_is_read_and_written_to_its_last_byte_and_becomes_no_longer() {
    let (_folder, path) = folder();
    let mut random = SmallRng::seed_from_u64(24);
    for bytes in [1, 445, 511, 513, 1000, 4097] {
        for words in ["", ",direct=0", ",engine=threads"] {
            check_odd_end(&path, bytes, words, &mut random);
        }
    }
}

/// Red if the part of a file that direct I/O cannot reach cannot be read.
#[test]
fn a_file_of_any_number_of_sectors_is_read_to_its_end() {
    let (_folder, path) = folder();
    let shown = path.display();
    for sectors in [1, 3, 9, 1001] {
        let data: Vec<u8> = (0..sectors * 512).map(|byte| (byte / 512) as u8).collect();
        fs::write(&path, &data).expect("the folder for tests is writable");
        let device = blkmq_drivers::open(&format!("file,path={shown}")).expect("it is whole sectors");
        let q = RequestQueue::builder(device).scheduler("none").build().expect("the device makes sense");
        assert_eq!(q.limits().capacity_sectors, sectors as u64);
        let block = q.limits().logical_block_size as usize;
        let last = (sectors - block / 512) as u64;
        let read = run(&mut submitter(&q), [Bio::read(last, Buffer::zeroed(block))]).remove(0);
        assert_eq!(read.status, Status::Ok);
        assert!(read.bio.buffers.iter().all(|found| **found == data[data.len() - block..]), "{sectors} sectors");
    }
    fs::remove_file(&path).expect("it is there");
    let made = blkmq_drivers::open(&format!("file,path={shown},size=1000")).expect("any size is good");
    assert_eq!((made.limits().size_bytes(), fs::metadata(&path).expect("it is made").len()), (1000, 1000));
}

fn mount(image: &str, folder: &Path) -> Option<Mount> {
    fs::create_dir(folder).expect("the folder for tests is writable");
    Mount::new(&["-o", "loop", image], &folder.display().to_string())
}

fn succeeds(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
}

/// A file system in a file, mounted. `None` without the rights or programs for it. Then a message says that the test is
/// skipped.
fn mounted(folder: &Path) -> Option<(String, Mount)> {
    let image = folder.join("image").display().to_string();
    fs::File::create(&image).and_then(|file| file.set_len(16 << 20)).expect("it is a hole");
    if !succeeds("mkfs.ext4", &["-q", &image]) {
        println!("SKIP there is no mkfs.ext4");
        return None;
    }
    let mount = mount(&image, &folder.join("mounted"))?;
    Some((image, mount))
}

/// Red if the folder of a new file is not synced, or its size is not: after a loss of power there is no file.
#[test]
fn a_new_file_outlives_a_loss_of_power() {
    let folder = folder().0;
    let Some((image, system)) = mounted(folder.path()) else { return };
    let path = Path::new(&system.0).join("disk");
    // The contents of the disk at this moment.
    assert!(succeeds("sync", &["--file-system", &system.0]));
    let _device = blkmq_drivers::open(&format!("file,path={},size=1M", path.display())).expect("it can be made");
    let copy = format!("{image}.copy");
    fs::copy(&image, &copy).expect("there is room");
    let after = mount(&copy, &folder.path().join("after")).expect("the first one was mounted");
    assert_eq!(fs::metadata(Path::new(&after.0).join("disk")).map(|found| found.len()).ok(), Some(1 << 20));
}

/// Red if a device is written to while a file system on it is mounted.
#[test]
fn a_mounted_block_device_is_refused_unless_by_force() {
    let folder = folder().0;
    let Some((_, mount)) = mounted(folder.path()) else { return };
    let mounts = fs::read_to_string("/proc/self/mounts").expect("the kernel tells");
    let place = format!(" {} ", mount.0);
    let device = mounts.lines().find(|line| line.contains(&place)).and_then(|line| line.split(' ').next());
    let device = device.expect("it is mounted");
    let (error, _) = refused(&format!("file,path={device}"));
    let what = "mounted, or another program has it for itself; unmount it, or say force=1, with which both destroy each other's data";
    assert_eq!(error, format!("device file: {device}: {what}"));
    for words in ["force=1", "read_only=1"] {
        drop(blkmq_drivers::open(&format!("file,path={device},{words}")).expect("it can be opened"));
    }
}

/// Red if an error that the system gave reaches the caller as a text alone.
#[test]
fn what_the_system_said_is_found_behind_the_error() {
    let error = blkmq_drivers::open("file,path=/nowhere/disk").expect_err("there is no such folder");
    assert_eq!(error.to_string(), "device file: /nowhere/disk: No such file or directory (os error 2)");
    let opened = std::error::Error::source(&error).expect("the device could not be opened");
    let opened = opened.downcast_ref::<blkmq_drivers::OpenError>().expect("it is what File::open returns");
    let system = std::error::Error::source(opened).and_then(|system| system.downcast_ref::<std::io::Error>());
    assert_eq!(system.map(std::io::Error::kind), Some(std::io::ErrorKind::NotFound));
    // What is wrong with the spec itself has no other cause.
    let spec = blkmq_drivers::open("file,path=a,direct=2").expect_err("it is 0 or 1");
    assert!(std::error::Error::source(&spec).is_none());
}
