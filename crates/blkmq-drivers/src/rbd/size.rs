//! How large the image is, and whether it has become smaller than the size that was reported to clients.
//!
//! librbd cuts off what lies past the end of the image, and says nothing: a write there succeeds. So the driver looks
//! at the end itself, before and after each request. librbd tells the driver when the size has changed.
//!
//! A window remains, from the moment when another program makes the image smaller to the moment when librbd tells of
//! that. What a write in this window puts past the new end is gone, as is all that was there.

use std::sync::Mutex;

use crate::length::{Length, Shorter};
use crate::lock;

/// The size of an image, in bytes.
#[derive(Debug)]
pub(super) struct Size {
    /// The size that was reported to clients, and the smallest size that was found since the image became smaller.
    length: Length,
    /// Locked while a size is noted or reported, so that a size that is reported late is not larger than one that was
    /// noted.
    present: Mutex<u64>,
}

impl Size {
    /// The size of an image whose size was reported to no client yet.
    pub(super) const fn new(bytes: u64) -> Self {
        Self { length: Length::new(), present: Mutex::new(bytes) }
    }

    /// Called when the image was found to have this many bytes.
    pub(super) fn note(&self, bytes: u64) {
        let mut present = lock(&self.present);
        *present = bytes;
        self.length.look(|| Some(bytes));
    }

    /// Reports the present size to clients, and returns it.
    pub(super) fn report(&self) -> u64 {
        let present = lock(&self.present);
        self.length.report(*present);
        *present
    }

    /// Returns the present size.
    pub(super) fn present(&self) -> u64 {
        *lock(&self.present)
    }

    /// Returns true if a request that ends at this byte lies within the image.
    pub(super) fn holds(&self, end: u64) -> bool {
        end <= self.length.end()
    }

    /// Returns a message with both sizes if the image has become smaller than the size that was reported to clients.
    pub(super) fn loss(&self) -> Option<String> {
        let Shorter { found, reported } = self.length.shorter()?;
        Some(format!(
            "the image has become smaller: it had {reported} bytes, and then {found}; what was behind is gone"
        ))
    }
}
