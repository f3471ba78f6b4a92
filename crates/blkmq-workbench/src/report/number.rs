//! How numbers are written.

use super::Unit;

/// A number for a table: six significant digits, in the base unit.
pub(super) fn exact(value: f64) -> String {
    significant(value, 6)
}

/// A number with a prefix and this many significant digits; a percentile has as many digits as its nines need.
pub(super) fn short(value: f64, unit: Unit, digits: i32) -> String {
    let steps: &[(f64, &str)] = match unit {
        Unit::Number => &[(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")],
        Unit::Nanoseconds => &[(1e9, " s"), (1e6, " ms"), (1e3, " us"), (1.0, " ns")],
        Unit::Percent => &[(1.0, " %")],
    };
    let digits = if unit == Unit::Percent { digits.max(9) } else { digits };
    let (factor, suffix) =
        steps.iter().copied().find(|(factor, _)| value.abs() >= *factor).or(steps.last().copied()).unwrap_or((1.0, ""));
    format!("{}{suffix}", significant(value / factor, digits))
}

/// This many significant digits, without zeroes at the end. Very large and very small numbers get an exponent.
fn significant(value: f64, digits: i32) -> String {
    if !value.is_finite() {
        return "none".to_owned();
    }
    if value == 0.0 {
        return "0".to_owned();
    }
    let magnitude = value.abs().log10().floor();
    if !(-7.0..=15.0).contains(&magnitude) {
        return format!("{value:.*e}", digits as usize - 1);
    }
    let decimals = digits - 1 - magnitude as i32;
    if decimals <= 0 {
        let unit = 10_f64.powi(-decimals);
        return format!("{:.0}", (value / unit).round() * unit);
    }
    let text = format!("{value:.*}", decimals as usize);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_table() {
        let cases = [
            (0.0, "0"),
            (1.0, "1"),
            (0.1 + 0.2, "0.3"),
            (123_456.789, "123457"),
            (-1_234_567.0, "-1234570"),
            (0.000_123_456_78, "0.000123457"),
            (99.99, "99.99"),
            (1e20, "1.00000e20"),
            (f64::NAN, "none"),
        ];
        for (value, text) in cases {
            assert_eq!(exact(value), text);
        }
    }

    #[test]
    fn numbers_of_an_axis() {
        let cases = [
            (1_500_000.0, Unit::Number, "1.5M"),
            (999.0, Unit::Number, "999"),
            (0.25, Unit::Number, "0.25"),
            (-2000.0, Unit::Number, "-2k"),
            (90_000.0, Unit::Nanoseconds, "90 us"),
            (1e9, Unit::Nanoseconds, "1 s"),
            (0.0, Unit::Nanoseconds, "0 ns"),
            (99.99, Unit::Percent, "99.99 %"),
        ];
        for (value, unit, text) in cases {
            assert_eq!(short(value, unit, 3), text);
        }
    }
}
