//! A client that negotiates, and what it can see of the server.

use std::sync::{Arc, Mutex, PoisonError};

use blkmq::{Notify, QueueError, Submitter};
use blkmq_engine::{Entry, Reason, Topic};

use super::offer::offer;
use super::shared::Shared;
use crate::nbd::negotiation::{Catalogue, NotAdmitted, Offer};

/// One client, before it has chosen an export.
pub(super) struct Handshake {
    shared: Arc<Shared>,
    entry: Arc<Entry>,
    /// The reasons for which the client was rejected, each of which is counted and logged once.
    rejections: Mutex<Vec<Reason>>,
    /// The client's place in the queue of the export that it has chosen.
    place: Mutex<Option<Submitter>>,
}

/// Returns the reason for which a queue takes no connection.
fn reason(error: &QueueError) -> Reason {
    match error {
        QueueError::TooManySubmitters | QueueError::NoHardwareQueue(_) => Reason::QueueFull,
        QueueError::NoEventFd(_) => Reason::NoDescriptor,
        _ => Reason::Denied,
    }
}

impl Handshake {
    pub(super) fn new(shared: Arc<Shared>, entry: Arc<Entry>) -> Self {
        Self { shared, entry, rejections: Mutex::default(), place: Mutex::default() }
    }

    /// Returns the client's place in the queue of the export that it has chosen, if it has chosen one.
    pub(super) fn take_place(&self) -> Option<Submitter> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Counts and logs a client that is not served. A client that asks again and again is counted and logged once.
    fn reject(&self, reason: Reason, why: &str) {
        let mut rejections = self.rejections.lock().unwrap_or_else(PoisonError::into_inner);
        if !rejections.contains(&reason) {
            rejections.push(reason);
            self.shared.engine.clients.reject(reason);
            self.shared.engine.warn(Topic::Refusal, format_args!("{} is refused: {why}", self.entry));
        }
    }
}

impl Catalogue for Handshake {
    fn names(&self) -> impl Iterator<Item = (&str, &str)> {
        self.shared.engine.exports.iter().map(|export| (export.name.as_str(), export.description.as_str()))
    }

    fn refusal(&self, export: usize) -> Option<String> {
        let export = &self.shared.engine.exports[export];
        export.is_open(&self.entry).is_none().then(|| export.refusal(&self.entry))
    }

    fn note_refusal(&self, refusal: &str) {
        self.reject(Reason::Denied, refusal);
    }

    /// The device may have grown since the last client came. A client that chooses the export sees the present size,
    /// until the client leaves.
    fn offer(&self, export: usize) -> Offer {
        let Self { shared, entry, .. } = self;
        let export = &shared.engine.exports[export];
        let writes = export.is_open(entry) == Some(true);
        if let Err(error) = export.queue.revalidate() {
            shared.engine.warn_of_shrinking(&export.name, &error);
        }
        offer(export, shared.engine.longest(), writes)
    }

    /// A place among the server's clients comes first, then one in the queue: this is done before the client hears that
    /// it is let in, so that it can still be told that it is not.
    fn admit(&self, export: usize) -> Result<(), NotAdmitted> {
        let Self { shared, entry, .. } = self;
        if !shared.engine.clients.admit(entry) {
            let why =
                format!("the server has as many clients as it may, {}; try again later", shared.engine.clients.most());
            self.reject(Reason::Full, &why);
            return Err(NotAdmitted(why));
        }
        let export = &shared.engine.exports[export];
        match export.join(entry) {
            Some(Ok(submitter)) => {
                *self.place.lock().unwrap_or_else(PoisonError::into_inner) = Some(submitter);
                // Now there is room for another connection to negotiate.
                shared.engine.bell.notify();
                Ok(())
            }
            refused => {
                shared.engine.clients.dismiss(entry);
                let Some(Err(error)) = refused else { return Err(NotAdmitted(export.refusal(entry))) };
                let why = format!("export {:?} takes no further connection now: {error}; try again later", export.name);
                self.reject(reason(&error), &why);
                Err(NotAdmitted(why))
            }
        }
    }
}
