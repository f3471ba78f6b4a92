//! Where requests go: the device's hardware queues ([`hctx`]) with their flush machines ([`flush`]), the submitters'
//! software queues ([`ctx`]), and which hardware queue a request of a submitter goes to ([`layout`]).

pub(super) mod ctx;
pub(super) mod flush;
pub(super) mod hctx;
pub(super) mod layout;
