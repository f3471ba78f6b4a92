//! Quiescing: the driver gets nothing. Everything that was submitted meanwhile stays queued, and goes on afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{assert_balanced, queue};
use crate::device::front::Front;
use crate::device::{Drive, open};
use blkmq::{Bio, Buffer, Client, RequestQueue};

/// Red if a submitter without a scheduler starts requests of a quiesced queue, or hands them to a driver that takes
/// concurrent calls: the driver would get them, or they would stay with the submitter until it submits again.
#[test]
fn what_is_submitted_to_a_quiesced_queue_goes_on_afterwards() {
    for device in ["null,irqmode=0", "null,irqmode=1", "null,irqmode=1,memory_backed=1,cache_size=1"] {
        for scheduler in blkmq::scheduler_names() {
            let q = queue(device, scheduler);
            let mut submitter = q.submitter(&Client::new("one")).unwrap();
            let mut other = q.submitter(&Client::new("other")).unwrap();
            let quiesce = q.quiesce();
            for number in 0..4 {
                submitter.submit(Bio::write(number * 80, Buffer::zeroed(512))).unwrap();
            }
            submitter.submit_now(Bio::flush());
            assert!(!other.poll());
            assert_eq!(q.counters().issued, 0, "{device} {scheduler}");
            drop(quiesce);
            // Another thread looks first, and may find that nothing was left.
            other.poll();
            submitter.finish();
            assert_balanced(&q);
        }
    }
}

/// Red if a background thread of a quiesced queue plans for what is due, although it can do nothing about it: it would
/// ask the device thousands of times. On a slow machine it asks less often.
#[test]
fn background_threads_rest_while_the_queue_is_quiesced() {
    // A device with one request, which is over at the next poll. It counts how often it is asked for its next event.
    let device = Arc::new(Front::<AtomicU64> {
        next_event: |front, hctx| {
            front.state.fetch_add(1, Ordering::Relaxed);
            front.inner.next_event(hctx)
        },
        ..Front::new(open("null,irqmode=1"), AtomicU64::new(0))
    });
    let q = RequestQueue::builder(device.clone()).scheduler("none").build().unwrap();
    let mut submitter = q.submitter(&Client::new("one")).unwrap();
    submitter.submit_now(Bio::read(0, Buffer::zeroed(512)));
    let quiesce = q.quiesce();
    let background = q.start_threads(2).unwrap();
    let before = device.state.load(Ordering::Relaxed);
    std::thread::sleep(Duration::from_millis(50));
    let asked = device.state.load(Ordering::Relaxed) - before;
    assert!(asked <= 100, "they asked {asked} times in 50 ms");
    drop(quiesce);
    submitter.wait(1, None);
    assert!(submitter.reap().is_some());
    drop(background);
}
