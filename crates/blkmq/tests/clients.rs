//! The clients of a queue: a queue knows a client as long as a submitter serves it.

use blkmq::driver::spec;
use blkmq::{Client, RequestQueue};

/// Red if a client that has left is kept. The list would grow by one at each join, and a join would take as long as the
/// list is.
#[test]
fn a_hundred_thousand_joins_and_leaves_do_not_grow_the_list_of_clients() {
    let driver = spec::open("null,poll_queues=0").expect("the spec is good");
    let q = RequestQueue::builder(driver).slots(1).build().expect("the queue is good");
    let join = |name: String| q.submitter(&Client::new(name)).expect("there is a place");
    let stay = [join("stays".to_owned()), join("stays".to_owned()), join("stays too".to_owned())];
    for number in 0..100_000 {
        drop(join(format!("client {number}")));
    }
    let dump = q.dump();
    assert!(dump.contains("\nclients 2 places 3\nclient 0: \"stays\" weight 100 "), "{dump}");
    assert!(dump.contains(" group 0 submitters 2\nclient 1: \"stays too\" "), "{dump}");
    drop(stay);
    assert!(q.dump().contains("\nclients 0 places 3\nmember "), "{}", q.dump());
}
