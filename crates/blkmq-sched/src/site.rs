//! Steps by name, so that the torture rig can take one away and show that it finds out.

/// Whether to take the step called `site`. Always true in a product build. In the build of blkmq-sched-virtual, true
/// unless a world runs without this step.
#[inline(always)]
#[must_use]
pub(crate) fn unless_mutated(site: &'static str) -> bool {
    #[cfg(virtual_cpus)]
    return blkmq_sync::unless_mutated(site);
    #[cfg(not(virtual_cpus))]
    {
        let _ = site;
        true
    }
}
