use std::sync::Arc;
use std::time::{Duration, Instant};

use blkmq::driver::spec;
use blkmq::event::EventFd;
use blkmq::{Class, IoPriority, RequestQueue};

use super::*;
use crate::ask::Ask;
use crate::clients::tests::entry;
use crate::memory::account::Account;
use crate::memory::budget::Budget;
use crate::session::range_locks::RangeLocks;

fn queue() -> RequestQueue {
    RequestQueue::builder(spec::open("ram,size=1M").unwrap()).build().unwrap()
}

fn seat(q: &RequestQueue) -> Seat {
    RangeLocks::of(q).join(Arc::new(EventFd::new().unwrap()))
}

fn rmw(q: &RequestQueue) -> ReadModifyWrite {
    ReadModifyWrite::new(4096, seat(q))
}

#[test]
#[cfg_attr(miri, ignore = "there are no descriptors")]
fn bytes_are_rounded_to_blocks_outwards_and_inwards() {
    let rmw = rmw(&queue());
    for (bytes, around, within, nr_edges) in [
        (0..4096, 0..4096, 0..4096, 0),
        (1..4096, 0..4096, 4096..4096, 1),
        (4096..4097, 4096..8192, 4096..4096, 1),
        (4095..12289, 0..16384, 4096..12288, 2),
        (5000..6000, 4096..8192, 8192..8192, 2),
        (5000..5000, 5000..5000, 8192..8192, 0),
    ] {
        assert_eq!(rmw.around(bytes.clone()), around, "{bytes:?}");
        assert_eq!(rmw.within(bytes.clone()), within, "{bytes:?}");
        assert_eq!(rmw.charge(bytes.clone()), nr_edges * 4096, "{bytes:?}");
    }
    assert_eq!((rmw.skip(4097), rmw.up(4097), rmw.down(4097)), (1, 8192, 4096));
}

/// Red if a connection takes claims for passed that were made before it joined: its change would be undone by the write
/// of the claim's owner, which had read the block before.
#[test]
#[cfg_attr(miri, ignore = "there are no descriptors")]
fn a_connection_that_comes_later_looks_before_its_first_change() {
    let q = queue();
    let mut first = seat(&q);
    let (ticket, is_due) = first.claim_part(0..4096, true);
    assert!(is_due, "there is nobody to ask");
    let mut late = rmw(&q);
    assert!(late.is_wary());
    assert!(late.seat.claim_whole(&(0..4096)).is_some(), "it waits for the claim");
    first.end(ticket);
}

/// A first connection, which has claimed the first and the third block. And a second connection with changes of the
/// first block that wait for the first connection: as many as may have claims, and one more.
fn crowded() -> (Seat, [Ticket; 2], ReadModifyWrite, Bench) {
    let q = queue();
    let mut first = seat(&q);
    let tickets = [0..4096, 8192..12288].map(|blocks| first.claim_part(blocks, true).0);
    let mut bench = Bench::new();
    let mut rmw = rmw(&q);
    (0..=MAX_CLAIMS).for_each(|_| bench.change(&mut rmw, 0));
    assert_eq!((rmw.claims.len(), rmw.backlog.len()), (MAX_CLAIMS, 1));
    (first, tickets, rmw, bench)
}

/// The parts of a connection other than its unaligned ends, with one task that makes all changes.
struct Bench {
    tasks: Tasks,
    task: TaskId,
    pool: Pool,
    waiting: VecDeque<Bio>,
}

impl Bench {
    fn new() -> Self {
        let mut tasks = Tasks::new(1);
        let task = tasks.take().unwrap();
        let all = tasks.get_mut(task);
        (all.ask, all.length) = (Ask::Discard { fua: false }, 1 << 20);
        let pool = Pool::new(true, Account::new(Arc::new(Budget::new(1 << 30, 1)), Arc::clone(entry().counters(0))));
        Self { tasks, task, pool, waiting: VecDeque::new() }
    }

    fn context(&mut self) -> Context<'_> {
        Context { tasks: &self.tasks, pool: &mut self.pool, waiting: &mut self.waiting }
    }

    /// Changes the block that begins at this byte.
    fn change(&mut self, rmw: &mut ReadModifyWrite, start: u64) {
        self.tasks.get_mut(self.task).outstanding += 1;
        let bio = Bio::discard(start / SECTOR_SIZE as u64, 8).with_user_data(rmw.user_data(self.task));
        rmw.change_whole(&mut self.context(), bio);
    }

    /// Tells that the device has done this many of the changes that wait for it.
    fn settle(&mut self, rmw: &mut ReadModifyWrite, changes: usize) {
        for _ in 0..changes {
            let (mut bio, mut status) = (self.waiting.pop_front().expect("it has begun"), Status::Ok);
            assert!(rmw.settle(&mut self.context(), &mut bio, &mut status));
            self.tasks.get_mut(self.task).outstanding -= 1;
        }
    }
}

/// Red if a new change takes the claim that another change waits for: a write of zeroes in many steps would keep that
/// change waiting until all of its steps are over.
#[test]
#[cfg_attr(miri, ignore = "there are no descriptors")]
fn a_change_that_waits_for_a_claim_comes_before_one_that_comes_later() {
    let (mut first, [ticket, other], mut rmw, mut bench) = crowded();
    first.end(ticket);
    rmw.look(&mut bench.context());
    assert_eq!(bench.waiting.len(), MAX_CLAIMS);
    bench.settle(&mut rmw, 1);
    // A part of this block is claimed, so this change needs a claim too.
    bench.change(&mut rmw, 8192);
    assert_eq!((rmw.claims.len(), rmw.backlog.len()), (MAX_CLAIMS - 1, 2));
    rmw.look(&mut bench.context());
    assert_eq!((rmw.claims.len(), rmw.backlog.len()), (MAX_CLAIMS, 0));
    let sectors: Vec<_> = bench.waiting.iter().map(|bio| bio.sector).collect();
    assert_eq!(sectors, [0; MAX_CLAIMS], "the one that waited has found its block free");
    first.end(other);
}

/// Red if a connection whose rest has ended within a look goes on without looking again: claims that others made in
/// between would count as known to it, and it would change blocks that the others have read.
#[test]
#[cfg_attr(miri, ignore = "there are no descriptors")]
fn a_connection_whose_rest_has_ended_within_a_look_looks_again() {
    let (mut first, [ticket, other], mut rmw, mut bench) = crowded();
    rmw.look(&mut bench.context());
    assert!(rmw.seat.rests(), "all it has waits for others");
    first.end(other);
    first.end(ticket);
    rmw.look(&mut bench.context());
    bench.settle(&mut rmw, MAX_CLAIMS);
    assert!(rmw.seat.rests());
    // No claim is left, so the last change needs none.
    rmw.look(&mut bench.context());
    assert!(!rmw.seat.rests() && !rmw.has_works() && bench.waiting.len() == 1);
    assert!(rmw.is_wary());
    rmw.look(&mut bench.context());
    assert!(!rmw.is_wary(), "there is nothing to be seen");
}

/// Red if the reads of blocks that a change does not fill, or the write that follows, lack the request's priority.
#[test]
#[cfg_attr(miri, ignore = "there are no descriptors")]
fn a_change_of_a_part_has_the_priority_of_its_request() {
    let (mut rmw, mut bench) = (rmw(&queue()), Bench::new());
    let priority = Some(IoPriority { class: Class::Idle, level: 3 });
    let task = bench.task;
    bench.tasks.get_mut(task).priority = priority;
    bench.tasks.get_mut(task).outstanding += 1;
    let buffer = bench.pool.take(8192).unwrap();
    rmw.change_part(&mut bench.context(), task, 512..8000, buffer, false);
    for ops in [&[Op::Read, Op::Read][..], &[Op::Write]] {
        rmw.look(&mut bench.context());
        let bios: Vec<_> = bench.waiting.drain(..).collect();
        assert_eq!(bios.iter().map(|bio| bio.op).collect::<Vec<_>>(), ops);
        for mut bio in bios {
            assert_eq!(bio.priority, priority, "{:?}", bio.op);
            let is_over = rmw.settle(&mut bench.context(), &mut bio, &mut Status::Ok);
            assert_eq!(is_over, bio.op == Op::Write);
        }
    }
}

/// Red if epochs that have wrapped around are compared as if they had not: a part would wait forever, or not at all.
#[test]
fn what_an_operation_is_for_comes_back_with_it_and_epochs_go_round() {
    for (place, epoch) in [(None, 0), (Some(0), 1), (Some((1 << PLACE_BITS) - 2), (1 << EPOCH_BITS) - 1)] {
        let user_data = UserData { task: 0x8001, place, epoch };
        assert_eq!(UserData::of(user_data.bits()), user_data);
        assert_eq!(user_data.bits() as TaskId, user_data.task);
    }
    let last = (1 << EPOCH_BITS) - 1;
    assert!(is_before(0, 1) && is_before(last, 0) && is_before(last - 5, 3));
    assert!(!is_before(1, 1) && !is_before(1, 0) && !is_before(0, last));
}

/// Red before a change of a part of a block was given up: it waited forever for a connection whose thread was stuck.
/// Also red if it is given up because a device is slow, or if the connection that has given up leaves anything behind.
#[test]
#[cfg_attr(miri, ignore = "there are no descriptors")]
fn a_change_fails_if_a_thread_is_stuck_and_waits_for_a_device_that_is_slow() {
    for is_stuck in [true, false] {
        let q = queue();
        let [mut own, mut other] = [(); 2].map(|()| rmw(&q));
        let [mut bench, mut beside] = [(); 2].map(|()| Bench::new());
        beside.change(&mut other, 0);
        assert_eq!(beside.waiting.len(), 1, "it is free");
        let (task, buffer) = (bench.task, bench.pool.take_block(4096));
        bench.tasks.get_mut(task).outstanding += 1;
        own.change_part(&mut bench.context(), task, 512..1024, buffer, false);
        // A change of the whole block waits too.
        bench.change(&mut own, 0);
        assert!(own.max_sleep().is_some_and(|left| left > Duration::ZERO));
        let begin = Instant::now();
        let mut given_up = Vec::new();
        for nr in 1..20 {
            if !is_stuck {
                other.look(&mut beside.context());
            }
            let now = begin + 6 * nr * Duration::from_secs(1);
            given_up.extend(std::iter::from_fn(|| own.give_up(now)).map(|bio| (nr, bio.op, bio.buffers.len())));
        }
        if is_stuck {
            // The change of the whole block waits for the part alone, and then for nothing.
            assert_eq!(given_up, [(7, Op::Read, 4096)]);
        } else {
            assert_eq!(given_up, []);
            beside.settle(&mut other, 1);
        }
        own.look(&mut bench.context());
        let begun: Vec<_> = bench.waiting.iter().map(|bio| bio.op).collect();
        assert_eq!(begun, [if is_stuck { Op::Discard } else { Op::Read }]);
    }
}
