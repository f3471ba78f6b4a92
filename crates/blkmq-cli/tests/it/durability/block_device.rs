//! A client behind ublk, without the kernel: it hands a queue's requests over as the kernel does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use blkmq::Submitter;
use blkmq::event::EventFd;
use blkmq_engine::{Bounds, Engine, FrontEnd, Session, sleep};
use blkmq_ublk::abi::{Descriptor, flag, op};
use blkmq_ublk::work::Work;

use crate::durability::ledger::SECTOR;
use crate::durability::load::{Kind, Operation, Port};

/// Tags of the queue.
const DEPTH: u16 = 16;
/// Bytes of the largest request.
const MOST: u32 = 64 << 10;

/// A queue of a block device, of the engine's first export.
pub(crate) struct BlockDevice {
    /// Before the session, which has nothing in progress then.
    submitter: Submitter,
    work: Work,
    bell: Arc<EventFd>,
    /// The cookie of the request that has the tag.
    cookies: Vec<Option<u64>>,
    is_gone: Arc<AtomicBool>,
}

impl BlockDevice {
    /// `is_gone`: the server has ended.
    pub(crate) fn new(engine: &Arc<Engine>, is_gone: &Arc<AtomicBool>) -> Self {
        let bell = Arc::new(EventFd::new().expect("there are descriptors"));
        let entry = engine.clients.enter(FrontEnd::Ublk, "a test".into(), vec![Arc::clone(&bell)]);
        let bounds = Bounds { requests: DEPTH, ..engine.bounds };
        let (submitter, session) = Session::of_own(engine, 0, (&entry, 0), bounds).expect("there is a place");
        let work = Work::new(session, (DEPTH, MOST), None, false).expect("there is memory");
        Self { submitter, work, bell, cookies: vec![None; DEPTH.into()], is_gone: Arc::clone(is_gone) }
    }
}

impl BlockDevice {
    /// Serves the queue while another client works, as its thread does: clients that change parts of blocks wait until
    /// each thread has heard of it.
    pub(crate) fn beside<T: Send>(&mut self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let other = scope.spawn(work);
            while !other.is_finished() {
                self.work.submit(&mut self.submitter);
                thread::sleep(Duration::from_micros(50));
            }
            other.join().expect("it does not panic")
        })
    }
}

impl Port for BlockDevice {
    const HAS_PREFLUSH: bool = false;

    fn is_durable(&self, kind: Kind, wished: bool) -> bool {
        wished && kind != Kind::Discard
    }

    /// The kernel sends zeroes as data where the device makes none.
    fn ask(&mut self, operation: &Operation, cookie: u64, data: &[u8]) -> bool {
        let tag = self.cookies.iter().position(Option::is_none).expect("there are as many tags as requests");
        self.cookies[tag] = Some(cookie);
        let bytes = operation.bytes.clone();
        let op = match operation.kind {
            Kind::Write | Kind::Zero => {
                let place = &mut self.work.data(tag as u16).expect("no request has the tag")[..bytes.len()];
                if operation.kind == Kind::Zero {
                    place.fill(0)
                } else {
                    place.copy_from_slice(data)
                }
                op::WRITE
            }
            Kind::Discard => op::DISCARD,
            Kind::Flush => op::FLUSH,
        };
        let op_flags = u32::from(op) | if operation.fua { flag::FUA } else { 0 };
        let (start_sector, nr_sectors) = ((bytes.start / SECTOR) as u64, (bytes.len() / SECTOR) as u32);
        self.work.arrive(tag as u16, &Descriptor { op_flags, nr_sectors, start_sector });
        !self.is_gone.load(Ordering::Relaxed)
    }

    fn answer(&mut self) -> Option<(u64, bool)> {
        while !self.is_gone.load(Ordering::Relaxed) {
            let is_busy = self.work.submit(&mut self.submitter) | self.work.drive(&mut self.submitter);
            if let Some((tag, result)) = self.work.next_over() {
                return self.cookies[usize::from(tag)].take().map(|cookie| (cookie, result >= 0));
            }
            if !is_busy {
                let limit = Some(Duration::from_millis(1));
                sleep(&mut self.submitter, &mut [], &self.bell, limit).expect("it can wait");
            }
        }
        None
    }
}
