//! Busy time while the statistics are off, on virtual CPUs. A request that is entering the queue, and is about to say
//! that it does not count, meets other threads at every step.
use std::time::Duration;

use blkmq_vcpu::schedule::Uniform;
use blkmq_vcpu::{Ended, Options, Random, run, thread, time};
use blkmq_virtual::driver::spec;
use blkmq_virtual::{Bio, Buffer, Buffers, Client, Op, RequestQueue};

const ROUNDS: u64 = 20;

/// Sleeps until this many seconds after the beginning.
fn sleep_until(seconds: u64) {
    thread::sleep(Duration::from_nanos((seconds * 1_000_000_000).saturating_sub(time::now())));
}

/// The busy time, in ms, of a queue whose statistics are off. In each round nothing happens for a second, and then two
/// clients submit a few requests while another thread calls `act`.
fn busy_ms(seed: u64, act: fn(&RequestQueue)) -> u64 {
    let (told, heard) = std::sync::mpsc::channel();
    let ended = run(Box::new(Uniform::new(Random::new(seed), 8)), Options::default(), move || {
        let q = RequestQueue::builder(spec::open("null,irqmode=0").expect("the spec is good")).build();
        let q = q.expect("the queue is good");
        q.set_knob("iostats", "0").expect("there is such a knob");
        let client = |number: u64| {
            let q = q.clone();
            move || {
                let mut submitter = q.submitter(&Client::new("test")).expect("there is a place");
                for round in 1..=ROUNDS {
                    sleep_until(round);
                    for _ in 0..10 {
                        let bio = Bio::new(Op::Read, 8 * number, 8, Buffers::One(Buffer::zeroed(4096)));
                        submitter.submit(bio).expect("there is a slot");
                        assert!(submitter.wait(1, None).is_ready() && submitter.reap().is_some());
                    }
                }
            }
        };
        let clients = [0, 1].map(|number| thread::spawn(client(number)));
        for round in 1..=ROUNDS {
            sleep_until(round);
            act(&q);
        }
        clients.into_iter().for_each(|client| client.join().expect("it does not panic"));
        told.send(q.disk_stats().io_ticks).expect("the test listens");
    });
    assert!(matches!(ended, Ended::Finished), "seed {seed}: {ended:?}");
    heard.recv().expect("it was told")
}

/// Red if a reader counts the time up to now although the statistics are off.
#[test]
fn who_reads_counts_no_time_as_busy_while_the_statistics_are_off() {
    for seed in 0..20 {
        let busy = busy_ms(seed, |q| (0..10).for_each(|_| assert_eq!(q.disk_stats().io_ticks, 0)));
        assert_eq!(busy, 0, "seed {seed}");
    }
}

/// Red if the time before the statistics are switched on counts as busy. In each round the statistics are on for a
/// moment, at most a tick.
#[test]
fn the_time_before_the_statistics_are_switched_on_is_not_busy() {
    for seed in 0..20 {
        let busy = busy_ms(seed, |q| {
            let set = |iostats| q.set_knob("iostats", iostats).expect("there is such a knob");
            ["1", "0"].into_iter().for_each(set);
        });
        assert!(busy <= 2 * ROUNDS, "seed {seed}: {busy} ms were busy in {ROUNDS} moments");
    }
}
