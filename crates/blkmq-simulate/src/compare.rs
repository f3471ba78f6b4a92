//! A model beside published measurements.

use std::collections::BTreeMap;

use blkmq_program::{columns, render};
use serde::{Serialize, Serializer};

use crate::published::{Counts, Measure, Row, Unit};

/// Published figures whose greater one is no more than this many times the lesser one are no order.
pub const TIE: f64 = 1.1;

/// What the median of the errors may be at most.
pub const MOST_ERROR: f64 = 0.25;

/// A model beside published rows.
///
/// As JSON it is `{rows: [{source, case, by, unit, published, model, error, counts, why}], median_abs_error,
/// median_by_source, order_right, orders}`. `published` and `model` are what the error is about: a gain if it is by a
/// gain.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Each row.
    pub rows: Vec<Compared>,
    /// The median of the errors of the rows that count. A row that counts and has no model is worse than all others.
    /// `None`: no row counts, or too many have no model.
    pub median_abs_error: Option<f64>,
    /// The same for each source that has rows that count.
    pub median_by_source: BTreeMap<&'static str, Option<f64>>,
    /// Whether the model puts the designs of every comparison in the published order.
    pub order_right: bool,
    /// Each comparison of designs in which something is better by more than a [`TIE`].
    pub orders: Vec<Order>,
}

/// A row with what the model says of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Compared {
    /// The row's source.
    pub source: &'static str,
    /// The row's case.
    pub case: String,
    /// What the error is about: `value`, `gain`, `peak` or `fall`.
    pub by: &'static str,
    /// Of what the figures are numbers.
    #[serde(serialize_with = "as_text")]
    pub unit: Unit,
    /// What was published: the figure or the gain.
    pub published: f64,
    /// What the model says. `None`: it was not modelled.
    pub model: Option<f64>,
    /// How far the model is off: its figure over the published one, less 1, without its sign. For a peak, see
    /// [`Measure::Peak`].
    pub error: Option<f64>,
    /// Whether the row counts.
    #[serde(serialize_with = "counts")]
    pub counts: Counts,
    /// Why it counts or not.
    pub why: String,
}

/// A comparison of designs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Order {
    /// Its source.
    pub source: &'static str,
    /// Its name within the source.
    pub group: String,
    /// How many pairs of designs have an order.
    pub pairs: usize,
    /// The pairs that the model has the other way round, or as equals: the published winner comes first.
    pub wrong: Vec<(String, String)>,
    /// The designs that were not modelled.
    pub missing: Vec<String>,
}

impl Order {
    /// Whether the model has all pairs in the published order.
    #[must_use]
    pub const fn is_right(&self) -> bool {
        self.wrong.is_empty() && self.missing.is_empty()
    }
}

/// Compares a model with rows. The model is asked once for each row that is a point ([`Row::is_point`]), in the row's
/// unit, and says nothing of a row that it does not model.
pub fn compare(rows: &[Row], mut model: impl FnMut(&Row) -> Option<f64>) -> Comparison {
    let values: BTreeMap<(&str, &str), f64> = rows
        .iter()
        .filter(|row| row.is_point())
        .filter_map(|row| Some((key(row), model(row).filter(|value| value.is_finite() && *value > 0.0)?)))
        .collect();
    let compared: Vec<Compared> = rows.iter().map(|row| compared(row, rows, &values)).collect();
    let orders: Vec<Order> = groups(rows).into_iter().filter_map(|group| order(&group, &values)).collect();
    let errors = |source: Option<&str>| {
        let counting = compared.iter().filter(|row| row.counts == Counts::Yes);
        let errors = counting.filter(|row| source.is_none_or(|source| row.source == source)).map(|row| row.error);
        errors.collect::<Vec<_>>()
    };
    let sources = compared.iter().filter(|row| row.counts == Counts::Yes).map(|row| row.source);
    Comparison {
        median_abs_error: median(errors(None)),
        median_by_source: sources.map(|source| (source, median(errors(Some(source))))).collect(),
        order_right: orders.iter().all(Order::is_right),
        rows: compared,
        orders,
    }
}

/// The values of the model, by source and case.
type Values<'r> = BTreeMap<(&'r str, &'r str), f64>;

fn key(row: &Row) -> (&str, &str) {
    (row.source, &row.case)
}

fn compared(row: &Row, rows: &[Row], values: &Values<'_>) -> Compared {
    let own = values.get(&key(row)).copied();
    let off = |published: f64, model: f64| (model / published - 1.0).abs();
    let (by, published, model, error) = match &row.measure {
        Measure::Value => ("value", row.published, own, own.map(|model| off(row.published, model))),
        Measure::Over(case) => {
            let base = rows.iter().find(|base| key(base) == (row.source, case)).expect("the reader found it");
            let published = row.published / base.published;
            let model = own.zip(values.get(&key(base))).map(|(own, base)| own / base);
            ("gain", published, model, model.map(|model| off(published, model)))
        }
        Measure::Peak | Measure::Fall => {
            let curve = row.curve(rows);
            let at = |point: &Row| values.get(&key(point)).copied();
            let ends = Row::ends(&curve, at);
            if row.measure == Measure::Fall {
                let model = ends.map(|(highest, last)| last.1 / highest.1);
                ("fall", row.published, model, model.map(|model| off(row.published, model)))
            } else {
                let there = curve.iter().find(|point| point.threads == row.threads).and_then(|point| at(point));
                let error = ends.zip(there).map(|((highest, _), there)| 1.0 - there / highest.1);
                ("peak", row.published, ends.map(|(highest, _)| highest.0 as f64), error)
            }
        }
    };
    let Row { source, unit, counts, .. } = *row;
    Compared { source, case: row.case.clone(), by, unit, published, model, error, counts, why: row.why.clone() }
}

/// The rows of each group, in the order of the files.
fn groups(rows: &[Row]) -> Vec<Vec<&Row>> {
    let mut groups: Vec<Vec<&Row>> = Vec::new();
    for row in rows.iter().filter(|row| row.group.is_some()) {
        match groups.iter_mut().find(|group| (group[0].source, &group[0].group) == (row.source, &row.group)) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    groups
}

/// How the model orders a group. `None`: its designs are as good as each other, as published.
fn order(group: &[&Row], values: &Values<'_>) -> Option<Order> {
    let is_more_better = group[0].unit.is_more_better().expect("the reader refuses others");
    let goodness = |value: f64| if is_more_better { value } else { 1.0 / value };
    let published = |row: &Row| goodness(row.published);
    let (mut pairs, mut wrong) = (0, Vec::new());
    for (index, one) in group.iter().enumerate() {
        for other in &group[index + 1..] {
            let (better, worse) = if published(one) > published(other) { (one, other) } else { (other, one) };
            if published(better) / published(worse) <= TIE {
                continue;
            }
            pairs += 1;
            let model = |row: &Row| values.get(&key(row)).copied().map(goodness);
            if model(better).zip(model(worse)).is_some_and(|(better, worse)| better <= worse) {
                wrong.push((better.case.clone(), worse.case.clone()));
            }
        }
    }
    let missing = group.iter().filter(|row| !values.contains_key(&key(row))).map(|row| row.case.clone()).collect();
    let Row { source, ref group, .. } = *group[0];
    (pairs > 0).then(|| Order { source, group: group.clone().unwrap_or_default(), pairs, wrong, missing })
}

/// The median. What is missing is greater than everything.
fn median(errors: Vec<Option<f64>>) -> Option<f64> {
    let mut errors: Vec<f64> = errors.into_iter().map(|error| error.unwrap_or(f64::INFINITY)).collect();
    errors.sort_by(f64::total_cmp);
    let (below, above) = (errors.len().checked_sub(1)? / 2, errors.len() / 2);
    Some(f64::midpoint(errors[below], errors[above])).filter(|median| median.is_finite())
}

impl Comparison {
    /// What keeps the model from being held for right: rows that count and were not modelled, a median that is too
    /// great, and each comparison whose order is wrong. Empty: nothing.
    #[must_use]
    pub fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        let missing = self.rows.iter().filter(|row| row.counts == Counts::Yes && row.error.is_none()).count();
        if missing > 0 {
            failures.push(format!("not modelled: {missing} of the {} rows that count", self.counting()));
        }
        match self.median_abs_error {
            Some(median) if median <= MOST_ERROR => {}
            median => failures.push(format!(
                "the median of the errors is {}, where {} is allowed",
                median.map_or_else(|| "not known".to_owned(), percent),
                percent(MOST_ERROR)
            )),
        }
        for order in &self.orders {
            let place = format!("{}, {}", order.source, order.group);
            let wrong = order.wrong.iter().map(|(better, worse)| format!("{place}: {better:?} beats {worse:?}"));
            failures.extend(wrong.map(|pair| format!("{pair}, but not in the model")));
            failures.extend(order.missing.iter().map(|case| format!("{place}: {case:?} is not modelled")));
        }
        failures
    }

    /// How many rows count.
    #[must_use]
    pub fn counting(&self) -> usize {
        self.rows.iter().filter(|row| row.counts == Counts::Yes).count()
    }

    /// The comparison as lines for a terminal: each row, the medians, and the orders.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let mut table =
            vec![["source", "case", "by", "counts", "unit", "published", "model", "error"].map(str::to_owned).to_vec()];
        table.extend(self.rows.iter().map(Compared::cells));
        let mut lines = columns::lines(&table, 5, 9);
        lines.push(String::new());
        let mut medians = vec![["median of", "rows that count", "error"].map(str::to_owned).to_vec()];
        for (source, median) in &self.median_by_source {
            let rows = self.rows.iter().filter(|row| row.counts == Counts::Yes && row.source == *source).count();
            medians.push(vec![(*source).to_owned(), rows.to_string(), shown(*median, percent)]);
        }
        medians.push(vec!["all".to_owned(), self.counting().to_string(), shown(self.median_abs_error, percent)]);
        lines.extend(columns::lines(&medians, 1, 5));
        lines.push(String::new());
        let right = self.orders.iter().filter(|order| order.is_right()).count();
        lines.push(format!("order of designs right in {right} of {} comparisons", self.orders.len()));
        lines.extend(self.failures().into_iter().map(|failure| format!("  {failure}")));
        lines
    }
}

impl Compared {
    fn cells(&self) -> Vec<String> {
        let figure = |value: f64| match (self.by, self.unit) {
            ("gain", _) => format!("x {value:.3}"),
            ("fall", _) => format!("{value:.3}"),
            (_, Unit::OpsPerSecond) => render::short(value),
            (_, Unit::Threads) => format!("{value:.0}"),
            _ => format!("{value:.1}"),
        };
        let [unit, counts] = [self.unit.to_string(), self.counts.to_string()];
        let [source, case, by] = [self.source, &self.case, self.by].map(str::to_owned);
        vec![
            source,
            case,
            by,
            counts,
            unit,
            figure(self.published),
            shown(self.model, figure),
            shown(self.error, percent),
        ]
    }
}

fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

fn shown(value: Option<f64>, show: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| "not modelled".to_owned(), show)
}

fn as_text<S: Serializer>(value: &impl ToString, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&value.to_string())
}

fn counts<S: Serializer>(value: &Counts, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bool(*value == Counts::Yes)
}

#[cfg(test)]
mod tests;
