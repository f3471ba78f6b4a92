use serde_json::Value;

use super::*;
use crate::published::{self, parse};

const LINUX: &str = "block-layer = { scheduler = \"none\", devices = 1, queues = 1, job = \"icpe24\" }";
const COUNTER: &str = "counter = { design = \"add\" }";

/// Rows of a source, from their case, threads, figure, unit, measure, counts, group and load.
fn rows_of(lines: &[[&str; 8]]) -> Vec<Row> {
    let mut text = "case;machine;threads;published;unit;measure;counts;group;load;why\n".to_owned();
    for [case, threads, published, unit, measure, counts, group, load] in lines {
        text += &format!("{case};7950x;{threads};{published};{unit};{measure};{counts};{group};{load};because\n");
    }
    parse("a", &text).unwrap()
}

/// A model that says these figures.
fn saying<'m>(said: &'m [(&'m str, f64)]) -> impl Fn(&Row) -> Option<f64> + 'm {
    |row| said.iter().find(|(case, _)| *case == row.case).map(|(_, figure)| *figure)
}

fn error_of(comparison: &Comparison, case: &str) -> Option<f64> {
    let error = comparison.rows.iter().find(|row| row.case == case).unwrap().error;
    error.map(|error| (error * 1e9).round() / 1e9)
}

/// Red if an error is over the model's figure, has a sign, or if a gain is compared by its figures.
#[test]
fn an_error_is_over_what_was_published() {
    let rows = rows_of(&[
        ["value", "1", "50", "ns/op", "value", "yes", "-", COUNTER],
        ["one", "1", "100", "ops/s", "value", "fitted", "-", LINUX],
        ["two", "2", "150", "ops/s", "over one", "yes", "-", LINUX],
    ]);
    // The model is twice as fast as the published machine, and its gain is 1.2 where 1.5 was published.
    let comparison = compare(&rows, saying(&[("value", 40.0), ("one", 200.0), ("two", 240.0)]));
    let errors = ["value", "one", "two"].map(|case| error_of(&comparison, case));
    assert_eq!(errors, [Some(0.2), Some(1.0), Some(0.2)]);
    let gain = &comparison.rows[2];
    assert_eq!((gain.by, gain.published, gain.model), ("gain", 1.5, Some(1.2)));
    assert_eq!(error_of(&compare(&rows, saying(&[("value", 60.0)])), "value"), Some(0.2));
    // A gain over what was not modelled is none.
    assert_eq!(error_of(&compare(&rows, saying(&[("two", 240.0)])), "two"), None);
    // And a figure that is none is as if there were none.
    for none in [f64::NAN, f64::INFINITY, 0.0, -1.0] {
        assert_eq!(error_of(&compare(&rows, saying(&[("value", none)])), "value"), None);
    }
}

/// Red if a peak is judged by its number of threads, so that a flat curve has an error; or if a fall is taken from
/// anything but the model's own highest point.
#[test]
fn a_shape_is_judged_by_the_curve_of_the_model() {
    let rows = rows_of(&[
        ["one", "1", "50", "ops/s", "value", "fitted", "-", LINUX],
        ["four", "4", "100", "ops/s", "value", "basis", "-", LINUX],
        ["two", "2", "80", "ops/s", "over one", "unasked", "-", LINUX],
        ["eight", "8", "25", "ops/s", "value", "basis", "-", LINUX],
        ["peak", "4", "4", "threads", "peak", "yes", "-", LINUX],
        ["fall", "8", "0.25", "ratio", "fall", "yes", "-", LINUX],
    ]);
    let curve = |figures: [f64; 4]| {
        let cases = ["one", "two", "four", "eight"];
        let comparison = compare(&rows, |row| cases.iter().position(|case| *case == row.case).map(|at| figures[at]));
        let model = |at: usize| comparison.rows[at].model.unwrap();
        ((model(4), error_of(&comparison, "peak").unwrap()), (model(5), error_of(&comparison, "fall").unwrap()))
    };
    assert_eq!(curve([5.0, 8.0, 10.0, 2.5]), ((4.0, 0.0), (0.25, 0.0)));
    assert_eq!(curve([5.0, 10.0, 9.0, 5.0]), ((2.0, 0.1), (0.5, 1.0)));
    assert_eq!(curve([1.0, 2.0, 4.0, 8.0]), ((8.0, 0.5), (1.0, 3.0)));
    // One point is missing.
    let comparison = compare(&rows, saying(&[("one", 5.0), ("four", 10.0), ("eight", 2.0)]));
    assert_eq!((error_of(&comparison, "peak"), error_of(&comparison, "fall")), (None, None));
}

/// Red if a median is over rows that do not count, or if leaving rows out makes a model better.
#[test]
fn what_counts_and_is_missing_is_worse_than_everything() {
    let row = |case, counts| [case, "1", "100", "ns/op", "value", counts, "-", COUNTER];
    let rows = rows_of(&[row("a", "yes"), row("b", "yes"), row("c", "yes"), row("d", "unasked")]);
    let median_of = |said: &[(&str, f64)]| {
        let comparison = compare(&rows, saying(said));
        assert_eq!(comparison.median_by_source.get("a"), Some(&comparison.median_abs_error));
        comparison.median_abs_error.map(|median| (median * 1e9).round() / 1e9)
    };
    assert_eq!(median_of(&[("a", 110.0), ("b", 60.0), ("c", 130.0), ("d", 900.0)]), Some(0.3));
    assert_eq!(median_of(&[("a", 110.0), ("b", 130.0)]), Some(0.3));
    assert_eq!(median_of(&[("a", 110.0), ("d", 100.0)]), None);
    let rows = rows_of(&[row("a", "yes"), row("b", "yes")]);
    let median = |said: &[(&str, f64)]| compare(&rows, saying(said)).median_abs_error;
    assert_eq!(median(&[("a", 150.0), ("b", 200.0)]), Some(0.75));
    assert_eq!(median(&[("a", 150.0)]), None);
    assert_eq!(compare(&rows_of(&[row("d", "unasked")]), |_| None).median_abs_error, None);
}

/// Red if a published tie has to be met, if a tie of the model counts as right, if less is taken for worse where it is
/// better, or if a comparison is right of which a design is missing.
#[test]
fn designs_are_in_the_published_order_or_the_comparison_is_wrong() {
    let row = |case, published, group| [case, "4", published, "ns/op", "value", "unasked", group, COUNTER];
    let rows = rows_of(&[
        row("add", "24", "g"),
        row("mutex", "69", "g"),
        row("cas", "75", "g"),
        row("ticket", "122", "g"),
        row("x", "100", "tie"),
        row("y", "110", "tie"),
    ]);
    let judged = |add, mutex, cas, ticket| {
        let said = [("add", add), ("mutex", mutex), ("cas", cas), ("ticket", ticket)];
        let comparison = compare(&rows, saying(&said));
        assert_eq!(comparison.orders.len(), 1, "a tie is no comparison");
        let order = &comparison.orders[0];
        assert_eq!((order.source, &*order.group, order.pairs), ("a", "g", 5));
        assert_eq!(comparison.order_right, order.wrong.is_empty());
        order.wrong.clone()
    };
    // Mutex and CAS are within 10 %.
    assert_eq!(judged(1.0, 2.0, 3.0, 4.0), []);
    assert_eq!(judged(1.0, 3.0, 2.0, 4.0), []);
    let pair = |better: &str, worse: &str| (better.to_owned(), worse.to_owned());
    assert_eq!(judged(1.0, 2.0, 4.0, 3.0), [pair("cas", "ticket")]);
    assert_eq!(judged(2.0, 2.0, 3.0, 4.0), [pair("add", "mutex")]);

    let comparison = compare(&rows, saying(&[("add", 1.0), ("mutex", 2.0), ("ticket", 1.5)]));
    let order = &comparison.orders[0];
    assert_eq!((&order.missing[..], &order.wrong[..]), (&["cas".to_owned()][..], &[pair("mutex", "ticket")][..]));
    assert!(!comparison.order_right);
    let rest = compare(&rows, saying(&[("add", 1.0), ("mutex", 2.0), ("ticket", 3.0)]));
    assert!(!rest.order_right && rest.orders[0].wrong.is_empty(), "{rest:?}");
}

/// Red if published rows can be refused by what was published itself, or accepted without a model.
#[test]
fn what_was_published_agrees_with_itself_and_nothing_does_not() {
    let rows = published::rows();
    let itself = compare(&rows, |row| Some(row.published));
    assert_eq!(itself.failures(), Vec::<String>::new());
    let off = itself.rows.iter().find(|row| row.error.is_none_or(|error| error > 1e-4));
    assert_eq!(off, None);
    assert!(itself.median_abs_error.unwrap() < 1e-9 && itself.order_right);
    let sources: Vec<&str> = itself.median_by_source.keys().copied().collect();
    assert_eq!(sources.len(), 9, "{sources:?}");
    // The comparisons in which something is better, and their pairs.
    let pairs: usize = itself.orders.iter().map(|order| order.pairs).sum();
    assert_eq!((itself.orders.len(), pairs), (75, 290));

    let nothing = compare(&rows, |_| None);
    let failures = nothing.failures();
    assert_eq!(failures[0], "not modelled: 133 of the 133 rows that count");
    assert_eq!(failures[1], "the median of the errors is not known, where 25.0 % is allowed");
    assert!(!nothing.order_right && failures.len() > 2);
}

/// Red if a model that is twice as fast at everything is not found out by the primitives, whose value counts, or is by
/// the rows of Linux, of which gains and shapes count.
#[test]
fn a_speed_is_an_error_of_primitives_only() {
    let comparison = compare(&published::rows(), |row| match row.unit.is_more_better() {
        Some(true) => Some(row.published * 2.0),
        Some(false) => Some(row.published / 2.0),
        None => Some(row.published),
    });
    assert!(comparison.order_right);
    for (source, median) in &comparison.median_by_source {
        let is_primitive = ["folly-locks", "folly-queues", "concurrency-hierarchy"].contains(source);
        assert!((median.unwrap() - if is_primitive { 0.5 } else { 0.0 }).abs() < 1e-3, "{source}: {median:?}");
    }
    assert_eq!(comparison.failures(), ["the median of the errors is 50.0 %, where 25.0 % is allowed"]);
}

/// Red if a key of the JSON is renamed or has another form: programs read it.
#[test]
fn the_json_has_rows_the_median_and_the_order() {
    let rows = rows_of(&[
        ["value", "1", "50", "ns/op", "value", "yes", "-", COUNTER],
        ["other", "1", "50", "ns/op", "value", "unlike", "-", COUNTER],
    ]);
    let json = serde_json::to_value(compare(&rows, saying(&[("value", 60.0)]))).unwrap();
    let keys: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, ["median_abs_error", "median_by_source", "order_right", "orders", "rows"]);
    assert!((json["median_abs_error"].as_f64().unwrap() - 0.2).abs() < 1e-9, "{json}");
    assert_eq!(json["order_right"], Value::Bool(true));
    let row = |at: usize| {
        let row = &json["rows"][at];
        (&row["source"], &row["case"], &row["published"], &row["model"], &row["counts"], &row["unit"])
    };
    let text = |text: &str| Value::from(text);
    let expected = (text("a"), text("value"), Value::from(50.0), Value::from(60.0), Value::from(true), text("ns/op"));
    let (source, case, published, model, counts, unit) = &expected;
    assert_eq!(row(0), (source, case, published, model, counts, unit));
    assert_eq!((row(1).3, row(1).4), (&Value::Null, &Value::Bool(false)));
}

/// Red if a row is not shown because it does not count or was not modelled, or if a failure is not told.
#[test]
fn everything_is_shown() {
    let rows = rows_of(&[
        ["one", "1", "100", "ops/s", "value", "fitted", "-", LINUX],
        ["two", "2", "150", "ops/s", "over one", "yes", "g", LINUX],
        ["slow", "2", "50", "ops/s", "value", "unasked", "g", LINUX],
    ]);
    let lines = compare(&rows, saying(&[("one", 100.0), ("two", 120.0)])).lines();
    let row = |name: &str| {
        let line = lines.iter().find(|line| line.contains(&format!(" {name} "))).unwrap();
        line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect::<Vec<_>>()
    };
    assert_eq!(row("one"), ["a", "one", "value", "fitted", "ops/s", "100", "100", "0.0 %"]);
    assert_eq!(row("two"), ["a", "two", "gain", "yes", "ops/s", "x 1.500", "x 1.200", "20.0 %"]);
    assert_eq!(row("slow"), ["a", "slow", "value", "unasked", "ops/s", "50", "not modelled", "not modelled"]);
    assert!(lines.iter().any(|line| line.starts_with("all ") && line.ends_with("20.0 %")), "{lines:#?}");
    let ends = ["order of designs right in 0 of 1 comparisons", "  a, g: \"slow\" is not modelled"];
    assert_eq!(lines[lines.len() - 2..], ends);
}
