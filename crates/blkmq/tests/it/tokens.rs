//! Tokens: a scheduler takes one for each request that it chooses, and the completer puts it back.

use std::sync::Arc;

use crate::device::shallow::Shallow;
use crate::device::{Drive, Recorder, join, read, reap, virtual_queue, write};
use blkmq::driver::Topology;
use blkmq::{Client, Locking, RequestQueue, Status, Submitter};

const LOCKINGS: [Locking; 3] = [Locking::Single, Locking::Batch, Locking::Combining];

fn device(default_queues: u16) -> Arc<Recorder> {
    let topology = Topology { default_queues, read_queues: 0, poll_queues: 0, depth: 8 };
    Recorder::with(topology)
}

/// A queue whose device may have so many reads, and so many writes, at once.
fn queue(device: &Arc<Recorder>, most: u32, locking: Locking, bypass: bool) -> RequestQueue {
    let builder = RequestQueue::builder(device.clone()).scheduler(Shallow::new(most));
    builder.locking(locking).bypass(bypass).build().expect("the device is good")
}

fn submitters<const N: usize>(q: &RequestQueue) -> [Submitter; N] {
    std::array::from_fn(|_| join(q))
}

/// The line of a dump that tells of the tokens of a kind.
fn tokens(q: &RequestQueue, kind: &str) -> String {
    let dump = q.dump();
    let line = dump.lines().find_map(|line| line.strip_prefix(&format!("{kind}_tokens: ")));
    line.unwrap_or_else(|| panic!("no {kind} in {dump}")).to_owned()
}

/// Red if a request is chosen or passes without a token, if a kind takes another kind's tokens, or if one hardware
/// queue has tokens of its own.
#[test]
fn no_more_of_a_kind_are_in_the_device_than_there_are_tokens() {
    for (locking, bypass) in LOCKINGS.into_iter().flat_map(|locking| [(locking, false), (locking, true)]) {
        let device = device(2);
        let q = queue(&device, 3, locking, bypass);
        let mut both = submitters::<2>(&q);
        for one in &mut both {
            (0..4).for_each(|sector| _ = one.submit(read(sector * 100, 8)).unwrap());
            (0..2).for_each(|sector| _ = one.submit(write(sector * 100, 8)).unwrap());
            one.flush_plug();
        }
        let depths = ["depth=1 busy=1", "depth=2 busy=2"].map(str::to_owned);
        let (reads, writes) = (tokens(&q, "read"), tokens(&q, "write"));
        assert!(depths.contains(&reads) && depths.contains(&writes), "{locking} {bypass}: {reads} {writes}");
        let busy: usize = [reads, writes].iter().map(|line| line[line.len() - 1..].parse::<usize>().unwrap()).sum();
        assert_eq!(device.nr_held(), busy, "{locking} {bypass}");
        device.drain(&mut both.each_mut());
        assert_eq!(q.counters().completed, 12);
        q.change_scheduler("none").unwrap().wait().unwrap();
    }
}

/// The threads of the other hardware queues sleep, and a busy thread comes several times for each token: when it polls,
/// and when it passes its requests on. Red if the turn goes on with each visit, and not with what was given: then there
/// is a token only when it is the same hardware queues' turn, and the others get none.
#[test]
fn a_token_goes_round_however_often_a_thread_comes() {
    for (locking, nr_hctxs, polls) in LOCKINGS.into_iter().flat_map(|locking| {
        (2..5).flat_map(move |nr_hctxs| (0..nr_hctxs + 1).map(move |polls| (locking, nr_hctxs, polls)))
    }) {
        let device = device(nr_hctxs);
        let q = queue(&device, 1, locking, false);
        let mut busy = q.submitter(&Client::new("busy")).unwrap();
        let mut others: Vec<_> = (1..nr_hctxs).map(|_| q.submitter(&Client::new("other")).unwrap()).collect();
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

/// Red if the depth does not follow the latencies, follows the wrong ones, or changes before the fold or without it; if
/// the knobs do not reach the control; or if what was counted under an earlier scheduler counts again.
#[test]
fn the_depth_of_a_pool_follows_what_completions_take() {
    for bypass in [false, true] {
        let device = device(2);
        let (q, clock) = virtual_queue(device.clone(), |q| q.scheduler("kyber").bypass(bypass));
        let [mut one] = submitters::<1>(&q);
        // Each round is one write of 0.2 ms and one read that takes no time. A percentile is taken of 500 of a kind.
        let mut rounds = |q: &RequestQueue, number: u32| {
            for _ in 0..number {
                for (bio, ns) in [(write(0, 8), 200_000), (read(0, 8), 0)] {
                    one.submit_now(bio);
                    clock.advance(ns);
                    device.finish_oldest(Status::Ok);
                    assert_eq!(reap(&mut one).len(), 1);
                    device.take_seen();
                }
            }
            ["read", "write"].map(|kind| tokens(q, kind))
        };
        let depths = |reads: u32, writes: u32| [reads, writes].map(|depth| format!("depth={depth} busy=0"));
        assert_eq!(q.knob("iosched/read_lat_nsec"), Ok("2000000".to_owned()));
        // Both are well within their targets, and nothing changes.
        assert_eq!(rounds(&q, 1200), depths(256, 128));
        // Writes are slower than their target now, so the device is congested. Reads lose three quarters of their
        // tokens with each fold, 0.1 s apart. Writes get more, and have all of theirs already.
        q.set_knob("iosched/write_lat_nsec", "100000").unwrap();
        let mut steps: Vec<_> = (0..20).map(|_| rounds(&q, 200)).collect();
        steps.dedup();
        assert_eq!(steps, [256, 64, 16, 4, 1].map(|reads| depths(reads, 128)));
        q.set_knob("iosched/write_lat_nsec", "1000000").unwrap();
        assert_eq!(rounds(&q, 1200), depths(1, 128));
        // A new scheduler begins with all tokens, and knows nothing of what was counted before.
        q.change_scheduler("none").unwrap().wait().unwrap();
        q.change_scheduler("kyber").unwrap().wait().unwrap();
        assert_eq!(q.knob("iosched/write_lat_nsec"), Ok("10000000".to_owned()));
        assert_eq!(rounds(&q, 1200), depths(256, 128));
        let error = q.set_knob("iosched/read_lat_nsec", "-1").unwrap_err().to_string();
        assert!(error.starts_with("read_lat_nsec: -1 is not within 0.."), "{error}");
        let error = q.set_knob("iosched/fifo_batch", "1").unwrap_err().to_string();
        let known = "wbt_lat_usec, iosched/read_lat_nsec, iosched/write_lat_nsec";
        let owner = "'iosched/fifo_batch' belongs to mq-deadline, and the scheduler is kyber";
        assert!(error.ends_with(&format!("{known}; {owner}")), "{error}");
    }
}
