//! Plain data that tells by itself when it is read and changed, and where it lies.

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::{Place, changes, place_bytes, reads};

/// A value that CPUs use in turn. Each borrow is told, as by [`reads`] or [`changes`].
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct Tracked<T>(T);

impl<T> Tracked<T> {
    /// Wraps `value`.
    pub const fn new(value: T) -> Self {
        Self(value)
    }
}

impl<T> Deref for Tracked<T> {
    type Target = T;

    #[inline]
    #[track_caller]
    fn deref(&self) -> &T {
        reads(&self.0)
    }
}

impl<T> DerefMut for Tracked<T> {
    #[inline]
    #[track_caller]
    fn deref_mut(&mut self) -> &mut T {
        changes(&mut self.0)
    }
}

impl<T: fmt::Debug> fmt::Debug for Tracked<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A box or vector whose memory has a name. Each borrow tells where that memory lies, and no access to it.
#[derive(Default)]
pub struct Named<M> {
    memory: M,
    name: &'static str,
    place: Place,
}

impl<M> Named<M> {
    /// `memory`, called `name`, by convention `owner.what`.
    pub const fn new(name: &'static str, memory: M) -> Self {
        Self { memory, name, place: Place::new() }
    }
}

impl<M: Memory> Named<M> {
    #[inline]
    fn place(&self) {
        let (base, bytes) = self.memory.extent();
        place_bytes(self.name, &self.place, base, bytes);
    }
}

impl<T> Named<Vec<Tracked<T>>> {
    /// As [`Vec::push`]. Tells that the vector and the new item are changed.
    #[track_caller]
    pub fn push(&mut self, item: T) {
        changes(&mut self.memory).push(Tracked(item));
        self.place();
        if let Some(last) = self.memory.last_mut() {
            changes(last);
        }
    }

    /// As [`Vec::pop`]. Tells that the last item is read, and the vector changed.
    #[track_caller]
    pub fn pop(&mut self) -> Option<T> {
        self.place();
        if let Some(last) = self.memory.last() {
            reads(last);
        }
        changes(&mut self.memory).pop().map(|item| item.0)
    }
}

impl<M: Memory> Deref for Named<M> {
    type Target = M;

    #[inline]
    fn deref(&self) -> &M {
        self.place();
        &self.memory
    }
}

impl<M: Memory> DerefMut for Named<M> {
    #[inline]
    fn deref_mut(&mut self) -> &mut M {
        self.place();
        &mut self.memory
    }
}

/// The clone's memory has the same name, and lies nowhere yet.
impl<M: Clone> Clone for Named<M> {
    fn clone(&self) -> Self {
        Self::new(self.name, self.memory.clone())
    }
}

impl<M: fmt::Debug> fmt::Debug for Named<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.memory.fmt(f)
    }
}

/// Memory that a value owns.
pub trait Memory {
    /// Where it begins, and how many bytes it has.
    fn extent(&self) -> (usize, usize);
}

impl<T> Memory for Vec<T> {
    #[inline]
    fn extent(&self) -> (usize, usize) {
        (self.as_ptr().addr(), self.capacity() * size_of::<T>())
    }
}

impl<T: ?Sized> Memory for Box<T> {
    #[inline]
    fn extent(&self) -> (usize, usize) {
        (std::ptr::from_ref(&**self).addr(), size_of_val(&**self))
    }
}
