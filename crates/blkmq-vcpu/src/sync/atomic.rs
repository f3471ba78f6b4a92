//! Atomic values. Each operation on one is a step.

pub use std::sync::atomic::Ordering;

use std::panic::Location;

use crate::cache::Access::{Load, Store, Update};
use crate::step::{look_at, operate, step, step_fence};

/// The operations of an atomic value. Each is one step.
macro_rules! operations {
    ($name:ident $(<$t:ident>)?, $value:ty: $($access:ident $method:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        impl $(<$t>)? $name $(<$t>)? {
            $(
                #[doc = concat!("As in `std`'s `", stringify!($name), "`, and a step.")]
                #[inline]
                #[track_caller]
                pub fn $method(&self, $($argument: $type),*) -> $result {
                    operate(self, $access, Location::caller(), || self.0.$method($($argument),*))
                }
            )*
        }
    };
}

macro_rules! atomic {
    ($name:ident $(<$t:ident>)?, $value:ty) => {
        #[doc = concat!("`std`'s `", stringify!($name), "`, every operation a step.")]
        #[derive(Debug)]
        pub struct $name $(<$t>)? (std::sync::atomic::$name $(<$t>)?);

        impl $(<$t>)? $name $(<$t>)? {
            /// A new atomic that holds `value`.
            pub const fn new(value: $value) -> Self {
                Self(std::sync::atomic::$name::new(value))
            }

            /// The value, for a caller that has the only reference.
            pub fn get_mut(&mut self) -> &mut $value {
                self.0.get_mut()
            }

            /// Changes the value by a function, in one step: no other CPU changes the value between the load and the
            /// store.
            ///
            /// # Errors
            /// The value, if the function returns `None`.
            #[inline]
            #[track_caller]
            pub fn fetch_update(
                &self,
                success: Ordering,
                failure: Ordering,
                update: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                operate(self, Update, Location::caller(), || self.0.fetch_update(success, failure, update))
            }

            /// Looks at the value again and again while `goes_on` returns true for it. Returns the first value for
            /// which `goes_on` returns false. If CPUs have clocks of their own, the CPU looks once, and then each time
            /// that something is written to the line. Each of these looks costs a load. Without clocks each look is a
            /// step.
            #[track_caller]
            pub fn spin_while(&self, order: Ordering, mut goes_on: impl FnMut($value) -> bool) -> $value {
                let (at, address) = (Location::caller(), std::ptr::from_ref(self).addr());
                loop {
                    let look = || Some(self.0.load(order)).filter(|value| !goes_on(*value));
                    if let Some(value) = look_at(address, at, None, look) {
                        return value;
                    }
                    std::hint::spin_loop();
                }
            }
        }

        operations! { $name $(<$t>)?, $value:
            Load load(order: Ordering) -> $value;
            Store store(value: $value, order: Ordering) -> ();
            Update swap(value: $value, order: Ordering) -> $value;
            Update compare_exchange(current: $value, new: $value, success: Ordering, failure: Ordering) -> Result<$value, $value>;
            Update compare_exchange_weak(current: $value, new: $value, success: Ordering, failure: Ordering) -> Result<$value, $value>;
        }
    };
}

macro_rules! number {
    ($name:ident, $value:ty) => {
        atomic!($name, $value);

        impl Default for $name {
            fn default() -> Self {
                Self::new(0)
            }
        }

        operations! { $name, $value:
            Update fetch_add(value: $value, order: Ordering) -> $value;
            Update fetch_sub(value: $value, order: Ordering) -> $value;
            Update fetch_and(value: $value, order: Ordering) -> $value;
            Update fetch_or(value: $value, order: Ordering) -> $value;
            Update fetch_xor(value: $value, order: Ordering) -> $value;
            Update fetch_max(value: $value, order: Ordering) -> $value;
            Update fetch_min(value: $value, order: Ordering) -> $value;
        }
    };
}

number!(AtomicU8, u8);
number!(AtomicU16, u16);
number!(AtomicU32, u32);
number!(AtomicU64, u64);
number!(AtomicUsize, usize);
atomic!(AtomicBool, bool);
atomic!(AtomicPtr<T>, *mut T);

impl Default for AtomicBool {
    fn default() -> Self {
        Self::new(false)
    }
}

operations! { AtomicBool, bool:
    Update fetch_and(value: bool, order: Ordering) -> bool;
    Update fetch_or(value: bool, order: Ordering) -> bool;
}

/// A fence, and a step. A fence that is not `SeqCst` costs a CPU with a clock of its own nothing, as on x86.
#[inline]
pub fn fence(order: Ordering) {
    std::sync::atomic::fence(order);
    match order {
        // Only this fence waits for the stores of its CPU. Memory is sequentially consistent without it.
        Ordering::SeqCst => step_fence(),
        _ => step(),
    }
}
