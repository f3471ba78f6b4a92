//! The NBD protocol: its bytes (the crate blkmq-nbd), and the parts of the server that need no socket. Connections call
//! in; so may a program that speaks the protocol itself, as the fuzz targets do.

pub mod command;
pub mod extents;
pub mod negotiation;
pub mod reply;

pub use blkmq_nbd::*;

const _: () = assert!(MAX_STRING == blkmq_engine::MAX_TEXT, "what an export is called fits into the protocol");
