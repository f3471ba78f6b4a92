//! Measures what `Kernel` of this crate is about, on the machine that it runs on: `cargo run --release -p blkmq-vcpu
//! --example kernel_costs`, and once more behind `taskset -c 0` for a switch. Numbers are medians, in nanoseconds.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar};
use std::thread;
use std::time::{Duration, Instant};

const ROUNDS: usize = 300;

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}

/// What so many of these take each.
fn each(nr: u32, mut does: impl FnMut()) -> u64 {
    let once = || {
        let begun = Instant::now();
        (0..nr).for_each(|_| does());
        u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX) / u64::from(nr)
    };
    median(std::iter::repeat_with(once).take(31).collect())
}

/// Nanoseconds for which this thread has run.
fn ran() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

fn main() {
    let word = AtomicU32::new(1);
    let looks = || {
        (0..100).take_while(|_| word.load(Relaxed) == 1).for_each(|_| spin_loop());
    };
    println!("spin: a hundred looks {}", each(100, looks));
    let nobody = Condvar::new();
    println!("call: a wake-up of nobody {}", each(1000, || nobody.notify_one()));
    println!("yields: alone {}", each(1000, thread::yield_now));

    let begun = Instant::now();
    let ns = move || u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let woken = Arc::new(AtomicU64::new(0));
    let theirs = Arc::clone(&woken);
    let sleeper = thread::spawn(move || {
        let before = ran();
        for _ in 0..ROUNDS {
            thread::park();
            theirs.store(ns(), Relaxed);
        }
        (ran() - before) / ROUNDS as u64
    });
    let (mut wakes, mut latencies) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        thread::sleep(Duration::from_micros(300));
        woken.store(0, Relaxed);
        let before = ns();
        sleeper.thread().unpark();
        wakes.push(ns() - before);
        while woken.load(Relaxed) == 0 {
            thread::yield_now();
        }
        latencies.push(woken.load(Relaxed) - before);
    }
    println!("wake: {}, wake_latency: {}", median(wakes), median(latencies));
    if let Ok(ran) = sleeper.join() {
        println!("sleep: to fall asleep and to return {ran}");
    }
    let both = each(20, || {
        let threads = [0; 2].map(|_| thread::spawn(|| (0..1000).for_each(|_| thread::yield_now())));
        threads.into_iter().for_each(|thread| _ = thread.join());
    });
    println!("yields + switch, if there is one CPU only: {}", both / 2000);
}
