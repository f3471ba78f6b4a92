//! What is asked of a recording, by what it exercises.

use serde::Serialize;

use super::score::Score;

/// Recordings of one kind of load, and what is asked of them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Group {
    /// `A`, `B` or `C`.
    pub name: char,
    /// What they exercise.
    pub what: &'static str,
    /// The mean of the recordings' balanced agreement, and the least of any.
    pub balanced: (f64, f64),
    /// The same for expirations.
    pub expired: (f64, f64),
    /// The least agreement inside a queue.
    pub inside: f64,
}

/// Machinery alone.
const A: Group = Group {
    name: 'A',
    what: "budgets, expiry, virtual time",
    balanced: (0.97, 0.92),
    expired: (0.95, 0.90),
    inside: 0.999,
};

/// All but raising.
const B: Group = Group {
    name: 'B',
    what: "idling, injection, wakers, classes, merging, hierarchy",
    balanced: (0.90, 0.80),
    expired: (0.85, 0.70),
    inside: 0.99,
};

/// With `low_latency`.
const C: Group = Group { name: 'C', what: "raising", balanced: (0.85, 0.75), expired: (0.80, 0.65), inside: 0.99 };

/// All, in order.
pub const GROUPS: [Group; 3] = [A, B, C];

/// With fewer contested choices a recording counts for its expirations only.
const FEWEST_CONTESTED: usize = 100;

/// So does this one: its few contested choices are between the kernel's own writers and a reader.
const WITHOUT_CHOICES: &str = "buffered-d4-ll0";

/// Recordings of group B, by how their names begin. Of the others those under `low_latency` are C, and the rest is A.
const OF_B: [&str; 9] = ["prio26", "group1248-sync", "tree", "classes", "coop", "split", "pipe", "seqwriter", "strict"];

impl Group {
    /// The group of a recording of this name.
    #[must_use]
    pub fn of(name: &str) -> Self {
        let of_b = OF_B.iter().any(|start| name.starts_with(start))
            || name.starts_with("prio") && name.contains("-sync")
            || name.starts_with("buffered");
        if name.ends_with("-ll1") || name.ends_with("-ll") {
            C
        } else if of_b {
            B
        } else {
            A
        }
    }

    /// What a recording of this group misses, in words; empty if nothing.
    #[must_use]
    pub fn missed(&self, name: &str, score: &Score) -> Vec<String> {
        let mut missed = Vec::new();
        let mut demand = |what: &str, part: Option<f64>, least: f64| {
            if let Some(part) = part.filter(|part| *part < least) {
                missed.push(format!("{what} {part:.4}, under {least}"));
            }
        };
        demand("balanced", Self::balanced_of(name, score), self.balanced.1);
        demand("expirations", score.expired.part(), self.expired.1);
        // A front merge makes one request of Linux's a ghost.
        let inside = if name.starts_with("mixedsize") { 0.98 } else { self.inside };
        demand("inside", score.inside.part(), inside);
        let most = most_made(score.expired.all);
        if score.made > most {
            missed.push(format!("{} expirations, over {most}", score.made));
        }
        missed
    }

    /// The balanced agreement, if the recording of this name counts for it.
    #[must_use]
    pub fn balanced_of(name: &str, score: &Score) -> Option<f64> {
        score.balanced().filter(|_| score.contested().all >= FEWEST_CONTESTED && name != WITHOUT_CHOICES)
    }
}

/// The most expirations of ours where Linux has so many.
#[must_use]
pub fn most_made(linux: usize) -> usize {
    linux * 115 / 100 + 10
}
