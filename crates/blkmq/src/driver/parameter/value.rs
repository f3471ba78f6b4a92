//! What the values of parameters look like.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::error::SpecError;

/// What a parameter accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Accepts {
    /// 0 or 1.
    Switch,
    /// A number from `min` to `max`.
    Count {
        /// What is counted; empty where the name says it.
        unit: &'static str,
        /// The smallest accepted number.
        min: u64,
        /// The largest accepted number.
        max: u64,
    },
    /// A size. A number without suffix counts units of `unit` bytes; K, M, G and T are powers of 1024 bytes.
    Size {
        /// Bytes that a number without suffix stands for: 1, or the power of 1024 of the suffix that is left out.
        unit: u64,
        /// The smallest accepted size in bytes.
        min: u64,
        /// The largest accepted size in bytes.
        max: u64,
    },
    /// A time, in nanoseconds unless followed by ns, us, ms or s.
    Time {
        /// The largest accepted time in nanoseconds.
        max: u64,
    },
    /// `START-END`: a range of sectors of 512 bytes, the last one included.
    Sectors,
    /// `interval,probability,space,times`; see [`Fault`].
    Fault,
    /// The path of a file. A spec has each of its commas twice, because a single one ends it.
    Path,
    /// A text. A spec has each of its commas twice, because a single one ends it.
    Text,
}

/// A value that a parameter accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Value {
    /// A count, a size in bytes, a time in nanoseconds, or a switch as 0 or 1.
    Number(u64),
    /// First and last sector of a range.
    Sectors(u64, u64),
    /// When a fault strikes.
    Fault(Fault),
    /// A path; not empty.
    Path(PathBuf),
    /// A text; not empty.
    Text(String),
}

/// When an injected fault strikes, as `interval,probability,space,times`, the kernel's four numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// Only every so-many-th request can be struck; 1 for each.
    pub interval: u32,
    /// The chance of a request that can be struck, in percent.
    pub probability: u8,
    /// Requests at the beginning that are never struck.
    pub space: u32,
    /// Requests that are struck at most; `None` (written -1) for no bound.
    pub times: Option<u32>,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { interval, probability, space, times } = self;
        write!(f, "{interval},{probability},{space},{}", times.map_or(-1, i64::from))
    }
}

impl FromStr for Fault {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let wrong = || {
            SpecError::new(
                "give interval,probability,space,times: interval from 1, probability from 0 to 100 (percent), space \
                 from 0, times from 0 or -1 for no bound",
            )
        };
        let parts: Vec<_> = text.split(',').collect();
        let [interval, probability, space, times] = parts[..] else { return Err(wrong()) };
        let fault = Self {
            interval: plain(interval).ok_or_else(wrong)?,
            probability: plain(probability).ok_or_else(wrong)?,
            space: plain(space).ok_or_else(wrong)?,
            times: if times == "-1" { None } else { Some(plain(times).ok_or_else(wrong)?) },
        };
        if fault.interval == 0 || fault.probability > 100 { Err(wrong()) } else { Ok(fault) }
    }
}

const SIZES: [(&str, u64); 4] = [("K", 1 << 10), ("M", 1 << 20), ("G", 1 << 30), ("T", 1 << 40)];
const TIMES: [(&str, u64); 4] = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];

impl Accepts {
    /// Reads a value.
    ///
    /// # Errors
    /// What is wrong with it, and what would be right.
    pub fn parse(&self, text: &str) -> Result<Value, SpecError> {
        match *self {
            Self::Switch => self.number(text, 1, &[], 0, 1),
            Self::Count { min, max, .. } => self.number(text, 1, &[], min, max),
            Self::Size { unit, min, max } => self.number(text, unit, &SIZES, min, max),
            Self::Time { max } => self.number(text, 1, &TIMES, 0, max),
            Self::Sectors => {
                let ends = text.split_once('-').and_then(|(start, end)| Some((plain(start)?, plain(end)?)));
                let ends = ends.filter(|(start, end)| start <= end);
                ends.map(|(start, end)| Value::Sectors(start, end)).ok_or_else(|| self.wrong())
            }
            Self::Fault => text.parse().map(Value::Fault),
            Self::Path if text.is_empty() => Err(SpecError::new("a path is missing")),
            Self::Path => Ok(Value::Path(PathBuf::from(text))),
            Self::Text if text.is_empty() => Err(SpecError::new("a text is missing")),
            Self::Text => Ok(Value::Text(text.to_owned())),
        }
    }

    /// A value that was [read](Self::parse), as it is written in a spec.
    pub(super) fn write(&self, value: &Value) -> String {
        match value {
            Value::Number(bytes) if matches!(self, Self::Size { .. }) => size(*bytes),
            Value::Number(number) => number.to_string(),
            Value::Sectors(first, last) => format!("{first}-{last}"),
            Value::Fault(fault) => fault.to_string(),
            Value::Path(path) => write_word(&path.to_string_lossy()),
            Value::Text(text) => write_word(text),
        }
    }

    fn wrong(&self) -> SpecError {
        SpecError::new(format!("give {self}"))
    }

    fn number(&self, text: &str, unit: u64, suffixes: &[(&str, u64)], min: u64, max: u64) -> Result<Value, SpecError> {
        let suffix = text.trim_start_matches(|c: char| c.is_ascii_digit());
        let digits = &text[..text.len() - suffix.len()];
        if digits.is_empty() {
            return Err(match text {
                "" => SpecError::new("a number is missing"),
                _ => self.wrong(),
            });
        }
        let factor = match suffixes.iter().find(|(name, _)| *name == suffix) {
            Some((_, factor)) => *factor,
            None if suffix.is_empty() => unit,
            None if suffixes.is_empty() => return Err(self.wrong()),
            None => {
                let known: Vec<_> = suffixes.iter().map(|(name, _)| *name).collect();
                return Err(SpecError::new(format!("{suffix:?} is no unit; there are: {}", known.join(", "))));
            }
        };
        let value = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
        value.filter(|value| (min..=max).contains(value)).map(Value::Number).ok_or_else(|| self.wrong())
    }
}

impl fmt::Display for Accepts {
    /// What is accepted, such as "a number from 1 to 1024".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Switch => f.write_str("0 or 1"),
            Self::Count { unit: "", min, max } => write!(f, "a number from {min} to {max}"),
            Self::Count { unit, min, max } => write!(f, "a number of {unit} from {min} to {max}"),
            Self::Size { unit, min, max } => {
                let plain = SIZES.iter().find(|(_, factor)| *factor == unit).map_or("bytes", |(name, _)| name);
                write!(f, "a size from {} to {} (in {plain}, or with K, M, G, T)", size(min), size(max))
            }
            Self::Time { max } => write!(f, "a time from 0 to {max} (in ns, or with ns, us, ms, s)"),
            Self::Sectors => f.write_str("START-END, sectors of 512 bytes with START <= END"),
            Self::Fault => f.write_str("interval,probability,space,times"),
            Self::Path => f.write_str("a path, each comma in it twice"),
            Self::Text => f.write_str("a text, each comma in it twice"),
        }
    }
}

/// The value of a parameter that is a number and has a default.
pub(super) fn number<T: TryFrom<u64>>(value: Option<Value>) -> T {
    let Some(Value::Number(number)) = value else { unreachable!("a number has a default, and is not {value:?}") };
    T::try_from(number).ok().expect("a table's range fits the type it is read as")
}

/// A word as a spec has it, with each comma twice: the inverse of [`words`](super::words).
#[must_use]
pub fn write_word(word: &str) -> String {
    word.replace(',', ",,")
}

/// A size in bytes with the largest suffix that leaves a whole number.
fn size(bytes: u64) -> String {
    let suffix = SIZES.iter().rev().find(|(_, factor)| bytes != 0 && bytes.is_multiple_of(*factor));
    suffix.map_or_else(|| bytes.to_string(), |(name, factor)| format!("{}{name}", bytes / factor))
}

/// A number of digits alone; the standard parser would take a sign as well.
fn plain<T: FromStr>(text: &str) -> Option<T> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_1024_and_a_plain_number_counts_the_kernels_unit() {
        let mebibytes = Accepts::Size { unit: 1 << 20, min: 0, max: 1 << 50 };
        for (text, bytes) in [("3", 3 << 20), ("3K", 3 << 10), ("3M", 3 << 20), ("3G", 3 << 30), ("3T", 3 << 40)] {
            assert_eq!(mebibytes.parse(text).unwrap(), Value::Number(bytes), "{text}");
        }
        let right = "give a size from 0 to 1024T (in M, or with K, M, G, T)";
        for text in ["1025T", "18014398509481985K", "99999999999999999999", "-1", "x"] {
            assert_eq!(mebibytes.parse(text).unwrap_err().to_string(), right, "{text}");
        }
        for text in ["1k", "1GiB", "1.5", "1 G", "1_000"] {
            assert!(mebibytes.parse(text).unwrap_err().to_string().contains("is no unit"), "{text}");
        }
    }

    #[test]
    fn times_take_units() {
        let time = Accepts::Time { max: 10_000_000_000 };
        for (text, ns) in [("7", 7), ("7ns", 7), ("7us", 7_000), ("7ms", 7_000_000), ("7s", 7_000_000_000)] {
            assert_eq!(time.parse(text).unwrap(), Value::Number(ns), "{text}");
        }
        assert!(time.parse("11s").is_err());
        assert!(time.parse("20000000000s").is_err(), "overflow");
    }

    #[test]
    fn ranges_run_forward() {
        assert_eq!(Accepts::Sectors.parse("5-9").unwrap(), Value::Sectors(5, 9));
        assert_eq!(Accepts::Sectors.parse("5-5").unwrap(), Value::Sectors(5, 5));
        for text in ["9-5", "5", "5-", "-5", "5-6-7", "+5-6", "", "99999999999999999999-1"] {
            assert!(Accepts::Sectors.parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_fault_has_four_numbers_and_writes_itself_as_it_is_read() {
        for text in ["1,100,0,-1", "10,50,4,0", "4294967295,0,7,4294967295"] {
            assert_eq!(text.parse::<Fault>().unwrap().to_string(), text);
        }
        for text in ["", "1", "1,2,3", "1,2,3,4,5", "0,50,0,-1", "1,101,0,-1", "1,50,0,-2", "1,+50,0,1", "1,50,,1"] {
            assert!(text.parse::<Fault>().unwrap_err().to_string().starts_with("give interval,"), "{text}");
        }
    }
}
