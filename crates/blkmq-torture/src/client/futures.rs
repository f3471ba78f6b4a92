//! A client that awaits its operations on its own executor, which sleeps when no future can make progress.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use blkmq_sync_virtual::Parker;
use blkmq_virtual::future::{AsyncSubmitter, Operation};
use blkmq_virtual::{Failed, RejectReason, Submitter};

use super::Client;
use crate::event::Event;

/// Wakes the executor.
struct Bell(Parker);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Works until it is time to leave, and leaves. At most `nr_tasks` operations are awaited at a time.
pub(super) fn work(client: &mut Client, submitter: Submitter, nr_tasks: u64) {
    let nr_tasks = usize::try_from(nr_tasks).unwrap_or(usize::MAX).min(submitter.nr_slots());
    let submitter = AsyncSubmitter::new(submitter);
    let bell = Arc::new(Bell(Parker::new()));
    let waker = Waker::from(Arc::clone(&bell));
    let mut awaited = Vec::new();
    let mut goes_on = true;
    loop {
        let is_full = goes_on && !submit(client, &submitter, &mut awaited, nr_tasks);
        if goes_on {
            goes_on = client.stays() && client.workload.meetings.is_none();
        }
        let before = awaited.len();
        if before > 0 && client.workload.random.one_in(200) {
            // No task awaits this operation any more. The operation goes on, and is over at the latest when its
            // submitter has left.
            let given_up = client.workload.random.below(before as u64) as usize;
            let (bio, operation) = awaited.swap_remove(given_up);
            client.world.witness.tell(Event::Forgotten { submitter: client.number, bio });
            drop(operation);
        }
        awaited.retain_mut(|(_, operation)| match Pin::new(operation).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(Ok(completion) | Err(Failed { completion, .. })) => {
                client.over(completion);
                false
            }
            Poll::Pending => true,
        });
        if awaited.is_empty() {
            // Operations that no task awaits may hold all slots, or the sectors that this client wants. Only leaving
            // makes such operations complete.
            if !goes_on || is_full || client.workload.meetings.is_some() || client.workload.random.one_in(4) {
                break;
            }
            client.pause();
        }
        if !awaited.is_empty() && awaited.len() == before {
            let now = client.world.q.clock().now();
            let timeout = submitter.next_wakeup().map(|wakeup| Duration::from_nanos(wakeup.since(now)));
            client.sleeps(|| bell.0.park_until(timeout));
        }
    }
    client.leaves();
    drop(submitter);
    client.left(false);
}

/// Submits until enough operations are awaited. Returns false if there is no slot for another one.
fn submit(client: &mut Client, submitter: &AsyncSubmitter, awaited: &mut Vec<(u64, Operation)>, most: usize) -> bool {
    while awaited.len() < most {
        let Some((bio, is_bad)) = client.next() else { return true };
        let number = bio.user_data;
        match submitter.submit(bio) {
            Ok(operation) => {
                client.took(number, None, is_bad);
                awaited.push((number, operation));
            }
            Err(rejected) => {
                let is_full = rejected.reason == RejectReason::Full;
                client.refused(rejected, is_bad);
                if is_full {
                    return false;
                }
            }
        }
    }
    true
}
