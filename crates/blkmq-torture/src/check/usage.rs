//! A scheduler that shares by usage is told of each operation that was handed out, once, and as one of its client.
//!
//! It is told sums for each client since the limiter is there. What was reaped when every CPU slept or the queue had
//! drained must have been told the next time. Of operations that are outstanding, that were so when the limiter came,
//! or that are over without an event, nobody knows.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, BuildHasherDefault};

use blkmq_sched::{ClientId, Op, Usage as Report};

use super::super::event::{Event, Stamp};
use super::super::tenancy::tenant_name;
use super::tracker::{Operation, Tracker};
use super::{Checker, Verdict, Violation};

pub(super) const RULE: &str = "usage";

/// A client by what schedulers are told of its name.
type Known = u64;

/// Operations and sectors of reads, the same of writes, and operations that move no data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Sums([u64; 5]);

impl Sums {
    const fn add(&mut self, op: Op, sectors: u64) {
        match op {
            Op::Read => self.add_data(0, sectors),
            Op::Write => self.add_data(2, sectors),
            Op::Flush | Op::Discard | Op::WriteZeroes => self.0[4] += 1,
        }
    }

    const fn add_data(&mut self, of: usize, sectors: u64) {
        self.0[of] += 1;
        self.0[of + 1] += sectors;
    }

    fn is_within(&self, most: &Self) -> bool {
        self.0.iter().zip(most.0).all(|(this, most)| *this <= most)
    }
}

/// What one client was served since the limiter is there.
#[derive(Debug, Clone, Copy, Default)]
struct Served {
    told: Sums,
    /// What was reaped, and what of it must have been told.
    done: Sums,
    settled: Sums,
    /// What may have been handed out beside that.
    uncertain: Sums,
}

/// This module's checker.
#[derive(Debug, Default)]
pub(super) struct Usage {
    names: BTreeMap<ClientId, Known>,
    /// The clients of the submitters.
    submitters: BTreeMap<u16, Known>,
    clients: BTreeMap<Known, Served>,
    /// Outstanding operations that may be told or not.
    uncertain: BTreeSet<u64>,
}

impl Usage {
    fn begin_anew(&mut self, tracker: &Tracker) {
        for client in self.clients.values_mut() {
            // It may be handed out, and be shown with what is handed out behind it.
            let Served { done, settled, uncertain, .. } = *client;
            let unsettled = std::array::from_fn(|at| done.0[at] - settled.0[at] + uncertain.0[at]);
            *client = Served { uncertain: Sums(unsettled), ..Served::default() };
        }
        self.uncertain = tracker.operations().map(|(bio, _)| bio).collect();
    }

    fn over(&mut self, bio: u64, operation: &Operation, is_reaped: bool) {
        let is_certain = is_reaped && !self.uncertain.remove(&bio);
        let client = self.submitters.get(&operation.submitter).copied().unwrap_or(0);
        let Served { done, uncertain, .. } = self.clients.entry(client).or_default();
        let sums = if is_certain { done } else { uncertain };
        sums.add(operation.asked.op, operation.asked.nr_sectors);
    }

    fn told(&mut self, reports: &[Report], tracker: &Tracker) -> Verdict {
        for Report { client, operations, sectors, .. } in reports {
            let name = self.names.get(client).copied().unwrap_or(0);
            let told = &mut self.clients.entry(name).or_default().told.0;
            for (sum, more) in
                told.iter_mut().zip([operations[0], sectors[0], operations[1], sectors[1], operations[2]])
            {
                *sum += more;
            }
        }
        for (name, Served { told, done, settled, uncertain }) in &self.clients {
            let mut most = *done;
            most.0.iter_mut().zip(uncertain.0).for_each(|(sum, more)| *sum += more);
            for (_, operation) in tracker.operations() {
                if self.submitters.get(&operation.submitter) == Some(name) {
                    most.add(operation.asked.op, operation.asked.nr_sectors);
                }
            }
            if !settled.is_within(told) || !told.is_within(&most) {
                let what = format!(
                    "the scheduler was told of {:?} operations and sectors of reads and writes, and other operations, of \
                     one client, and right would be {:?} to {:?}",
                    told.0, settled.0, most.0
                );
                return Err(Violation::new(RULE, what));
            }
        }
        Ok(())
    }
}

/// What schedulers are told of a tenant's name.
fn known(tenant: u16) -> Known {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(tenant_name(tenant)).max(1)
}

impl Checker for Usage {
    fn see(&mut self, _at: Stamp, event: &Event<'_>, tracker: &Tracker) -> Verdict {
        let is_reaped = matches!(event, Event::Reaped { .. });
        for bio in &tracker.ending {
            if let Some(operation) = tracker.operation(*bio).filter(|_| !matches!(event, Event::Rejected { .. })) {
                self.over(*bio, operation, is_reaped);
            }
        }
        match *event {
            Event::Joined { submitter, tenant, .. } => _ = self.submitters.insert(submitter, known(tenant)),
            Event::ClientJoined { client, settings } => _ = self.names.insert(client, settings.name),
            Event::Limited => self.begin_anew(tracker),
            Event::Idle { .. } | Event::Counted(_) => {
                self.clients.values_mut().for_each(|client| client.settled = client.done);
            }
            Event::Used { usage } => return self.told(usage, tracker),
            _ => {}
        }
        Ok(())
    }
}
