//! The torture rig: the block layer on virtual CPUs, from a seed.
//!
//! A *world* is one queue in front of one device, with its submitters, its background threads and the CPUs that change
//! the queue, all on virtual CPUs. One number, the seed, decides everything: what the world is like, which CPU runs
//! next, what the device does and what each client asks for. Everything that happens is an event. The checkers look at
//! the events and know what must be true of them.

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
mod pace;
mod plan;
mod play;
mod policy;
mod replay;
mod rig;
mod settings;
mod tenancy;
mod text;
mod witness;
mod world;

pub use failure::{Broken, Failure};
pub use memory::CountingAllocator;
pub use mutant::{MUTANTS, Mutant};
pub use replay::{Line, Replayed, replay};
pub use rig::{Control, Heaviest, Length, Rig, Tally, WORLD_REQUESTS};
pub use settings::{MOST_CPUS, Settings};

pub use blkmq_virtual::Locking;
