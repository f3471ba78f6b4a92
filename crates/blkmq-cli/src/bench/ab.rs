//! Two values of a knob, compared.

mod jobs;
mod plan;
mod shared;

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use blkmq_workbench::bench::{self, LayerOutcome};
use blkmq_workbench::compare::{self, Variant};
use blkmq_workbench::device::is_real;
use blkmq_workbench::report::{Bar, Group, Section};
use blkmq_workbench::{Job, JobFile, MIN_ROUNDS, Ratio, Spread, TextError, Turns, WIDTH};
use serde::Serialize;

use self::jobs::ComparedJob;
use self::plan::{Plan, Watch};
use self::shared::Shared;
use super::table::{NOTHING_WAITED, WAITING, is_idle};
use super::{Bench, Format};
use crate::device;
use crate::page::{self, Page};
use crate::target::{Pair, Target, Time};
use blkmq_program::render::{distinct, short, time};
use blkmq_program::{Failure, interrupt, json};

impl Bench {
    /// Compares the two values.
    pub(super) fn compare(
        &self,
        pair: &Pair,
        base: &Target,
        name: &str,
        file: &JobFile,
        stop: &Arc<AtomicBool>,
        out: &mut dyn Write,
    ) -> Result<(), Failure> {
        let targets = pair.targets(base);
        let variants = benches(&targets, name, &file.jobs)?.into_iter().zip(&pair.values);
        let variant = |(bench, value)| Variant::new(format!("{name}: {}={value}", pair.knob), &file.jobs, bench);
        let mut variants: Vec<_> = variants.map(variant).collect();
        let page = Page::open(self.report.as_deref())?;
        let plan = Plan::new(self, &file.jobs)?;
        let slice = plan.slice;
        let mut watch =
            Watch::new(&plan, &format!("slices of {} {} and {}", pair.knob, pair.values[0], pair.values[1]));
        let turns = compare::in_turn(&mut variants, slice, plan.rounds, &[(0, 1)], stop, &mut || watch.tell(stop));
        let is_over = watch.end();
        let turns = turns.map_err(|error| if is_over { plan.too_short().into() } else { Failure::from(error) });
        let device = (pair.knob != "device").then(|| &*base.setup.device);
        let found = Found::new(pair, device, &turns?, &variants, slice, self.clock == Time::Real);
        if let Some(page) = page {
            let title = format!("The load {name}: {} {} or {}", pair.knob, found.a, found.b);
            let modelled = page::modelled(&targets.each_ref().map(|target| &*target.setup.device), self.clock);
            page.write("blkmq", title, modelled, found.sections(slice))?;
        }
        if self.format() != Format::Normal {
            json::print(&found, out)?
        } else {
            found.write(name, &plan, out)?
        }
        if stop.load(Ordering::Relaxed) && !is_over { Err(interrupt::failure(name)) } else { Ok(()) }
    }
}

/// The queue of each side. Sides on the same real device share it, since a file is open once.
fn benches(targets: &[Target; 2], file: &str, jobs: &[Job]) -> Result<[bench::Bench; 2], TextError> {
    let [a, b] = targets;
    let [first, second] = targets.each_ref().map(|target| &*target.setup.device);
    let is_shared = first == second && is_real(&device::name(first));
    if !is_shared && let Some(path) = device::contested(first, second) {
        let what = format!(
            "both sides are the file '{path}', which one of them has for itself; give each side a file, or compare values of \
             another knob on one, as in --ab scheduler=none,mq-deadline"
        );
        return Err(b.fault("device", what));
    }
    let driver = a.open_device(jobs)?;
    if !is_shared {
        return Ok([a.over(driver, file, jobs)?, b.open(file, jobs)?]);
    }
    let side = |target: &Target| target.over(Arc::new(Shared(Arc::clone(&driver))), file, jobs);
    Ok([side(a)?, side(b)?])
}

/// The results. The ratio is that of the operations of all jobs together.
#[derive(Debug, Serialize)]
struct Found<'a> {
    /// The device of both sides, if it is not what is compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<&'a str>,
    knob: &'a str,
    a: &'a str,
    b: &'a str,
    #[serde(flatten)]
    ratio: Ratio,
    /// Operations per second of each side.
    iops: Sides<Spread>,
    /// Where the time stamps of each side's requests came from.
    stamps: Sides<&'static str>,
    /// The cost of requests. `None` on virtual time, which takes no CPU time.
    #[serde(skip_serializing_if = "Option::is_none")]
    costs: Option<Sides<Costs>>,
    jobs: Vec<ComparedJob>,
    /// Whether each side has a scheduler, and next to nothing waited for it.
    #[serde(skip)]
    is_idle: [bool; 2],
}

#[derive(Debug, Serialize)]
struct Sides<T> {
    a: T,
    b: T,
}

/// Means over all slices of a side.
#[derive(Debug, Clone, Copy, Serialize)]
struct Costs {
    /// CPU time of the jobs' threads for each request that the driver got.
    cpu_ns_per_request: f64,
    /// The share of this CPU time that was spent on waiting for the scheduler's lock, and on polls that found nothing.
    wait_share: f64,
    /// The share of the requests that bypassed the scheduler.
    bypassed_share: f64,
}

impl From<&LayerOutcome> for Costs {
    fn from(layer: &LayerOutcome) -> Self {
        Self {
            cpu_ns_per_request: layer.cpu_ns_per_request(),
            wait_share: layer.wait_share(),
            bypassed_share: layer.bypassed_share(),
        }
    }
}

impl<'a> Found<'a> {
    fn new(
        pair: &'a Pair,
        device: Option<&'a str>,
        turns: &Turns,
        variants: &[Variant],
        slice: Duration,
        is_real: bool,
    ) -> Self {
        let ratio = turns.ratio(0, 1).expect("there are at least two rounds");
        let rates = |side| turns.spread(side).expect("every side had slices");
        let [a, b] = pair.values.each_ref().map(String::as_str);
        let iops = Sides { a: rates(0), b: rates(1) };
        let stamps = |side: usize| variants[side].bench().stamps().name();
        let stamps = Sides { a: stamps(0), b: stamps(1) };
        let costs = |side: usize| Costs::from(variants[side].layer());
        let costs = is_real.then(|| Sides { a: costs(0), b: costs(1) });
        let names = distinct(&variants[0].jobs().iter().map(|job| &*job.name).collect::<Vec<_>>());
        let jobs = variants[0].jobs().iter().zip(variants[1].jobs()).zip(names);
        let jobs = jobs.map(|((a, b), name)| ComparedJob::new(name, a, b, slice)).collect();
        let is_idle = [0, 1].map(|side| {
            let variant = &variants[side];
            is_idle(variant.bench().queue().scheduler(), variant.layer())
        });
        Self { device, knob: &pair.knob, a, b, ratio, iops, stamps, costs, jobs, is_idle }
    }

    fn sections(&self, slice: Duration) -> Vec<Section> {
        let bar = |rates: Spread| Some(Bar::with_interval(rates.median, rates.lower, rates.upper));
        // The two values may be the same, to see what the comparison itself reports then.
        let group = |side, value: &str, bar| Group { name: format!("{side}: {}={value}", self.knob), bars: vec![bar] };
        let groups = vec![group("A", self.a, bar(self.iops.a)), group("B", self.b, bar(self.iops.b))];
        let note =
            format!("Operations per second: the median of slices of {} that took turns, with quartiles.", time(slice));
        let rates = page::bars("Rates", &note, "IOPS", (0.0, &["IOPS"]), groups);
        let note = format!(
            "The rate with B = {} over that with A = {}, with its 95 % interval, from {} rounds of four slices.",
            self.b, self.a, self.ratio.rounds
        );
        let Ratio { ratio, low, high, .. } = self.ratio;
        let ratio = Group { name: "B/A".to_owned(), bars: vec![Some(Bar::with_interval(ratio, low, high))] };
        vec![
            page::bars("Ratio", &note, "B/A", (1.0, &["B/A"]), vec![ratio]),
            rates,
            jobs::bars(&self.jobs),
            jobs::table(&self.jobs),
        ]
    }

    fn write(&self, load: &str, plan: &Plan, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{:11}{load}", "load")?;
        if let Some(device) = self.device {
            writeln!(out, "{:11}{device}", "device")?;
        }
        let sides = [("A", self.a, self.iops.a, self.stamps.a), ("B", self.b, self.iops.b, self.stamps.b)];
        for (side, value, rates, stamps) in sides {
            let [median, lower, upper] = [rates.median, rates.lower, rates.upper].map(short);
            let stamps = format!("time stamps {stamps}");
            writeln!(
                out,
                "{side}    {median:>7} IOPS, quartiles {lower} .. {upper}, {stamps}    {}={value}",
                self.knob
            )?;
        }
        for (side, costs) in self.costs.iter().flat_map(|costs| [("A", costs.a), ("B", costs.b)]) {
            let Costs { cpu_ns_per_request, wait_share, bypassed_share } = costs;
            let [waiting, passed] = [wait_share, bypassed_share].map(|share| 100.0 * share);
            let shares = format!(
                "{waiting:.1} % of it waiting {WAITING}; {passed:.1} % of the requests \
                 bypassed the scheduler"
            );
            writeln!(out, "{side}    {cpu_ns_per_request:.0} ns CPU a request, {shares}")?;
        }
        for (side, _) in ["A", "B"].iter().zip(self.is_idle).filter(|(_, is_idle)| *is_idle) {
            writeln!(out, "{side}    {NOTHING_WAITED}")?;
        }
        let Ratio { ratio, low, high, rounds } = self.ratio;
        let of = format!("{rounds} rounds of four slices of {}", time(plan.slice));
        let all = if self.jobs.len() > 1 { ", IOPS of all jobs together" } else { "" };
        writeln!(out, "B/A  {ratio:.4}, 95 % interval {low:.4} .. {high:.4}, {of}{all}")?;
        if rounds < MIN_ROUNDS {
            let more = plan.how_to_get_more_rounds();
            writeln!(out, "     An interval of fewer than {MIN_ROUNDS} rounds is not reliable: {more}.")?;
        } else if !self.ratio.is_resolved() {
            writeln!(out, "     The interval is not narrower than {WIDTH}: {}.", plan.how_to_get_more_rounds())?;
        }
        jobs::write(&self.jobs, out)
    }
}
