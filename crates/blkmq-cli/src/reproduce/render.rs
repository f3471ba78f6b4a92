//! The results, in words and on a page.

use std::io::{self, Write};

use blkmq::Locking;
use blkmq_workbench::report::{Bar, Group, Section};
use blkmq_workbench::{MIN_ROUNDS, Spread};

use super::found::{Found, FoundRatio, FoundRow, FoundTable};
use super::tables::Figure;
use crate::page;
use blkmq_program::render::short;

/// A fraction as a percentage that was gained or lost: `+163 %`, `-1.5 %`.
fn on_top(gain: f64) -> String {
    let percent = 100.0 * gain;
    if percent.abs() < 99.95 { format!("{percent:+.1} %") } else { format!("{percent:+.0} %") }
}

fn percent(percent: f64) -> String {
    format!("{percent:.1} %")
}

fn kib(bytes: f64) -> String {
    format!("{:.1}", bytes / 1024.0)
}

/// A ratio with its interval, or the statement that there is no difference, if the interval contains 1.
fn times(&FoundRatio { ratio, low, high, .. }: &FoundRatio) -> String {
    let verdict = if low > 1.0 || high < 1.0 { "" } else { ", no difference that so short a run can tell" };
    format!("{ratio:.2} ({low:.2} .. {high:.2}{verdict})")
}

/// A cell for a value that may be missing.
fn cell<T>(value: Option<T>, words: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), words)
}

/// The interval of a gain. Empty if each run gives the same result.
fn interval(&FoundRatio { low, high, .. }: &FoundRatio) -> String {
    let [low, high] = [low, high].map(|ratio| ratio - 1.0);
    match high {
        _ if low >= high => String::new(),
        // Two rounds are too few for any conclusion.
        high if high >= 10.0 => format!("{} .. over 1000 %", on_top(low)),
        high => format!("{} .. {}", on_top(low), on_top(high)),
    }
}

impl Found {
    pub(super) fn write_head(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "measured on {}; {}; by '{}'", self.machine, self.date, self.command)
    }
}

/// The columns after the label, with their widths. The last three are published numbers.
const COLUMNS: [(&str, usize); 14] = [
    ("IOPS", 8),
    ("gain", 9),
    ("95 % interval", 24),
    ("of none", 9),
    ("stamps", 8),
    ("CPU ns", 8),
    ("waiting", 9),
    ("at work", 9),
    ("merged", 9),
    ("KiB", 8),
    ("passed", 9),
    ("published", 11),
    ("gain", 9),
    ("merged", 9),
];

/// What the columns are.
const ABOUT: &str = "\
Of none: the rate over that without a scheduler. Stamps: exact, as requests of applications have them, or coarse, the time of
the kernel's last tick, where no job measures a latency. CPU ns: CPU time of a request; waiting: the share of it for the
scheduler's lock, and for polls that found no completion; at work: what is left of CPU ns, also in ns. Passed: requests that
bypassed the scheduler.";

/// Wide enough for every label.
const LABEL: usize = 44;

fn write_line(label: &str, cells: &[String], out: &mut dyn Write) -> io::Result<()> {
    // There is at least one blank between two cells, also if a cell is wider than its column.
    let cell = |(cell, (_, width)): (&String, (&str, usize))| format!(" {cell:>0$}", width - 1);
    let cells: String = cells.iter().zip(COLUMNS).map(cell).collect();
    writeln!(out, "{}", format!("{label:LABEL$}{cells}").trim_end())
}

impl FoundTable {
    pub(crate) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "\n{}: {}", self.name, self.about)?;
        let published = match &*self.published {
            "" => String::new(),
            published => format!(" Published: {published}"),
        };
        writeln!(out, "{}, {}.{published}\n", self.job, self.time)?;
        let has_merges = self.rows.iter().any(|row| row.published_merged_percent.is_some());
        let unused = if self.published.is_empty() { 3 } else { usize::from(!has_merges) };
        let shown = COLUMNS.len() - unused;
        write_line("", &COLUMNS.map(|(title, _)| title.to_owned())[..shown], out)?;
        for row in &self.rows {
            write_line(&row.label, &row.cells()[..shown], out)?;
        }
        writeln!(out, "{ABOUT}")?;
        if (2..MIN_ROUNDS).contains(&self.rounds) {
            writeln!(out, "An interval of fewer than {MIN_ROUNDS} rounds is not reliable: give more --rounds.")?;
        }
        if !self.figures.is_empty() {
            writeln!(out, "\nPublished gains:")?;
        }
        for Figure { what, machine, before, after, gain, beside } in &self.figures {
            let beside = if beside.is_empty() { String::new() } else { format!("; {beside}") };
            let rates = format!("{} -> {}", short(*before), short(*after));
            writeln!(out, "  {rates:16}{:>8}  {what}: {machine}{beside}", on_top(*gain))?;
        }
        Ok(())
    }

    /// What each step from Linux's lock to the default gains, by name, one line for each step. `None` unless the table
    /// has these rows, whose labels end with `suffix`.
    pub(crate) fn steps(&self, suffix: &str) -> Option<String> {
        let (base, locking) = (format!("single{suffix}"), Locking::default());
        let mut lines = format!("On this machine, times the operations of '{base}':");
        for (step, label) in [
            ("the locking alone", locking.to_string()),
            ("the bypass alone", "single, bypass".to_owned()),
            ("both, the default", format!("{locking}, bypass")),
        ] {
            let row = self.rows.iter().find(|row| row.label == format!("{label}{suffix}"))?;
            let found = row.ratio.as_ref().filter(|found| found.base == base)?;
            lines += &format!("\n  {step:19}'{}' {}", row.label, times(found));
            if let Some(none) = &row.ratio_to_none {
                lines += &format!(", {:.0} % of what '{}' does", 100.0 * none.ratio, none.base);
            }
        }
        Some(lines)
    }

    /// The table, its rates and its ratios, each next to the published one.
    pub(super) fn sections(&self) -> Vec<Section> {
        let head = [&["", "device", "settings"][..], &COLUMNS.map(|(title, _)| title)].concat();
        let rows = self.rows.iter().map(FoundRow::page_cells).collect();
        let published = |value: Option<f64>| value.map(Bar::new);
        let group = |row: &FoundRow, bars| Group { name: row.label.clone(), bars };
        let rates = |row: &FoundRow| {
            let Spread { median, lower, upper } = row.iops;
            group(row, vec![Some(Bar::with_interval(median, lower, upper)), published(row.published_iops)])
        };
        let ratios = |row: &FoundRow| {
            let &FoundRatio { ratio, low, high, .. } = row.ratio.as_ref()?;
            let bar = Bar::with_interval(ratio, low, high);
            Some(group(row, vec![Some(bar), published(row.published_gain.map(|gain| 1.0 + gain))]))
        };
        let series = ["measured", "published"];
        let published = match &*self.published {
            "" => String::new(),
            published => format!(" The last three columns were published: {published}."),
        };
        let note = format!(
            "{} {}, {}.{published} Gain is after/before - 1, KiB the mean size of a request. {ABOUT}",
            self.about, self.job, self.time
        );
        let mut sections = vec![
            page::table(&self.name, &note, &head, rows),
            page::bars(
                &format!("{}: rates", self.name),
                "Operations per second: the median of slices that took turns, with quartiles.",
                "IOPS",
                (0.0, &series),
                self.rows.iter().map(rates).collect(),
            ),
        ];
        let bases = self.rows.iter().filter_map(|row| Some(row.ratio.as_ref()?.base.clone()));
        let mut bases: Vec<String> = bases.map(|base| format!("'{base}'")).collect();
        bases.dedup();
        let figures = self.figures.iter().map(Figure::group);
        let ratios: Vec<Group> = self.rows.iter().filter_map(ratios).chain(figures).collect();
        if !ratios.is_empty() {
            let note = format!(
                "Rates over those of {}, with 95 % intervals; published ones over those before, each on its own machine.",
                bases.join(" and ")
            );
            sections.push(page::bars(&format!("{}: ratios", self.name), &note, "ratio", (1.0, &series), ratios));
        }
        if !self.figures.is_empty() {
            let rows = self.figures.iter().map(Figure::page_cells).collect();
            let head = ["", "machine", "IOPS before", "after", "gain", ""];
            sections.push(page::table(&format!("{}: published gains", self.name), "", &head, rows));
        }
        sections
    }
}

impl FoundRow {
    /// The cells of a row, in the order of [`COLUMNS`].
    fn cells(&self) -> Vec<String> {
        vec![
            short(self.iops.median),
            cell(self.gain, on_top),
            self.ratio.as_ref().map_or_else(String::new, interval),
            cell(self.ratio_to_none.as_ref(), |found| format!("{:.3}", found.ratio)),
            self.stamps.to_owned(),
            cell(self.cpu_ns_per_request, |ns| format!("{ns:.0}")),
            cell(self.wait_share, |share| percent(100.0 * share)),
            cell(self.work_ns_per_request, |ns| format!("{ns:.0}")),
            percent(self.merged_percent),
            kib(self.request_bytes_mean),
            cell(self.bypassed_percent, percent),
            cell(self.published_iops, short),
            cell(self.published_gain, on_top),
            cell(self.published_merged_percent, percent),
        ]
    }

    /// The cells of a row for a page, which has room for more.
    fn page_cells(&self) -> Vec<String> {
        [vec![self.label.clone(), self.device.to_owned(), self.settings.join(", ")], self.cells()].concat()
    }
}

impl Figure {
    /// The bar of a published gain, next to those of the rows. Each group has the measured bar first.
    fn group(&self) -> Group {
        Group { name: self.what.to_owned(), bars: vec![None, Some(Bar::new(self.after / self.before))] }
    }

    fn page_cells(&self) -> Vec<String> {
        let Self { what, machine, before, after, gain, beside } = self;
        let words = [what, machine, &*short(*before), &short(*after), &on_top(*gain), beside];
        words.map(str::to_owned).to_vec()
    }
}

#[cfg(test)]
mod tests {
    use blkmq_workbench::report::Content;

    use super::*;

    #[test]
    fn gains_have_a_sign_and_three_digits() {
        let words = [1.629, 0.0, -0.7288, 0.0123, 0.9996].map(on_top);
        assert_eq!(words, ["+163 %", "+0.0 %", "-72.9 %", "+1.2 %", "+100 %"]);
    }

    #[test]
    fn an_interval_fits_its_column() {
        let words = [(0.9, 1.2), (0.123, 1e9), (1.5, 1.5), (9.99, 10.99)]
            .map(|(low, high)| interval(&FoundRatio { base: String::new(), ratio: 1.0, low, high }));
        assert_eq!(words, ["-10.0 % .. +20.0 %", "-87.7 % .. over 1000 %", "", "+899 % .. +999 %"]);
        assert!(words.iter().all(|words| words.len() < COLUMNS[2].1));
    }

    /// Red if a gain of the bypass is reported as a gain of the locking, or if noise is reported as a gain.
    #[test]
    fn each_step_is_told_by_its_name() {
        let row = |label: &str, low, high| FoundRow {
            label: label.to_owned(),
            device: "null".to_owned(),
            settings: Vec::new(),
            iops: Spread { median: 1.0, lower: 1.0, upper: 1.0 },
            stamps: "coarse",
            ratio: Some(FoundRatio { base: "single, x".to_owned(), ratio: (low + high) / 2.0, low, high }),
            gain: None,
            ratio_to_none: None,
            merged_percent: 0.0,
            request_bytes_mean: 0.0,
            bypassed_percent: None,
            cpu_ns_per_request: None,
            wait_share: None,
            work_ns_per_request: None,
            published_iops: None,
            published_gain: None,
            published_merged_percent: None,
        };
        let rows = vec![
            row("combining, x", 0.9, 1.2),
            row("single, bypass, x", 1.5, 2.5),
            row("combining, bypass, x", 0.4, 0.6),
        ];
        let [name, about, job, published] = [const { String::new() }; 4];
        let mut table =
            FoundTable { name, about, job, time: String::new(), published, rounds: 16, rows, figures: Vec::new() };
        let expected = "On this machine, times the operations of 'single, x':\n  \
                        the locking alone  'combining, x' 1.05 (0.90 .. 1.20, no difference that so short a run can tell)\n  \
                        the bypass alone   'single, bypass, x' 2.00 (1.50 .. 2.50)\n  \
                        both, the default  'combining, bypass, x' 0.50 (0.40 .. 0.60)";
        assert_eq!(table.steps(", x").as_deref(), Some(expected));
        table.rows.remove(1);
        assert_eq!(table.steps(", x"), None);
    }

    /// Red if a published gain has no bar, or if its bar is among the measured ones.
    #[test]
    fn published_gains_are_drawn_beside_the_measured_ones() {
        let [name, about, job, published] = [const { String::new() }; 4];
        let figures = super::super::tables::table("scaling").figures;
        let expected: Vec<f64> = figures.iter().map(|figure| 1.0 + figure.gain).collect();
        let rows = Vec::new();
        let table = FoundTable { name, about, job, time: String::new(), published, rounds: 1, rows, figures };
        let drawn = table.sections().into_iter().find_map(|section| match section.content {
            Content::Bars(bars) if bars.baseline == 1.0 => Some(bars.groups),
            _ => None,
        });
        let drawn: Vec<_> = drawn.expect("ratios are drawn").into_iter().map(|group| group.bars).collect();
        assert_eq!(drawn.len(), expected.len());
        for (bars, expected) in drawn.iter().zip(expected) {
            let published = bars[1].expect("it is published").value;
            assert!(bars.len() == 2 && bars[0].is_none() && (published - expected).abs() < 1e-9, "{bars:?}");
        }
    }

    #[test]
    fn labels_fit_their_column() {
        for row in super::super::tables::NAMES.into_iter().flat_map(|name| super::super::tables::table(name).rows) {
            assert!(row.label.len() <= LABEL, "{}", row.label);
        }
    }
}
