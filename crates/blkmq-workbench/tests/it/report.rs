//! Reports are complete, well-formed and self-contained, and contain only what they were given.

use blkmq_workbench::bench::{Bench, ClockKind, Control, JobOutcome, Setup};
use blkmq_workbench::report::{
    self, Axis, Bar, Bars, Content, Group, Line, Lines, Report, Scale, Section, Table, Unit,
};
use blkmq_workbench::{JobFile, Mode, System};
use proptest::prelude::*;
use roxmltree::{Document, ParsingOptions};

fn report(sections: Vec<Section>) -> Report {
    Report {
        title: "Scaling".to_owned(),
        command: "blkmq bench scaling.fio --device null --report out.html".to_owned(),
        machine: "two cores".to_owned(),
        date: "2026-01-01".to_owned(),
        modelled: "All figures were measured.".to_owned(),
        sections,
    }
}

fn section(content: Content) -> Section {
    Section { title: "A section".to_owned(), note: "A note.".to_owned(), content }
}

fn parse(html: &str) -> Document<'_> {
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    Document::parse_with_options(html, options).unwrap_or_else(|error| panic!("{error}\n{html}"))
}

/// The text of all elements of that name.
fn texts(document: &Document<'_>, name: &str) -> Vec<String> {
    let elements = document.descendants().filter(|node| node.tag_name().name() == name);
    elements
        .map(|node| {
            node.descendants().filter(roxmltree::Node::is_text).filter_map(|node| node.text()).collect::<String>()
        })
        .collect()
}

fn count(document: &Document<'_>, name: &str) -> usize {
    texts(document, name).len()
}

fn lines() -> Content {
    Content::Lines(Lines {
        x: Axis::new("percentile", Scale::Percentile, Unit::Percent),
        y: Axis::new("latency", Scale::Log, Unit::Nanoseconds),
        lines: vec![
            Line { name: "first".to_owned(), points: vec![(50.0, 1250.0), (99.0, 90_123.0), (99.99, 2_345_678.0)] },
            Line { name: "second".to_owned(), points: vec![(50.0, 777.0)] },
        ],
    })
}

fn bars() -> Content {
    let group = |name: &str, ours: Bar, published: Option<Bar>| Group {
        name: name.to_owned(),
        bars: vec![Some(ours), published],
    };
    Content::Bars(Bars {
        value: Axis::linear("IOPS", Unit::Number),
        baseline: 0.0,
        series: vec!["measured".to_owned(), "published".to_owned()],
        groups: vec![
            group("single", Bar::with_interval(905_000.0, 880_500.0, 931_250.0), Some(Bar::new(879_000.0))),
            group("none", Bar::new(14_250_000.0), None),
        ],
    })
}

#[test]
fn it_says_what_it_was_given() {
    let table = Table {
        head: ["job", "IOPS", "p99"].map(str::to_owned).to_vec(),
        rows: vec![["reader", "12345", "90 us"].map(str::to_owned).to_vec()],
    };
    let html =
        report(vec![section(Content::Text), section(Content::Table(table)), section(lines()), section(bars())]).html();
    let document = parse(&html);
    let facts = texts(&document, "dd");
    let version = concat!("blkmq ", env!("CARGO_PKG_VERSION"));
    let command = "blkmq bench scaling.fio --device null --report out.html";
    assert_eq!(facts, [command, "two cores", "2026-01-01", version, "All figures were measured."]);
    assert_eq!((count(&document, "section"), count(&document, "svg"), count(&document, "table")), (4, 2, 3));
    assert_eq!(texts(&document, "th")[..3], ["job", "IOPS", "p99"]);
    let cells = texts(&document, "td");
    for number in ["12345", "90 us", "1250", "90123", "2345680", "99.99", "777", "879000", "14250000"] {
        assert!(cells.iter().any(|cell| cell == number), "{number} in {cells:?}");
    }
    assert!(cells.iter().any(|cell| cell == "905000 (880500 to 931250)"), "{cells:?}");
    // The ticks name their unit, so the axis does not. The table's numbers are in one unit, which the table's head
    // names.
    let heads = texts(&document, "th");
    assert!(
        ["percentile (%)", "latency (ns)", "IOPS"].iter().all(|head| heads.iter().any(|th| th == head)),
        "{heads:?}"
    );
    let legend = texts(&document, "li");
    assert_eq!(legend, ["first", "second", "measured", "published"]);
    let labels = texts(&document, "text");
    for label in ["99.9 %", "100 us", "latency", "percentile", "IOPS", "single", "none", "5M"] {
        assert!(labels.iter().any(|text| text.trim() == label), "{label} in {labels:?}");
    }
}

/// Red if names are cut to the room beside their bars: two names would look the same.
#[test]
fn bars_of_two_names_are_told_apart() {
    let group = |name: &str| Group { name: name.to_owned(), bars: vec![Some(Bar::new(1.0))] };
    let names = ["device=null,irqmode=2,completion_nsec=100us", "device=null,irqmode=2,completion_nsec=200us"];
    let bars = Bars {
        value: Axis::linear("IOPS", Unit::Number),
        baseline: 0.0,
        series: vec!["IOPS".to_owned()],
        groups: names.map(group).to_vec(),
    };
    let html = report(vec![section(Content::Bars(bars))]).html();
    let drawn: String = texts(&parse(&html), "text").iter().map(|text| text.trim()).collect();
    assert!(names.iter().all(|name| drawn.contains(name)), "{drawn}");
}

/// Red if the page has something that a browser would fetch or run: an address other than the name of the SVG dialect,
/// a script, or a style from elsewhere.
#[test]
fn it_needs_nothing_else() {
    let html = report(vec![section(lines()), section(bars())]).html();
    let document = parse(&html);
    for name in ["script", "link", "img", "iframe", "object", "embed", "image", "use", "a", "base"] {
        assert_eq!(count(&document, name), 0, "{name}");
    }
    for node in document.descendants() {
        for attribute in node.attributes() {
            assert!(!["src", "href", "action", "srcset"].contains(&attribute.name()), "{attribute:?}");
            assert!(!attribute.name().starts_with("on"), "{attribute:?}");
        }
    }
    let foreign = html.replace("http://www.w3.org/2000/svg", "");
    for word in ["http:", "https:", "url(", "@import", "//"] {
        assert!(!foreign.contains(word), "{word}");
    }
}

#[test]
fn markup_in_a_name_is_text() {
    let evil = "</td><script>alert('1' & \"2\")</script>\u{1}";
    let shown = evil.replace('\u{1}', "\u{fffd}");
    let owned = || evil.to_owned();
    let axis = || Axis::linear(evil, Unit::Number);
    let table = Content::Table(Table { head: vec![owned()], rows: vec![vec![owned()]] });
    let lines =
        Content::Lines(Lines { x: axis(), y: axis(), lines: vec![Line { name: owned(), points: vec![(1.0, 2.0)] }] });
    let bars = Content::Bars(Bars {
        value: axis(),
        baseline: 0.0,
        series: vec![owned()],
        groups: vec![Group { name: owned(), bars: vec![Some(Bar::new(1.0))] }],
    });
    let sections = [Content::Text, table, lines, bars];
    let sections = sections.map(|content| Section { title: owned(), note: owned(), content }).to_vec();
    let report =
        Report { title: owned(), command: owned(), machine: owned(), date: owned(), modelled: owned(), sections };
    let html = report.html();
    let document = parse(&html);
    assert_eq!(count(&document, "script"), 0);
    for name in ["title", "h1", "h2", "p", "dd", "th", "td", "li"] {
        assert!(texts(&document, name).contains(&shown), "{name}");
    }
    assert!(texts(&document, "text").iter().any(|text| text.trim() == shown), "axis");
}

/// A number of any kind; unusual ones are frequent.
fn any_number() -> impl Strategy<Value = f64> {
    prop_oneof![any::<f64>(), Just(f64::NAN), Just(0.0), -1e3..1e3, 0.0..100.0, 1e5..1e9]
}

fn any_axis() -> impl Strategy<Value = Axis> {
    let scale = prop_oneof![Just(Scale::Linear), Just(Scale::Log), Just(Scale::Percentile)];
    let unit = prop_oneof![Just(Unit::Number), Just(Unit::Nanoseconds), Just(Unit::Percent)];
    ("\\PC{0,8}", scale, unit).prop_map(|(label, scale, unit)| Axis::new(label, scale, unit))
}

fn any_content() -> impl Strategy<Value = Content> {
    let points = proptest::collection::vec((any_number(), any_number()), 0..6);
    let line = (any::<String>(), points).prop_map(|(name, points)| Line { name, points });
    let lines = (any_axis(), any_axis(), proptest::collection::vec(line, 0..4))
        .prop_map(|(x, y, lines)| Content::Lines(Lines { x, y, lines }));
    let bar = (any_number(), proptest::option::of((any_number(), any_number())))
        .prop_map(|(value, interval)| Bar { value, interval });
    let bars = proptest::collection::vec(proptest::option::of(bar), 0..4);
    let group = (any::<String>(), bars).prop_map(|(name, bars)| Group { name, bars });
    let series = proptest::collection::vec(any::<String>(), 0..3);
    let bars = (any_axis(), any_number(), series, proptest::collection::vec(group, 0..5))
        .prop_map(|(value, baseline, series, groups)| Content::Bars(Bars { value, baseline, series, groups }));
    prop_oneof![lines, bars]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn any_content_makes_a_well_formed_page(content in any_content()) {
        let html = report(vec![section(content)]).html();
        let document = parse(&html);
        prop_assert_eq!(count(&document, "svg"), 1);
        prop_assert!(!html.contains("NaN") && !html.contains("inf\""));
    }
}

/// Red if a report of a run does not have a line for each direction that did something, or if the ends of a
/// distribution are not those of the job.
#[test]
fn a_run_shows_its_latencies_and_its_throughput() {
    let text = "[global]\nrw=randrw\nsize=64m\nruntime=3\ntime_based\n[a]\n[b]\nrw=randread\nnorandommap\n";
    let file = JobFile::parse("mixed", text, &[], Mode::Strict, &System).expect("the jobs are understood");
    let setup = Setup { clock: ClockKind::Virtual, ..Setup::new("null,irqmode=2,completion_nsec=100us") };
    let outcome = Bench::new(&file.jobs, &setup).and_then(|mut bench| bench.run(&Control::default()));
    let outcome = outcome.expect("the jobs run");
    let jobs: Vec<(String, &JobOutcome)> = outcome.jobs.iter().map(|job| (job.name.clone(), job)).collect();
    let lines = |section: Option<Section>| match section.map(|section| section.content) {
        Some(Content::Lines(lines)) => lines.lines,
        other => panic!("{other:?}"),
    };
    let names = |lines: &[Line]| lines.iter().map(|line| line.name.clone()).collect::<Vec<_>>();
    let latencies = lines(report::latencies(&jobs));
    assert_eq!(names(&latencies), ["a: read", "a: write", "b: read"]);
    let last = latencies[2].points.last().copied().expect("there are points");
    let longest = outcome.jobs[1].directions[0].latency.max() as f64;
    assert!(last.0 == 100.0 && (last.1 / longest - 1.0).abs() < 0.001, "{last:?} {longest}");
    let throughput = lines(report::throughput(&jobs));
    assert_eq!(names(&throughput), names(&latencies));
    let operations: f64 = throughput[2]
        .points
        .iter()
        .scan(0.0, |before, (end, rate)| {
            let slice = end - *before;
            *before = *end;
            Some(slice * rate)
        })
        .sum();
    let ios = outcome.jobs[1].directions[0].ios as f64;
    assert!((operations / ios - 1.0).abs() < 0.001, "{operations} {ios}");
    assert_eq!(report::latencies(&[]), None);
}
