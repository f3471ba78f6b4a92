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

/// Every choice of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agreement {
    /// One for each request that the device took, in order.
    pub choices: Vec<Choice>,
    /// Every depth that our scheduler's control changed, in order; `None` if the scheduler takes no tokens.
    pub adjustments: Option<Vec<Adjustment>>,
}

impl Agreement {
    /// The number of choices on which both agree.
    #[must_use]
    pub fn agree(&self) -> usize {
        self.choices.len() - self.disagreements().count()
    }

    /// The choices on which they do not, in order.
    pub fn disagreements(&self) -> impl Iterator<Item = &Choice> {
        self.choices.iter().filter(|choice| !choice.agrees())
    }

    /// The share of choices on which both agree, in percent; 100 if there were no choices.
    #[must_use]
    pub fn percent(&self) -> f64 {
        if self.choices.is_empty() { 100.0 } else { 100.0 * self.agree() as f64 / self.choices.len() as f64 }
    }

    /// Writes a line for each new depth: the time in nanoseconds, the kind of request in capitals, and the depth.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_adjustments(&self, out: &mut dyn io::Write) -> io::Result<()> {
        for Adjustment { time, of, depth } in self.adjustments.iter().flatten() {
            writeln!(out, "{time} {} {depth}", of.name().to_ascii_uppercase())?;
        }
        Ok(())
    }

    /// Writes a line for each choice: the time in nanoseconds at which the device took the request, then the sector and
    /// `R`, `W` or `D` of what our scheduler had chosen for it, or `- -`.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_choices(&self, out: &mut dyn io::Write) -> io::Result<()> {
        for choice in &self.choices {
            match choice.ours {
                Some(rq) => writeln!(out, "{} {} {}", choice.time, rq.sector, rq.direction())?,
                None => writeln!(out, "{} - -", choice.time)?,
            }
        }
        Ok(())
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
