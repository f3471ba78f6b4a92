//! The clients of a queue: a queue knows a client as long as a submitter serves it.

use crate::device::{Drive, open};
use blkmq::{Client, ClientId, GroupId, IoPriority, MAX_GROUP_DEPTH, QueueError, RequestQueue, Service, TenantError};

fn queue(device: &str) -> RequestQueue {
    let driver = open(device);
    RequestQueue::builder(driver).slots(8).build().expect("the queue is good")
}

fn refused<T: std::fmt::Debug>(result: Result<T, QueueError>) -> TenantError {
    match result {
        Err(QueueError::BadTenant(error)) => error,
        other => panic!("not refused for a client or group: {other:?}"),
    }
}

/// Red if a client that has left is kept. The list would grow by one at each join, and a join would take as long as the
/// list is.
#[test]
fn a_hundred_thousand_joins_and_leaves_do_not_grow_the_list_of_clients() {
    let q = queue("null,poll_queues=0");
    let join = |name: String| q.submitter(&Client::new(name)).expect("there is a place");
    let stay = [join("stays".to_owned()), join("stays".to_owned()), join("stays too".to_owned())];
    for number in 0..100_000 {
        drop(join(format!("client {number}")));
    }
    let dump = q.dump();
    assert!(dump.contains("\ngroups 0\nclients 2 places 3\nclient 0: \"stays\" weight 100 "), "{dump}");
    assert!(dump.contains(" group 0 submitters 2\nclient 1: \"stays too\" "), "{dump}");
    drop(stay);
    assert!(q.dump().contains("\nclients 0 places 3\nthread "), "{}", q.dump());
}

/// Red if the second submitter of a client changes weight or group, or loses its own priority.
#[test]
fn a_client_is_known_by_its_name_alone() {
    let q = queue("null,poll_queues=0");
    let group = q.tenants().add_group("a group", GroupId::ROOT, 7).expect("there is room");
    let first = q.submitter(&Client { weight: 200, group, ..Client::new("a") }).expect("there is a place");
    let low = IoPriority { level: 7, ..IoPriority::default() };
    let second = q.submitter(&Client { weight: 3, ..Client::new("a") }.with_priority(low)).expect("there is a place");
    let [info] = &q.tenants().clients()[..] else { panic!("one client: {:?}", q.tenants().clients()) };
    assert_eq!((&*info.name, info.weight, info.group, info.submitters), ("a", 200, group, 2));
    assert_eq!(q.tenants().client_of("a"), Ok(info.id));
    let [known] = &q.tenants().groups()[..] else { panic!("one group: {:?}", q.tenants().groups()) };
    assert_eq!((&*known.name, known.weight, known.parent, known.clients), ("a group", 7, GroupId::ROOT, 1));
    drop(first);
    assert_eq!(q.tenants().clients()[0].weight, 200);
    drop(second);
    assert_eq!((q.tenants().clients(), q.tenants().groups()[0].clients), (vec![], 0));
    assert_eq!(refused(q.tenants().client_of("a")), TenantError::UnknownClient("a".to_owned()));
}

/// Red if a weight, a name, a group or a client that cannot be is accepted, or if something changes then.
#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let q = queue("null,poll_queues=0");
    let group = q.tenants().add_group("g", GroupId::ROOT, 100).expect("there is room");
    let submitter = q.submitter(&Client::new("c")).expect("there is a place");
    let client = q.tenants().client_of("c").expect("it is there");
    let before = (q.tenants().clients(), q.tenants().groups());
    for weight in [0, 1001, u16::MAX] {
        let of = |name: &str| TenantError::Weight { name: name.to_owned(), weight };
        assert_eq!(refused(q.tenants().add_group("h", GroupId::ROOT, weight)), of("h"));
        assert_eq!(refused(q.tenants().set_group_weight(group, weight)), of("g"));
        assert_eq!(refused(q.tenants().set_client_weight(client, weight)), of("c"));
        assert_eq!(refused(q.submitter(&Client { weight, ..Client::new("d") })), of("d"));
    }
    assert_eq!(of_weight(1001), "the weight of \"h\": 1001 is not within 1..1000");
    assert_eq!(refused(q.tenants().add_group("g", group, 100)), TenantError::GroupExists("g".to_owned()));
    let gone = GroupId::new(3, 1);
    assert_eq!(refused(q.tenants().add_group("h", gone, 100)), TenantError::NoGroup(gone));
    assert_eq!(refused(q.tenants().move_client(client, gone)), TenantError::NoGroup(gone));
    assert_eq!(refused(q.submitter(&Client { group: gone, ..Client::new("d") })), TenantError::NoGroup(gone));
    assert_eq!(refused(q.tenants().remove_group(gone)), TenantError::NoGroup(gone));
    assert_eq!(refused(q.tenants().remove_group(GroupId::ROOT)), TenantError::Root);
    assert_eq!(refused(q.tenants().set_group_weight(GroupId::ROOT, 5)), TenantError::Root);
    let nobody = ClientId::new(9, 9);
    assert_eq!(refused(q.tenants().move_client(nobody, group)), TenantError::NoClient(nobody));
    assert_eq!(refused(q.tenants().set_client_weight(nobody, 5)), TenantError::NoClient(nobody));
    assert_eq!(refused(q.tenants().group_of("h")), TenantError::UnknownGroup("h".to_owned()));
    for name in ["", "a\nb", &"x".repeat(4097)] {
        assert!(
            matches!(refused(q.tenants().add_group(name, GroupId::ROOT, 100)), TenantError::BadGroupName(_)),
            "{name:?}"
        );
    }
    assert_eq!((q.tenants().clients(), q.tenants().groups()), before);
    drop(submitter);
}

fn of_weight(weight: u16) -> String {
    QueueError::from(TenantError::Weight { name: "h".to_owned(), weight }).to_string()
}

/// Red if the number or the depth of groups has no bound, or if a place of a group that was removed is not given again,
/// or the next group there has the old id.
#[test]
fn groups_are_bounded_and_their_places_are_given_again() {
    let q = queue("null,poll_queues=0");
    let mut parent = GroupId::ROOT;
    for depth in 0..MAX_GROUP_DEPTH {
        parent = q.tenants().add_group(&format!("depth {depth}"), parent, 100).expect("it is not too deep");
    }
    let too_deep = TenantError::TooDeep { name: "deeper".to_owned(), most: MAX_GROUP_DEPTH };
    assert_eq!(refused(q.tenants().add_group("deeper", parent, 100)), too_deep);
    let groups: Vec<_> = (MAX_GROUP_DEPTH..GroupId::PLACES - 1)
        .map(|number| q.tenants().add_group(&number.to_string(), GroupId::ROOT, 100).expect("there is room"))
        .collect();
    let most = GroupId::PLACES - 1;
    assert_eq!(refused(q.tenants().add_group("more", GroupId::ROOT, 100)), TenantError::TooManyGroups { most });
    q.tenants().remove_group(groups[5]).expect("it is there");
    let again = q.tenants().add_group("more", GroupId::ROOT, 100).expect("there is room again");
    assert!(again.place() == groups[5].place() && again != groups[5]);
    assert_eq!(refused(q.tenants().remove_group(groups[5])), TenantError::NoGroup(groups[5]));
}

/// Red if what belongs to a group that is removed is lost, or does not move to the parent.
#[test]
fn what_belongs_to_a_group_that_is_removed_moves_to_its_parent() {
    let q = queue("null,poll_queues=0");
    let outer = q.tenants().add_group("outer", GroupId::ROOT, 100).expect("there is room");
    let middle = q.tenants().add_group("middle", outer, 200).expect("there is room");
    let inner = q.tenants().add_group("inner", middle, 300).expect("there is room");
    let _submitter = q.submitter(&Client { group: middle, ..Client::new("c") }).expect("there is a place");
    q.tenants().remove_group(middle).expect("it is there");
    let groups: Vec<_> =
        q.tenants().groups().into_iter().map(|group| (group.id, group.parent, group.clients)).collect();
    assert_eq!(groups, [(outer, GroupId::ROOT, 1), (inner, outer, 0)]);
    assert_eq!(q.tenants().clients()[0].group, outer);
    q.tenants().remove_group(outer).expect("it is there");
    assert_eq!((q.tenants().groups()[0].parent, q.tenants().clients()[0].group), (GroupId::ROOT, GroupId::ROOT));
}

/// Red if an operation is counted for another client, twice, or not; or if what a submitter did is forgotten when it
/// leaves while its client stays.
#[test]
fn what_was_done_for_a_client_is_summed_over_its_submitters() {
    use blkmq::{Bio, Buffer};
    let q = queue("null,irqmode=2,completion_nsec=1ms,memory_backed=0,poll_queues=0");
    let join = |name| q.submitter(&Client::new(name)).expect("there is a place");
    let (mut first, mut second, mut other) = (join("a"), join("a"), join("b"));
    let of = |name| q.tenants().clients().into_iter().find(|client| client.name == name).expect("it is there");
    let service = |operations, sectors| Service { operations, sectors };
    for (submitter, sectors) in [(&mut first, 8), (&mut second, 16), (&mut other, 24)] {
        submitter.submit(Bio::read(0, Buffer::zeroed(sectors * 512))).expect("there is a slot");
        submitter.submit_now(Bio::write(4096, Buffer::zeroed(sectors * 1024)));
    }
    let client = of("a");
    assert_eq!((client.outstanding, client.with_driver, client.reads), (4, 4, service(0, 0)));
    for submitter in [&mut first, &mut second, &mut other] {
        submitter.finish();
    }
    drop(first);
    let client = of("a");
    assert_eq!((client.outstanding, client.with_driver, client.submitters), (0, 0, 1));
    assert_eq!((client.reads, client.others), (service(2, 24), service(2, 48)));
    assert_eq!((of("b").reads, of("b").others), (service(1, 24), service(1, 48)));
    let again = join("a");
    assert_eq!(of("a").reads, service(2, 24));
    drop((second, again));
    assert_eq!((of("b").submitters, q.tenants().clients().len()), (1, 1));
    let _new = join("a");
    assert_eq!(of("a").reads, service(0, 0), "a client that comes anew begins anew");
}

/// Red if names of clients or groups may have characters that cannot be seen, or that turn the line in which they are
/// shown around, as U+202E does; or if the refusal repeats them as they are.
#[test]
fn a_name_that_reads_otherwise_than_it_is_is_refused() {
    let q = queue("null,poll_queues=0");
    for hidden in ["gold\u{202e}reviled", "gold\u{200b}", "\u{feff}gold", "go\u{ad}ld", "gold\u{2028}", "gold\u{1b}[2J"]
    {
        let client = q.submitter(&Client::new(hidden)).map(drop).expect_err(hidden);
        let group = q.tenants().add_group(hidden, GroupId::ROOT, 100).expect_err(hidden);
        for error in [&client, &group].map(ToString::to_string) {
            assert!(error.contains("gold") || error.contains("go\\u{ad}ld"), "{error:?}");
            assert!(error.contains("cannot be seen") && !error.contains(blkmq::is_hidden), "{error:?}");
        }
        assert_eq!(refused(Err::<(), _>(client)), TenantError::BadClientName(hidden.to_owned()));
        assert_eq!(refused(Err::<(), _>(group)), TenantError::BadGroupName(hidden.to_owned()));
    }
    assert_eq!((q.tenants().clients(), q.tenants().groups()), (vec![], vec![]));
    let known = q.submitter(&Client::new("g\u{f6}ld \u{5d0}\u{6f22}")).expect("these are letters");
    assert_eq!(q.tenants().clients().len(), 1);
    drop(known);
}
