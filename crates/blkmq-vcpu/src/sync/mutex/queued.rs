//! A queued spinlock, as Linux's kernel has: its word says whether the lock is held, whether one CPU waits at the word,
//! and which CPU is the last in the queue behind. Each CPU in the queue has a node on a line of its own. The CPU looks
//! at its node until the CPU before it has taken the lock.

use super::Wanted;
use crate::cache::Access;
use crate::hot::CpuId;
use crate::machine::node;
use crate::step::operate_at;
use crate::sync::waiters::{self, Node, Waiters};

pub(super) fn lock(wanted: &mut Wanted<'_>) {
    let (address, me) = (wanted.address, crate::cpu());
    let (mut is_taken, mut is_queued) = (false, false);
    wanted.access(Access::Update, |wanted| {
        is_queued = waiters::known(address, |waiters| waiters.has_queue()).unwrap_or(false);
        is_taken = !is_queued && (wanted.take)();
    });
    if is_taken {
        return;
    }
    let be_pending = |waiters: &mut Waiters| {
        let is_first = !waiters.has_queue();
        if is_first {
            waiters.pending = Some(me);
        }
        is_first
    };
    if !is_queued && wanted.access(Access::Update, |_| waiters::at(address, be_pending)) {
        wanted.look_until(None, |wanted| !(wanted.is_held)());
        return wanted.access(Access::Store, |wanted| {
            wanted.must_take();
            waiters::at(address, |waiters| waiters.pending = None);
        });
    }
    wait_in_queue(wanted);
}

fn wait_in_queue(wanted: &mut Wanted<'_>) {
    let (address, me) = (wanted.address, crate::cpu());
    let at = wanted.at;
    let mine = node(me);
    operate_at(mine, Access::Store, at, || ());
    let before = wanted.access(Access::Update, |_| {
        waiters::at(address, |waiters| {
            let before = waiters.queue.back().map(|node| node.cpu);
            waiters.queue.push_back(Node { cpu: me, knows_next: false, is_first: before.is_none() });
            before
        })
    });
    if let Some(before) = before {
        let tell = || on_node(address, before, |node| node.knows_next = true);
        operate_at(node(before), Access::Store, at, tell);
        wanted.look_at(mine, None, |_| on_node(address, me, |node| node.is_first));
    }
    wanted.look_until(None, |wanted| {
        let is_pending = waiters::at(address, |waiters| waiters.pending.is_some());
        !is_pending && !(wanted.is_held)()
    });
    let is_last = |waiters: &Waiters| waiters.queue.back().is_some_and(|node| node.cpu == me);
    let seems_last = waiters::at(address, |waiters| is_last(waiters));
    if seems_last {
        // One update takes the lock and leaves the queue empty, but only if no other CPU has come meanwhile.
        let is_done = wanted.access(Access::Update, |wanted| {
            let is_last = waiters::at(address, |waiters| is_last(waiters));
            if is_last {
                wanted.must_take();
                waiters::at(address, |waiters| waiters.queue.pop_front());
            }
            is_last
        });
        if is_done {
            return;
        }
    }
    wanted.access(Access::Store, Wanted::must_take);
    wanted.look_at(mine, None, |_| on_node(address, me, |node| node.knows_next));
    let next = waiters::at(address, |waiters| {
        waiters.queue.pop_front();
        let next = waiters.queue.front_mut()?;
        next.is_first = true;
        Some(next.cpu)
    });
    operate_at(node(next.expect("another CPU has come")), Access::Store, at, || ());
}

/// Does this to the node of a CPU in the queue of a lock.
fn on_node<R>(address: usize, cpu: CpuId, does: impl FnOnce(&mut Node) -> R) -> R {
    waiters::at(address, |waiters| {
        does(waiters.queue.iter_mut().find(|node| node.cpu == cpu).expect("the CPU is in the queue"))
    })
}
