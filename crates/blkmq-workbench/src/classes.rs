//! Priority classes of sector ranges: what a trace does not record of its requests.

use blkmq_sched::Class;

use crate::TextError;

/// The priority class of the requests to each part of the device. Parts that the file does not name are best-effort.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Classes {
    /// First sector, sector after the last, class.
    ranges: Vec<(u64, u64, Class)>,
}

impl Classes {
    /// Reads lines of the form `FIRST END CLASS`: sectors of 512 bytes, END exclusive, CLASS one of `rt`, `be`, `idle`.
    /// Empty lines and what follows a `#` are skipped. Where ranges overlap the first one counts. `file` is the name
    /// that errors give the text.
    ///
    /// # Errors
    /// The line and the word that cannot be read.
    pub fn parse(file: &str, text: &str) -> Result<Self, TextError> {
        let mut ranges = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let fault = |what: String| TextError::in_line(file, index + 1, what);
            let words: Vec<&str> = line.split('#').next().unwrap_or("").split_whitespace().collect();
            let [first, end, class] = words[..] else {
                if words.is_empty() {
                    continue;
                }
                return Err(fault(format!(
                    "'{}' is not of the form FIRST END CLASS, as in '0 524288 rt'",
                    line.trim()
                )));
            };
            let sector =
                |word: &str| word.parse::<u64>().map_err(|_| fault(format!("'{word}' is not a sector number")));
            let (first, end) = (sector(first)?, sector(end)?);
            if first >= end {
                return Err(fault(format!("the range {first} {end} is empty: its end must be above its first sector")));
            }
            let class = match class {
                "rt" => Class::RealTime,
                "be" => Class::BestEffort,
                "idle" => Class::Idle,
                other => return Err(fault(format!("'{other}' is not a class; accepted: rt, be, idle"))),
            };
            ranges.push((first, end, class));
        }
        Ok(Self { ranges })
    }

    /// The class of a request that starts at `sector`.
    #[must_use]
    pub fn of(&self, sector: u64) -> Class {
        let range = self.ranges.iter().find(|(first, end, _)| (*first..*end).contains(&sector));
        range.map_or(Class::BestEffort, |(_, _, class)| *class)
    }
}
