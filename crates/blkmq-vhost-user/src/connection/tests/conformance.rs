//! What every front-end owes its clients and the engine.

use blkmq_engine::Ask;
use blkmq_engine::harness::{TestClient, TestServer, check};

use super::*;

/// A machine with one ring, of which one request is in flight at a time.
pub(in crate::connection) struct Machine {
    front: Frontend,
    disk: Disk,
    /// What was asked for last, and the bytes of its data.
    asked: (Ask, usize),
}

impl TestServer for Served {
    const FRONT_END: FrontEnd = FrontEnd::VhostUser;
    const DEPTH: usize = 1;
    type Client = Machine;

    fn start(export: Export) -> Self {
        Self::with(tempfile::tempdir().unwrap(), export, |_| ())
    }

    fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    fn connect(&self) -> Option<Machine> {
        self.socket().exists().then(|| {
            let (front, disk) = self.machine(0);
            Machine { front, disk, asked: (Ask::Flush, 0) }
        })
    }

    fn wait(&mut self) {
        self.end();
    }
}

impl TestClient for Machine {
    fn terms(&mut self) -> (u64, bool) {
        let flags = VhostUserConfigFlags::empty();
        let (_, config) = self.front.get_config(0, SIZE as u32, flags, &[0; SIZE]).unwrap();
        let sectors = u64::from_le_bytes(*config.first_chunk().unwrap());
        (sectors * 512, has(self.front.get_features().unwrap(), VIRTIO_BLK_F_RO))
    }

    fn send(&mut self, ask: Ask, offset: u64, data: &[u8]) {
        let (far, len, disk) = (self.disk.data() + 0x1000, data.len(), &mut self.disk);
        self.asked = (ask, len);
        disk.guest.fill(far, len, |at| data[at]);
        // The engine copies data in pieces that are no whole sectors.
        let whole = [(far, len as u32)];
        let odd = [(far, 1), (far + 1, (len as u32).saturating_sub(1))];
        let pieces = if len > 0x10000 { &odd[..] } else { &whole };
        match ask {
            Ask::Read => disk.ask(READ, offset / 512, 0, pieces, true),
            Ask::Write { .. } => disk.ask(OUT, offset / 512, 0, pieces, false),
            Ask::Flush => disk.ask(FLUSH, 0, 0, &[], false),
            _ => {
                let kind = if matches!(ask, Ask::Discard { .. }) { DISCARD } else { ZEROES };
                disk.guest.write_ranges(far, &[[offset / 512, len as u64 / 512]]);
                disk.ask(kind, 0, 0, &[(far, 16)], false);
            }
        }
    }

    fn receive(&mut self) -> Option<Vec<u8>> {
        let (status, _) = self.disk.wait();
        let len = if self.asked.0 == Ask::Read { self.asked.1 } else { 0 };
        (status == 0).then(|| self.disk.bytes(self.disk.data() + 0x1000, len))
    }

    fn wait_closed(&mut self) {
        assert!(self.front.get_features().is_err());
    }
}

/// Red if a machine that may only read changes something, if a latency or an error is not counted, if a front-end that
/// is gone leaves something behind, or if a drain or a lack of memory loses a request.
#[test]
fn vhost_user_does_what_a_front_end_owes() {
    check::<Served>();
}
