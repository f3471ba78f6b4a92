//! A client that negotiates, and what it can see of the server.

use std::sync::{Arc, OnceLock};

use blkmq::Notify;

use super::offer::offer;
use super::shared::Shared;
use crate::clients::{Entry, Reason};
use crate::log::Topic;
use crate::nbd::negotiation::{Catalogue, NotAdmitted, Offer};

/// One client, before it has chosen an export.
pub(super) struct Visitor {
    shared: Arc<Shared>,
    entry: Arc<Entry>,
    /// Set when the client has asked for an export that it may not use.
    was_refused: OnceLock<()>,
    /// Set when the client has asked for a place when there was none.
    was_turned_away: OnceLock<()>,
}

impl Visitor {
    pub(super) fn new(shared: Arc<Shared>, entry: Arc<Entry>) -> Self {
        Self { shared, entry, was_refused: OnceLock::new(), was_turned_away: OnceLock::new() }
    }

    /// Counts and logs a client that is not served. A client that asks again and again is counted and logged once.
    fn reject(&self, is_told: &OnceLock<()>, reason: Reason, why: &str) {
        if is_told.set(()).is_ok() {
            self.shared.clients.reject(reason);
            self.shared.warn(Topic::Refusal, format_args!("{} is refused: {why}", self.entry));
        }
    }
}

impl Catalogue for Visitor {
    fn names(&self) -> impl Iterator<Item = (&str, &str)> {
        self.shared.exports.iter().map(|export| (export.name.as_str(), export.description.as_str()))
    }

    fn refusal(&self, export: usize) -> Option<String> {
        let export = &self.shared.exports[export];
        export.is_open(&self.entry).is_none().then(|| export.refusal(&self.entry))
    }

    fn note_refusal(&self, refusal: &str) {
        self.reject(&self.was_refused, Reason::Denied, refusal);
    }

    /// The device may have grown since the last client came. A client that chooses the export sees the present size,
    /// until the client leaves.
    fn offer(&self, export: usize) -> Offer {
        let Self { shared, entry, .. } = self;
        let export = &shared.exports[export];
        let writes = export.is_open(entry) == Some(true);
        if let Err(error) = export.queue.revalidate() {
            shared.warn_of_shrinking(&export.name, &error);
        }
        offer(export, shared.longest(), writes)
    }

    fn admit(&self, _export: usize) -> Result<(), NotAdmitted> {
        let Self { shared, entry, .. } = self;
        if shared.clients.admit(entry) {
            // Now there is room for another connection to negotiate.
            shared.bell.notify();
            return Ok(());
        }
        let why = format!("the server has as many clients as it may, {}; try again later", shared.clients.most());
        self.reject(&self.was_turned_away, Reason::Full, &why);
        Err(NotAdmitted(why))
    }
}
