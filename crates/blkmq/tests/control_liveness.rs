//! What one thread leaves behind another finds.

mod common;

use blkmq::{Bio, Buffer, Client, Flags, Submitter};
use common::random::{Random, operations, seed};
use common::rounds::rounds;
use common::{assert_balanced, queue};

/// Polls as often as is far more than enough, and returns whether everything came back.
fn finishes(mut submitter: Submitter) -> bool {
    for _ in 0..100 {
        submitter.poll();
        while submitter.reap().is_some() {}
    }
    let is_done = submitter.nr_outstanding() == 0;
    if !is_done {
        // Dropping it would wait for ever.
        std::mem::forget(submitter);
    }
    is_done
}

/// A thread stops after its share though what it completed made a flush step ready. Red if it does not leave word of it:
/// that thread has nothing outstanding, so it need not come again, and who waits for the step finds nothing to do.
#[test]
fn a_flush_step_goes_on_although_the_thread_that_made_it_ready_has_done_its_share() {
    // The driver refuses the flush at first, so that the other thread issues it beside as much as its share.
    let q = queue("null,irqmode=0,memory_backed=1,cache_size=1,fua=0,hw_queue_depth=128,requeue=1,100,0,1", "none");
    let mut waiting = q.submitter(&Client::new("waiting")).unwrap();
    let mut busy = q.submitter(&Client::new("busy")).unwrap();
    let flags = Flags { preflush: true, ..Flags::default() };
    waiting.submit(Bio::write(0, Buffer::zeroed(512)).with_flags(flags)).unwrap();
    waiting.flush_plug();
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

/// Rounds in which every thread submits a little and sleeps, with room for fewer requests than there are threads. Red if
/// those who found no room are not woken when there is.
#[test]
fn sleepers_go_on_when_there_is_room() {
    let mut random = Random::new(seed());
    for (device, nr_requests) in
        [("irqmode=1", 1), ("irqmode=0", 1), ("irqmode=0", 2), ("irqmode=0,submit_queues=2", 1)]
    {
        let q = queue(&format!("null,hw_queue_depth=4,poll_queues=0,{device}"), "mq-deadline");
        q.set_nr_requests(nr_requests).unwrap().wait().unwrap();
        rounds(
            &q,
            4,
            operations(4_000),
            &mut random,
            |_| (),
            |thread, submitter| {
                submitter.submit(Bio::write(thread * 80, Buffer::zeroed(512))).unwrap();
            },
        );
        assert_balanced(&q);
    }
}

/// Rounds in which there are fewer tags than threads. Red if who lacks a tag does not look again once it has said so, or
/// if who brings a tag back does not look whether somebody lacks one.
#[test]
fn sleepers_go_on_when_there_is_a_tag() {
    let mut random = Random::new(seed());
    for scheduler in ["none", "mq-deadline"] {
        for device in ["irqmode=1", "irqmode=0", "irqmode=0,memory_backed=1", "irqmode=0,submit_queues=2"] {
            let q = queue(&format!("null,hw_queue_depth=1,poll_queues=0,{device}"), scheduler);
            rounds(
                &q,
                4,
                operations(4_000),
                &mut random,
                |_| (),
                |thread, submitter| {
                    submitter.submit(Bio::write(thread * 80, Buffer::zeroed(512))).unwrap();
                },
            );
            assert_balanced(&q);
        }
    }
}
