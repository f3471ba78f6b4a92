//! What the control path keeps, under one lock.

use super::clients::Clients;

/// State of the control path, under one lock.
#[derive(Debug, Default)]
pub(crate) struct Control {
    pub(crate) freezes: u32,
    pub(crate) quiesces: u32,
    pub(crate) clients: Clients,
}
