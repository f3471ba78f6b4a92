//! `blkmq calibrate`: what a device can do, at which depth it does it, and the configuration that follows.
//!
//! In the folder `ground` opens the device, `load` has the loads, and `sweep` measures them. `knee` and `burst` say
//! what the figures mean. `flood` measures a reader beside a flood, `proposal` says what to configure, and `words`
//! prints everything. Nothing else calls in there.

mod burst;
mod flood;
mod ground;
mod knee;
mod load;
mod proposal;
mod render;
mod sweep;

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use indicatif::ProgressBar;
use serde::Serialize;

use self::flood::{Case, Flood, Setting};
use self::ground::{Front, Ground, Permits};
use self::load::Way;
use self::proposal::Proposal;
use self::sweep::{Sweeper, Swept};
use crate::page::{self, Page};
use crate::{machine, target};
use blkmq_program::{Failure, interrupt, json, progress};

const EXAMPLES: &str = "\
Examples:
  blkmq calibrate cloud
  blkmq calibrate file:disk.img
  blkmq calibrate file,path=/dev/nvme0n1 --report nvme.html
  blkmq calibrate file,path=new.img,size=8G --writes
  blkmq calibrate file:disk.img --writes --overwrite
  blkmq calibrate ssd,hw_queue_depth=256 --writes --json

What is measured, by one thread for each hardware queue of the device, without a scheduler:
  ceiling  the highest rate of any depth: requests a second by operations of 4 KiB at random places, bytes a second by
           operations of 256 KiB in sequence; a depth is how many operations are outstanding at once
  knee     the least depth that reaches 0.95 of the ceiling. Beyond it the rate hardly grows, and latency grows as the
           depth does: p99 is shown at the knee, at twice the knee, and at the full depth
  burst    whether the device is faster in its first seconds than later, for how long, and what it does beyond its later
           rate: its credit. A credit that lasts longer than the device is watched is not seen
  reader   reads of 4 KiB one after the other, at most 1000 a second and at most 5 % of the ceiling, beside 4 x 128
           operations of 4 KiB and of 64 KiB (reads, or writes with --writes): with the device as `blkmq serve` takes it,
           at the proposed depth under each scheduler, and with a limiter
  limiter   a queue that bounds the work with the device by itself (wbt_lat_usec=-1), at the device's own depth: what it
           finds without any number, beside what the sweep found
The block at the end is for `blkmq serve --config FILE.toml`. Its depth is the highest knee of all loads, so that none of
them loses more than 5 %. A depth counts requests, and large ones are more work than small ones: one number cannot be
right for both. Its scheduler is the one with the shortest p99 of the reader with which the floods keep 0.9 of the best
rate. A limiter is proposed instead if the reader's p99 is no longer with it, and each flood keeps 0.95 of its rate beside
the device as it is.

A model of a device (hdd, ssd, cloud, null with irqmode=2) is measured on virtual time, so the figures are the same each
time. Any other device takes about a minute of the machine's time, and three with --writes; measure while the machine has
nothing else to do.

Nothing is written unless --writes is given: a file or block device is then opened for reading only. With --writes all of
the device may be overwritten, mostly with zeroes; if it may hold data, it is refused without --overwrite. A file that a
server of blkmq writes to is refused, and with --writes one that any of them has open. So is a block device that is
mounted or that another program has for itself, unless its spec says force=1. It cannot be told whether another program
uses a file, or the device behind an NBD server.

Ctrl-C ends the measurement early, and prints what is known by then. 'blkmq devices' lists devices and their parameters.";

/// Measure a device: its ceilings, the depth beyond which only latency grows, and what to configure.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", blkmq_program::EXIT_CODES))]
pub(crate) struct Calibrate {
    /// The device: a name, then parameters, as in ssd,hw_queue_depth=32; or a file's path.
    #[arg(value_name = "DEVICE")]
    device: String,
    /// Measure writes and a mix of both as well. All of the device may be overwritten.
    #[arg(long)]
    writes: bool,
    /// With --writes: use a device that may hold data, which is lost.
    #[arg(long, requires = "writes")]
    overwrite: bool,
    /// Print one JSON object instead of words.
    #[arg(long)]
    json: bool,
    /// Write a report as well: one HTML file with tables and plots.
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
}

/// Everything that was found. What was not reached before it was stopped is missing.
#[derive(Debug, Serialize)]
struct Found {
    machine: String,
    date: String,
    command: String,
    device: String,
    /// `virtual` or `real`.
    clock: &'static str,
    /// Whether writes were measured too.
    writes: bool,
    hw_queues: u16,
    hw_queue_depth: u16,
    /// The share of the device that takes up no room.
    hole_share: f64,
    loads: Vec<Swept>,
    /// A read, with nothing beside it: the median, in nanoseconds.
    least_latency_ns: Option<u64>,
    proposal: Option<Proposal>,
    floods: Vec<Flood>,
}

impl Calibrate {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<(), Failure> {
        let stop = interrupt::flag();
        let page = Page::open(self.report.as_deref())?;
        let ground = Ground::open(&self.device, Permits { writes: self.writes, overwrite: self.overwrite })?;
        let bar = progress::bar(0);
        let mut found = self.begin(&ground);
        let measured = measure(&ground, self.writes, &mut found, &stop, &bar);
        bar.finish_and_clear();
        // A device may fail in the last of many runs. What is known by then is worth printing.
        if found.loads.is_empty() {
            return measured;
        }
        if let Some(page) = page {
            let modelled = page::modelled(&[ground.device()], ground.clock());
            page.write("blkmq", format!("The device {}", ground.device()), modelled, found.sections())?;
        }
        if self.json {
            json::print(&found, out)?;
        } else {
            found.write(out)?;
        }
        measured?;
        if stop.load(Ordering::Relaxed) { Err(interrupt::failure(ground.device())) } else { Ok(()) }
    }

    fn begin(&self, ground: &Ground) -> Found {
        Found {
            machine: machine::name(),
            date: machine::date(),
            command: machine::command("blkmq"),
            device: ground.device().to_owned(),
            clock: if ground.clock() == target::Time::Virtual { "virtual" } else { "real" },
            writes: self.writes,
            hw_queues: ground.queues,
            hw_queue_depth: ground.depth,
            hole_share: ground.hole_share,
            loads: Vec::new(),
            least_latency_ns: None,
            proposal: None,
            floods: Vec::new(),
        }
    }
}

/// Measures everything, as far as it comes before it is stopped.
fn measure(
    ground: &Ground,
    writes: bool,
    found: &mut Found,
    stop: &Arc<AtomicBool>,
    bar: &ProgressBar,
) -> Result<(), Failure> {
    let loads = load::loads(ground, writes);
    bar.set_length(loads.len() as u64);
    let mut sweeper = Sweeper::new(ground, &loads, stop, bar)?;
    for load in loads {
        found.loads.push(sweeper.sweep(load)?);
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
    }
    // The device is opened anew for what follows.
    drop(sweeper);
    found.least_latency_ns = found
        .loads
        .first()
        .and_then(|read| read.points.iter().find(|point| point.depth == 1))
        .map(|point| point.p50_ns);
    let Some(read_ceiling) = found.loads.first().and_then(|read| read.ceiling_iops) else { return Ok(()) };
    let depth = proposal::depth(ground, &found.loads);
    let schedulers = proposal::schedulers(ground, &found.loads);
    let cases = cases(depth, &schedulers);
    bar.inc_length(2 * cases.len() as u64);
    let way = if writes { Way::Write } else { Way::Read };
    let ceiling = |is_random| {
        let swept = found.loads.iter().find(|swept| swept.load.way == way && swept.load.is_random == is_random);
        swept?.ceiling_bytes_per_second
    };
    let swept = [true, false].map(ceiling);
    let setting = Setting { ground, writes, read_ceiling, swept, burst: burst(ground, &found.loads) };
    found.floods = setting.measure(&cases, stop, bar)?;
    if !stop.load(Ordering::Relaxed) {
        found.proposal = Proposal::of(ground, depth, &schedulers, &found.floods);
    }
    Ok(())
}

/// What a reader is measured with: the device as a server takes it if it is told nothing, the depth that is proposed
/// under each scheduler, and a limiter under those that can have one.
fn cases(depth: Option<u32>, schedulers: &[&'static str]) -> Vec<Case> {
    let proposed = |scheduler: &&'static str| {
        let depth_of = depth.map_or_else(String::new, |depth| format!(", depth {depth}"));
        let front = Front { depth, scheduler: Some(scheduler), has_limiter: false };
        Case { name: format!("{scheduler}{depth_of}"), front, is_proposed: true }
    };
    let limiter = |scheduler: &'static str| {
        let front = Front { depth: None, scheduler: Some(scheduler), has_limiter: true };
        Case { name: format!("{scheduler}, limiter"), front, is_proposed: true }
    };
    let now = Case { name: "as it is".to_owned(), front: Front::default(), is_proposed: false };
    let limiters = crate::schedulers::with_limiter().map(limiter);
    std::iter::once(now).chain(schedulers.iter().map(proposed)).chain(limiters).collect()
}

/// For how long a device must be loaded until what it has saved up is gone.
fn burst(ground: &Ground, swept: &[Swept]) -> Duration {
    let seconds = |swept: &Swept| {
        let early = swept.early.as_ref()?;
        let burst = early.burst?;
        // A model begins anew with all of it, at any depth: so it is used up more slowly than at the full depth.
        let whole = burst.credit_ios / early.later_iops.max(1.0) * 1.5;
        Some(if ground.is_model { whole.min(600.0) } else { (burst.ns as f64 / 1e9).min(5.0) })
    };
    let longest = swept.iter().filter(|swept| swept.load.way != Way::Mix).filter_map(seconds).fold(0.0, f64::max);
    Duration::from_secs_f64(longest)
}
