//! Which client a connection is, and what becomes of it when that changes.

use blkmq::Notify;
use blkmq::driver::spec;
use blkmq::event::EventFd;

use super::*;
use crate::clients::{Clients, FrontEnd, Source};

fn queue() -> RequestQueue {
    RequestQueue::builder(spec::open("null").expect("the spec is good")).build().expect("the queue is good")
}

/// Connections from anywhere.
struct Joiner(Clients);

impl Joiner {
    fn enter(&self, source: Source) -> Arc<Entry> {
        let bell = Arc::new(EventFd::new().expect("there is a descriptor"));
        self.0.join(FrontEnd::Nbd, "a test".into(), source, bell).expect("there is a place")
    }

    fn own(&self, front_end: FrontEnd, name: &str) -> Arc<Entry> {
        self.0.enter(front_end, name.into(), vec![Arc::new(EventFd::new().expect("there is a descriptor"))])
    }

    fn user(&self, user: u32) -> Arc<Entry> {
        self.enter(Source::User(user))
    }

    fn address(&self, text: &str) -> Arc<Entry> {
        self.enter(Source::of_address(text.parse().expect("it is an address")))
    }

    fn certified(&self, name: &str) -> Arc<Entry> {
        let entry = self.address("10.0.0.7");
        entry.identify(name.to_owned());
        entry
    }
}

fn joiner() -> Joiner {
    Joiner(Clients::new(100))
}

fn layout(groups: &[(&str, u16)], rules: Vec<Rule>) -> Layout {
    let groups = groups.iter().map(|&(path, weight)| (path.to_owned(), weight)).collect();
    Layout { groups, rules, ..Layout::default() }
}

fn own(text: &str) -> Option<String> {
    Some(text.to_owned())
}

/// The clients of a queue with their weights, groups and connections, by name.
fn shown(placement: &Placement) -> Vec<String> {
    let q = placement.queue();
    let path =
        |id| q.tenants().groups().into_iter().find(|group| group.id == id).map_or_else(String::new, |group| group.name);
    let show = |client: blkmq::ClientInfo| {
        format!("{} {} '{}' x{}", client.name, client.weight, path(client.group), client.submitters)
    };
    let mut shown: Vec<_> = q.tenants().clients().into_iter().map(show).collect();
    shown.sort();
    shown
}

impl Placement {
    fn take(&self, entry: &Arc<Entry>, export: &str) -> Submitter {
        self.join(entry, export, 100, IoPriority::default()).expect("there is room")
    }
}

/// Red if connections of one client are told apart, or those of several are not: by certificate, user, address, export.
#[test]
#[cfg_attr(miri, ignore = "there are no eventfds")]
fn connections_of_one_client_are_one() {
    let (placement, joiner) = (Placement::new(queue()), joiner());
    let entries = [
        (joiner.certified("gold"), "disk"),
        (joiner.certified("gold"), "disk"),
        (joiner.certified("gold"), ""),
        (joiner.user(1000), ""),
        (joiner.user(1000), ""),
        (joiner.user(1001), ""),
        (joiner.address("10.0.0.7"), "disk"),
        (joiner.address("::ffff:10.0.0.7"), "disk"),
        (joiner.address("2001:db8::7"), "disk"),
        (joiner.user(u32::MAX), "disk"),
        (joiner.own(FrontEnd::Ublk, "ublk0"), "disk"),
        (joiner.own(FrontEnd::VhostUser, "/run/vm"), "disk"),
    ];
    let _submitters: Vec<_> = entries.iter().map(|(entry, export)| placement.take(entry, export)).collect();
    let expected = [
        "/run/vm@disk 100 '' x1",
        "10.0.0.7@disk 100 '' x2",
        "2001:db8::7@disk 100 '' x1",
        "gold@default 100 '' x1",
        "gold@disk 100 '' x2",
        "ublk0@disk 100 '' x1",
        "unknown@disk 100 '' x1",
        "user:1000@default 100 '' x2",
        "user:1001@default 100 '' x1",
    ];
    assert_eq!(shown(&placement), expected);
    assert_eq!(entries[0].0.client().map(String::as_str), Some("gold@disk"));
}

/// Red if another rule than the first one that is for a connection counts, or if one counts that is not for it.
#[test]
#[cfg_attr(miri, ignore = "there are no eventfds")]
fn the_first_rule_that_is_for_a_connection_counts() {
    let (placement, joiner) = (Placement::new(queue()), joiner());
    let rules = vec![
        Rule {
            certificate: own("gold"),
            export: own("disk"),
            name: own("a"),
            weight: Some(7),
            group: own("g/h"),
            ..Rule::default()
        },
        Rule { address: "10.0.0.0/8".parse().ok(), weight: Some(9), ..Rule::default() },
        Rule { user: Some(3), group: own("g"), ..Rule::default() },
        Rule { name: own("rest"), ..Rule::default() },
    ];
    placement.load(&layout(&[("g", 300), ("g/h", 5)], rules)).unwrap();
    let entries = [
        (joiner.certified("gold"), "disk", 1),
        (joiner.certified("gold"), "other", 2),
        (joiner.certified("silver"), "disk", 3),
        (joiner.user(3), "disk", 4),
        (joiner.user(4), "disk", 5),
        (joiner.address("11.0.0.1"), "other", 6),
    ];
    let join = |(entry, export, weight): &(Arc<Entry>, &str, u16)| {
        placement.join(entry, export, *weight, IoPriority::default()).expect("there is room")
    };
    let _submitters: Vec<_> = entries.iter().map(join).collect();
    let expected =
        ["a 7 'g/h' x1", "gold@other 9 '' x1", "rest 5 '' x2", "silver@disk 9 '' x1", "user:3@disk 4 'g' x1"];
    assert_eq!(shown(&placement), expected, "the two of 'rest' are one client, and the first one's weight counts");
}

/// Red if what was changed by hand is lost when the client comes again, or outlives a load.
#[test]
#[cfg_attr(miri, ignore = "there are no eventfds")]
fn what_is_changed_by_hand_counts_until_the_next_load() {
    let (placement, joiner) = (Placement::new(queue()), joiner());
    let rules = vec![Rule { user: Some(1), weight: Some(7), group: own("g"), ..Rule::default() }];
    let layout = layout(&[("g", 300)], rules);
    placement.load(&layout).unwrap();
    let one = joiner.user(1);
    let first = placement.take(&one, "");
    placement.add_group("h").unwrap();
    placement.set_client_weight("user:1@default", 500).unwrap();
    placement.move_client("user:1@default", "h").unwrap();
    placement.set_group_weight("g", 30).unwrap();
    assert_eq!(shown(&placement), ["user:1@default 500 'h' x1"]);
    drop(first);
    assert!(shown(&placement).is_empty());
    let _again = placement.take(&one, "");
    assert_eq!(shown(&placement), ["user:1@default 500 'h' x1"], "it is known by its name");
    placement.move_client("user:1@default", "").unwrap();
    assert_eq!(shown(&placement), ["user:1@default 500 '' x1"]);
    placement.load(&layout).unwrap();
    assert_eq!(shown(&placement), ["user:1@default 7 'g' x1"]);
    let groups: Vec<_> =
        placement.queue().tenants().groups().into_iter().map(|group| (group.name, group.weight)).collect();
    assert_eq!(groups, [("g".to_owned(), 300)], "the group that was added by hand is gone");
}

/// Red if a load leaves a connected client where it was, removes groups in the wrong order, or gives a client another
/// name than that under which the queue knows it.
#[test]
#[cfg_attr(miri, ignore = "there are no eventfds")]
fn a_load_places_those_that_are_connected_anew() {
    let (placement, joiner) = (Placement::new(queue()), joiner());
    let in_group = |group: &str| vec![Rule { user: Some(1), group: own(group), ..Rule::default() }];
    placement.load(&layout(&[("a", 100), ("a/b", 100)], in_group("a/b"))).unwrap();
    let (one, other) = (joiner.user(1), joiner.user(2));
    let _submitters = [placement.take(&one, ""), placement.take(&other, "x")];
    assert_eq!(shown(&placement), ["user:1@default 100 'a/b' x1", "user:2@x 100 '' x1"]);
    let named = vec![Rule { user: Some(1), name: own("n"), weight: Some(9), group: own("c"), ..Rule::default() }];
    let weights = [("x".to_owned(), 55)].into();
    placement.load(&Layout { weights, ..layout(&[("c", 7)], named) }).unwrap();
    assert_eq!(shown(&placement), ["user:1@default 9 'c' x1", "user:2@x 55 '' x1"]);
    let again = joiner.user(1);
    let _another = placement.take(&again, "");
    assert_eq!(shown(&placement), ["n 9 'c' x1", "user:1@default 9 'c' x1", "user:2@x 55 '' x1"]);
    placement.load(&Layout::default()).unwrap();
    assert_eq!(shown(&placement), ["n 100 '' x1", "user:1@default 100 '' x1", "user:2@x 100 '' x1"]);
    assert!(placement.queue().tenants().groups().is_empty() && !placement.sets_weights());
}

/// Red if a group goes in which something is, or to which a rule leads.
#[test]
#[cfg_attr(miri, ignore = "there are no eventfds")]
fn a_group_stays_while_something_is_in_it_or_leads_to_it() {
    let (placement, joiner) = (Placement::new(queue()), joiner());
    placement.load(&layout(&[("g", 1)], vec![Rule { user: Some(9), group: own("g"), ..Rule::default() }])).unwrap();
    let error = |result: Result<(), PlacementError>| result.unwrap_err().to_string();
    assert_eq!(
        error(placement.remove_group("g")),
        "a rule places clients in the group 'g'; take it out of the rules first"
    );
    placement.add_group("a").unwrap();
    placement.add_group("a/b").unwrap();
    placement.add_group("a").unwrap();
    let entry = joiner.user(1);
    let submitter = placement.take(&entry, "");
    placement.move_client("user:1@default", "a").unwrap();
    let within = error(placement.remove_group("a"));
    assert_eq!(within, "the group 'a' has a/b, user:1@default in it; move clients and remove groups first");
    placement.remove_group("a/b").unwrap();
    drop(submitter);
    placement.remove_group("a").unwrap();
    let _again = placement.take(&entry, "");
    assert_eq!(shown(&placement), ["user:1@default 100 '' x1"], "it had been moved into the group that is gone");
    assert_eq!(error(placement.remove_group("a")), "there is no group \"a\"");
}

/// Red if something that cannot be is accepted, or if a bound is off by one, or if something has changed then.
#[test]
#[cfg_attr(miri, ignore = "there are no eventfds")]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let (placement, joiner) = (Placement::new(queue()), joiner());
    let entry = joiner.user(1);
    let _submitter = placement.take(&entry, "");
    let client = "user:1@default";
    let error = |result: Result<(), PlacementError>| result.unwrap_err().to_string();
    assert_eq!(error(placement.set_client_weight("nobody", 7)), "no client \"nobody\" is there");
    assert_eq!(error(placement.move_client(client, "g")), "there is no group \"g\"");
    assert!(error(placement.set_client_weight(client, 1001)).ends_with("1001 is not within 1..1000"));
    assert_eq!(error(placement.add_group("g/h")), "there is no group \"g\"");
    assert!(error(placement.add_group("a b")).starts_with("'a b' cannot be a group; accepted: "));
    let rule = |group| Rule { group, ..Rule::default() };
    for (bad, expected) in [
        (
            layout(&[("a/b", 1), ("a", 1)], vec![]),
            "the group 'a/b' is there twice, or its parent does not stand before it",
        ),
        (layout(&[("a", 1), ("a", 1)], vec![]), "the group 'a' is there twice"),
        (layout(&[("a", 0)], vec![]), "the weight 0 is out of range; give a number from 1 to 1000"),
        (layout(&[("a", 1)], vec![rule(own("b"))]), "a rule names the group 'b', which is not there"),
        (layout(&[], vec![Rule { weight: Some(1001), ..Rule::default() }]), "the weight 1001 is out of range"),
        (layout(&[], vec![Rule::default(); MAX_RULES + 1]), "there can be at most 1024 rules"),
    ] {
        assert!(error(placement.load(&bad)).starts_with(expected), "{bad:?}: {}", error(placement.load(&bad)));
    }
    assert_eq!(
        (shown(&placement), placement.queue().tenants().groups()),
        (vec![format!("{client} 100 '' x1")], vec![])
    );
    (0..MAX_GROUPS).for_each(|number| placement.add_group(&number.to_string()).unwrap());
    assert_eq!(error(placement.add_group("more")), "the queue has 256 groups, and there can be no more");
}

/// Red if a rule can give clients a name that reads otherwise than it is, or if something changes then.
#[test]
#[cfg_attr(miri, ignore = "there are no eventfds")]
fn a_rule_gives_no_name_that_reads_otherwise_than_it_is() {
    let placement = Placement::new(queue());
    let rule = Rule { name: own("gold\u{202e}reviled"), ..Rule::default() };
    let error = placement.load(&layout(&[("a", 7)], vec![rule])).unwrap_err();
    assert_eq!(error, PlacementError::Name("gold\u{202e}reviled".to_owned()));
    assert!(error.to_string().starts_with("a rule names clients \"gold\\u{202e}reviled\"; a name has no "), "{error}");
    assert_eq!(placement.queue().tenants().groups(), vec![]);
}

/// Takes the submitter's place in its queue away as soon as something happens in the queue.
#[derive(Debug)]
struct LeavesWhenTold(Mutex<Option<Submitter>>);

impl Notify for LeavesWhenTold {
    fn notify(&self) {
        let submitter = self.0.lock().expect("nothing panics with it").take();
        drop(submitter);
    }
}

/// A thread that closes the last connection of a client takes the client from its queue, and does not ask the
/// placement.
///
/// 1. A load finds the client in the queue, and sets its weight.
/// 2. The client leaves: here, because a change of weights is told.
/// 3. The load moves a client that is not there.
///
/// Red if the load then ends half done, with an error that says that nothing has changed.
#[test]
#[cfg_attr(miri, ignore = "there are no eventfds")]
fn a_client_that_leaves_meanwhile_does_not_stop_a_load() {
    let (placement, joiner) = (Placement::new(queue()), joiner());
    placement.load(&layout(&[("old", 100)], vec![])).unwrap();
    let entries = [1, 2].map(|user| joiner.user(user));
    let [leaves, mut stays] = [0, 1].map(|at| placement.take(&entries[at], ""));
    stays.set_notify(Some(Arc::new(LeavesWhenTold(Mutex::new(Some(leaves))))));
    let rule = Rule { weight: Some(7), group: own("new"), ..Rule::default() };
    assert_eq!(placement.load(&layout(&[("new", 100)], vec![rule])), Ok(()));
    stays.set_notify(None);
    assert_eq!(shown(&placement), ["user:2@default 7 'new' x1"]);
    let groups: Vec<_> = placement.queue().tenants().groups().into_iter().map(|group| group.name).collect();
    assert_eq!(groups, ["new"]);
}

/// Red if what was said of a client counts after it was taken back: it takes one of the places for changed clients, and
/// the placement seems to set weights.
#[test]
#[cfg_attr(miri, ignore = "there are no eventfds")]
fn a_client_whose_group_is_removed_is_changed_no_longer() {
    let (placement, joiner) = (Placement::new(queue()), joiner());
    for user in 0..=MAX_CHANGED as u32 {
        let entry = joiner.user(user);
        let submitter = placement.take(&entry, "");
        placement.add_group("g").unwrap();
        let client = format!("user:{user}@default");
        placement.move_client(&client, "g").unwrap_or_else(|error| panic!("{user}: {error}"));
        drop(submitter);
        placement.remove_group("g").unwrap();
        joiner.0.leave(entry.number);
    }
    assert!(!placement.sets_weights(), "nothing is left");
}
