//! How a file of published rows is read.

use blkmq_workbench::TextError;

use super::{Counts, Load, Machine, Measure, Reason, Row, Unit};

/// The names of the columns, as the first line that is no comment has them.
const HEAD: &str = "case;machine;threads;published;unit;measure;counts;group;load;why";

/// The columns of a line.
type Columns<'t> = [&'t str; 10];

/// Reads the rows of a source.
///
/// A line is a row, with its columns between semicolons. Lines that begin with `#` are for people. The first other line
/// names the columns:
///
/// | column | what it holds |
/// |---|---|
/// | `case` | which figure it is; no other line has it |
/// | `machine` | the key of a [`Machine`] |
/// | `threads` | a number |
/// | `published` | the figure |
/// | `unit` | a [`Unit`] |
/// | `measure` | `value`, `over CASE`, `peak` or `fall`: see [`Measure`] |
/// | `counts` | `yes`, or the [`Reason`] for which it does not |
/// | `group` | the comparison of designs to which it belongs, or `-` |
/// | `load` | a [`Load`], as TOML |
/// | `why` | why it counts or not, for people |
///
/// # Errors
/// A line is no row, or does not fit the others; the message says which line, what is wrong, and what would be right.
pub fn parse(source: &'static str, text: &str) -> Result<Vec<Row>, TextError> {
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
    let mut lines = lines.filter(|(_, line)| !line.starts_with('#') && !line.trim().is_empty());
    let refused = |number: usize, what: String| TextError { place: format!("{source}.csv: line {number}"), what };
    match lines.next() {
        Some((_, HEAD)) => {}
        Some((number, found)) => {
            return Err(refused(number, format!("{found:?}, where the columns are named: {HEAD}")));
        }
        None => return Err(refused(1, format!("nothing; the columns are named first: {HEAD}"))),
    }
    let mut rows = Vec::new();
    let mut numbers = Vec::new();
    for (number, line) in lines {
        rows.push(read_row(source, line).map_err(|what| refused(number, what))?);
        numbers.push(number);
    }
    for (index, number) in numbers.into_iter().enumerate() {
        fits(index, &rows).map_err(|what| refused(number, what))?;
    }
    Ok(rows)
}

fn read_row(source: &'static str, line: &str) -> Result<Row, String> {
    let columns: Vec<&str> = line.split(';').collect();
    let found = columns.len();
    let Ok([case, machine, threads, published, unit, measure, counts, group, load, why]) = Columns::try_from(columns)
    else {
        return Err(format!("{found} columns, where there are 10: {HEAD}"));
    };
    for (name, column) in [("case", case), ("group", group), ("why", why)] {
        if column.trim() != column || column.is_empty() {
            return Err(format!("{name} is {column:?}; it is words, without blanks around them"));
        }
    }
    let measured = match (measure, measure.strip_prefix("over ")) {
        ("value", _) => Measure::Value,
        ("peak", _) => Measure::Peak,
        ("fall", _) => Measure::Fall,
        (_, Some(base)) => Measure::Over(base.to_owned()),
        _ => return Err(format!("measure is {measure:?}; it is value, over CASE, peak or fall")),
    };
    let row = Row {
        source,
        case: case.to_owned(),
        machine: Machine::named(machine).ok_or_else(|| {
            let known: Vec<&str> = Machine::ALL.iter().map(|machine| machine.key).collect();
            format!("machine is {machine:?}; it is one of {}", known.join(", "))
        })?,
        threads: threads
            .parse()
            .ok()
            .filter(|threads| *threads > 0)
            .ok_or_else(|| format!("threads is {threads:?}; it is a number, 1 or more"))?,
        published: published
            .parse()
            .ok()
            .filter(|published: &f64| published.is_finite() && *published > 0.0)
            .ok_or_else(|| format!("published is {published:?}; it is a number above 0"))?,
        unit: named("unit", &Unit::ALL, unit)?,
        measure: measured,
        counts: named("counts", &Counts::ALL, counts)?,
        why: why.to_owned(),
        group: (group != "-").then(|| group.to_owned()),
        load: read_load(load)?,
    };
    if row.counts == Counts::Yes && row.measure == Measure::Value && !row.load.is_primitive() {
        return Err("a row of Linux counts, by its value; it counts by a gain (over CASE), peak or fall".to_owned());
    }
    let needed = match row.measure {
        Measure::Peak => Some(Unit::Threads),
        Measure::Fall => Some(Unit::Ratio),
        Measure::Value | Measure::Over(_) => None,
    };
    match needed {
        Some(needed) if row.unit != needed => Err(format!("unit is {}; of a {measure} it is {needed}", row.unit)),
        Some(_) if row.group.is_some() => Err(format!("a {measure} in a group, whose rows are designs")),
        _ => Ok(row),
    }
}

fn named<T: Copy>(what: &str, all: &[(&str, T)], name: &str) -> Result<T, String> {
    let found = all.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
    found.ok_or_else(|| {
        let known: Vec<&str> = all.iter().map(|(known, _)| *known).collect();
        format!("{what} is {name:?}; it is one of {}", known.join(", "))
    })
}

fn read_load(load: &str) -> Result<Load, String> {
    toml::from_str(load).map_err(|error| format!("load is {load:?}: {}", error.message()))
}

/// Whether a row fits the other rows of its source.
fn fits(index: usize, rows: &[Row]) -> Result<(), String> {
    let row = &rows[index];
    if rows[..index].iter().any(|before| before.case == row.case) {
        return Err(format!("a second case {:?}; each has a name of its own", row.case));
    }
    match &row.measure {
        Measure::Value => {}
        Measure::Over(base) => fits_base(row, rows.iter().find(|other| other.case == *base), base)?,
        Measure::Peak | Measure::Fall => fits_curve(row, &row.curve(rows))?,
    }
    let Some(group) = &row.group else { return Ok(()) };
    let mut others = rows.iter().filter(|other| other.group.as_ref() == Some(group)).peekable();
    let first = others.next().unwrap_or(row);
    if others.peek().is_none() {
        return Err(format!("alone in group {group:?}; a group has two designs or more"));
    }
    if (first.machine.key, first.threads, first.unit) != (row.machine.key, row.threads, row.unit) {
        return Err(format!("group {group:?} has another machine, threads or unit in its row {:?}", first.case));
    }
    match row.unit.is_more_better() {
        Some(_) => Ok(()),
        None => Err(format!("group {group:?} is of {}; of these, more is neither better nor worse", row.unit)),
    }
}

fn fits_base(row: &Row, base: Option<&Row>, name: &str) -> Result<(), String> {
    let Some(base) = base else { return Err(format!("over {name:?}, but there is no such case")) };
    if row.case == base.case {
        return Err(format!("over {name:?}, which is the row itself"));
    }
    if !base.is_point() || (base.machine.key, base.unit) != (row.machine.key, row.unit) {
        return Err(format!("over {name:?}, which has another machine or unit"));
    }
    if row.counts == Counts::Yes && matches!(base.counts, Counts::No(Reason::Capped | Reason::Unlike)) {
        return Err(format!("over {name:?}, which is {}: such a gain does not count", base.counts));
    }
    Ok(())
}

fn fits_curve(row: &Row, curve: &[&Row]) -> Result<(), String> {
    if curve.len() < 3 {
        return Err(format!("a curve of {} points; a shape needs 3 with its machine and load", curve.len()));
    }
    if curve.windows(2).any(|pair| pair[0].threads == pair[1].threads) {
        return Err("a curve with two points of the same threads".to_owned());
    }
    let (highest, last) = Row::ends(curve, |point| Some(point.published)).expect("there are points");
    // As a file has it, with six digits behind the point.
    let ratio = |ratio: f64| (ratio * 1e6).round() / 1e6;
    let (threads, published) = match row.measure {
        Measure::Fall => (last.0, ratio(last.1 / highest.1)),
        _ => (highest.0, highest.0 as f64),
    };
    if (row.threads, row.published) == (threads, published) {
        return Ok(());
    }
    Err(format!("{} at {} threads, but the curve says {published} at {threads}", row.published, row.threads))
}
