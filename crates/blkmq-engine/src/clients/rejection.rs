//! Connections that were not served, and why.

/// Why a connection was not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// It asked for an export that it may not use.
    Denied,
    /// There were as many clients as there may be.
    Full,
    /// Too many connections negotiated.
    Crowded,
    /// It chose no export in time.
    Late,
    /// The system had no descriptor for it.
    NoDescriptor,
    /// The export's queue had as many threads as it can have.
    QueueFull,
}

/// Connections that were not served since the server was started, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rejections {
    /// Connections that asked for an export that they may not use.
    pub denied: u64,
    /// Connections that chose an export, once or several times, when the server had as many clients as it may have.
    pub full: u64,
    /// Connections that came when too many were negotiating, in all or from one address or user.
    pub crowded: u64,
    /// Connections that chose no export in time.
    pub late: u64,
    /// Connections for which the system had no descriptor.
    pub no_descriptor: u64,
    /// Connections that chose an export, once or several times, whose queue had as many threads as it can have.
    pub queue_full: u64,
}

impl Rejections {
    pub(super) fn add(&mut self, reason: Reason) {
        let count = match reason {
            Reason::Denied => &mut self.denied,
            Reason::Full => &mut self.full,
            Reason::Crowded => &mut self.crowded,
            Reason::Late => &mut self.late,
            Reason::NoDescriptor => &mut self.no_descriptor,
            Reason::QueueFull => &mut self.queue_full,
        };
        *count += 1;
    }
}
