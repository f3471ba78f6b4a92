//! Front-ends that pass descriptors by which they could stop or end the server.

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::*;
use crate::notifier::tests::bounded;
use crate::protocol::message::InflightInfo;

/// A memfd of so many bytes that can be cut short.
fn unsealed(len: u64) -> OwnedFd {
    let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, len).unwrap();
    file
}

/// Red if a front-end can lend memory, or a record of what is in progress, that it can cut short or that another
/// process delivers, although the operator has not allowed that; or if it cannot where that is allowed.
#[test]
fn memory_that_could_end_the_server_is_refused_unless_it_is_allowed() {
    for any_memory in [false, true] {
        for case in ["table", "region", "record"] {
            let served = Served::new("ram,size=1M", |device| device.any_memory = any_memory);
            let (guest, mut front) = served.front();
            let file = unsealed(END);
            let region = VhostUserMemoryRegionInfo { mmap_handle: file.as_raw_fd(), ..region(&guest) };
            // The answer to a message without one of its own says how it went.
            match case {
                "table" => drop(front.set_mem_table(&[region])),
                "region" => {
                    let apart = VhostUserMemoryRegionInfo {
                        guest_phys_addr: 2 * END,
                        userspace_addr: USER + 2 * END,
                        ..region
                    };
                    drop(front.add_mem_region(&apart));
                }
                _ => {
                    let (info, _) = make_record(&mut front);
                    drop(front.set_inflight_fd(&info, file.as_raw_fd()));
                }
            }
            assert_eq!(front.get_features().is_ok(), any_memory, "{case}");
            if !any_memory {
                served.warns("seal it, or set any_memory=1");
            }
        }
    }
}

/// Red if the record that a server made for its front-end is refused by the next server.
#[test]
fn a_record_that_a_server_has_made_is_taken_by_the_next() {
    let served = Served::new("ram,size=1M", |_| ());
    let (mut front, mut disk) = served.machine(0);
    let (InflightInfo { len, .. }, file) = Inflight::make(1, 8).unwrap();
    let info = VhostUserInflight { num_queues: 1, queue_size: 8, mmap_size: len, mmap_offset: 0 };
    let base = front.get_vring_base(0).unwrap();
    front.set_inflight_fd(&info, file.as_raw_fd()).unwrap();
    disk.start(&mut front, base);
    assert_eq!(disk.request(FLUSH, 0, &[], false), (0, 1));
}

/// Passes a descriptor in a message of the ring with number 0, as no library does it.
fn pass(front: &UnixStream, code: u32, file: impl AsFd) {
    let message = [code, 1, 8, 0, 0].map(u32::to_le_bytes);
    wire::send(front.as_fd(), message.as_flattened(), Some(file.as_fd())).unwrap();
}

/// Red if a pipe that may be full, or a device that is always readable, is used as kick, call or error descriptor: a
/// worker would wait for the first one, and never sleep because of the second one.
#[test]
fn what_is_no_eventfd_is_refused() {
    bounded(|| {
        for (code, what) in [(12, "kick"), (13, "call"), (14, "error")] {
            let served = Served::new("ram,size=1M", |_| ());
            let expected = format!("the {what} descriptor of ring 0 is no eventfd");
            let (_reader, writer) = std::io::pipe().unwrap();
            let zero = std::fs::File::options().read(true).write(true).open("/dev/zero").unwrap();
            for other in [OwnedFd::from(writer), zero.into()] {
                let front = UnixStream::connect(served.socket()).unwrap();
                pass(&front, code, &other);
                served.warns(&expected);
            }
            let mut front = UnixStream::connect(served.socket()).unwrap();
            pass(&front, code, EventFd::new().unwrap().as_fd());
            front.write_all([1_u32, 1, 0].map(u32::to_le_bytes).as_flattened()).unwrap();
            front.read_exact(&mut [0; 20]).expect("the connection goes on");
        }
    });
}

/// Red if a connection waits until a descriptor that it does not use is closed: the next front-end would not be served,
/// and the server would not end.
#[test]
fn descriptors_that_take_long_to_close_hold_nobody() {
    bounded(|| {
        let mut served = Served::new("ram,size=1M", |_| ());
        let mut others = Vec::new();
        // In the place of a kick, beside a message that takes none, and in one that is never complete.
        for (code, bytes) in [(12, 20), (1, 20), (12, 4)] {
            let (file, other) = crate::foreign::tests::lingering();
            others.push(other);
            let front = UnixStream::connect(served.socket()).unwrap();
            let message = [code, 1, 8, 0, 0].map(u32::to_le_bytes);
            wire::send(front.as_fd(), &message.as_flattened()[..bytes], Some(file.as_fd())).unwrap();
            drop((file, front));
        }
        served.serves_another();
        served.end();
    });
}

/// A front-end that fills its own counters. Red before eventfds were signalled without a wait: the worker waited for
/// ever, also after the front-end had gone. The next front-end was not served, clients that change a part of a block
/// waited for the worker's turn, and the server did not end.
#[test]
fn full_counters_of_a_front_end_hold_nobody() {
    bounded(|| {
        let mut served = Served::new("ram,size=1M", |_| ());
        let (front, mut disk) = served.machine(1 << VIRTIO_RING_F_EVENT_IDX);
        let [call, error] = [0; 2].map(|flags| Eventfd::new(flags).unwrap());
        [&call, &error].into_iter().for_each(|full| full.write(u64::MAX - 1).unwrap());
        front.set_vring_call(0, &call).unwrap();
        front.set_vring_err(0, &error).unwrap();
        for _ in 0..3 {
            disk.ask(FLUSH, 0, 0, &[], false);
            while disk.guest.number(disk.guest.layout.device + 2) == disk.seen {
                std::thread::yield_now();
            }
            disk.seen += 1;
        }
        disk.ask(READ, 0, 0, &[(END - 1, 512)], true);
        served.warns("a descriptor of 512 bytes");
        assert!(front.get_features().is_err(), "the connection is over");
        served.serves_another();
        served.end();
    });
}

/// Red before kicks were heard without a read: the thread of the rings waited in the second read. With a read that does
/// not wait, a thread takes the kick from another one.
#[test]
fn rings_may_share_a_kick_descriptor() {
    for nr_threads in [1, 2] {
        bounded(move || {
            let mut served = Served::new("ram,size=1M", |device| {
                device.nr_queues = 2;
                device.nr_threads = nr_threads;
            });
            let (guest, mut front) = served.front();
            let beside = guest.beside(APART);
            let mut disks = [(guest, 0), (beside, 1)].map(|(guest, number)| Disk::new(&mut front, guest, number));
            disks[1].kick = disks[0].kick.try_clone().unwrap();
            front.set_vring_kick(1, &disks[1].kick).unwrap();
            for _ in 0..200 {
                disks.iter_mut().for_each(|disk| disk.ask(FLUSH, 0, 0, &[], false));
                disks.iter_mut().for_each(|disk| assert_eq!(disk.wait(), (0, 1)));
            }
            served.end();
        });
    }
}
