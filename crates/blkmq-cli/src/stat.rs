//! `blkmq stat`: what a running server's queues do, in the columns of iostat.

use std::io::{self, Write};
use std::thread;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use crate::bench::duration;
use crate::control::client::{Server, Which};
use crate::control::limiter::LimiterReport;
use crate::control::schema::{Health, Stat};
use blkmq_program::{Failure, json};

/// Number of reports between two lines of headings.
const HEADING_EVERY: usize = 20;

/// Show what a running server's queues do, as iostat does.
#[derive(Debug, Args)]
#[command(after_help = blkmq_program::after_help(include_str!("help/stat.txt")))]
pub(crate) struct StatCommand {
    /// The queue, as 'blkmq list' names it [default: all].
    queue: Option<String>,
    /// Report again after each such time, as in 1s or 100ms.
    #[arg(short, long, value_name = "TIME", value_parser = duration)]
    watch: Option<Duration>,
    #[command(flatten)]
    which: Which,
    /// Print one JSON object for each report instead of words.
    #[arg(long)]
    json: bool,
}

/// The columns after the queue's name: iostat's, under iostat's names, and one that only a server has.
const COLUMNS: [&str; 11] =
    ["r/s", "w/s", "rMB/s", "wMB/s", "rrqm/s", "wrqm/s", "r_await", "w_await", "aqu-sz", "%util", "err/s"];

/// What happened between two looks at a queue.
fn rates(earlier: &Stat, now: &Stat) -> [f64; 11] {
    let part = |value: f64, of: f64| if of > 0.0 { value / of } else { 0.0 };
    let seconds = now.uptime_ns.saturating_sub(earlier.uptime_ns) as f64 / 1e9;
    let change = |of: fn(&Stat) -> u64| of(now).saturating_sub(of(earlier)) as f64;
    let rate = |of: fn(&Stat) -> u64| part(change(of), seconds);
    let mib = |of: fn(&Stat) -> u64| rate(of) / 2048.0;
    [
        rate(|stat| stat.kernel.read_ios),
        rate(|stat| stat.kernel.write_ios),
        mib(|stat| stat.kernel.read_sectors),
        mib(|stat| stat.kernel.write_sectors),
        rate(|stat| stat.kernel.read_merges),
        rate(|stat| stat.kernel.write_merges),
        part(change(|stat| stat.kernel.read_ticks), change(|stat| stat.kernel.read_ios)),
        part(change(|stat| stat.kernel.write_ticks), change(|stat| stat.kernel.write_ios)),
        // Milliseconds per second, and percentages.
        rate(|stat| stat.kernel.time_in_queue) / 1e3,
        (rate(|stat| stat.kernel.io_ticks) / 10.0).min(100.0),
        rate(|stat| stat.errors.values().sum()),
    ]
}

impl StatCommand {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<(), Failure> {
        let server = self.which.server()?;
        let Some(pause) = self.watch else {
            let now = self.look(&server)?;
            let began = vec![Stat::default(); now.len()];
            return self.report(&began, &now, true, out);
        };
        let mut earlier = self.look(&server)?;
        for number in 0.. {
            thread::sleep(pause);
            let now = self.look(&server)?;
            self.report(&earlier, &now, number % HEADING_EVERY == 0, out)?;
            out.flush()?;
            earlier = now;
        }
        Ok(())
    }

    /// The numbers of all queues that were asked for, always in the same order.
    fn look(&self, server: &Server) -> Result<Vec<Stat>, Failure> {
        let names = match &self.queue {
            Some(name) => vec![name.clone()],
            None => server.queues()?.into_iter().map(|queue| queue.name).collect(),
        };
        names.iter().map(|name| server.get(&["queues", name, "stat"])).collect()
    }

    fn report(&self, earlier: &[Stat], now: &[Stat], heading: bool, out: &mut dyn Write) -> Result<(), Failure> {
        let rows = earlier.iter().zip(now).map(|(earlier, now)| (now, rates(earlier, now)));
        if !self.json {
            return Ok(table(rows, heading, out)?);
        }
        let row = |(Stat { queue, health: Health { health, trouble }, limiter, .. }, rates): (&Stat, [f64; 11])| {
            let mut row = json!({ "queue": queue, "health": health, "trouble": trouble, "limiter": limiter });
            COLUMNS.iter().zip(rates).for_each(|(name, rate)| row[*name] = json!(rate));
            row
        };
        let queues: Vec<_> = rows.map(row).collect();
        json::print(&json!({ "queues": queues }), out)
    }
}

/// The rows. If a queue has a limiter, or its device has a problem, lines about that follow its row.
fn table<'a>(rows: impl Iterator<Item = (&'a Stat, [f64; 11])>, heading: bool, out: &mut dyn Write) -> io::Result<()> {
    if heading {
        let names: Vec<String> = COLUMNS.iter().map(|name| format!("{name:>9}")).collect();
        writeln!(out, "{:12}{}", "queue", names.join(" "))?;
    }
    for (now, rates) in rows {
        let numbers: Vec<String> = rates.iter().map(|rate| format!("{rate:9.2}")).collect();
        writeln!(out, "{:12}{}", now.queue, numbers.join(" "))?;
        if let Some(line) = now.health.line() {
            writeln!(out, "  {line}")?;
        }
        for line in now.limiter.iter().flat_map(LimiterReport::lines) {
            writeln!(out, "  {line}")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_differences_over_the_time_between() {
        let kernel = blkmq::DiskStats { read_ios: 100, read_sectors: 800, ..Default::default() };
        let earlier = Stat { uptime_ns: 1_000_000_000, kernel, ..Stat::default() };
        let kernel = blkmq::DiskStats {
            read_ios: 300,
            read_sectors: 800 + 4096,
            read_ticks: 100,
            write_ios: 50,
            write_merges: 20,
            write_ticks: 500,
            io_ticks: 1000,
            time_in_queue: 600,
            ..kernel
        };
        let errors = [("io".to_owned(), 3), ("nospace".to_owned(), 1)].into();
        let now = Stat { uptime_ns: 3_000_000_000, kernel, errors, ..Stat::default() };
        assert_eq!(rates(&earlier, &now), [100.0, 25.0, 1.0, 0.0, 0.0, 10.0, 0.5, 10.0, 0.3, 50.0, 2.0]);
        assert_eq!(rates(&now, &now), [0.0; 11], "no time has passed");
    }
}
