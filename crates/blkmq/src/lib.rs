//! The multi-queue block layer for user space.

pub mod grace;
pub mod handover;
pub mod stack;
pub mod sync;
pub mod tags;
pub mod word;

// The pieces above are what the models check; everything below is built on them.
#[cfg(not(loom))]
pub mod bio;
#[cfg(not(loom))]
pub mod buffer;
#[cfg(not(loom))]
pub mod client;
#[cfg(not(loom))]
pub mod clock;
#[cfg(not(loom))]
pub mod driver;
#[cfg(not(loom))]
pub mod limits;
#[cfg(not(loom))]
mod request;
#[cfg(not(loom))]
mod status;

#[cfg(not(loom))]
pub use status::Status;
