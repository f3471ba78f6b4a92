//! Tokens: a scheduler takes one for each request that it chooses, and the completer puts it back.

use std::sync::Arc;

use crate::device::shallow::Shallow;
use crate::device::{Recorder, read, reap, write};
use blkmq::driver::{Topology, spec};
use blkmq::{Bio, Buffer, Client, Clock, Limits, Locking, RequestQueue, Status, Submitter, VirtualClock};

const LOCKINGS: [Locking; 3] = [Locking::Single, Locking::Batch, Locking::Combining];

fn device(default_queues: u16) -> Arc<Recorder> {
    let topology = Topology::new(default_queues, 8);
    Recorder::new(Limits { capacity_sectors: 1 << 20, ..Limits::default() }, topology)
}

/// A queue whose device may have so many reads, and so many writes, at once.
fn queue(device: &Arc<Recorder>, most: u32, locking: Locking, bypass: bool) -> RequestQueue {
    let builder = RequestQueue::builder(device.clone()).scheduler(Shallow::new(most));
    builder.locking(locking).bypass(bypass).build().expect("the device is good")
}

fn submitters<const N: usize>(q: &RequestQueue) -> [Submitter; N] {
    std::array::from_fn(|_| q.submitter(&Client::new("test")).expect("there is room for a thread"))
}

/// The line of a dump that tells of the tokens of a kind.
fn tokens(q: &RequestQueue, kind: &str) -> String {
    let dump = q.dump();
    let line = dump.lines().find_map(|line| line.strip_prefix(&format!("{kind}_tokens: ")));
    line.unwrap_or_else(|| panic!("no {kind} in {dump}")).to_owned()
}

fn finish_all(device: &Recorder, submitters: &mut [Submitter]) {
    while submitters.iter().any(|submitter| submitter.nr_outstanding() > 0) {
        (0..device.nr_held()).for_each(|_| device.finish_oldest(Status::Ok));
        submitters.iter_mut().for_each(|submitter| _ = reap(submitter));
    }
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
        finish_all(&device, &mut both);
        assert_eq!(q.counters().completed, 12);
        q.change_scheduler("none").unwrap().wait().unwrap();
    }
}

/// With one token the other hardware queues have nothing in flight, and so no completion of their own. Each gets the
/// token nevertheless, though the first one always has requests waiting. This test stays green if a thread looks at its
/// own domain alone: the threads of the others poll here too. `loom::tokens` and `split` are red then.
#[test]
fn a_token_goes_round_the_hardware_queues() {
    for (locking, bypass) in LOCKINGS.into_iter().flat_map(|locking| [(locking, false), (locking, true)]) {
        let device = device(3);
        let q = queue(&device, 1, locking, bypass);
        let [mut busy, mut second, mut third] = submitters::<3>(&q);
        let mut sector = 0;
        let mut refill = |busy: &mut Submitter| {
            while busy.nr_outstanding() < 4 {
                sector += 100;
                busy.submit(read(sector, 8)).unwrap();
            }
        };
        refill(&mut busy);
        busy.flush_plug();
        for one in [&mut second, &mut third] {
            one.submit(read(0, 8)).unwrap();
            one.flush_plug();
        }
        assert_eq!((device.nr_held(), tokens(&q, "read")), (1, "depth=1 busy=1".to_owned()), "{locking} {bypass}");
        let mut seen = [false; 3];
        for _ in 0..20 {
            // Requests of the others are finished by their own threads; the busy one alone dispatches.
            for got in device.take_seen() {
                seen[usize::from(got.hctx)] = true;
            }
            device.finish_oldest(Status::Ok);
            while reap(&mut second).len() + reap(&mut third).len() > 0 {}
            reap(&mut busy);
            refill(&mut busy);
            busy.poll();
        }
        assert_eq!(seen, [true; 3], "{locking} {bypass}: {}", q.dump());
        finish_all(&device, &mut [busy, second, third]);
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
            one.submit(read(0, 8)).unwrap();
            one.flush_plug();
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
        finish_all(&device, &mut others);
        assert!(seen.iter().all(|seen| *seen), "{locking}, {polls} polls: {seen:?}");
    }
}

/// Requests that the driver gives back, that time out, that a flush goes before, that merge, and that are refused keep
/// one token or none. A scheduler that is taken out finds the pools whole: red if a token is lost on any of these
/// ways, or put back twice.
#[test]
fn whatever_becomes_of_a_request_its_token_comes_back_once() {
    for (locking, bypass) in LOCKINGS.into_iter().flat_map(|locking| [(locking, false), (locking, true)]) {
        for faults in ["irqmode=0,requeue=1,2,0,-1", "irqmode=1,timeout=1,4,0,-1,requeue=1,3,0,-1", "irqmode=2"] {
            let spec =
                format!("null,memory_backed=1,size=16M,cache_size=1,fua=0,submit_queues=2,hw_queue_depth=4,{faults}");
            let builder = RequestQueue::builder(spec::open(&spec).unwrap()).scheduler(Shallow::new(2));
            let q = builder.locking(locking).bypass(bypass).io_timeout_ms(5).slots(64).build().unwrap();
            let mut both = submitters::<2>(&q);
            for round in 0..20 {
                for one in &mut both {
                    for sector in 0..12 {
                        let bio = match (round + sector) % 5 {
                            0 => Bio::flush(),
                            1 => Bio::read(sector * 8, Buffer::zeroed(4096)),
                            _ => Bio::write(sector * 8, Buffer::zeroed(4096)),
                        };
                        let fua = blkmq::Flags { fua: sector % 3 == 0, ..blkmq::Flags::NONE };
                        let bio = if bio.op == blkmq::Op::Write { bio.with_flags(fua) } else { bio };
                        one.submit(bio).unwrap();
                    }
                    one.flush_plug();
                }
                for one in &mut both {
                    while one.nr_outstanding() > 0 {
                        one.wait(1, None);
                        while one.reap().is_some() {}
                    }
                }
            }
            assert!(q.counters().issued > 0, "{spec}");
            let scheduler = if bypass { "none" } else { "mq-deadline" };
            q.change_scheduler(scheduler).unwrap().wait().unwrap();
        }
    }
}

/// Red if the depth does not follow the latencies, follows the wrong ones, or changes before the fold or without it; if
/// the knobs do not reach the control; or if what was counted under an earlier scheduler counts again.
#[test]
fn the_depth_of_a_pool_follows_what_completions_take() {
    for bypass in [false, true] {
        let (clock, device) = (VirtualClock::new(), device(2));
        let builder = RequestQueue::builder(device.clone()).scheduler("kyber").clock(Clock::Virtual(clock.clone()));
        let q = builder.bypass(bypass).build().unwrap();
        let [mut one] = submitters::<1>(&q);
        // Each round is one write of 0.2 ms and one read that takes no time. A percentile is taken of 500 of a kind.
        let mut rounds = |q: &RequestQueue, number: u32| {
            for _ in 0..number {
                for (bio, ns) in [(write(0, 8), 200_000), (read(0, 8), 0)] {
                    one.submit(bio).unwrap();
                    one.flush_plug();
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
