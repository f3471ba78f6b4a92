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

    fn refusal(&self, export: usize) -> Option<String> {
        let export = &self.shared.exports[export];
        export.is_open(&self.entry).is_none().then(|| export.refusal(&self.entry))
    }

    fn note_refusal(&self, refusal: &str) {
        self.shared.note_refusal(&self.entry, refusal);
    }

    fn offer(&self, export: usize) -> Offer {
        let writes = self.shared.exports[export].is_open(&self.entry) == Some(true);
        self.shared.offer(export, writes)
    }

    fn admit(&self, _export: usize) -> Result<(), String> {
        self.shared.admit(&self.entry)
    }
}
