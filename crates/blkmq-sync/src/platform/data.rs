//! Plain data that threads hand to each other: under a lock, or with the right to touch it.
//!
//! A test rig can count on which cache lines such data lies and which threads they move between. A product build
//! compiles everything here to nothing.

use std::fmt;

/// `value`, plain data that other threads have at other times, and that the caller reads now.
#[inline(always)]
#[cfg_attr(virtual_cpus, track_caller)]
pub fn reads<T: ?Sized>(value: &T) -> &T {
    #[cfg(virtual_cpus)]
    return blkmq_vcpu::reads(value);
    #[cfg(not(virtual_cpus))]
    value
}

/// As [`reads`], for data that the caller may change.
#[inline(always)]
#[cfg_attr(virtual_cpus, track_caller)]
pub fn changes<T: ?Sized>(value: &mut T) -> &mut T {
    #[cfg(virtual_cpus)]
    return blkmq_vcpu::changes(value);
    #[cfg(not(virtual_cpus))]
    value
}

/// The name of memory that holds plain data. It lies beside what owns the memory.
#[derive(Default)]
pub struct Area {
    #[cfg(virtual_cpus)]
    name: &'static str,
    #[cfg(virtual_cpus)]
    place: blkmq_vcpu::Place,
}

impl Area {
    /// Memory called `name`, by convention `owner.what`.
    #[inline(always)]
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        #[cfg(not(virtual_cpus))]
        let _ = name;
        Self {
            #[cfg(virtual_cpus)]
            name,
            #[cfg(virtual_cpus)]
            place: blkmq_vcpu::Place::new(),
        }
    }

    /// The memory is that of `value`. Said whenever it may have become another one.
    #[inline(always)]
    pub fn is<T: ?Sized>(&self, value: &T) {
        #[cfg(virtual_cpus)]
        blkmq_vcpu::place_bytes(self.name, &self.place, std::ptr::from_ref(value).addr(), size_of_val(value));
        #[cfg(not(virtual_cpus))]
        let _ = value;
    }

    /// The memory is that which `values` have reserved. Said whenever it may have become another one.
    #[inline(always)]
    pub fn is_of<T>(&self, values: &Vec<T>) {
        #[cfg(virtual_cpus)]
        blkmq_vcpu::place_bytes(self.name, &self.place, values.as_ptr().addr(), values.capacity() * size_of::<T>());
        #[cfg(not(virtual_cpus))]
        let _ = values;
    }
}

/// Other memory of the same name, which lies nowhere yet.
impl Clone for Area {
    fn clone(&self) -> Self {
        #[cfg(virtual_cpus)]
        return Self::new(self.name);
        #[cfg(not(virtual_cpus))]
        Self::new("")
    }
}

impl fmt::Debug for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Area")
    }
}
