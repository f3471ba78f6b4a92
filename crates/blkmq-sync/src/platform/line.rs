//! A named cache line.

use std::fmt;
use std::ops::Deref;

/// A value alone on its cache lines, with a name.
///
/// 128 bytes, because the adjacent-line prefetcher of common processors fetches lines in pairs. A test rig may preempt
/// after each operation on a shared line, or count these operations; the name tells the rig which line it is, and on
/// virtual CPUs each line is one by itself. A product build drops the name.
#[repr(align(128))]
pub struct Line<T> {
    value: T,
    #[cfg(virtual_cpus)]
    place: blkmq_vcpu::Place,
    #[cfg(any(loom, virtual_cpus, test))]
    name: &'static str,
}

impl<T> Line<T> {
    /// `value` on a line called `name`, by convention `owner.what`.
    #[cfg_attr(not(any(loom, virtual_cpus, test)), expect(unused_variables, reason = "a product build drops the name"))]
    pub const fn new(name: &'static str, value: T) -> Self {
        Self {
            value,
            #[cfg(virtual_cpus)]
            place: blkmq_vcpu::Place::new(),
            #[cfg(any(loom, virtual_cpus, test))]
            name,
        }
    }
}

impl<T> Deref for Line<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        #[cfg(virtual_cpus)]
        blkmq_vcpu::touch_place(self.name, &self.place, &self.value);
        &self.value
    }
}

impl<T: fmt::Debug> fmt::Debug for Line<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        #[cfg(any(loom, virtual_cpus, test))]
        write!(f, "{} ", self.name)?;
        self.value.fmt(f)
    }
}
