//! Plain data that threads hand to each other, under a lock or with the right to touch it, and names of what threads
//! share.
//!
//! A test rig can count on which cache lines such data lies and which threads they move between. On virtual CPUs these
//! are the functions of `blkmq_vcpu` of the same names. Here everything compiles to nothing.

/// `value`, plain data that other threads have at other times, and that the caller reads now.
#[inline(always)]
pub const fn reads<T: ?Sized>(value: &T) -> &T {
    value
}

/// As [`reads`], for data that the caller may change.
#[inline(always)]
pub const fn changes<T: ?Sized>(value: &mut T) -> &mut T {
    value
}

/// `value`, as if it stood on a line called `name`. The caller's next operation is on `value`. For values of which many
/// threads have one each.
#[inline(always)]
pub const fn on_line<'a, T>(_name: &'static str, value: &'a T) -> &'a T {
    value
}

/// `value`, which is called `name` and stands among other values. A test rig can count what is done to it; the rig does
/// not preempt there by its name.
#[inline(always)]
pub const fn placed<'a, T: ?Sized>(_name: &'static str, value: &'a T) -> &'a T {
    value
}

/// What a debug assertion looks at. On virtual CPUs the look takes no step, so every build takes the same steps.
#[inline(always)]
pub fn peek<R>(look: impl FnOnce() -> R) -> R {
    look()
}

/// The name of memory that holds plain data. It lies beside what owns the memory.
#[derive(Debug, Clone, Default)]
pub struct Area;

impl Area {
    /// Memory called `name`, by convention `owner.what`.
    #[inline(always)]
    #[must_use]
    pub const fn new(_name: &'static str) -> Self {
        Self
    }

    /// The memory is that of `value`. Said whenever it may have become another one.
    #[inline(always)]
    pub const fn is<T: ?Sized>(&self, _value: &T) {}

    /// The memory is that which `values` have reserved. Said whenever it may have become another one.
    #[inline(always)]
    pub const fn is_of<T>(&self, _values: &Vec<T>) {}
}
