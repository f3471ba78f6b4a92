//! The device models on real time, with several threads.

use crate::device::{Drive, open};
use blkmq::{Bio, Buffer, Buffers, Client, Op, RequestQueue};

/// Writes and reads back areas that belong to one thread, with eight operations outstanding, flushing now and then.
fn work(q: &RequestQueue, thread: u64) {
    let mut submitter = q.submitter(&Client::new("worker")).expect("there is room for a few");
    let sector = |number: u64| (number % 50 * 4 + thread) * 8;
    let content = |number: u64| [(number % 50 + 50 * thread) as u8; 4096];
    for op in [Op::Write, Op::Flush, Op::Read] {
        let (mut next, mut over) = (0, 0);
        while over < 50 {
            while next < 50 && submitter.nr_outstanding() < 8 {
                let bio = match op {
                    Op::Write => Bio::write(sector(next), Buffer::from(&content(next)[..])),
                    Op::Read => Bio::read(sector(next), Buffer::zeroed(4096)),
                    _ => Bio::flush(),
                };
                submitter.submit_now(bio.with_user_data(next));
                next += 1;
            }
            assert!(submitter.wait(1, None).is_ready(), "everything comes back");
            while let Some(done) = submitter.reap() {
                assert!(done.status.is_ok(), "{:?}", done.bio);
                over += 1;
                if let (Op::Read, Buffers::One(buffer)) = (op, &done.bio.buffers) {
                    assert!(buffer[..] == content(done.bio.user_data), "{:?}", done.bio);
                }
            }
        }
    }
}

/// Red (hangs) if a model that has requests names no time of its next event. The threads wait for each other's requests
/// and for the models' times.
#[test]
fn the_models_serve_several_threads_on_real_time() {
    for device in [
        "hdd,memory_backed=1,rpm=60000,seek_track=0,seek_average=0,seek_full=0",
        "hdd,memory_backed=1,rpm=60000,seek_track=0,seek_average=0,seek_full=0,write_cache=0,hw_queue_depth=2",
        "ssd,memory_backed=1",
        "ssd,memory_backed=1,submit_queues=2,hw_queue_depth=2",
        "cloud,memory_backed=1",
        "cloud,memory_backed=1,submit_queues=2,hw_queue_depth=2,iops=20000,burst=0,hold=1ms",
    ] {
        for scheduler in blkmq::scheduler_names() {
            let q =
                RequestQueue::builder(open(device)).scheduler(scheduler).build().expect("the device can have a queue");
            std::thread::scope(|scope| {
                for thread in 0..3 {
                    scope.spawn({
                        let q = &q;
                        move || work(q, thread)
                    });
                }
            });
            assert_eq!(q.busy_tags(), 0, "{device} {scheduler}");
        }
    }
}
