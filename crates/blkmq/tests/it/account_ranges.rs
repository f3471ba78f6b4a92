//! Named ranges of sectors with statistics of their own.

use crate::device::open;
use blkmq::{RequestQueue, SectorRange};

fn range(name: &str, first: u64, nr_sectors: u64) -> SectorRange {
    SectorRange { name: name.to_owned(), first, nr_sectors }
}

#[test]
fn bad_ranges_are_refused_in_and_out() {
    let driver = || open("null,size=1M");
    let behind = RequestQueue::builder(driver()).ranges(vec![range("p1", 2000, 49)]).build();
    let error = behind.expect_err("the range is too long").to_string();
    assert_eq!(error, "range 'p1': 2000+49 ends behind the device's 2048 sectors");
    let q = RequestQueue::builder(driver()).ranges(vec![range("p1", 0, 2048)]).build().expect("the range fits");
    let overlap = q.change_ranges(vec![range("a", 0, 10), range("b", 9, 1)]);
    assert_eq!(overlap.err().map(|error| error.to_string()), Some("range 'b' overlaps range 'a'".to_owned()));
    assert_eq!(q.range_stats().len(), 1, "what was there stays");
}
