//! The clients that submitters serve. Equal clients are one client. A client is known as long as a submitter serves it.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::fmt::{self, Write};
use std::hash::BuildHasherDefault;

use blkmq_sched::ClientId;

use crate::request::client::Client;
use crate::request::limits::MAX_MEMBERS;

const _: () = assert!(MAX_MEMBERS <= ClientId::PLACES, "each submitter may serve another client");

/// A place in the table.
#[derive(Debug, Default)]
struct Place {
    /// The client that has the place.
    client: Option<Client>,
    /// How many submitters serve that client.
    nr_submitters: u32,
    /// How often the place was given to a client. The count wraps.
    times: u32,
}

/// The table of clients. The table has as many places as there ever were clients at the same time.
#[derive(Debug, Default)]
pub(super) struct Clients {
    /// The hash is the same in every run, so that the allocations of a run depend only on its seed.
    ids: HashMap<Client, ClientId, BuildHasherDefault<DefaultHasher>>,
    places: Vec<Place>,
    free: Vec<usize>,
}

impl Clients {
    /// Called when a submitter begins to serve a client. Returns the client's id, which holds until the last of its
    /// submitters leaves.
    pub(super) fn join(&mut self, client: &Client) -> ClientId {
        if let Some(&id) = self.ids.get(client) {
            debug_assert!(self.places[id.place()].nr_submitters > 0, "a client is known while a submitter serves it");
            self.places[id.place()].nr_submitters += 1;
            return id;
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
        *place = Place { client: Some(client.clone()), nr_submitters: 1, times };
        let id = ClientId::new(number, times);
        self.ids.insert(client.clone(), id);
        id
    }

    /// Called when a submitter that served this client leaves. Nothing that it asked for is outstanding, so no
    /// scheduler has the id of a client that is gone.
    pub(super) fn leave(&mut self, id: ClientId) {
        let place = &mut self.places[id.place()];
        debug_assert_eq!(ClientId::new(id.place(), place.times), id, "the client is known while a submitter serves it");
        debug_assert!(place.nr_submitters > 0, "a submitter that leaves a client has served it");
        place.nr_submitters -= 1;
        if place.nr_submitters == 0
            && let Some(client) = place.client.take()
        {
            self.ids.remove(&client);
            self.free.push(id.place());
        }
    }

    /// Writes the clients that are known.
    pub(super) fn show(&self, out: &mut dyn Write) -> fmt::Result {
        writeln!(out, "clients {} places {}", self.ids.len(), self.places.len())?;
        for (number, Place { client, nr_submitters, .. }) in self.places.iter().enumerate() {
            if let Some(Client { name, weight, priority, group }) = client {
                let (class, level) = (priority.class, priority.level);
                write!(out, "client {number}: {name:?} weight {weight} priority {class:?} {level} group {group}")?;
                writeln!(out, " submitters {nr_submitters}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Red if the place of a client that left is not given again, or if the next client there has the old id.
    #[test]
    fn the_place_of_a_client_that_left_is_given_again_under_another_id() {
        let mut clients = Clients::default();
        let stays = clients.join(&Client::new("stays"));
        let mut ids = HashSet::from([stays, ClientId::default()]);
        for number in 0..100_000 {
            let id = clients.join(&Client::new(number.to_string()));
            assert!(ids.insert(id), "client {number} has the id {id:?} of an earlier one");
            clients.leave(id);
        }
        assert_eq!((clients.places.len(), clients.ids.len()), (2, 1));
        assert_eq!(clients.join(&Client::new("stays")), stays);
    }

    /// Red if the count of how often a place was given wraps to the id that belongs to no client.
    #[test]
    fn no_client_has_the_default_id() {
        for times in [(1 << 20) - 1, u32::MAX] {
            let mut clients = Clients::default();
            let client = Client::new("a");
            let first = clients.join(&client);
            clients.leave(first);
            assert_eq!(first.place(), 0, "the default id is of the first place");
            clients.places[0].times = times;
            let id = clients.join(&client);
            assert_ne!(id, ClientId::default(), "after {times} times");
            assert_eq!(id.place(), 0);
            clients.leave(id);
            assert_eq!(clients.ids.len(), 0);
        }
    }

    /// Red if equal clients are told apart, or different clients are not, or if one of several submitters that leaves
    /// takes the client with it.
    #[test]
    fn equal_clients_are_one_until_the_last_submitter_leaves() {
        let mut clients = Clients::default();
        let client = Client::new("a");
        let id = clients.join(&client);
        assert_eq!(clients.join(&client.clone()), id);
        let others = [
            Client::new("b"),
            Client { weight: 200, ..client.clone() },
            Client { group: 1, ..client.clone() },
            client.clone().with_priority(blkmq_sched::IoPriority { level: 0, ..client.priority }),
        ];
        for other in &others {
            assert_ne!(clients.join(other), id);
        }
        clients.leave(id);
        assert_eq!(clients.join(&client), id);
        clients.leave(id);
        clients.leave(id);
        assert_eq!(clients.ids.len(), others.len());
        assert_ne!(clients.join(&client), id);
    }
}
