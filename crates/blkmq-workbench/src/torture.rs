//! The torture rig: the block layer on virtual CPUs, from a seed.
//!
//! A *world* is one queue in front of one device with its submitters, background threads and whoever changes it, all on
//! virtual CPUs. What it is like, who goes on when, what the device does and what everybody asks for follows from one
//! number. Everything that happens is an event, and what must be true of these is the business of the checkers.

mod check;
mod claims;
mod client;
mod control;
mod device;
mod event;
mod failure;
mod history;
mod memory;
mod mutant;
mod plan;
mod policy;
mod replay;
mod rig;
mod text;
mod witness;
mod world;

pub use failure::{Broken, Failure};
pub use memory::CountingAllocator;
pub use mutant::{MUTANTS, Mutant};
pub use replay::{Line, Replayed, replay};
pub use rig::{Control, Heaviest, Length, Rig, Tally, WORLD_REQUESTS};
pub use world::{MOST_CPUS, Settings};

pub use blkmq_virtual::Locking;
