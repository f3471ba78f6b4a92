//! The form in which operators write the priority of operations.

use blkmq::{Class, IoPriority};

/// Reads a priority in the form of Linux's tools: `rt/0`, `be/4`, `idle`.
pub(super) fn priority(text: &str) -> Result<IoPriority, String> {
    let (class, level) = match text.split_once('/') {
        Some((class, level)) => (class, level.parse().ok().filter(|level| *level <= 7)),
        None => (text, Some(if text == "idle" { 7 } else { 4 })),
    };
    let class = match class {
        "rt" => Some(Class::RealTime),
        "be" => Some(Class::BestEffort),
        "idle" if !text.contains('/') => Some(Class::Idle),
        _ => None,
    };
    let both = class.zip(level).map(|(class, level)| IoPriority { class, level });
    both.ok_or_else(|| format!("priority: '{text}' is not accepted; accepted: rt/0 to rt/7, be/0 to be/7, idle"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_are_those_of_ionice() {
        for (text, class, level) in [
            ("rt/0", Class::RealTime, 0),
            ("be/7", Class::BestEffort, 7),
            ("be", Class::BestEffort, 4),
            ("idle", Class::Idle, 7),
        ] {
            assert_eq!(priority(text), Ok(IoPriority { class, level }), "{text}");
        }
        for bad in ["", "rt/8", "rt/-1", "be/", "idle/1", "high", "rt/0/1", "RT/0"] {
            assert!(priority(bad).unwrap_err().contains("accepted: rt/0 to rt/7"), "{bad}");
        }
    }
}
