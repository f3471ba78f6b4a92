//! The only place from which atomics, locks, cells, threads and parking come.
//!
//! A product build gets std. `--cfg loom` gets the exhaustive model checker. The package blkmq-sync-virtual compiles
//! these sources once more and gets the torture rig's virtual CPUs. The words by which threads agree on the way of a
//! request lie in a named [`Line`] or [`TryLock`], so that a test rig can preempt exactly there. At other atomics and
//! locks the rig preempts too, but cannot aim. docs/concurrency.md lists what has no name, under "Names of shared
//! lines".
//!
//! loom takes accesses marked `SeqCst` as `AcqRel`. So a store-load argument here rests on a `SeqCst` *fence* or on a
//! read-modify-write, and never on a `SeqCst` access.

mod cell;
#[cfg(not(virtual_cpus))]
mod data;
#[cfg(loom)]
mod explored;
#[cfg(not(virtual_cpus))]
mod fetch;
mod line;
mod mutex;
mod parker;
mod site;
mod stage;
mod try_lock;

#[cfg(virtual_cpus)]
use ::blkmq_vcpu as backend;
#[cfg(loom)]
use ::loom as backend;
#[cfg(not(any(loom, virtual_cpus)))]
use ::std as backend;

pub use backend::sync::Arc;
#[cfg(virtual_cpus)]
pub use backend::{
    Named, Tracked, debug_assert, debug_assert_eq, debug_assert_ne, fetch, on_line, pause, place_anew, time::Instant,
};
pub use cell::UnsafeCell;
#[cfg(not(virtual_cpus))]
pub use data::{Named, Tracked, on_line, place_anew};
#[cfg(not(virtual_cpus))]
pub use fetch::fetch;
pub use line::Line;
pub use mutex::{Mutex, MutexGuard};
pub use parker::Parker;
#[cfg(any(loom, virtual_cpus))]
pub use site::weaken;
pub use site::{fence_at, order, unless_explored, unless_mutated};
#[cfg(all(stages, not(virtual_cpus)))]
pub use stage::take_stages;
pub use stage::{Stage, stage};
/// Hints a spin loop on a value that another thread will change soon.
#[cfg(not(virtual_cpus))]
pub use std::hint::spin_loop as pause;
#[cfg(not(virtual_cpus))]
pub use std::time::Instant;
pub use try_lock::{TryGuard, TryLock};

/// Atomic integers and fences of the build's backend.
pub mod atomic {
    #[cfg(not(loom))]
    pub use super::backend::sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
    #[cfg(loom)]
    pub use super::explored::{
        AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
}

/// Threads of the build's backend.
pub mod thread {
    pub use super::backend::thread::{JoinHandle, spawn, yield_now};

    /// Starts a thread with a name. If there is an error, `work` has been dropped.
    ///
    /// # Errors
    /// The system has no thread left. The model checkers' and the torture rig's threads never run out.
    pub fn try_spawn(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
        #[cfg(any(loom, virtual_cpus))]
        {
            let _ = name;
            Ok(spawn(work))
        }
        #[cfg(not(any(loom, virtual_cpus)))]
        std::thread::Builder::new().name(name.to_owned()).spawn(work)
    }
}
