//! Tags: the numbers under which a driver knows requests, from a scalable bitmap.
//!
//! The bits are spread over words, each word on its own line. Small maps are spread over several words too, so that
//! submitters meet less often. Each submitter has a [`Hint`] that leads it to its word. Putting a tag back only sets a
//! bit in the word's companion `cleared` (deferred clear). The next search that finds a word full folds `cleared` back
//! into the word in one go.
//!
//! A search may find nothing while another thread is in the middle of folding back. That other thread then takes a tag,
//! or finds that a third one took it. The thread that took the tag will put it back. So a thread that sets the queue's
//! WAITING mark and then finds no tag is woken by a completion that is certain to come.

use std::fmt;

use crate::platform::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::platform::{Line, fetch, order, place_anew};

/// The number of a request in flight. The number is unique in its map while it is out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Tag(pub u16);

/// Where a submitter's search for a tag begins. A hint belongs to one submitter, and only makes its search faster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hint(u32);

impl Hint {
    /// A first hint for the submitter with this number. Neighbours start far apart.
    #[must_use]
    pub const fn new(submitter: u32) -> Self {
        // 2^32 divided by the golden ratio: consecutive multiples fall evenly into any range.
        Self(submitter.wrapping_mul(0x9E37_79B1))
    }
}

/// The number of tags, and how many (2^shift) lie in a word. Packed into 32 bits, so that both change at once.
#[derive(Debug, Clone, Copy)]
struct Geometry {
    depth: u32,
    shift: u32,
}

impl Geometry {
    /// Words of 64 tags, but halved until there are at least four words. Fewer than four tags share one word.
    const fn of(depth: u32) -> Self {
        debug_assert!(depth > 0, "a map has tags");
        let mut shift = 6;
        while depth >= 4 && (4 << shift) > depth {
            shift -= 1;
        }
        Self { depth, shift }
    }

    const fn pack(self) -> u32 {
        self.depth | self.shift << 24
    }

    const fn unpack(packed: u32) -> Self {
        Self { depth: packed & 0xFF_FFFF, shift: packed >> 24 }
    }

    const fn words(self) -> u32 {
        self.depth.div_ceil(1 << self.shift)
    }

    /// The bits of word `index` that are tags.
    const fn mask(self, index: u32) -> u64 {
        debug_assert!(index < self.words(), "the word is one of the map's");
        let bits = self.depth - (index << self.shift);
        let bits = if bits < 1 << self.shift { bits } else { 1 << self.shift };
        u64::MAX >> (64 - bits)
    }

    /// The tag at which a search with this hint begins, and its word.
    const fn first(self, hint: &Hint) -> (u32, u32) {
        // The division is only for fresh hints and for maps that were made smaller.
        let start = if hint.0 < self.depth { hint.0 } else { hint.0 % self.depth };
        (start, start >> self.shift)
    }

    const fn place(self, tag: Tag) -> (u32, u64) {
        let tag = tag.0 as u32;
        (tag >> self.shift, 1 << (tag & ((1 << self.shift) - 1)))
    }

    const fn tag(self, index: u32, bit: u32) -> Tag {
        debug_assert!((index << self.shift) + bit < self.depth, "only bits of tags are claimed");
        Tag(((index << self.shift) + bit) as u16)
    }
}

/// A word of tags. A tag is out if its bit is set in `taken` and not in `cleared`.
#[derive(Debug)]
struct Word {
    taken: AtomicU64,
    cleared: AtomicU64,
}

impl Word {
    /// Claims up to `count` of the free bits in `mask`, lowest first. Returns the bits, and how many they are: none if
    /// none is free.
    #[inline]
    fn claim(&self, mask: u64, count: usize) -> (u64, usize) {
        debug_assert!(mask != 0 && count > 0, "there is something to claim");
        let mut taken = self.taken.load(Ordering::Relaxed);
        loop {
            let free = mask & !taken;
            if free == 0 {
                if !self.fold() {
                    return (0, 0);
                }
                taken = self.taken.load(Ordering::Relaxed);
                continue;
            }
            let (want, nr_wanted) = lowest(free, count);
            // Acquire pairs with the Release of `fold`: this thread sees what the tag's last owner did before it put
            // the tag back.
            taken = self.taken.fetch_or(want, order("tags.get", Ordering::Acquire));
            let got = want & !taken;
            if got == want {
                return (got, nr_wanted);
            }
            if got != 0 {
                return (got, got.count_ones() as usize);
            }
        }
    }

    /// Makes the bits in `cleared` free again. Returns whether there were any.
    #[inline]
    fn fold(&self) -> bool {
        if self.cleared.load(Ordering::Relaxed) == 0 {
            return false;
        }
        // Acquire pairs with the Release of `put`; Release hands that on to the next `claim`.
        let cleared = self.cleared.swap(0, order("tags.fold_acquire", Ordering::Acquire));
        self.taken.fetch_and(!cleared, order("tags.fold_release", Ordering::Release));
        cleared != 0
    }

    #[inline]
    fn put(&self, bits: u64) {
        debug_assert_ne!(bits, 0, "a word is written only if tags go back to it");
        // Release publishes what the owner did under the tag to the tag's next owner, by way of `fold`, and to `busy`.
        let before = self.cleared.fetch_or(bits, order("tags.put", Ordering::Release));
        debug_assert!(before & bits == 0, "tags put back twice: bits {:#x}", before & bits);
    }

    /// The bits that are out. A bit that is just being folded back may still count.
    fn busy(&self) -> u64 {
        // Acquire pairs with the Release of `fold` and of `put`: a thread that finds a tag back, by either, sees what
        // the tag's owner did.
        let taken = self.taken.load(order("tags.busy_taken", Ordering::Acquire));
        taken & !self.cleared.load(order("tags.busy_cleared", Ordering::Acquire))
    }
}

/// The lowest `count` bits of `bits`, or all if these are fewer, and how many they are.
#[inline]
fn lowest(bits: u64, count: usize) -> (u64, usize) {
    let (mut rest, mut some) = (bits, 0);
    while some < count && rest != 0 {
        rest &= rest - 1;
        some += 1;
    }
    (bits & !rest, some)
}

/// Tags that are being taken, word after word.
///
/// COST: one load and one read-modify-write per word that has free tags.
#[derive(Debug)]
#[must_use = "no tag is taken before it is asked for"]
pub struct Claim<'a> {
    tags: &'a Tags,
    geometry: Geometry,
    hint: &'a mut Hint,
    /// The number that the hint led to.
    start: u32,
    /// The word of the search, and how many words remain, this one included.
    index: u32,
    words: u32,
    /// The bits that were claimed of the word and not given out yet.
    bits: u64,
    /// How many more tags to claim.
    count: usize,
    /// The first tag that was claimed, and the last one that was given out.
    first: Option<Tag>,
    last: Tag,
}

impl Claim<'_> {
    /// Claims the free tags of the next word that has some. Returns false if no word has any, or enough are claimed.
    fn claim(&mut self) -> bool {
        debug_assert_eq!(self.bits, 0, "what was claimed before has been given out");
        while self.count > 0 && self.words > 0 {
            let (bits, some) = self.tags.word(self.index).claim(self.geometry.mask(self.index), self.count);
            if bits != 0 {
                self.bits = bits;
                self.count -= some;
                self.first = self.first.or_else(|| Some(self.geometry.tag(self.index, self.bits.trailing_zeros())));
                return true;
            }
            self.words -= 1;
            self.index = if self.index + 1 == self.geometry.words() { 0 } else { self.index + 1 };
        }
        false
    }

    /// Takes back the tag that was given out last, for which there was no use.
    #[cold]
    pub fn take_back(&mut self, tag: Tag) {
        debug_assert_eq!(self.last, tag, "the tag was given out last");
        self.bits |= self.geometry.place(tag).1;
    }
}

impl Iterator for Claim<'_> {
    type Item = Tag;

    #[inline]
    fn next(&mut self) -> Option<Tag> {
        if self.bits == 0 && !self.claim() {
            return None;
        }
        let tag = self.geometry.tag(self.index, self.bits.trailing_zeros());
        self.bits &= self.bits - 1;
        self.last = tag;
        Some(tag)
    }
}

impl Drop for Claim<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.bits != 0 {
            self.tags.word(self.index).put(self.bits);
        }
        self.hint.0 = match self.first {
            None => 0,
            Some(first) if u32::from(first.0) == self.start => u32::from(self.last.0) + 1,
            Some(_) => self.start,
        };
    }
}

/// Words: a [`PutBatch`] has tags in at most so many at a time.
const GATHERED_WORDS: usize = 8;

/// Tags on their way back. Tags that the caller does not [put](Self::put) are lost.
///
/// COST: one read-modify-write per word that the tags lie in, as long as those are within 8 neighbouring words.
#[derive(Debug)]
#[must_use = "tags that are not put back are lost"]
pub struct PutBatch<'a> {
    tags: &'a Tags,
    geometry: Geometry,
    /// Words, each at the place that the low bits of its number say, with the bits that go back to it. A place without
    /// bits is free.
    words: [(u32, u64); GATHERED_WORDS],
}

impl<'a> PutBatch<'a> {
    /// Adds a tag.
    #[inline]
    pub fn add(&mut self, tag: Tag, hint: &mut Hint) {
        let (index, bit) = self.tags.place_of_busy(self.geometry, tag);
        let word = &mut self.words[index as usize % GATHERED_WORDS];
        if word.0 != index && word.1 != 0 {
            self.tags.word(word.0).put(word.1);
            word.1 = 0;
        }
        debug_assert!(word.1 & bit == 0, "{tag:?} put back twice in one batch");
        *word = (index, word.1 | bit);
        hint.0 = u32::from(tag.0);
    }

    /// Puts the added tags back.
    #[inline]
    pub fn put(&mut self) {
        for (index, bits) in &mut self.words {
            if *bits != 0 {
                self.tags.word(*index).put(std::mem::take(bits));
            }
        }
    }
}

impl Drop for PutBatch<'_> {
    #[inline]
    fn drop(&mut self) {
        let is_empty = || self.words.iter().all(|(_, bits)| *bits == 0);
        debug_assert!(std::thread::panicking() || is_empty(), "tags that were gathered are put back");
    }
}

/// A map of tags.
#[derive(Debug)]
pub struct Tags {
    words: Box<[Line<Word>]>,
    geometry: AtomicU32,
    max_depth: u32,
}

impl Tags {
    /// The most tags that any map can have.
    pub const MAX_DEPTH: u32 = 1 << 16;

    /// A map of `depth` tags, all free, that can be resized up to `max_depth`.
    ///
    /// # Panics
    /// Unless `1 <= depth <= max_depth <= MAX_DEPTH`.
    #[must_use]
    pub fn new(max_depth: u32, depth: u32) -> Self {
        assert!(max_depth <= Self::MAX_DEPTH, "max_depth {max_depth} is above {}", Self::MAX_DEPTH);
        // Below 256 tags there are up to 8 words, since the spreading stops as soon as there are four.
        let words = max_depth.div_ceil(64).max(max_depth.min(8));
        let word = |_| Line::new("tags.word", Word { taken: AtomicU64::new(0), cleared: AtomicU64::new(0) });
        let tags = Self { words: (0..words).map(word).collect(), geometry: AtomicU32::new(0), max_depth };
        tags.resize(depth);
        tags
    }

    /// Names the number of tags, for rigs. The tags have their place.
    pub fn name_places(&self) {
        place_anew("tags.geometry", &self.geometry);
    }

    /// Changes the number of tags. The caller has frozen the queue: no tag is out, and no thread gets one meanwhile.
    /// The unfreezing publishes the new number.
    ///
    /// # Panics
    /// Unless `1 <= depth <= max_depth` and no tag is out.
    pub fn resize(&self, depth: u32) {
        assert!((1..=self.max_depth).contains(&depth), "depth {depth} is not in 1..={}", self.max_depth);
        for word in &self.words {
            word.fold();
            assert!(word.busy() == 0, "resized while tags are out");
        }
        self.geometry.store(Geometry::of(depth).pack(), Ordering::Relaxed);
    }

    /// How many tags there are.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.geometry().depth
    }

    #[inline]
    fn geometry(&self) -> Geometry {
        Geometry::unpack(self.geometry.load(Ordering::Relaxed))
    }

    #[inline]
    fn word(&self, index: u32) -> &Word {
        &self.words[index as usize]
    }

    /// Takes a tag, or returns `None` if none is free.
    ///
    /// COST: one load and one read-modify-write of the word that the hint chose; loads of more words only while those
    /// before them are full.
    #[inline]
    pub fn get(&self, hint: &mut Hint) -> Option<Tag> {
        self.take(hint, 1).next()
    }

    /// Prefetches the line of the word at which a search with this hint begins.
    #[inline]
    pub fn fetch(&self, hint: &Hint) {
        let (_, index) = self.geometry().first(hint);
        fetch(self.word(index));
    }

    /// Takes up to `out.len()` tags into the front of `out`, and returns how many.
    ///
    /// COST: the same as for [`Claim`].
    #[inline]
    pub fn get_batch(&self, hint: &mut Hint, out: &mut [Tag]) -> usize {
        if let [one] = out {
            return self.get(hint).map_or(0, |tag| {
                *one = tag;
                1
            });
        }
        let mut count = 0;
        let mut taken = self.take(hint, out.len());
        while taken.claim() {
            let mut bits = std::mem::take(&mut taken.bits);
            for place in &mut out[count..] {
                if bits == 0 {
                    break;
                }
                *place = taken.geometry.tag(taken.index, bits.trailing_zeros());
                bits &= bits - 1;
                count += 1;
            }
            debug_assert_eq!(bits, 0, "no more tags are claimed than there are places for");
        }
        taken.last = out[..count].last().copied().unwrap_or_default();
        count
    }

    /// Takes up to `count` tags, as they are asked for.
    #[inline]
    pub fn take<'a>(&'a self, hint: &'a mut Hint, count: usize) -> Claim<'a> {
        let geometry = self.geometry();
        let (start, index) = geometry.first(hint);
        Claim {
            tags: self,
            geometry,
            hint,
            start,
            index,
            words: geometry.words(),
            bits: 0,
            count,
            first: None,
            last: Tag(0),
        }
    }

    /// Puts a tag back.
    ///
    /// COST: one read-modify-write.
    #[inline]
    pub fn put(&self, tag: Tag, hint: &mut Hint) {
        let (index, bit) = self.place_of_busy(self.geometry(), tag);
        self.word(index).put(bit);
        hint.0 = u32::from(tag.0);
    }

    /// Puts tags back.
    ///
    /// COST: the same as for [`PutBatch`].
    pub fn put_batch(&self, tags: &[Tag], hint: &mut Hint) {
        let mut gathered = self.gather();
        for &tag in tags {
            gathered.add(tag, hint);
        }
        gathered.put();
    }

    /// Begins to gather tags that are to be put back together.
    #[inline]
    pub fn gather(&self) -> PutBatch<'_> {
        PutBatch { tags: self, geometry: self.geometry(), words: [(0, 0); GATHERED_WORDS] }
    }

    #[inline]
    fn place_of_busy(&self, geometry: Geometry, tag: Tag) -> (u32, u64) {
        let place = geometry.place(tag);
        debug_assert!(u32::from(tag.0) < geometry.depth, "{tag:?} of a map of {}", geometry.depth);
        debug_assert!(self.word(place.0).taken.load(Ordering::Relaxed) & place.1 != 0, "{tag:?} put back but not out");
        place
    }

    /// How many tags are out. While other threads get and put, this is a number between the least and the most during
    /// the call, or higher by the tags that are just being folded back. The number is exact once no thread gets or
    /// puts.
    #[must_use]
    pub fn weight(&self) -> u32 {
        (0..self.geometry().words()).map(|index| self.word(index).busy().count_ones()).sum()
    }

    /// Calls `visit` with each tag that is out, lowest first.
    pub fn for_each_busy(&self, mut visit: impl FnMut(Tag)) {
        let geometry = self.geometry();
        for index in 0..geometry.words() {
            let mut busy = self.word(index).busy();
            while busy != 0 {
                visit(geometry.tag(index, busy.trailing_zeros()));
                busy &= busy - 1;
            }
        }
    }

    /// Writes the state for human readers: a line of numbers, then a line per word in hexadecimal.
    ///
    /// # Errors
    /// What `out` returns.
    pub fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        let geometry = self.geometry();
        let (depth, words, bits) = (geometry.depth, geometry.words(), 1 << geometry.shift);
        writeln!(out, "depth={depth} busy={} words={words} bits_per_word={bits}", self.weight())?;
        for index in 0..words {
            let Word { taken, cleared } = self.word(index);
            let (taken, cleared) = (taken.load(Ordering::Relaxed), cleared.load(Ordering::Relaxed));
            writeln!(out, "word {index}: taken={taken:#x} cleared={cleared:#x}")?;
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
