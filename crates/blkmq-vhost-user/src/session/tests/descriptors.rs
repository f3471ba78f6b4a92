//! Front-ends that pass descriptors by which they could stop or end the server.

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::*;
use crate::protocol::message::InflightInfo;

/// A memfd of so many bytes that can be cut short.
fn unsealed(len: u64) -> OwnedFd {
    let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, len).unwrap();
    file
}

/// Red if a front-end can lend memory, or a record of what is in progress, that it can cut short or that another process
/// delivers, although the operator has not allowed that; or if it cannot where that is allowed.
#[test]
fn memory_that_could_end_the_server_is_refused_unless_it_is_allowed() {
    for any_memory in [false, true] {
        for case in ["table", "region", "record"] {
            let served = Served::new("ram,size=1M", |device| device.any_memory = any_memory);
            let guest = Guest::new(8, false, true);
            let mut front = connect(&served.socket(), &guest, 0);
            let file = unsealed(END);
            let region = VhostUserMemoryRegionInfo { mmap_handle: file.as_raw_fd(), ..region(&guest) };
            // The answer to a message without one of its own says how it went.
            let _ = match case {
                "table" => front.set_mem_table(&[region]),
                "region" => {
                    let apart = VhostUserMemoryRegionInfo {
                        guest_phys_addr: 2 * END,
                        userspace_addr: USER + 2 * END,
                        ..region
                    };
                    front.add_mem_region(&apart)
                }
                _ => {
                    let info = VhostUserInflight { num_queues: 1, queue_size: 8, ..VhostUserInflight::default() };
                    let (info, _) = front.get_inflight_fd(&info).unwrap();
                    front.set_inflight_fd(&info, file.as_raw_fd())
                }
            };
            assert_eq!(front.get_features().is_ok(), any_memory, "{case}");
            if !any_memory {
                let warning = served.warning();
                assert!(warning.ends_with("seal it, or set any_memory=1"), "{case}: {warning}");
            }
        }
    }
}

/// Red if the record that a server made for its front-end is refused by the next server.
#[test]
fn a_record_that_a_server_has_made_is_taken_by_the_next() {
    let served = Served::new("ram,size=1M", |_| ());
    let guest = Guest::new(8, false, true);
    let mut front = connect(&served.socket(), &guest, 0);
    let (InflightInfo { len, .. }, file) = Inflight::make(1, 8).unwrap();
    let info = VhostUserInflight { num_queues: 1, queue_size: 8, mmap_size: len, mmap_offset: 0 };
    front.set_inflight_fd(&info, file.as_raw_fd()).unwrap();
    let mut disk = Disk::new(&mut front, guest, 0);
    assert_eq!(disk.request(FLUSH, 0, &[], false), (0, 1));
}
