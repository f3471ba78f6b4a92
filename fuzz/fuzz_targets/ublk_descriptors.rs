//! Any descriptors lead to one result for each of their tags: a request that makes no sense ends with an error of its
//! own, and any other one does what a model of the device does. So it is with zero copy, too.
#![no_main]

mod mover;
#[macro_use]
mod reach;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use blkmq::driver::{Driver, spec};
use blkmq::event::EventFd;
use blkmq::pages::PageSource;
use blkmq::{RequestQueue, Submitter};
use blkmq_engine::{Bounds, Engine, Export, FrontEnd, Session, harness};
use blkmq_ublk::abi::{DESCRIPTOR_SIZE, Descriptor, op};
use blkmq_ublk::work::Work;
use mover::{Kernel, Mover};
use reach::Reached;

const SIZE: usize = 256 << 10;
const BLOCK: usize = 4096;
const SECTOR: usize = 512;
const DEPTH: u16 = 8;
const MOST: u32 = 64 << 10;

/// What a byte of the device is that was discarded: anything.
const ANY: u16 = 0x100;

/// The pages of the kernel.
fn kernel() -> &'static &'static Kernel {
    static KERNEL: OnceLock<&'static Kernel> = OnceLock::new();
    KERNEL.get_or_init(|| Box::leak(Box::new(Kernel::new(DEPTH, MOST))))
}

/// An engine with the device: one that has its data in memory, or one that takes pages.
fn engine(has_pages: bool) -> &'static Arc<Engine> {
    static ENGINES: [OnceLock<Arc<Engine>>; 2] = [const { OnceLock::new() }; 2];
    ENGINES[usize::from(has_pages)].get_or_init(|| {
        let device: Arc<dyn Driver> = match has_pages {
            true => Arc::new(Mover::new(SIZE, BLOCK as u32, *kernel())),
            false => spec::open("ram,size=256K,bs=4096").expect("there is such a device"),
        };
        let q = RequestQueue::builder(device).build().expect("it can have a queue");
        harness::engine(Export::new("", q), 1)
    })
}

/// Calls `change` with the data of a tag, wherever it is. `None` if there is no such tag, or a request has its data.
fn with_data<T>(work: &mut Work, has_pages: bool, tag: u16, change: impl FnOnce(&mut [u8]) -> T) -> Option<T> {
    if has_pages { kernel().with(tag, change) } else { work.data(tag).map(change) }
}

/// Has everything done that has arrived. Returns the results by tag, one for each.
fn finish(work: &mut Work, submitter: &mut Submitter) -> BTreeMap<u16, i32> {
    let mut results = BTreeMap::new();
    while !work.is_idle() {
        work.submit(submitter);
        work.drive(submitter);
        while let Some((tag, result)) = work.next_over() {
            assert!(results.insert(tag, result).is_none(), "one result for each tag");
        }
    }
    results
}

/// The bytes of a request that lies on the device, in whole blocks.
fn bytes_of(descriptor: &Descriptor) -> Option<std::ops::Range<usize>> {
    let start = usize::try_from(descriptor.start_sector).ok()?.checked_mul(SECTOR)?;
    let len = usize::try_from(descriptor.nr_sectors).ok()?.checked_mul(SECTOR)?;
    let end = start.checked_add(len)?;
    let fits = len > 0 && end <= SIZE && start.is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK);
    fits.then_some(start..end)
}

/// Holds one result against the model, and changes the model.
fn judge(model: &mut [u16], descriptor: &Descriptor, data: &[u8], result: i32, reached: &mut Reached) {
    let kind = descriptor.op_flags as u8;
    let bytes = bytes_of(descriptor);
    let has_data = matches!(kind, op::READ | op::WRITE);
    let is_good = match kind {
        op::FLUSH => true,
        op::READ | op::WRITE => bytes.as_ref().is_some_and(|bytes| bytes.len() <= MOST as usize),
        op::DISCARD | op::WRITE_ZEROES => bytes.is_some(),
        _ => false,
    };
    if !is_good {
        assert!(result < 0, "{descriptor:?} ended with {result}");
        return reached.add("errors", 1);
    }
    if kind == op::WRITE_ZEROES && result == -95 {
        // The device has no way to do it as asked.
        return;
    }
    let bytes = bytes.unwrap_or_default();
    assert_eq!(result, if has_data { bytes.len() as i32 } else { 0 }, "{descriptor:?}");
    reached.add("done", 1);
    match kind {
        op::READ => {
            let read = model[bytes.clone()].iter().zip(data);
            assert!(read.clone().all(|(model, byte)| *model == ANY || *model == u16::from(*byte)), "{descriptor:?}");
            reached.add("bytes read", bytes.len());
        }
        op::WRITE => model[bytes].iter_mut().zip(data).for_each(|(model, byte)| *model = u16::from(*byte)),
        op::DISCARD => model[bytes].fill(ANY),
        op::WRITE_ZEROES => model[bytes].fill(0),
        _ => (),
    }
}

fn run(bytes: &[u8], reached: &mut Reached) {
    let Some((&first, mut rest)) = bytes.split_first() else { return };
    let (is_single, has_pages) = (first % 2 == 0, first & 2 != 0);
    let (engine, bell) = (engine(has_pages), Arc::new(EventFd::new().expect("there is a descriptor")));
    let entry = engine.clients.enter(FrontEnd::Ublk, "kernel".to_owned(), vec![bell]);
    let bounds = Bounds { requests: DEPTH, ..engine.bounds };
    let (mut submitter, session) = Session::of_own(engine, 0, (&entry, 0), bounds).expect("there is room for one");
    let pages = has_pages.then(|| Arc::new(*kernel()) as Arc<dyn PageSource>);
    let mut work = Work::new(session, (DEPTH, MOST), pages, false).expect("there is memory");
    let (mut model, mut nr) = (vec![ANY; SIZE], 0_u8);
    let mut asked = BTreeMap::new();
    while let Some((head, more)) = rest.split_first_chunk::<{ 2 + DESCRIPTOR_SIZE }>() {
        rest = more;
        let [low, high, descriptor @ ..] = head;
        let (tag, descriptor) = (u16::from_le_bytes([*low, *high]), Descriptor::from_bytes(descriptor));
        nr = nr.wrapping_add(1);
        let is_write = descriptor.op_flags as u8 == op::WRITE;
        // The kernel does not touch the pages of a request that is on its way.
        if is_write && !asked.contains_key(&tag) {
            with_data(&mut work, has_pages, tag, |data| data.fill(nr));
        }
        work.arrive(tag, &descriptor);
        if tag < DEPTH {
            asked.entry(tag).or_insert(descriptor);
        } else {
            reached.add("tags that are not", 1);
        }
        // One at a time, or all that fit together.
        if is_single || asked.len() == usize::from(DEPTH) {
            let results = finish(&mut work, &mut submitter);
            assert!(results.keys().eq(asked.keys()), "a result for each tag");
            for (tag, result) in results {
                if is_single {
                    let judge = |data: &mut [u8]| judge(&mut model, &asked[&tag], data, result, reached);
                    with_data(&mut work, has_pages, tag, judge).expect("it is back");
                    reached.add("by pages", usize::from(has_pages && result > 0));
                } else {
                    reached.add("together", 1);
                }
            }
            asked.clear();
        }
    }
    let results = finish(&mut work, &mut submitter);
    assert!(results.keys().eq(asked.keys()), "a result for each tag");
    let is_back = |work: &mut Work, tag| match has_pages {
        true => work.address(tag) == 0,
        false => work.data(tag).is_some_and(|data| data.len() == MOST as usize),
    };
    assert!((0..DEPTH).all(|tag| is_back(&mut work, tag)), "the data of each tag is back");
    engine.clients.leave(entry.number);
}

const LEAST: [(&str, u64); 6] =
    [("done", 10), ("errors", 12), ("bytes read", 8192), ("by pages", 4), ("together", 8), ("tags that are not", 1)];

target!("ublk_descriptors", run, LEAST, &[u8]);
