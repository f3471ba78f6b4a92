//! Numbers and names in the form in which they are printed.

use std::time::Duration;

/// A count or a rate with three or four digits: `879`, `23.5K`, `14.2M`.
pub fn short(number: f64) -> String {
    let (scaled, unit) = match number {
        n if n >= 1e9 => (n / 1e9, "G"),
        n if n >= 1e6 => (n / 1e6, "M"),
        n if n >= 1e3 => (n / 1e3, "K"),
        n => (n, ""),
    };
    match (unit, scaled) {
        ("", n) => format!("{n:.0}"),
        (unit, n) if n >= 100.0 => format!("{n:.0}{unit}"),
        (unit, n) if n >= 10.0 => format!("{n:.1}{unit}"),
        (unit, n) => format!("{n:.2}{unit}"),
    }
}

/// A size in bytes, in the largest unit of which it has one: `512 B`, `1 GiB`, `1.5 TiB`.
pub fn size(bytes: u64) -> String {
    let (mut scaled, mut unit) = (bytes as f64, "B");
    for larger in ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"] {
        if scaled < 1024.0 {
            break;
        }
        (scaled, unit) = (scaled / 1024.0, larger);
    }
    format!("{} {unit}", (scaled * 100.0).round() / 100.0)
}

/// A number of things: `1 world`, `20 worlds`.
pub fn counted(number: u64, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

/// These names made distinct: a name that several things share gets a number, as in `reader #2`.
pub fn distinct(names: &[&str]) -> Vec<String> {
    let mut distinct: Vec<String> = Vec::new();
    for name in names {
        let is_shared = names.iter().filter(|other| *other == name).count() > 1;
        // Another thing may already have the numbered name.
        let is_free = |numbered: &String| !distinct.contains(numbered) && names.iter().all(|other| other != numbered);
        let mut numbered = (1..).map(|number| format!("{name} #{number}"));
        let named = if is_shared { numbered.find(is_free) } else { None };
        distinct.push(named.unwrap_or_else(|| (*name).to_owned()));
    }
    distinct
}

/// Nanoseconds as microseconds.
pub fn us(ns: u64) -> String {
    format!("{:.1}", ns as f64 / 1e3)
}

/// A time with its unit.
pub fn time(span: Duration) -> String {
    if span < Duration::from_secs(1) {
        format!("{} ms", span.as_micros() as f64 / 1e3)
    } else {
        format!("{:.3} s", span.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if threads of one job have curves of one name.
    #[test]
    fn names_are_told_apart() {
        assert_eq!(distinct(&["a", "b"]), ["a", "b"]);
        assert_eq!(distinct(&["a", "b", "a", "a #2", "a"]), ["a #1", "b", "a #3", "a #2", "a #4"]);
    }

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        let words = [0.0, 879.4, 999.0, 1000.0, 23_454.0, 879e3, 2.311e6, 14.2e6, 1.5e9].map(short);
        assert_eq!(words, ["0", "879", "999", "1.00K", "23.5K", "879K", "2.31M", "14.2M", "1.50G"]);
        assert_eq!([time(Duration::from_millis(100)), time(Duration::from_secs(5))], ["100 ms", "5.000 s"]);
        assert_eq!(us(1_234_567), "1234.6");
        assert_eq!([0, 1023, 1 << 30, 3 << 39].map(size), ["0 B", "1023 B", "1 GiB", "1.5 TiB"]);
        assert_eq!([0, 1, 2].map(|number| counted(number, "world")), ["0 worlds", "1 world", "2 worlds"]);
    }
}
