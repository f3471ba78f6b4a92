//! Telling the kernel that the device behind a queue has become larger.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use blkmq::RequestQueue;

/// How often a device is asked how large it is.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A thread that polls a device's capacity. Dropping the value ends the thread at its next poll, without waiting: a
/// device may take long to report its capacity.
#[derive(Debug)]
pub(crate) struct Growth {
    _stop: Sender<()>,
}

impl Growth {
    /// Calls `tell` with the sectors of the queue's device when there are more than `told`, and again and again until
    /// it has returned true for so many.
    pub(crate) fn watch(
        name: String,
        q: RequestQueue,
        mut told: u64,
        every: Duration,
        tell: impl Fn(u64) -> bool + Send + 'static,
    ) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel::<()>();
        let watch = move || {
            while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                // A device that cannot say how large it is may say so later.
                let found = q.revalidate().map_or(told, |_| q.limits().whole_sectors());
                if found > told && tell(found) {
                    told = found;
                }
            }
        };
        thread::Builder::new().name(name).spawn(watch)?;
        Ok(Self { _stop: stop })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use blkmq::driver::{Batch, Driver, NextEvent, Topology};
    use blkmq::{Limits, Time};

    use super::*;

    /// A device without requests that changes its size.
    #[derive(Debug)]
    struct Elastic(AtomicU64);

    impl Driver for Elastic {
        fn name(&self) -> &'static str {
            "elastic"
        }

        fn limits(&self) -> Limits {
            let capacity_sectors = self.0.load(Ordering::Relaxed);
            Limits { capacity_sectors, logical_block_size: 4096, ..Limits::default() }
        }

        fn topology(&self) -> Topology {
            Topology::new(1, 1)
        }

        fn queue_rqs(&self, _hctx: u16, _batch: &mut Batch<'_>, _now: Time) {}

        fn next_event(&self, _hctx: u16) -> NextEvent {
            NextEvent::Never
        }
    }

    /// Red if growth is not told, is told twice or with a part of a block, or is forgotten because the kernel refused
    /// it once; or if the thread goes on without its owner.
    #[test]
    fn each_growth_is_told_until_the_kernel_has_taken_it() {
        let device = Arc::new(Elastic(AtomicU64::new(64)));
        let q = RequestQueue::builder(device.clone()).build().unwrap();
        let (tell, told) = mpsc::channel();
        let refuses_once = AtomicU64::new(1);
        let every = Duration::from_millis(1);
        let growth = Growth::watch("growth".to_owned(), q, 64, every, move |sectors| {
            tell.send(sectors).is_ok() && refuses_once.swap(0, Ordering::Relaxed) == 0
        });
        device.0.store(135, Ordering::Relaxed);
        assert_eq!([told.recv(), told.recv()], [Ok(128); 2], "it was refused the first time");
        device.0.store(512, Ordering::Relaxed);
        assert_eq!(told.recv(), Ok(512));
        drop(growth.unwrap());
        assert_eq!(told.iter().count(), 0);
    }
}
