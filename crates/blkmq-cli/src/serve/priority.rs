//! The form in which operators write the priority of operations.

use blkmq::IoPriority;

/// Reads a priority in the form of Linux's tools: `rt/0`, `be/4`, `idle`.
pub(super) fn priority(text: &str) -> Result<IoPriority, String> {
    let (class, level) = text.split_once('/').unwrap_or((text, "4"));
    let level = level.parse().ok().filter(|level| *level <= 7);
    let priority = match class {
        "rt" => level.map(IoPriority::rt),
        "be" => level.map(IoPriority::be),
        "idle" if text == "idle" => Some(IoPriority::idle()),
        _ => None,
    };
    priority.ok_or_else(|| format!("priority: '{text}' is not accepted; accepted: rt/0 to rt/7, be/0 to be/7, idle"))
}

#[cfg(test)]
mod tests {
    use blkmq::Class;

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
