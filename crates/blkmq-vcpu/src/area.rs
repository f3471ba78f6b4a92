//! Memory that holds plain data, by name.

use std::fmt;

use crate::{Place, place_bytes};

/// The name of memory that holds plain data. It lies beside what owns the memory.
#[derive(Default)]
pub struct Area {
    name: &'static str,
    place: Place,
}

impl Area {
    /// Memory called `name`, by convention `owner.what`.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self { name, place: Place::new() }
    }

    /// The memory is that of `value`. Said whenever it may have become another one.
    #[inline]
    pub fn is<T: ?Sized>(&self, value: &T) {
        place_bytes(self.name, &self.place, std::ptr::from_ref(value).addr(), size_of_val(value));
    }

    /// The memory is that which `values` have reserved. Said whenever it may have become another one.
    #[inline]
    pub fn is_of<T>(&self, values: &Vec<T>) {
        place_bytes(self.name, &self.place, values.as_ptr().addr(), values.capacity() * size_of::<T>());
    }
}

/// Other memory of the same name, which lies nowhere yet.
impl Clone for Area {
    fn clone(&self) -> Self {
        Self::new(self.name)
    }
}

impl fmt::Debug for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Area")
    }
}
