//! What each submitter's client got since the last report, for a scheduler that shares by usage.

use blkmq_sched::{ClientId, Usage};

use super::service::Served;
use crate::queue::Queue;
use crate::request::limits::MAX_THREADS;

/// How many submitters may leave between two reports. What more of them got is added to a report of their client.
const LEFT: usize = 64;

/// The sums of the last report, by thread.
#[derive(Debug)]
pub(in crate::queue) struct UsageLog {
    seen: Vec<Served>,
    reports: Vec<Usage>,
}

impl UsageLog {
    pub(in crate::queue) fn new(q: &Queue) -> Self {
        let mut log =
            Self { seen: vec![Served::default(); MAX_THREADS], reports: Vec::with_capacity(MAX_THREADS + LEFT) };
        log.collect(q);
        log.reports.clear();
        log
    }

    /// Adds what the clients of all submitters got since the last report to what those got that have left.
    pub(in crate::queue) fn collect(&mut self, q: &Queue) -> &[Usage] {
        for (number, _) in q.threads.iter().filter(|(number, _)| *number > 0) {
            self.note(q, number);
        }
        &self.reports
    }

    /// Notes what the client of a thread got.
    fn note(&mut self, q: &Queue, number: u16) {
        let thread = q.threads.get(number);
        let client = thread.client();
        if client == ClientId::default() {
            return;
        }
        let served = thread.service.served();
        let fresh = served.since(std::mem::replace(&mut self.seen[usize::from(number)], served));
        let (operations, sectors) = (fresh.operations(), fresh.sectors());
        if self.reports.len() < self.reports.capacity() {
            let outstanding = thread.service.outstanding();
            self.reports.push(Usage { client, operations, sectors, outstanding });
        } else if let Some(known) = self.reports.iter_mut().find(|known| known.client == client) {
            known.operations.iter_mut().zip(operations).for_each(|(sum, more)| *sum += more);
            known.sectors.iter_mut().zip(sectors).for_each(|(sum, more)| *sum += more);
        }
    }

    /// Notes what the client of a thread got that leaves. The sums of the thread begin anew behind this.
    pub(in crate::queue) fn note_leaving(&mut self, q: &Queue, number: u16) {
        self.note(q, number);
        self.seen[usize::from(number)] = Served::default();
    }

    /// The reports were passed on.
    pub(in crate::queue) fn clear(&mut self) {
        self.reports.clear();
    }
}
