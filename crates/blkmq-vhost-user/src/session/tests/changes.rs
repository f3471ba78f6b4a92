//! Servers that come after others, and front-ends that change things while their guest works.

use super::*;

/// How often the descriptor was written since it was last read.
fn rings(call: &Signal) -> u64 {
    call.read().unwrap_or(0)
}

/// The last server was killed when it had shown an answer and had not told of it. Red before the next server told the
/// guest at the start of a ring: the guest's event lies behind what it was shown, so it never heard again.
#[test]
fn a_ring_that_begins_tells_its_guest_once() {
    let served = Served::new("ram,size=1M", |_| ());
    let guest = Guest::new(8, false, true);
    let mut front = connect(&served.socket(), &guest, 0);
    let mut disk = Disk::new(&mut front, guest, 0);
    front.get_vring_base(0).unwrap();
    // One answer is there, and the guest waits for it: its event is at index 0.
    for at in [disk.guest.layout.driver, disk.guest.layout.device] {
        disk.guest.all.write(at as usize + 2, 1_u16.to_le_bytes());
    }
    front.set_vring_base(0, 1).unwrap();
    // As QEMU does it: the call before the kick.
    disk.call = Signal::new(libc::EFD_NONBLOCK).unwrap();
    front.set_vring_call(0, &disk.call).unwrap();
    front.set_vring_kick(0, &disk.kick).unwrap();
    // The answer comes when the worker has had the ring.
    front.get_vring_base(0).unwrap();
    assert!(rings(&disk.call) > 0, "a guest that sleeps is told");
}
