//! Threads: which of them carry a request out, wait for it, and take it when it is over.

use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;

use blkmq::driver::spec::Opener;
use blkmq::{Bio, Buffer, Flags, Locking, RequestQueue, Status};

use super::{bases, disk_folder, file, folder, queue};
use crate::common::{read, run, submitter};
use crate::seccomp::filter_of;

/// Red if a direct read or write of a file in memory is done by a thread that the kernel makes for it. Each request and
/// its completion would be handed from thread to thread, which is several times as slow.
#[test]
fn a_file_in_memory_is_read_and_written_by_who_asks() {
    const BASE: &str = "/dev/shm";
    if !Path::new(BASE).is_dir() {
        println!("SKIP: there is no {BASE}");
        return;
    }
    let folder = folder(BASE);
    fs::write(file(&folder, "probe"), "").expect("it can be made");
    if fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(file(&folder, "probe")).is_err() {
        println!("SKIP: the file system of {BASE} has no direct I/O");
        return;
    }
    let q = queue(&format!("file,path={},size=1M", file(&folder, "disk")), "none", Locking::Single);
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

/// Red if completions on the ring wake a thread that sleeps while the queue is quiesced: it would look again and again.
#[test]
fn who_waits_for_a_quiesced_queue_sleeps() {
    use rustix::time::{ClockId, clock_gettime};

    let folder = disk_folder();
    let q = queue(&format!("file,path={},size=1M", file(&folder, "a")), "mq-deadline", Locking::Combining);
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
    assert!(!submitter.wait(1, Some(deadline)).is_ready(), "nothing completes meanwhile");
    assert!(cpu() - before < 0.5, "it slept for most of a second");
    drop(quiesced);
    assert!(submitter.wait(1, None).is_ready());
    assert!(submitter.reap().is_some());
}

/// Red if a request fails because the thread that started it, for another thread, ends while the kernel has it. The
/// kernel then gives up requests that it has not begun.
#[test]
fn requests_outlive_the_thread_that_started_them() {
    for base in bases() {
        let folder = folder(base);
        let q = queue(
            &format!("file,path={},size=8M,hw_queue_depth=4", file(&folder, "a")),
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

    let folder = disk_folder();
    let path = file(&folder, "a");
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
        let name = "file::threads::where_io_uring_is_forbidden_threads_do_the_requests";
        let child = Command::new(this).args(["--exact", name, "--nocapture"]).env(FORBIDDEN, "1").output();
        let child = child.expect("it can be started");
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(said.contains("test result: ok. 1 passed"), "no other test has this name: {said}");
        return;
    }
    seccompiler::apply_filter_all_threads(&filter_of(libc::SYS_io_uring_setup)).expect("the kernel has filters");

    let folder = disk_folder();
    let path = file(&folder, "a");
    let told = RefCell::new(Vec::new());
    let tell = |text: &str| told.borrow_mut().push(text.to_owned());
    let spec = format!("file,path={path},size=1M,submit_queues=2");
    let driver = blkmq_drivers::open_for(&spec, &Opener { tell: &tell, ..Opener::SILENT }).expect("threads do it");
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
    let error = blkmq_drivers::open(&format!("file,path={},size=1M,engine=io_uring", file(&folder, "b")));
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
        let folder = folder(base);
        let q = queue(&format!("file,path={},size=1M", file(&folder, "a")), "mq-deadline", Locking::Combining);
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
        let folder = folder(base);
        let spec = format!("file,path={},size=1M,submit_queues=3", file(&folder, "a"));
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
