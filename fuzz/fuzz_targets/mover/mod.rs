//! A device and the pages of the kernel, for block devices with zero copy: what the device moves is in no memory that
//! the server has.

use std::sync::{Mutex, MutexGuard, PoisonError};

use blkmq::SECTOR_SIZE;
use blkmq::driver::{Batch, Driver, NextEvent, Topology};
use blkmq::pages::Command;
use blkmq::pages::PageSource;
use blkmq::{Limits, Op, Status, Time};

/// The pages of each tag, which are named by the tags.
#[derive(Debug)]
pub struct Kernel(Mutex<Vec<Vec<u8>>>);

/// A device that takes pages alone, and the pages that it looks into.
#[derive(Debug)]
pub struct Mover {
    bytes: Mutex<Vec<u8>>,
    block: u32,
    kernel: &'static Kernel,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Kernel {
    pub fn new(tags: u16, most: u32) -> Self {
        Self(Mutex::new(vec![vec![0; most as usize]; usize::from(tags)]))
    }

    /// What a tag's pages have, to be changed.
    pub fn with<T>(&self, tag: u16, change: impl FnOnce(&mut [u8]) -> T) -> Option<T> {
        lock(&self.0).get_mut(usize::from(tag)).map(|pages| change(pages))
    }
}

impl PageSource for &'static Kernel {
    fn register(&self, tag: u32, _slot: u16) -> Command {
        Command { file: -1, op: tag, bytes: [0; 16] }
    }

    fn unregister(&self, tag: u32, slot: u16) -> Command {
        self.register(tag, slot)
    }
}

impl Mover {
    pub fn new(size: usize, block: u32, kernel: &'static Kernel) -> Self {
        Self { bytes: Mutex::new(vec![0; size]), block, kernel }
    }
}

impl Driver for Mover {
    fn name(&self) -> &'static str {
        "mover"
    }

    fn limits(&self) -> Limits {
        Limits {
            capacity_sectors: (lock(&self.bytes).len() / SECTOR_SIZE) as u64,
            logical_block_size: self.block,
            // Less than a request of the kernel, so that these are cut.
            max_sectors: 40,
            max_discard_sectors: 64,
            max_write_zeroes_sectors: 64,
            pages_align: 1,
            ..Limits::default()
        }
    }

    fn topology(&self) -> Topology {
        Topology::new(1, 4)
    }

    fn queue_rqs(&self, _hctx: u16, batch: &mut Batch<'_>, _now: Time) {
        let mut bytes = lock(&self.bytes);
        while let Some(mut rq) = batch.next_request() {
            let (start, len) = (rq.sector() as usize * SECTOR_SIZE, rq.nr_sectors() as usize * SECTOR_SIZE);
            let place = &mut bytes[start..start + len];
            assert_eq!(rq.segments().count(), 0, "no data is in memory");
            match (rq.op(), rq.pages()) {
                (Op::Read | Op::Write, Some(pages)) => {
                    assert_eq!(pages.len(), len);
                    let (tag, part) = (pages.register(0).op as u16, pages.offset()..pages.offset() + len);
                    let moved = self.kernel.with(tag, |pages| match rq.op() {
                        Op::Read => pages[part].copy_from_slice(place),
                        _ => place.copy_from_slice(&pages[part]),
                    });
                    moved.expect("there is such a tag");
                }
                (Op::Read | Op::Write, None) => panic!("a request lacks its data"),
                (Op::Discard | Op::WriteZeroes, _) => place.fill(0),
                (Op::Flush, _) => (),
            }
            batch.finish(rq, Status::Ok);
        }
    }

    fn next_event(&self, _hctx: u16) -> NextEvent {
        NextEvent::Never
    }
}
