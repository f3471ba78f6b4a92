//! The scatter list of an operation: its buffers, in the order of the sectors.

use super::{Buffer, Segment};
use crate::request::pages::Pages;

/// The scatter list of an operation.
#[derive(Debug, Default)]
pub enum Buffers {
    /// No data.
    #[default]
    None,
    /// One piece.
    One(Buffer),
    /// Several pieces, in the order of the sectors.
    Many(Vec<Buffer>),
    /// Pages of the kernel, which are not in this process's memory. Only a device with
    /// [`pages_align`](crate::Limits::pages_align) takes them, and such an operation never merges.
    Pages(Box<Pages>),
}

impl Buffers {
    /// The pieces in order. Pages of the kernel are none of them.
    pub fn iter(&self) -> std::slice::Iter<'_, Buffer> {
        match self {
            Self::None | Self::Pages(_) => [].iter(),
            Self::One(buffer) => std::slice::from_ref(buffer).iter(),
            Self::Many(buffers) => buffers.iter(),
        }
    }

    /// The pieces in order, for writing. Pages of the kernel are none of them.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, Buffer> {
        match self {
            Self::None | Self::Pages(_) => [].iter_mut(),
            Self::One(buffer) => std::slice::from_mut(buffer).iter_mut(),
            Self::Many(buffers) => buffers.iter_mut(),
        }
    }

    /// The number of bytes in all pieces.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Pages(pages) => pages.len(),
            _ => self.iter().map(|buffer| buffer.len()).sum(),
        }
    }

    /// True if there is no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The pages of the kernel, if the data is there.
    pub(crate) fn pages(&self) -> Option<&Pages> {
        match self {
            Self::Pages(pages) => Some(pages),
            _ => None,
        }
    }

    /// The segments that cover `len` bytes from `offset`; none of pages of the kernel.
    pub(crate) fn segments(&self, mut offset: usize, mut len: usize) -> impl Iterator<Item = Segment<'_>> {
        self.iter().filter_map(move |buffer| {
            let skipped = offset.min(buffer.len());
            let taken = len.min(buffer.len() - skipped);
            offset -= skipped;
            len -= taken;
            (taken > 0).then(|| buffer.view(skipped, taken))
        })
    }
}

/// The pieces in order, handed back one by one. Pages of the kernel are none of them.
///
/// ```
/// use blkmq::{Buffer, Buffers};
///
/// let buffers = Buffers::from(vec![Buffer::zeroed(512), Buffer::zeroed(1024)]);
/// let lengths: Vec<usize> = buffers.into_iter().map(|buffer| buffer.len()).collect();
/// assert_eq!(lengths, [512, 1024]);
/// ```
impl IntoIterator for Buffers {
    type Item = Buffer;
    type IntoIter = std::iter::Chain<std::option::IntoIter<Buffer>, std::vec::IntoIter<Buffer>>;

    fn into_iter(self) -> Self::IntoIter {
        let (one, many) = match self {
            Self::None | Self::Pages(_) => (None, Vec::new()),
            Self::One(buffer) => (Some(buffer), Vec::new()),
            Self::Many(buffers) => (None, buffers),
        };
        one.into_iter().chain(many)
    }
}

impl<'a> IntoIterator for &'a Buffers {
    type Item = &'a Buffer;
    type IntoIter = std::slice::Iter<'a, Buffer>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a> IntoIterator for &'a mut Buffers {
    type Item = &'a mut Buffer;
    type IntoIter = std::slice::IterMut<'a, Buffer>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

impl From<Buffer> for Buffers {
    fn from(buffer: Buffer) -> Self {
        Self::One(buffer)
    }
}

impl From<Vec<Buffer>> for Buffers {
    fn from(buffers: Vec<Buffer>) -> Self {
        Self::Many(buffers)
    }
}

impl From<Pages> for Buffers {
    fn from(pages: Pages) -> Self {
        Self::Pages(Box::new(pages))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_cover_a_range_across_buffers_without_gap_or_overlap() {
        let buffers = Buffers::from(vec![Buffer::from(&[1; 10][..]), Buffer::zeroed(0), Buffer::from(&[2; 10][..])]);
        for offset in 0..=20 {
            for len in 0..=20 - offset {
                let bytes: Vec<u8> = buffers.segments(offset, len).flat_map(|part| part.to_vec()).collect();
                let expected: Vec<u8> = (offset..offset + len).map(|at| if at < 10 { 1 } else { 2 }).collect();
                assert_eq!(bytes, expected);
            }
        }
        for mut segment in buffers.segments(5, 10) {
            segment.fill(9);
        }
        assert_eq!(buffers.iter().flat_map(|buffer| buffer.iter()).filter(|byte| **byte == 9).count(), 10);
    }

    /// Red if a buffer that the caller had allocated cannot be taken back, or if the order changes.
    #[test]
    fn buffers_give_their_pieces_back() {
        let lengths = |buffers: Buffers| buffers.into_iter().map(|buffer| buffer.len()).collect::<Vec<_>>();
        assert_eq!(lengths(Buffers::None), [0; 0]);
        let one = Buffer::zeroed(512);
        let memory = one.as_ptr();
        let back = Buffers::from(one).into_iter().next().expect("there is one");
        assert_eq!(back.as_ptr(), memory, "the same memory, without a copy");
        let mut many = Buffers::from(vec![Buffer::zeroed(8), Buffer::zeroed(0), Buffer::zeroed(4)]);
        for buffer in &mut many {
            buffer.fill(1);
        }
        assert_eq!((&many).into_iter().flat_map(|buffer| buffer.iter()).filter(|byte| **byte == 1).count(), 12);
        assert_eq!(lengths(many), [8, 0, 4]);
    }
}
