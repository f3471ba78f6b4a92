//! Files behind the block layer, on a real file system and on tmpfs.
#![expect(unsafe_code, reason = "memory at an odd address is handed in")]

mod common;

use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use blkmq::driver::{Batch, Done, Driver, Extent, Topology};
use blkmq::{Bio, Buffer, Flags, Limits, Locking, RejectReason, RequestQueue, Status, Submitter, Time};
use blkmq_drivers::file::{Config, File};
use common::{run, submitter};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

const SECTOR: usize = 512;

/// A folder that is removed when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new(base: &str, name: &str) -> Self {
        let path = Path::new(base).join(format!("blkmq-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("the folder for tests is writable");
        Self(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A folder on a disk's file system, and one on a file system without a disk.
fn bases() -> Vec<&'static str> {
    [env!("CARGO_TARGET_TMPDIR"), "/dev/shm"].into_iter().filter(|base| Path::new(base).is_dir()).collect()
}

fn queue(spec: &str, scheduler: &str, locking: Locking) -> Arc<RequestQueue> {
    let driver = blkmq_drivers::open(spec).expect("the file can be opened");
    let q = RequestQueue::builder(driver).scheduler(scheduler).locking(locking);
    q.build().expect("the device makes sense")
}

/// A driver in front of a device that another driver uses too, which is not allowed.
#[derive(Debug)]
struct Sharing(Arc<File>);

impl Driver for Sharing {
    fn name(&self) -> &'static str {
        "sharing"
    }

    fn limits(&self) -> Limits {
        self.0.limits()
    }

    fn topology(&self) -> Topology {
        self.0.topology()
    }

    fn queue_rqs(&self, hctx: u16, batch: &mut Batch<'_>, now: Time) {
        self.0.queue_rqs(hctx, batch, now);
    }

    fn poll(&self, hctx: u16, done: &mut Done<'_>, now: Time) {
        self.0.poll(hctx, done, now);
    }
}

/// Red if a tag goes to the kernel twice: the end of one of the two requests would then also end the other.
#[test]
fn a_tag_that_comes_twice_is_refused_and_hurts_nobody_else() {
    let folder = Folder::new(bases()[0], "sharing");
    let config = Config { size: Some(1 << 20), depth: 1, ..Config::new(folder.file("disk.img")) };
    let file = Arc::new(File::open(config).expect("the file can be made"));
    let mut submitters = [(); 2].map(|()| {
        let driver = Arc::new(Sharing(Arc::clone(&file)));
        submitter(&RequestQueue::builder(driver).scheduler("none").build().expect("the device makes sense"))
    });
    let [first, second] = &mut submitters;
    first.submit(Bio::read(0, Buffer::zeroed(SECTOR))).expect("there is a slot");
    first.flush_plug();
    second.submit(Bio::read(0, Buffer::zeroed(SECTOR))).expect("there is a slot");
    let panic = catch_unwind(AssertUnwindSafe(|| second.flush_plug())).expect_err("the tag is out");
    assert!(panic.downcast_ref::<String>().is_some_and(|text| text.contains("is out once")));
    first.wait();
    assert_eq!(first.reap().expect("it is over").status, Status::Ok);
    // The other submitter would wait for ever for a request that its driver lost.
    let [_, second] = submitters;
    std::mem::forget(second);
}

fn status_of(submitter: &mut Submitter, bio: Bio) -> Status {
    run(submitter, [bio]).remove(0).status
}

fn read(submitter: &mut Submitter, sector: u64, len: usize) -> Vec<u8> {
    let done = run(submitter, [Bio::read(sector, Buffer::zeroed(len))]).remove(0);
    assert_eq!(done.status, Status::Ok);
    done.bio.buffers.iter().next().expect("a read has a buffer").to_vec()
}

/// Red if a direct read or write of a file in memory is done by a thread that the kernel makes for it. Each request and
/// its completion would be handed from thread to thread, which is several times as slow.
#[test]
fn a_file_in_memory_is_read_and_written_by_who_asks() {
    const BASE: &str = "/dev/shm";
    if !Path::new(BASE).is_dir() {
        println!("SKIP: there is no {BASE}");
        return;
    }
    let folder = Folder::new(BASE, "memory");
    fs::write(folder.file("probe"), "").expect("it can be made");
    if fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(folder.file("probe")).is_err() {
        println!("SKIP: the file system of {BASE} has no direct I/O");
        return;
    }
    let q = queue(&format!("file,path={},size=1M", folder.file("disk")), "none", Locking::Single);
    let mut submitter = submitter(&q);
    let writes = (0..128).map(|block| Bio::write(block * 8, Buffer::zeroed(4096)));
    let reads = (0..128).map(|block| Bio::read(block * 8, Buffer::zeroed(4096)));
    for over in run(&mut submitter, writes.chain(reads)) {
        assert_eq!(over.status, Status::Ok);
    }
    let thread = fs::read_link("/proc/thread-self").expect("the kernel tells");
    let worker = format!("iou-wrk-{}", thread.file_name().and_then(|name| name.to_str()).expect("it is a number"));
    let is_worker = |task: &std::io::Result<fs::DirEntry>| {
        let comm = task.as_ref().expect("the kernel tells").path().join("comm");
        fs::read_to_string(comm).is_ok_and(|name| name.trim_end() == worker)
    };
    let nr_workers = fs::read_dir("/proc/self/task").expect("the kernel tells").filter(|task| is_worker(task)).count();
    assert_eq!(nr_workers, 0, "{worker} is there");
}

/// Red if random operations of every kind, many at once, do not leave what bytes in memory have, in the device and in
/// the file itself.
#[test]
fn a_file_holds_what_was_written_under_every_scheduler_and_locking() {
    const SECTORS: usize = 4096;
    for base in bases() {
        let folder = Folder::new(base, "model");
        for (direct, owned) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
            for (scheduler, locking) in
                [("none", Locking::Single)].into_iter().chain(Locking::ALL.map(|locking| ("mq-deadline", locking)))
            {
                let path = folder.file(&format!("{scheduler}-{locking}-{direct}-{owned}"));
                // With owned hardware queues, each submitter needs one of its own of each type that exists.
                let poll_queues = direct * (1 + owned);
                let spec = format!(
                    "file,path={path},size={},direct={direct},submit_queues=2,poll_queues={poll_queues},hw_queue_depth=8,\
                     owned={owned}",
                    SECTORS * SECTOR
                );
                check_against_model(&spec, &path, scheduler, locking);
                if owned == 0 {
                    let path = format!("{path}-threads");
                    let spec = format!(
                        "file,path={path},size={},direct={direct},submit_queues=2,hw_queue_depth=8,engine=threads",
                        SECTORS * SECTOR
                    );
                    check_against_model(&spec, &path, scheduler, locking);
                }
            }
        }
    }
}

fn check_against_model(spec: &str, path: &str, scheduler: &str, locking: Locking) {
    let q = queue(spec, scheduler, locking);
    let block = q.limits().logical_block_size as usize;
    let blocks = q.limits().capacity_sectors as usize * SECTOR / block;
    let mut submitters = [submitter(&q), submitter(&q)];
    let mut model = vec![0_u8; blocks * block];
    let mut rng = SmallRng::seed_from_u64(7);
    for round in 0..40 {
        // Each operation of a round has its own part of the file, because outstanding operations may pass one another.
        let mut bios: [Vec<Bio>; 2] = Default::default();
        let part = blocks / 32;
        for place in 0..32 {
            let first = place * part + rng.random_range(0..part / 2);
            let len = rng.random_range(1..=part / 2);
            let (sector, bytes) = ((first * block / SECTOR) as u64, first * block..(first + len) * block);
            let flags = Flags { polled: rng.random(), ..Flags::default() };
            let bio = match rng.random_range(0..10) {
                0..4 => Bio::read(sector, Buffer::zeroed(len * block)).with_flags(flags),
                4 => {
                    model[bytes].fill(0);
                    Bio::write_zeroes(sector, (len * block / SECTOR) as u64).with_flags(flags)
                }
                5 => {
                    model[bytes].fill(0);
                    Bio::discard(sector, (len * block / SECTOR) as u64).with_flags(flags)
                }
                kind => {
                    let data: Vec<u8> = (0..len * block).map(|_| rng.random()).collect();
                    model[bytes].copy_from_slice(&data);
                    let bio = Bio::write(sector, Buffer::from(&data[..]));
                    bio.with_flags(Flags { fua: kind == 9, preflush: kind == 8, ..flags })
                }
            };
            bios[place % 2].push(bio);
        }
        for (submitter, bios) in submitters.iter_mut().zip(bios) {
            for done in run(submitter, bios) {
                assert_eq!(done.status, Status::Ok, "{spec} {scheduler} {locking} round {round}: {:?}", done.bio);
                if let (blkmq::Op::Read, Some(data)) = (done.bio.op, done.bio.buffers.iter().next()) {
                    let start = done.bio.sector as usize * SECTOR;
                    assert!(data[..] == model[start..start + data.len()], "{spec} {scheduler} {locking} round {round}");
                }
            }
        }
    }
    assert_eq!(status_of(&mut submitters[0], Bio::flush()), Status::Ok);
    assert_eq!(q.in_flight(), 0);
    drop((submitters, q));
    assert!(fs::read(path).expect("the file is there") == model, "{spec} {scheduler} {locking}");
}

/// The extents that a device reports: for each the first byte, the length, and whether it is a hole.
fn map(q: &RequestQueue) -> Vec<(u64, u64, bool)> {
    let end = q.limits().capacity_sectors * SECTOR as u64;
    let (mut at, mut told) = (0, Vec::<(u64, u64, bool)>::new());
    while at < end {
        let found = q.driver().extent(at, end - at);
        assert!((1..=end - at).contains(&found.bytes) && found.is_hole == found.is_zero, "{found:?} at {at}");
        match told.last_mut() {
            Some((_, bytes, is_hole)) if *is_hole == found.is_hole => *bytes += found.bytes,
            _ => told.push((at, found.bytes, found.is_hole)),
        }
        at += found.bytes;
    }
    told
}

/// Blocks of 512 bytes that a file occupies.
fn blocks(path: &str) -> u64 {
    std::os::unix::fs::MetadataExt::blocks(&fs::metadata(path).expect("the file is there"))
}

/// Whether the file system reports holes, and can make them.
fn has_holes(folder: &Folder) -> bool {
    use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};

    let path = folder.file("probe");
    fs::write(&path, [1; 1 << 16]).expect("it can be made");
    let probe = fs::OpenOptions::new().read(true).write(true).open(&path).expect("it is there");
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let has_holes =
        fallocate(&probe, punch, 0, 1 << 16).is_ok() && seek(&probe, SeekFrom::Data(0)) == Err(rustix::io::Errno::NXIO);
    if !has_holes {
        println!("SKIP: the file system of {path} has no holes, or does not tell");
    }
    has_holes
}

/// Red if data is reported as a hole, including data that is only in the page cache, or if a later question does not
/// see what a discard or zeroes have left.
#[test]
fn the_extents_of_a_file_are_its_own() {
    const KIB: u64 = 1 << 10;
    const SIZE: u64 = 4096 * KIB;
    for folder in bases().into_iter().map(|base| Folder::new(base, "extents")).filter(has_holes) {
        for direct in [0, 1] {
            let path = folder.file(&format!("file{direct}"));
            let q = queue(&format!("file,path={path},size=4M,direct={direct}"), "none", Locking::Single);
            let mut submitter = submitter(&q);
            assert_eq!(map(&q), [(0, SIZE, true)]);
            let mut done = |bio| assert_eq!(status_of(&mut submitter, bio), Status::Ok);
            done(Bio::write(2048, Buffer::from(&vec![7; 256 << 10][..])));
            let data = (1024 * KIB, 256 * KIB, false);
            assert_eq!(map(&q), [(0, 1024 * KIB, true), data, (1280 * KIB, SIZE - 1280 * KIB, true)], "{path}");
            assert_eq!(q.driver().extent(1024 * KIB + 100, 200), Extent::data(200));
            assert_eq!(q.driver().extent(100, 200), Extent::hole(200));
            done(Bio::discard(2048, 128));
            done(Bio::write_zeroes(2432, 128));
            let data = (1088 * KIB, 128 * KIB, false);
            assert_eq!(map(&q), [(0, 1088 * KIB, true), data, (1216 * KIB, SIZE - 1216 * KIB, true)], "{path}");
            done(Bio::write_zeroes(0, 8192));
            done(Bio::flush());
            assert_eq!((map(&q), blocks(&path)), (vec![(0, SIZE, true)], 0), "{path}");
        }
    }
}

/// Red if zeroes leave no hole where they may, or leave one where they must not.
#[test]
fn zeroes_of_a_file_leave_a_hole_unless_they_must_not() {
    let nounmap = Flags { nounmap: true, ..Flags::NONE };
    for folder in bases().into_iter().map(|base| Folder::new(base, "zeroes")).filter(has_holes) {
        let path = folder.file("file");
        let q = queue(&format!("file,path={path},size=1M"), "none", Locking::Single);
        let mut submitter = submitter(&q);
        assert_eq!(status_of(&mut submitter, Bio::write(0, Buffer::from(&vec![7; 1 << 20][..]))), Status::Ok);
        assert_eq!(status_of(&mut submitter, Bio::flush()), Status::Ok);
        let full = blocks(&path);
        assert!(full >= 2048, "{full}");
        let status = status_of(&mut submitter, Bio::write_zeroes(0, 2048).with_flags(nounmap));
        if status == Status::Ok {
            assert_eq!(read(&mut submitter, 0, 1 << 20), vec![0; 1 << 20]);
        } else {
            assert_eq!(status, Status::Unsupported);
            assert_eq!(read(&mut submitter, 0, 1 << 20), vec![7; 1 << 20]);
            println!("SKIP: the file system of {path} cannot zero in place");
        }
        assert_eq!(status_of(&mut submitter, Bio::flush()), Status::Ok);
        assert!(blocks(&path) >= 2048, "{path} has {} of {full} blocks", blocks(&path));
        assert_eq!(status_of(&mut submitter, Bio::write_zeroes(0, 2048)), Status::Ok);
        assert_eq!(read(&mut submitter, 0, 1 << 20), vec![0; 1 << 20]);
        assert_eq!(blocks(&path), 0, "{path}");
    }
}

/// Red if the part past the end of a file that has become shorter is reported as a hole: reads fail there.
#[test]
fn there_is_no_hole_behind_the_end_of_a_file() {
    for folder in bases().into_iter().map(|base| Folder::new(base, "shorter")).filter(has_holes) {
        let path = folder.file("file");
        let q = queue(&format!("file,path={path},size=1M"), "none", Locking::Single);
        fs::OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(64 << 10)).expect("it is ours");
        assert_eq!(q.driver().extent(0, 1 << 20), Extent::hole(64 << 10));
        assert_eq!(q.driver().extent(64 << 10, 4096), Extent::data(4096));
    }
}

/// Red if a request that one thread chooses for another thread's ring is not issued by that other thread, which may
/// sleep meanwhile.
#[test]
fn threads_that_own_their_rings_get_everything_back() {
    const EACH: u64 = 2000;
    for base in bases() {
        let folder = Folder::new(base, "owned");
        let path = folder.file("file");
        for locking in Locking::ALL {
            let q = queue(&format!("file,path={path},size=4M,submit_queues=3,owned=1"), "mq-deadline", locking);
            let owners: Vec<_> = (0..3_u64)
                .map(|number| {
                    let q = Arc::clone(&q);
                    std::thread::spawn(move || {
                        let mut submitter = submitter(&q);
                        (0..EACH / 16).for_each(|round| {
                            let sector = |place: u64| (round * 48 + place * 3 + number) * 8 % 8192;
                            let bios: Vec<_> =
                                (0..16).map(|place| Bio::read(sector(place), Buffer::zeroed(4096))).collect();
                            let done = run(&mut submitter, bios);
                            assert_eq!(done.iter().filter(|done| done.status == Status::Ok).count(), 16, "{locking}");
                        });
                    })
                })
                .collect();
            owners.into_iter().for_each(|owner| owner.join().expect("it came to its end"));
            assert_eq!((q.in_flight(), q.stats().completed), (0, 3 * EACH / 16 * 16));
            let error = q.start_threads(1).map(drop).expect_err("they would poll for an owner");
            assert!(error.to_string().contains("polled by the submitter that owns it"), "{error}");
        }
    }
}

/// Red if memory at an odd address is refused, because direct I/O needs aligned memory.
#[test]
fn memory_may_lie_anywhere() {
    for base in bases() {
        let folder = Folder::new(base, "odd");
        let q = queue(&format!("file,path={},size=1M", folder.file("a")), "mq-deadline", Locking::Combining);
        let mut submitter = submitter(&q);
        let block = q.limits().logical_block_size as usize;
        let mut memory = vec![5_u8; 2 * block + 1];
        let odd = std::ptr::NonNull::from(&mut memory[1..=block]).cast();
        // SAFETY: the memory lives until the write is over, and no thread touches it meanwhile.
        let buffer = unsafe { Buffer::borrowed(odd, block) };
        assert_eq!(status_of(&mut submitter, Bio::write(0, buffer)), Status::Ok);
        assert_eq!(read(&mut submitter, 0, block), vec![5; block]);
    }
}

/// Red if unaligned memory goes through the page cache while there are direct writes of neighbouring blocks: the kernel
/// then writes old neighbouring data back, and reports it at the flush.
#[test]
fn odd_memory_harms_no_neighbours() {
    let folder = Folder::new(env!("CARGO_TARGET_TMPDIR"), "neighbours");
    let q = queue(&format!("file,path={},size=1M", folder.file("a")), "none", Locking::Single);
    let mut submitter = submitter(&q);
    let block = q.limits().logical_block_size as usize;
    let mut memory = vec![0_u8; block + 1];
    for round in 0..300_usize {
        let byte = round as u8;
        memory.fill(byte);
        let odd = std::ptr::NonNull::from(&mut memory[1..]).cast();
        // SAFETY: the memory lives until the write is over, and no thread touches it meanwhile.
        let first = Bio::write(0, unsafe { Buffer::borrowed(odd, block) });
        let others = Buffer::from(&vec![byte ^ 0x55; (1 << 20) - block][..]);
        let bios = [Bio::write((block / SECTOR) as u64, others), first, Bio::flush()];
        assert!(run(&mut submitter, bios).iter().all(|done| done.status.is_ok()), "round {round}");
        assert_eq!(status_of(&mut submitter, Bio::flush()), Status::Ok, "round {round}");
        let data = read(&mut submitter, 0, 2 * block);
        assert!(data[..block].iter().all(|found| *found == byte), "round {round}");
        assert!(data[block..].iter().all(|found| *found == byte ^ 0x55), "round {round}");
        // Reads into unaligned memory arrive too.
        memory.fill(0);
        let odd = std::ptr::NonNull::from(&mut memory[1..]).cast();
        // SAFETY: as above.
        let back = Bio::read(0, unsafe { Buffer::borrowed(odd, block) });
        assert_eq!(status_of(&mut submitter, back), Status::Ok);
        assert!(memory[0] == 0 && memory[1..].iter().all(|found| *found == byte), "round {round}");
    }
}

/// Red if completions on the ring wake a thread that sleeps while the queue is quiesced: it would look again and again.
#[test]
fn who_waits_for_a_quiesced_queue_sleeps() {
    use rustix::time::{ClockId, clock_gettime};

    let folder = Folder::new(env!("CARGO_TARGET_TMPDIR"), "quiesced");
    let q = queue(&format!("file,path={},size=1M", folder.file("a")), "mq-deadline", Locking::Combining);
    let mut submitter = submitter(&q);
    submitter.submit(Bio::read(0, Buffer::zeroed(4096))).expect("there is a slot");
    submitter.flush_plug();
    let quiesced = q.quiesce();
    let cpu = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    let before = cpu();
    let deadline = q.clock().now().after(1_000_000_000);
    assert!(!submitter.wait_until(deadline), "nothing completes meanwhile");
    assert!(cpu() - before < 0.5, "it slept for most of a second");
    drop(quiesced);
    assert!(submitter.wait());
    assert!(submitter.reap().is_some());
}

/// Red if a request fails because the thread that started it, for another thread, ends while the kernel has it. The
/// kernel then gives up requests that it has not begun.
#[test]
fn requests_outlive_the_thread_that_started_them() {
    for base in bases() {
        let folder = Folder::new(base, "threads");
        let q = queue(
            &format!("file,path={},size=8M,hw_queue_depth=4", folder.file("a")),
            "mq-deadline",
            Locking::Combining,
        );
        for round in 0..20_u8 {
            std::thread::scope(|scope| {
                for part in 0..4_u64 {
                    let q = &q;
                    scope.spawn(move || {
                        let mut submitter = submitter(q);
                        let writes = (0..32).map(|number| {
                            Bio::write(part * 4096 + number * 128, Buffer::from(&[round + part as u8; 65536][..]))
                        });
                        for done in run(&mut submitter, writes) {
                            assert_eq!(done.status, Status::Ok);
                        }
                    });
                }
            });
            let mut submitter = submitter(&q);
            for part in 0..4_u64 {
                let data = read(&mut submitter, part * 4096, 1 << 20);
                assert!(data.iter().all(|byte| *byte == round + part as u8), "round {round} part {part}");
            }
        }
    }
}

/// Red if a read fails that waits for the page cache when the thread that started it ends. A read that is interrupted
/// in this way must be begun anew.
#[test]
fn reads_outlive_the_thread_that_started_them() {
    use rustix::fs::{Advice, fadvise};

    let folder = Folder::new(env!("CARGO_TARGET_TMPDIR"), "cold");
    let path = folder.file("a");
    fs::write(&path, vec![6; 32 << 20]).expect("the folder for tests is writable");
    let file = fs::File::open(&path).expect("it was just made");
    file.sync_all().expect("the disk works");
    let q = queue(&format!("file,path={path},direct=0,hw_queue_depth=4"), "mq-deadline", Locking::Combining);
    for _ in 0..4 {
        fadvise(&file, 0, None, Advice::DontNeed).expect("it is a file");
        std::thread::scope(|scope| {
            for part in 0..8_u64 {
                let q = &q;
                scope.spawn(move || {
                    let mut submitter = submitter(q);
                    // Some threads end while other threads, whose requests they have started, go on.
                    let reads = (0..8 + 32 * (part % 2))
                        .map(|number| Bio::read(part * 8192 + number * 97 % 1000 * 8, Buffer::zeroed(4096)));
                    for done in run(&mut submitter, reads) {
                        assert_eq!(done.status, Status::Ok);
                        assert!(done.bio.buffers.iter().all(|data| data.iter().all(|byte| *byte == 6)));
                    }
                });
            }
        });
    }
}

/// Tells this test program to forbid itself io_uring.
const FORBIDDEN: &str = "BLKMQ_TEST_FORBIDS_IO_URING";

/// Red if a file cannot be used in containers that are not allowed io_uring, or if the operator is not told that
/// threads are used. A filter lasts until the process ends, so the test has a process of its own.
#[test]
fn where_io_uring_is_forbidden_threads_do_the_requests() {
    if std::env::var_os(FORBIDDEN).is_none() {
        let this = std::env::current_exe().expect("it runs");
        let name = "where_io_uring_is_forbidden_threads_do_the_requests";
        let child = Command::new(this).args(["--exact", name, "--nocapture"]).env(FORBIDDEN, "1").output();
        let child = child.expect("it can be started");
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
        return;
    }
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    let arch = std::env::consts::ARCH.try_into().expect("the crate knows this processor");
    let rules = [(libc::SYS_io_uring_setup, Vec::new())].into_iter().collect();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch).expect("it makes sense");
    let program: BpfProgram = filter.try_into().expect("it is short");
    seccompiler::apply_filter_all_threads(&program).expect("the kernel has filters");

    let folder = Folder::new(env!("CARGO_TARGET_TMPDIR"), "forbidden");
    let path = folder.file("a");
    let told = RefCell::new(Vec::new());
    let tell = |text: &str| told.borrow_mut().push(text.to_owned());
    let spec = format!("file,path={path},size=1M,submit_queues=2");
    let driver = blkmq_drivers::open_telling(&spec, &tell).expect("threads do it");
    let told = told.into_inner();
    let [text] = &told[..] else { panic!("{told:?}") };
    assert!(text.starts_with(&format!("{path}: threads do the requests: no io_uring: ")), "{text}");
    assert!(text.contains("io_uring_setup"), "{text}");
    let q = RequestQueue::builder(driver).scheduler("mq-deadline").build().expect("the device makes sense");
    let mut submitter = submitter(&q);
    let flags = Flags { fua: true, ..Flags::default() };
    let bios = (0..64).map(|number| Bio::write(number * 32, Buffer::from(&[number as u8; 4096][..])).with_flags(flags));
    assert!(run(&mut submitter, bios).iter().all(|done| done.status.is_ok()));
    for number in 0..64 {
        assert_eq!(read(&mut submitter, number * 32, 4096), [number as u8; 4096]);
    }
    let error = blkmq_drivers::open(&format!("file,path={},size=1M,engine=io_uring", folder.file("b")));
    let error = error.expect_err("it is wanted and not there").to_string();
    assert!(error.contains("no io_uring: ") && error.contains("seccomp"), "{error}");
}

/// Red if the ring's descriptor does not become readable when the device has completed something: a program with an
/// event loop of its own waits for it.
#[test]
fn the_device_tells_by_a_descriptor_that_it_has_completed_something() {
    use std::os::fd::AsFd;

    use rustix::event::{PollFd, PollFlags, poll};

    for base in bases() {
        let folder = Folder::new(base, "fds");
        let q = queue(&format!("file,path={},size=1M", folder.file("a")), "mq-deadline", Locking::Combining);
        let mut submitter = submitter(&q);
        let event = submitter.eventfd().expect("there are descriptors");
        for number in 0..100 {
            submitter.submit(Bio::write(number * 8, Buffer::from(&[3; 4096][..]))).expect("there is a slot");
            submitter.flush_plug();
            while submitter.reap().is_none() {
                let fds = submitter.device_fds();
                assert_eq!(fds.len(), 1, "a ring for the one hardware queue");
                let fds = [event.as_fd(), fds[0]];
                let mut polled = fds.each_ref().map(|fd| PollFd::new(fd, PollFlags::IN));
                assert!(poll(&mut polled, None).expect("nothing interrupts it") > 0);
                event.drain();
                submitter.poll();
            }
        }
    }
}

/// Red if background threads do not sleep on the rings, or do not complete the requests of threads that only look for
/// what is over.
#[test]
fn background_threads_complete_for_others() {
    for base in bases() {
        let folder = Folder::new(base, "background");
        let spec = format!("file,path={},size=1M,submit_queues=3", folder.file("a"));
        let q = queue(&spec, "mq-deadline", Locking::Combining);
        let threads = q.start_threads(2).expect("there is a place");
        let mut submitter = submitter(&q);
        for number in 0..200 {
            submitter.submit(Bio::write(number % 256 * 8, Buffer::from(&[3; 4096][..]))).expect("there is a slot");
            submitter.flush_plug();
            while submitter.reap().is_none() {
                std::thread::yield_now();
            }
        }
        drop(threads);
        assert_eq!(read(&mut submitter, 0, 4096), vec![3; 4096]);
    }
}

/// Red if a hardware queue that is added while I/O runs gets no ring of its own.
#[test]
fn hardware_queues_come_and_go() {
    let folder = Folder::new(env!("CARGO_TARGET_TMPDIR"), "topology");
    let q = queue(&format!("file,path={},size=1M", folder.file("a")), "mq-deadline", Locking::Combining);
    let mut submitters = [submitter(&q), submitter(&q), submitter(&q)];
    for (queues, byte) in [(1, 1), (3, 2), (2, 3)] {
        let topology = blkmq::driver::Topology { default_queues: queues, ..q.driver().topology() };
        q.change_topology(topology).expect("it is possible").wait().expect("nothing is in flight");
        for (number, submitter) in submitters.iter_mut().enumerate() {
            let sector = number as u64 * 8;
            assert_eq!(status_of(submitter, Bio::write(sector, Buffer::from(&[byte; 4096][..]))), Status::Ok);
            assert_eq!(read(submitter, sector, 4096), vec![byte; 4096]);
        }
    }
}

#[test]
fn what_only_reads_refuses_the_rest() {
    let folder = Folder::new(env!("CARGO_TARGET_TMPDIR"), "read-only");
    let path = folder.file("a");
    fs::write(&path, vec![9; 1 << 16]).expect("the folder for tests is writable");
    let q = queue(&format!("file,path={path},read_only=1"), "mq-deadline", Locking::Combining);
    let mut submitter = submitter(&q);
    assert_eq!(read(&mut submitter, 8, 4096), vec![9; 4096]);
    for bio in [Bio::write(0, Buffer::zeroed(4096)), Bio::discard(0, 8), Bio::write_zeroes(0, 8)] {
        let rejected = submitter.submit(bio).expect_err("it would change the file");
        assert_eq!(rejected.reason, RejectReason::Bad(Status::Unsupported));
    }
    // Another device that only reads is accepted, and one that writes is not.
    let other = blkmq_drivers::open(&format!("file,path={path},read_only=1"));
    assert!(other.is_ok());
    let error = blkmq_drivers::open(&format!("file,path={path},lock_timeout=0")).expect_err("it is in use").to_string();
    assert!(error.ends_with("a: in use by another server"), "{error}");
}

/// Red if a thread that waits does not poll, because then it waits for ever; if a flush goes to the ring that polls,
/// which cannot do flushes; or if requests fail because the disk does not poll. A file that is one hole can be polled
/// on any disk, because a hole is read without the disk. Once there is data, polling depends on the disk.
#[test]
fn polled_hardware_queues_poll_where_the_disk_does() {
    let folder = Folder::new(env!("CARGO_TARGET_TMPDIR"), "polled");
    let spec = format!("file,path={},size=8M,poll_queues=1,hw_queue_depth=16", folder.file("a"));
    let q = queue(&spec, "none", Locking::Single);
    let mut submitter = submitter(&q);
    let polled = Flags { polled: true, ..Flags::default() };
    assert!(q.dump().contains("\nhctx 1: polls\n"), "{}", q.dump());
    let reads = (0..200).map(|number| Bio::read(number * 8, Buffer::from(&[1; 4096][..])).with_flags(polled));
    for done in run(&mut submitter, reads) {
        assert_eq!(done.status, Status::Ok);
        assert!(done.bio.buffers.iter().all(|data| data.iter().all(|byte| *byte == 0)), "it is a hole");
    }
    if !q.dump().contains("\nhctx 1: polls\n") {
        println!("SKIP: the file system of {} knows no polling at all", folder.0.display());
    }
    let writes =
        (0..200).map(|number| Bio::write(number * 8, Buffer::from(&[number as u8; 4096][..])).with_flags(polled));
    assert!(run(&mut submitter, writes).iter().all(|done| done.status.is_ok()));
    assert_eq!(status_of(&mut submitter, Bio::flush().with_flags(polled)), Status::Ok);
    for number in 0..200 {
        let back = Bio::read(number * 8, Buffer::zeroed(4096)).with_flags(polled);
        let done = run(&mut submitter, [back]).remove(0);
        assert_eq!(done.status, Status::Ok, "{number}");
        assert!(done.bio.buffers.iter().all(|data| data.iter().all(|byte| *byte == number as u8)), "{number}");
    }
    if q.dump().contains("\nhctx 1: the disk does not poll: goes by interrupts\n") {
        println!("SKIP: the disk of {} does not poll, so only its way round that was seen", folder.0.display());
    } else {
        assert!(q.dump().contains("\nhctx 1: polls\n"), "{}", q.dump());
    }
    assert_eq!(q.in_flight(), 0);
}

/// Red if a hardware queue that is polled in one topology and not in another does not work in both.
#[test]
fn polled_hardware_queues_come_and_go() {
    let folder = Folder::new(env!("CARGO_TARGET_TMPDIR"), "polled-topology");
    let q = queue(&format!("file,path={},size=1M", folder.file("a")), "none", Locking::Single);
    let mut submitter = submitter(&q);
    for (default_queues, poll_queues, byte) in [(1, 1, 1), (2, 0, 2), (1, 2, 3), (1, 0, 4)] {
        let topology = blkmq::driver::Topology { default_queues, poll_queues, ..q.driver().topology() };
        q.change_topology(topology).expect("it is possible").wait().expect("nothing is in flight");
        assert_eq!(q.driver().topology().poll_queues, 0, "as it was opened");
        let count = q.dump().lines().filter(|line| line.ends_with(": polls") || line.contains("does not poll")).count();
        assert_eq!(count, usize::from(poll_queues));
        let polled = Flags { polled: true, ..Flags::default() };
        let write = Bio::write(0, Buffer::from(&[byte; 4096][..])).with_flags(polled);
        assert_eq!(status_of(&mut submitter, write), Status::Ok);
        assert_eq!(read(&mut submitter, 0, 4096), vec![byte; 4096]);
    }
}

/// Red if the slots of a ring's table are not given back, or if they name memory that no longer exists.
#[test]
fn registered_memory_is_known_to_every_ring_until_it_goes() {
    for base in bases() {
        let folder = Folder::new(base, "registered");
        let spec = format!("file,path={},size=8M,submit_queues=1,poll_queues=1", folder.file("a"));
        let q = queue(&spec, "none", Locking::Single);
        let mut submitters = [submitter(&q), submitter(&q)];
        let count = |q: &RequestQueue, bytes: usize| {
            q.dump().lines().filter(|line| line.ends_with(&format!(": {bytes} bytes of memory registered"))).count()
        };
        let write = |sector, byte: u8, mut buffer: Buffer, flags| {
            buffer.fill(byte);
            Bio::write(sector, buffer).with_flags(flags)
        };
        let mut kept = q.register_buffers(4, 5000);
        assert!(count(&q, 4 * 8192) == 2 && kept.iter().all(|buffer| buffer.len() == 5000), "{}", q.dump());
        for round in 0..200_u8 {
            if round % 64 == 63 {
                // Rings that come later know the memory too.
                let topology =
                    blkmq::driver::Topology { default_queues: u16::from(round / 32), ..q.driver().topology() };
                q.change_topology(topology).expect("it is possible").wait().expect("nothing is in flight");
                assert_eq!(count(&q, 4 * 8192), usize::from(round / 32) + 1, "{}", q.dump());
            }
            let all = count(&q, 4 * 8192);
            let mut buffers = q.register_buffers(2, 65536);
            assert_eq!(count(&q, 4 * 8192 + 2 * 65536), all, "{}", q.dump());
            for (place, submitter) in (0..).zip(&mut submitters) {
                let polled = Flags { polled: round % 2 == 1, fua: round % 3 == 0, ..Flags::default() };
                let buffer = buffers.pop().expect("there are two");
                assert_eq!(status_of(submitter, write(place * 128, round, buffer, polled)), Status::Ok);
                let mut short = kept.remove(0);
                assert!(short.set_len(4096));
                let done = run(submitter, [Bio::read(place * 128 + 64, short).with_flags(polled)]).remove(0);
                assert_eq!(done.status, Status::Ok);
                let blkmq::Buffers::One(short) = done.bio.buffers else { panic!("it was one buffer") };
                assert!(short.iter().all(|found| *found == round), "round {round}");
                kept.push(short);
                assert_eq!(read(submitter, place * 128, 65536), vec![round; 65536]);
            }
            assert_eq!(count(&q, 4 * 8192), all, "they are gone with their operations");
        }
        drop((submitters, q));
        // Buffers outlive the device.
        let last = kept.iter().filter(|buffer| buffer.iter().all(|byte| *byte == 199));
        assert_eq!((last.count(), kept.len()), (2, 4));
    }
}

#[test]
fn errors_name_the_file_and_what_is_wrong_with_it() {
    let folder = Folder::new(env!("CARGO_TARGET_TMPDIR"), "errors");
    let path = folder.file("a");
    fs::write(&path, vec![0; 1 << 16]).expect("the folder for tests is writable");
    fs::write(folder.file("empty"), b"").expect("the folder for tests is writable");
    let cases = [
        ("file".to_owned(), "device file: a path is missing, as in file,path=disk.img".to_owned()),
        (format!("file,path={path}x"), format!("device file: {path}x: No such file or directory (os error 2)")),
        (
            format!("file,path={path},size=1M"),
            format!("device file: {path}: it has 65536 bytes, not 1048576; leave size= out to take it as it is"),
        ),
        (
            format!("file,path={path},direct=0,poll_queues=1"),
            format!("device file: {path}: polled hardware queues need direct I/O, which is off or not for this file"),
        ),
        (
            format!("file,path={}", folder.0.display()),
            format!("device file: {}: Is a directory (os error 21)", folder.0.display()),
        ),
        ("file,path=/dev/null".to_owned(), "device file: /dev/null: neither a file nor a block device".to_owned()),
    ];
    for (spec, error) in cases {
        assert_eq!(blkmq_drivers::open(&spec).expect_err("it cannot be opened").to_string(), error);
    }
    let error =
        blkmq_drivers::open(&format!("file,path={}", folder.file("empty"))).expect_err("it is empty").to_string();
    assert!(error.contains("it has 0 bytes, less than one block"), "{error}");
    assert_eq!(fs::metadata(&path).map(|file| file.len()).ok(), Some(1 << 16), "no error changes the file");
}

/// A mounted file system that is unmounted when the test ends.
struct Mount(PathBuf);

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// Red if a full disk fails anything else than the writes that it has no room for.
#[test]
fn a_full_disk_is_told_apart() {
    let folder = Folder::new(env!("CARGO_TARGET_TMPDIR"), "full");
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1M", "tmpfs"]).arg(&folder.0).output();
    if !mount.is_ok_and(|output| output.status.success()) {
        println!("SKIP: mounting a tmpfs takes the rights of root");
        return;
    }
    let _mount = Mount(folder.0.clone());
    let q = queue(&format!("file,path={},size=8M", folder.file("a")), "mq-deadline", Locking::Combining);
    let mut submitter = submitter(&q);
    let writes = (0..64).map(|number| Bio::write(number * 128, Buffer::from(&[1; 65536][..])));
    let statuses: Vec<Status> = run(&mut submitter, writes).iter().map(|done| done.status).collect();
    let failed = statuses.iter().filter(|status| **status == Status::NoSpace).count();
    let written = statuses.iter().filter(|status| status.is_ok()).count();
    assert!(failed > 0 && written > 0 && failed + written == 64, "{statuses:?}");
    // Room that was given back can be used again.
    assert_eq!(status_of(&mut submitter, Bio::discard(0, 16384)), Status::Ok);
    assert_eq!(status_of(&mut submitter, Bio::write(0, Buffer::from(&[2; 4096][..]))), Status::Ok);
    assert_eq!(read(&mut submitter, 0, 4096), vec![2; 4096]);
}

/// Red if a file that becomes larger while it is used cannot be used to its end once `revalidate` was called.
#[test]
fn a_file_may_grow_while_it_is_used() {
    for base in bases() {
        let folder = Folder::new(base, "growth");
        let path = folder.file("a");
        let q = queue(&format!("file,path={path},size=1M"), "mq-deadline", Locking::Combining);
        let mut submitter = submitter(&q);
        let block = q.limits().logical_block_size as usize;
        let beyond = (1 << 20) / SECTOR as u64;
        fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .and_then(|file| file.set_len((2 << 20) + 100))
            .expect("it grows");
        let rejected = submitter.submit(Bio::write(beyond, Buffer::zeroed(block))).expect_err("nobody has looked yet");
        assert_eq!(rejected.reason, RejectReason::Bad(Status::BeyondEnd));
        assert_eq!(q.revalidate(), Ok(2 * beyond), "whole blocks alone count");
        let end = 2 * beyond - (block / SECTOR) as u64;
        assert_eq!(status_of(&mut submitter, Bio::write(end, Buffer::from(&vec![4; block][..]))), Status::Ok);
        assert_eq!(read(&mut submitter, end, block), vec![4; block]);
        assert!(q.dump().contains("2097152 bytes"), "{}", q.dump());
        fs::OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(1 << 20)).expect("it shrinks");
        let error = q.revalidate().expect_err("what lies behind the end may be in flight").to_string();
        assert!(error.contains("has 2048 sectors, not 4096"), "{error}");
        assert_eq!(q.limits().capacity_sectors, 4096);
    }
}
