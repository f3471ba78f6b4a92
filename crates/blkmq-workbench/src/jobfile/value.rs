//! The values of options, in fio's notation.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::shown;
use crate::job::{ByDirection, Extent};

/// The largest number, for bytes and for everything else.
const MAX: u64 = i64::MAX as u64;

/// The text after the `=`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Value<'a> {
    /// `None`: there is no `=`.
    text: Option<&'a str>,
    /// The factor that `k` stands for: 1024 or 1000.
    kilo: u64,
}

/// The unit of a time without a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Seconds,
    Microseconds,
}

impl<'a> Value<'a> {
    pub(super) const fn new(text: Option<&'a str>, kilo: u64) -> Self {
        Self { text, kilo }
    }

    const fn part(self, text: &'a str) -> Self {
        Self { text: Some(text), kilo: self.kilo }
    }

    /// The value as it is written.
    pub(super) fn text(self) -> Result<&'a str, String> {
        match self.text {
            Some(text) if !text.is_empty() => Ok(text),
            _ => Err("needs a value".to_owned()),
        }
    }

    /// One of these words, as the value that stands beside it.
    pub(super) fn word<T: Clone>(self, words: &[(&str, T)]) -> Result<T, String> {
        let text = self.text()?;
        let value = words.iter().find(|(word, _)| *word == text).map(|(_, value)| value.clone());
        value.ok_or_else(|| none_of(text, &words.iter().map(|(word, _)| *word).collect::<Vec<_>>()))
    }

    /// A switch: true for `1` or for a name without a value, false for `0`.
    pub(super) fn flag(self) -> Result<bool, String> {
        match self.text {
            None | Some("1") => Ok(true),
            Some("0") => Ok(false),
            Some(other) => Err(format!("'{}' is neither 0 nor 1", shown(other))),
        }
    }

    /// A whole number, which may have a unit as in `4k`.
    pub(super) fn number(self, range: RangeInclusive<u64>) -> Result<u64, String> {
        let text = self.text()?;
        let number = self.parse(text)?;
        if range.contains(&number) {
            return Ok(number);
        }
        let (low, high) = (range.start(), range.end());
        Err(if *high == MAX {
            format!("'{}' is less than {low}", shown(text))
        } else {
            format!("'{}' is not from {low} to {high}", shown(text))
        })
    }

    /// As [`number`](Self::number), up to 2^32 - 1.
    pub(super) fn small(self, range: RangeInclusive<u32>) -> Result<u32, String> {
        let number = self.number(u64::from(*range.start())..=u64::from(*range.end()))?;
        Ok(number as u32)
    }

    /// A number of at least `low`.
    pub(super) fn at_least(self, low: u64) -> Result<u64, String> {
        self.number(low..=MAX)
    }

    pub(super) fn percent(self) -> Result<u32, String> {
        let text = self.text()?;
        self.part(text.strip_suffix('%').unwrap_or(text)).small(0..=100)
    }

    /// Bytes, or a percentage such as `20%`.
    pub(super) fn extent(self) -> Result<Extent, String> {
        let text = self.text()?;
        match text.strip_suffix('%') {
            Some(percent) => self.part(percent).percent().map(Extent::Percent),
            None => self.at_least(0).map(Extent::Bytes),
        }
    }

    /// Bytes that may be negative, for steps backwards.
    pub(super) fn signed(self) -> Result<i64, String> {
        let text = self.text()?;
        let (text, sign) = text.strip_prefix('-').map_or((text, 1), |text| (text, -1));
        Ok(sign * self.part(text).at_least(0)? as i64)
    }

    /// A number with a fraction.
    pub(super) fn float(self, range: RangeInclusive<f64>) -> Result<f64, String> {
        let text = self.text()?;
        match text.parse::<f64>() {
            Ok(number) if range.contains(&number) => Ok(number),
            Ok(_) if *range.start() == f64::MIN_POSITIVE => {
                Err(format!("'{}' is not above 0 and up to {}", shown(text), range.end()))
            }
            Ok(_) => Err(format!("'{}' is not from {} to {}", shown(text), range.start(), range.end())),
            Err(_) => Err(format!("'{}' is not a number, as '1.2' is", shown(text))),
        }
    }

    /// A time such as `10s` or `500us`.
    pub(super) fn duration(self, unit: Unit) -> Result<Duration, String> {
        let text = self.text()?;
        let (digits, suffix) = split_number(text);
        let nanos = match (suffix.to_ascii_lowercase().as_str(), unit) {
            ("", Unit::Seconds) | ("s" | "sec", _) => 1_000_000_000,
            ("", Unit::Microseconds) | ("us" | "usec", _) => 1000,
            ("ms" | "msec", _) => 1_000_000,
            ("m", _) => 60 * 1_000_000_000,
            ("h", _) => 3600 * 1_000_000_000,
            ("d", _) => 86400 * 1_000_000_000,
            _ => return Err(format!("'{}' is not a time, as '500us', '10s' and '2m' are", shown(text))),
        };
        let number = digits.parse::<u64>().map_err(|_| format!("'{}' is not a time, as '10s' is", shown(text)))?;
        number
            .checked_mul(nanos)
            .filter(|nanos| *nanos <= MAX)
            .map(Duration::from_nanos)
            .ok_or_else(|| format!("'{}' is longer than 292 years", shown(text)))
    }

    /// Two values with `-` or `:` between them, the lower one first; or one value that counts as both.
    pub(super) fn range<T: PartialOrd + Clone>(
        self,
        parse: impl Fn(Self) -> Result<T, String>,
    ) -> Result<RangeInclusive<T>, String> {
        let text = self.text()?;
        let (low, high) = text.split_once(['-', ':']).unwrap_or((text, text));
        let (low, high) = (parse(self.part(low))?, parse(self.part(high))?);
        Ok(if low <= high { low..=high } else { high..=low })
    }

    /// The parts between separators.
    pub(super) fn split(self, separator: char) -> Result<impl Iterator<Item = Self>, String> {
        Ok(self.text()?.split(separator).map(move |text| self.part(text)))
    }

    /// The part before the first separator, and the part after it.
    pub(super) fn pair(self, separator: char) -> Result<(Self, Option<Self>), String> {
        let text = self.text()?;
        Ok(match text.split_once(separator) {
            Some((first, second)) => (self.part(first), Some(self.part(second))),
            None => (self.part(text), None),
        })
    }

    pub(super) fn is_empty(self) -> bool {
        self.text.is_none_or(str::is_empty)
    }

    /// Reads `read,write,trim` into `target`. A part that is left out gets the value of the part before it; if there is
    /// none, it does not change. A part that is empty does not change either.
    pub(super) fn each<T: Clone>(
        self,
        target: &mut ByDirection<T>,
        parse: impl Fn(Self) -> Result<T, String>,
    ) -> Result<(), String> {
        let text = self.text()?;
        let parts: Vec<&str> = text.split(',').collect();
        let [read, write, trim] = match *parts {
            [all] => [all, all, all],
            [read, rest] => [read, rest, rest],
            [read, write, trim] => [read, write, trim],
            _ => return Err(format!("'{}' has more than three values: for reads, writes and trims", shown(text))),
        };
        for (text, place) in [(read, &mut target.read), (write, &mut target.write), (trim, &mut target.trim)] {
            if !text.is_empty() {
                *place = parse(self.part(text))?;
            }
        }
        Ok(())
    }

    fn parse(self, text: &str) -> Result<u64, String> {
        let fault = || format!("'{}' is not a whole number, as '64', '4k' and '0x1f' are", shown(text));
        if let Some(digits) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
            let hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            let number = u64::from_str_radix(digits, 16).ok().filter(|number| hex && *number <= MAX);
            return number.ok_or_else(fault);
        }
        let (digits, suffix) = split_number(text);
        let number = digits.parse::<u64>().map_err(|_| {
            if text.starts_with('(') {
                format!("'{}' is an expression; blkmq has no arithmetic, write the number", shown(text))
            } else {
                fault()
            }
        })?;
        let factor = self.factor(suffix).ok_or_else(fault)?;
        number
            .checked_mul(factor)
            .filter(|number| *number <= MAX)
            .ok_or_else(|| format!("'{}' is more than 2^63 - 1", shown(text)))
    }

    /// The factor of the unit. fio swaps the meanings of `kb` and `kib` unless `kb_base` is 1000.
    fn factor(self, suffix: &str) -> Option<u64> {
        let suffix = suffix.to_ascii_lowercase();
        if suffix.is_empty() || suffix == "b" {
            return Some(1);
        }
        let power = 1 + ["k", "m", "g", "t", "p"].iter().position(|prefix| suffix.starts_with(prefix))? as u32;
        match &suffix[1..] {
            "" | "i" | "b" => Some(self.kilo.pow(power)),
            "ib" => Some((if self.kilo == 1024 { 1000_u64 } else { 1024 }).pow(power)),
            _ => None,
        }
    }
}

/// The error for a word that is not one of the accepted words.
pub(super) fn none_of(word: &str, accepted: &[&str]) -> String {
    format!("'{}' is none of {}", shown(word), accepted.join(", "))
}

fn split_number(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}
