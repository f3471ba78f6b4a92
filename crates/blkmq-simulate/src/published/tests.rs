use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::Profile;

/// Red if a line is lost, or if a row begins or ceases to count. What counts was agreed on before there was a model, so
/// a change here has to say why.
#[test]
fn rows_count_as_was_agreed() {
    // Of each source: its rows, those that count, and those that do not by their reasons, in the order of `Reason`.
    let expected: [(&str, usize, usize, [usize; 6]); 10] = [
        ("folly-locks", 57, 28, [7, 8, 0, 0, 14, 0]),
        ("folly-queues", 58, 30, [6, 0, 0, 0, 4, 18]),
        ("folly-pairs", 12, 0, [2, 10, 0, 0, 0, 0]),
        ("concurrency-hierarchy", 48, 13, [12, 17, 0, 0, 0, 6]),
        ("icpe24", 60, 14, [2, 0, 4, 6, 34, 0]),
        ("axboe-deadline", 19, 2, [1, 0, 6, 3, 7, 0]),
        ("kuai-batch", 14, 2, [0, 0, 2, 7, 3, 0]),
        ("axboe-in-flight", 4, 2, [1, 0, 0, 1, 0, 0]),
        ("qspinlock", 61, 12, [4, 0, 0, 45, 0, 0]),
        ("combining-kernel", 98, 30, [5, 0, 0, 25, 0, 38]),
    ];
    let reasons = [Reason::Fitted, Reason::Chosen, Reason::Capped, Reason::Basis, Reason::Unasked, Reason::Unlike]
        .map(Counts::No);
    let rows = rows();
    let found = |source| {
        let of_source: Vec<Counts> = rows.iter().filter(|row| row.source == source).map(|row| row.counts).collect();
        let having = |counts| of_source.iter().filter(|found| **found == counts).count();
        (source, of_source.len(), having(Counts::Yes), reasons.map(having))
    };
    assert!(sources().eq(expected.map(|(source, ..)| source)));
    assert_eq!(expected.map(|(source, ..)| found(source)), expected);
    let counting = expected.iter().filter(|(_, _, counting, _)| *counting > 0);
    let (count, of) = counting.fold((0, 0), |(count, of), source| (count + source.2, of + 1));
    assert_eq!((count, of), (133, 9), "at least 40 rows of 5 sources were asked for");
}

/// Red if a row counts that a constant of its machine would be chosen for, or that more threads ran than there were
/// CPUs; or if a machine refers to a profile that does not exist.
#[test]
fn what_counts_ran_on_a_machine_that_can_be_modelled() {
    let known: BTreeSet<&str> = Profile::names().collect();
    for machine in &Machine::ALL {
        assert_eq!(Machine::named(machine.key), Some(machine), "a second machine {}", machine.key);
        let (Profiled::Own(profile) | Profiled::Near(profile)) = machine.profile;
        assert!(known.contains(profile), "{} has the profile {profile}", machine.key);
        if let Profiled::Own(profile) = machine.profile {
            assert_eq!(Profile::named(profile).unwrap().nr_cpus(), machine.cpus(), "{profile}");
        }
    }
    for row in rows().iter().filter(|row| row.counts == Counts::Yes) {
        assert!(row.threads <= row.machine.cpus(), "{row:?}");
    }
}

/// Red if a row of folly's locks has the threads that were asked for, where more were at its lock.
#[test]
fn threads_are_those_at_the_fullest_lock() {
    let at_the_fullest_lock = |asked: usize, cpus: usize| asked.max(cpus).div_ceil(asked.max(cpus) / asked);
    assert_eq!([1, 2, 8, 16, 32, 64].map(|asked| at_the_fullest_lock(asked, 56)), [1, 2, 8, 19, 56, 64]);
    let mut seen = 0;
    for row in rows() {
        if let Load::SmallLocks { asked, .. } = row.load {
            assert_eq!(row.threads, at_the_fullest_lock(asked, row.machine.cpus()), "{row:?}");
            seen += 1;
        }
    }
    assert_eq!(seen, 57);
}

/// Red if a benchmark whose rows count has no section to model.
#[test]
fn every_benchmark_that_counts_says_how_its_lock_is_held() {
    let mut seen = BTreeMap::new();
    for row in rows().iter().filter(|row| row.counts == Counts::Yes) {
        if let Load::WillItScale { benchmark, .. } = row.load {
            let section = benchmark.section().unwrap_or_else(|| panic!("{row:?}"));
            seen.insert(format!("{benchmark:?}"), section.holds);
        }
    }
    let expected = [("Dup1", 2), ("Lock2", 1), ("Malloc1", 2), ("Mmap1", 2), ("Open1", 2), ("WriteSeek2", 1)];
    assert!(seen.iter().map(|(name, holds)| (&**name, *holds)).eq(expected), "{seen:?}");
}

const HEAD: &str = "case;machine;threads;published;unit;measure;counts;group;load;why\n";

fn said(lines: &str) -> String {
    parse("a", &format!("{HEAD}{lines}")).unwrap_err().to_string()
}

/// A line that is right, with one column replaced.
fn with(column: usize, text: &str) -> String {
    let mut columns = ["one", "7950x", "2", "5", "ops/s", "value", "unasked", "-", LINUX, "because"];
    columns[column] = text;
    columns.join(";")
}

const LINUX: &str = "block-layer = { scheduler = \"none\", devices = 1, queues = 1, job = \"icpe24\" }";

/// Red if a line is refused without its number, or without what is wrong and what would be right.
#[test]
fn what_is_no_row_is_refused_with_its_line() {
    assert_eq!(parse("a", &format!("# for people\n{HEAD}\n{}\n", with(0, "one"))).map(|rows| rows.len()), Ok(1));
    let head = parse("a", "one;7950x\n").unwrap_err().to_string();
    assert!(head.starts_with("a.csv: line 1: \"one;7950x\", where the columns are named: case;machine;"), "{head}");
    assert!(parse("a", "# nothing\n").unwrap_err().to_string().starts_with("a.csv: line 1: nothing; "));
    for (column, text, expected) in [
        (0, "", "case is \"\"; it is words, without blanks around them"),
        (9, " x", "why is \" x\"; it is words, without blanks around them"),
        (2, "0", "threads is \"0\"; it is a number, 1 or more"),
        (2, "two", "threads is \"two\"; it is a number, 1 or more"),
        (3, "-5", "published is \"-5\"; it is a number above 0"),
        (3, "inf", "published is \"inf\"; it is a number above 0"),
        (3, "5K", "published is \"5K\"; it is a number above 0"),
        (4, "iops", "unit is \"iops\"; it is one of ops/s, ns/op, thread-ns/op, percent, threads, ratio"),
        (5, "gain", "measure is \"gain\"; it is value, over CASE, peak or fall"),
        (5, "over two", "over \"two\", but there is no such case"),
        (5, "over one", "over \"one\", which is the row itself"),
        (5, "peak", "unit is ops/s; of a peak it is threads"),
        (5, "fall", "unit is ops/s; of a fall it is ratio"),
        (6, "no", "counts is \"no\"; it is one of yes, fitted, chosen, capped, basis, unasked, unlike"),
        (6, "yes", "a row of Linux counts, by its value; it counts by a gain (over CASE), peak or fall"),
        (7, "g", "alone in group \"g\"; a group has two designs or more"),
    ] {
        assert_eq!(said(&with(column, text)), format!("a.csv: line 2: {expected}"));
    }
    assert!(said(&with(1, "7950")).starts_with("a.csv: line 2: machine is \"7950\"; it is one of e5-2680v4-2s, "));
    let columns = said("one;7950x;2");
    assert!(columns.starts_with("a.csv: line 2: 3 columns, where there are 10: case;machine;"), "{columns}");
    for (load, part) in [
        ("", "load is \"\": "),
        ("block-layer", "load is \"block-layer\": "),
        ("counter = { design = \"xor\" }", "unknown variant `xor`, expected one of `add`, `cas`"),
        ("counter = { }", "missing field `design`"),
        ("counter = { design = \"add\", threads = 5 }", "unexpected keys in table: threads, available keys: design"),
        ("counters = { design = \"add\" }", "unknown variant `counters`"),
    ] {
        let found = said(&with(8, load));
        assert!(found.starts_with("a.csv: line 2: load is ") && found.contains(part), "{load}: {found}");
    }
}

/// Red if rows are taken that do not fit each other: comparisons of what was not the same, gains over what they cannot
/// be over, and shapes that are not those of the curve.
#[test]
fn rows_that_do_not_fit_each_other_are_refused() {
    let row = |case: &str, threads: &str, published: &str, unit: &str, measure: &str, counts: &str, group: &str| {
        [case, "7950x", threads, published, unit, measure, counts, group, LINUX, "because"].join(";")
    };
    let point = |case, threads, published| row(case, threads, published, "ops/s", "value", "basis", "-");
    let lines = |lines: &[String]| said(&lines.join("\n"));
    assert_eq!(
        lines(&[point("a", "1", "5"), point("a", "2", "6")]),
        "a.csv: line 3: a second case \"a\"; each has a name of its own"
    );
    let grouped = |case, threads, unit| row(case, threads, "5", unit, "value", "basis", "g");
    for other in [grouped("b", "2", "ops/s"), grouped("b", "1", "ns/op")] {
        let expected = "a.csv: line 3: group \"g\" has another machine, threads or unit in its row \"a\"";
        assert_eq!(lines(&[grouped("a", "1", "ops/s"), other]), expected);
    }
    let percent = lines(&[grouped("a", "1", "percent"), grouped("b", "1", "percent")]);
    assert_eq!(percent, "a.csv: line 2: group \"g\" is of percent; of these, more is neither better nor worse");
    let over = |unit, counts| row("b", "2", "6", unit, "over a", counts, "-");
    let other_unit = lines(&[point("a", "1", "5"), over("ns/op", "yes")]);
    assert_eq!(other_unit, "a.csv: line 3: over \"a\", which has another machine or unit");
    let capped = lines(&[row("a", "1", "5", "ops/s", "value", "capped", "-"), over("ops/s", "yes")]);
    assert_eq!(capped, "a.csv: line 3: over \"a\", which is capped: such a gain does not count");

    let curve = [point("a", "1", "5"), point("b", "4", "8"), point("c", "2", "6")];
    let shape = |unit, measure, threads, published| row("s", threads, published, unit, measure, "yes", "-");
    let with = |shape: String| parse("a", &format!("{HEAD}{}\n{shape}", curve.join("\n"))).map_err(|e| e.to_string());
    assert!(with(shape("threads", "peak", "4", "4")).is_ok());
    assert!(with(shape("ratio", "fall", "4", "1")).is_ok());
    let peak = with(shape("threads", "peak", "2", "2")).unwrap_err();
    assert_eq!(peak, "a.csv: line 5: 2 at 2 threads, but the curve says 4 at 4");
    let fall = with(shape("ratio", "fall", "4", "0.9")).unwrap_err();
    assert_eq!(fall, "a.csv: line 5: 0.9 at 4 threads, but the curve says 1 at 4");
    let short = lines(&[point("a", "1", "5"), point("b", "2", "6"), shape("ratio", "fall", "2", "1")]);
    assert_eq!(short, "a.csv: line 4: a curve of 2 points; a shape needs 3 with its machine and load");
    let twice = lines(&[&curve[..], &[point("d", "2", "9"), shape("ratio", "fall", "4", "1")]].concat());
    assert_eq!(twice, "a.csv: line 6: a curve with two points of the same threads");
    let in_group = lines(&[row("a", "1", "1", "ratio", "fall", "yes", "g")]);
    assert_eq!(in_group, "a.csv: line 2: a fall in a group, whose rows are designs");
}

/// Red if damage to any column of any line is not noticed where it can be, or panics. A case that is a base, a group,
/// a measure or a figure of a curve may make another line wrong, so any line may be named.
#[test]
fn damage_to_a_published_line_is_refused() {
    let mut refused = 0;
    for (source, text) in SOURCES {
        for (number, line) in text.lines().enumerate().filter(|(_, line)| line.matches(';').count() == 9) {
            for column in 0..10 {
                let mut columns: Vec<&str> = line.split(';').collect();
                columns[column] = "~";
                let damaged = columns.join(";");
                let lines = text.lines().enumerate().map(|(index, line)| if index == number { &damaged } else { line });
                let parsed = parse(source, &lines.collect::<Vec<_>>().join("\n"));
                // A name, a group's or a reason for people may be anything.
                let is_free = matches!(column, 0 | 7 | 9) && number > 0 && !line.starts_with("case;");
                match parsed {
                    Ok(_) => assert!(is_free, "{source}, line {}: {damaged}", number + 1),
                    Err(error) => {
                        assert!(error.place.starts_with(&format!("{source}.csv: line ")), "{error}");
                        refused += 1;
                    }
                }
            }
        }
    }
    assert!(refused > 3000, "{refused}");
}
