//! The weights and priorities that the configuration gives the exports of a queue, and which of them have no effect.

use std::sync::Arc;

use blkmq::{Class, IoPriority, RequestQueue};

/// The weight and priority that the configuration gives the clients of one export.
#[derive(Debug, Clone)]
pub(crate) struct Share {
    pub(crate) export: String,
    pub(crate) weight: u16,
    pub(crate) priority: IoPriority,
}

/// The shares of the exports of one queue.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shares(pub(crate) Vec<Share>);

/// The form that the configuration uses.
fn word(priority: IoPriority) -> String {
    match priority.class {
        Class::RealTime => format!("rt/{}", priority.level),
        Class::BestEffort => format!("be/{}", priority.level),
        Class::Idle => "idle".to_owned(),
    }
}

impl Shares {
    /// Settings that have no effect with the present queue: one sentence for each, without the queue's name.
    pub(crate) fn warnings(&self, q: &Arc<RequestQueue>) -> Vec<String> {
        let prioritized = self.named(|share| share.priority != IoPriority::default(), |share| word(share.priority));
        let weighted = self.named(|share| share.weight != 100, |share| share.weight.to_string());
        let priority = prioritized.zip(self.idle_priorities(q));
        let weight = weighted.map(|who| (who, "no scheduler of this version shares by weight".to_owned()));
        let warn = |what: &str, (who, why): (String, String)| format!("the {what} of {who} does nothing: {why}");
        let priority = priority.map(|both| warn("priority", both));
        priority.into_iter().chain(weight.map(|both| warn("weight", both))).collect()
    }

    /// The exports that have a setting of their own, with the setting.
    fn named(&self, has: impl Fn(&Share) -> bool, what: impl Fn(&Share) -> String) -> Option<String> {
        let names: Vec<_> =
            self.0.iter().filter(|share| has(share)).map(|s| format!("{} ({})", s.export, what(s))).collect();
        (!names.is_empty()).then(|| names.join(", "))
    }

    /// Why priorities have no effect, if they have none.
    fn idle_priorities(&self, q: &Arc<RequestQueue>) -> Option<String> {
        let scheduler = q.scheduler();
        if scheduler == "none" {
            return Some("there is no scheduler; set the knob scheduler to mq-deadline".to_owned());
        }
        if self.0.iter().all(|share| share.priority.class == self.0[0].priority.class) {
            return Some(format!(
                "{scheduler} goes by the class (rt, be or idle) alone, and all exports of the queue have the same"
            ));
        }
        let (depth, nr_requests) = (q.driver().topology().depth, q.knob("nr_requests").ok()?);
        let waits = nr_requests.parse::<u32>().is_ok_and(|nr_requests| nr_requests > depth.into());
        (!waits).then(|| {
            format!(
                "with nr_requests={nr_requests} all requests fit the device's queue of {depth}, and none waits where \
                 {scheduler} could choose; set the knob nr_requests higher"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use blkmq::driver::spec;

    use super::*;

    fn share(export: &str, weight: u16, class: Class, level: u8) -> Share {
        Share { export: export.to_owned(), weight, priority: IoPriority { class, level } }
    }

    fn queue() -> Arc<RequestQueue> {
        let driver = spec::open("null,hw_queue_depth=8,poll_queues=0").unwrap();
        RequestQueue::builder(driver).scheduler("mq-deadline").build().unwrap()
    }

    fn set(q: &Arc<RequestQueue>, knob: &str, value: &str) {
        q.change_knob(knob, value).unwrap().wait().unwrap();
    }

    #[test]
    fn priorities_that_do_nothing_are_told_with_the_reason() {
        let both = Shares(vec![share("gold", 100, Class::RealTime, 0), share("bronze", 100, Class::Idle, 7)]);
        let q = queue();
        assert_eq!(both.warnings(&q), [""; 0]);
        set(&q, "nr_requests", "8");
        assert!(both.warnings(&q)[0].contains("with nr_requests=8 all requests fit the device's queue of 8"));
        set(&q, "nr_requests", "9");
        assert_eq!(both.warnings(&q), [""; 0]);
        set(&q, "scheduler", "none");
        let warnings = both.warnings(&q);
        let text = "the priority of gold (rt/0), bronze (idle) does nothing: there is no scheduler";
        assert!(warnings.len() == 1 && warnings[0].starts_with(text), "{warnings:?}");
    }

    #[test]
    fn priorities_of_one_class_and_weights_do_nothing() {
        let q = queue();
        let plain = Shares(vec![share("a", 100, Class::BestEffort, 4), share("b", 100, Class::BestEffort, 4)]);
        assert_eq!(plain.warnings(&q), [""; 0]);
        set(&q, "scheduler", "none");
        assert_eq!(plain.warnings(&q), [""; 0]);
        set(&q, "scheduler", "mq-deadline");
        let others = Shares(vec![share("a", 200, Class::BestEffort, 4), share("b", 100, Class::BestEffort, 0)]);
        let warnings = others.warnings(&q);
        assert!(warnings[0].starts_with("the priority of b (be/0) does nothing: mq-deadline goes by the class"));
        assert_eq!(
            warnings[1..],
            ["the weight of a (200) does nothing: no scheduler of this version shares by weight"]
        );
    }
}
