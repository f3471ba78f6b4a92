//! What Linux's BFQ decided, as a recording lists it: `TIME KIND ...`, a line for each decision.

use std::collections::VecDeque;
use std::fmt;
use std::io::{BufRead, Read};

use blkmq_sched::Reason;

use crate::TextError;

/// A queue of Linux's BFQ, as its messages name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Queue {
    /// That of what this process waits for.
    Sync(u32),
    /// One of those for what nobody waits for.
    Async,
    /// One that several processes share.
    Shared,
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sync(pid) => write!(f, "{pid}"),
            Self::Async => f.write_str("A"),
            Self::Shared => f.write_str("SHARED"),
        }
    }
}

/// A decision of Linux.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The device asks for a request. What Linux answers follows.
    Ask,
    /// This queue becomes the one in service.
    Slot(Queue),
    /// The answer: the request of this queue that begins at this sector.
    Serve(Queue, u64),
    /// The answer: nothing, for now.
    Nothing,
    /// This queue leaves service.
    Expire(Queue, Reason),
}

/// A line of a list of decisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line {
    /// When it was decided, in nanoseconds.
    pub time: u64,
    /// What was decided.
    pub what: Decision,
}

/// Kinds of lines that tell what Linux computed, and decide nothing.
const REMARKS: [&str; 7] = ["charge", "budget", "raise", "busy", "idle", "finish", "other"];

/// How many decisions are read ahead to put them in the order of time.
const LOOK_AHEAD: usize = 65_536;

/// The longest line, in bytes.
const LONGEST: u64 = 4095;

/// The decisions of a file, ordered by time. Ends after the first error, which names the line.
///
/// The lines are of the form `TIME KIND ...`. Those that decide nothing are dropped. Empty lines, and lines that start
/// with `#`, are skipped. A line that is more than 65,536 decisions behind its place is an error.
#[derive(Debug)]
pub struct Decisions<R> {
    name: String,
    file: R,
    /// Lines that were read from the file.
    nr_lines: usize,
    /// The decisions that were read ahead, in order.
    ahead: VecDeque<Line>,
    /// The time of the last decision that was returned.
    last: u64,
    is_over: bool,
}

impl<R: BufRead> Decisions<R> {
    /// Reads `file`, to which errors give this name.
    #[must_use]
    pub const fn new(name: String, file: R) -> Self {
        Self { name, file, nr_lines: 0, ahead: VecDeque::new(), last: 0, is_over: false }
    }

    /// Reads lines until enough decisions are ahead, or there are no more.
    fn fill(&mut self) -> Result<(), TextError> {
        while self.ahead.len() < LOOK_AHEAD && !self.is_over {
            let line = self.read().map_err(|what| TextError::in_line(&self.name, self.nr_lines, what))?;
            let Some(line) = line else { continue };
            let is_late = self.ahead.back().is_some_and(|back| line.time < back.time);
            let later = |other: &Line| other.time <= line.time;
            let at = if is_late { self.ahead.partition_point(later) } else { self.ahead.len() };
            self.ahead.insert(at, line);
        }
        Ok(())
    }

    /// Reads a line; `None` if it decides nothing.
    fn read(&mut self) -> Result<Option<Line>, String> {
        self.nr_lines += 1;
        let mut line = Vec::new();
        let read = Read::take(&mut self.file, LONGEST + 1).read_until(b'\n', &mut line);
        let length = read.map_err(|error| error.to_string())? as u64;
        self.is_over = length == 0;
        if length > LONGEST {
            return Err(format!("the line is longer than {LONGEST} bytes"));
        }
        let line = str::from_utf8(&line).map_err(|_| "the line is not UTF-8; a text is wanted here".to_owned())?;
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.first().is_none_or(|word| word.starts_with('#')) {
            return Ok(None);
        }
        let line = decision(&words)?;
        match line {
            Some(Line { time, .. }) if time < self.last => Err(format!(
                "the decision at {time} ns follows one at {} ns, and is more than {LOOK_AHEAD} decisions behind its \
                 place; 'sort -ns' puts the lines in order",
                self.last
            )),
            line => Ok(line),
        }
    }
}

impl<R: BufRead> Iterator for Decisions<R> {
    type Item = Result<Line, TextError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Err(error) = self.fill() {
            self.is_over = true;
            self.ahead.clear();
            return Some(Err(error));
        }
        let line = self.ahead.pop_front()?;
        self.last = line.time;
        Some(Ok(line))
    }
}

/// The decision of a line; nothing for a remark.
fn decision(words: &[&str]) -> Result<Option<Line>, String> {
    let form = || format!("'{}' is not of the form TIME_NS KIND ..., as in '66024570993 ask 1'", words.join(" "));
    let [time, kind, rest @ ..] = words else { return Err(form()) };
    let time = time.parse().map_err(|_| form())?;
    let first = || rest.first().copied().ok_or_else(|| format!("the line '{kind}' does not say which queue"));
    let what = match *kind {
        "ask" => Decision::Ask,
        "none" => Decision::Nothing,
        "slot" => Decision::Slot(queue(first()?)?),
        "serve" => Decision::Serve(queue(first()?)?, sector(rest.get(1))?),
        "expire" => Decision::Expire(queue(first()?)?, reason(rest.get(1))?),
        kind if REMARKS.contains(&kind) => return Ok(None),
        kind => {
            let known = ["ask", "serve", "none", "slot", "expire"].into_iter().chain(REMARKS);
            return Err(format!("'{kind}' is no kind of line; known: {}", known.collect::<Vec<_>>().join(", ")));
        }
    };
    Ok(Some(Line { time, what }))
}

fn queue(word: &str) -> Result<Queue, String> {
    let wrong = || format!("'{word}' names no queue: a process as in 603S, its asynchronous one as in 603A, or SHARED");
    if word == "SHARED" {
        return Ok(Queue::Shared);
    }
    let digits = word.trim_end_matches(['S', 'A']);
    let pid = digits.parse().map_err(|_| wrong())?;
    match &word[digits.len()..] {
        "S" => Ok(Queue::Sync(pid)),
        "A" => Ok(Queue::Async),
        _ => Err(wrong()),
    }
}

fn sector(word: Option<&&str>) -> Result<u64, String> {
    let word = word.ok_or("the line 'serve' does not say which sector, as in 'serve 603S 505920 32'")?;
    word.parse().map_err(|_| format!("'{word}' is not a sector number"))
}

fn reason(word: Option<&&str>) -> Result<Reason, String> {
    let known = || Reason::ALL.map(Reason::as_str).join(", ");
    let word = word.ok_or_else(|| format!("the line 'expire' does not say why: {}", known()))?;
    Reason::named(word).ok_or_else(|| format!("'{word}' is no reason; known: {}", known()))
}
