//! What requests do, and why requests are refused.

use std::collections::HashMap;

use blkmq::{Limits, Op, Status};
use blkmq_export::nbd::{command_flags, commands, transmission};
use blkmq_export::{Bounds, Server};

use crate::server::client::{Client, request, write};
use crate::server::device::Device;
use crate::server::{queue, server, server_with};

const IO: u32 = 5;
const INVALID: u32 = 22;
const NO_SPACE: u32 = 28;
const NOT_SUPPORTED: u32 = 95;

const SIZE: u64 = 16 << 20;
/// The state of a hole, which reads as zeroes.
const HOLE: u32 = 3;

const DEVICE: &str = "ram,size=16M";

fn both(server: &Server) -> [Client; 2] {
    [Client::simple(server), Client::structured(server)]
}

#[test]
fn every_command_does_what_it_says() {
    let server = server(DEVICE);
    for mut client in both(&server) {
        assert_eq!(client.write(4096, &[5; 8192]), Ok(vec![]));
        assert_eq!(client.call(commands::WRITE, command_flags::FUA, 12288, 512, &[6; 512]), Ok(vec![]));
        assert_eq!(client.call(commands::FLUSH, 0, 0, 0, &[]), Ok(vec![]));
        assert_eq!(client.call(commands::CACHE, 0, 0, 8 << 20, &[]), Ok(vec![]));
        let expected = [vec![0; 4096], vec![5; 8192], vec![6; 512], vec![0; 512]].concat();
        assert_eq!(client.read(0, 13312), Ok(expected));
        assert_eq!(client.call(commands::TRIM, 0, 4096, 4096, &[]), Ok(vec![]));
        assert_eq!(client.read(4096, 8192), Ok([[0; 4096], [5; 4096]].concat()));
        for flags in [0, command_flags::FUA, command_flags::NO_HOLE, command_flags::FAST_ZERO] {
            assert_eq!(client.write(8192, &[7; 4096]), Ok(vec![]));
            assert_eq!(client.call(commands::WRITE_ZEROES, flags, 8192, 2048, &[]), Ok(vec![]));
            assert_eq!(client.read(8192, 4096), Ok([[0; 2048], [7; 2048]].concat()));
        }
        assert_eq!(client.call(commands::WRITE_ZEROES, command_flags::NO_HOLE, 0, SIZE as u32, &[]), Ok(vec![]));
        assert_eq!(client.read(8192, 4096), Ok(vec![0; 4096]));
        client.leave();
    }
}

/// The extents of a block status: lengths and states.
fn extents(client: &mut Client, flags: u16, offset: u64, length: u32) -> Vec<(u32, u32)> {
    let answer = client.call(commands::BLOCK_STATUS, flags, offset, length, &[]).expect("it is right");
    let words: Vec<u32> =
        answer.chunks(4).map(|word| u32::from_be_bytes(word.try_into().expect("it has four bytes"))).collect();
    assert_eq!((words[0], words.len() % 2), (1, 1), "the context, and pairs");
    words[1..].chunks(2).map(|extent| (extent[0], extent[1])).collect()
}

/// Red if a hole is reported as data, or data as a hole, or if the reply does not show the effect of earlier requests.
#[test]
fn block_status_tells_what_the_device_has() {
    const PAGE: u32 = 4096;
    const ALL: u32 = SIZE as u32;
    let server = server(DEVICE);
    let mut client = Client::structured(&server);
    let mut other = Client::simple(&server);
    assert_eq!(extents(&mut client, 0, 0, ALL), [(ALL, HOLE)]);
    assert_eq!(other.write(u64::from(PAGE), &[1; 2 * PAGE as usize]), Ok(vec![]));
    assert_eq!(extents(&mut client, 0, 0, ALL), [(PAGE, HOLE), (2 * PAGE, 0), (ALL - 3 * PAGE, HOLE)]);
    assert_eq!(extents(&mut client, 0, 512 + u64::from(PAGE), PAGE), [(PAGE, 0)], "no more than was asked about");
    for (offset, extent) in [(0, (PAGE, HOLE)), (u64::from(PAGE), (2 * PAGE, 0)), (12288, (ALL - 3 * PAGE, HOLE))] {
        let length = ALL - offset as u32;
        assert_eq!(extents(&mut client, command_flags::REQ_ONE, offset, length), [extent]);
    }
    assert_eq!(client.call(commands::TRIM, 0, 4096, PAGE, &[]), Ok(vec![]));
    assert_eq!(extents(&mut client, 0, 0, ALL), [(2 * PAGE, HOLE), (PAGE, 0), (ALL - 3 * PAGE, HOLE)]);
    assert_eq!(client.call(commands::WRITE_ZEROES, 0, 8192, PAGE, &[]), Ok(vec![]));
    assert_eq!(extents(&mut client, 0, 0, ALL), [(ALL, HOLE)]);
    let no_hole = command_flags::NO_HOLE;
    assert_eq!(client.call(commands::WRITE_ZEROES, no_hole, 8192, PAGE, &[]), Ok(vec![]));
    assert_eq!(extents(&mut client, 0, 8192, 2 * PAGE), [(PAGE, 0), (PAGE, HOLE)]);
    assert_eq!(client.call(commands::BLOCK_STATUS, 0, 0, 0, &[]), Err(INVALID));
    assert_eq!(client.call(commands::BLOCK_STATUS, 0, SIZE - 512, 1024, &[]), Err(INVALID));
    assert_eq!(other.call(commands::BLOCK_STATUS, 0, 0, 512, &[]), Err(INVALID));
    assert_eq!(client.call(commands::READ, command_flags::DF, 0, 512, &[]), Ok(vec![0; 512]));
}

/// Red if a client can make a reply as long as it wants, or does not reach the end by asking again.
#[test]
fn a_block_status_of_many_extents_comes_in_parts() {
    let server = server(DEVICE);
    let mut client = Client::structured(&server);
    for page in (0..4096).step_by(2) {
        assert_eq!(client.write(page * 4096, &[1; 512]), Ok(vec![]));
    }
    let (mut at, mut nr_replies) = (0, 0);
    while at < SIZE {
        let found = extents(&mut client, 0, at, (SIZE - at) as u32);
        assert_eq!(found.len(), 128);
        for (number, extent) in found.into_iter().enumerate() {
            assert_eq!(extent, (4096, if number % 2 == 0 { 0 } else { HOLE }));
            at += 4096;
        }
        nr_replies += 1;
    }
    assert_eq!(nr_replies, 32);
}

/// Red if a device that does not know its allocation is reported as empty.
#[test]
fn a_device_that_does_not_tell_is_all_data() {
    let server = server_with(&Device::new().queue(), Bounds::default());
    let mut client = Client::structured(&server);
    for flags in [0, command_flags::REQ_ONE] {
        assert_eq!(extents(&mut client, flags, 512, 1 << 20), [(1 << 20, 0)]);
    }
}

/// Red if zeroes that must leave no hole go to the device like other zeroes, or the other way round.
#[test]
fn the_device_is_told_whether_zeroes_may_leave_a_hole() {
    let says_no = Device { failing: Some((Op::WriteZeroes, Status::Unsupported)), ..Device::new() };
    let server = server_with(&says_no.queue(), Bounds::default());
    let mut client = Client::structured(&server);
    let fast = command_flags::FAST_ZERO;
    for flags in [fast, fast | command_flags::NO_HOLE] {
        assert_eq!(client.call(commands::WRITE_ZEROES, flags, 0, 4096, &[]), Err(NOT_SUPPORTED));
    }
    let server = self::server(DEVICE);
    let mut client = Client::structured(&server);
    for (flags, state) in [(command_flags::NO_HOLE, 0), (0, HOLE), (fast | command_flags::NO_HOLE, 0), (fast, HOLE)] {
        assert_eq!(client.call(commands::WRITE_ZEROES, flags, 0, 1 << 20, &[]), Ok(vec![]));
        assert_eq!(extents(&mut client, 0, 0, 1 << 20), [(1 << 20, state)]);
    }
}

#[test]
fn what_is_wrong_is_refused_and_the_connection_goes_on() {
    let server = server("ram,size=16M,bs=4K");
    for mut client in both(&server) {
        for (kind, flags, offset, length, error) in [
            (commands::READ, 0, SIZE, 4096, INVALID),
            (commands::READ, 0, 0, u32::MAX, INVALID),
            (commands::WRITE, 0, SIZE, 4096, NO_SPACE),
            (commands::WRITE, command_flags::DF, 0, 4096, INVALID),
            (commands::WRITE, 0, 0, 40 << 20, NO_SPACE),
            (commands::WRITE_ZEROES, 0, 0, u32::MAX, NO_SPACE),
            (commands::CACHE, 0, 0, u32::MAX, INVALID),
            (u16::MAX, u16::MAX, u64::MAX, u32::MAX, INVALID),
        ] {
            let payload = vec![9; if kind == commands::WRITE { length as usize } else { 0 }];
            let answer = client.call(kind, flags, offset, length, &payload);
            assert_eq!(answer, Err(error), "type {kind}, flags {flags:#x}, {length} at {offset}");
            assert_eq!(client.is_structured, !client.message.is_empty());
        }
        assert_eq!(client.read(0, SIZE as u32), Ok(vec![0; SIZE as usize]));
    }
}

#[test]
fn a_length_of_zero_does_nothing_well() {
    let server = server(DEVICE);
    for mut client in both(&server) {
        for kind in [commands::READ, commands::WRITE, commands::TRIM, commands::CACHE, commands::WRITE_ZEROES] {
            for offset in [0, SIZE] {
                assert_eq!(client.call(kind, 0, offset, 0, &[]), Ok(vec![]), "type {kind}");
            }
        }
    }
}

#[test]
fn the_errors_of_the_device_reach_the_client() {
    let server = server("null,size=16M,memory_backed=1,badblocks=16-23");
    let mut client = Client::pair(&server);
    client.agree_on_structure("");
    let (_, flags) = client.go("");
    assert_eq!(flags & transmission::SEND_TRIM, 0);
    assert_eq!(client.read(8192, 512), Err(IO));
    assert_eq!(client.message, "medium error");
    assert_eq!(client.write(8192, &[1; 4096]), Err(IO));
    assert_eq!(client.read(0, 8192), Ok(vec![0; 8192]));
    assert_eq!(client.call(commands::TRIM, 0, 0, 4096, &[]), Err(INVALID));
    let whole = client.call(commands::WRITE_ZEROES, command_flags::NO_HOLE, 0, 3 << 20, &[]);
    assert_eq!(whole, Err(IO), "it fails in its first step");
}

#[test]
fn zeroes_reach_a_device_that_cannot_make_them() {
    let cannot = Limits { max_write_zeroes_sectors: 0, ..Device::new().limits };
    let says_no = Some((Op::WriteZeroes, Status::Unsupported));
    for device in [Device { limits: cannot, ..Device::new() }, Device { failing: says_no, ..Device::new() }] {
        let server = server_with(&device.queue(), Bounds::default());
        for mut client in both(&server) {
            for flags in [0, command_flags::FUA, command_flags::NO_HOLE] {
                assert_eq!(client.write(0, &vec![1; 4 << 20]), Ok(vec![]));
                assert_eq!(client.call(commands::WRITE_ZEROES, flags, 512, 3 << 20, &[]), Ok(vec![]));
                let expected = [vec![1; 512], vec![0; 3 << 20], vec![1; (1 << 20) - 512]].concat();
                assert!(client.read(0, 4 << 20) == Ok(expected));
            }
            assert_eq!(client.call(commands::WRITE_ZEROES, command_flags::FAST_ZERO, 0, 512, &[]), Err(NOT_SUPPORTED));
        }
    }
}

#[test]
fn each_kind_of_failure_is_told_as_what_it_is() {
    for (op, status, error) in [
        (Op::Flush, Status::IoError, IO),
        (Op::Read, Status::Timeout, IO),
        (Op::Write, Status::NoSpace, NO_SPACE),
        (Op::Discard, Status::Unsupported, INVALID),
        (Op::WriteZeroes, Status::Medium, IO),
    ] {
        let device = Device { failing: Some((op, status)), ..Device::new() };
        let server = server_with(&device.queue(), Bounds::default());
        for mut client in both(&server) {
            for (kind, its_op) in [
                (commands::READ, Op::Read),
                (commands::WRITE, Op::Write),
                (commands::FLUSH, Op::Flush),
                (commands::TRIM, Op::Discard),
                (commands::CACHE, Op::Read),
                (commands::WRITE_ZEROES, Op::WriteZeroes),
            ] {
                let length = if kind == commands::FLUSH { 0 } else { 4096 };
                let payload = vec![0; if kind == commands::WRITE { 4096 } else { 0 }];
                let answer = client.call(kind, 0, 0, length, &payload);
                assert_eq!(answer.err(), (op == its_op).then_some(error), "{op:?}, type {kind}");
            }
            // A durable write is followed by a flush, which may fail by itself.
            let durable = client.call(commands::WRITE, command_flags::FUA, 0, 4096, &[0; 4096]);
            assert_eq!(durable.is_err(), matches!(op, Op::Flush | Op::Write));
        }
    }
}

#[test]
fn a_request_that_is_no_request_ends_the_connection_and_no_other() {
    let server = server(DEVICE);
    let (mut broken, mut other) = (Client::simple(&server), Client::simple(&server));
    broken.send(&[0; 28]);
    assert!(broken.is_closed());
    assert_eq!(other.read(0, 512), Ok(vec![0; 512]));
}

#[test]
fn requests_in_one_piece_are_all_answered_by_their_cookies() {
    for device in ["ram,size=16M", "null,size=16M,memory_backed=1,irqmode=2,completion_nsec=50us"] {
        let server = server(device);
        for mut client in both(&server) {
            let mut bytes = Vec::new();
            (0..128).for_each(|cookie| bytes.extend(write(cookie, cookie * 4096, &[cookie as u8; 4096])));
            client.send(&bytes);
            let mut cookies: Vec<_> = (0..128).map(|_| client.reply(|_| 0)).collect();
            cookies.sort_by_key(|reply| reply.0);
            assert!(cookies.into_iter().eq((0..128).map(|cookie| (cookie, Ok(vec![])))));
            let reads = (0..128_u64).rev().map(|cookie| request(commands::READ, 0, cookie, cookie * 4096, 4096));
            client.send(&reads.collect::<Vec<_>>().concat());
            let answers: HashMap<_, _> = (0..128).map(|_| client.reply(|_| 4096)).collect();
            assert_eq!(answers.len(), 128);
            for (cookie, answer) in answers {
                assert_eq!(answer, Ok(vec![cookie as u8; 4096]));
            }
        }
    }
}

#[test]
fn a_connection_hears_of_what_another_thread_completes() {
    let q = queue("null,size=16M,memory_backed=1,irqmode=2,completion_nsec=1ms");
    let _threads = q.start_threads(1).unwrap();
    let server = server_with(&q, Bounds::default());
    let mut client = Client::simple(&server);
    for index in 0..50_u64 {
        assert_eq!(client.write(index * 4096, &[index as u8; 4096]), Ok(vec![]));
    }
    assert_eq!(client.read(49 * 4096, 4096), Ok(vec![49; 4096]));
}

#[test]
fn requests_that_come_together_go_through_the_queue_together() {
    let q = queue(DEVICE);
    let server = server_with(&q, Bounds::default());
    let mut client = Client::simple(&server);
    let reads = (0..100).map(|cookie| request(commands::READ, 0, cookie, cookie * 512, 512));
    client.send(&reads.collect::<Vec<_>>().concat());
    for _ in 0..100 {
        assert_eq!(client.reply(|_| 512).1, Ok(vec![0; 512]));
    }
    assert!(q.counters().merges_plug >= 50, "{:?}", q.counters());
}

#[test]
fn a_request_may_come_byte_by_byte() {
    let server = server(DEVICE);
    let mut client = Client::simple(&server);
    write(1, 512, &[3; 512]).chunks(1).for_each(|byte| client.send(byte));
    assert_eq!(client.reply(|_| 0), (1, Ok(vec![])));
    assert_eq!(client.read(512, 512), Ok(vec![3; 512]));
}

#[test]
fn a_request_larger_than_the_slots_is_done_in_steps() {
    // Two slots of 8 sectors each: 8 KiB is the longest operation.
    let driver = blkmq::driver::spec::open("null,size=16M,memory_backed=1,discard=1,max_sectors=8").unwrap();
    let q = blkmq::RequestQueue::builder(driver).slots(2).build().unwrap();
    assert_eq!(q.limits().max_sectors, 8);
    let server = server_with(&q, Bounds::default());
    let data: Vec<u8> = (0..1_000_448_u32).map(|index| (index / 7) as u8).collect();
    for mut client in both(&server) {
        assert_eq!(client.write(512, &data), Ok(vec![]));
        assert_eq!(client.read(512, data.len() as u32), Ok(data.clone()));
        assert_eq!(client.call(commands::CACHE, 0, 0, SIZE as u32, &[]), Ok(vec![]));
        assert_eq!(client.call(commands::WRITE_ZEROES, command_flags::FUA, 0, SIZE as u32, &[]), Ok(vec![]));
        assert_eq!(client.read(512, data.len() as u32), Ok(vec![0; data.len()]));
        assert_eq!(client.write(512, &data), Ok(vec![]));
        assert_eq!(client.call(commands::TRIM, 0, 0, SIZE as u32, &[]), Ok(vec![]));
        assert_eq!(client.read(512, data.len() as u32), Ok(vec![0; data.len()]));
    }
}

/// Red if the buffers of reads keep what the last request left in them: such a device does not write to them.
#[test]
fn a_device_that_keeps_no_data_shows_zeroes_and_no_earlier_request() {
    for device in ["null,size=16M", "null,size=16M,irqmode=2,completion_nsec=20us", "hdd,size=16M", "ssd,size=16M"] {
        let server = server(device);
        let mut clients = both(&server);
        for length in [512, 4096, 5 << 20] {
            let secret = vec![0x5e; length];
            for writer in 0..2 {
                assert_eq!(clients[writer].write(0, &secret), Ok(vec![]), "{device}");
                for reader in &mut clients {
                    let answer = reader.read(8 << 20, length as u32);
                    assert!(answer.as_deref() == Ok(&vec![0; length][..]), "{device}: {length} bytes");
                    // This fills a buffer, and the next client's read may get the same buffer.
                    assert_eq!(reader.call(commands::CACHE, 0, 0, length as u32, &[]), Ok(vec![]));
                }
            }
        }
    }
}
