//! Which share of a queue each client should have: by weights, in the tree of groups, among the clients that ask for
//! something. This is what the scheduler gives in the long run; the history of the shares calls in.

use blkmq::{Class, IoPriority};
use blkmq_sched::{Description, Priorities};

/// How the weights of clients and groups compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Weighing {
    /// By their numbers.
    Plain,
    /// As for Linux's bfq: a level of priority changes a client's weight, and at the same number a client of level 4
    /// has 0.4 of a group's weight.
    Levels,
}

impl Weighing {
    /// How this scheduler weighs. Where it does not share, the parts are those that `fair` would give.
    pub(super) fn of(scheduler: &str) -> Self {
        match Description::named(scheduler) {
            Some(known) if known.priorities == Priorities::ClassAndLevel => Self::Levels,
            _ => Self::Plain,
        }
    }

    /// The weight of a client beside the other clients and groups of its group.
    fn of_client(self, weight: u16, level: u8) -> f64 {
        match self {
            Self::Plain => f64::from(weight),
            Self::Levels => f64::from(weight) * 10.0 * f64::from(8 - level.min(7)),
        }
    }

    /// The weight of a group beside the other clients and groups of its parent.
    fn of_group(self, weight: u16) -> f64 {
        match self {
            Self::Plain => f64::from(weight),
            Self::Levels => f64::from(weight) * 100.0,
        }
    }
}

/// What one client asks for in some time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Demand<'a> {
    /// The path of its group; empty for the root.
    pub(super) group: &'a str,
    pub(super) weight: u16,
    pub(super) priority: IoPriority,
    /// The sectors that it asks for. `None`: all that it can get.
    pub(super) sectors: Option<f64>,
}

/// What shares the sectors of a group: a client or a group in it.
#[derive(Debug, Clone, Copy)]
struct Child {
    class: Class,
    weight: f64,
    /// Infinite if it takes all that it can get.
    asked: f64,
    due: f64,
}

/// Gives the children their parts of `sectors`. Classes go one before the other. Within a class each child gets its
/// part by weight; one that asks for less gets what it asks for, and the others share the rest.
fn divide(children: &mut [Child], mut sectors: f64) {
    for class in [Class::RealTime, Class::BestEffort, Class::Idle] {
        let mut open: Vec<&mut Child> = children.iter_mut().filter(|child| child.class == class).collect();
        loop {
            let weights: f64 = open.iter().map(|child| child.weight).sum();
            let (all, mut content) = (sectors, 0);
            open.retain_mut(|child| {
                let asks_for_less = child.asked <= all * child.weight / weights;
                if asks_for_less {
                    child.due = child.asked;
                    sectors = (sectors - child.asked).max(0.0);
                    content += 1;
                }
                !asks_for_less
            });
            if open.is_empty() {
                break;
            }
            if content == 0 {
                open.iter_mut().for_each(|child| child.due = all * child.weight / weights);
                sectors = 0.0;
                break;
            }
        }
    }
}

/// The group that a path belongs to; empty for the root.
fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// How many of `sectors` each client should get. `groups`: paths and weights, each behind its parent.
pub(super) fn due(sectors: f64, groups: &[(String, u16)], clients: &[Demand<'_>], weighing: Weighing) -> Vec<f64> {
    debug_assert!(
        (0..groups.len()).all(|at| {
            let parent = parent(&groups[at].0);
            parent.is_empty() || groups[..at].iter().any(|(path, _)| path == parent)
        }),
        "each group stands behind its parent: {groups:?}"
    );
    let asked_of = |client: &Demand<'_>| client.sectors.unwrap_or(f64::INFINITY);
    // What is asked for in each group, whole subtrees included.
    let asked = |path: &str| -> f64 {
        let is_within =
            |group: &str| group == path || group.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'));
        clients.iter().filter(|client| is_within(client.group)).map(asked_of).sum()
    };
    let mut due = vec![0.0; clients.len()];
    let mut of_groups = vec![0.0; groups.len()];
    let nodes =
        std::iter::once(("", None)).chain(groups.iter().enumerate().map(|(index, (path, _))| (&**path, Some(index))));
    for (path, index) in nodes {
        let all = index.map_or(sectors, |index| of_groups[index]);
        let own: Vec<usize> = (0..clients.len()).filter(|&index| clients[index].group == path).collect();
        let inner: Vec<usize> = (0..groups.len()).filter(|&index| parent(&groups[index].0) == path).collect();
        let of_client = |&index: &usize| {
            let Demand { weight, priority, .. } = clients[index];
            let weight = weighing.of_client(weight, priority.level);
            Child { class: priority.class, weight, asked: asked_of(&clients[index]), due: 0.0 }
        };
        let of_group = |&index: &usize| {
            let (path, weight) = &groups[index];
            Child { class: Class::BestEffort, weight: weighing.of_group(*weight), asked: asked(path), due: 0.0 }
        };
        let mut children: Vec<Child> = own.iter().map(of_client).chain(inner.iter().map(of_group)).collect();
        divide(&mut children, all);
        let (mine, theirs) = children.split_at(own.len());
        own.iter().zip(mine).for_each(|(&index, child)| due[index] = child.due);
        inner.iter().zip(theirs).for_each(|(&index, child)| of_groups[index] = child.due);
    }
    due
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demand(group: &str, weight: u16, sectors: Option<f64>) -> Demand<'_> {
        Demand { group, weight, priority: IoPriority::default(), sectors }
    }

    fn groups(of: &[(&str, u16)]) -> Vec<(String, u16)> {
        of.iter().map(|&(path, weight)| (path.to_owned(), weight)).collect()
    }

    /// Red if weights do not count, if a group counts as the sum of its clients, or if under bfq a client in a group
    /// does not weigh 0.4 of a group of the same number beside it.
    #[test]
    fn what_takes_all_it_gets_is_divided_by_weight_group_by_group() {
        let of = |groups: &[(String, u16)], clients: &[Demand<'_>]| due(1400.0, groups, clients, Weighing::of("bfq"));
        assert_eq!(of(&[], &[demand("", 100, None), demand("", 300, None)]), [350.0, 1050.0]);
        let tree = groups(&[("gold", 300), ("gold/batch", 100), ("silver", 100), ("silver/unused", 1000)]);
        let gold = [demand("gold", 100, None), demand("gold/batch", 1, None), demand("silver", 7, None)];
        // gold gets 3 of 4 parts, of which its client gets 4 of 14 and its group 10.
        assert_eq!(of(&tree, &gold), [300.0, 750.0, 350.0]);
        // Two of the same group share what one of them had.
        let more = [
            demand("gold", 100, None),
            demand("gold/batch", 1, None),
            demand("silver", 7, None),
            demand("silver", 7, None),
        ];
        assert_eq!(of(&tree, &more), [300.0, 750.0, 175.0, 175.0]);
        let urgent = Demand { priority: IoPriority { class: Class::BestEffort, level: 0 }, ..demand("", 100, None) };
        let both = [urgent, demand("", 100, None)];
        assert_eq!(due(1200.0, &[], &both, Weighing::of("bfq")), [800.0, 400.0], "levels are 8 and 4 parts");
        assert_eq!(due(1200.0, &[], &both, Weighing::of("fair")), [600.0, 600.0], "it knows no levels");
        let beside = [demand("gold", 1, None), demand("", 300, None)];
        assert_eq!(due(1400.0, &tree[..1], &beside, Weighing::of("fair")), [700.0, 700.0]);
        assert_eq!(due(1400.0, &tree[..1], &beside, Weighing::of("bfq")), [1000.0, 400.0]);
    }

    /// Red if what one client does not ask for is lost, goes to one client alone, or leaves its group while others in
    /// the group take more.
    #[test]
    fn what_one_does_not_ask_for_goes_to_the_others_by_weight() {
        let clients = [demand("", 100, Some(10.0)), demand("", 100, None), demand("", 200, None)];
        assert_eq!(due(400.0, &[], &clients, Weighing::Plain), [10.0, 130.0, 260.0]);
        // It asks for more than its part as long as the first one asks for nothing.
        let clients = [demand("", 100, Some(0.0)), demand("", 100, Some(250.0)), demand("", 100, None)];
        assert_eq!(due(400.0, &[], &clients, Weighing::Plain), [0.0, 200.0, 200.0]);
        let tree = groups(&[("a", 100), ("b", 100)]);
        let clients = [demand("a", 100, Some(10.0)), demand("a", 100, None), demand("b", 100, None)];
        assert_eq!(due(400.0, &tree, &clients, Weighing::Plain), [10.0, 190.0, 200.0]);
        let clients = [demand("a", 100, Some(10.0)), demand("a", 100, Some(20.0)), demand("b", 100, None)];
        assert_eq!(due(400.0, &tree, &clients, Weighing::Plain), [10.0, 20.0, 370.0]);
    }

    /// Red if a class waits for another one that comes behind it.
    #[test]
    fn classes_go_one_before_the_other() {
        let of = |class, sectors| Demand { priority: IoPriority { class, level: 4 }, ..demand("", 100, sectors) };
        let clients = [of(Class::Idle, None), of(Class::BestEffort, None), of(Class::RealTime, Some(100.0))];
        assert_eq!(due(400.0, &[], &clients, Weighing::Plain), [0.0, 300.0, 100.0]);
        assert_eq!(due(400.0, &[], &[of(Class::Idle, None), of(Class::RealTime, None)], Weighing::Plain), [0.0, 400.0]);
    }

    /// Red if the parts of any clients in any tree do not make the whole, though somebody takes all that there is.
    #[test]
    fn the_parts_make_the_whole() {
        let tree = groups(&[("a", 1), ("a/b", 1000), ("a/b/c", 3), ("d", 77)]);
        let mut seed = 1_u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for _ in 0..1000 {
            let mut clients = vec![demand("a/b/c", 100, None)];
            for _ in 0..random(9) {
                let group = ["", "a", "a/b", "a/b/c", "d"][random(5) as usize];
                let sectors = (random(2) == 0).then(|| random(500) as f64);
                let class = [Class::RealTime, Class::BestEffort, Class::Idle][random(3) as usize];
                let priority = IoPriority { class, level: random(8) as u8 };
                clients.push(Demand { group, weight: random(1000) as u16 + 1, priority, sectors });
            }
            for weighing in [Weighing::Plain, Weighing::Levels] {
                let parts = due(1000.0, &tree, &clients, weighing);
                assert!((parts.iter().sum::<f64>() - 1000.0).abs() < 1e-6, "{clients:?}: {parts:?}");
                let is_content =
                    |(part, client): (&f64, &Demand<'_>)| client.sectors.is_none_or(|most| *part <= most + 1e-6);
                assert!(parts.iter().zip(&clients).all(is_content), "{clients:?}: {parts:?}");
            }
        }
    }
}
