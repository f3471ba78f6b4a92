//! The places of values on an axis, and the places of its ticks.

use super::{Axis, Scale, number};

/// The largest number that is drawn. Above it, floating-point numbers are too coarse for a plot.
const LARGEST: f64 = 1e18;
/// The approximate number of ticks of an axis.
const TICKS: f64 = 6.0;

/// An axis that is laid out.
#[derive(Debug)]
pub(super) struct Ruler<'a> {
    axis: &'a Axis,
    /// The ends of the axis, as places.
    pub(super) low: f64,
    pub(super) high: f64,
    /// The places of the ticks.
    pub(super) ticks: Vec<f64>,
}

impl<'a> Ruler<'a> {
    /// An axis with room for these values. A linear axis also reaches to `baseline`.
    pub(super) fn new(axis: &'a Axis, values: impl Iterator<Item = f64>, baseline: f64) -> Self {
        let places = values.chain((axis.scale == Scale::Linear).then_some(baseline));
        // The percentile 100 is infinitely far away, and is drawn at the end of the axis, whose range follows the other
        // percentiles.
        let places = places.filter_map(|value| place(axis.scale, value)).filter(|place| place.is_finite());
        let (low, high) =
            places.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), at| (low.min(at), high.max(at)));
        let (low, high) = if low <= high { (low, high) } else { (0.0, 1.0) };
        match axis.scale {
            Scale::Linear => Self::linear(axis, low, high),
            Scale::Log => Self::whole(axis, low.floor(), high.ceil(), 2.0 * TICKS),
            // Labels with many nines are wide.
            Scale::Percentile => Self::whole(axis, low.floor(), high.ceil(), TICKS),
        }
    }

    fn linear(axis: &'a Axis, low: f64, high: f64) -> Self {
        // Room around values that are nearly equal. An axis that starts at 0 has nothing below 0.
        let least = (low.abs().max(high.abs()) * 0.01).max(1e-9);
        let room = if high - low < least { least } else { 0.0 };
        let (low, high) = (if low == 0.0 { low } else { low - room }, high + room);
        let rough = (high - low) / TICKS;
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|step| *step >= rough);
        let step = step.unwrap_or(rough);
        let (first, last) = ((low / step).floor(), (high / step).ceil());
        let count = (last - first) as u32;
        let ticks: Vec<f64> = (0..=count).map(|n| (first + f64::from(n)) * step).collect();
        Self { axis, low: first * step, high: last * step, ticks }
    }

    /// Ticks at whole places (decades, or nines): at least one, and at most `most`.
    fn whole(axis: &'a Axis, low: f64, high: f64, most: f64) -> Self {
        let high = high.max(low + 1.0);
        let step = ((high - low) / most).ceil();
        let count = ((high - low) / step) as u32;
        Self { axis, low, high, ticks: (0..=count).map(|n| low + f64::from(n) * step).collect() }
    }

    /// The place of a value; `None` if it has none.
    pub(super) fn place(&self, value: f64) -> Option<f64> {
        place(self.axis.scale, value).map(|place| place.min(self.high))
    }

    /// The label of a tick.
    pub(super) fn label(&self, place: f64) -> String {
        let value = match self.axis.scale {
            Scale::Linear => place,
            Scale::Log => 10_f64.powf(place),
            Scale::Percentile => 100.0 - 10_f64.powf(2.0 - place),
        };
        // A multiple of a step is rarely zero to the last bit.
        let value = if value.abs() < (self.high - self.low) * 1e-9 { 0.0 } else { value };
        // As many digits as neighbouring labels need to differ.
        let step = self.ticks.get(1).map_or(1.0, |second| second - self.low);
        let digits = match self.axis.scale {
            Scale::Linear => (self.high.abs().max(self.low.abs()) / step).log10().ceil() as i32 + 1,
            Scale::Log | Scale::Percentile => 3,
        };
        number::short(value, self.axis.unit, digits.clamp(3, 9))
    }
}

fn place(scale: Scale, value: f64) -> Option<f64> {
    let place = match scale {
        Scale::Linear => value.clamp(-LARGEST, LARGEST),
        Scale::Log => value.clamp(1.0 / LARGEST, LARGEST).log10(),
        Scale::Percentile => 2.0 - (100.0 - value).log10(),
    };
    let possible = value.is_finite()
        && match scale {
            Scale::Linear => true,
            Scale::Log => value > 0.0,
            Scale::Percentile => (0.0..=100.0).contains(&value),
        };
    possible.then_some(place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Unit;

    fn labels(scale: Scale, unit: Unit, values: &[f64]) -> Vec<String> {
        let axis = Axis::new("", scale, unit);
        let ruler = Ruler::new(&axis, values.iter().copied(), 0.0);
        ruler.ticks.iter().map(|tick| ruler.label(*tick)).collect()
    }

    #[test]
    fn ticks_are_round_numbers() {
        assert_eq!(labels(Scale::Linear, Unit::Number, &[0.0, 47.0]), ["0", "10", "20", "30", "40", "50"]);
        assert_eq!(labels(Scale::Linear, Unit::Number, &[-0.1, 0.15])[..3], ["-0.1", "-0.05", "0"]);
        assert_eq!(labels(Scale::Log, Unit::Nanoseconds, &[120.0, 90_000.0]), ["100 ns", "1 us", "10 us", "100 us"]);
        let axis = Axis::linear("", Unit::Number);
        for (values, first) in [([1.0, 1.0], "0.99"), ([1.0, 1.004], "0.985"), ([1.0, 1.02], "1")] {
            let ruler = Ruler::new(&axis, values.into_iter(), 1.0);
            let mut labels: Vec<String> = ruler.ticks.iter().map(|tick| ruler.label(*tick)).collect();
            assert_eq!(labels[0], first, "{labels:?}");
            let count = labels.len();
            labels.dedup();
            assert_eq!(labels.len(), count, "{labels:?}");
        }
        let percentiles = labels(Scale::Percentile, Unit::Percent, &[0.0, 99.0, 99.95, 100.0]);
        assert_eq!(percentiles, ["0 %", "90 %", "99 %", "99.9 %", "99.99 %"]);
    }

    #[test]
    fn any_values_have_an_axis() {
        let values =
            [f64::NAN, f64::INFINITY, f64::MAX, f64::MIN, 0.0, -1.0, f64::MIN_POSITIVE, 1e18, 1e18 + 1.0, 100.0];
        for scale in [Scale::Linear, Scale::Log, Scale::Percentile] {
            for value in values {
                for other in values {
                    let axis = Axis::new("", scale, Unit::Number);
                    let ruler = Ruler::new(&axis, [value, other].into_iter(), 1.0);
                    assert!(
                        ruler.low < ruler.high && (2..=20).contains(&ruler.ticks.len()),
                        "{value} {other} {ruler:?}"
                    );
                    let inside = |value: f64| ruler.place(value).is_none_or(|at| at >= ruler.low && at <= ruler.high);
                    assert!(inside(value) && inside(other), "{value} {other} {ruler:?}");
                }
            }
        }
    }
}
