//! Orderings, fences and second looks by name, so that a model can take one away and show that it is needed.
//!
//! A product build compiles each of these to its argument. Under loom, shuttle and on virtual CPUs [`weaken`] names the
//! site whose protection the running model goes without.

use super::atomic::{Ordering, fence};

#[cfg(any(loom, shuttle, virtual_cpus))]
thread_local! {
    // All of them run the threads of a model on the thread that started it, and the test harness gives each test its
    // own.
    static WEAKENED: std::cell::Cell<Option<&'static str>> = const { std::cell::Cell::new(None) };
}

/// From now on the models started by this thread run without what `site` protects; `None` restores it.
#[cfg(any(loom, shuttle, virtual_cpus))]
pub fn weaken(site: Option<&'static str>) {
    WEAKENED.set(site);
}

/// Whether the step called `site` is to be taken. Always, outside a model that asked for its absence.
#[inline(always)]
#[must_use]
pub fn kept(site: &'static str) -> bool {
    #[cfg(any(loom, shuttle, virtual_cpus))]
    return WEAKENED.get() != Some(site);
    #[cfg(not(any(loom, shuttle, virtual_cpus)))]
    {
        let _ = site;
        true
    }
}

/// `order`, unless a model weakens `site`: then `Relaxed`.
#[inline(always)]
#[must_use]
pub fn order(site: &'static str, order: Ordering) -> Ordering {
    if kept(site) { order } else { Ordering::Relaxed }
}

/// A `SeqCst` fence, unless a model weakens `site`: then nothing.
#[inline(always)]
pub fn fence_at(site: &'static str) {
    if kept(site) {
        fence(Ordering::SeqCst);
    }
}
