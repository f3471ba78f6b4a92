//! The weights and priorities that the configuration gives the exports of a queue, and which of them have no effect.

use blkmq::{Class, DEFAULT_WEIGHT, IoPriority, RequestQueue};
use blkmq_sched::{Description, Priorities};

use crate::schedulers::bounds_for_shares;

/// The scheduler for weights where none is named.
pub(crate) const FAIR: &str = "fair";

/// The knob of bfq for the raising of weights.
const RAISES: &str = "iosched/low_latency";

/// The weight and priority that the configuration gives the clients of one export.
#[derive(Debug, Clone)]
pub(crate) struct Share {
    pub(crate) export: String,
    /// `None`: none is written.
    pub(crate) weight: Option<u16>,
    pub(crate) priority: IoPriority,
}

impl Share {
    fn has_priority(&self) -> bool {
        self.priority != IoPriority::default()
    }
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
    /// `are_placed`: clients or groups have weights beside those of exports.
    pub(crate) fn warnings(&self, q: &RequestQueue, are_placed: bool) -> Vec<String> {
        let prioritized = self.named(|share| share.has_priority().then(|| word(share.priority)));
        let priority = prioritized.zip(self.idle_priorities(q)).map(|both| does_nothing("priority", both));
        priority.into_iter().chain(self.of_weights(q, are_placed)).collect()
    }

    /// The same for weights alone: those that do nothing, or not what they say.
    pub(crate) fn of_weights(&self, q: &RequestQueue, are_placed: bool) -> Vec<String> {
        let weighted = self.named(|share| share.weight.map(|weight| weight.to_string()));
        let Some(why) = idle_weights(q) else {
            return if weighted.is_some() || are_placed { raised_weights(q).into_iter().collect() } else { Vec::new() };
        };
        let of_exports = weighted.map(|who| does_nothing("weight", (who, why.clone())));
        let of_clients = are_placed.then(|| format!("the weights of clients and groups do nothing: {why}"));
        of_exports.into_iter().chain(of_clients).collect()
    }

    /// Whether an export has a weight, or a priority other than the default.
    pub(crate) fn are_set(&self) -> bool {
        self.0.iter().any(|share| share.weight.is_some() || share.has_priority())
    }

    /// The exports that have a setting of their own, with the setting.
    fn named(&self, setting: impl Fn(&Share) -> Option<String>) -> Option<String> {
        let name = |share: &Share| Some(format!("{} ({})", share.export, setting(share)?));
        let names: Vec<_> = self.0.iter().filter_map(name).collect();
        (!names.is_empty()).then(|| names.join(", "))
    }

    /// Why priorities have no effect, if they have none.
    fn idle_priorities(&self, q: &RequestQueue) -> Option<String> {
        let Some(Description { name, priorities, .. }) = Description::named(q.scheduler()) else {
            return Some("there is no scheduler; set the knob scheduler to mq-deadline".to_owned());
        };
        let what = match priorities {
            Priorities::Ignored => {
                return Some(format!("{name} does not go by priority; set the knob scheduler to mq-deadline"));
            }
            Priorities::Class => "the class (rt, be or idle) alone",
            Priorities::ClassAndLevel => "the priority",
        };
        let is_alike = |share: &Share| {
            let (one, other) = (share.priority, self.0[0].priority);
            one.class == other.class && (*priorities == Priorities::Class || one.level == other.level)
        };
        if self.0.iter().all(is_alike) {
            return Some(format!("{name} goes by {what}, and all exports of the queue have the same"));
        }
        idle_scheduler(q)
    }
}

fn does_nothing(what: &str, (who, why): (String, String)) -> String {
    format!("the {what} of {who} does nothing: {why}")
}

/// What bfq makes of weights while it raises those of clients that begin.
fn raised_weights(q: &RequestQueue) -> Option<String> {
    let raises = q.knob(RAISES).is_ok_and(|value| value == "1");
    raises.then(|| {
        format!(
            "weights do not hold at the start of a load and after each pause: with {RAISES}=1 a client of weight \
             {DEFAULT_WEIGHT} counts 30 times for some seconds, and can get nearly all; set the knob {RAISES} to 0"
        )
    })
}

/// Why the scheduler has nothing to choose from, if it has not. One that is told what clients get bounds what the
/// device has in flight, and so has requests to choose from whatever fits the device.
fn idle_scheduler(q: &RequestQueue) -> Option<String> {
    if bounds_for_shares(q.scheduler()) {
        return None;
    }
    let (depth, nr_requests) = (q.driver().topology().depth, q.knob("nr_requests").ok()?);
    let waits = nr_requests.parse::<u32>().is_ok_and(|nr_requests| nr_requests > depth.into());
    (!waits).then(|| {
        format!(
            "with nr_requests={nr_requests} all requests fit the device's queue of {depth}, and none waits where \
             {} could choose; set the knob nr_requests higher",
            q.scheduler()
        )
    })
}

/// Why weights have no effect, if they have none.
pub(crate) fn idle_weights(q: &RequestQueue) -> Option<String> {
    let scheduler = Description::named(q.scheduler());
    if scheduler.is_some_and(|scheduler| scheduler.shares_by_weight) {
        return idle_scheduler(q);
    }
    let what = match scheduler {
        None => "there is no scheduler".to_owned(),
        Some(other) => format!("{} does not share by weight", other.name),
    };
    Some(format!("{what}; set the knob scheduler to {FAIR}"))
}

#[cfg(test)]
mod tests {
    use blkmq::driver::spec;
    use blkmq_sched::SCHEDULERS;

    use super::*;

    fn share(export: &str, weight: impl Into<Option<u16>>, class: Class, level: u8) -> Share {
        Share { export: export.to_owned(), weight: weight.into(), priority: IoPriority { class, level } }
    }

    fn queue() -> RequestQueue {
        let driver = spec::open("null,hw_queue_depth=8,poll_queues=0").unwrap();
        RequestQueue::builder(driver).scheduler("mq-deadline").build().unwrap()
    }

    fn set(q: &RequestQueue, knob: &str, value: &str) {
        q.change_knob(knob, value).unwrap().wait().unwrap();
    }

    #[test]
    fn priorities_that_do_nothing_are_told_with_the_reason() {
        let both = Shares(vec![share("gold", None, Class::RealTime, 0), share("bronze", None, Class::Idle, 7)]);
        let q = queue();
        assert_eq!(both.warnings(&q, false), [""; 0]);
        set(&q, "nr_requests", "8");
        assert!(both.warnings(&q, false)[0].contains("with nr_requests=8 all requests fit the device's queue of 8"));
        set(&q, "nr_requests", "9");
        assert_eq!(both.warnings(&q, false), [""; 0]);
        set(&q, "scheduler", "fair");
        set(&q, "nr_requests", "8");
        assert_eq!(both.warnings(&q, false), [""; 0], "a bound below the device's queue makes requests wait");
        set(&q, "scheduler", "none");
        let warnings = both.warnings(&q, false);
        let text = "the priority of gold (rt/0), bronze (idle) does nothing: there is no scheduler";
        assert!(warnings.len() == 1 && warnings[0].starts_with(text), "{warnings:?}");
    }

    /// Red before, for a scheduler that is added: its name was compared here, so users of one without classes were not
    /// told that priorities do nothing, and users of one that shares were told that weights do nothing.
    #[test]
    fn what_is_told_is_what_the_registry_says() {
        let both = Shares(vec![share("gold", 300, Class::RealTime, 0), share("bronze", 100, Class::Idle, 7)]);
        let q = queue();
        for known in SCHEDULERS {
            set(&q, "scheduler", known.name);
            let warns = |of: &str| both.warnings(&q, false).iter().any(|text| text.starts_with(of));
            assert_eq!(warns("the priority of"), known.priorities == Priorities::Ignored, "{}", known.name);
            assert_eq!(warns("the weight of"), !known.shares_by_weight, "{}", known.name);
        }
    }

    /// Red if nobody is told that bfq turns weights round with the knobs that it has at the start, or if it is told
    /// where there are no weights, or where the knob is off.
    #[test]
    fn weights_that_bfq_turns_round_are_told() {
        let q = queue();
        set(&q, "scheduler", "bfq");
        let plain = Shares(vec![share("a", None, Class::BestEffort, 4), share("b", None, Class::BestEffort, 4)]);
        let weighted = Shares(vec![share("a", 100, Class::BestEffort, 4), share("b", 300, Class::BestEffort, 4)]);
        assert_eq!(plain.warnings(&q, false), [""; 0]);
        for warnings in [plain.warnings(&q, true), weighted.warnings(&q, false), weighted.of_weights(&q, true)] {
            let [warning] = &warnings[..] else { panic!("{warnings:?}") };
            assert!(warning.contains("set the knob iosched/low_latency to 0"), "{warning}");
        }
        set(&q, "iosched/low_latency", "0");
        assert_eq!(weighted.warnings(&q, true), [""; 0]);
        set(&q, "scheduler", "mq-deadline");
        assert!(weighted.of_weights(&q, false)[0].contains("does nothing"));
    }

    #[test]
    fn priorities_of_one_class_and_weights_do_nothing() {
        let q = queue();
        let plain = Shares(vec![share("a", None, Class::BestEffort, 4), share("b", None, Class::BestEffort, 4)]);
        assert_eq!(plain.warnings(&q, false), [""; 0]);
        set(&q, "scheduler", "none");
        assert_eq!(plain.warnings(&q, false), [""; 0]);
        set(&q, "scheduler", "mq-deadline");
        let others = Shares(vec![share("a", 200, Class::BestEffort, 4), share("b", None, Class::BestEffort, 0)]);
        let warnings = others.warnings(&q, false);
        assert!(warnings[0].starts_with("the priority of b (be/0) does nothing: mq-deadline goes by the class"));
        assert_eq!(
            warnings[1..],
            ["the weight of a (200) does nothing: mq-deadline does not share by weight; set the knob scheduler to \
              fair"]
        );
    }
}
