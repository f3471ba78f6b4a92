//! Any descriptors lead to one result for each of their tags: a request that makes no sense ends with an error of its
//! own, and any other one does what a model of the device does.
#![no_main]

mod reach;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use blkmq::driver::spec;
use blkmq::event::EventFd;
use blkmq::{RequestQueue, Submitter};
use blkmq_engine::{Bounds, Desk, Engine, Export, FrontEnd, Journal, Level, least_memory};
use blkmq_ublk::abi::{DESCRIPTOR_SIZE, Descriptor, op};
use blkmq_ublk::work::Work;
use libfuzzer_sys::fuzz_target;
use reach::Reached;

const SIZE: usize = 256 << 10;
const BLOCK: usize = 4096;
const SECTOR: usize = 512;
const DEPTH: u16 = 8;
const MOST: u32 = 64 << 10;

/// What a byte of the device is that was discarded: anything.
const ANY: u16 = 0x100;

/// An engine with the device.
fn engine() -> &'static Arc<Engine> {
    static ENGINE: OnceLock<Arc<Engine>> = OnceLock::new();
    ENGINE.get_or_init(|| {
        let device = spec::open("ram,size=256K,bs=4096").expect("there is such a device");
        let q = RequestQueue::builder(device).build().expect("it can have a queue");
        let (journal, _) = Journal::start(Arc::new(|_: Level, _: &str| ()), "log").expect("there is a thread");
        let bell = Arc::new(EventFd::new().expect("there is a descriptor"));
        Arc::new(Engine::new(vec![Export::new("", q)], Bounds::default(), least_memory(1), 1, bell, journal))
    })
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
    let (engine, bell) = (engine(), Arc::new(EventFd::new().expect("there is a descriptor")));
    let entry = engine.clients.enter(FrontEnd::Ublk, "kernel".to_owned(), vec![bell]);
    let mut submitter = engine.exports[0].join_own(&entry).expect("there is room for one");
    let bounds = Bounds { requests: DEPTH, ..engine.bounds };
    let desk = Desk::of_thread(engine, 0, (&entry, 0), bounds, submitter.nr_slots());
    let mut work = Work::new(desk, DEPTH, MOST, None).expect("there is memory");
    let (mut model, mut nr) = (vec![ANY; SIZE], 0_u8);
    let mut asked = BTreeMap::new();
    while let Some((head, more)) = rest.split_first_chunk::<{ 2 + DESCRIPTOR_SIZE }>() {
        rest = more;
        let [low, high, descriptor @ ..] = head;
        let (tag, descriptor) = (u16::from_le_bytes([*low, *high]), Descriptor::from_bytes(descriptor));
        nr = nr.wrapping_add(1);
        let is_write = descriptor.op_flags as u8 == op::WRITE;
        if let (Some(data), true) = (work.data(tag), is_write) {
            data.fill(nr);
        }
        work.arrive(tag, &descriptor);
        if tag < DEPTH {
            asked.entry(tag).or_insert(descriptor);
        } else {
            reached.add("tags that are not", 1);
        }
        // One at a time, or all that fit together.
        if first % 2 == 0 || asked.len() == usize::from(DEPTH) {
            let results = finish(&mut work, &mut submitter);
            assert!(results.keys().eq(asked.keys()), "a result for each tag");
            for (tag, result) in results {
                if first % 2 == 0 {
                    judge(&mut model, &asked[&tag], work.data(tag).expect("it is back"), result, reached);
                } else {
                    reached.add("together", 1);
                }
            }
            asked.clear();
        }
    }
    let results = finish(&mut work, &mut submitter);
    assert!(results.keys().eq(asked.keys()), "a result for each tag");
    assert!(
        (0..DEPTH).all(|tag| work.data(tag).is_some_and(|data| data.len() == MOST as usize)),
        "each buffer is back"
    );
    engine.clients.leave(entry.number);
}

fuzz_target!(
    init: {
        let least = [("done", 10), ("errors", 12), ("bytes read", 8192), ("together", 8), ("tags that are not", 1)];
        reach::seeds("ublk_descriptors", &least, run);
    },
    |bytes: &[u8]| run(bytes, &mut Reached::default())
);
