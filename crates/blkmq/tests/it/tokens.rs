//! Tokens: a scheduler takes one for each request that it chooses, and the completer puts it back.

use crate::device::shallow::Shallow;
use crate::device::{Drive, Recorder, join, read, reap, virtual_queue, write};
use blkmq::driver::Topology;
use blkmq::{Locking, RequestQueue, Status, Submitter};

/// The threads of the other hardware queues sleep, and a busy thread comes several times for each token: when it polls,
/// and when it passes its requests on. Red if the turn goes on with each visit, and not with what was given: then there
/// is a token only when it is the same hardware queues' turn, and the others get none.
#[test]
fn a_token_goes_round_however_often_a_thread_comes() {
    let lockings = [Locking::Single, Locking::Batch, Locking::Combining].into_iter();
    for (locking, nr_hctxs, polls) in lockings.flat_map(|locking| {
        (2..5).flat_map(move |nr_hctxs| (0..nr_hctxs + 1).map(move |polls| (locking, nr_hctxs, polls)))
    }) {
        let device = Recorder::with(Topology::new(nr_hctxs, 8));
        let builder = RequestQueue::builder(device.clone()).scheduler(Shallow::new(1));
        let q = builder.locking(locking).bypass(false).build().expect("the device is good");
        let mut busy = join(&q);
        let mut others: Vec<_> = (1..nr_hctxs).map(|_| join(&q)).collect();
        let refill = |busy: &mut Submitter| {
            while busy.nr_outstanding() < 4 {
                busy.submit(read(0, 8)).unwrap();
            }
            busy.flush_plug();
        };
        refill(&mut busy);
        for one in &mut others {
            one.submit_now(read(0, 8));
        }
        let mut seen = vec![false; nr_hctxs.into()];
        for _ in 0..8 * nr_hctxs {
            device.take_seen().iter().for_each(|got| seen[usize::from(got.hctx)] = true);
            device.finish_oldest(Status::Ok);
            reap(&mut busy);
            if device.nr_held() == 0 {
                // What is over belongs to another thread, which wakes up for it.
                others.iter_mut().for_each(|one| _ = reap(one));
            }
            refill(&mut busy);
            (0..polls).for_each(|_| _ = busy.poll());
        }
        others.push(busy);
        device.drain(&mut others.iter_mut().collect::<Vec<_>>());
        assert!(seen.iter().all(|seen| *seen), "{locking}, {polls} polls: {seen:?}");
    }
}

/// Red if what was counted under an earlier scheduler counts again.
#[test]
fn a_new_scheduler_begins_with_all_tokens_and_counts_anew() {
    let device = Recorder::of_depth(8);
    let (q, clock) = virtual_queue(device.clone(), |q| q.scheduler("kyber"));
    let mut submitter = join(&q);
    // Each round is one write of 0.2 ms and one read that takes no time.
    let mut rounds = |number: u32| {
        for _ in 0..number {
            for (bio, ns) in [(write(0, 8), 200_000), (read(0, 8), 0)] {
                submitter.submit_now(bio);
                clock.advance(ns);
                device.finish_oldest(Status::Ok);
                assert_eq!(reap(&mut submitter).len(), 1);
                device.take_seen();
            }
        }
        q.dump().lines().find_map(|line| line.strip_prefix("read_tokens: ").map(str::to_owned))
    };
    // Writes are slower than their target, so the device is congested, and reads lose their tokens.
    q.set_knob("iosched/write_lat_nsec", "100000").expect("it is there");
    assert_eq!(rounds(4000).as_deref(), Some("depth=1 busy=0"));
    for scheduler in ["none", "kyber"] {
        q.change_scheduler(scheduler).expect("it is known").wait().expect("nothing is in flight");
    }
    assert_eq!(rounds(1200).as_deref(), Some("depth=256 busy=0"));
}
