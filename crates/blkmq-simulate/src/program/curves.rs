//! Rows as a table and as curves.

use blkmq_program::words::{short, us};
use blkmq_simulate::scaling::{Row, Summary};
use blkmq_workbench::report::{Axis, Content, Line, Lines, Scale, Section, Table, Unit};

/// How many of the lines that move most are named in a row.
const NAMED: usize = 3;

const HEAD: [&str; 14] = [
    "threads",
    "req/s",
    "/none",
    "wait %",
    "idle %",
    "lines/req",
    "passed %",
    "left %",
    "batch",
    "p99",
    "left us",
    "p99",
    "one's %",
    "p99 us: combiners, others",
];

/// The table, with its head.
pub(super) fn table(rows: &[Row]) -> Vec<Vec<String>> {
    let mut head = HEAD.map(str::to_owned).to_vec();
    head.push("lines that move most, per request".to_owned());
    std::iter::once(head).chain(rows.iter().map(cells)).collect()
}

fn cells(row: &Row) -> Vec<String> {
    let percent = |share: f64| format!("{:.1}", 100.0 * share);
    let or_none = |of: &Summary, text: String| if of.count == 0 { "-".to_owned() } else { text };
    let most = row.combining_share.iter().copied().fold(0.0, f64::max);
    let mut lines: Vec<(&str, f64)> = row.lines_per_request.iter().map(|(name, moved)| (*name, *moved)).collect();
    lines.sort_by(|one, other| other.1.total_cmp(&one.1));
    let named: Vec<String> = lines.iter().take(NAMED).map(|(name, moved)| format!("{name} {moved:.2}")).collect();
    vec![
        row.threads.to_string(),
        short(row.requests_per_s),
        format!("{:.3}", row.ratio_to_none),
        percent(row.wait_share),
        percent(row.idle_share),
        format!("{:.2}", lines.iter().fold(0.0, |sum, (_, moved)| sum + moved)),
        percent(row.bypassed),
        percent(row.staged),
        or_none(&row.batch, format!("{:.1}", row.batch.mean)),
        or_none(&row.batch, row.batch.p99.to_string()),
        or_none(&row.staged_ns, us(row.staged_ns.mean as u64)),
        or_none(&row.staged_ns, us(row.staged_ns.p99)),
        or_none(&row.staged_ns, percent(most)),
        format!(
            "{}, {}",
            or_none(&row.combining_ns, us(row.combining_ns.p99)),
            or_none(&row.others_ns, us(row.others_ns.p99))
        ),
        named.join(", "),
    ]
}

/// The sections of a report.
pub(super) fn sections(rows: &[Row]) -> Vec<Section> {
    let curve = |name: &str, of: &dyn Fn(&Row) -> f64| {
        let points = rows.iter().map(|row| (row.threads as f64, of(row))).collect();
        Line { name: name.to_owned(), points }
    };
    let plot = |title: &str, note: &str, label: &str, unit: Unit, lines: Vec<Line>| {
        let x = Axis::new("threads", Scale::Log, Unit::Number);
        let content = Content::Lines(Lines { x, y: Axis::linear(label, unit), lines });
        Section { title: title.to_owned(), note: note.to_owned(), content }
    };
    let mut all = table(rows);
    let head = all.remove(0);
    let names: std::collections::BTreeSet<&str> =
        rows.iter().flat_map(|row| row.lines_per_request.keys().copied()).collect();
    let moved = |name: &str| curve(name, &|row| row.lines_per_request.get(name).copied().unwrap_or(0.0));
    vec![
        plot(
            "Requests per second",
            "Of the scheduler, and of the same load without one.",
            "requests per second",
            Unit::Number,
            vec![curve("modelled", &|row| row.requests_per_s), curve("none", &|row| row.none_requests_per_s)],
        ),
        plot(
            "Time that is lost",
            "The shares of the threads' time in which they wait for busy lines and for the scheduler's lock, and in \
             which they wait until a request completes, without their own work meanwhile.",
            "share of the threads' time",
            Unit::Percent,
            vec![curve("waits", &|row| 100.0 * row.wait_share), curve("idle", &|row| 100.0 * row.idle_share)],
        ),
        plot(
            "Lines that move",
            "How many cache lines move from one CPU to another for each request, by the name of the line.",
            "lines for each request",
            Unit::Number,
            names.into_iter().map(moved).collect(),
        ),
        Section {
            title: "All rows".to_owned(),
            note: String::new(),
            content: Content::Table(Table { head, rows: all }),
        },
    ]
}
