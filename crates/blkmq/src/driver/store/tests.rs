//! The store against the simplest model that could be right.

use std::ops::Range;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use proptest::prelude::*;

use crate::driver::tests::random_cases;

use super::{NR_SHARDS, PAGE_SIZE, Store};

const SECTOR: usize = 512;
/// Four pages of each shard.
const SECTORS: usize = 4 * NR_SHARDS * PAGE_SIZE / SECTOR;

#[derive(Debug, Clone)]
enum Action {
    Write { at: Range<usize>, fua: bool },
    Zero(Range<usize>),
    Flush,
    LosePower,
}

/// Ranges of sectors that meet often: near the pages of the first shards, or long.
fn range() -> impl Strategy<Value = Range<usize>> {
    let near = (0..4usize, 0..24usize).prop_map(|(row, sector)| row * NR_SHARDS * PAGE_SIZE / SECTOR + sector);
    (near, prop_oneof![8 => 1..20usize, 1 => 1..SECTORS]).prop_map(|(start, len)| start..(start + len).min(SECTORS))
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        8 => (range(), any::<bool>(), any::<bool>()).prop_map(|(at, a, b)| Action::Write { at, fua: a && b }),
        2 => range().prop_map(Action::Zero),
        1 => Just(Action::Flush),
        1 => Just(Action::LosePower),
    ]
}

fn bytes(sectors: &Range<usize>) -> Range<usize> {
    sectors.start * SECTOR..sectors.end * SECTOR
}

fn write(store: &Store, at: &Range<usize>, data: &[u8], fua: bool) {
    let mut rest = data;
    store
        .write((at.start * SECTOR) as u64, data.len(), fua, |to| {
            to.copy_from_slice(rest.split_off(..to.len()).unwrap())
        })
        .unwrap();
}

fn read(store: &Store, at: &Range<usize>) -> Vec<u8> {
    let mut data = Vec::new();
    store.read((at.start * SECTOR) as u64, at.len() * SECTOR, |from| data.extend_from_slice(from)).unwrap();
    data
}

fn zero(store: &Store, at: &Range<usize>) {
    store.zero((at.start * SECTOR) as u64, (at.len() * SECTOR) as u64).unwrap();
}

/// The stretches that the store tells of, from byte `start` on: their lengths, and whether they are holes.
fn extents(store: &Store, mut start: u64, end: u64) -> Vec<(u64, bool)> {
    let mut told: Vec<(u64, bool)> = Vec::new();
    while start < end {
        let found = store.extent(start, end - start);
        assert!((1..=end - start).contains(&found.bytes) && found.is_hole == found.is_zero);
        match told.last_mut() {
            Some((bytes, is_hole)) if *is_hole == found.is_hole => *bytes += found.bytes,
            _ => told.push((found.bytes, found.is_hole)),
        }
        start += found.bytes;
    }
    told
}

/// Red if a page is forgotten, or if a page that was given back is not forgotten.
#[test]
fn a_hole_is_where_no_page_is() {
    const PAGE: u64 = PAGE_SIZE as u64;
    let store = Store::new(None);
    let end = (SECTORS * SECTOR) as u64;
    assert_eq!(extents(&store, 0, end), [(end, true)]);
    assert_eq!(extents(&store, 100, 200), [(100, true)]);
    write(&store, &(16..17), &[1; SECTOR], false);
    write(&store, &(800..816), &[1; 16 * SECTOR], false);
    let rest = end - 102 * PAGE;
    assert_eq!(
        extents(&store, 0, end),
        [(2 * PAGE, true), (PAGE, false), (97 * PAGE, true), (2 * PAGE, false), (rest, true)]
    );
    assert_eq!(extents(&store, 2 * PAGE + 100, 3 * PAGE + 1), [(PAGE - 100, false), (1, true)]);
    zero(&store, &(16..24));
    zero(&store, &(800..804));
    assert_eq!(extents(&store, 0, end), [(100 * PAGE, true), (2 * PAGE, false), (rest, true)]);
    write(&store, &(0..SECTORS), &vec![1; SECTORS * SECTOR], false);
    assert_eq!(extents(&store, 0, end), [(end, false)]);
}

fn lose_and_restore(store: &Store) {
    store.lose_power();
    store.restore_power();
}

proptest! {
    #![proptest_config(random_cases(64))]

    /// A cache that never fills holds exactly what was written since the last flush.
    #[test]
    fn the_store_is_a_durable_and_a_current_array(actions in prop::collection::vec(action(), 1..60)) {
        let store = Store::new(Some(1 << 30));
        let mut durable = vec![0u8; SECTORS * SECTOR];
        let mut current = durable.clone();
        for (number, action) in actions.iter().enumerate() {
            match action {
                Action::Write { at, fua } => {
                    let data: Vec<u8> = bytes(at).map(|byte| (byte / SECTOR * 7 + number + 1) as u8).collect();
                    write(&store, at, &data, *fua);
                    current[bytes(at)].copy_from_slice(&data);
                    if *fua {
                        durable[bytes(at)].copy_from_slice(&data);
                    }
                }
                Action::Zero(at) => {
                    zero(&store, at);
                    current[bytes(at)].fill(0);
                    durable[bytes(at)].fill(0);
                }
                Action::Flush => {
                    store.flush().unwrap();
                    durable.copy_from_slice(&current);
                }
                Action::LosePower => {
                    lose_and_restore(&store);
                    current.copy_from_slice(&durable);
                }
            }
            prop_assert!(read(&store, &(0..SECTORS)) == current, "after action {number}, {action:?}");
        }
        lose_and_restore(&store);
        prop_assert!(read(&store, &(0..SECTORS)) == durable, "after the last power loss");
    }

    /// A cache of one page per shard writes back whenever it likes. After a power loss each page then holds, whole, one
    /// of the versions written since it was last durable.
    #[test]
    fn a_full_cache_loses_no_more_than_what_is_not_durable(actions in prop::collection::vec(action(), 1..120)) {
        const PAGES: usize = SECTORS * SECTOR / PAGE_SIZE;
        let store = Store::new(Some(1));
        // The versions that each page may hold after a power loss; the last one is the current one.
        let mut versions = vec![vec![0u8]; PAGES];
        for (number, action) in actions.iter().enumerate() {
            let version = (number + 1) as u8;
            match action {
                // Whole pages: a range stands for pages here, by the sectors' numbers.
                Action::Write { at, fua } => {
                    for page in pages(at) {
                        write(&store, &(page * 8..page * 8 + 8), &[version; PAGE_SIZE], *fua);
                        if *fua {
                            versions[page].clear();
                        }
                        versions[page].push(version);
                    }
                }
                Action::Zero(at) => {
                    for page in pages(at) {
                        zero(&store, &(page * 8..page * 8 + 8));
                        versions[page] = vec![0];
                    }
                }
                Action::Flush => {
                    store.flush().unwrap();
                    versions.iter_mut().for_each(|page| *page = page.split_off(page.len() - 1));
                }
                Action::LosePower => lose_and_restore(&store),
            }
            for (page, allowed) in versions.iter_mut().enumerate() {
                let data = read(&store, &(page * 8..page * 8 + 8));
                prop_assert!(data.iter().all(|&byte| byte == data[0]), "page {page} is torn after action {number}");
                if matches!(action, Action::LosePower) {
                    prop_assert!(allowed.contains(&data[0]), "page {page} holds {} of {allowed:?}", data[0]);
                    *allowed = vec![data[0]];
                }
                prop_assert_eq!(data[0], allowed[allowed.len() - 1], "page {} after action {}", page, number);
            }
        }
    }
}

/// The pages that a range of sectors names: up to 20 of them, all in the first shards.
fn pages(at: &Range<usize>) -> impl Iterator<Item = usize> {
    at.clone().take(20).map(|sector| sector % 4 * NR_SHARDS + sector / 4 % 3)
}

#[test]
fn a_discard_gives_memory_back_and_costs_nothing_where_nothing_is() {
    let store = Store::new(None);
    write(&store, &(0..80), &[1; 80 * SECTOR], false);
    let shown = |store: &Store| {
        let mut text = String::new();
        store.show(&mut text).unwrap();
        text
    };
    assert_eq!(shown(&store), "store: pages=10 dirty=0\n");
    store.zero(0, 1 << 50).unwrap();
    assert_eq!(shown(&store), "store: pages=0 dirty=0\n");
}

/// Red if a write takes the lock once per piece of a page instead of once per page.
#[test]
fn readers_and_power_losses_never_see_half_a_block() {
    let store = Store::new(Some(1));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for writer in 1..=2u8 {
            let (store, stop) = (&store, &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    // Fails while the power is off.
                    let _ = store.write(0, 2 * PAGE_SIZE, false, |to| to.fill(writer));
                }
            });
        }
        let torn = (0..20_000).find(|round| {
            if round % 100 == 0 {
                lose_and_restore(&store);
            }
            let data = read(&store, &(0..8));
            data.iter().any(|&byte| byte != data[0])
        });
        stop.store(true, Ordering::Relaxed);
        assert_eq!(torn, None, "half a block was read in this round");
    });
}

/// Red if `flush` does not look whether there is power.
#[test]
fn what_a_flush_acknowledged_survives_a_power_loss_in_its_midst() {
    const WRITERS: usize = 3;
    for round in 0..300u32 {
        let store = Store::new(Some(1 << 20));
        let start = Barrier::new(WRITERS + 1);
        let acknowledged: Vec<u8> = thread::scope(|scope| {
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| {
                    let (store, start) = (&store, &start);
                    // The last page that a flush reaches.
                    let page = writer * NR_SHARDS + NR_SHARDS - 1;
                    scope.spawn(move || {
                        start.wait();
                        let mut acknowledged = 0;
                        for version in 1..=255 {
                            let written =
                                store.write((page * PAGE_SIZE) as u64, PAGE_SIZE, false, |to| to.fill(version));
                            if written.and_then(|()| store.flush()).is_err() {
                                break;
                            }
                            acknowledged = version;
                        }
                        acknowledged
                    })
                })
                .collect();
            start.wait();
            (0..round % 60 * 50).for_each(|_| std::hint::spin_loop());
            store.lose_power();
            writers.into_iter().map(|writer| writer.join().unwrap()).collect()
        });
        store.restore_power();
        for (writer, acknowledged) in acknowledged.into_iter().enumerate() {
            let page = writer * NR_SHARDS + NR_SHARDS - 1;
            let found = read(&store, &(page * 8..page * 8 + 8))[0];
            assert!(found >= acknowledged, "round {round}: {found} found, {acknowledged} acknowledged");
        }
    }
}
