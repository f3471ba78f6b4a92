//! `blkmq demo`: what blkmq is good for, in less than a minute and without a device of the user's.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use blkmq_workbench::bench::Control;
use clap::Args;
use serde::Serialize;

use crate::flood::{self, Flooded, THREADS, TITLES, Way};
use crate::machine;
use crate::reproduce::{self, FoundTable};
use crate::target::Time;
use blkmq_program::render::time;
use blkmq_program::{Failure, interrupt, json};

/// Show in less than a minute what a scheduler does for a reader beside a flood of writes, and what it costs many
/// threads to share a scheduler.
#[derive(Debug, Args)]
#[command(after_help = blkmq_program::after_help(include_str!("help/demo.txt")))]
pub(crate) struct Demo {
    /// Print one JSON object instead of words.
    #[arg(long)]
    json: bool,
}

/// How long all floods take together, however many schedulers there are.
const FLOODS: Duration = Duration::from_secs(20);

/// The queue depth of a SATA drive, and of the disks of many virtual machines.
const DEPTH: u16 = 32;

#[derive(Debug, Serialize)]
struct Found {
    machine: String,
    date: String,
    command: String,
    flood: Vec<Flooded>,
    scaling: FoundTable,
    waiting: FoundTable,
}

/// What to try next, with what it shows.
const NEXT: [(&str, &str); 3] = [
    ("reproduce flood", "the same flood with queues of other depths, on virtual time: the same figures everywhere"),
    ("torture --minutes 1", "the block layer on virtual CPUs with a faulty device; its promises are checked"),
    ("serve --help", "your files and devices behind these schedulers, for NBD clients"),
];

impl Demo {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<(), Failure> {
        let stop = interrupt::flag();
        let control = Control { stop: Arc::clone(&stop), ..Control::default() };
        let mut hidden = io::sink();
        let words: &mut dyn Write = if self.json { &mut hidden } else { &mut *out };
        let flood = measure_floods(&control, words)?;
        let (scaling, waiting) = measure_scaling(&control, words)?;
        if stop.load(Ordering::Relaxed) {
            return Err(interrupt::failure("demo"));
        }
        write_next(words)?;
        if self.json {
            let (machine, date, command) = (machine::name(), machine::date(), machine::command("blkmq"));
            json::print(&Found { machine, date, command, flood, scaling, waiting }, out)?;
        }
        Ok(())
    }
}

fn write_line(name: &str, cells: &[String], out: &mut dyn Write) -> io::Result<()> {
    let cells: String = cells.iter().map(|cell| format!(" {cell:>13}")).collect();
    writeln!(out, "{name:16}{cells}")?;
    out.flush()
}

/// What the rows of `bfq` show.
const BFQ: &str = "\
bfq divides the SSD among its clients. Here each thread is a client, so the reader, which asks for one read at a time, waits
for the turns of 128 others, as under Linux's BFQ. A client that must not wait belongs in the real-time class, 'reader rt':
'prioclass=1' in a job file.";

/// The flood under each scheduler, a row at a time, and under bfq also with a reader of the real-time class.
fn measure_floods(control: &Control, out: &mut dyn Write) -> Result<Vec<Flooded>, Failure> {
    let schedulers = blkmq::scheduler_names();
    let rows: Vec<_> = schedulers.iter().map(|&scheduler| (scheduler, false)).chain([("bfq", true)]).collect();
    let each = FLOODS / rows.len() as u32;
    writeln!(
        out,
        "measured on {}; {}\n
One tenant's writes bury another's reads.\n
A reader wants 1000 reads of 4 KiB a second, one after the other. Beside it four writers keep 512 writes of 64 KiB waiting,
from {} threads. They share an SSD that takes {DEPTH} requests at once; the scheduler decides which. {} for each row.
The SSD is a model ('ssd,hw_queue_depth={DEPTH}'), which takes the times that its parameters say. Threads, block layer and
clock are real.\n",
        machine::name(),
        machine::date(),
        THREADS.about.split(' ').next().unwrap_or_default(),
        time(each),
    )?;
    let [reads, p50, p99, p99_9, writes] = TITLES;
    let titles = [reads.to_owned(), format!("{p50} ms"), format!("{p99} ms"), format!("{p99_9} ms"), writes.to_owned()];
    write_line("scheduler", &titles, out)?;
    let mut all: Vec<Flooded> = Vec::new();
    for (scheduler, is_reader_rt) in rows {
        let way = Way { load: THREADS, depth: DEPTH, scheduler, nr_requests: None, is_reader_rt };
        let Some(flooded) = flood::run(&way, Time::Real, each, control)? else {
            return Err(interrupt::failure("demo"));
        };
        write_line(&flooded.name(), &flooded.cells(), out)?;
        all.push(flooded);
    }
    writeln!(out)?;
    if let [none, others @ ..] = &all[..] {
        for other in others {
            writeln!(out, "{}", other.beside(none))?;
        }
        writeln!(out, "\n{BFQ}")?;
    }
    Ok(all)
}

/// What it costs many threads to share a scheduler: on a device where no request has to wait, and on one where requests
/// wait.
fn measure_scaling(control: &Control, out: &mut dyn Write) -> Result<(FoundTable, FoundTable), Failure> {
    writeln!(
        out,
        "\nAll threads share one scheduler. Linux guards it with one lock: the row 'single'. The other rows are other ways to share
it, with mq-deadline on a null device that takes no time. With 'bypass', requests bypass the scheduler while nothing waits,
and here no request has to wait. Without it, each request goes through the scheduler. The published numbers were measured
on 16 cores."
    )?;
    let quick = reproduce::scaling_in_short(&control.stop)?;
    write_steps(&quick, reproduce::QUICK, out)?;
    let waiting = reproduce::waiting_in_short(&control.stop)?;
    write_steps(&waiting, reproduce::WAITING, out)?;
    Ok((quick, waiting))
}

/// The table, and what each of two steps gains: the locking, and the bypass.
fn write_steps(table: &FoundTable, suffix: &str, out: &mut dyn Write) -> io::Result<()> {
    table.write(out)?;
    if let Some(sentence) = table.steps(suffix) {
        writeln!(out, "\n{sentence}")?;
    }
    out.flush()
}

/// Says what to type next, with the name by which this program was called.
fn write_next(out: &mut dyn Write) -> io::Result<()> {
    let name =
        std::env::args_os().next().map_or_else(|| "blkmq".to_owned(), |name| name.to_string_lossy().into_owned());
    writeln!(out, "\nTry next:")?;
    for (command, about) in NEXT {
        writeln!(out, "  {:46}  {about}", format!("{name} {command}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use clap::error::ErrorKind;

    use super::*;
    use crate::Cli;

    #[test]
    fn what_to_try_next_is_accepted() {
        for (command, _) in NEXT {
            let parsed = Cli::try_parse_from(std::iter::once("blkmq").chain(command.split(' ')));
            assert!(parsed.map_or_else(|error| error.kind() == ErrorKind::DisplayHelp, |_| true), "{command}");
        }
    }
}
