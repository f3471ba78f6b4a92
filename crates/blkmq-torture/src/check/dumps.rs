//! A dump shows what there is. The dump of a drained queue shows that nothing is in the queue, no tag is out, and
//! nothing waits, except requests in the submitters' plugs and operations that are over and not reaped.

use super::super::event::{Event, Stamp};
use super::tracker::Tracker;
use super::{Checker, Verdict, Violation};

pub(super) const RULE: &str = "dump";

/// This module's checker.
#[derive(Debug)]
pub(super) struct Dumps;

/// Says what a line of the dump of a drained queue should say instead, if the line is wrong.
fn judge(line: &str) -> Option<&'static str> {
    let has = |text: &str| line.contains(text);
    if line.starts_with("inflight ") {
        return (line != "inflight 0 0").then_some("nothing in flight");
    }
    if line.starts_with("hctx ") {
        let is_empty = has("dispatch list 0 ") && has("issue list incoming false");
        return (!is_empty).then_some("empty lists");
    }
    if line.starts_with("  flush: ") {
        let rests = has("waiting 0 ") && has("served 0 ") && has("running false") && line.ends_with("data in flight 0");
        return (!rests).then_some("a flush machine at rest");
    }
    if line.starts_with("  tag ") {
        return Some("no tag that is out");
    }
    if line.starts_with("scheduler ") && has(" queued per hctx ") {
        return (!has(" holds 0 ")).then_some("an empty scheduler");
    }
    if line.starts_with("thread ") && has("software queues") {
        return (!has("software queues [0, 0, 0]")).then_some("empty software queues");
    }
    let is_slot = line.starts_with("thread ") || line.starts_with("flush ");
    // A submitter that is about to submit may hold an operation. A request that joined another one in a plug is part of
    // the plug.
    let rests = [": Plugged", ": Completed", ": Held", ": Merged"].into_iter().any(|place| line.ends_with(place));
    (is_slot && !rests).then_some("a request in a plug, or one that is over")
}

impl Checker for Dumps {
    fn see(&mut self, _at: Stamp, event: &Event<'_>, _: &Tracker) -> Verdict {
        let Event::Dumped(text) = *event else { return Ok(()) };
        if !text.contains("\ninflight ") || !text.contains("\nhctx 0: ") || !text.contains("\ndriver ") {
            return Err(Violation::new(RULE, format!("the dump is not whole: {text}")));
        }
        for line in text.lines() {
            if let Some(expected) = judge(line) {
                let what =
                    format!("the queue has drained, and its dump says '{line}' where there should be {expected}");
                return Err(Violation::new(RULE, what));
            }
        }
        Ok(())
    }
}
