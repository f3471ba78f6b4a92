//! Interior mutability that a model checker can watch.

#[cfg(loom)]
pub use ::loom::cell::UnsafeCell;

/// A cell whose content is reached through raw pointers lent to closures, as in loom, which checks every such access.
#[cfg(not(loom))]
#[derive(Debug, Default)]
pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    /// A cell that holds `value`.
    pub const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    /// Lends a pointer for reading. Dereferencing it is the caller's unsafe act.
    #[inline]
    pub fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    /// Lends a pointer for writing. Dereferencing it is the caller's unsafe act.
    #[inline]
    pub fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}
