//! What a machine may have at a time.

use super::*;

/// Red before a thread counted the pieces of its requests. 4096 requests of 1024 pieces each took 100 MB that counted
/// as no client's memory.
#[test]
fn a_thread_has_so_many_pieces_at_a_time() {
    const PIECES: u32 = 126;
    const REQUESTS: u16 = 160;
    // All that were taken are with the device when the first one is over.
    let device = "null,irqmode=2,completion_nsec=2000000000,hw_queue_depth=256,size=1G";
    let mut served = Served::new(device, |_| ());
    let (mut front, mut disk) = served.machine_of(Guest::new(256, false, true), 0);
    front.set_vring_enable(0, false).unwrap();
    front.get_features().unwrap();
    let far = disk.data() + 0x1000;
    let data: Vec<_> = (0..PIECES).map(|nr| (far + 512 * u64::from(nr), 512)).collect();
    // Many chains name one request.
    disk.ask(READ, 0, 0, &data, true);
    for head in 1..REQUESTS {
        let table = (disk.data() + 0x100, 16 * (PIECES + 2), INDIRECT, 0);
        disk.guest.table(disk.guest.layout.descriptors + 16 * u64::from(head), &[table]);
        disk.guest.offer(head);
    }
    front.set_vring_enable(0, true).unwrap();
    disk.kick.write(1).unwrap();
    let mut most = 0;
    while disk.guest.number(disk.guest.layout.device + 2) < REQUESTS {
        most = most.max(served.engine.clients.list()[0].unanswered);
        std::thread::sleep(Duration::from_millis(5));
    }
    // The last one that is taken may be of many pieces. A look may come when some are over.
    assert!((1..=16384_u64.div_ceil(PIECES.into())).contains(&most), "{most}");
    assert_eq!(served.errors(), 0);
    served.end();
}
