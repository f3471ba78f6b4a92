//! Hardware queues: their tags, their owners, polled ones, and how they come and go.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use blkmq::driver::{Batch, Done, Driver, Topology};
use blkmq::{Bio, Buffer, Flags, Limits, Locking, RequestQueue, Status, Time};
use blkmq_drivers::file::{Config, File};

use super::{SECTOR, bases, disk_folder, file, folder, queue};
use crate::common::{read, run, status_of, submitter};

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
    let folder = folder(bases()[0]);
    let config = Config { size: Some(1 << 20), depth: 1, ..Config::new(file(&folder, "disk.img")) };
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
    first.wait(1, None);
    assert_eq!(first.reap().expect("it is over").status, Status::Ok);
    // The other submitter would wait forever for a request that its driver lost.
    let [_, second] = submitters;
    std::mem::forget(second);
}

/// Red if a request that one thread chooses for another thread's ring is not issued by that other thread, which may
/// sleep meanwhile.
#[test]
fn threads_that_own_their_rings_get_everything_back() {
    const EACH: u64 = 2000;
    for base in bases() {
        let folder = folder(base);
        let path = file(&folder, "file");
        for locking in Locking::ALL {
            let q = queue(&format!("file,path={path},size=4M,submit_queues=3,owned=1"), "mq-deadline", locking);
            let owners: Vec<_> = (0..3_u64)
                .map(|number| {
                    let q = q.clone();
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
            assert_eq!((q.busy_tags(), q.counters().completed), (0, 3 * EACH / 16 * 16));
            let error = q.start_threads(1).map(drop).expect_err("they would poll for an owner");
            assert!(error.to_string().contains("polled by the submitter that owns it"), "{error}");
        }
    }
}

/// Red if a thread that waits does not poll, because then it waits forever; if a flush goes to the ring that polls,
/// which cannot do flushes; or if requests fail because the disk does not poll. A file that is one hole can be polled
/// on any disk that does not deny it, because a hole is read without the disk. Once there is data, polling depends on
/// the disk.
#[test]
fn polled_hardware_queues_poll_where_the_disk_does() {
    let folder = disk_folder();
    let spec = format!("file,path={},size=8M,poll_queues=1,hw_queue_depth=16", file(&folder, "a"));
    let q = queue(&spec, "none", Locking::Single);
    let mut submitter = submitter(&q);
    let polled = Flags { polled: true, ..Flags::default() };
    let has_polled = q.dump().contains("\nhctx 1: polls\n");
    let reads = (0..200).map(|number| Bio::read(number * 8, Buffer::from(&[1; 4096][..])).with_flags(polled));
    for done in run(&mut submitter, reads) {
        assert_eq!(done.status, Status::Ok);
        assert!(done.bio.buffers.iter().all(|data| data.iter().all(|byte| *byte == 0)), "it is a hole");
    }
    if has_polled && !q.dump().contains("\nhctx 1: polls\n") {
        println!("SKIP: the file system of {} knows no polling at all", folder.path().display());
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
        println!("SKIP: the disk of {} does not poll, so only its way round that was seen", folder.path().display());
    } else {
        assert!(q.dump().contains("\nhctx 1: polls\n"), "{}", q.dump());
    }
    assert_eq!(q.busy_tags(), 0);
}

/// Red if a hardware queue that is added while I/O runs gets no ring of its own, or if one that is polled in one
/// topology and not in another does not work in both.
#[test]
fn hardware_queues_come_and_go() {
    let folder = disk_folder();
    for (scheduler, locking, polled) in [("mq-deadline", Locking::Combining, false), ("none", Locking::Single, true)] {
        let q = queue(&format!("file,path={},size=1M", file(&folder, scheduler)), scheduler, locking);
        let mut submitters = [(); 3].map(|()| submitter(&q));
        for (byte, (default_queues, poll_queues)) in (1..).zip([(1, 0), (3, 0), (1, 1), (2, 0), (1, 2), (1, 0)]) {
            let topology = Topology { default_queues, poll_queues, ..q.driver().topology() };
            q.change_topology(topology).expect("it is possible").wait().expect("nothing is in flight");
            assert_eq!(q.driver().topology().poll_queues, 0, "as it was opened");
            let is_polled = |line: &&str| line.ends_with(": polls") || line.contains("does not poll");
            assert_eq!(q.dump().lines().filter(is_polled).count(), usize::from(poll_queues));
            for (number, submitter) in submitters.iter_mut().enumerate() {
                let sector = number as u64 * 8;
                let write = Bio::write(sector, Buffer::from(&[byte; 4096][..]));
                let write = write.with_flags(Flags { polled, ..Flags::default() });
                assert_eq!(status_of(submitter, write), Status::Ok, "{scheduler}");
                assert_eq!(read(submitter, sector, 4096), vec![byte; 4096], "{scheduler}");
            }
        }
    }
}
