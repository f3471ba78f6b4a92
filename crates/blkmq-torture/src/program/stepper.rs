//! Prints a history line by line, and asks how to go on.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::ops::ControlFlow;

use blkmq_torture::Line;

const COMMANDS: &str =
    "Enter: next line; N: N lines; t MS: to that millisecond; s N: to that step; b N: to operation N; q: end";

/// Where to stop next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goal {
    /// After this many lines. 0: at the next line.
    Lines(u64),
    /// At this virtual time, in ns.
    Time(u64),
    Step(u64),
    /// At the next line about this operation, or about the request that it became.
    Bio(u64),
    /// Nowhere.
    End,
}

/// Prints lines, and stops where the user wants.
pub(super) struct Stepper<R> {
    /// The input that is asked. `None`: it never stops.
    asked: Option<R>,
    goal: Goal,
    /// The operation of each request.
    names: BTreeMap<u64, u64>,
    /// The latest operation. The numbers of operations rise.
    last_bio: u64,
}

impl<R: BufRead> Stepper<R> {
    pub(super) fn new(asked: Option<R>) -> Self {
        let goal = if asked.is_some() { Goal::Lines(0) } else { Goal::End };
        Self { asked, goal, names: BTreeMap::new(), last_bio: 0 }
    }

    /// Prints a line, and asks if this is the place to stop. Returns a break if the user ends it.
    pub(super) fn tell(&mut self, line: &Line, out: &mut dyn Write) -> io::Result<ControlFlow<()>> {
        if let (Some(bio), [Some(request), _]) = (line.bio, line.requests) {
            self.names.insert(request, bio);
        }
        self.last_bio = self.last_bio.max(line.bio.unwrap_or(0));
        let is_reached = self.is_reached(line);
        // On the way to a goal, only lines of the goal are printed.
        if is_reached || matches!(self.goal, Goal::Lines(_) | Goal::End) {
            writeln!(out, "{}", line.text)?;
        }
        match &mut self.asked {
            Some(asked) if is_reached => Self::ask(asked, &mut self.goal, out),
            _ => Ok(ControlFlow::Continue(())),
        }
    }

    /// Called when all lines were printed. Says so if the goal was not reached.
    pub(super) fn end(&self, out: &mut dyn Write) -> io::Result<()> {
        match self.goal {
            Goal::Bio(bio) if !(1..=self.last_bio).contains(&bio) => {
                writeln!(out, "there is no operation {bio}: the last one is {}", self.last_bio)
            }
            Goal::Bio(bio) => writeln!(out, "nothing more happened to operation {bio}"),
            Goal::Time(_) | Goal::Step(_) => writeln!(out, "the world ended before that"),
            Goal::Lines(_) | Goal::End => Ok(()),
        }
    }

    fn is_reached(&mut self, line: &Line) -> bool {
        match &mut self.goal {
            Goal::Lines(0) => true,
            Goal::Lines(more) => {
                *more -= 1;
                false
            }
            Goal::Time(time) => line.time_ns >= *time,
            Goal::Step(step) => line.step >= *step,
            Goal::Bio(bio) => {
                let mut named = line.requests.iter().flatten().filter_map(|request| self.names.get(request));
                line.bio == Some(*bio) || named.any(|named| named == bio)
            }
            Goal::End => false,
        }
    }

    fn ask(asked: &mut R, goal: &mut Goal, out: &mut dyn Write) -> io::Result<ControlFlow<()>> {
        loop {
            write!(out, "> ")?;
            out.flush()?;
            let mut answer = String::new();
            if asked.read_line(&mut answer)? == 0 || answer.trim() == "q" {
                return Ok(ControlFlow::Break(()));
            }
            match Goal::parse(answer.trim()) {
                Some(next) => {
                    *goal = next;
                    return Ok(ControlFlow::Continue(()));
                }
                None => writeln!(out, "{COMMANDS}")?,
            }
        }
    }
}

impl Goal {
    fn parse(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split_whitespace().collect();
        match words[..] {
            [] => Some(Self::Lines(0)),
            ["t", time] => {
                let ms = time.parse::<f64>().ok().filter(|ms| *ms >= 0.0)?;
                Some(Self::Time((ms * 1e6).round() as u64))
            }
            ["s", step] => Some(Self::Step(step.parse().ok()?)),
            ["b", bio] => Some(Self::Bio(bio.parse().ok()?)),
            [lines] => Some(Self::Lines(lines.parse::<u64>().ok()?.checked_sub(1)?)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines that are printed when `answers` are typed, and whether the user ended it. There are ten lines; line n
    /// is of step n.
    fn told(answers: &str) -> (Vec<u64>, bool) {
        let mut stepper = Stepper::new(Some(answers.as_bytes()));
        let mut text = Vec::new();
        let mut is_ended = false;
        for step in 0..10 {
            // Operation 4 became request 8. Step 7 is only about this request.
            let (bio, requests) = match step {
                3 => (Some(4), [Some(8), None]),
                7 => (None, [Some(5), Some(8)]),
                _ => (None, [None, None]),
            };
            let line = Line { step, time_ns: 500_000 * step, bio, requests, text: format!("line {step}") };
            is_ended = stepper.tell(&line, &mut text).expect("memory takes all").is_break();
            if is_ended {
                break;
            }
        }
        let text = String::from_utf8(text).expect("lines are text");
        let steps = text.lines().filter_map(|line| line.rsplit_once("line ")?.1.parse().ok()).collect();
        (steps, is_ended)
    }

    #[test]
    fn it_stops_where_it_was_told_to() {
        assert_eq!(told("\n\nq\n"), (vec![0, 1, 2], true));
        assert_eq!(told("3\nq\n"), (vec![0, 1, 2, 3], true));
        assert_eq!(told("s 6\nq\n"), (vec![0, 6], true));
        assert_eq!(told("t 2.4\nq\n"), (vec![0, 5], true));
        assert_eq!(told("b 4\nb 4\nq\n"), (vec![0, 3, 7], true));
        assert_eq!(told("b 9\nq\n"), (vec![0], false));
        assert_eq!(told("s 9\n"), (vec![0, 9], true), "the end of the input ends it");
    }

    #[test]
    fn a_goal_that_is_never_reached_is_told() {
        let said = |goal| {
            let mut text = Vec::new();
            let stepper = Stepper { asked: Some(&b""[..]), goal, names: BTreeMap::new(), last_bio: 7 };
            stepper.end(&mut text).expect("memory takes all");
            String::from_utf8(text).expect("it is text")
        };
        assert_eq!(said(Goal::Bio(8)), "there is no operation 8: the last one is 7\n");
        assert_eq!(said(Goal::Bio(0)), "there is no operation 0: the last one is 7\n");
        assert_eq!(said(Goal::Bio(7)), "nothing more happened to operation 7\n");
        assert_eq!(said(Goal::Step(9)), "the world ended before that\n");
        assert_eq!(said(Goal::Lines(3)), "");
    }

    #[test]
    fn what_it_does_not_know_is_asked_again() {
        for answer in ["x", "0", "-1", "t -1", "t", "s x", "b 1 2"] {
            assert_eq!(told(&format!("{answer}\ns 8\nq\n")), (vec![0, 8], true), "{answer}");
        }
    }

    #[test]
    fn without_anybody_to_ask_it_tells_all() {
        let mut stepper = Stepper::new(None::<&[u8]>);
        let mut text = Vec::new();
        for step in 0..3 {
            let line = Line { step, time_ns: 0, bio: None, requests: [None, None], text: format!("line {step}") };
            assert!(stepper.tell(&line, &mut text).expect("memory takes all").is_continue());
        }
        assert_eq!(text, b"line 0\nline 1\nline 2\n");
    }
}
