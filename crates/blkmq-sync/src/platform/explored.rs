//! loom's atomics, with every load explored.
//!
//! Of each atomic, loom remembers only the latest access. If two threads load and the second one then writes, loom
//! therefore never tries the second thread first. So an ordinary load followed by a compare-exchange hides the race.
//! Here a relaxed read-modify-write of a companion precedes each load, so that loom tries any two loads in both orders.
//! The companion orders nothing else: it is relaxed, and only loads touch it.

use std::ops::Deref;

use ::loom::sync::atomic;
pub use atomic::{AtomicPtr, Ordering, fence};

macro_rules! explored {
    ($($name:ident: $value:ty),*) => {$(
        /// The atomic of the same name in loom; only its loads differ.
        #[derive(Debug)]
        pub struct $name {
            inner: atomic::$name,
            turn: atomic::AtomicBool,
        }

        impl $name {
            /// An atomic that holds `value`.
            pub fn new(value: $value) -> Self {
                Self { inner: atomic::$name::new(value), turn: atomic::AtomicBool::new(false) }
            }

            /// Reads the value.
            pub fn load(&self, order: Ordering) -> $value {
                self.turn.swap(true, Ordering::Relaxed);
                self.inner.load(order)
            }

            /// Replaces the value by what `next` makes of it, as long as `next` returns something.
            ///
            /// # Errors
            /// The value for which `next` returned nothing.
            pub fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                mut next: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                let mut before = self.load(fetch);
                while let Some(after) = next(before) {
                    match self.inner.compare_exchange_weak(before, after, set, fetch) {
                        Ok(before) => return Ok(before),
                        Err(now) => before = now,
                    }
                }
                Err(before)
            }
        }

        impl Deref for $name {
            type Target = atomic::$name;

            fn deref(&self) -> &Self::Target {
                &self.inner
            }
        }
    )*};
}

explored!(AtomicBool: bool, AtomicU8: u8, AtomicU16: u16, AtomicU32: u32, AtomicU64: u64, AtomicUsize: usize);
