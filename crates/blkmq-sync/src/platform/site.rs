//! Orderings, fences and second looks by name, so that a model can take one away and show that the code needs it.
//!
//! A product build compiles each of these functions to its argument. Under loom and on virtual CPUs, [`weaken`]
//! names a site, and the running model does without what that site protects.

use super::atomic::{Ordering, fence};

#[cfg(any(loom, virtual_cpus))]
thread_local! {
    // loom and the virtual CPUs run the threads of a model on the thread that started the model, and the test harness
    // gives each test its own thread.
    static WEAKENED: std::cell::Cell<Option<&'static str>> = const { std::cell::Cell::new(None) };
}

/// From now on the models that this thread starts run without what `site` protects. `None` restores it.
#[cfg(any(loom, virtual_cpus))]
pub fn weaken(site: Option<&'static str>) {
    WEAKENED.set(site);
}

/// Whether to take the step called `site`. True unless the running model does without the step.
#[inline(always)]
#[must_use]
pub fn unless_mutated(site: &'static str) -> bool {
    #[cfg(any(loom, virtual_cpus))]
    return WEAKENED.get() != Some(site);
    #[cfg(not(any(loom, virtual_cpus)))]
    {
        let _ = site;
        true
    }
}

/// `product`, or `explored` where interleavings are explored: under a model checker, and on virtual CPUs without clocks
/// of their own. For a number that says how often something happens, and not what may happen.
#[inline(always)]
#[must_use]
pub fn unless_explored<T>(product: T, explored: T) -> T {
    #[cfg(virtual_cpus)]
    return if blkmq_vcpu::is_timed() { product } else { explored };
    #[cfg(not(virtual_cpus))]
    if cfg!(loom) { explored } else { product }
}

/// Returns `order`, or `Relaxed` if the running model weakens `site`.
#[inline(always)]
#[must_use]
pub fn order(site: &'static str, order: Ordering) -> Ordering {
    if unless_mutated(site) { order } else { Ordering::Relaxed }
}

/// A `SeqCst` fence, or nothing if the running model weakens `site`.
#[inline(always)]
pub fn fence_at(site: &'static str) {
    if unless_mutated(site) {
        fence(Ordering::SeqCst);
    }
}
