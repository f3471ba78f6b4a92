//! What one thread leaves behind, another thread finds.

use crate::common::random::{Random, operations, seed};
use crate::common::rounds::rounds;
use crate::common::ways::every;
use crate::common::{assert_balanced, queue};
use crate::device::{Drive, open};
use blkmq::{Bio, Buffer, Client, Flags, RequestQueue, Submitter};

/// Polls more often than necessary, and returns whether everything came back.
fn finishes(mut submitter: Submitter) -> bool {
    for _ in 0..100 {
        submitter.poll();
        while submitter.reap().is_some() {}
    }
    let is_done = submitter.nr_outstanding() == 0;
    if !is_done {
        // Dropping the submitter would wait forever.
        std::mem::forget(submitter);
    }
    is_done
}

/// In each round every one of four threads submits its operation and sleeps until it is over.
fn sleepers(q: &RequestQueue, nr_rounds: u64, random: &mut Random, bio: impl Fn(u64) -> Bio + Sync) {
    let submit = |thread, submitter: &mut Submitter| _ = submitter.submit(bio(thread)).expect("there is a slot");
    rounds(q, 4, nr_rounds, random, |_| (), submit);
    assert_balanced(q);
}

/// Red if a thread that stops after its share does not say that it left a flush step, which became ready by what it
/// completed. That thread has nothing outstanding, so it need not come again, and the thread that waits for the step
/// finds nothing to do.
#[test]
fn a_flush_step_goes_on_although_the_thread_that_made_it_ready_has_done_its_share() {
    // The driver refuses the flush at first. So the other thread issues the flush together with as many requests as its
    // share.
    let q = queue("null,irqmode=0,memory_backed=1,cache_size=1,fua=0,hw_queue_depth=128,requeue=1,100,0,1", "none");
    let mut waiting = q.submitter(&Client::new("waiting")).unwrap();
    let mut busy = q.submitter(&Client::new("busy")).unwrap();
    let flags = Flags { preflush: true, ..Flags::default() };
    waiting.submit_now(Bio::write(0, Buffer::zeroed(512)).with_flags(flags));
    let quiesce = q.quiesce();
    for number in 0..64 {
        busy.submit(Bio::read(8000 + number * 80, Buffer::zeroed(512))).unwrap();
    }
    busy.flush_plug();
    drop(quiesce);
    busy.poll();
    assert_eq!(std::iter::from_fn(|| busy.reap()).count(), 64);
    assert!(finishes(waiting), "{}", q.dump());
    assert_balanced(&q);
}

/// Red (hangs) if a sleeper is not woken when there is room again. In each round every thread submits a little and
/// sleeps, with room for fewer requests than there are threads.
#[test]
fn sleepers_go_on_when_there_is_room() {
    let mut random = Random(seed());
    let devices = [("irqmode=1", 1), ("irqmode=0", 1), ("irqmode=0", 2), ("irqmode=0,submit_queues=2", 1)];
    for (way, (device, nr_requests)) in every().flat_map(|way| devices.map(|device| (way, device))) {
        let device = open(&format!("null,hw_queue_depth=4,poll_queues=0,{device}"));
        let q = way.builder(device).io_timeout_ms(u32::MAX).nr_requests(nr_requests).build().unwrap();
        sleepers(&q, operations(500), &mut random, |thread| Bio::write(thread * 80, Buffer::zeroed(512)));
    }
}

/// Red (hangs) if the thread that drains an issue list does not look again after unlocking. In these rounds issuing
/// takes long, so threads often find that another thread drains the list, and leave their requests there.
#[test]
fn sleepers_go_on_when_another_thread_issues_for_them() {
    let mut random = Random(seed());
    for scheduler in blkmq::scheduler_names() {
        let q = queue("null,irqmode=0,memory_backed=1,size=64M,poll_queues=0", scheduler);
        sleepers(&q, operations(2_000), &mut random, |thread| Bio::write(thread * 800, Buffer::zeroed(64 << 10)));
    }
}

/// Red (hangs) if a request that finds no tag does not say that it waits, or if a thread that completes or starts
/// another thread's request does not wake that thread. In these rounds there are fewer tags than threads. A model,
/// `loom::restart`, tests the second look at the tags.
#[test]
fn sleepers_go_on_when_there_is_a_tag() {
    let mut random = Random(seed());
    for scheduler in blkmq::scheduler_names() {
        for device in ["irqmode=1", "irqmode=0", "irqmode=0,memory_backed=1", "irqmode=0,submit_queues=2"] {
            let q = queue(&format!("null,hw_queue_depth=1,poll_queues=0,{device}"), scheduler);
            sleepers(&q, operations(4_000), &mut random, |thread| Bio::write(thread * 80, Buffer::zeroed(512)));
        }
    }
}
