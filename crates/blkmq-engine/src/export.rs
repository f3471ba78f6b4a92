//! What clients can connect to: a queue with a name. Programs make exports; the server checks them, and connections ask
//! what a client may do. The folder has the list of the clients that may.

mod access;
mod error;
mod identity;
mod terms;

use std::sync::Arc;

use blkmq::{DEFAULT_WEIGHT, IoPriority, QueueError, RequestQueue, Submitter, is_hidden};

use self::access::Grant;
pub use self::access::{Allow, Permit};
pub use self::error::{ExportError, ExportFault};
pub use self::identity::Identity;
pub use self::terms::Terms;
use crate::clients::Entry;
use crate::placement::{Placement, WEIGHTS};

/// The longest name or description of an export, in bytes.
pub const MAX_TEXT: usize = 4096;

/// A queue as clients see it.
#[derive(Debug, Clone)]
pub struct Export {
    /// The name that clients ask for, at most 4096 bytes. The default export has an empty name.
    pub name: String,
    /// A description for people, at most 4096 bytes, which may be empty.
    pub description: String,
    /// Whether nothing can be written.
    pub read_only: bool,
    /// The queue. Several exports and servers may share one.
    pub queue: RequestQueue,
    /// The share of each client of the export beside the queue's other clients, 1 to 1000, unless the placement says
    /// something else.
    pub weight: u16,
    /// The priority of the operations of the connections, at a level from 0 to 7.
    pub priority: IoPriority,
    /// Which client each connection is: a placement of the queue. Exports of one queue may have one placement.
    pub placement: Arc<Placement>,
    /// The clients that may use the export. `None`: all may. A server whose clients have to show certificates does not
    /// start unless each of its exports has a list.
    pub allow: Option<Allow>,
}

impl Export {
    /// Creates a writable export without description, whose clients have weight 100 and best-effort priority level 4,
    /// and a placement of its own without rules.
    pub fn new(name: impl Into<String>, queue: RequestQueue) -> Self {
        Self {
            name: name.into(),
            description: String::new(),
            read_only: false,
            placement: Arc::new(Placement::new(queue.clone())),
            queue,
            weight: DEFAULT_WEIGHT,
            priority: IoPriority::default(),
            allow: None,
        }
    }

    /// Returns the same export, for these clients only.
    #[must_use]
    pub fn allowing(mut self, allow: Allow) -> Self {
        self.allow = Some(allow);
        self
    }

    /// Returns the same export, with a description.
    #[must_use]
    pub fn described(mut self, description: impl Into<String>) -> Self {
        self.description = description.into();
        self
    }

    /// Returns the same export, from which clients can only read.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// Checks the export. `names_clients`: clients have to show certificates.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self, names_clients: bool) -> Result<(), ExportError> {
        self.find_fault(names_clients).map_err(|fault| ExportError { name: self.name.clone(), fault })
    }

    fn find_fault(&self, names_clients: bool) -> Result<(), ExportFault> {
        let Self { name, description, weight, priority, .. } = self;
        if name.len() > MAX_TEXT {
            return Err(ExportFault::LongName(name.len()));
        }
        if name.contains(is_hidden) {
            return Err(ExportFault::HiddenName);
        }
        if description.len() > MAX_TEXT {
            return Err(ExportFault::LongDescription(description.len()));
        }
        if !WEIGHTS.contains(weight) {
            return Err(ExportFault::Weight(*weight));
        }
        if priority.level > 7 {
            return Err(ExportFault::Level(priority.level));
        }
        if !self.placement.queue().same_queue(&self.queue) {
            return Err(ExportFault::ForeignPlacement);
        }
        match &self.allow {
            Some(allow) => allow.check(names_clients),
            None if names_clients => Err(ExportFault::NoList),
            None => Ok(()),
        }
    }

    fn grant(&self, client: &Entry) -> Option<Grant> {
        if client.is_disguised() {
            return None;
        }
        self.allow.as_ref().unwrap_or(&Allow::Anybody).grant(client, self.priority)
    }

    /// `None` if the client may not use the export; else whether it may write.
    pub fn is_open(&self, client: &Entry) -> Option<bool> {
        self.grant(client).map(|grant| grant.writes)
    }

    /// Returns the message to a client that may not use the export.
    pub fn refusal(&self, client: &Entry) -> String {
        if client.is_disguised() {
            return format!(
                "the name in the client's certificate, {:?}, has characters that control a line or cannot be seen; no \
                 such client is served",
                client.name().map_or("", |name| name)
            );
        }
        let who = match (client.name(), client.user) {
            (Some(name), _) => Identity::Certificate(name.clone()).to_string(),
            (None, Some(user)) => Identity::User(user).to_string(),
            (None, None) => "a client that shows no certificate".to_owned(),
        };
        format!("{who} is not among those whom the server allows export {:?}", self.name)
    }

    /// Makes a connection one of its client's. `None` if the client may not use this export.
    pub fn join(&self, entry: &Arc<Entry>) -> Option<Result<Submitter, QueueError>> {
        let priority = self.grant(entry)?.priority;
        Some(self.placement.join(entry, &self.name, self.weight, priority))
    }

    /// As [`join`](Self::join), for a thread of a client that no list has to allow.
    pub(crate) fn join_own(&self, entry: &Arc<Entry>) -> Result<Submitter, QueueError> {
        self.placement.join(entry, &self.name, self.weight, self.priority)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use blkmq::Class;
    use blkmq::driver::spec;

    use super::*;
    use crate::clients::Clients;
    use crate::clients::tests::join;

    /// Returns an export of a device, by its spec.
    pub(crate) fn export(device: &str) -> Export {
        let driver = spec::open(device).unwrap();
        Export::new("a", RequestQueue::builder(driver).build().unwrap())
    }

    /// Red if a weight, the level of a priority (of the export or of a client), the length of a name, or what names are
    /// made of is not checked.
    #[test]
    fn what_cannot_be_is_refused_with_what_could() {
        let good = export("ram,size=1M");
        assert_eq!(good.check(false), Ok(()));
        let error = |change: fn(&mut Export)| {
            let mut export = good.clone();
            change(&mut export);
            export.check(false).unwrap_err().to_string()
        };
        assert_eq!(error(|export| export.weight = 0), "export \"a\" has weight 0; give a number from 1 to 1000");
        let level = error(|export| export.priority = IoPriority { class: Class::Idle, level: 8 });
        assert_eq!(level, "export \"a\" has priority level 8; give a number from 0 to 7");
        let level = error(|export| {
            let priority = Some(IoPriority { class: Class::Idle, level: 8 });
            export.allow = Some(Allow::Listed(vec![Permit { who: Identity::User(1), writes: false, priority }]));
        });
        assert_eq!(level, "export \"a\" gives the user 1 the priority level 8; give a number from 0 to 7");
        let name = error(|export| export.name = "x".repeat(4097));
        assert_eq!(name, format!("export \"{}\" has a name of 4097 bytes; at most 4096", "x".repeat(256)));
        let hidden = error(|export| export.name = "a\u{202e}b".to_owned());
        let why = "has a name with characters that control a line or cannot be seen; leave them out";
        assert_eq!(hidden, format!("export \"a\\u{{202e}}b\" {why}"));
        let hidden = error(|export| {
            let who = Identity::Certificate("gold\u{200b}".to_owned());
            export.allow = Some(Allow::Listed(vec![Permit { who, writes: false, priority: None }]));
        });
        let who = "the certificate \"gold\\u{200b}\"";
        assert!(hidden.starts_with(&format!("export \"a\" allows {who}; no client is let in whose name ")), "{hidden}");
    }

    /// Red if another permit than the first one for a client counts, if its right to write or its priority is ignored,
    /// or if the queue's client does not get that priority.
    #[test]
    #[cfg_attr(miri, ignore = "there are no descriptors")]
    fn a_client_gets_what_the_first_entry_for_it_says() {
        let urgent = IoPriority { class: Class::RealTime, level: 0 };
        let permit = |who, writes, priority| Permit { who, writes, priority };
        let list = vec![
            permit(Identity::User(1), true, Some(urgent)),
            permit(Identity::User(1), false, None),
            permit(Identity::Certificate("gold".to_owned()), false, None),
        ];
        let export = export("ram,size=1M").allowing(Allow::Listed(list));
        let clients = Clients::new(9);
        let join = |user: u32| join(&clients, user).unwrap();
        let first = export.grant(&join(1));
        assert_eq!(first, Some(Grant { writes: true, priority: urgent }));
        let joined = export.join(&join(1)).unwrap();
        assert!(joined.is_ok() && export.queue.tenants().clients()[0].priority == urgent, "{joined:?}");
        assert_eq!((export.grant(&join(2)), export.grant(&join(u32::MAX))), (None, None));
        let gold = join(3);
        gold.identify("gold".to_owned());
        assert_eq!(export.grant(&gold), Some(Grant { writes: false, priority: export.priority }));
    }
}
