//! The map against a vector of bools, its shape, and its conservation under threads.

use proptest::prelude::*;

use super::*;
use crate::platform::{Arc, thread};

#[derive(Debug, Clone)]
enum Step {
    Get,
    GetBatch(usize),
    /// The tag that is this far, modulo their number, in the list of those out.
    Put(usize),
    /// So many from there, modulo their number.
    PutBatch(usize, usize),
    /// Put all back, then this many tags, modulo the maximum.
    Resize(usize),
}

/// A map beside a vector of bools that says which tags are out.
struct Compared {
    tags: Tags,
    busy: Vec<bool>,
    out: Vec<Tag>,
    hints: [Hint; 2],
    steps: usize,
}

impl Compared {
    fn new(max_depth: u32, depth: u32) -> Self {
        let hints = [Hint::new(0), Hint::new(1)];
        Self { tags: Tags::new(max_depth, depth), busy: vec![false; depth as usize], out: Vec::new(), hints, steps: 0 }
    }

    fn step(&mut self, step: &Step) {
        self.steps += 1;
        let hint = &mut self.hints[self.steps % 2];
        match *step {
            Step::Get => {
                let got = self.tags.get(hint);
                assert_eq!(got.is_none(), self.out.len() == self.busy.len(), "none exactly if all are out");
                self.took(got.as_slice());
            }
            Step::GetBatch(count) => {
                let mut batch = vec![Tag(u16::MAX); count];
                let got = self.tags.get_batch(hint, &mut batch);
                assert_eq!(got, count.min(self.busy.len() - self.out.len()));
                self.took(&batch[..got]);
            }
            Step::Put(at) if !self.out.is_empty() => {
                let tag = self.out.swap_remove(at % self.out.len());
                self.busy[usize::from(tag.0)] = false;
                self.tags.put(tag, hint);
            }
            Step::Put(_) => {}
            Step::PutBatch(from, count) => {
                let from = from % (self.out.len() + 1);
                let end = self.out.len().min(from + count);
                let batch: Vec<Tag> = self.out.drain(from..end).collect();
                batch.iter().for_each(|tag| self.busy[usize::from(tag.0)] = false);
                self.tags.put_batch(&batch, hint);
            }
            Step::Resize(depth) => {
                self.tags.put_batch(&std::mem::take(&mut self.out), hint);
                let depth = 1 + depth as u32 % self.tags.max_depth;
                self.tags.resize(depth);
                self.busy = vec![false; depth as usize];
            }
        }
        assert_eq!(self.tags.weight() as usize, self.out.len());
    }

    fn took(&mut self, got: &[Tag]) {
        for &tag in got {
            assert!(!std::mem::replace(&mut self.busy[usize::from(tag.0)], true), "{tag:?} is out already");
            self.out.push(tag);
        }
    }

    /// Compares every tag.
    fn compare(&self) {
        assert_eq!(self.tags.depth() as usize, self.busy.len());
        let mut seen = Vec::new();
        self.tags.for_each_busy(|tag| seen.push(tag));
        let busy = (0..self.busy.len()).filter(|&tag| self.busy[tag]);
        assert_eq!(seen, busy.map(|tag| Tag(tag as u16)).collect::<Vec<_>>());
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => Just(Step::Get),
        2 => (0_usize..70).prop_map(Step::GetBatch),
        4 => (0_usize..2000).prop_map(Step::Put),
        2 => (0_usize..2000, 0_usize..70).prop_map(|(from, count)| Step::PutBatch(from, count)),
        1 => (0_usize..2000).prop_map(Step::Resize),
    ];
    prop::collection::vec(step, 0..if cfg!(miri) { 20 } else { 200 })
}

/// The cases come from `BLKMQ_SEED`, or from a fixed seed. The seed is printed, so that a failing run shows it.
#[test]
fn tags_behave_like_a_vector_of_bools() {
    let seed = std::env::var("BLKMQ_SEED").map_or(0x0b10_c3e5, |seed| seed.parse().expect("BLKMQ_SEED is a number"));
    println!("BLKMQ_SEED={seed}");
    let cases = if cfg!(miri) { 4 } else { 2048 };
    let rng_seed = proptest::test_runner::RngSeed::Fixed(seed);
    let config = ProptestConfig { cases, rng_seed, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(max_depth in 1_u32..1100, steps in steps())| {
        let mut compared = Compared::new(max_depth, max_depth);
        for step in &steps {
            compared.step(step);
            compared.compare();
        }
    });
}

/// Threads get and put, one at a time and in batches. Each keeps a count per tag with plain loads and stores: it would
/// miss some if two threads ever had the same tag, or one did not see what the owner before it did.
#[test]
fn tags_are_conserved_under_threads() {
    const THREADS: u32 = 4;
    const DEPTH: u32 = 37;
    let turns = if cfg!(miri) { 50 } else { 100_000 };
    let shared = Arc::new((Tags::new(DEPTH, DEPTH), [const { AtomicU64::new(0) }; DEPTH as usize]));
    let threads = (0..THREADS).map(|number| {
        let shared = shared.clone();
        thread::spawn(move || {
            let (tags, uses) = &*shared;
            let (mut hint, mut used) = (Hint::new(number), 0);
            for turn in 0..turns {
                let mut batch = [Tag(0); 16];
                let wanted = 1 + turn * 7 % batch.len();
                let count = tags.get_batch(&mut hint, &mut batch[..wanted]);
                for tag in &batch[..count] {
                    let uses = &uses[usize::from(tag.0)];
                    uses.store(uses.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                    used += 1;
                }
                match &batch[..count] {
                    &[tag] => tags.put(tag, &mut hint),
                    batch => tags.put_batch(batch, &mut hint),
                }
            }
            used
        })
    });
    let used: u64 = threads.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).sum();
    assert_eq!(shared.1.iter().map(|uses| uses.load(Ordering::Relaxed)).sum::<u64>(), used);
    assert_eq!(shared.0.weight(), 0);
    assert_eq!(shared.0.get_batch(&mut Hint::default(), &mut [Tag(0); DEPTH as usize + 1]), DEPTH as usize);
}

fn first_line(tags: &Tags) -> String {
    let mut text = String::new();
    tags.show(&mut text).expect("a string takes everything");
    text.lines().next().expect("show writes at least one line").to_owned()
}

#[test]
fn tags_of_small_maps_are_spread_over_words() {
    let shapes = [
        (1, 1, 64),
        (3, 1, 64),
        (4, 4, 1),
        (7, 7, 1),
        (8, 4, 2),
        (64, 4, 16),
        (200, 7, 32),
        (255, 8, 32),
        (256, 4, 64),
        (1024, 16, 64),
        (65536, 1024, 64),
    ];
    for (depth, words, bits) in shapes {
        let tags = Tags::new(depth, depth);
        assert_eq!(first_line(&tags), format!("depth={depth} busy=0 words={words} bits_per_word={bits}"));
    }
    for max_depth in 1..300 {
        let tags = Tags::new(max_depth, 1);
        for depth in 1..=max_depth {
            tags.resize(depth);
            let mut all = vec![Tag(0); depth as usize + 1];
            assert_eq!(tags.get_batch(&mut Hint::default(), &mut all), depth as usize, "{depth} of {max_depth}");
            tags.put_batch(&all[..depth as usize], &mut Hint::default());
            if cfg!(miri) && depth >= 9 {
                break;
            }
        }
        if cfg!(miri) && max_depth >= 20 {
            break;
        }
    }
}

#[test]
fn tags_of_neighbouring_submitters_come_from_different_words() {
    let tags = Tags::new(64, 64);
    let mut words: Vec<u16> = (0..4).map(|number| tags.get(&mut Hint::new(number)).unwrap().0 / 16).collect();
    words.sort_unstable();
    assert_eq!(words, [0, 1, 2, 3]);
}

#[test]
fn tags_move_the_hint_only_when_it_was_exact_put_or_useless() {
    let tags = Tags::new(64, 64);
    let mut hint = Hint(16);
    assert_eq!((tags.get(&mut hint), hint), (Some(Tag(16)), Hint(17)));
    assert_eq!((tags.get(&mut hint), hint), (Some(Tag(17)), Hint(18)));
    let mut elsewhere = Hint(20);
    assert_eq!((tags.get(&mut elsewhere), elsewhere), (Some(Tag(18)), Hint(20)));
    tags.put(Tag(16), &mut hint);
    assert_eq!(hint, Hint(16));
    // Deferred: 16 is free, but comes back only once its word is full.
    assert_eq!(tags.weight(), 2);
    assert_eq!(tags.get(&mut hint), Some(Tag(19)));
    let mut all = [Tag(0); 64];
    assert_eq!(tags.get_batch(&mut hint, &mut all), 61);
    assert_eq!((tags.get(&mut hint), hint), (None, Hint(0)));
}

#[test]
fn tags_of_a_word_come_back_in_one_go() {
    let tags = Tags::new(3, 3);
    let mut hint = Hint::default();
    let mut all = [Tag(0); 3];
    assert_eq!(tags.get_batch(&mut hint, &mut all), 3);
    tags.put_batch(&[Tag(2), Tag(0)], &mut hint);
    let mut text = String::new();
    tags.show(&mut text).unwrap();
    assert_eq!(text, "depth=3 busy=1 words=1 bits_per_word=64\nword 0: taken=0x7 cleared=0x5\n");
    assert_eq!(tags.get(&mut hint), Some(Tag(0)));
    text.clear();
    tags.show(&mut text).unwrap();
    assert_eq!(text, "depth=3 busy=2 words=1 bits_per_word=64\nword 0: taken=0x3 cleared=0x0\n");
}

/// Red if `Claim` does not put back what it claimed for nothing.
#[test]
fn tags_are_taken_as_they_are_asked_for() {
    let tags = Tags::new(64, 64);
    let mut hint = Hint(14);
    let mut taken = tags.take(&mut hint, 20);
    assert_eq!(taken.by_ref().take(3).collect::<Vec<_>>(), [Tag(0), Tag(1), Tag(2)]);
    drop(taken);
    assert_eq!((tags.weight(), hint), (3, Hint(14)));
    assert_eq!(tags.take(&mut hint, 100).count(), 61);
    assert_eq!(tags.take(&mut hint, 1).next(), None);
    assert_eq!(hint, Hint(0));
}

#[test]
fn tags_share_no_line_between_words() {
    assert_eq!(align_of::<Line<Word>>(), 128);
}

#[test]
#[should_panic = "depth 5 is not in 1..=4"]
fn tags_stay_within_the_maximum() {
    Tags::new(4, 4).resize(5);
}

#[cfg(debug_assertions)]
#[test]
#[should_panic = "put back but not out"]
fn tags_never_out_cannot_be_put_back() {
    Tags::new(4, 4).put(Tag(1), &mut Hint::default());
}
