//! The clients that submitters serve, told apart by their names. A client is known as long as a submitter serves it.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::fmt::{self, Write};
use std::hash::{BuildHasher, BuildHasherDefault};

use blkmq_sched::{ClientId, ClientSettings};

use super::id_table::IdTable;
use super::service::Served;
use crate::request::client::Client;
use crate::request::limits::MAX_THREADS;

const _: () = assert!(MAX_THREADS <= ClientId::PLACES, "each submitter may serve another client");

/// A client that is known.
#[derive(Debug)]
pub(super) struct ClientEntry {
    pub(super) name: String,
    pub(super) settings: ClientSettings,
    /// How many submitters serve the client.
    pub(super) nr_submitters: u32,
    /// What was done for the client by submitters that have left.
    pub(super) past: Served,
}

/// What a scheduler is given instead of a name.
fn hash_of(name: &str) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(name).max(1)
}

/// The table of clients.
#[derive(Debug, Default)]
pub(super) struct Clients {
    /// The hash is the same in every run, so that the allocations of a run depend only on its seed.
    ids: HashMap<String, ClientId, BuildHasherDefault<DefaultHasher>>,
    /// The clients that are known.
    pub(super) places: IdTable<ClientId, ClientEntry>,
}

impl Clients {
    /// Called when a submitter begins to serve a client. Returns the client's id, which holds until the last of its
    /// submitters leaves, and whether the client is new. A client that is known keeps its settings.
    pub(super) fn join(&mut self, client: &Client) -> (ClientId, bool) {
        if let Some(&id) = self.ids.get(&client.name) {
            let known = self.places.get_mut(id).expect("a name belongs to a client that is known");
            debug_assert!(known.nr_submitters > 0, "a client is known while a submitter serves it");
            known.nr_submitters += 1;
            return (id, false);
        }
        let &Client { ref name, weight, priority, group } = client;
        let settings = ClientSettings { weight, priority, group, name: hash_of(name) };
        let known = ClientEntry { name: name.clone(), settings, nr_submitters: 1, past: Served::default() };
        let id = self.places.add(known).expect("there are as many places as submitters");
        self.ids.insert(name.clone(), id);
        (id, true)
    }

    /// Called when a submitter that served this client leaves, for which it has done `served`. Returns whether the
    /// client is gone: no submitter serves it any more.
    pub(super) fn leave(&mut self, id: ClientId, served: Served) -> bool {
        let known = self.places.get_mut(id).expect("the client is known while a submitter serves it");
        debug_assert!(known.nr_submitters > 0, "a submitter that leaves a client has served it");
        known.nr_submitters -= 1;
        known.past += served;
        let is_gone = known.nr_submitters == 0;
        if is_gone && let Some(client) = self.places.remove(id) {
            self.ids.remove(&client.name);
        }
        is_gone
    }

    /// The client of this name.
    pub(super) fn of_name(&self, name: &str) -> Option<ClientId> {
        self.ids.get(name).copied()
    }

    /// Writes the clients that are known.
    pub(super) fn show(&self, out: &mut dyn Write) -> fmt::Result {
        writeln!(out, "clients {} places {}", self.ids.len(), self.places.nr_places())?;
        for (id, ClientEntry { name, settings, nr_submitters, .. }) in self.places.iter() {
            let ClientSettings { weight, priority, group, .. } = settings;
            let (class, level, group) = (priority.class, priority.level, group.place());
            write!(out, "client {}: {name:?} weight {weight} priority {class:?} {level} group {group}", id.place())?;
            writeln!(out, " submitters {nr_submitters}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use blkmq_sched::{GroupId, IoPriority};

    use super::*;

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
        let known = clients.places.get(id).expect("it is there");
        let settings = ClientSettings { name: hash_of("a"), ..ClientSettings::default() };
        assert_eq!((known.settings, known.nr_submitters), (settings, 4));
        assert_ne!(clients.join(&Client::new("b")).0, id);
        let served = Served { sectors: [1, 2], ..Served::default() };
        (0..3).for_each(|_| assert!(!clients.leave(id, served)));
        assert_eq!(clients.places.get(id).expect("one is left").past.sectors, [3, 6]);
        assert!(clients.leave(id, served));
        assert_eq!((clients.of_name("a"), clients.ids.len()), (None, 1));
        assert_ne!(clients.join(&client).0, id);
    }
}
