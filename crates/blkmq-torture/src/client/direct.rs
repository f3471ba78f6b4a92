//! A client that calls its submitter directly.

use std::collections::VecDeque;

use blkmq_vcpu::Random;
use blkmq_virtual::{RejectReason, Rejected, RejectedBatch, Submitter};

use super::Client;
use crate::pace::magnitude;

/// How often a client takes each of its actions after a burst, as weights.
#[derive(Debug, Clone)]
pub(super) struct Rhythm {
    flush: u64,
    poll: u64,
    wait: u64,
    deadline: u64,
    nothing: u64,
    /// Percent of the rounds in which the client reaps everything that is over. In the other rounds it reaps a few
    /// operations.
    reaps_all: u64,
    /// Percent of the rounds after which the client pauses.
    pauses: u64,
}

impl Rhythm {
    pub(super) fn draw(random: &mut Random) -> Self {
        let mut weight = || if random.one_in(2) { 0 } else { magnitude(random, 16) };
        let (flush, poll, wait, deadline, nothing) = (weight(), weight(), weight(), weight(), weight());
        // If all weights are zero, no action can be drawn.
        let poll = if flush + poll + wait + deadline + nothing == 0 { 1 } else { poll };
        let (reaps_all, pauses) = (random.below(101), if random.one_in(2) { 0 } else { random.below(101) });
        Self { flush, poll, wait, deadline, nothing, reaps_all, pauses }
    }

    /// The rhythm of a client that runs only when it is woken.
    pub(super) fn sleeper(random: &mut Random) -> Self {
        let reaps_all = random.below(101);
        Self { flush: 0, poll: 0, wait: 1, deadline: 0, nothing: 0, reaps_all, pauses: 0 }
    }

    /// The rhythm of a client that waits for what it has asked for, and often pauses then.
    pub(super) fn idler(random: &mut Random) -> Self {
        Self { reaps_all: 100, pauses: random.below(101), ..Self::sleeper(random) }
    }
}

/// Works until it is time to leave, and leaves.
pub(super) fn work(client: &mut Client, mut submitter: Submitter, rhythm: Rhythm) {
    let mut idle_rounds = 0;
    loop {
        burst(client, &mut submitter);
        pass_on(client, &mut submitter, &rhythm);
        idle_rounds = if reap(client, &mut submitter, &rhythm) == 0 { idle_rounds + 1 } else { 0 };
        if idle_rounds > 2 {
            // Other threads may depend on the polling of this thread, so a client in any rhythm polls now and then.
            submitter.poll();
        }
        if client.workload.random.one_in(16) {
            client.tell_outstanding(&submitter);
        }
        if !client.stays() {
            break;
        }
        client.meets_again(&mut submitter);
        if idle_rounds > 4 {
            Client::rest(idle_rounds);
        } else if client.workload.random.below(100) < rhythm.pauses {
            client.pause();
        }
    }
    client.leave(submitter);
}

/// Submits some operations, one by one or together.
pub(super) fn burst(client: &mut Client, submitter: &mut Submitter) {
    let is_full = submitter.nr_outstanding() == submitter.nr_slots();
    if is_full && !client.workload.random.one_in(8) {
        return;
    }
    let nr_operations = client.workload.random.within(1, client.workload.burst);
    if client.workload.random.below(100) < client.workload.batches {
        // One operation more than there are slots is rejected just like ten more, and each attempt tries the whole
        // plug.
        let nr_free = submitter.nr_slots() - submitter.nr_outstanding();
        return batch(client, submitter, nr_operations.min(nr_free as u64 + 1));
    }
    for _ in 0..nr_operations {
        let Some((bio, is_bad)) = client.next() else { return };
        let number = bio.user_data;
        match submitter.submit(bio) {
            Ok(id) => client.took(number, Some(id), is_bad),
            Err(rejected) => {
                let is_full = rejected.reason == RejectReason::Full;
                client.refused(rejected, is_bad);
                if is_full {
                    return;
                }
            }
        }
    }
}

fn batch(client: &mut Client, submitter: &mut Submitter, nr_operations: u64) {
    let mut bios = VecDeque::new();
    let mut bad = VecDeque::new();
    for (bio, is_bad) in (0..nr_operations).map_while(|_| client.next()) {
        bad.push_back((bio.user_data, is_bad));
        bios.push_back(bio);
    }
    while !bios.is_empty() {
        let (taken, rejected) = match submitter.submit_batch(&mut bios) {
            Ok(taken) => (taken, bios.pop_front().map(|bio| Rejected { bio, reason: RejectReason::Full })),
            Err(RejectedBatch { taken, bio, status, .. }) => {
                (taken, Some(Rejected { bio, reason: RejectReason::Bad(status) }))
            }
        };
        bad.drain(..taken).for_each(|(number, is_bad)| client.took(number, None, is_bad));
        if let Some((rejected, (_, is_bad))) = rejected.zip(bad.pop_front()) {
            client.refused(rejected, is_bad);
        }
    }
}

fn pass_on(client: &mut Client, submitter: &mut Submitter, rhythm: &Rhythm) {
    let random = &mut client.workload.random;
    let &Rhythm { flush, poll, wait, deadline, nothing, .. } = rhythm;
    let mut drawn = random.below(flush + poll + wait + deadline + nothing);
    let mut is = |weight: u64| {
        let is = drawn < weight;
        drawn = if is { u64::MAX } else { drawn - weight };
        is
    };
    if is(flush) {
        if random.one_in(2) { submitter.flush_plug() } else { submitter.flush_batch() }
    } else if is(poll) {
        submitter.poll();
    } else if is(wait) {
        client.sleeps(|| submitter.wait(1, None));
    } else if is(deadline) {
        let within = magnitude(random, 1_000_000);
        let deadline = client.world.q.clock().now().after(within);
        client.sleeps(|| submitter.wait(1, Some(deadline)));
    } else {
        return;
    }
    client.passed_on();
}

/// Takes what is over. Returns how many operations that were.
fn reap(client: &mut Client, submitter: &mut Submitter, rhythm: &Rhythm) -> u64 {
    if client.workload.random.below(100) < rhythm.reaps_all {
        return submitter.reap_all(|completion| client.over(completion)) as u64;
    }
    let most = client.workload.random.within(1, 2 * client.workload.burst);
    let reaped = std::iter::from_fn(|| submitter.reap()).take(most as usize);
    reaped.map(|completion| client.over(completion)).count() as u64
}
