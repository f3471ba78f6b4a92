//! The block layer.

pub mod grace;
pub mod handover;
pub mod stack;
pub mod sync;
pub mod tags;
pub mod word;
