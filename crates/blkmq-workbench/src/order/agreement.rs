//! Where our scheduler and Linux's chose alike, and where they did not.

use std::fmt;
use std::io;

use blkmq_sched::{Class, Op, SchedDomain};

/// A request as a choice shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// First sector, in units of 512 bytes.
    pub sector: u64,
    /// A read, a write or a discard. What is none of these counts as a write.
    pub op: Op,
    /// Its priority class; `None` if it never was in the scheduler.
    pub class: Option<Class>,
    /// Nanoseconds since its insertion.
    pub waited: u64,
}

impl Request {
    /// `R`, `W` or `D`.
    #[must_use]
    pub const fn direction(&self) -> char {
        match self.op {
            Op::Read => 'R',
            Op::Discard => 'D',
            _ => 'W',
        }
    }
}

/// One choice: what the device took, and what our scheduler had chosen for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// When the device took the request, in nanoseconds.
    pub time: u64,
    /// What Linux chose.
    pub linux: Request,
    /// What our scheduler chose; `None` if nothing waited or nothing might go.
    pub ours: Option<Request>,
}

impl Choice {
    /// True if both chose alike.
    #[must_use]
    pub fn agrees(&self) -> bool {
        let place = |rq: Request| (rq.sector, rq.op);
        self.ours.map(place) == Some(place(self.linux))
    }

    /// Writes a line: the time in nanoseconds at which the device took the request, then the sector and `R`, `W` or `D`
    /// of what our scheduler had chosen for it, or `- -`.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&self, out: &mut dyn io::Write) -> io::Result<()> {
        match self.ours {
            Some(rq) => writeln!(out, "{} {} {}", self.time, rq.sector, rq.direction()),
            None => writeln!(out, "{} - -", self.time),
        }
    }
}

/// A new depth of a pool of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Adjustment {
    /// When the depth was changed, in nanoseconds.
    pub time: u64,
    /// Whose tokens.
    pub of: SchedDomain,
    /// How many there are from then on.
    pub depth: u32,
}

impl Adjustment {
    /// Writes a line: the time in nanoseconds, the kind of request in capitals, and the depth.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&self, out: &mut dyn io::Write) -> io::Result<()> {
        writeln!(out, "{} {} {}", self.time, self.of.name().to_ascii_uppercase(), self.depth)
    }
}

/// What a replay found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finding {
    /// The device took a request.
    Choice(Choice),
    /// Our scheduler's control changed a depth.
    Adjustment(Adjustment),
}

/// How many disagreements are kept.
const KEPT: usize = 5;

/// The findings of a replay, counted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Agreement {
    /// Requests that the device took.
    pub choices: u64,
    /// Choices on which both agree.
    pub agree: u64,
    /// The first five choices on which they do not, in order.
    pub disagreements: Vec<Choice>,
    /// Depths that our scheduler's control changed.
    pub adjustments: u64,
}

impl Agreement {
    /// Counts a finding.
    pub fn add(&mut self, finding: &Finding) {
        match finding {
            Finding::Choice(choice) => {
                self.choices += 1;
                if choice.agrees() {
                    self.agree += 1;
                } else if self.disagreements.len() < KEPT {
                    self.disagreements.push(*choice);
                }
            }
            Finding::Adjustment(_) => self.adjustments += 1,
        }
    }

    /// The number of choices on which both do not agree.
    #[must_use]
    pub const fn disagree(&self) -> u64 {
        self.choices - self.agree
    }

    /// The share of choices on which both agree, in percent; 100 if there were no choices.
    #[must_use]
    pub fn percent(&self) -> f64 {
        if self.choices == 0 { 100.0 } else { 100.0 * self.agree as f64 / self.choices as f64 }
    }
}

/// The name of a class in a file of classes.
fn name(class: Class) -> &'static str {
    match class {
        Class::RealTime => "rt",
        Class::BestEffort => "be",
        Class::Idle => "idle",
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.op {
            Op::Read => "read",
            Op::Discard => "discard",
            _ => "write",
        };
        write!(f, "{word} {}", self.sector)?;
        match self.class {
            Some(class) => write!(f, " ({}, waited {:.1} ms)", name(class), self.waited as f64 / 1e6),
            None => write!(f, " (never inserted)"),
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09} s: Linux took {}, ", self.time / 1_000_000_000, self.time % 1_000_000_000, self.linux)?;
        match self.ours {
            Some(_) if self.agrees() => write!(f, "and so did we"),
            Some(rq) => write!(f, "we chose {rq}"),
            None => write!(f, "we chose nothing"),
        }
    }
}
