//! What Linux's BFQ decided, as a recording lists it: `TIME KIND ...`, a line for each decision.

use std::fmt;

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

/// Reads lines of the form `TIME KIND ...`, orders them by time, and drops those that decide nothing. Empty lines, and
/// lines that start with `#`, are skipped. `file` is the name that errors give the text.
///
/// # Errors
/// The line and the word that cannot be read.
pub fn parse_decisions(file: &str, text: &str) -> Result<Vec<Line>, TextError> {
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.first().is_none_or(|word| word.starts_with('#')) {
            continue;
        }
        if let Some(line) = decision(&words).map_err(|what| TextError::in_line(file, index + 1, what))? {
            lines.push(line);
        }
    }
    lines.sort_by_key(|line| line.time);
    Ok(lines)
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
