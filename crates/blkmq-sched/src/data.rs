//! Types of a scheduler's state, by which a test rig counts the cache lines that move between the threads that reach
//! the scheduler.
//!
//! In a product build they are what they wrap, and nothing else. In the build of blkmq-sched-virtual they are those of
//! blkmq-sync.

#[cfg(virtual_cpus)]
pub(crate) use blkmq_sync::{Named, Tracked};
#[cfg(not(virtual_cpus))]
pub(crate) use silent::{Named, Tracked};

#[cfg(not(virtual_cpus))]
mod silent {
    use alloc::vec::Vec;
    use core::fmt;
    use core::ops::{Deref, DerefMut};

    /// A value whose reads and changes are counted.
    #[derive(Clone, Copy, Default)]
    #[repr(transparent)]
    pub(crate) struct Tracked<T>(T);

    impl<T> Tracked<T> {
        /// Wraps `value`.
        #[inline(always)]
        pub(crate) const fn new(value: T) -> Self {
            Self(value)
        }
    }

    impl<T> Deref for Tracked<T> {
        type Target = T;

        #[inline(always)]
        fn deref(&self) -> &T {
            &self.0
        }
    }

    impl<T> DerefMut for Tracked<T> {
        #[inline(always)]
        fn deref_mut(&mut self) -> &mut T {
            &mut self.0
        }
    }

    impl<T: fmt::Debug> fmt::Debug for Tracked<T> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.fmt(f)
        }
    }

    /// A box or vector whose memory has a name.
    #[derive(Clone)]
    #[repr(transparent)]
    pub(crate) struct Named<M>(M);

    impl<M> Named<M> {
        /// `memory`, called `name`, by convention `owner.what`.
        #[inline(always)]
        pub(crate) const fn new(_name: &'static str, memory: M) -> Self {
            Self(memory)
        }
    }

    impl<T> Named<Vec<Tracked<T>>> {
        /// As [`Vec::push`].
        #[inline(always)]
        pub(crate) fn push(&mut self, item: T) {
            self.0.push(Tracked(item));
        }

        /// As [`Vec::pop`].
        #[inline(always)]
        pub(crate) fn pop(&mut self) -> Option<T> {
            self.0.pop().map(|item| item.0)
        }
    }

    impl<M> Deref for Named<M> {
        type Target = M;

        #[inline(always)]
        fn deref(&self) -> &M {
            &self.0
        }
    }

    impl<M> DerefMut for Named<M> {
        #[inline(always)]
        fn deref_mut(&mut self) -> &mut M {
            &mut self.0
        }
    }

    impl<M: fmt::Debug> fmt::Debug for Named<M> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.fmt(f)
        }
    }
}
