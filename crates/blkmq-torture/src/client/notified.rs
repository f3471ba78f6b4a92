//! A client that sleeps without the queue's help. The client is told of completions, and looks again when its submitter
//! wanted to.

use std::sync::Arc;
use std::time::Duration;

use blkmq_sync_virtual::Parker;
use blkmq_virtual::{Notify, Submitter};

use super::{Client, direct};

/// The receiver of the queue's notifications.
struct Bell(Parker);

impl Notify for Bell {
    fn notify(&self) {
        self.0.unpark();
    }
}

/// Works until it is time to leave, and leaves.
pub(super) fn work(client: &mut Client, mut submitter: Submitter) {
    let bell = Arc::new(Bell(Parker::new()));
    submitter.set_notify(Some(Arc::clone(&bell) as Arc<dyn Notify>));
    let switches = client.workload.random.one_in(2);
    let (mut is_told, mut idle_rounds) = (true, 0);
    loop {
        direct::burst(client, &mut submitter);
        if !is_told {
            client.sleeps(|| submitter.wait(1, None));
        }
        while is_told && !submitter.poll() && submitter.nr_outstanding() > 0 {
            let now = client.world.q.clock().now();
            // `None`: the thread that ends the quiescence tells this client.
            let timeout = submitter.next_wakeup().map(|wakeup| Duration::from_nanos(wakeup.since(now)));
            client.sleeps(|| bell.0.park_until(timeout));
        }
        client.passed_on();
        let nr_reaped = submitter.reap_all(|completion| client.over(completion));
        // The queue may have refused everything that this client wanted.
        idle_rounds = if nr_reaped == 0 { idle_rounds + 1 } else { 0 };
        if !client.stays() {
            break;
        }
        client.meets_again(&mut submitter);
        if switches && client.workload.random.one_in(8) {
            is_told = !is_told;
            submitter.set_notify(is_told.then(|| Arc::clone(&bell) as Arc<dyn Notify>));
        }
        if idle_rounds > 4 {
            Client::rest(idle_rounds);
        } else if client.workload.random.one_in(4) {
            client.pause();
        }
    }
    if client.workload.random.one_in(2) {
        submitter.set_notify(None);
    }
    client.leave(submitter);
}
