//! Models of a notification that is set while something completes: the completion is told, whichever comes first.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::model::{fail, fail_without, holds, join, spawn};
use blkmq_sync::atomic::AtomicU32;
use blkmq_sync::notify::Notify;
use blkmq_sync::stack::SlotStack;
use blkmq_sync::wake::Wake;

/// Whether it was told. Loom does not look at this: it is read when both threads have ended.
#[derive(Default)]
struct Notified(AtomicBool);

impl Notify for Notified {
    fn notify(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Submitter {
    completions: SlotStack,
    link: AtomicU32,
    wake: Wake,
}

/// One thread completes an operation, as `Delivery::send` does, while the submitter's thread sets a notification, as
/// `Submitter::set_notify` does. If it `looks`, it then looks for what came before.
fn setting(looks: bool) {
    let shared = Arc::new(Submitter {
        completions: SlotStack::new("test.completions"),
        link: AtomicU32::new(77),
        wake: Wake::default(),
    });
    let completer = spawn(&shared, move |shared| {
        let tells = shared.wake.has_notify();
        shared.completions.push([0], |_| &shared.link);
        if tells {
            shared.wake.wake_for(&[0]);
        } else {
            shared.wake.wake();
        }
    });
    let told = Arc::new(Notified::default());
    let notify: Arc<dyn Notify> = told.clone();
    let _ = shared.wake.set_notify(Some(notify));
    if looks {
        shared.wake.poll_pending_event(|| !shared.completions.is_empty());
    }
    join(completer);
    assert!(told.0.load(Ordering::Relaxed), "the completion was not told");
}

#[test]
fn a_completion_is_told_also_while_the_notification_is_set() {
    holds(|| setting(true));
}

#[test]
fn each_ordering_and_fence_is_needed() {
    fail_without(&[("wake.notify_fence", || setting(true)), ("wake.wake_fence", || setting(true))]);
}

#[test]
fn each_broken_variant_fails() {
    fail(&[("the_look_for_what_came_before_is_needed", || setting(false))]);
}
