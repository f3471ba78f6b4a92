//! What was written is read back; zeroes are zeroes; what lies outside of a request stays.

use crate::disk::{Disk, Queue};
use crate::{CheckArgs, Result};

/// Bytes of the device that are used.
const RANGE: usize = 4 << 20;

pub(crate) fn run(args: &CheckArgs) -> Result<()> {
    let (disk, mut queues) = Disk::connect(&args.socket, args.queues, 2 * RANGE, false)?;
    if disk.capacity < RANGE as u64 {
        return Err(format!("the device has {} bytes, and the check needs {RANGE}", disk.capacity).into());
    }
    let mut expected: Vec<u8> = (0..RANGE).map(|place| (place / 512 * 7 + place % 251) as u8).collect();
    // Pieces of all lengths, in turns through the queues.
    queues.iter_mut().for_each(|queue| queue.bytes(0, RANGE).copy_from_slice(&expected));
    let nr_queues = queues.len();
    let (mut start, mut len) = (0, 512);
    let mut turn = 0;
    while start < RANGE {
        let piece = len.min(RANGE - start);
        let queue = &mut queues[turn % nr_queues];
        queue.write(start as u64, start, piece, 0);
        expect(queue.one()?, "a write")?;
        (start, len, turn) = (start + piece, if len >= 256 << 10 { 512 } else { len + 1536 }, turn + 1);
    }
    println!("PASS {turn} writes, {} queues", nr_queues);
    compare(&mut queues, &expected, "what was written")?;
    expect(queues[0].flush()?, "a flush")?;
    println!("PASS a flush");
    let (from, until) = (1 << 20, (1 << 20) + (512 << 10));
    expect(queues[turn % nr_queues].write_zeroes(from as u64, (until - from) as u64)?, "zeroes")?;
    expected[from..until].fill(0);
    compare(&mut queues, &expected, "zeroes, and what lies beside them")?;
    let (from, until) = (2 << 20, (2 << 20) + (1 << 20));
    expect(queues[0].discard(from as u64, (until - from) as u64)?, "a discard")?;
    // A discarded range may read as anything.
    let mut read = read_all(&mut queues[0])?;
    read[from..until].copy_from_slice(&expected[from..until]);
    if read != expected {
        return Err("a discard changed what lies beside its range".into());
    }
    println!("PASS a discard changes nothing beside its range");
    let end = disk.capacity_now()?;
    queues[0].read(end, 0, 512, 0);
    if queues[0].one()? >= 0 {
        return Err("a read behind the end of the device succeeded".into());
    }
    println!("PASS a read behind the end fails");
    disk.close(queues);
    Ok(())
}

fn expect(result: i32, what: &str) -> Result<()> {
    if result == 0 { Ok(()) } else { Err(format!("{what} failed with error {}", -result).into()) }
}

fn read_all(queue: &mut Queue) -> Result<Vec<u8>> {
    const PIECE: usize = 128 << 10;
    queue.bytes(RANGE, RANGE).fill(0xaa);
    for start in (0..RANGE).step_by(PIECE) {
        queue.read(start as u64, RANGE + start, PIECE, start);
    }
    let (mut left, mut failed) = (RANGE / PIECE, 0);
    while left > 0 {
        queue.wait(1, |_, result| {
            left -= 1;
            failed = failed.min(result);
        })?;
    }
    expect(failed, "a read")?;
    Ok(queue.bytes(RANGE, RANGE).to_vec())
}

fn compare(queues: &mut [Queue], expected: &[u8], what: &str) -> Result<()> {
    for queue in queues {
        let read = read_all(queue)?;
        if let Some(place) = (0..RANGE).find(|place| read[*place] != expected[*place]) {
            let (found, wanted) = (read[place], expected[place]);
            return Err(format!("{what}: byte {place} is {found:#x}, and should be {wanted:#x}").into());
        }
    }
    println!("PASS {what}");
    Ok(())
}
