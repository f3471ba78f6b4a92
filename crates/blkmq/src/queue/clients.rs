//! The clients that submitters serve, told apart by their names. A client is known as long as a submitter serves it.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::fmt::{self, Write};
use std::hash::BuildHasherDefault;

use blkmq_sched::{ClientId, ClientSettings};

use super::service::Served;
use crate::request::client::Client;
use crate::request::limits::MAX_MEMBERS;

const _: () = assert!(MAX_MEMBERS <= ClientId::PLACES, "each submitter may serve another client");

/// A client that is known.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) name: String,
    pub(super) settings: ClientSettings,
    /// How many submitters serve the client.
    pub(super) nr_submitters: u32,
    /// What was done for the client by submitters that have left.
    pub(super) past: Served,
}

/// A place in the table.
#[derive(Debug, Default)]
struct Place {
    /// The client that has the place.
    client: Option<Known>,
    /// How often the place was given to a client. The count wraps.
    times: u32,
}

/// The table of clients. The table has as many places as there ever were clients at the same time.
#[derive(Debug, Default)]
pub(super) struct Clients {
    /// The hash is the same in every run, so that the allocations of a run depend only on its seed.
    ids: HashMap<String, ClientId, BuildHasherDefault<DefaultHasher>>,
    places: Vec<Place>,
    free: Vec<usize>,
}

impl Clients {
    /// Called when a submitter begins to serve a client. Returns the client's id, which holds until the last of its
    /// submitters leaves, and whether the client is new. A client that is known keeps its settings.
    pub(super) fn join(&mut self, client: &Client) -> (ClientId, bool) {
        if let Some(&id) = self.ids.get(&client.name) {
            let known = self.get_mut(id).expect("a name belongs to a client that is known");
            debug_assert!(known.nr_submitters > 0, "a client is known while a submitter serves it");
            known.nr_submitters += 1;
            return (id, false);
        }
        let number = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            self.places.len() - 1
        });
        let place = &mut self.places[number];
        let mut times = place.times.wrapping_add(1);
        // The default is the id of no client.
        if ClientId::new(number, times) == ClientId::default() {
            times += 1;
        }
        let &Client { ref name, weight, priority, group } = client;
        let settings = ClientSettings { weight, priority, group };
        let known = Known { name: name.clone(), settings, nr_submitters: 1, past: Served::default() };
        *place = Place { client: Some(known), times };
        let id = ClientId::new(number, times);
        self.ids.insert(name.clone(), id);
        (id, true)
    }

    /// Called when a submitter that served this client leaves, for which it has done `served`. Returns whether the
    /// client is gone: no submitter serves it any more.
    pub(super) fn leave(&mut self, id: ClientId, served: Served) -> bool {
        let known = self.get_mut(id).expect("the client is known while a submitter serves it");
        debug_assert!(known.nr_submitters > 0, "a submitter that leaves a client has served it");
        known.nr_submitters -= 1;
        known.past += served;
        let is_gone = known.nr_submitters == 0;
        if is_gone && let Some(client) = self.places[id.place()].client.take() {
            self.ids.remove(&client.name);
            self.free.push(id.place());
        }
        is_gone
    }

    /// The client with this id, if it is still there.
    pub(super) fn get(&self, id: ClientId) -> Option<&Known> {
        let place = self.places.get(id.place())?;
        place.client.as_ref().filter(|_| ClientId::new(id.place(), place.times) == id)
    }

    /// The client with this id, if it is still there.
    pub(super) fn get_mut(&mut self, id: ClientId) -> Option<&mut Known> {
        let place = self.places.get_mut(id.place())?;
        place.client.as_mut().filter(|_| ClientId::new(id.place(), place.times) == id)
    }

    /// The client of this name.
    pub(super) fn of_name(&self, name: &str) -> Option<ClientId> {
        self.ids.get(name).copied()
    }

    /// The clients that are known, by place.
    pub(super) fn iter(&self) -> impl Iterator<Item = (ClientId, &Known)> {
        self.places.iter().enumerate().filter_map(|(number, place)| {
            let client = place.client.as_ref()?;
            Some((ClientId::new(number, place.times), client))
        })
    }

    /// The clients that are known, by place, to be changed.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (ClientId, &mut Known)> {
        self.places.iter_mut().enumerate().filter_map(|(number, place)| {
            let client = place.client.as_mut()?;
            Some((ClientId::new(number, place.times), client))
        })
    }

    /// Writes the clients that are known.
    pub(super) fn show(&self, out: &mut dyn Write) -> fmt::Result {
        writeln!(out, "clients {} places {}", self.ids.len(), self.places.len())?;
        for (id, Known { name, settings, nr_submitters, .. }) in self.iter() {
            let ClientSettings { weight, priority, group } = settings;
            let (class, level, group) = (priority.class, priority.level, group.place());
            write!(out, "client {}: {name:?} weight {weight} priority {class:?} {level} group {group}", id.place())?;
            writeln!(out, " submitters {nr_submitters}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use blkmq_sched::{GroupId, IoPriority};

    use super::*;

    /// Red if the place of a client that left is not given again, or if the next client there has the old id.
    #[test]
    fn the_place_of_a_client_that_left_is_given_again_under_another_id() {
        let mut clients = Clients::default();
        let (stays, _) = clients.join(&Client::new("stays"));
        let mut ids = HashSet::from([stays, ClientId::default()]);
        for number in 0..100_000 {
            let (id, is_new) = clients.join(&Client::new(number.to_string()));
            assert!(is_new && ids.insert(id), "client {number} has the id {id:?} of an earlier one");
            assert!(clients.get(id).is_some() && clients.leave(id, Served::default()) && clients.get(id).is_none());
        }
        assert_eq!((clients.places.len(), clients.ids.len()), (2, 1));
        assert_eq!(clients.join(&Client::new("stays")), (stays, false));
    }

    /// Red if the count of how often a place was given wraps to the id that belongs to no client.
    #[test]
    fn no_client_has_the_default_id() {
        for times in [(1 << 20) - 1, u32::MAX] {
            let mut clients = Clients::default();
            let client = Client::new("a");
            let (first, _) = clients.join(&client);
            clients.leave(first, Served::default());
            assert_eq!(first.place(), 0, "the default id is of the first place");
            clients.places[0].times = times;
            let (id, _) = clients.join(&client);
            assert_ne!(id, ClientId::default(), "after {times} times");
            assert_eq!(id.place(), 0);
            clients.leave(id, Served::default());
            assert_eq!(clients.ids.len(), 0);
        }
    }

    /// Red if clients of one name are told apart, or a second submitter changes what the first one's client is, or one
    /// of several submitters that leaves takes the client with it.
    #[test]
    fn clients_of_one_name_are_one_until_the_last_submitter_leaves() {
        let mut clients = Clients::default();
        let client = Client::new("a");
        let (id, _) = clients.join(&client);
        let others = [
            Client { weight: 200, ..client.clone() },
            Client { group: GroupId::new(1, 1), ..client.clone() },
            client.clone().with_priority(IoPriority { level: 0, ..client.priority }),
        ];
        for other in &others {
            assert_eq!(clients.join(other), (id, false));
        }
        let known = clients.get(id).expect("it is there");
        assert_eq!((known.settings, known.nr_submitters), (ClientSettings::default(), 4));
        assert_ne!(clients.join(&Client::new("b")).0, id);
        let served = Served { sectors: [1, 2], ..Served::default() };
        (0..3).for_each(|_| assert!(!clients.leave(id, served)));
        assert_eq!(clients.get(id).expect("one is left").past.sectors, [3, 6]);
        assert!(clients.leave(id, served));
        assert_eq!((clients.of_name("a"), clients.ids.len()), (None, 1));
        assert_ne!(clients.join(&client).0, id);
    }
}
