//! Everything a queue holds, in readable form: what debugfs shows of a kernel queue.

use std::fmt::{self, Write};

use crate::queue::RequestQueue;
use crate::request::FLUSH_POOL;

impl RequestQueue {
    /// Every list, tag and counter. If I/O runs meanwhile, the lines show several moments, and each line is right by
    /// itself.
    #[must_use]
    pub fn dump(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.show(&mut text);
        text
    }

    fn show(&self, out: &mut dyn Write) -> fmt::Result {
        writeln!(out, "word {:?}", self.0.live.word.load())?;
        writeln!(out, "{} scheduler {}", *self.0.settings, self.scheduler())?;
        writeln!(out, "stats {:?}", self.counters())?;
        writeln!(out, "stat {}", self.disk_stats())?;
        for (range, stat) in self.range_stats() {
            writeln!(out, "range {} {}+{} {stat}", range.name, range.first, range.nr_sectors)?;
        }
        let [reads, writes] = self.inflight();
        writeln!(out, "inflight {reads} {writes}")?;
        let (sleepers, background) = (self.0.live.sleepers.nr(), self.0.threads.nr_background());
        writeln!(out, "sleepers {sleepers} background {background}")?;
        self.0.hctxs.show(out)?;
        self.0.domains.show(&self.0, out)?;
        self.tenants().show(out)?;
        self.0.threads.show(out)?;
        for (index, generation, place) in self.0.slots.in_use() {
            let (pool, slot) = (index.pool(), index.slot());
            let kind = if pool == FLUSH_POOL { "flush" } else { "thread" };
            writeln!(out, "{kind} {pool} slot {slot} generation {generation}: {place:?}")?;
        }
        writeln!(out, "driver {}", self.driver().name())?;
        let health = self.driver().health();
        let trouble = health.trouble().map(|text| format!(": {text}")).unwrap_or_default();
        writeln!(out, "health {}{trouble}", health.word())?;
        self.driver().show(out)
    }
}
