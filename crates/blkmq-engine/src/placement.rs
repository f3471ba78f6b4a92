//! Which client of its queue a connection is, and which weight and group that client has. Programs make a [`Placement`]
//! for each queue and change it while clients are connected; connections ask it when they have chosen an export. What a
//! [`Rule`] asks for is in the folder.

mod error;
mod network;
mod path;
mod rule;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use blkmq::{Client, GroupId, IoPriority, QueueError, RequestQueue, Submitter, TenantError, is_hidden};

pub use self::error::PlacementError;
pub use self::network::{Network, NetworkError};
pub use self::path::{PathError, check_group};
pub use self::rule::Rule;
use crate::clients::Entry;

/// Weights that clients and groups can have.
pub const WEIGHTS: std::ops::RangeInclusive<u16> = 1..=1000;
/// The most groups of a queue.
pub const MAX_GROUPS: usize = 256;
/// The most rules of a queue.
pub const MAX_RULES: usize = 1024;
/// The most clients of a queue whose weight or group the program has changed since the last [`load`](Placement::load).
pub const MAX_CHANGED: usize = 1024;

/// What a queue's clients get: its groups, and the rules by which clients come to their weights and groups.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Layout {
    /// The paths of groups with their weights; a group stands behind its parent.
    pub groups: Vec<(String, u16)>,
    /// The first rule that is for a connection counts.
    pub rules: Vec<Rule>,
    /// Weights that exports have in the place of [`Export::weight`](crate::Export::weight), by name.
    pub weights: BTreeMap<String, u16>,
}

/// What the program has changed for one client.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Changed {
    weight: Option<u16>,
    group: Option<String>,
}

/// A connection whose client was placed.
#[derive(Debug)]
struct Connection {
    entry: Weak<Entry>,
    /// The weight of its export, where nothing else is said.
    weight: u16,
}

#[derive(Debug, Default)]
struct Assignments {
    rules: Vec<Rule>,
    weights: BTreeMap<String, u16>,
    changed: BTreeMap<String, Changed>,
    /// A connection that is closed is removed from here when the next one comes.
    connections: Vec<Connection>,
}

/// What a client is to be.
struct Assignment {
    name: String,
    weight: u16,
    /// The path of its group; empty for none.
    group: String,
}

/// Which client of a queue each connection is.
///
/// Connections whose client has the same name are one client: together they get the share of one. Without a rule a
/// client has the name in its certificate, or its user on a Unix socket (`user:1000`), or its address, followed by `@`
/// and the name of its export. So all connections of one host or user to an export are one client. What the operator
/// has named, a block device or the socket of a machine, has that name there (`ublk0@disk`). A client has the export's
/// weight and belongs to no group.
#[derive(Debug)]
pub struct Placement {
    queue: RequestQueue,
    /// Held while a connection joins the queue, so that nothing changes between the question and the joining.
    assignments: Mutex<Assignments>,
}

/// Returns the name that a client has without a rule.
fn plain_name(entry: &Entry, export: &str) -> String {
    let export = if export.is_empty() { "default" } else { export };
    if entry.is_own {
        return format!("{}@{export}", entry.peer());
    }
    match (entry.name(), entry.user, entry.address()) {
        (Some(name), ..) => format!("{name}@{export}"),
        (None, Some(user), _) => format!("user:{user}@{export}"),
        (None, None, Some(address)) => format!("{address}@{export}"),
        (None, None, None) => format!("unknown@{export}"),
    }
}

impl Assignments {
    /// What the client of a connection to an export of this weight is to be.
    fn assign(&self, entry: &Entry, export: &str, weight: u16) -> Assignment {
        let rule = self.rules.iter().find(|rule| rule.is_for(entry, export));
        let name = rule.and_then(|rule| rule.name.clone()).unwrap_or_else(|| plain_name(entry, export));
        let changed = self.changed.get(&name).cloned().unwrap_or_default();
        let weight = self.weights.get(export).copied().unwrap_or(weight);
        let weight = changed.weight.or(rule.and_then(|rule| rule.weight)).unwrap_or(weight);
        let group = changed.group.or(rule.and_then(|rule| rule.group.clone())).unwrap_or_default();
        Assignment { name, weight, group }
    }

    /// Notes a change of a client.
    fn note(&mut self, client: &str, change: impl FnOnce(&mut Changed)) {
        change(self.changed.entry(client.to_owned()).or_default());
    }

    /// Whether a change of this client can be noted.
    fn check_room(&self, client: &str) -> Result<(), PlacementError> {
        let has_room = self.changed.len() < MAX_CHANGED || self.changed.contains_key(client);
        if has_room { Ok(()) } else { Err(PlacementError::TooManyChanged) }
    }
}

impl Placement {
    /// Creates a placement without groups and rules.
    #[must_use]
    pub fn new(queue: RequestQueue) -> Self {
        Self { queue, assignments: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Assignments> {
        self.assignments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the queue.
    #[must_use]
    pub fn queue(&self) -> &RequestQueue {
        &self.queue
    }

    /// Returns true if clients get weights or groups here, beside the weights of their exports.
    #[must_use]
    pub fn sets_weights(&self) -> bool {
        let assignments = self.lock();
        let is_of_rules = assignments.rules.iter().any(|rule| rule.weight.is_some() || rule.group.is_some());
        is_of_rules || !assignments.changed.is_empty() || !self.queue.tenants().groups().is_empty()
    }

    fn group(&self, path: &str) -> Result<GroupId, QueueError> {
        if path.is_empty() { Ok(GroupId::ROOT) } else { self.queue.tenants().group_of(path) }
    }

    /// Makes a connection to an export of this weight one of its client's.
    pub(crate) fn join(
        &self,
        entry: &Arc<Entry>,
        export: &str,
        weight: u16,
        priority: IoPriority,
    ) -> Result<Submitter, QueueError> {
        let mut assignments = self.lock();
        let Assignment { name, weight: own, group } = assignments.assign(entry, export, weight);
        // Rules and changes name groups that are there, unless a program has removed them past the placement.
        let group = self.group(&group).unwrap_or_default();
        let client = Client { weight: own, group, ..Client::new(name).with_priority(priority) };
        let submitter = self.queue.submitter(&client)?;
        entry.choose(export);
        entry.belong_to(&client.name);
        assignments.connections.retain(|other| other.entry.strong_count() > 0);
        assignments.connections.push(Connection { entry: Arc::downgrade(entry), weight });
        Ok(submitter)
    }

    /// Sets the weight of a client that is connected, until the next [`load`](Self::load). A client that leaves and
    /// comes again has it still.
    ///
    /// # Errors
    /// There is no such client, the weight is out of range, or [`MAX_CHANGED`] clients were changed.
    pub fn set_client_weight(&self, client: &str, weight: u16) -> Result<(), PlacementError> {
        let mut assignments = self.lock();
        let id = self.queue.tenants().client_of(client)?;
        assignments.check_room(client)?;
        self.queue.tenants().set_client_weight(id, weight)?;
        assignments.note(client, |changed| changed.weight = Some(weight));
        Ok(())
    }

    /// Moves a client that is connected into a group, or out of all groups if the path is empty, until the next
    /// [`load`](Self::load). A client that leaves and comes again still belongs to that group.
    ///
    /// # Errors
    /// There is no such client or group, or [`MAX_CHANGED`] clients were changed.
    pub fn move_client(&self, client: &str, group: &str) -> Result<(), PlacementError> {
        let mut assignments = self.lock();
        let (id, to) = (self.queue.tenants().client_of(client)?, self.group(group)?);
        assignments.check_room(client)?;
        self.queue.tenants().move_client(id, to)?;
        assignments.note(client, |changed| changed.group = Some(group.to_owned()));
        Ok(())
    }

    /// Adds a group of weight 100, if it is not there.
    ///
    /// # Errors
    /// The path cannot be one, its parent is not there, or there are [`MAX_GROUPS`].
    pub fn add_group(&self, path: &str) -> Result<(), PlacementError> {
        check_group(path).map_err(PlacementError::Path)?;
        let _inside = self.lock();
        if self.queue.tenants().group_of(path).is_ok() {
            return Ok(());
        }
        let parent = self.group(parent(path))?;
        if self.queue.tenants().groups().len() >= MAX_GROUPS {
            return Err(PlacementError::TooManyGroups);
        }
        self.queue.tenants().add_group(path, parent, blkmq::DEFAULT_WEIGHT)?;
        Ok(())
    }

    /// Sets the weight of a group, until the next [`load`](Self::load).
    ///
    /// # Errors
    /// There is no such group, or the weight is out of range.
    pub fn set_group_weight(&self, path: &str, weight: u16) -> Result<(), PlacementError> {
        let _inside = self.lock();
        Ok(self.queue.tenants().set_group_weight(self.queue.tenants().group_of(path)?, weight)?)
    }

    /// Removes a group. Clients that were moved into it and are not connected come to where the rules place them.
    ///
    /// # Errors
    /// There is no such group, a rule names it, or clients or groups are in it.
    pub fn remove_group(&self, path: &str) -> Result<(), PlacementError> {
        let mut assignments = self.lock();
        let id = self.queue.tenants().group_of(path)?;
        if assignments.rules.iter().any(|rule| rule.group.as_deref() == Some(path)) {
            return Err(PlacementError::IsNamed(path.to_owned()));
        }
        let groups =
            self.queue.tenants().groups().into_iter().filter(|group| group.parent == id).map(|group| group.name);
        let clients =
            self.queue.tenants().clients().into_iter().filter(|client| client.group == id).map(|client| client.name);
        let within: Vec<String> = groups.chain(clients).collect();
        if !within.is_empty() {
            return Err(PlacementError::NotEmpty { group: path.to_owned(), within });
        }
        self.queue.tenants().remove_group(id)?;
        let placed = assignments.changed.values_mut().filter(|changed| changed.group.as_deref() == Some(path));
        placed.for_each(|changed| changed.group = None);
        assignments.changed.retain(|_, changed| *changed != Changed::default());
        Ok(())
    }

    /// Puts a layout in the place of all that was said before, also for the clients that are connected. A client whose
    /// connections have another name by the new rules has the new weight and group at once, and the new name when it
    /// comes again. Groups that are not in the layout go.
    ///
    /// # Errors
    /// The layout makes no sense: a group whose parent does not come before it, a rule with a group that is not there,
    /// or with a name that no client can have, a weight out of range, or more of something than can be. Nothing has
    /// changed then.
    pub fn load(&self, layout: &Layout) -> Result<(), PlacementError> {
        layout.check()?;
        let mut assignments = self.lock();
        for (path, weight) in &layout.groups {
            match self.queue.tenants().group_of(path) {
                Ok(id) => self.queue.tenants().set_group_weight(id, *weight)?,
                Err(_) => drop(self.queue.tenants().add_group(path, self.group(parent(path))?, *weight)?),
            }
        }
        assignments.rules.clone_from(&layout.rules);
        assignments.weights.clone_from(&layout.weights);
        assignments.changed.clear();
        assignments.connections.retain(|connection| connection.entry.strong_count() > 0);
        let mut placed = BTreeSet::new();
        for Connection { entry, weight } in &assignments.connections {
            let Some(entry) = entry.upgrade() else { continue };
            if let (Some(name), Some(export)) = (entry.client(), entry.export())
                && let Ok(client) = self.queue.tenants().client_of(name)
                && placed.insert(name.clone())
            {
                let assignment = assignments.assign(&entry, export, *weight);
                let group = self.group(&assignment.group)?;
                let weighed = self.queue.tenants().set_client_weight(client, assignment.weight);
                match weighed.and_then(|()| self.queue.tenants().move_client(client, group)) {
                    // It leaves without a look at the placement.
                    Ok(()) | Err(QueueError::BadTenant(TenantError::NoClient(_))) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        // A group comes behind its parent, and goes before it.
        for group in self.queue.tenants().groups().into_iter().rev() {
            if layout.groups.iter().all(|(path, _)| *path != group.name) {
                self.queue.tenants().remove_group(group.id)?;
            }
        }
        Ok(())
    }
}

/// Returns the path of the group that a group is in; empty if it is in none.
fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

impl Layout {
    /// What is wrong with the layout, if anything is.
    fn check(&self) -> Result<(), PlacementError> {
        let Self { groups, rules, weights } = self;
        if groups.len() > MAX_GROUPS {
            return Err(PlacementError::TooManyGroups);
        }
        if rules.len() > MAX_RULES {
            return Err(PlacementError::TooManyRules);
        }
        let mut known = BTreeSet::new();
        for (path, _) in groups {
            check_group(path).map_err(PlacementError::Path)?;
            if path.rsplit_once('/').is_some_and(|(parent, _)| !known.contains(parent)) || !known.insert(path.as_str())
            {
                return Err(PlacementError::Order(path.clone()));
            }
        }
        let of_rules = rules.iter().filter_map(|rule| rule.weight);
        let mut all = groups.iter().map(|(_, weight)| *weight).chain(weights.values().copied()).chain(of_rules);
        if let Some(weight) = all.find(|weight| !WEIGHTS.contains(weight)) {
            return Err(PlacementError::Weight(weight));
        }
        if let Some(name) = rules.iter().filter_map(|rule| rule.name.as_ref()).find(|name| name.contains(is_hidden)) {
            return Err(PlacementError::Name(name.clone()));
        }
        let mut named = rules.iter().filter_map(|rule| rule.group.as_deref());
        match named.find(|group| !known.contains(group)) {
            Some(group) => Err(PlacementError::UnknownGroup(group.to_owned())),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
