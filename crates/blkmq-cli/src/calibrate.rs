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
use crate::schedulers::{bounds_for_shares, with_limiter};
use crate::{machine, target};
use blkmq_program::{Failure, interrupt, json, progress};

/// Measure a device: its ceilings, the depth beyond which only latency grows, and what to configure.
#[derive(Debug, Args)]
#[command(after_help = blkmq_program::after_help(include_str!("help/calibrate.txt")))]
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

/// What a reader is measured with: the device as a server takes it if it is told nothing; at its own depth, the
/// schedulers that bound the work with it by themselves; the depth that is proposed under each scheduler; and a limiter
/// under those that can have one.
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
    let alone = |scheduler: &'static str| {
        let front = Front { scheduler: Some(scheduler), ..Front::default() };
        Case { name: scheduler.to_owned(), front, is_proposed: false }
    };
    // Without a depth to propose they are among the others.
    let alone = schedulers.iter().filter(|name| depth.is_some() && bounds_for_shares(name)).map(|name| alone(name));
    let limiters = with_limiter().map(limiter);
    std::iter::once(now).chain(alone).chain(schedulers.iter().map(proposed)).chain(limiters).collect()
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
