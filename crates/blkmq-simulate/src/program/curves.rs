//! Rows as a table and as curves.

use std::collections::BTreeMap;

use blkmq_program::render::{short, us};
use blkmq_simulate::band::{Point, Shown};
use blkmq_simulate::scaling::{Row, Summary};
use blkmq_workbench::report::{Axis, Content, Line, Lines, Scale, Section, Table, Unit};

/// How many of the lines that move most are named in a row.
const NAMED: usize = 3;

/// Where the columns of the band come in.
const AT_BAND: usize = 2;

/// The table, with its head. If points have several runs, it has columns for the lowest and the highest rate.
pub(super) fn table(points: &[Point]) -> Vec<Vec<String>> {
    let has_band = points.iter().any(|point| point.band.runs > 1);
    let mut head = cells(&Row::default()).map(|(title, _)| title.to_owned()).to_vec();
    if has_band {
        head.splice(AT_BAND..AT_BAND, ["lowest", "highest"].map(str::to_owned));
    }
    let rows = points.iter().flat_map(|point| point.rows().map(move |(name, row)| (point, name, row)));
    let line = |(point, name, row): (&Point, &str, &Row)| {
        let mut line = cells(row).map(|(_, cell)| cell).to_vec();
        if has_band {
            line.splice(AT_BAND..AT_BAND, point.band.requests_per_s.map(short));
        }
        if matches!(point.shown, Shown::Ends { .. }) {
            line[0] = format!("{} {name}", line[0]);
        }
        line
    };
    std::iter::once(head).chain(rows.map(line)).collect()
}

/// The names and values of a row's map, the largest value first.
fn largest_first(values: &BTreeMap<&'static str, f64>) -> Vec<(&'static str, f64)> {
    let mut values: Vec<_> = values.iter().map(|(name, value)| (*name, *value)).collect();
    values.sort_by(|one, other| other.1.total_cmp(&one.1));
    values
}

/// The cells of a row, each behind the title of its column.
fn cells(row: &Row) -> [(&'static str, String); 19] {
    let percent = |share: f64| format!("{:.1}", 100.0 * share);
    let or_none = |of: &Summary, text: String| if of.count == 0 { "-".to_owned() } else { text };
    let most = row.combining_share.iter().copied().fold(0.0, f64::max);
    let woken = largest_first(&row.wakeups_per_request).into_iter().filter(|(_, woken)| *woken > 0.0);
    let woken: Vec<String> = woken.map(|(name, woken)| format!("{name} {woken:.3}")).collect();
    let lines = largest_first(&row.lines_per_request);
    let named: Vec<String> = lines.iter().take(NAMED).map(|(name, moved)| format!("{name} {moved:.2}")).collect();
    let [combining, others] = [&row.combining_ns, &row.others_ns].map(|of| or_none(of, us(of.p99)));
    [
        ("threads", row.threads.to_string()),
        ("req/s", short(row.requests_per_s)),
        ("/none", format!("{:.3}", row.ratio_to_none)),
        ("wait %", percent(row.wait_share)),
        ("idle %", percent(row.idle_share)),
        ("lines/req", format!("{:.2}", lines.iter().fold(0.0, |sum, (_, moved)| sum + moved))),
        ("passed %", percent(row.bypassed)),
        ("left %", percent(row.staged)),
        ("batch", or_none(&row.batch, format!("{:.1}", row.batch.mean))),
        ("p99", or_none(&row.batch, row.batch.p99.to_string())),
        ("left us", or_none(&row.staged_ns, us(row.staged_ns.mean as u64))),
        ("p99", or_none(&row.staged_ns, us(row.staged_ns.p99))),
        ("one's %", or_none(&row.staged_ns, percent(most))),
        ("p99 us: combiners, others", format!("{combining}, {others}")),
        ("req/hold", or_none(&row.hold_ns, format!("{:.1}", row.requests_per_hold))),
        ("hold ns", or_none(&row.hold_ns, format!("{:.0}", row.hold_ns.mean))),
        ("gate shut %", row.gate_shut_share.map_or_else(|| "-".to_owned(), percent)),
        ("woken, per request", if woken.is_empty() { "-".to_owned() } else { woken.join(", ") }),
        ("lines that move most, per request", named.join(", ")),
    ]
}

/// The sections of a report.
pub(super) fn sections(points: &[Point]) -> Vec<Section> {
    let line = |name: String, of: &dyn Fn(&Point) -> f64| {
        let points = points.iter().map(|point| (point.threads() as f64, of(point))).collect();
        Line { name, points }
    };
    // The median run's; of a machine of bounds alone that of the slowest run and that of the fastest.
    let curve = |name: &str, of: &dyn Fn(&Row) -> f64| -> Vec<Line> {
        let runs = points.first().map_or(0, |point| point.rows().count());
        let one = |at: usize| {
            let shown = points.first().and_then(|point| point.rows().nth(at)).map_or("", |(shown, _)| shown);
            let name = if runs == 1 { name.to_owned() } else { format!("{name}, {shown}") };
            line(name, &|point| point.rows().nth(at).map_or(0.0, |(_, row)| of(row)))
        };
        (0..runs).map(one).collect()
    };
    // The lowest and the highest of all runs, around the median if there is one.
    let banded = |name: &str, of: &dyn Fn(&Row) -> f64, ends: &dyn Fn(&Point) -> [f64; 2]| -> Vec<Line> {
        let is_line = points.iter().all(|point| matches!(point.shown, Shown::Median(_)));
        let median = if is_line { curve(name, of) } else { Vec::new() };
        let has_band = points.iter().any(|point| point.band.runs > 1);
        let ends = ["lowest", "highest"]
            .into_iter()
            .enumerate()
            .filter(|_| has_band)
            .map(|(at, end)| line(format!("{name}, {end}"), &|point| ends(point)[at]));
        median.into_iter().chain(ends).collect()
    };
    let plot = |title: &str, note: &str, label: &str, unit: Unit, lines: Vec<Line>| {
        let x = Axis::new("threads", Scale::Log, Unit::Number);
        let content = Content::Lines(Lines { x, y: Axis::linear(label, unit), lines });
        Section { title: title.to_owned(), note: note.to_owned(), content }
    };
    let mut all = table(points);
    let head = all.remove(0);
    let names: std::collections::BTreeSet<&str> = points
        .iter()
        .flat_map(|point| point.rows().flat_map(|(_, row)| row.lines_per_request.keys().copied()))
        .collect();
    let moved = |name: &str| curve(name, &|row| row.lines_per_request.get(name).copied().unwrap_or(0.0));
    vec![
        plot(
            "Requests per second",
            "Of the scheduler, and of the same load without one. If there are several runs, the run of median rate is \
             modelled, and the lowest and the highest rate are a band.",
            "requests per second",
            Unit::Number,
            [
                banded("modelled", &|row| row.requests_per_s, &|point| point.band.requests_per_s),
                banded("none", &|row| row.none_requests_per_s, &|point| point.band.none_requests_per_s),
            ]
            .concat(),
        ),
        plot(
            "Time that is lost",
            "The shares of the threads' time in which they wait for busy lines and for the scheduler's lock, and in \
             which they wait until a request completes, without their own work meanwhile.",
            "share of the threads' time",
            Unit::Percent,
            [curve("waits", &|row| 100.0 * row.wait_share), curve("idle", &|row| 100.0 * row.idle_share)].concat(),
        ),
        plot(
            "Lines that move",
            "How many cache lines move from one CPU to another for each request, by the name of the line.",
            "lines for each request",
            Unit::Number,
            names.into_iter().flat_map(moved).collect(),
        ),
        Section {
            title: "All rows".to_owned(),
            note: String::new(),
            content: Content::Table(Table { head, rows: all }),
        },
    ]
}
