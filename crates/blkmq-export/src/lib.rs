//! NBD clients in front of a queue.

pub mod nbd;
