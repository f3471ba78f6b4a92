//! How large the image is, and whether it has become smaller than clients were told.
//!
//! librbd cuts off what lies past the end of the image, and says nothing: a write there succeeds. So the driver looks
//! at the end itself, before and after each request. librbd tells the driver when the size has changed.
//!
//! A window remains, from the moment when another program makes the image smaller to the moment when librbd tells of
//! that. What a write in this window puts past the new end is gone, as is all that was there.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::lock;

/// The size of an image, in bytes.
#[derive(Debug)]
pub(super) struct Size {
    /// Where requests have to end: at what clients were told, or earlier if the image has become smaller.
    end: AtomicU64,
    noted: Mutex<Noted>,
}

#[derive(Debug)]
struct Noted {
    present: u64,
    /// The most that clients were told.
    told: u64,
    /// The smallest size that was found since the image became smaller than was told.
    smallest: Option<u64>,
}

impl Size {
    /// The size of an image of which no client was told yet.
    pub(super) const fn new(bytes: u64) -> Self {
        Self { end: AtomicU64::new(0), noted: Mutex::new(Noted { present: bytes, told: 0, smallest: None }) }
    }

    /// Called when the image was found to have this many bytes.
    pub(super) fn note(&self, bytes: u64) {
        let mut noted = lock(&self.noted);
        noted.present = bytes;
        if bytes < noted.told {
            let smallest = noted.smallest.map_or(bytes, |smallest| smallest.min(bytes));
            noted.smallest = Some(smallest);
            // Relaxed: the number stands for itself.
            self.end.fetch_min(smallest, Ordering::Relaxed);
        }
    }

    /// The present size, of which clients are told now.
    pub(super) fn tell(&self) -> u64 {
        let mut noted = lock(&self.noted);
        noted.told = noted.told.max(noted.present);
        if noted.smallest.is_none() {
            self.end.store(noted.told, Ordering::Relaxed);
        }
        noted.present
    }

    /// The present size.
    pub(super) fn present(&self) -> u64 {
        lock(&self.noted).present
    }

    /// Whether a request that ends at this byte lies within the image.
    pub(super) fn holds(&self, end: u64) -> bool {
        end <= self.end.load(Ordering::Relaxed)
    }

    /// What has happened, if the image has become smaller than clients were told.
    pub(super) fn loss(&self) -> Option<String> {
        let Noted { told, smallest, .. } = *lock(&self.noted);
        let smallest = smallest?;
        Some(format!("the image has become smaller: it had {told} bytes, and then {smallest}; what was behind is gone"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if an image that grows cannot be used to its end once clients were told, if requests reach past what clients
    /// were told, or if an image that became smaller is trusted again once it is larger: the data past its end is gone.
    #[test]
    fn an_image_that_is_smaller_than_was_told_stays_so() {
        let size = Size::new(8192);
        assert!(!size.holds(1), "no client knows it");
        assert_eq!((size.tell(), size.holds(8192), size.holds(8193)), (8192, true, false));
        size.note(16384);
        assert!(!size.holds(8193) && size.loss().is_none());
        assert_eq!((size.tell(), size.holds(16384)), (16384, true));
        size.note(12288);
        assert_eq!((size.tell(), size.holds(12288), size.holds(12289)), (12288, true, false));
        assert!(size.loss().is_some_and(|text| text.contains("16384 bytes, and then 12288")));
        for (bytes, present) in [(4096, 4096), (32768, 32768)] {
            size.note(bytes);
            assert_eq!((size.tell(), size.present()), (present, present));
            assert!(size.holds(4096) && !size.holds(4097));
        }
    }
}
