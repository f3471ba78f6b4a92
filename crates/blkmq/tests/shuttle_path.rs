//! The whole way of a request in random interleavings: `RUSTFLAGS="--cfg shuttle"`. Nothing is lost, nothing is
//! doubled, and no thread sleeps for ever: here a sleep that only a far-off time would end is a deadlock.
#![cfg(shuttle)]

use std::panic::catch_unwind;

use blkmq::driver::spec;
use blkmq::{Bio, Buffer, Client, Flags, Locking, RequestQueue, Status, Submitter};
use blkmq_sync::{Arc, thread, weaken};

const SUBMITTERS: u64 = 3;
const EACH: u64 = 4;

/// Drives the submitter until nothing is outstanding. Returns what came back, as a bit for each operation.
fn finish(submitter: &mut Submitter, waits: bool) -> u64 {
    let mut seen = 0;
    while submitter.nr_outstanding() > 0 {
        if waits {
            submitter.wait();
        } else if !submitter.poll() {
            thread::yield_now();
        }
        while let Some(completion) = submitter.reap() {
            assert_eq!(completion.status, Status::Ok);
            let bit = 1 << completion.bio.user_data;
            assert_eq!(seen & bit, 0, "operation {} completed twice", completion.bio.user_data);
            seen |= bit;
        }
    }
    seen
}

fn bio(number: u64, at: u64) -> Bio {
    let sector = (number * EACH + at) * 80;
    let fua = Flags { fua: at == 1, preflush: at == 1, ..Flags::default() };
    let bio = match at {
        3 => Bio::flush(),
        _ => Bio::write(sector, Buffer::zeroed(512)).with_flags(fua),
    };
    bio.with_user_data(at)
}

fn everything_completes(device: &str, scheduler: &str, waits: bool) {
    let driver = spec::open(device).expect("the spec is good");
    let q = RequestQueue::builder(driver).scheduler(scheduler).slots(8).build().expect("the queue is good");
    everything_completes_on(&q, waits);
}

/// Several submitters share the device. Checks that each gets back its own operations.
fn everything_completes_on(q: &Arc<RequestQueue>, waits: bool) {
    let threads: Vec<_> = (0..SUBMITTERS)
        .map(|number| {
            let q = Arc::clone(q);
            thread::spawn(move || {
                let mut submitter = q.submitter(&Client::new("test")).expect("there is a place");
                for at in 0..EACH {
                    submitter.submit(bio(number, at)).expect("there is a slot");
                    if at % 2 == 1 {
                        submitter.flush_plug();
                    }
                }
                assert_eq!(finish(&mut submitter, waits), (1 << EACH) - 1);
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("the thread did not panic"));
    let stats = q.stats();
    assert_eq!((q.in_flight(), stats.entered), (0, stats.completed));
}

const DEVICES: [&str; 4] = [
    "null,irqmode=0,hw_queue_depth=1,poll_queues=0",
    "null,irqmode=1,hw_queue_depth=2,poll_queues=0",
    "null,irqmode=1,hw_queue_depth=1,submit_queues=2,poll_queues=0",
    "null,irqmode=1,hw_queue_depth=2,poll_queues=0,memory_backed=1,size=1M,cache_size=1,fua=0",
];

const CACHED: [&str; 3] = [
    "null,irqmode=0,hw_queue_depth=1,poll_queues=0,memory_backed=1,size=1M,cache_size=1,fua=0",
    "null,irqmode=0,hw_queue_depth=1,submit_queues=2,poll_queues=0,memory_backed=1,size=1M,cache_size=1,fua=0",
    "null,irqmode=1,hw_queue_depth=1,submit_queues=2,poll_queues=0,memory_backed=1,size=1M,cache_size=1,fua=0",
];

fn seed() -> u64 {
    let seed = std::env::var("BLKMQ_SEED").map_or(0x5eed_b10c, |seed| seed.parse().expect("BLKMQ_SEED is a number"));
    println!("BLKMQ_SEED={seed}");
    seed
}

fn explore(iterations: usize, run: impl Fn() + Send + Sync + 'static) {
    shuttle::check_random_with_seed(run, seed(), iterations);
}

/// Explores long delays of single threads, which random interleavings hardly ever have.
fn explore_delays(iterations: usize, run: impl Fn() + Send + Sync + 'static) {
    let scheduler = shuttle::scheduler::PctScheduler::new_from_seed(seed(), 3, iterations);
    shuttle::Runner::new(scheduler, shuttle::Config::new()).run(run);
}

#[test]
fn everybody_who_polls_gets_everything_back() {
    for scheduler in ["none", "mq-deadline", "kyber"] {
        for device in DEVICES {
            explore(600, move || everything_completes(device, scheduler, false));
        }
    }
}

#[test]
fn everybody_who_waits_is_woken() {
    for scheduler in ["none", "mq-deadline", "kyber"] {
        for device in DEVICES {
            explore(600, move || everything_completes(device, scheduler, true));
        }
    }
}

/// Red if a thread spins while another thread is held up between two steps.
#[test]
fn a_thread_that_is_held_up_holds_up_nobody() {
    for scheduler in ["none", "mq-deadline", "kyber"] {
        for device in DEVICES.into_iter().chain(CACHED) {
            explore_delays(4000, move || everything_completes(device, scheduler, true));
        }
    }
}

/// Red if a thread that holds a tag without using it does not wake a thread that found no room meanwhile: with one
/// place for all, the tag took that thread's room for a moment.
#[test]
fn who_waits_for_the_only_place_is_woken() {
    for device in [
        "null,irqmode=0,hw_queue_depth=4,poll_queues=0",
        "null,irqmode=1,hw_queue_depth=4,poll_queues=0",
        "null,irqmode=1,hw_queue_depth=2,poll_queues=0,memory_backed=1,size=1M,cache_size=1,fua=0",
    ] {
        explore_delays(4000, move || {
            let driver = spec::open(device).expect("the spec is good");
            let q = RequestQueue::builder(driver).scheduler("mq-deadline").slots(8).build().expect("the queue is good");
            q.change_nr_requests(1).expect("it is in range").wait().expect("nothing is in flight");
            everything_completes_on(&q, true);
        });
    }
}

/// Red if nothing is lost without one of these second looks, each of which finds a request or a completion that came in
/// between. The second look at the tags is not among them, because a poll dispatches again before it sleeps; the model
/// `loom_restart` shows it. The locking has one lock for each step, because there threads meet more often than where
/// one thread works for all.
#[test]
fn without_a_last_look_somebody_sleeps_for_ever() {
    for (site, device, scheduler) in [
        ("handover.look", DEVICES[1], "none"),
        ("handover.look", DEVICES[3], "mq-deadline"),
        ("wake.last_look", DEVICES[0], "none"),
        ("wake.last_look", DEVICES[2], "mq-deadline"),
    ] {
        weaken(Some(site));
        let run = move || {
            let driver = spec::open(device).expect("the spec is good");
            let builder = RequestQueue::builder(driver).scheduler(scheduler).locking(Locking::Single).slots(8);
            everything_completes_on(&builder.build().expect("the queue is good"), true);
        };
        let outcome = catch_unwind(|| explore(3000, run));
        weaken(None);
        assert!(outcome.is_err(), "nothing was lost without {site} on {device}");
    }
}
