use std::collections::{HashMap, VecDeque};

use blkmq_sched::{ClientId, GroupId, IoPriority, MergeLevel, Op, Time};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::request::bio::Flags;
use crate::request::{OpAttributes, Part, SlotIndex};

/// Slots of several threads, and a request in each slot.
fn slots(nr_threads: u16, each: u16) -> Slots {
    let slots = Slots::new(usize::from(nr_threads));
    (0..nr_threads).for_each(|thread| slots.make_pool(thread, each));
    slots
}

fn list(slots: &Slots, requests: &[(u16, u16)]) -> RqList {
    let mut list = RqList::default();
    for &(thread, slot) in requests {
        list.push_back(slots.take_own(SlotIndex::new(thread, slot)), Location::Staged);
    }
    list
}

fn taken(backlog: &mut Backlog, slots: &Slots, most: usize) -> Option<(u16, u16)> {
    let rq = backlog.take(slots, most)?;
    let at = (rq.index().pool(), rq.index().slot());
    rq.free();
    Some(at)
}

/// A request of this operation and class, in the caller's hands.
fn held(slots: &Slots, index: SlotIndex, op: Op, class: Class) -> Request<'_> {
    let mut rq = slots.take_own(index);
    let priority = IoPriority { class, ..IoPriority::default() };
    let (client, group, flags, merge) = (ClientId::default(), GroupId::ROOT, Flags::NONE, MergeLevel::Never);
    let asked = OpAttributes { client, group, op, flags, priority, merge };
    rq.body_mut().begin(&asked, Time(0), index, 0, Part { parent: index, sector: 0, nr_sectors: 0, offset: 0 });
    rq
}

#[test]
fn threads_are_served_in_rounds_and_later_requests_wait() {
    let slots = slots(70, 8);
    let mut backlog = Backlog::new();
    backlog.reserve(69);
    backlog.add(list(&slots, &[(1, 0), (1, 1), (1, 2), (69, 0), (3, 0), (3, 1)]));
    assert_eq!((backlog.len(), backlog.is_untried()), (6, true));
    let first: Vec<_> = (0..2).map(|_| taken(&mut backlog, &slots, ROUNDS).unwrap()).collect();
    assert_eq!(first, [(1, 0), (3, 0)]);
    backlog.add(list(&slots, &[(2, 0)]));
    let rest: Vec<_> = std::iter::from_fn(|| taken(&mut backlog, &slots, ROUNDS)).collect();
    assert_eq!(rest, [(69, 0), (1, 1), (3, 1), (1, 2), (2, 0)]);
    assert!(backlog.is_empty() && !backlog.is_untried());
}

/// Red if the list of one kind holds up another, or a request of the same kind passes one that waits.
#[test]
fn what_finds_no_room_waits_by_kind_and_keeps_its_order() {
    let slots = slots(3, 8);
    let mut backlog = Backlog::new();
    backlog.reserve(2);
    for (slot, class) in [(0, Class::BestEffort), (1, Class::BestEffort), (2, Class::RealTime)] {
        let rq = held(&slots, SlotIndex::new(2, slot), Op::Write, class);
        assert_eq!(backlog.is_blocked(&rq), slot == 1);
        backlog.put_without_room(rq);
    }
    assert!(backlog.has_waiting_for_room() && !backlog.is_untried() && backlog.len() == 3);
    let mut tried = Vec::new();
    let moved = backlog.retry(&slots, |rq| {
        tried.push(rq.index().slot());
        if rq.priority().class == Class::RealTime {
            rq.free();
            return Ok(());
        }
        Err(rq)
    });
    assert_eq!((moved, tried, backlog.len()), (1, [2, 0].into(), 2));
    let mut order = Vec::new();
    backlog.retry(&slots, |rq| {
        order.push(rq.free());
        Ok(())
    });
    assert_eq!(order, [0, 1]);
    assert!(backlog.is_empty() && !backlog.has_waiting_for_room());
}

/// Room for one request comes now and then, with any number of looks in vain in between. Red if a look in vain passes
/// the turn on, and when a kind or a thread is always the first to look.
#[test]
fn room_goes_round_however_often_it_is_looked_for_in_vain() {
    for looks_in_vain in 0..4 {
        let slots = slots(3, 8);
        let mut backlog = Backlog::new();
        backlog.reserve(2);
        for (thread, slot) in (0..3).flat_map(|thread| (0..8).map(move |slot| (thread, slot))) {
            // The second half of the first thread's requests are writes.
            let op = if thread == 0 && slot >= 4 { Op::Write } else { Op::Read };
            backlog.put_without_room(held(&slots, SlotIndex::new(thread, slot), op, Class::BestEffort));
        }
        let mut order = Vec::new();
        while backlog.has_waiting_for_room() {
            let mut has_room = true;
            let taken = backlog.retry(&slots, |rq| {
                if std::mem::take(&mut has_room) {
                    order.push((rq.index().pool(), rq.free()));
                    return Ok(());
                }
                Err(rq)
            });
            assert_eq!(taken, 1);
            (0..looks_in_vain).for_each(|_| assert_eq!(backlog.retry(&slots, Err), 0));
        }
        for (round, three) in order.chunks(3).enumerate() {
            let mut threads: Vec<_> = three.iter().map(|rq| rq.0).collect();
            threads.sort_unstable();
            assert_eq!(threads, [0, 1, 2], "round {round}, {looks_in_vain} looks in vain: {order:?}");
        }
        let mut of_first = order.iter().filter(|rq| rq.0 == 0).map(|rq| rq.1);
        let pairs: Vec<_> = std::iter::from_fn(|| of_first.next().zip(of_first.next())).collect();
        assert_eq!(pairs, [(4, 0), (5, 1), (6, 2), (7, 3)], "writes and reads by turns");
    }
}

/// Red if a lower class takes turns with a higher one: the requests that it gets in would keep the higher one's out.
#[test]
fn the_highest_class_of_a_thread_has_room_first() {
    let slots = slots(1, 8);
    let mut backlog = Backlog::new();
    backlog.reserve(0);
    for slot in 0..8 {
        let op = if slot < 4 { Op::Read } else { Op::Write };
        let class = if slot % 2 == 0 { Class::Idle } else { Class::RealTime };
        backlog.put_without_room(held(&slots, SlotIndex::new(0, slot), op, class));
    }
    let mut order = Vec::new();
    backlog.retry(&slots, |rq| {
        order.push(rq.free());
        Ok(())
    });
    assert_eq!(order, [5, 1, 7, 3, 4, 0, 6, 2]);
}

/// A request in a slot of a thread.
type Rq = (u16, u16);

/// For each request that stands in front, its place among those of its thread.
fn places(front: &[Rq]) -> HashMap<Rq, usize> {
    let place = |rq: &Rq| front.iter().filter(|other| other.0 == rq.0 && other.1 <= rq.1).count();
    front.iter().map(|rq| (*rq, place(rq))).collect()
}

proptest! {
    /// The two promises, whatever is left between the holds. A request is taken by hold ceil(n / share) + 1 after it
    /// was left, where n is the number of requests that were there with it. Of those that stood in front, 64 at most,
    /// no thread's k-th is taken while another thread's (k - 1)-th waits. Red if the rounds take all that is there, and
    /// when a round takes a thread's whole list. Red if a combiner stops within rounds.
    #[test]
    fn staging_is_fair_in_rounds(batches in vec(vec((1u16..6, 1usize..40), 0..6), 1..12), share in 1usize..150) {
        let nr_threads = 6;
        let slots = slots(nr_threads, 4096);
        let mut backlog = Backlog::new();
        backlog.reserve(nr_threads - 1);
        // How many requests were there when a request was left, and after how many holds it was left.
        let mut left = HashMap::new();
        let mut order = VecDeque::new();
        let mut front = HashMap::new();
        let mut next = [0; 6];
        let mut batches = batches.into_iter();
        for hold in 0.. {
            let batch = batches.next();
            if batch.is_none() && backlog.is_empty() {
                break;
            }
            for (thread, count) in batch.unwrap_or_default() {
                let first = next[usize::from(thread)];
                let requests: Vec<Rq> = (first..first + count as u16).map(|slot| (thread, slot)).collect();
                next[usize::from(thread)] += count as u16;
                backlog.add(list(&slots, &requests));
                order.extend(requests.iter().copied());
                left.extend(requests.into_iter().map(|rq| (rq, (backlog.len(), hold))));
            }
            for tried in 0..share {
                let Some(rq) = taken(&mut backlog, &slots, share - tried) else { break };
                if front.is_empty() {
                    let len = order.len().min(ROUNDS).min(share - tried);
                    front = places(&order.drain(..len).collect::<Vec<_>>());
                }
                let place = front.remove(&rq).expect("what was left later waits");
                let behind = front.iter().find(|(_, other)| place > **other);
                prop_assert!(behind.is_none(), "{rq:?} is the {place}th, and {behind:?} waits");
                let (there, since): (usize, usize) = left.remove(&rq).expect("it was left");
                prop_assert!(hold < since + there.div_ceil(share) + 1, "{rq:?} in hold {hold} after {since}");
            }
            prop_assert!(backlog.is_between_rounds(), "{share} were taken");
        }
        prop_assert!(left.is_empty());
    }
}
