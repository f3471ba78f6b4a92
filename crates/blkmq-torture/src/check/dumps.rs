//! A dump shows what there is. The dump of a drained queue shows that nothing is in the queue, no tag is out, and
//! nothing waits, except requests in the submitters' plugs and operations that are over and not reaped.

use super::super::event::{Event, Stamp};
use super::{Checker, Violation};

const RULE: &str = "dump";

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
    fn see(&mut self, _at: Stamp, event: &Event<'_>) -> Result<(), Violation> {
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

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    const DRAINED: &str = "word x\ninflight 0 0\nhctx 0: dispatch list 0 issue list incoming false stalled true\n  \
                           flush: waiting 0 served 0 running false data in flight 0\n  tags: 4\nscheduler mq-deadline \
                           holds 0 queued per hctx [0]\nthread 1: inside true software queues [0, 0, 0] completions \
                           waiting false\nthread 1 slot 3 generation 2: Plugged\nthread 1 slot 4 generation 2: \
                           Completed\ndriver torture\n";

    #[test]
    fn a_drained_queue_is_empty() {
        let mut told = Told::new(Dumps);
        told.good(Event::Dumped(DRAINED));
        let changes = [
            ("inflight 0 0", "inflight 0 1", "nothing in flight"),
            ("dispatch list 0", "dispatch list 1", "empty lists"),
            ("incoming false", "incoming true", "empty lists"),
            ("waiting 0", "waiting 2", "a flush machine at rest"),
            ("data in flight 0", "data in flight 10", "a flush machine at rest"),
            ("  tags: 4", "  tag 3 last started None", "no tag"),
            ("holds 0 ", "holds 10 ", "an empty scheduler"),
            ("[0, 0, 0]", "[0, 1, 0]", "empty software queues"),
            ("Plugged", "SoftwareQueue", "a request in a plug"),
            ("driver", "drive", "not whole"),
        ];
        for (from, to, says) in changes {
            told.bad(Event::Dumped(&DRAINED.replace(from, to)), says);
        }
    }
}
