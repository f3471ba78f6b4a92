//! The NBD protocol: its numbers, and the parts of the server that need no socket.

pub mod command;
pub mod extents;
pub mod negotiation;
pub mod reply;

mod option;

pub use blkmq_nbd::*;
