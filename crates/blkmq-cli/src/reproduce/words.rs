//! What was found, in words and on a page.

use std::io::{self, Write};

use blkmq_workbench::MIN_ROUNDS;
use blkmq_workbench::report::{Bar, Group, Section};

use super::found::{Found, FoundFigure, FoundRatio, FoundRow, FoundTable};
use crate::page;
use crate::turns::Rates;
use crate::words::short;

/// A part of 1 as percent that came on top, or is missing: `+163 %`, `-1.5 %`.
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

/// A cell of what may be missing.
fn cell<T>(value: Option<T>, words: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), words)
}

/// The interval of a gain; nothing where each run gives the same.
fn interval(&FoundRatio { low, high, .. }: &FoundRatio) -> String {
    let [low, high] = [low, high].map(|ratio| ratio - 1.0);
    match high {
        _ if low >= high => String::new(),
        // Of two rounds nothing follows.
        high if high >= 10.0 => format!("{} .. over 1000 %", on_top(low)),
        high => format!("{} .. {}", on_top(low), on_top(high)),
    }
}

impl Found {
    pub(super) fn write_head(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "measured on {}; {}; by '{}'", self.machine, self.date, self.command)
    }
}

/// The columns behind the label, with their widths; the last three were published.
const COLUMNS: [(&str, usize); 12] = [
    ("IOPS", 8),
    ("gain", 9),
    ("95 % interval", 24),
    ("of none", 9),
    ("CPU ns", 8),
    ("waiting", 9),
    ("merged", 9),
    ("KiB", 8),
    ("passed", 9),
    ("published", 11),
    ("gain", 9),
    ("merged", 9),
];

/// What the columns are.
const ABOUT: &str = "\
Of none: the rate over that without a scheduler. CPU ns: CPU time of a request; waiting: the share of it for the scheduler's
lock, and in looks for completions that had not come. Passed: requests that passed the scheduler by.";

/// Wide enough for every label.
const LABEL: usize = 44;

fn write_line(label: &str, cells: &[String], out: &mut dyn Write) -> io::Result<()> {
    // A blank at least between two cells, also where one is wider than its column.
    let cell = |(cell, (_, width)): (&String, (&str, usize))| format!(" {cell:>0$}", width - 1);
    let cells: String = cells.iter().zip(COLUMNS).map(cell).collect();
    writeln!(out, "{}", format!("{label:LABEL$}{cells}").trim_end())
}

impl FoundTable {
    pub(crate) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "\n{}: {}", self.name, self.about)?;
        writeln!(out, "{}, {}. Published: {}\n", self.job, self.time, self.published)?;
        let has_merges = self.rows.iter().any(|row| row.published_merged_percent.is_some());
        let shown = if has_merges { COLUMNS.len() } else { COLUMNS.len() - 1 };
        write_line("", &COLUMNS.map(|(title, _)| title.to_owned())[..shown], out)?;
        for row in &self.rows {
            write_line(&row.label, &row.cells()[..shown], out)?;
        }
        writeln!(out, "{ABOUT}")?;
        if (2..MIN_ROUNDS).contains(&self.rounds) {
            writeln!(out, "An interval of fewer than {MIN_ROUNDS} rounds is not to be relied on: give more --rounds.")?;
        }
        if !self.figures.is_empty() {
            writeln!(out, "\nPublished gains:")?;
        }
        for FoundFigure { what, machine, before, after, gain, beside } in &self.figures {
            let beside = if beside.is_empty() { String::new() } else { format!("; {beside}") };
            let rates = format!("{} -> {}", short(*before), short(*after));
            writeln!(out, "  {rates:16}{:>8}  {what}: {machine}{beside}", on_top(*gain))?;
        }
        Ok(())
    }

    /// What the figures say of the row of that label, in a sentence; `None` without such a row, or one that it is compared with.
    pub(crate) fn verdict(&self, label: &str) -> Option<String> {
        let row = self.rows.iter().find(|row| row.label == label)?;
        let FoundRatio { base, ratio, low, high } = row.ratio.as_ref()?;
        let verdict = if *low > 1.0 || *high < 1.0 {
            format!("does {ratio:.2} times the operations of '{base}' ({low:.2} .. {high:.2})")
        } else {
            format!("does as many operations as '{base}', as far as so short a run can tell ({low:.2} .. {high:.2})")
        };
        let of_none = row
            .ratio_to_none
            .as_ref()
            .map(|none| format!(", and {:.0} % of what '{}' does", 100.0 * none.ratio, none.base));
        Some(format!("On this machine '{label}', the default, {verdict}{}.", of_none.unwrap_or_default()))
    }

    /// The table, its rates and its ratios, each beside what was published.
    pub(super) fn sections(&self) -> Vec<Section> {
        let head = [&["", "device", "settings"][..], &COLUMNS.map(|(title, _)| title)].concat();
        let rows = self.rows.iter().map(FoundRow::page_cells).collect();
        let published = |value: Option<f64>| value.map(Bar::new);
        let group = |row: &FoundRow, bars| Group { name: row.label.clone(), bars };
        let rates = |row: &FoundRow| {
            let Rates { median, lower_quartile, upper_quartile } = row.iops;
            group(
                row,
                vec![Some(Bar::with_interval(median, lower_quartile, upper_quartile)), published(row.published_iops)],
            )
        };
        let ratios = |row: &FoundRow| {
            let &FoundRatio { ratio, low, high, .. } = row.ratio.as_ref()?;
            let bar = Bar::with_interval(ratio, low, high);
            Some(group(row, vec![Some(bar), published(row.published_gain.map(|gain| 1.0 + gain))]))
        };
        let series = ["measured", "published"];
        let note = format!(
            "{} {}, {}. The last three columns were published: {}. Gain is after/before - 1, passed is the share of the \
             requests that passed the scheduler by, KiB the mean size of a request.",
            self.about, self.job, self.time, self.published
        );
        let mut sections = vec![
            page::table(self.name, &note, &head, rows),
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
        let figures = self.figures.iter().map(FoundFigure::group);
        let ratios: Vec<Group> = self.rows.iter().filter_map(ratios).chain(figures).collect();
        if !ratios.is_empty() {
            let note = format!(
                "Rates over those of {}, with 95 % intervals; published ones over those before, each on its own machine.",
                bases.join(" and ")
            );
            sections.push(page::bars(&format!("{}: ratios", self.name), &note, "ratio", (1.0, &series), ratios));
        }
        if !self.figures.is_empty() {
            let rows = self.figures.iter().map(FoundFigure::page_cells).collect();
            let head = ["", "machine", "IOPS before", "after", "gain", ""];
            sections.push(page::table(&format!("{}: published gains", self.name), "", &head, rows));
        }
        sections
    }
}

impl FoundRow {
    /// Under [`COLUMNS`].
    fn cells(&self) -> Vec<String> {
        vec![
            short(self.iops.median),
            cell(self.gain, on_top),
            self.ratio.as_ref().map_or_else(String::new, interval),
            cell(self.ratio_to_none.as_ref(), |found| format!("{:.3}", found.ratio)),
            cell(self.cpu_ns_per_request, |ns| format!("{ns:.0}")),
            cell(self.wait_share, |share| percent(100.0 * share)),
            percent(self.merged_percent),
            kib(self.request_bytes_mean),
            cell(self.bypassed_percent, percent),
            cell(self.published_iops, short),
            cell(self.published_gain, on_top),
            cell(self.published_merged_percent, percent),
        ]
    }

    /// The same for a page, which has room for more.
    fn page_cells(&self) -> Vec<String> {
        [vec![self.label.clone(), self.device.to_owned(), self.settings.join(", ")], self.cells()].concat()
    }
}

impl FoundFigure {
    /// Its bar beside those of the rows, which have a measured one first.
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

    #[test]
    fn a_verdict_says_what_the_interval_says() {
        let row = |label: &str, low, high| FoundRow {
            label: label.to_owned(),
            device: "null",
            settings: Vec::new(),
            iops: Rates { median: 1.0, lower_quartile: 1.0, upper_quartile: 1.0 },
            ratio: Some(FoundRatio { base: "single".to_owned(), ratio: (low + high) / 2.0, low, high }),
            gain: None,
            ratio_to_none: None,
            merged_percent: 0.0,
            request_bytes_mean: 0.0,
            bypassed_percent: None,
            cpu_ns_per_request: None,
            wait_share: None,
            published_iops: None,
            published_gain: None,
            published_merged_percent: None,
        };
        let rows = vec![row("more", 1.5, 2.5), row("less", 0.4, 0.6), row("same", 0.9, 1.2)];
        let [name, about, job, published] = [""; 4];
        let table =
            FoundTable { name, about, job, time: String::new(), published, rounds: 16, rows, figures: Vec::new() };
        for (label, expected) in [
            ("more", "does 2.00 times the operations of 'single' (1.50 .. 2.50)."),
            ("less", "does 0.50 times the operations of 'single' (0.40 .. 0.60)."),
            ("same", "does as many operations as 'single', as far as so short a run can tell (0.90 .. 1.20)."),
        ] {
            let verdict = table.verdict(label).unwrap();
            assert_eq!(verdict, format!("On this machine '{label}', the default, {expected}"));
        }
        assert_eq!(table.verdict("other"), None);
    }

    /// Red if a published gain has no bar, or stands among the measured ones.
    #[test]
    fn published_gains_are_drawn_beside_the_measured_ones() {
        let [name, about, job, published] = [""; 4];
        let figures = super::super::tables::table("scaling").figures;
        let figures: Vec<_> = figures.iter().map(FoundFigure::from).collect();
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
