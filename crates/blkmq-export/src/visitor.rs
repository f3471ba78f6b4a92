//! A client that negotiates, and what it sees of the server.

use std::sync::Arc;

use crate::clients::Entry;
use crate::nbd::negotiation::{Catalogue, Offer};
use crate::server::Shared;

/// One client, before it has chosen an export.
pub(crate) struct Visitor {
    shared: Arc<Shared>,
    entry: Arc<Entry>,
}

impl Visitor {
    pub(crate) fn new(shared: Arc<Shared>, entry: Arc<Entry>) -> Self {
        Self { shared, entry }
    }
}

impl Catalogue for Visitor {
    fn names(&self) -> impl Iterator<Item = (&str, &str)> {
        self.shared.names()
    }

    fn offer(&self, export: usize) -> Offer {
        self.shared.offer(export)
    }

    fn admit(&self, _export: usize) -> Result<(), String> {
        self.shared.admit(&self.entry)
    }
}
