//! What was handed through the scheduler counts as if it had been inserted and chosen.

use std::collections::VecDeque;

use blkmq::driver::spec;
use blkmq::{Bio, Buffer, Client, Locking, RequestQueue, Submitter};

/// Submits all in one batch, and waits for it with a bound, so that what is held back for ever fails instead of hanging.
fn pass(submitter: &mut Submitter, bios: &mut VecDeque<Bio>) -> usize {
    let expected = bios.len();
    let (_, rejected) = submitter.submit_batch(bios);
    assert!(rejected.is_none(), "{rejected:?}");
    let mut over = 0;
    for _ in 0..10_000 {
        submitter.poll();
        over += submitter.reap_all(|completion| assert!(completion.status.is_ok()));
        if over == expected {
            break;
        }
    }
    over
}

fn writes(number: u64) -> VecDeque<Bio> {
    (0..number).rev().map(|place| Bio::write(place * 64, Buffer::zeroed(4096))).collect()
}

/// Red when writes that were handed through are not counted among those that entered the scheduler: they are counted when they
/// complete, so more would have completed than entered, and no write would ever find room below `async_depth`.
#[test]
fn writes_that_were_handed_through_leave_room_below_async_depth() {
    let device = spec::open("null,irqmode=0,poll_queues=0").unwrap();
    let q = RequestQueue::builder(device).scheduler("mq-deadline").locking(Locking::Combining).bypass(false);
    let q = q.build().unwrap();
    let mut submitter = q.submitter(&Client::new("writer")).unwrap();
    for _ in 0..10 {
        assert_eq!(pass(&mut submitter, &mut writes(8)), 8);
    }
    q.set_knob("iosched/async_depth", "2").unwrap().wait().unwrap();
    let over = pass(&mut submitter, &mut writes(8));
    if over < 8 {
        // It would wait for them when it is dropped.
        std::mem::forget(submitter);
    }
    assert_eq!(over, 8, "the others find no room");
    assert_eq!(q.stats().issued, 88, "none of these merge");
}
