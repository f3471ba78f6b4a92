//! Requests for a time, at random places.

use std::io::{copy, sink, stdin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::disk::{Disk, Queue};
use crate::{LoadArgs, Result};

/// The next number of a sequence that looks random: the upper half of a linear congruential generator (Knuth, MMIX).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 32
}

pub(crate) fn run(args: &LoadArgs) -> Result<()> {
    let bytes = args.depth * args.block;
    let (disk, queues) = Disk::connect(&args.socket, args.queues, bytes, args.polled)?;
    let blocks = disk.capacity / args.block as u64;
    if blocks == 0 {
        return Err("the device is smaller than one request".into());
    }
    let (start, is_over) = (Instant::now(), Arc::new(AtomicBool::new(false)));
    // Relaxed, here and where it is read: the word orders nothing.
    let end = |is_over: &AtomicBool| is_over.store(true, Ordering::Relaxed);
    let (limit, over) = (Duration::from_secs_f64(args.seconds), Arc::clone(&is_over));
    thread::spawn(move || {
        thread::sleep(limit);
        end(&over);
    });
    if args.until_eof {
        let over = Arc::clone(&is_over);
        thread::spawn(move || {
            // An input that cannot be read has ended as well.
            let _ = copy(&mut stdin(), &mut sink());
            end(&over);
        });
    }
    let threads: Vec<_> = queues
        .into_iter()
        .zip(1..)
        .map(|(mut queue, seed)| {
            let (depth, block, write, is_over) = (args.depth, args.block, args.write, Arc::clone(&is_over));
            thread::spawn(move || {
                let count = drive(&mut queue, depth, block, write, blocks, seed, &is_over);
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
    if let Some(error) = failure {
        return Err(error.into());
    }
    println!("{:.0}", count as f64 / seconds);
    Ok(())
}

/// Keeps `depth` requests outstanding until it is over, and waits for the last of them. Returns how many were
/// done.
fn drive(
    queue: &mut Queue,
    depth: usize,
    block: usize,
    write: bool,
    blocks: u64,
    mut random: u64,
    is_over: &AtomicBool,
) -> Result<u64> {
    let start = |queue: &mut Queue, id: usize, place: u64| {
        let byte = place % blocks * block as u64;
        if write { queue.write(byte, id * block, block, id) } else { queue.read(byte, id * block, block, id) }
    };
    for id in 0..depth {
        start(queue, id, next(&mut random));
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
        let goes_on = !is_over.load(Ordering::Relaxed);
        for id in over.drain(..) {
            if goes_on {
                start(queue, id, next(&mut random));
                outstanding += 1;
            }
        }
    }
    Ok(count)
}
