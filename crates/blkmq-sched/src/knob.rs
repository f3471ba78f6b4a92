//! Tunables by name: the kernel's names, units, defaults and ranges.

use core::fmt;

/// The unit of a knob's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A plain count.
    Count,
    /// 0 or 1.
    Switch,
    /// Nanoseconds.
    Nanoseconds,
    /// Microseconds.
    Microseconds,
    /// Milliseconds.
    Milliseconds,
    /// Kibibytes.
    Kibibytes,
    /// Sectors of 512 bytes.
    Sectors,
}

impl Unit {
    /// The unit as people write it, empty for counts and switches.
    #[must_use]
    pub const fn symbol(self) -> &'static str {
        match self {
            Self::Count | Self::Switch => "",
            Self::Nanoseconds => "ns",
            Self::Microseconds => "us",
            Self::Milliseconds => "ms",
            Self::Kibibytes => "KiB",
            Self::Sectors => "sectors",
        }
    }
}

/// A knob's name, unit, default and range, for help texts and checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Knob {
    /// The kernel's name.
    pub name: &'static str,
    /// The unit of its value.
    pub unit: Unit,
    /// The default; `None` where it follows from the queue, as `about` then says.
    pub default: Option<i64>,
    /// The smallest accepted value.
    pub min: i64,
    /// The largest accepted value.
    pub max: i64,
    /// One sentence on what it does.
    pub about: &'static str,
}

impl Knob {
    /// A knob whose value is at least 0, and at most 1 if it is a switch, else the largest `int` of the kernel.
    pub(crate) const fn new(name: &'static str, unit: Unit, default: i64, about: &'static str) -> Self {
        let max = if matches!(unit, Unit::Switch) { 1 } else { i32::MAX as i64 };
        Self { name, unit, default: Some(default), min: 0, max, about }
    }

    /// Checks a value against the range.
    ///
    /// # Errors
    /// [`KnobError::OutOfRange`] with the accepted range.
    pub fn check(&self, value: i64) -> Result<i64, KnobError> {
        debug_assert!(self.min <= self.max, "the knob {} accepts a value", self.name);
        if (self.min..=self.max).contains(&value) {
            Ok(value)
        } else {
            Err(KnobError::OutOfRange { name: self.name, value, min: self.min, max: self.max })
        }
    }
}

/// A knob with a plain count.
pub(crate) const fn count(name: &'static str, default: i64, about: &'static str) -> Knob {
    Knob::new(name, Unit::Count, default, about)
}

/// A knob that is 0 or 1.
pub(crate) const fn switch(name: &'static str, default: i64, about: &'static str) -> Knob {
    Knob::new(name, Unit::Switch, default, about)
}

/// A knob in milliseconds.
pub(crate) const fn ms(name: &'static str, default: i64, about: &'static str) -> Knob {
    Knob::new(name, Unit::Milliseconds, default, about)
}

/// A knob in nanoseconds, which has no bound.
pub(crate) const fn ns(name: &'static str, default: i64, about: &'static str) -> Knob {
    Knob { max: i64::MAX, ..Knob::new(name, Unit::Nanoseconds, default, about) }
}

/// A knob in kibibytes.
pub(crate) const fn kib(name: &'static str, default: i64, about: &'static str) -> Knob {
    Knob::new(name, Unit::Kibibytes, default, about)
}

/// Checks a value for the knob of this name.
///
/// # Errors
/// There is no such knob, or the value is out of its range.
pub(crate) fn checked(knobs: &[Knob], name: &str, value: i64) -> Result<i64, KnobError> {
    knobs.iter().find(|knob| knob.name == name).ok_or(KnobError::Unknown)?.check(value)
}

/// Sets each knob that has a default to it.
pub(crate) fn set_defaults(knobs: &[Knob], mut set: impl FnMut(&str, i64) -> Result<(), KnobError>) {
    for knob in knobs {
        if let Some(default) = knob.default {
            set(knob.name, default).expect("a default is within its own range");
        }
    }
}

/// Why a knob was not set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum KnobError {
    /// The scheduler has no knob of this name.
    Unknown,
    /// The value is outside the range.
    OutOfRange {
        /// The knob.
        name: &'static str,
        /// What was asked.
        value: i64,
        /// The smallest accepted value.
        min: i64,
        /// The largest accepted value.
        max: i64,
    },
}

impl fmt::Display for KnobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => write!(f, "no such knob"),
            Self::OutOfRange { name, value, min, max } => write!(f, "{name}: {value} is not within {min}..{max}"),
        }
    }
}

impl core::error::Error for KnobError {}
