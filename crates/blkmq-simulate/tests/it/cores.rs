//! The block layer on the modelled CPUs of a machine, each with a clock of its own.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use blkmq_simulate::Profile;
use blkmq_vcpu::schedule::Uniform;
use blkmq_vcpu::sync::atomic::{AtomicU64, Ordering::Relaxed};
use blkmq_vcpu::{Accessed, Cores, Ended, Options, Random, place_at, run, thread, time, work};
use blkmq_virtual::driver::spec::open;
use blkmq_virtual::{Bio, Buffer, Client, RequestQueue};

/// Reads of each thread.
const READS: u64 = 100;

/// What a run came to.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Result {
    /// Nanoseconds from when the first thread began until the last one was done.
    ns: u64,
    /// How many lines moved between CPUs meanwhile, by the name of the place.
    moved: BTreeMap<&'static str, u64>,
}

impl Result {
    /// The place whose lines moved most.
    fn busiest(&self) -> Option<&'static str> {
        self.moved.iter().max_by_key(|(_, moved)| **moved).map(|(name, _)| *name)
    }
}

/// Threads on the 7950X each read through a hardware queue of their own, without a scheduler. `counter`: all of them
/// count each read in one place.
fn read(nr_threads: u16, counter: bool) -> Result {
    let result = Arc::new(Mutex::new(Result { ns: 0, moved: BTreeMap::new() }));
    let on_access = {
        let result = Arc::clone(&result);
        Box::new(move |Accessed { line, cost, .. }: Accessed| {
            let name = line.map_or("nameless", |line| line.name);
            let moved = cost.map_or(0, |cost| u64::from(cost.moved));
            if moved > 0 {
                *result.lock().expect("one thread").moved.entry(name).or_default() += moved;
            }
        })
    };
    let distances = Profile::named("7950x").and_then(|profile| profile.typical()).expect("it was measured");
    let cores = Some(Cores::new(distances));
    let options = Options { on_access: Some(on_access), cores, ..Options::default() };
    let kept = Arc::clone(&result);
    let main = move || {
        let device = open(&format!("null,size=1M,irqmode=0,submit_queues={nr_threads}")).expect("it is a device");
        let q = RequestQueue::builder(device).build().expect("all is well");
        let count = Arc::new(AtomicU64::new(0));
        place_at("planted", &*count);
        let join = |_| q.submitter(&Client::new("test")).expect("there is a place");
        let submitters: Vec<_> = (0..nr_threads).map(join).collect();
        let begun = time::now();
        kept.lock().expect("one thread").moved.clear();
        let read = |mut submitter: blkmq_virtual::Submitter| {
            let count = Arc::clone(&count);
            move || {
                for at in 0..READS {
                    work(200_000);
                    submitter.submit(Bio::read(at, Buffer::zeroed(512))).expect("there are slots");
                    while submitter.nr_outstanding() > 0 {
                        submitter.wait(1, None);
                        submitter.reap_all(|completion| assert!(completion.status.is_ok()));
                    }
                    if counter {
                        count.fetch_add(1, Relaxed);
                    }
                }
                (submitter, time::now())
            }
        };
        let threads: Vec<_> = submitters.into_iter().map(|submitter| thread::spawn(read(submitter))).collect();
        let done: Vec<_> = threads.into_iter().map(|thread| thread.join().expect("no panic")).collect();
        let moved = std::mem::take(&mut kept.lock().expect("one thread").moved);
        let last = done.iter().map(|(_, ended)| *ended).max().expect("there are threads");
        drop(done);
        *kept.lock().expect("one thread") = Result { ns: last - begun, moved };
    };
    assert_eq!(run(Box::new(Uniform::new(Random::new(1), 1)), options, main), Ended::Finished);
    result.lock().expect("one thread").clone()
}

/// Red if the time of one thread is added to that of the others, or if lines of one thread's own are taken for shared.
#[test]
fn threads_that_share_little_do_not_slow_each_other_down() {
    let [one, many] = [1, 24].map(|nr_threads| read(nr_threads, false));
    assert!(many.ns < 2 * one.ns, "{one:?}, {many:?}");
}

/// Red if the model does not see a counter that all threads share, or does not tell which line it is.
#[test]
fn a_counter_that_all_threads_share_is_seen_and_named() {
    let [without, with] = [false, true].map(|counter| read(24, counter));
    assert!(with.ns > without.ns * 5 / 4, "{without:?}, {with:?}");
    assert_eq!(with.busiest(), Some("planted"), "{with:?}");
}

#[test]
fn a_result_is_the_same_each_time() {
    let first = read(8, true);
    let _elsewhere = vec![0_u8; 12345];
    assert_eq!(read(8, true), first);
}
