//! Models of the tag map: a tag has one owner at a time, and what an owner did is visible to the next.

use crate::model::{Exclusive, fail_without, holds, join, spawn};
use blkmq_sync::Arc;
use blkmq_sync::tags::{Hint, Tag, Tags};

struct Map {
    tags: Tags,
    owned: Vec<Exclusive>,
}

impl Map {
    fn new(depth: u32) -> Arc<Self> {
        Arc::new(Self { tags: Tags::new(depth, depth), owned: (0..depth).map(|_| Exclusive::default()).collect() })
    }

    /// Gets a tag, uses what the tag stands for, and puts the tag back.
    fn turn(&self) {
        let mut hint = Hint::default();
        if let Some(tag) = self.tags.get(&mut hint) {
            self.owned[usize::from(tag.0)].touch();
            self.tags.put(tag, &mut hint);
        }
    }

    /// As `turn`, with a batch.
    fn turn_of_two(&self) {
        let mut hint = Hint::default();
        let mut batch = [Tag(0); 2];
        let count = self.tags.get_batch(&mut hint, &mut batch);
        for tag in &batch[..count] {
            self.owned[usize::from(tag.0)].touch();
        }
        self.tags.put_batch(&batch[..count], &mut hint);
    }

    fn is_whole(&self) {
        assert_eq!(self.tags.weight(), 0);
        let mut all = vec![Tag(0); self.owned.len() + 1];
        assert_eq!(self.tags.get_batch(&mut Hint::default(), &mut all), self.owned.len());
    }
}

/// Three threads, one tag. Every get except the first goes through a deferred clear, by the getter itself or by a third
/// thread.
fn one_tag() {
    let map = Map::new(1);
    let others = [0; 2].map(|_| spawn(&map, Map::turn));
    map.turn();
    others.into_iter().for_each(join);
    map.is_whole();
}

/// Batches that overlap in a word of three tags.
fn batches() {
    let map = Map::new(3);
    let other = spawn(&map, move |map| (0..2).for_each(|_| map.turn_of_two()));
    map.turn_of_two();
    map.turn();
    join(other);
    map.is_whole();
}

/// One thread puts the only tag back, another folds it back and takes it, and a third watches the weight fall to zero.
fn watched() {
    let map = Map::new(1);
    let tag = map.tags.get(&mut Hint::default()).expect("a tag is free");
    let owner = spawn(&map, move |map| {
        map.owned[0].touch();
        map.tags.put(tag, &mut Hint::default());
    });
    let getter = spawn(&map, |map| {
        if let Some(tag) = map.tags.get(&mut Hint::default()) {
            map.tags.put(tag, &mut Hint::default());
        }
    });
    if map.tags.weight() == 0 {
        map.owned[0].touch();
    }
    join(owner);
    join(getter);
    assert_eq!(map.tags.weight(), 0);
}

#[test]
fn a_tag_has_one_owner_and_hands_on_what_it_did() {
    holds(one_tag);
}

#[test]
fn batches_share_a_word() {
    holds(batches);
}

#[test]
fn a_weight_of_zero_shows_what_the_owners_did() {
    holds(watched);
}

#[test]
fn each_ordering_and_fence_is_needed() {
    fail_without(&[
        ("tags.get", one_tag),
        ("tags.put", one_tag),
        ("tags.fold_acquire", one_tag),
        ("tags.fold_release", one_tag),
        ("tags.busy_cleared", watched),
        ("tags.busy_taken", watched),
    ]);
}
