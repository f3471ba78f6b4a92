//! The groups of clients: a tree with the root at its head.

use std::fmt::{self, Write};

use blkmq_sched::{GroupId, GroupSettings};

use super::id_table::IdTable;
use crate::queue::error::TenantError;
use crate::request::is_hidden;

/// How deep groups can lie in each other, the root not counted.
pub const MAX_GROUP_DEPTH: usize = 8;

/// Bytes: the longest name of a group.
const MAX_NAME: usize = 4096;

/// A group.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) name: String,
    pub(super) settings: GroupSettings,
}

/// The table of groups. The root is not in it, and has the first place.
#[derive(Debug)]
pub(super) struct Groups {
    places: IdTable<GroupId, Group>,
}

impl Default for Groups {
    fn default() -> Self {
        Self { places: IdTable::without_first() }
    }
}

impl Groups {
    /// Makes a group.
    ///
    /// # Errors
    /// The name is bad or another group has it, the parent is not there or lies too deep, or there are too many groups.
    pub(super) fn add(&mut self, name: &str, settings: GroupSettings) -> Result<GroupId, TenantError> {
        let GroupSettings { parent, .. } = settings;
        if name.is_empty() || name.len() > MAX_NAME || name.contains(is_hidden) {
            return Err(TenantError::BadGroupName(name.chars().take(64).collect()));
        }
        if self.of_name(name).is_some() {
            return Err(TenantError::GroupExists(name.to_owned()));
        }
        if self.depth(parent)? >= MAX_GROUP_DEPTH {
            return Err(TenantError::TooDeep { name: name.to_owned(), most: MAX_GROUP_DEPTH });
        }
        let added = self.places.add(Group { name: name.to_owned(), settings });
        added.ok_or(TenantError::TooManyGroups { most: GroupId::PLACES - 1 })
    }

    /// Takes a group away to which nothing belongs any more.
    pub(super) fn remove(&mut self, id: GroupId) {
        debug_assert!(self.iter().all(|(_, group)| group.settings.parent != id), "no group belongs to one that goes");
        let group = self.places.remove(id);
        debug_assert!(group.is_some(), "a group goes once, and the root does not");
    }

    /// The group with this id.
    ///
    /// # Errors
    /// It is not there any more, or is the root, which has no settings.
    pub(super) fn get(&self, id: GroupId) -> Result<&Group, TenantError> {
        self.places.get(id).ok_or(Self::missing(id))
    }

    /// As [`get`](Self::get), to be changed.
    ///
    /// # Errors
    /// As of [`get`](Self::get).
    pub(super) fn get_mut(&mut self, id: GroupId) -> Result<&mut Group, TenantError> {
        self.places.get_mut(id).ok_or(Self::missing(id))
    }

    const fn missing(id: GroupId) -> TenantError {
        if id.0 == GroupId::ROOT.0 { TenantError::Root } else { TenantError::NoGroup(id) }
    }

    /// Whether clients may be in this group.
    ///
    /// # Errors
    /// It is not there any more.
    pub(super) fn check(&self, id: GroupId) -> Result<(), TenantError> {
        if id == GroupId::ROOT { Ok(()) } else { self.get(id).map(|_| ()) }
    }

    /// The group of this name.
    pub(super) fn of_name(&self, name: &str) -> Option<GroupId> {
        self.iter().find(|(_, group)| group.name == name).map(|(id, _)| id)
    }

    /// How many groups a group lies in, itself included and the root not.
    fn depth(&self, id: GroupId) -> Result<usize, TenantError> {
        let (mut depth, mut at) = (0, id);
        while at != GroupId::ROOT {
            at = self.get(at)?.settings.parent;
            depth += 1;
        }
        Ok(depth)
    }

    /// The groups by place.
    fn iter(&self) -> impl Iterator<Item = (GroupId, &Group)> {
        self.places.iter()
    }

    /// The groups, each behind the group that it belongs to.
    pub(super) fn in_order(&self) -> Vec<(GroupId, &Group)> {
        let mut groups: Vec<_> = self.iter().collect();
        groups.sort_by_key(|(id, _)| self.depth(*id).unwrap_or_default());
        groups
    }

    /// The groups that belong to this one.
    pub(super) fn children(&self, of: GroupId) -> Vec<GroupId> {
        self.iter().filter(|(_, group)| group.settings.parent == of).map(|(id, _)| id).collect()
    }

    /// Writes the groups.
    pub(super) fn show(&self, out: &mut dyn Write) -> fmt::Result {
        let groups = self.in_order();
        writeln!(out, "groups {}", groups.len())?;
        for (id, Group { name, settings: GroupSettings { weight, parent } }) in groups {
            writeln!(out, "group {}: {name:?} weight {weight} in group {}", id.place(), parent.place())?;
        }
        Ok(())
    }
}
