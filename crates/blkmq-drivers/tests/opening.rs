//! Files that are opened, or refused.

mod common;

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use blkmq::{Bio, Buffer, RequestQueue, Status};
use common::{run, submitter};

use tempfile::TempDir;

/// A folder on a disk, and the name of a file there.
fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("the folder for tests is writable");
    let path = folder.path().join("disk");
    (folder, path)
}

/// Why a spec is refused, and what was said before.
fn refused(spec: &str) -> (String, Vec<String>) {
    let said = RefCell::new(Vec::new());
    let opened = blkmq_drivers::open_telling(spec, &|text| said.borrow_mut().push(text.to_owned()));
    (opened.map(drop).expect_err("it is refused").to_string(), said.into_inner())
}

/// Red if a file that another server has is not waited for, or without a word, or for ever.
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
        assert_eq!(waiting.join().expect("it ends"), Ok(()));
    });
}

/// Red if the end of a file is left out without a word: 1000 bytes were served as 512.
#[test]
fn a_file_is_served_to_its_last_byte_or_refused() {
    let (_folder, path) = folder();
    let shown = path.display();
    for bytes in [1000, 513, 4097] {
        fs::write(&path, vec![1; bytes]).expect("the folder for tests is writable");
        for words in ["", ",direct=0", ",read_only=1"] {
            let what = format!(
                "it has {bytes} bytes, which are no whole blocks of 512; 'truncate -s %512' makes it longer by"
            );
            let (error, _) = refused(&format!("file,path={shown}{words}"));
            assert_eq!(error, format!("device file: {shown}: {what} what is missing"));
        }
    }
    // What direct I/O cannot reach is reached through the page cache.
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
    let (error, _) = refused(&format!("file,path={shown},size=1000"));
    assert_eq!(error, format!("device file: {shown}: size=1000 is no multiple of 512, the smallest block"));
    assert!(!path.exists(), "nothing is left of it");
}

/// Whether a command could be run.
fn done(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
}

/// A mounted file system that goes when the test ends.
struct Mount(PathBuf);

impl Mount {
    fn new(image: &str, folder: &Path) -> Option<Self> {
        fs::create_dir(folder).expect("the folder for tests is writable");
        done("mount", &["-o", "loop", image, &folder.display().to_string()]).then(|| Self(folder.to_owned()))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// A file system in a file, mounted; `None`, and a word that the test is skipped, without the rights or programs for it.
fn mounted(folder: &Path) -> Option<(String, Mount)> {
    let image = folder.join("image").display().to_string();
    fs::File::create(&image).and_then(|file| file.set_len(16 << 20)).expect("it is a hole");
    let mount = done("mkfs.ext4", &["-q", &image]).then(|| Mount::new(&image, &folder.join("mounted"))).flatten();
    if mount.is_none() {
        println!("SKIP there is no mkfs.ext4, or mounting takes the rights of root");
    }
    Some((image, mount?))
}

/// Red if the folder of a new file is not synced, or its size is not: after a loss of power there is no file.
#[test]
fn a_new_file_outlives_a_loss_of_power() {
    let folder = folder().0;
    let Some((image, mount)) = mounted(folder.path()) else { return };
    let path = mount.0.join("disk");
    // What is on the disk at this moment.
    assert!(done("sync", &["--file-system", &mount.0.display().to_string()]));
    let _device = blkmq_drivers::open(&format!("file,path={},size=1M", path.display())).expect("it can be made");
    let copy = format!("{image}.copy");
    fs::copy(&image, &copy).expect("there is room");
    let after = Mount::new(&copy, &folder.path().join("after")).expect("the first one was mounted");
    assert_eq!(fs::metadata(after.0.join("disk")).map(|found| found.len()).ok(), Some(1 << 20));
}

/// Red if a device is written to behind the back of the file system on it.
#[test]
fn a_mounted_block_device_is_refused_unless_by_force() {
    let folder = folder().0;
    let Some((_, mount)) = mounted(folder.path()) else { return };
    let mounts = fs::read_to_string("/proc/self/mounts").expect("the kernel tells");
    let place = format!(" {} ", mount.0.display());
    let device = mounts.lines().find(|line| line.contains(&place)).and_then(|line| line.split(' ').next());
    let device = device.expect("it is mounted");
    let (error, _) = refused(&format!("file,path={device}"));
    let what = "mounted, or another program has it for itself; unmount it, or say force=1, with which both destroy each other's data";
    assert_eq!(error, format!("device file: {device}: {what}"));
    for words in ["force=1", "read_only=1"] {
        assert_eq!(blkmq_drivers::open(&format!("file,path={device},{words}")).map(drop), Ok(()));
    }
}
