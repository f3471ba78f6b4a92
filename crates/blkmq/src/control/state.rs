//! What the control path keeps, under one lock.

use crate::clients::Clients;

/// State of the control path, under one lock.
#[derive(Debug, Default)]
pub(crate) struct Control {
    pub(super) freezes: u32,
    pub(super) quiesces: u32,
    pub(crate) clients: Clients,
}
