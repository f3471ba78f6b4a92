//! Plain data that threads hand to each other, under a lock or with the right to touch it, and names of what threads
//! share.
//!
//! A test rig can count on which cache lines such data lies and which threads they move between. On virtual CPUs these
//! are the types and functions of `blkmq_vcpu` of the same names. Here a type is what it wraps, and nothing else.

use std::fmt;
use std::ops::{Deref, DerefMut};

/// A value that threads have in turn. Its reads and changes are counted.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct Tracked<T>(T);

impl<T> Tracked<T> {
    /// Wraps `value`.
    #[inline(always)]
    pub const fn new(value: T) -> Self {
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
#[derive(Clone, Default)]
#[repr(transparent)]
pub struct Named<M>(M);

impl<M> Named<M> {
    /// `memory`, called `name`, by convention `owner.what`.
    #[inline(always)]
    pub const fn new(_name: &'static str, memory: M) -> Self {
        Self(memory)
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

/// `value`, as if it stood on a line called `name`. The caller's next operation is on `value`. For values of which many
/// threads have one each.
#[inline(always)]
pub const fn on_line<'a, T>(_name: &'static str, value: &'a T) -> &'a T {
    value
}

/// Names a value that stands among others and will not move: a test rig can count what is done to it. The rig does not
/// preempt there by its name.
#[inline(always)]
pub const fn place_anew<T: ?Sized>(_name: &'static str, _value: &T) {}
