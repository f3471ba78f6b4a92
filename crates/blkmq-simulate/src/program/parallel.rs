//! Work that the machine's cores do side by side.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

/// Maps the items, in their order. Once `stop` is set no further item is begun, and the results are those of the items
/// before.
pub(super) fn map<T: Sync, R: Send>(items: &[T], stop: &AtomicBool, map: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let work = || {
        // Relaxed: each number is taken once, and the results are behind a lock.
        while !stop.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(number) else { return };
            let result = map(item);
            results.lock().expect("no worker panics with it").insert(number, result);
        }
    };
    thread::scope(|scope| {
        (0..thread::available_parallelism().map_or(1, usize::from)).for_each(|_| _ = scope.spawn(work))
    });
    results.into_inner().expect("no worker panicked").into_values().collect()
}
