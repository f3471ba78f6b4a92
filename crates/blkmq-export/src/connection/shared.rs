//! What the threads of a server share. The thread that accepts and the thread of each connection call in.

use std::sync::Arc;
use std::time::Duration;

use blkmq_engine::Engine;

use crate::tls::Tls;

/// What all threads of a server share.
pub(crate) struct Shared {
    /// What is not of the protocol.
    pub(crate) engine: Arc<Engine>,
    pub(crate) tls: Option<Tls>,
    /// How long a client may take to choose an export.
    pub(crate) negotiation_timeout: Duration,
    /// How long a client may send or read nothing of what it has begun.
    pub(crate) stall_timeout: Option<Duration>,
}
