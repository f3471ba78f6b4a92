//! A disk with a cache: a double of a device whose reads of one area cost nearly nothing.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use blkmq::driver::{Batch, Done, Driver, NextEvent, Topology};
use blkmq::{Limits, RqId, Status, Time};

/// The first GiB is in the cache, in sectors.
pub(super) const CACHED: Range<u64> = 0..1 << 21;
pub(super) const UNCACHED: Range<u64> = 1 << 21..1 << 24;

/// How many requests it takes, and how many of them it reads from the medium at once.
const DEPTH: u16 = 16;
const HEADS: usize = 8;

/// Nanoseconds: what a command takes of the controller, and a read of the cache and of the medium.
const COMMAND: u64 = 2_000;
const HIT: u64 = 10_000;
const MISS: u64 = 100_000;

/// The disk: the controller takes one command after the other, and what is not in the cache waits for a head.
#[derive(Debug, Default)]
pub(super) struct CachedDisk(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    controller: Time,
    heads: [Time; HEADS],
    pending: BinaryHeap<Reverse<(Time, u64)>>,
}

impl CachedDisk {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Driver for CachedDisk {
    fn name(&self) -> &'static str {
        "cached"
    }
    fn limits(&self) -> Limits {
        Limits { capacity_sectors: UNCACHED.end, ..Limits::default() }
    }
    fn topology(&self) -> Topology {
        Topology::new(1, DEPTH)
    }
    fn keeps_data(&self) -> bool {
        false
    }
    fn queue_rqs(&self, _hctx: u16, batch: &mut Batch<'_>, now: Time) {
        let mut state = self.state();
        while let Some(rq) = batch.next_request() {
            state.controller = state.controller.max(now).after(COMMAND);
            let taken = state.controller;
            let over = if CACHED.contains(&rq.sector()) {
                taken.after(HIT)
            } else {
                let head = state.heads.iter_mut().min().expect("there are heads");
                *head = (*head).max(taken).after(MISS);
                *head
            };
            let id = batch.start(rq);
            state.pending.push(Reverse((over, id.0)));
        }
    }
    fn poll(&self, _hctx: u16, done: &mut Done<'_>, now: Time) {
        let mut state = self.state();
        while let Some(Reverse((_, id))) = state.pending.peek().copied().filter(|Reverse((over, _))| *over <= now) {
            state.pending.pop();
            done.complete(RqId(id), Status::Ok).expect("nothing is given up");
        }
    }
    fn next_event(&self, _hctx: u16) -> NextEvent {
        self.state().pending.peek().map(|Reverse((over, _))| *over).into()
    }
}
