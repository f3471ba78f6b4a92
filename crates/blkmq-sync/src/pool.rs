//! Pools of tokens: how many of something may be out at once. A token has no number, unlike a [`tag`](crate::tags).
//!
//! The tokens are spread over words, each word on its own line. A thread takes from the word that it calls its home,
//! and from another one only if that has none. So as long as each thread finds enough in its home and puts back what it
//! took, no line moves. A token goes back to the word from which it came. The depth may change while tokens are out: if
//! it becomes less, a word may owe tokens, and takes in as many as it owes before it gives out any.
//!
//! A thread that finds no token, and a thread that puts one back, notify each other as for tags
//! ([`liveness`](crate::liveness)): a thread that sets WAITING, fences and checks all words again misses no token that
//! was put back before the fence.

use crate::platform::atomic::{AtomicU32, Ordering};
use crate::platform::{Line, place_anew, unless_mutated};

/// Words of a pool at most.
const WORDS: u32 = 32;

/// Tokens that a word has at least, in a pool of several words that is as deep as it can be: two batches of four.
const TOKENS: u32 = 8;

/// A pool of tokens.
#[derive(Debug)]
pub struct Pool {
    /// How many tokens each word can give out, as an `i32`. Less than 0: how many it owes.
    free: Box<[Line<AtomicU32>]>,
    depth: AtomicU32,
    most: u32,
}

impl Pool {
    /// A pool of `depth` tokens, which can become `most` deep.
    ///
    /// # Panics
    /// Unless `1 <= depth <= most`, and `most` is at most 2^16.
    #[must_use]
    pub fn new(most: u32, depth: u32) -> Self {
        assert!(most <= 1 << 16, "a pool has at most 65536 tokens, not {most}");
        let words = (most / TOKENS).clamp(1, WORDS);
        let free = (0..words).map(|_| Line::new("pool.word", AtomicU32::new(0))).collect();
        let pool = Self { free, depth: AtomicU32::new(0), most };
        pool.set_depth(depth);
        pool
    }

    /// Names the depth, for rigs. The pool has its place.
    pub fn name_places(&self) {
        place_anew("pool.depth", &self.depth);
    }

    /// How many of `depth` tokens belong to a word.
    fn share(&self, depth: u32, word: usize) -> u32 {
        let words = self.free.len() as u32;
        depth / words + u32::from((word as u32) < depth % words)
    }

    /// How many words have tokens, the first ones: none of the others has any.
    fn nr_words(&self) -> usize {
        self.free.len().min(self.depth() as usize)
    }

    /// Changes how many tokens there are. Tokens may be out, and other threads may take and put back meanwhile, but no
    /// other thread changes the depth. If the depth has grown, requests may proceed: the caller does what a thread does
    /// that puts tokens back.
    ///
    /// # Panics
    /// Unless `1 <= depth <= most`.
    pub fn set_depth(&self, depth: u32) {
        assert!((1..=self.most).contains(&depth), "depth {depth} is not in 1..={}", self.most);
        let before = self.depth.swap(depth, Ordering::Relaxed);
        for (word, free) in self.free.iter().enumerate() {
            let more = self.share(depth, word).wrapping_sub(self.share(before, word));
            if more != 0 {
                free.fetch_add(more, Ordering::Relaxed);
            }
        }
    }

    /// How many tokens there are.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.depth.load(Ordering::Relaxed)
    }

    /// How many tokens are out. Exact while no thread takes, puts back, or changes the depth.
    #[must_use]
    pub fn nr_out(&self) -> u32 {
        let add = |sum: u32, free: &Line<AtomicU32>| sum.wrapping_add(free.load(Ordering::Relaxed));
        // Less than 0, if a thread takes or puts back just now.
        let out = self.depth().wrapping_sub(self.free.iter().fold(0, add));
        out.cast_signed().max(0).unsigned_abs()
    }

    /// Takes a token. Returns the word from which it came, or `None` if there is none.
    ///
    /// COST: a load of the depth; a load and a compare-exchange of the home's line; loads of more words only while
    /// those before have none.
    #[inline]
    #[must_use = "a token that is not put back is lost"]
    pub fn take(&self, home: u16) -> Option<u8> {
        let mut taken = self.take_some(home, 1);
        let word = taken.next();
        taken.end();
        word
    }

    /// Takes up to `count` tokens, as they are asked for.
    ///
    /// COST: a load of the depth; a load and a compare-exchange for each word that has some.
    #[inline]
    pub fn take_some(&self, home: u16, count: usize) -> Claim<'_> {
        // If the depth is growing just now, the thread that changes it then notifies the threads that found no token.
        let nr_words = self.nr_words();
        let wanted = u32::try_from(count).unwrap_or(u32::MAX);
        Claim { pool: self, word: usize::from(home) % nr_words, nr_words, left: nr_words, claimed: 0, wanted }
    }

    /// Puts `count` tokens back that came from this word. The caller then does what a thread does that frees something
    /// ([`Liveness::fence_before_notify`](crate::liveness::Liveness::fence_before_notify)).
    ///
    /// COST: one read-modify-write.
    #[inline]
    pub fn put(&self, word: u8, count: u32) {
        debug_assert!(count > 0, "a word is written only if tokens go back to it");
        // Relaxed: a token publishes nothing. The fences of `liveness` order this before the load of WAITING.
        let before = self.free[usize::from(word)].fetch_add(count, Ordering::Relaxed).cast_signed();
        debug_assert!(
            before + count.cast_signed() <= self.share(self.most, usize::from(word)).cast_signed(),
            "{count} tokens put back twice into word {word}, which has {before}"
        );
    }
}

/// Tokens that are being taken. Claimed tokens that were not given out go back at the [end](Self::end).
#[derive(Debug)]
#[must_use = "tokens that were claimed go back at the end"]
pub struct Claim<'a> {
    pool: &'a Pool,
    /// The word of the search.
    word: usize,
    /// How many words there are, and how many remain, this one included.
    nr_words: usize,
    left: usize,
    /// Tokens that were claimed of the word and not given out yet.
    claimed: u32,
    /// How many more to claim.
    wanted: u32,
}

impl Claim<'_> {
    /// Claims the free tokens of the next word. Returns false if no word has any, or enough are claimed.
    fn claim(&mut self) -> bool {
        debug_assert_eq!(self.claimed, 0, "what was claimed before has been given out");
        while self.wanted > 0 && self.left > 0 {
            let free = &self.pool.free[self.word];
            let mut seen = free.load(Ordering::Relaxed);
            let is_checked = unless_mutated("pool.empty");
            while seen.cast_signed() > 0 || !is_checked {
                let some = if is_checked { seen.min(self.wanted) } else { self.wanted };
                // Relaxed: as of `Pool::put`.
                match free.compare_exchange_weak(seen, seen.wrapping_sub(some), Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => {
                        (self.claimed, self.wanted) = (some, self.wanted - some);
                        return true;
                    }
                    Err(now) => seen = now,
                }
            }
            self.left -= 1;
            self.word = if self.word + 1 == self.nr_words { 0 } else { self.word + 1 };
        }
        false
    }

    /// Puts back the claimed tokens that were not given out. Returns whether there were any: then another thread may
    /// have found none meanwhile, and the caller does what a thread does that puts tokens back.
    #[inline]
    pub fn end(self) -> bool {
        let is_left = self.claimed > 0;
        if is_left {
            self.pool.put(self.word as u8, self.claimed);
        }
        is_left
    }
}

/// The words from which the tokens come.
impl Iterator for Claim<'_> {
    type Item = u8;

    #[inline]
    fn next(&mut self) -> Option<u8> {
        if self.claimed == 0 && !self.claim() {
            return None;
        }
        self.claimed -= 1;
        Some(self.word as u8)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::platform::{Arc, thread};

    /// Red if a word is left out of a search, or gives out more than its share.
    #[test]
    fn a_pool_gives_out_as_many_as_it_is_deep_from_whichever_home() {
        for (most, depth) in [(256, 256), (256, 13), (64, 64), (16, 16), (16, 1), (1, 1)] {
            let pool = Pool::new(most, depth);
            for home in [0, 5] {
                let words: Vec<_> = std::iter::from_fn(|| pool.take(home)).collect();
                assert_eq!((words.len() as u32, pool.nr_out(), pool.take(home + 1)), (depth, depth, None), "{most}");
                words.into_iter().for_each(|word| pool.put(word, 1));
                assert_eq!(pool.nr_out(), 0);
            }
        }
    }

    /// Red if two of 32 threads share a word although there are eight tokens for each.
    #[test]
    fn each_of_32_threads_finds_its_batch_in_a_word_of_its_own() {
        let pool = Pool::new(256, 256);
        for home in 0..32 {
            let mut taken = pool.take_some(home, 8);
            assert!(taken.by_ref().eq([home as u8; 8]));
            assert!(!taken.end());
        }
        assert_eq!(pool.take(0), None);
    }

    /// Red if a batch takes more than was asked for, or keeps what it did not give out.
    #[test]
    fn a_batch_takes_what_it_gives_out_and_no_more() {
        let pool = Pool::new(256, 40);
        let mut taken = pool.take_some(3, 12);
        let words: Vec<_> = taken.by_ref().take(7).collect();
        assert_eq!(words, [3, 3, 4, 4, 5, 5, 6], "the home comes first");
        assert!(pool.nr_out() > 7, "some are claimed and not given out");
        assert!(taken.end());
        assert_eq!(pool.nr_out(), 7);
        let mut taken = pool.take_some(0, 100);
        assert_eq!(taken.by_ref().count(), 33);
        assert!(!taken.end() && pool.take(0).is_none());
    }

    /// Red if a depth that falls takes tokens away that are out, or lets new ones out before enough have come back.
    #[test]
    fn a_depth_that_falls_holds_for_what_is_taken_from_then_on() {
        let pool = Pool::new(64, 64);
        let words: Vec<_> = (0..60).map_while(|_| pool.take(0)).collect();
        pool.set_depth(8);
        assert_eq!((pool.nr_out(), pool.take(0)), (60, None));
        words.into_iter().for_each(|word| pool.put(word, 1));
        assert_eq!(std::iter::from_fn(|| pool.take(1)).count(), 8);
        pool.set_depth(64);
        assert_eq!(std::iter::from_fn(|| pool.take(1)).count(), 56);
    }

    #[test]
    #[should_panic(expected = "put back twice")]
    #[cfg(debug_assertions)]
    fn a_token_that_comes_back_twice_is_caught() {
        let pool = Pool::new(16, 16);
        let word = pool.take(0).expect("there are some");
        pool.put(word, 1);
        pool.put(word, 1);
    }

    /// Red if a take or a put is not one read-modify-write: the sum is wrong then, or more are out than there may be.
    #[test]
    fn a_pool_loses_nothing_under_threads() {
        const ROUNDS: u32 = if cfg!(miri) { 50 } else { 50_000 };
        let shared = Arc::new((Pool::new(32, 10), AtomicU32::new(0)));
        let threads = (0..3u16).map(|home| {
            let shared = shared.clone();
            thread::spawn(move || {
                let (pool, out) = &*shared;
                for round in 0..ROUNDS {
                    let mut taken = pool.take_some(home, 1 + round as usize % 5);
                    let words: Vec<_> = taken.by_ref().take(4).collect();
                    taken.end();
                    let before = out.fetch_add(words.len() as u32, Ordering::Relaxed);
                    assert!(before + words.len() as u32 <= 10, "more are out than there are");
                    out.fetch_sub(words.len() as u32, Ordering::Relaxed);
                    words.into_iter().for_each(|word| pool.put(word, 1));
                }
            })
        });
        threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(shared.0.nr_out(), 0);
    }
}
