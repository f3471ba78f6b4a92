//! What a scheduler keeps, told to a test rig that counts which cache lines move between the threads that reach it.
//!
//! A product build compiles everything here to nothing. In the build of blkmq-sched-virtual it is that of blkmq-sync.

#[cfg(virtual_cpus)]
pub(crate) use blkmq_sync::{Area, changes, reads};
#[cfg(not(virtual_cpus))]
pub(crate) use silent::{Area, changes, reads};

#[cfg(not(virtual_cpus))]
mod silent {
    use alloc::vec::Vec;

    /// `value`, which the caller reads.
    #[inline(always)]
    pub(crate) const fn reads<T: ?Sized>(value: &T) -> &T {
        value
    }

    /// `value`, which the caller may change.
    #[inline(always)]
    pub(crate) const fn changes<T: ?Sized>(value: &mut T) -> &mut T {
        value
    }

    /// The name of memory. It lies beside what owns the memory.
    #[derive(Debug, Clone, Default)]
    pub(crate) struct Area;

    impl Area {
        /// Memory called `name`, by convention `owner.what`.
        #[inline(always)]
        pub(crate) const fn new(_name: &'static str) -> Self {
            Self
        }

        /// The memory is that of `value`. Said whenever it may have become another one.
        #[inline(always)]
        pub(crate) const fn is<T: ?Sized>(&self, _value: &T) {}

        /// The memory is that which `values` have reserved. Said whenever it may have become another one.
        #[inline(always)]
        pub(crate) const fn is_of<T>(&self, _values: &Vec<T>) {}
    }
}
