//! Clients may read and change any bytes, whatever the size of the device's blocks.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use blkmq::{Op, Status};
use blkmq_export::nbd::{command_flags, commands};
use blkmq_export::{Bounds, Server};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::server::client::{Client, request, write};
use crate::server::device::Device;
use crate::server::{queue, server_with};

const IO: u32 = 5;
const INVALID: u32 = 22;
const NO_SPACE: u32 = 28;

/// Devices with small and large blocks, which complete at once or later, with and without a limit that cuts requests.
const DEVICES: [&str; 4] = [
    "ram,size=1M",
    "ram,size=1M,bs=4K",
    "null,size=1M,memory_backed=1,discard=1,irqmode=2,completion_nsec=10us",
    "null,size=1M,memory_backed=1,bs=4K,max_sectors=16,irqmode=2,completion_nsec=10us",
];

fn seed() -> u64 {
    let seed = std::env::var("BLKMQ_SEED").map_or(1, |seed| seed.parse().expect("BLKMQ_SEED is a number"));
    println!("BLKMQ_SEED={seed}");
    seed
}

fn usize_range(offset: u64, length: u32) -> Range<usize> {
    offset as usize..offset as usize + length as usize
}

/// Red if a byte outside of a change changes, or if a byte inside does not. One client is compared with an array of
/// bytes.
#[test]
fn any_bytes_are_read_and_changed_and_no_others() {
    let mut random = SmallRng::seed_from_u64(seed());
    for device in DEVICES {
        let q = queue(device);
        let limits = q.limits();
        let (block, can_trim) = (u64::from(limits.logical_block_size), limits.max_discard_sectors > 0);
        for bounds in [Bounds::default(), Bounds { requests: 3, bytes: 65536 }] {
            let server = server_with(&q, bounds);
            let mut client = Client::structured(&server);
            let mut model = client.read(0, 65536).unwrap();
            for _ in 0..600 {
                let most = if random.random_bool(0.1) { 40_000 } else { 3 * block as u32 };
                let offset = random.random_range(0..65536_u64);
                let length = random.random_range(0..most).min(65536 - offset as u32);
                let at = usize_range(offset, length);
                let fua = if random.random_bool(0.2) { command_flags::FUA } else { 0 };
                match random.random_range(0..7) {
                    0 | 1 => {
                        let data: Vec<u8> = (0..length).map(|_| random.random()).collect();
                        assert_eq!(client.call(commands::WRITE, fua, offset, length, &data), Ok(vec![]));
                        model[at].copy_from_slice(&data);
                    }
                    2 => {
                        let flags = fua | if random.random() { command_flags::NO_HOLE } else { 0 };
                        assert_eq!(client.call(commands::WRITE_ZEROES, flags, offset, length, &[]), Ok(vec![]));
                        model[at].fill(0);
                    }
                    3 if can_trim => {
                        assert_eq!(client.call(commands::TRIM, fua, offset, length, &[]), Ok(vec![]));
                        let (start, end) =
                            (offset.next_multiple_of(block), (offset + u64::from(length)) / block * block);
                        if start < end {
                            model[start as usize..end as usize].fill(0);
                        }
                    }
                    4 => assert_eq!(client.call(commands::CACHE, 0, offset, length, &[]), Ok(vec![])),
                    _ => {
                        let data = client.read(offset, length).unwrap();
                        assert!(data == model[at], "{device}: {length} bytes at {offset}");
                    }
                }
            }
            assert!(client.read(0, 65536).unwrap() == model, "{device}");
        }
    }
}

/// Red if the reported length of a device that lacks bytes of its last sector is too long or too short, or if its last
/// bytes can be reached only together with the missing ones.
#[test]
fn a_device_that_ends_within_a_sector_is_reached_to_its_last_byte_and_no_further() {
    let mut device = Device::new();
    (device.limits.capacity_sectors, device.limits.missing_bytes) = (2, 24);
    let server = server_with(&device.queue(), Bounds::default());
    let mut client = Client::pair(&server);
    assert_eq!(client.go("").0, 1000);
    assert_eq!(client.write(0, &[1; 1000]), Ok(vec![]));
    assert_eq!(client.write(998, &[2, 3]), Ok(vec![]));
    assert_eq!(client.call(commands::WRITE_ZEROES, 0, 990, 10, &[]), Ok(vec![]));
    assert_eq!(client.write(999, &[4]), Ok(vec![]));
    let expected = [vec![1; 990], vec![0; 9], vec![4]].concat();
    assert!(client.read(0, 1000) == Ok(expected.clone()));
    assert_eq!(client.call(commands::TRIM, 0, 512, 488, &[]), Ok(vec![]));
    assert!(client.read(1, 999) == Ok(expected[1..].to_vec()), "a part of a block is not given up");
    for (offset, length) in [(0, 1001), (999, 2), (1000, 1), (512, 512)] {
        assert_eq!(client.read(offset, length), Err(INVALID));
        assert_eq!(client.write(offset, &vec![5; length as usize]), Err(NO_SPACE));
        assert_eq!(client.call(commands::WRITE_ZEROES, 0, offset, length, &[]), Err(NO_SPACE));
    }
    assert!(client.read(0, 1000) == Ok(expected));
}

/// Many requests at a time of one client, which owns every `of`-th stretch of seven bytes of the first `blocks` blocks.
fn write_own_bytes(client: &mut Client, own: u64, of: u64, size: u64, mut random: SmallRng) {
    const STRETCH: u64 = 7;
    let stretches: Vec<_> = (0..size / STRETCH).filter(|stretch| stretch % of == own).collect();
    let mut model = vec![0; size as usize];
    for _ in 0..60 {
        // No two requests of a round have a byte in common, because they may be done in any order.
        let from = random.random_range(0..stretches.len());
        let round: Vec<_> = stretches[from..].iter().take(random.random_range(1..12)).collect();
        for stretch in &round {
            let skip = random.random_range(0..STRETCH);
            let offset = *stretch * STRETCH + skip;
            let length = random.random_range(1..=STRETCH - skip) as u32;
            let at = usize_range(offset, length);
            if random.random_bool(0.2) {
                client.request(commands::WRITE_ZEROES, 0, 0, offset, length);
                model[at].fill(0);
            } else {
                let data: Vec<u8> = (0..length).map(|_| random.random()).collect();
                client.send(&write(0, offset, &data));
                model[at].copy_from_slice(&data);
            }
        }
        round.iter().for_each(|_| assert_eq!(client.reply(|_| 0).1, Ok(vec![])));
        let now = client.read(0, size as u32).expect("it can be read");
        for stretch in &stretches {
            let at = usize_range(*stretch * STRETCH, STRETCH as u32);
            assert!(now[at.clone()] == model[at.clone()], "client {own}: bytes {at:?} are lost");
        }
    }
}

/// Red if parts of one block are read, changed and written without a turn: the write of one client would then undo the
/// bytes of another.
#[test]
fn clients_that_change_other_bytes_of_the_same_blocks_lose_none() {
    let seed = seed();
    for device in DEVICES {
        let q = queue(device);
        // There are two servers, because the turns belong to the queue and not to a server.
        let servers = [server_with(&q, Bounds::default()), server_with(&q, Bounds { requests: 5, bytes: 65536 })];
        let (nr_clients, size) = (6, 2 * u64::from(q.limits().logical_block_size));
        thread::scope(|scope| {
            for own in 0..nr_clients {
                let mut client = Client::simple(&servers[own as usize % 2]);
                let random = SmallRng::seed_from_u64(seed * 100 + own);
                scope.spawn(move || write_own_bytes(&mut client, own, nr_clients, size, random));
            }
        });
    }
}

/// Changes all of some blocks again and again, and checks that they stay as written, except for the first byte of each
/// block, which belongs to another client.
fn write_whole_blocks(client: &mut Client, block: u32, start: u64, rounds: u32) {
    for round in 0..rounds {
        let value = round as u8 | 1;
        let length = block * (1 + round % 2);
        let expected = match round % 5 {
            0 => {
                assert_eq!(client.call(commands::WRITE_ZEROES, 0, start, length, &[]), Ok(vec![]));
                0
            }
            _ => {
                assert_eq!(client.write(start, &vec![value; length as usize]), Ok(vec![]));
                value
            }
        };
        let now = client.read(start, length).expect("it can be read");
        let is_kept = now.chunks(block as usize).all(|block| block[1..].iter().all(|byte| *byte == expected));
        assert!(is_kept, "round {round}: a change of blocks from {start} was undone");
    }
}

/// Red if a change of a part does not wait for changes of its block that are in progress, or if a change of the block
/// does not wait for the part.
#[test]
fn a_change_of_a_part_undoes_no_change_of_its_block() {
    for device in DEVICES {
        let q = queue(device);
        let block = q.limits().logical_block_size;
        let server = server_with(&q, Bounds::default());
        let is_over = AtomicBool::new(false);
        let start = Barrier::new(4);
        thread::scope(|scope| {
            let writers: Vec<_> = (0..2)
                .map(|writer| {
                    let (mut client, start) = (Client::simple(&server), &start);
                    scope.spawn(move || {
                        start.wait();
                        write_whole_blocks(&mut client, block, writer * 2 * u64::from(block), 300);
                    })
                })
                .collect();
            for seed in 0..2 {
                let (mut client, start, is_over) = (Client::simple(&server), &start, &is_over);
                let mut random = SmallRng::seed_from_u64(seed);
                scope.spawn(move || {
                    start.wait();
                    // Relaxed: the flag only ends the loop, and orders nothing.
                    while !is_over.load(Ordering::Relaxed) {
                        let offset = random.random_range(0..4) * u64::from(block);
                        assert_eq!(client.write(offset, &[9]), Ok(vec![]));
                    }
                });
            }
            // A panic of a writer also ends the others, and is reported after that.
            let results: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
            is_over.store(true, Ordering::Relaxed);
            results.into_iter().for_each(|result| result.unwrap());
        });
    }
}

/// Red if, of one connection, changes of parts do not wait for changes of their blocks, or these for the parts. The
/// requests of a connection may be done in any order.
#[test]
fn a_change_of_a_part_undoes_no_change_of_its_block_by_the_same_client() {
    let disordered = Device { reads_first: true, ..Device::new() }.queue();
    for q in DEVICES.map(queue).into_iter().chain([disordered]) {
        let block = q.limits().logical_block_size;
        let server = server_with(&q, Bounds::default());
        let mut client = Client::simple(&server);
        for round in 0..200_u8 {
            let mut bytes = Vec::new();
            let (part, whole) = (write(0, 0, &[9]), write(0, 0, &vec![round; block as usize]));
            // All orders of both kinds, with at least one change of the whole block.
            let pattern = 1 + round % 31;
            (0..5).for_each(|bit| bytes.extend(if pattern >> bit & 1 == 0 { &part } else { &whole }));
            client.send(&bytes);
            (0..5).for_each(|_| assert_eq!(client.reply(|_| 0).1, Ok(vec![])));
            let now = client.read(1, block - 1).unwrap();
            assert!(now.iter().all(|byte| *byte == round), "round {round}: a change of the block was undone");
        }
    }
}

/// Red (hangs) if a change waits for connections that have nothing to do with the block, or if a client that leaves in
/// the middle of a change keeps its turn.
#[test]
fn clients_that_sleep_or_go_away_hold_nobody_up() {
    for device in DEVICES {
        let q = queue(device);
        let server = server_with(&q, Bounds::default());
        let mut sleeping: Vec<_> = (0..20).map(|_| Client::simple(&server)).collect();
        for round in 0..20_u8 {
            let mut gone = Client::simple(&server);
            (0..40).for_each(|offset| gone.send(&write(0, offset, &[round])));
            // One more write, whose data never comes.
            gone.send(&request(commands::WRITE, 0, 0, 100, 1));
            drop(gone);
            let mut client = Client::simple(&server);
            assert_eq!(client.write(50, &[round; 100]), Ok(vec![]));
            assert_eq!(client.read(50, 100), Ok(vec![round; 100]));
            let other = &mut sleeping[usize::from(round)];
            assert_eq!(other.write(4096, &[round; 4096]), Ok(vec![]));
            assert_eq!(other.write(200, &[round]), Ok(vec![]));
        }
    }
}

fn failing(op: Op) -> Server {
    let device = Device { failing: Some((op, Status::IoError)), ..Device::new() };
    server_with(&device.queue(), Bounds::default())
}

/// Red if a part is written although the rest of its block could not be read, or if a turn is kept after a failure.
#[test]
fn a_part_that_fails_is_told_of_and_gives_its_turn_away() {
    let server = failing(Op::Read);
    let mut client = Client::simple(&server);
    for _ in 0..20 {
        assert_eq!(client.write(1, &[1; 1000]), Err(IO));
        assert_eq!(client.call(commands::WRITE_ZEROES, 0, 1, 1000, &[]), Err(IO));
        assert_eq!(client.write(0, &[1; 1024]), Ok(vec![]));
    }
    let server = failing(Op::Write);
    let mut client = Client::simple(&server);
    for _ in 0..20 {
        assert_eq!(client.write(1, &[1; 1000]), Err(IO));
        assert_eq!(client.read(0, 1024), Ok(vec![0; 1024]));
    }
}

/// Red if the write of a part ignores the client's FUA, or if a part that covers several blocks reads more than the
/// blocks at its ends.
#[test]
fn a_part_reads_the_blocks_at_its_ends_and_is_durable_when_asked_to() {
    let device = Device::new();
    let told = Arc::clone(&device.told);
    let server = server_with(&device.queue(), Bounds::default());
    let mut client = Client::simple(&server);
    let mut told_of = |flags: u16, offset: u64, length: u32| {
        told.lock().unwrap().clear();
        assert_eq!(client.call(commands::WRITE, flags, offset, length, &vec![1; length as usize]), Ok(vec![]));
        std::mem::take(&mut *told.lock().unwrap())
    };
    assert_eq!(told_of(0, 512, 1024), [Op::Write]);
    assert_eq!(told_of(0, 1, 1), [Op::Read, Op::Write]);
    assert_eq!(told_of(0, 1, 5119), [Op::Read, Op::Write]);
    assert_eq!(told_of(0, 1, 5000), [Op::Read, Op::Read, Op::Write]);
    assert_eq!(told_of(command_flags::FUA, 1, 1), [Op::Read, Op::Write, Op::Flush]);
}
