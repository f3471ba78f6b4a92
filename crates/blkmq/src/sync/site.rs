//! Orderings, fences and second looks by name, so that a model can take one away and show that it is needed.
//!
//! A product build compiles each of these to its argument. Under loom, shuttle and on virtual CPUs [`weaken`] names the
//! site whose protection the running model goes without.

use std::sync::atomic::compiler_fence;

use super::atomic::{Ordering, fence};

#[cfg(any(loom, shuttle, virtual_cpus))]
thread_local! {
    // All of them run the threads of a model on the thread that started it, and the test harness gives each test its own.
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

/// Where every read-modify-write is a full fence to the processor, and only the compiler must be kept from moving things across
/// it. Models and Miri know nothing of that.
const FENCES_BY_RMW: bool = cfg!(all(target_arch = "x86_64", not(any(loom, shuttle, virtual_cpus, miri))));

/// What was stored before this is stored before the read-modify-write that follows.
#[inline(always)]
pub fn before_rmw() {
    if FENCES_BY_RMW {
        // ORDERING: for the compiler alone; with that of `fence_after_rmw` it keeps the read-modify-write in between.
        compiler_fence(Ordering::SeqCst);
    }
}

/// A `SeqCst` fence between what came before [`before_rmw`] and what comes behind this, for a caller that has done a
/// read-modify-write in between; unless a model weakens `site`: then nothing. Free on x86-64, like Linux's
/// `smp_mb__after_atomic`.
#[inline(always)]
pub fn fence_after_rmw(site: &'static str) {
    if FENCES_BY_RMW {
        // ORDERING: for the compiler alone; the processor has fenced at the read-modify-write.
        compiler_fence(Ordering::SeqCst);
    } else {
        fence_at(site);
    }
}
