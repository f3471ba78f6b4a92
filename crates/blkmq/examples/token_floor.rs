//! What a token costs at least: threads that take tokens out of a shared pool, put them back, and add to two histograms
//! of their own, as kyber does for each batch of requests: `token_floor [THREADS [BATCH [TOKENS]]]`, by default 1
//! thread, batches of 4, and 1000000 tokens a thread. Beside it stands what `blkmq bench --ab scheduler=none,kyber`
//! finds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use blkmq_sched::Throttle;
use blkmq_sync::pool::Pool;

fn argument(place: usize, default: u32) -> u32 {
    let Some(text) = std::env::args().nth(place) else { return default };
    match text.parse() {
        Ok(number) if number > 0 => number,
        _ => {
            eprintln!("token_floor: {text:?} is no whole number above 0: token_floor [THREADS [BATCH [TOKENS]]]");
            std::process::exit(2)
        }
    }
}

/// A histogram that one thread writes.
type Histogram = [AtomicU64; Throttle::BUCKETS];

fn add(histogram: &Histogram, latency_ns: u64, number: u64) {
    let count = &histogram[Throttle::bucket(2_000_000, latency_ns)];
    count.store(count.load(Ordering::Relaxed) + number, Ordering::Relaxed);
}

/// Takes and puts back so many tokens. Returns how many it got, and the nanoseconds of a token.
fn work(pool: &Pool, home: u16, batch: u32, tokens: u32) -> (u64, f64) {
    let histograms: Box<[Histogram; 2]> = Box::default();
    let start = Instant::now();
    let mut got = 0;
    for round in 0..tokens / batch {
        let mut taken = pool.take_some(home, batch as usize);
        let (mut first, mut number) = (None, 0);
        for word in taken.by_ref() {
            // A batch that comes from several words goes back to each of them.
            if let Some(first) = first.filter(|first| *first != word) {
                pool.put(first, std::mem::take(&mut number));
            }
            (first, number) = (Some(word), number + 1);
            got += 1;
        }
        taken.end();
        if let Some(word) = first {
            pool.put(word, number);
            histograms.iter().for_each(|histogram| add(histogram, u64::from(round % 4_000), number.into()));
        }
    }
    (got, start.elapsed().as_nanos() as f64 / got.max(1) as f64)
}

fn main() {
    let (threads, batch, tokens) = (argument(1, 1), argument(2, 4), argument(3, 1_000_000));
    let pool = Arc::new(Pool::new(256, 256));
    let workers: Vec<_> = (0..threads)
        .map(|home| {
            let pool = Arc::clone(&pool);
            std::thread::spawn(move || work(&pool, home as u16, batch, tokens))
        })
        .collect();
    let ends: Vec<_> = workers.into_iter().map(|worker| worker.join().expect("no worker panics")).collect();
    let got: u64 = ends.iter().map(|end| end.0).sum();
    let mean = ends.iter().map(|end| end.1).sum::<f64>() / f64::from(threads);
    assert_eq!(pool.nr_out(), 0, "each token went back");
    println!("{threads} threads, batches of {batch}: {got} tokens, {mean:.1} ns each by the machine's clock");
}
