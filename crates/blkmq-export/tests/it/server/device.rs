//! A device that keeps its data, and fails requests of a chosen kind.

use std::sync::{Arc, Mutex};

use blkmq::SECTOR_SIZE;
use blkmq::driver::{Batch, Driver, Topology};
use blkmq::{Limits, Op, RequestQueue, Status, Time};

#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) limits: Limits,
    /// How every request of this kind ends.
    pub(crate) failing: Option<(Op, Status)>,
    pub(crate) data: Mutex<Vec<u8>>,
    /// Whether it does the reads first, of requests that come together.
    pub(crate) reads_first: bool,
    /// What it was told to do.
    pub(crate) told: Arc<Mutex<Vec<Op>>>,
    /// A caller that asks for the limits waits for this lock.
    pub(crate) says: Arc<Mutex<()>>,
}

impl Device {
    /// A device of 4 MiB that can do everything, and has a volatile cache.
    pub(crate) fn new() -> Self {
        let limits = Limits {
            capacity_sectors: 8192,
            max_discard_sectors: 8192,
            max_write_zeroes_sectors: 8192,
            write_cache: true,
            ..Limits::default()
        };
        let (data, told, says) = (Mutex::new(vec![0; 4 << 20]), Arc::default(), Arc::default());
        Self { limits, failing: None, data, reads_first: false, told, says }
    }

    pub(crate) fn queue(self) -> RequestQueue {
        RequestQueue::builder(Arc::new(self)).build().expect("the device is right")
    }
}

impl Driver for Device {
    fn name(&self) -> &'static str {
        "test"
    }

    fn limits(&self) -> Limits {
        let _says = self.says.lock().expect("no holder panics");
        self.limits
    }

    fn topology(&self) -> Topology {
        Topology::new(1, 32)
    }

    fn queue_rqs(&self, _hctx: u16, batch: &mut Batch<'_>, _now: Time) {
        let mut rqs: Vec<_> = std::iter::from_fn(|| batch.next_request()).collect();
        if self.reads_first {
            rqs.sort_by_key(|rq| rq.op() != Op::Read);
        }
        for mut rq in rqs {
            if let Some((_, status)) = self.failing.filter(|(op, _)| *op == rq.op()) {
                batch.finish(rq, status);
                continue;
            }
            let op = rq.op();
            self.told.lock().expect("no holder panics").push(op);
            let mut data = self.data.lock().expect("no holder panics");
            let mut at = rq.sector() as usize * SECTOR_SIZE;
            match op {
                Op::Flush => (),
                Op::Discard | Op::WriteZeroes => rq.ranges().for_each(|(sector, nr)| {
                    let start = sector as usize * SECTOR_SIZE;
                    data[start..start + nr as usize * SECTOR_SIZE].fill(0);
                }),
                Op::Read | Op::Write => rq.segments().for_each(|mut segment| {
                    let part = &mut data[at..at + segment.len()];
                    at += part.len();
                    if op == Op::Read { segment.copy_from(0, part) } else { segment.copy_to(0, part) }
                }),
            }
            drop(data);
            batch.finish(rq, Status::Ok);
        }
    }
}
