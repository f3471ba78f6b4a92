//! Small worlds in which a thread claims more tokens than it gives out, because there are fewer tags for its requests
//! that pass. What it claimed in vain another thread lacks meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use blkmq_vcpu::thread;
use blkmq_virtual::driver::spec::open;
use blkmq_virtual::{Bio, Client, Locking, RequestQueue};

use crate::schedules::{SOON_NS, Turns, returned};

/// A device that takes a second for each request. Each of its two hardware queues has a scheduler, and fewer tags than
/// there are tokens for other requests than reads, writes and discards.
const DEVICE: &str = "null,size=1M,poll_queues=0,irqmode=2,completion_nsec=1000000000,submit_queues=2,hw_queue_depth=15,\
                      memory_backed=1";

/// A thread passes a plug on that wants all tokens, and another thread, which works with another hardware queue,
/// submits when the first one has made so many steps. Returns when the other thread's request was issued, and how many
/// requests bypassed the scheduler.
fn other_beside_a_claim(steps: u32, locking: Locking) -> (u64, u64) {
    let is_on = Arc::new(AtomicBool::new(false));
    let turns = vec![(1, steps), (2, 3000), (1, 3000)];
    let schedule = Box::new(Turns { is_on: Arc::clone(&is_on), turns, at: 0 });
    returned(format_args!("{locking}, {steps} steps"), schedule, move || {
        let device = open(DEVICE).expect("the device is good");
        let builder = RequestQueue::builder(device).scheduler("kyber").locking(locking).bypass(true);
        let q = builder.build().expect("the queue is good");
        let [mut claimer, mut other] = [0..16, 50..51].map(|places| {
            let mut submitter = q.submitter(&Client::new("test")).expect("there is a place");
            places.for_each(|at| _ = submitter.submit(Bio::write_zeroes(at * 16, 1)).expect("there are slots"));
            submitter
        });
        let claimer = thread::spawn(move || {
            claimer.flush_plug();
            claimer
        });
        let other = thread::spawn(move || {
            while !other.wait(1, None).is_ready() {}
            other.reap().expect("it is over").issued.0
        });
        is_on.store(true, Ordering::Relaxed);
        let issued = other.join().expect("no panic");
        let passed = q.counters().bypassed;
        drop(claimer.join().expect("no panic"));
        (issued, passed)
    })
}

/// Red under `combining` if the body of `Dispatcher::note_taken_in_vain` is emptied: the other thread's request is then
/// forgotten until a thread looks for requests that are overdue.
#[test]
fn what_was_claimed_in_vain_is_found_by_who_lacked_it() {
    // `staged` orders a whole queue.
    for locking in [Locking::Single, Locking::Batch, Locking::Combining] {
        let others: Vec<_> = (1..100).map(|steps| other_beside_a_claim(steps, locking)).collect();
        let late = others.iter().position(|(issued, _)| *issued > SOON_NS / 2);
        assert_eq!(late, None, "{locking}");
        let lacked = others.iter().filter(|(_, passed)| *passed < others[0].1).count();
        assert!((1..99).contains(&lacked), "the test cannot fail: {locking}, {lacked}");
    }
}
