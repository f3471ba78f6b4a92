//! Virtual CPUs: threads that take turns on one thread of the machine, as a [`Schedule`] decides, on a virtual clock.
//!
//! Code that takes its atomics, locks, threads and time from this crate instead of from `std` runs unchanged, and the
//! same way each time. Every operation on something shared is a step, and between any two steps another CPU may go on.
//! Time passes by steps, or jumps to the next timer when every CPU sleeps. Memory is sequentially consistent, so weak
//! orderings are not explored; loom explores them.
//!
//! With [`Options::cores`] each CPU has a clock of its own, as on a machine with many cores. What a CPU does moves only
//! its own clock: [`work`], and accesses to lines that CPUs share, which cost what [`cache`] says. The CPU whose clock
//! is earliest goes on; no schedule decides. Locks then behave and cost as one of [`LockKind`], and to sleep and to be
//! woken costs what [`Kernel`] says. There may be more threads than CPUs ([`Cores`]). A [`CpuId`] is then the number of
//! a thread.
//!
//! Outside of [`run`] atomics and locks behave as in `std`. Functions that start threads, wait or read the time work
//! only inside of a run.
//!
//! ```
//! use blkmq_vcpu::{Ended, Options, Random, run, schedule, sync, thread};
//! use sync::Arc;
//! use sync::atomic::{AtomicU32, Ordering};
//!
//! let ended = run(Box::new(schedule::Uniform::new(Random::new(7), 1)), Options::default(), || {
//!     let count = Arc::new(AtomicU32::new(0));
//!     let theirs = Arc::clone(&count);
//!     let other = thread::spawn(move || theirs.fetch_add(1, Ordering::Relaxed));
//!     count.fetch_add(1, Ordering::Relaxed);
//!     other.join().unwrap();
//!     assert_eq!(count.load(Ordering::Relaxed), 2);
//! });
//! assert!(matches!(ended, Ended::Finished));
//! ```

pub mod cache;
mod cores;
mod hot;
mod kernel;
mod machine;
mod places;
mod random;
pub mod schedule;
mod step;
pub mod sync;
pub mod thread;
pub mod time;
mod tracked;

pub use cores::{Cores, Smt};
pub use hot::{CpuId, cpu, go_on_for, is_timed, steps, touch, uninterrupted};
pub use kernel::{Kernel, LockKind};
pub use machine::{Ended, Idle, OnStage, Options, Switch, is_running, run, stop};
pub use places::{
    Accessed, LineOf, Place, neighbours, on_line, place_anew, place_at, place_bytes, placed, touch_place,
};
pub use random::Random;
pub use schedule::Schedule;
pub use step::{changes, fetch, pause, reads, stage, together, work};
pub use tracked::{Memory, Named, Tracked};
