//! Which clients may use an export, and what they may do.

use blkmq::{IoPriority, is_hidden};

use super::error::ExportFault;
use super::identity::Identity;
use crate::clients::Entry;

/// The clients that may use an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Allow {
    /// Every client that asks for the export.
    Anybody,
    /// The clients that a permit in the list is for. The first permit that is for a client counts.
    Listed(Vec<Permit>),
}

/// What one client may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permit {
    /// The client that it is for.
    pub who: Identity,
    /// Whether the client may write, if the export can be written. Every client that is let in may read.
    pub writes: bool,
    /// The priority of the client's operations, with a level from 0 to 7. `None`: the priority of the export.
    pub priority: Option<IoPriority>,
}

/// What a client may do with an export that it may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) writes: bool,
    pub(super) priority: IoPriority,
}

impl Allow {
    /// What is wrong with the list, if anything is. `names_clients`: clients have to show certificates.
    pub(super) fn check(&self, names_clients: bool) -> Result<(), ExportFault> {
        let Self::Listed(permits) = self else { return Ok(()) };
        if permits.is_empty() {
            return Err(ExportFault::Nobody);
        }
        for Permit { who, priority, .. } in permits {
            match who {
                Identity::Certificate(name) if name.is_empty() => {
                    return Err(ExportFault::NoName);
                }
                Identity::Certificate(name) if name.contains(is_hidden) => {
                    return Err(ExportFault::HiddenClient(who.clone()));
                }
                Identity::Certificate(_) if !names_clients => {
                    return Err(ExportFault::NotVerified(who.clone()));
                }
                _ => (),
            }
            if let Some(priority) = priority.filter(|priority| priority.level > 7) {
                return Err(ExportFault::ClientLevel(who.clone(), priority.level));
            }
        }
        Ok(())
    }

    /// What a client may do. `None` if the client may not use the export. `priority`: the priority of the export.
    pub(super) fn grant(&self, client: &Entry, priority: IoPriority) -> Option<Grant> {
        match self {
            Self::Anybody => Some(Grant { writes: true, priority }),
            Self::Listed(permits) => {
                let permit = permits.iter().find(|permit| permit.who.is(client))?;
                Some(Grant { writes: permit.writes, priority: permit.priority.unwrap_or(priority) })
            }
        }
    }
}
