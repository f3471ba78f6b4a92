//! Small worlds in which a thread claims more tags or tokens than it gives out, because its run of requests that pass
//! ends before its plug does. What it claimed in vain another thread lacks meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use blkmq_vcpu::{Ended, thread};
use blkmq_virtual::driver::spec::open;
use blkmq_virtual::{Bio, Buffer, Client, Locking, RequestQueue};

use crate::schedules::{SOON_NS, Turns, plays};

/// What a thread claims too much of, in a queue whose hardware queues have a scheduler each.
#[derive(Debug, Clone, Copy)]
enum Claimed {
    /// Both tags of the hardware queue for reads, for a read with a write behind it. The scheduler has no room for the
    /// other thread's read then.
    Tags,
    /// All tokens of a kind, for as many requests of that kind but one, with a read behind them. The other thread works
    /// with another hardware queue.
    Tokens,
}

impl Claimed {
    const ALL: [Self; 2] = [Self::Tags, Self::Tokens];

    /// A device that takes a second for each request.
    fn device(self) -> String {
        let more = match self {
            Self::Tags => "read_queues=1",
            Self::Tokens => "submit_queues=2,memory_backed=1",
        };
        format!("null,size=1M,poll_queues=0,irqmode=2,completion_nsec=1000000000,{more}")
    }

    /// The plug of the thread that claims, and that of the other thread.
    fn plugs(self) -> [Vec<Bio>; 2] {
        let read = |sector| Bio::read(sector, Buffer::zeroed(512));
        match self {
            Self::Tags => [vec![read(0), Bio::write(100, Buffer::zeroed(512))], vec![read(200)]],
            Self::Tokens => {
                let zeroes = |at: u64| Bio::write_zeroes(at * 16, 1);
                [(0..15).map(zeroes).chain([read(1000)]).collect(), vec![zeroes(50)]]
            }
        }
    }
}

/// A thread passes its plug on, and another thread submits when the first one has made so many steps. Returns when the
/// other thread's request was issued, and how many requests passed the scheduler by.
fn other_beside_a_claim(steps: u32, locking: Locking, claimed: Claimed) -> (u64, u64) {
    let is_on = Arc::new(AtomicBool::new(false));
    let turns = vec![(1, steps), (2, 3000), (1, 3000)];
    let schedule = Box::new(Turns { is_on: Arc::clone(&is_on), turns, at: 0 });
    let (tell, told) = std::sync::mpsc::channel();
    let ended = plays(schedule, move || {
        let device = open(&claimed.device()).expect("the device is good");
        let builder = RequestQueue::builder(device).scheduler("kyber").locking(locking).bypass(true);
        let q = builder.build().expect("the queue is good");
        if let Claimed::Tags = claimed {
            q.change_knob("nr_requests", "2").expect("there is such a knob").wait().expect("the number is good");
        }
        let [mut claimer, mut other] = claimed.plugs().map(|bios| {
            let mut submitter = q.submitter(&Client::new("test")).expect("there is a place");
            bios.into_iter().for_each(|bio| _ = submitter.submit(bio).expect("there are slots"));
            submitter
        });
        let claimer = thread::spawn(move || {
            claimer.flush_plug();
            claimer
        });
        let other = thread::spawn(move || {
            while !other.wait() {}
            other.reap().expect("it is over").issued.0
        });
        is_on.store(true, Ordering::Relaxed);
        let issued = other.join().expect("no panic");
        let passed = q.stats().bypassed;
        drop(claimer.join().expect("no panic"));
        tell.send((issued, passed)).expect("the test listens");
    });
    assert_eq!(ended, Ended::Finished, "{locking}, {claimed:?}, {steps} steps");
    told.recv().expect("the world was told of")
}

/// Red if the body of `Dispatcher::note_taken_in_vain` is emptied, or if it says under `single` and `batch` that there
/// is no news, or under `combining` that nothing waits in another domain. The other thread's request is then forgotten
/// until a thread looks for requests that are overdue.
#[test]
fn what_was_claimed_in_vain_is_found_by_who_lacked_it() {
    // `staged` orders a whole queue.
    for locking in [Locking::Single, Locking::Batch, Locking::Combining] {
        for claimed in Claimed::ALL {
            let others: Vec<_> = (1..100).map(|steps| other_beside_a_claim(steps, locking, claimed)).collect();
            let late = others.iter().position(|(issued, _)| *issued > SOON_NS / 2);
            assert_eq!(late, None, "{locking}, {claimed:?}");
            let lacked = others.iter().filter(|(_, passed)| *passed < others[0].1).count();
            assert!((1..99).contains(&lacked), "the test cannot fail: {locking}, {claimed:?}, {lacked}");
        }
    }
}
