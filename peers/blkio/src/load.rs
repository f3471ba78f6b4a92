//! Requests for a time, at random places.

use std::io::{copy, sink, stdin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::disk::{Disk, Queue};
use crate::{LoadArgs, Result};

/// A small generator of numbers that look random: SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
/// generators, 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }
}

/// When to end: at this time, or when somebody says so.
#[derive(Clone)]
struct End {
    latest: Instant,
    is_told: Arc<AtomicBool>,
}

impl End {
    fn has_come(&self) -> bool {
        // Relaxed: the word orders nothing.
        self.is_told.load(Ordering::Relaxed) || Instant::now() >= self.latest
    }

    /// Ends, too, when standard input ends.
    fn watch_input(&self) {
        let is_told = Arc::clone(&self.is_told);
        thread::spawn(move || {
            // An input that cannot be read has ended as well.
            let _ = copy(&mut stdin(), &mut sink());
            is_told.store(true, Ordering::Relaxed);
        });
    }
}

pub(crate) fn run(args: &LoadArgs) -> Result<()> {
    let bytes = args.depth * args.block;
    let (disk, queues) = Disk::connect(&args.socket, args.queues, bytes, args.polled)?;
    let blocks = disk.capacity / args.block as u64;
    if blocks == 0 {
        return Err("the device is smaller than one request".into());
    }
    let limit = Duration::from_secs_f64(args.seconds);
    let start = Instant::now();
    let end = End { latest: start + limit, is_told: Arc::default() };
    if args.until_eof {
        end.watch_input();
    }
    let threads: Vec<_> = queues
        .into_iter()
        .zip(1..)
        .map(|(mut queue, seed)| {
            let (depth, block, write, end) = (args.depth, args.block, args.write, end.clone());
            thread::spawn(move || {
                let count = drive(&mut queue, depth, block, write, blocks, Random(seed), &end);
                (count.map_err(|error| error.to_string()), queue)
            })
        })
        .collect();
    let (mut count, mut queues, mut failure) = (0, Vec::new(), None);
    for thread in threads {
        let (result, queue) = thread.join().map_err(|_| "a thread of the load panicked")?;
        queues.push(queue);
        match result {
            Ok(more) => count += more,
            Err(error) => failure = Some(error),
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    disk.close(queues);
    match failure {
        Some(error) => Err(error.into()),
        None => {
            println!("{:.0}", count as f64 / seconds);
            Ok(())
        }
    }
}

/// Keeps `depth` requests outstanding until the time has come, and waits for the last of them. Returns how many were
/// done.
fn drive(
    queue: &mut Queue,
    depth: usize,
    block: usize,
    write: bool,
    blocks: u64,
    mut random: Random,
    end: &End,
) -> Result<u64> {
    let start = |queue: &mut Queue, id: usize, place: u64| {
        let byte = place % blocks * block as u64;
        if write { queue.write(byte, id * block, block, id) } else { queue.read(byte, id * block, block, id) }
    };
    for id in 0..depth {
        start(queue, id, random.next());
    }
    let (mut count, mut outstanding) = (0_u64, depth);
    let mut over = Vec::with_capacity(128);
    while outstanding > 0 {
        let mut failed = 0;
        queue.wait(1, |id, result| {
            over.push(id);
            failed = failed.min(result);
        })?;
        if failed < 0 {
            return Err(format!("a request failed with error {}", -failed).into());
        }
        outstanding -= over.len();
        count += over.len() as u64;
        let goes_on = !end.has_come();
        for id in over.drain(..) {
            if goes_on {
                start(queue, id, random.next());
                outstanding += 1;
            }
        }
    }
    Ok(count)
}
