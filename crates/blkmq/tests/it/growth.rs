//! A device that becomes larger while its queue is used.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::device::front::Front;
use crate::device::{Recorder, join};
use blkmq::{Bio, Buffer, Client, Limits, QueueError, RejectReason, RequestQueue, SectorRange, Status, Submitter};

/// A device of so many sectors that does nothing, with at most 16 sectors in a request.
fn device(sectors: u64) -> Arc<Front<AtomicU64>> {
    Arc::new(Front {
        limits: |front| {
            let capacity_sectors = front.state.load(Ordering::Relaxed);
            Limits { capacity_sectors, max_sectors: 16, ..Limits::default() }
        },
        queue_rqs: |_, _, batch, _| batch.finish_all(Status::Ok),
        ..Front::new(Recorder::of_depth(8), AtomicU64::new(sectors))
    })
}

/// The status of an operation, or the reason why it was not taken.
fn end_of(submitter: &mut Submitter, bio: Bio) -> Result<Status, RejectReason> {
    submitter.submit(bio).map_err(|rejected| rejected.reason)?;
    assert!(submitter.wait(1, None).is_ready());
    Ok(submitter.reap().expect("it is over").status)
}

fn read(sector: u64, sectors: usize) -> Bio {
    Bio::read(sector, Buffer::zeroed(sectors * 512))
}

/// Red if a submitter that was there before keeps to the old end, and refuses sectors that the device has now.
#[test]
fn operations_reach_as_far_as_the_device_once_somebody_has_asked_it() {
    let device = device(8);
    let q = RequestQueue::builder(device.clone()).build().expect("the device is right");
    let mut old = q.submitter(&Client::new("old")).expect("there is a place");
    assert_eq!((end_of(&mut old, read(0, 8)), q.revalidate()), (Ok(Status::Ok), Ok(8)));
    device.state.store(64, Ordering::Relaxed);
    let beyond = Err(RejectReason::Bad(Status::BeyondEnd));
    assert_eq!(end_of(&mut old, read(8, 8)), beyond, "nobody has asked the device yet");
    assert_eq!((q.revalidate(), q.limits().capacity_sectors), (Ok(64), 64));
    let mut new = q.submitter(&Client::new("new")).expect("there is a place");
    for submitter in [&mut old, &mut new] {
        // One request, several requests, and two that go the short way.
        for (sector, sectors) in [(8, 8), (8, 56), (48, 16), (63, 1)] {
            assert_eq!(end_of(submitter, read(sector, sectors)), Ok(Status::Ok), "{sector}+{sectors}");
        }
        for (sector, sectors) in [(49, 16), (56, 9), (64, 1), (u64::MAX - 1, 1)] {
            assert_eq!(end_of(submitter, read(sector, sectors)), beyond, "{sector}+{sectors}");
        }
    }
    let behind = SectorRange { name: "behind".to_owned(), first: 32, nr_sectors: 32 };
    assert!(q.change_ranges(vec![behind]).is_ok(), "ranges may lie there too");
}

#[test]
fn a_device_that_shrinks_is_told_and_nothing_else_changes() {
    let device = device(64);
    let q = RequestQueue::builder(device.clone()).build().expect("the device is right");
    let mut submitter = join(&q);
    device.state.store(32, Ordering::Relaxed);
    let error = q.revalidate().expect_err("it has shrunk");
    assert_eq!(error, QueueError::Shrunk { known: 64, found: 32 });
    assert!(error.to_string().contains("32 sectors, not 64"), "{error}");
    assert_eq!(q.knob("size").as_deref(), Ok("64"));
    assert_eq!(end_of(&mut submitter, read(63, 1)), Ok(Status::Ok), "the driver sees what it can do");
    device.state.store(128, Ordering::Relaxed);
    assert_eq!((q.revalidate(), q.knob("size").as_deref()), (Ok(128), Ok("128")));
    let error = q.set_knob("size", "256").expect_err("it is not for setting").to_string();
    assert_eq!(error, "size: it is the device's, and cannot be set here");
}
