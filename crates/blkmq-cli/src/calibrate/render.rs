//! What was found, in words and on a page.

use std::io::{self, Write};

use blkmq_workbench::report::{Axis, Content, Line, Lines, Scale, Section, Unit};

use super::Found;
use super::burst::Early;
use super::flood::{Beside, Flood, LimiterFound};
use super::knee::NEAR;
use super::sweep::Swept;
use crate::page;
use blkmq_program::{
    columns,
    render::{short, size, us},
};

/// If the middle half of the runs of a depth lies apart by more than this part of their rate, the figures say little.
const DISTURBED: f64 = 0.2;

/// Rows and columns.
type Rows = Vec<Vec<String>>;

const HEAD: [&str; 8] =
    ["load", "ceiling", "MB/s", "knee", "p99 at 1", "at the knee", "at twice the knee", "at full depth"];
const LIMITERS: [&str; 7] = ["beside", "", "it is", "ceiling", "by the sweep", "bound ms", "target us"];
const FLOODED: [&str; 7] = ["beside", "", "reads/s", "p50", "p99", "p99.9", "flood MB/s"];

impl Swept {
    fn row(&self) -> Vec<String> {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let p99 = |point: Option<super::knee::Point>| or_dash(point.map(|point| us(point.p99_ns)));
        let first = self.points.iter().copied().find(|point| point.depth == 1);
        vec![
            self.load.name(),
            or_dash(self.ceiling_iops.map(|iops| format!("{}/s", short(iops)))),
            or_dash(self.ceiling_bytes_per_second.map(|bytes| format!("{:.1}", bytes / 1e6))),
            or_dash(self.knee.map(|knee| knee.depth.to_string())),
            p99(first),
            p99(self.knee.map(|knee| knee.at)),
            p99(self.knee.and_then(|knee| knee.at_twice)),
            p99(self.knee.map(|knee| knee.at_full)),
        ]
    }

    /// Whether the device is faster at first, in a sentence. `None` if it was not watched.
    fn early(&self) -> Option<String> {
        let Early { watched_ns, later_iops, burst } = self.early.as_ref()?;
        let seconds = |ns: u64| ns as f64 / 1e9;
        Some(match burst {
            Some(burst) => format!(
                "{}: {}/s for the first {:.1} s, then {}/s: a credit of {} operations, or {}",
                self.load.name(),
                short(burst.iops),
                seconds(burst.ns),
                short(*later_iops),
                short(burst.credit_ios),
                size(burst.credit_bytes as u64),
            ),
            None => format!("{}: none in {:.1} s", self.load.name(), seconds(*watched_ns)),
        })
    }
}

impl Beside {
    fn cells(&self) -> Vec<String> {
        let [p50, p99, p99_9] = [self.p50_ns, self.p99_ns, self.p99_9_ns].map(us);
        let flood = format!("{:.1}", self.flood_bytes_per_second / 1e6);
        vec![format!("{:.0}", self.reads_per_second), p50, p99, p99_9, flood]
    }
}

impl Flood {
    fn rows(&self) -> Rows {
        let row = |(at, beside): (usize, &Beside)| {
            let name = if at == 0 { self.name() } else { String::new() };
            let case = if at == 0 { format!("{} ({})", beside.case, beside.scheduler) } else { beside.case.clone() };
            [vec![name, case], beside.cells()].concat()
        };
        self.cases.iter().enumerate().map(row).collect()
    }

    /// What limiters found.
    fn limiters(&self) -> Rows {
        // Where operations are small their number is what the device is short of.
        let is_small = self.bytes <= 4096;
        let rate = |bytes: Option<f64>| match bytes {
            None => "-".to_owned(),
            Some(bytes) if is_small => format!("{}/s", short(bytes / self.bytes as f64)),
            Some(bytes) => format!("{:.1} MB/s", bytes / 1e6),
        };
        let row = |(name, found): (&String, &LimiterFound)| {
            let bound = found.bound_ns.map_or_else(|| "-".to_owned(), |ns| format!("{:.1}", ns as f64 / 1e6));
            let target = found.target_ns.map_or_else(|| "-".to_owned(), us);
            let [found_rate, swept] = [found.ceiling_bytes_per_second, self.swept_bytes_per_second].map(rate);
            vec![self.name(), name.clone(), found.phase.to_owned(), found_rate, swept, bound, target]
        };
        self.cases.iter().filter_map(|beside| Some((&beside.case, beside.limiter.as_ref()?))).map(row).collect()
    }
}

impl Found {
    fn facts(&self) -> Vec<(&'static str, String)> {
        let clock = if self.clock == "virtual" { "a model, on virtual time" } else { "on the machine's time" };
        let queues =
            if self.hw_queues == 1 { String::new() } else { format!("{} hardware queues of ", self.hw_queues) };
        let what =
            if self.writes { "reads, writes and a mix" } else { "reads; --writes measures writes and a mix too" };
        let mut facts = vec![
            ("device", format!("{}, {clock}; {queues}depth {}", self.device, self.hw_queue_depth)),
            ("machine", format!("{}; {}", self.machine, self.date)),
            ("measured", what.to_owned()),
        ];
        if self.hole_share > 0.01 {
            facts.push(("holes", format!("{:.0} % of the device; reads there reach no disk", 100.0 * self.hole_share)));
        }
        if let Some(ns) = self.least_latency_ns {
            facts.push(("latency", format!("{} us for a read with nothing beside it, at the median", us(ns))));
        }
        facts
    }

    fn ceilings(&self) -> Rows {
        self.loads.iter().map(Swept::row).collect()
    }

    fn flooded(&self) -> Rows {
        self.floods.iter().flat_map(Flood::rows).collect()
    }

    /// What limiters found. The name of a flood stands in its first row alone.
    fn limiters(&self) -> Rows {
        let mut rows: Rows = self.floods.iter().flat_map(Flood::limiters).collect();
        for at in (1..rows.len()).rev() {
            if rows[at][0] == rows[at - 1][0] {
                rows[at][0].clear();
            }
        }
        rows
    }

    fn about_limiters() -> String {
        "A limiter finds by itself how much work the device may have (wbt_lat_usec = -1). While it is open it holds nothing \
         back.\nfair has one without that knob, which holds back while a client gets less than it is due."
            .to_owned()
    }

    /// What to configure where clients have weights.
    fn about_shares(&self) -> Option<String> {
        let found = |flood: &Flood| {
            let bound = flood.for_shares()?.limiter.as_ref()?.bound_ns;
            let bound = bound.map_or_else(|| "none".to_owned(), |ns| format!("{:.2} ms", ns as f64 / 1e6));
            Some(format!("{bound} beside {}", flood.name()))
        };
        let found: Vec<String> = self.floods.iter().map(found).collect::<Option<_>>()?;
        Some(format!(
            "Where clients have weights, name no depth and no scheduler: the server takes fair, which finds a bound by \
             itself:\n{}.",
            found.join(", ")
        ))
    }

    fn note() -> String {
        format!("Latencies in us. The knee is the least depth that reaches {NEAR} of the ceiling.")
    }

    /// The note, and what else is to be said of these figures.
    fn notes(&self) -> String {
        let remarks = [Some(Self::note()), self.still_rising(), self.disturbed()];
        remarks.into_iter().flatten().collect::<Vec<_>>().join(" ")
    }

    /// What the reader wants, in a sentence.
    fn reader(&self) -> String {
        let wanted = self.floods.first().map_or(0, |flood| flood.reads_wanted);
        let reads = self.floods.iter().flat_map(|flood| &flood.cases).map(|beside| beside.reads).min().unwrap_or(0);
        let few =
            if reads < 1000 { format!("; with {reads} reads, p99.9 is the slowest of them") } else { String::new() };
        format!("A reader that wants {wanted} reads/s, beside 4 x 128 operations outstanding; latencies in us{few}.")
    }

    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        for (title, text) in self.facts() {
            writeln!(out, "{title:10}{text}")?;
        }
        writeln!(out)?;
        columns::write(&HEAD, self.ceilings(), 1, 6, out)?;
        writeln!(out, "\n{}", Self::note())?;
        for remark in [self.still_rising(), self.disturbed()].into_iter().flatten() {
            writeln!(out, "{remark}")?;
        }
        writeln!(out, "\nFaster at first?")?;
        for early in self.loads.iter().filter_map(Swept::early) {
            writeln!(out, "  {early}")?;
        }
        if !self.floods.is_empty() {
            writeln!(out, "\n{}\n", self.reader())?;
            columns::write(&FLOODED, self.flooded(), 2, 6, out)?;
        }
        let limiters = self.limiters();
        if !limiters.is_empty() {
            writeln!(out, "\n{}\n", Self::about_limiters())?;
            columns::write(&LIMITERS, limiters, 3, 6, out)?;
        }
        if let Some(proposal) = &self.proposal {
            if let Some(shares) = self.about_shares() {
                writeln!(out, "\n{shares}")?;
            }
            writeln!(out, "\nTo configure, for blkmq serve --config FILE.toml:\n")?;
            write!(out, "{}", proposal.toml)?;
        }
        Ok(())
    }

    /// What the knee does not say if the device's own depth ends first.
    fn still_rising(&self) -> Option<String> {
        let rises = |swept: &&Swept| swept.knee.is_some_and(|knee| knee.is_beyond());
        let rising: Vec<String> = self.loads.iter().filter(rises).map(|swept| swept.load.name()).collect();
        let what = "still faster at the full depth, so a deeper queue may have a higher ceiling";
        (!rising.is_empty()).then(|| format!("{}: {what}.", rising.join("; ")))
    }

    /// Whether the runs of one depth did not agree, so that other figures are not to be trusted either.
    fn disturbed(&self) -> Option<String> {
        let points = self.loads.iter().flat_map(|swept| &swept.points);
        let mut spreads: Vec<f64> = points.map(|point| point.spread).collect();
        spreads.sort_by(f64::total_cmp);
        let middle = *spreads.get(spreads.len() / 2).filter(|spread| self.clock == "real" && **spread > DISTURBED)?;
        Some(format!(
            "Runs of one depth differ by {:.0} %: something else used the machine or the device. Measure again when both \
             are idle.",
            100.0 * middle
        ))
    }

    pub(super) fn sections(&self) -> Vec<Section> {
        let facts = self.facts().into_iter().map(|(title, text)| vec![title.to_owned(), text]).collect();
        let mut sections = vec![
            page::table("Setting", "", &["", ""], facts),
            page::table("Ceilings", &self.notes(), &HEAD, self.ceilings()),
        ];
        let curve = |y: fn(&super::knee::Point) -> f64| -> Vec<Line> {
            let line = |swept: &Swept| {
                let points = swept.points.iter().map(|point| (f64::from(point.depth), y(point))).collect();
                Line { name: swept.load.name(), points }
            };
            self.loads.iter().map(line).collect()
        };
        let lines = |title: &str, y: Axis, lines: Vec<Line>| Section {
            title: title.to_owned(),
            note: String::new(),
            content: Content::Lines(Lines { x: Axis::new("outstanding", Scale::Log, Unit::Number), y, lines }),
        };
        let rates = Axis::new("operations per second", Scale::Log, Unit::Number);
        sections.push(lines("Rate by depth", rates, curve(|point| point.iops)));
        let latencies = Axis::new("p99", Scale::Log, Unit::Nanoseconds);
        sections.push(lines("p99 by depth", latencies, curve(|point| point.p99_ns as f64)));
        let early: Rows = self.loads.iter().filter_map(|swept| Some(vec![swept.early()?])).collect();
        sections.push(page::table("Faster at first?", "", &[""], early));
        if !self.floods.is_empty() {
            sections.push(page::table("A reader beside a flood", &self.reader(), &FLOODED, self.flooded()));
        }
        let limiters = self.limiters();
        if !limiters.is_empty() {
            sections.push(page::table("What limiters found", &Self::about_limiters(), &LIMITERS, limiters));
        }
        if let Some(proposal) = &self.proposal {
            let rows = proposal.toml.lines().map(|line| vec![line.to_owned()]).collect();
            let note = ["For blkmq serve --config FILE.toml.".to_owned()].into_iter().chain(self.about_shares());
            sections.push(page::table("To configure", &note.collect::<Vec<_>>().join(" "), &[""], rows));
        }
        sections
    }
}
