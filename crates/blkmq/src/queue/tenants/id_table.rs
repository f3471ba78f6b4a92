//! A table of what comes and goes: clients, groups. A place is given again, each time under another id.

use std::marker::PhantomData;

use blkmq_sched::{ClientId, GroupId};

/// An id: a place, and how often the place was given. The default is the id of no entry.
pub(super) trait Id: Copy + PartialEq + Default {
    /// How many places there can be.
    const PLACES: usize;
    fn new(place: usize, times: u32) -> Self;
    fn place(self) -> usize;
}

macro_rules! ids {
    ($($id:ident),+) => {
        $(impl Id for $id {
            const PLACES: usize = Self::PLACES;
            fn new(place: usize, times: u32) -> Self {
                Self::new(place, times)
            }
            fn place(self) -> usize {
                self.place()
            }
        })+
    };
}
ids!(ClientId, GroupId);

#[derive(Debug)]
struct Entry<T> {
    entry: Option<T>,
    /// How often the place was given. The count wraps.
    times: u32,
}

/// The table. It has as many places as there ever were entries at the same time.
#[derive(Debug)]
pub(super) struct IdTable<I, T> {
    places: Vec<Entry<T>>,
    free: Vec<usize>,
    ids: PhantomData<I>,
}

impl<I, T> Default for IdTable<I, T> {
    fn default() -> Self {
        Self { places: Vec::new(), free: Vec::new(), ids: PhantomData }
    }
}

impl<I: Id, T> IdTable<I, T> {
    /// A table that gives its first place to no entry.
    pub(super) fn without_first() -> Self {
        Self { places: vec![Entry { entry: None, times: 0 }], ..Self::default() }
    }

    /// Gives the entry a place and an id that no entry has, and none had lately. `None` if all places are taken.
    pub(super) fn add(&mut self, entry: T) -> Option<I> {
        let number = match self.free.pop() {
            Some(number) => number,
            None if self.places.len() < I::PLACES => {
                self.places.push(Entry { entry: None, times: 0 });
                self.places.len() - 1
            }
            None => return None,
        };
        let place = &mut self.places[number];
        debug_assert!(place.entry.is_none(), "a free place is empty");
        place.times = place.times.wrapping_add(1);
        if I::new(number, place.times) == I::default() {
            place.times += 1;
        }
        place.entry = Some(entry);
        Some(I::new(number, place.times))
    }

    /// Takes the entry out, if it is there. Its place is free.
    pub(super) fn remove(&mut self, id: I) -> Option<T> {
        self.get(id)?;
        self.free.push(id.place());
        self.places[id.place()].entry.take()
    }

    /// The entry with this id, if it is still there.
    pub(super) fn get(&self, id: I) -> Option<&T> {
        let place = self.places.get(id.place())?;
        place.entry.as_ref().filter(|_| I::new(id.place(), place.times) == id)
    }

    /// The entry with this id, if it is still there, to be changed.
    pub(super) fn get_mut(&mut self, id: I) -> Option<&mut T> {
        let place = self.places.get_mut(id.place())?;
        place.entry.as_mut().filter(|_| I::new(id.place(), place.times) == id)
    }

    /// The entries, by place.
    pub(super) fn iter(&self) -> impl Iterator<Item = (I, &T)> {
        let places = self.places.iter().enumerate();
        places.filter_map(|(number, place)| Some((I::new(number, place.times), place.entry.as_ref()?)))
    }

    /// The entries, by place, to be changed.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (I, &mut T)> {
        let places = self.places.iter_mut().enumerate();
        places.filter_map(|(number, place)| Some((I::new(number, place.times), place.entry.as_mut()?)))
    }

    /// How many places there are, taken or free.
    pub(super) const fn nr_places(&self) -> usize {
        self.places.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Red if a free place is not given again, or the next entry there has the old id.
    #[test]
    fn a_free_place_is_given_again_under_another_id() {
        let mut places = IdTable::<ClientId, usize>::default();
        let stays = places.add(0).expect("there is room");
        let mut ids = HashSet::from([stays, ClientId::default()]);
        for number in 0..100_000 {
            let id = places.add(number).expect("there is room");
            assert!(ids.insert(id), "entry {number} has the id {id:?} of an earlier one");
            assert_eq!(places.get(id), Some(&number));
            assert_eq!((places.remove(id), places.remove(id)), (Some(number), None));
        }
        assert_eq!((places.nr_places(), places.get(stays)), (2, Some(&0)));
    }

    /// Red if the count of how often a place was given wraps to the default id.
    #[test]
    fn no_entry_has_the_default_id() {
        for times in [(1 << 20) - 1, u32::MAX] {
            let mut places = IdTable::<ClientId, ()>::default();
            let first = places.add(()).expect("there is room");
            places.remove(first);
            assert_eq!(first.place(), 0, "the default id is of the first place");
            places.places[0].times = times;
            let id = places.add(()).expect("there is room");
            assert!(id != ClientId::default() && id.place() == 0, "after {times} times: {id:?}");
            assert_eq!(places.remove(id), Some(()));
        }
    }

    /// Red if the first place is given, or more places than ids can name.
    #[test]
    fn a_table_without_its_first_place_is_full_one_earlier() {
        let mut groups = IdTable::<GroupId, usize>::without_first();
        let ids: Vec<GroupId> = (1..GroupId::PLACES).filter_map(|number| groups.add(number)).collect();
        assert_eq!(ids.len(), GroupId::PLACES - 1);
        assert!(ids.iter().all(|id| id.place() > 0) && groups.add(0).is_none());
    }
}
