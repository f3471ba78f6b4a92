//! The thread that looks what the clients of each queue do, so that shares can be told. It reads counters that the
//! threads of a queue write anyway, and costs the way of a request nothing.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use blkmq::RequestQueue;

use super::due::Weighing;
use super::history::{History, Seen};

/// The time between two looks while something is outstanding. Otherwise one look comes at the end of each second.
const STEP: Duration = Duration::from_micros(62_500);
const SECOND: Duration = Duration::from_secs(1);

/// A queue's history, which the thread writes and answers read.
pub(crate) type Shared = Arc<Mutex<History>>;

pub(super) fn lock(history: &Shared) -> MutexGuard<'_, History> {
    history.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The clients of a queue, as they are now, by name.
pub(super) fn seen(q: &RequestQueue) -> Vec<Seen> {
    let clients = q.tenants().clients();
    let paths: BTreeMap<_, _> = q.tenants().groups().into_iter().map(|group| (group.id, group.name)).collect();
    let see = |client: blkmq::ClientInfo| Seen {
        // A group that was removed meanwhile has left its clients to its parent.
        group: paths.get(&client.group).cloned().unwrap_or_default(),
        id: client.id,
        name: client.name,
        weight: client.weight,
        priority: client.priority,
        connections: client.submitters,
        outstanding: client.outstanding,
        waiting: client.waiting,
        sectors: client.reads.sectors + client.others.sectors,
    };
    let mut seen: Vec<_> = clients.into_iter().map(see).collect();
    seen.sort_by(|one, other| one.name.cmp(&other.name));
    seen
}

/// Looks at the queues for as long as the process lives.
pub(crate) fn start(queues: Vec<(RequestQueue, Shared)>) -> io::Result<()> {
    let watch = move || {
        let began = Instant::now();
        let mut second = 0;
        loop {
            let mut is_busy = false;
            for (q, history) in &queues {
                let seen = seen(q);
                is_busy |= lock(history).look(seen);
            }
            let passed = began.elapsed().as_secs();
            if passed > second {
                for (q, history) in &queues {
                    let groups: Vec<_> =
                        q.tenants().groups().into_iter().map(|group| (group.name, group.weight)).collect();
                    lock(history).end_second(passed, &groups, Weighing::of(q.scheduler()));
                }
                second = passed;
            }
            let end = SECOND * (second as u32 + 1);
            let left = end.saturating_sub(began.elapsed());
            thread::sleep(if is_busy { left.min(STEP) } else { left });
        }
    };
    thread::Builder::new().name("shares".to_owned()).spawn(watch).map(drop)
}
