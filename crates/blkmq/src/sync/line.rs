//! A named cache line.

use std::fmt;
use std::ops::Deref;

/// A value alone on its cache lines, with a name.
///
/// 128 bytes, because the adjacent-line prefetcher of common processors fetches lines in pairs. The name says which
/// shared line it is to a rig that preempts after each operation on one, or counts them; a product build drops it.
#[repr(align(128))]
pub struct Line<T> {
    value: T,
    #[cfg(any(loom, shuttle, virtual_cpus, test))]
    name: &'static str,
}

impl<T> Line<T> {
    /// `value` on a line called `name`, by convention `owner.what`.
    #[cfg_attr(
        not(any(loom, shuttle, virtual_cpus, test)),
        expect(unused_variables, reason = "a product build drops the name")
    )]
    pub const fn new(name: &'static str, value: T) -> Self {
        Self {
            value,
            #[cfg(any(loom, shuttle, virtual_cpus, test))]
            name,
        }
    }
}

/// `value`, which the next operation is on, as if it stood on a line called `name`: for what many have one of each.
#[inline(always)]
pub(crate) fn on_line<'a, T>(name: &'static str, value: &'a T) -> &'a T {
    #[cfg(virtual_cpus)]
    blkmq_vcpu::touch(name);
    #[cfg(not(virtual_cpus))]
    let _ = name;
    value
}

impl<T> Deref for Line<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        #[cfg(virtual_cpus)]
        blkmq_vcpu::touch(self.name);
        &self.value
    }
}

impl<T: fmt::Debug> fmt::Debug for Line<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        #[cfg(any(loom, shuttle, virtual_cpus, test))]
        write!(f, "{} ", self.name)?;
        self.value.fmt(f)
    }
}
