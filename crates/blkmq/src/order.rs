//! The ordered path: a scheduler under its lock, and the ways in which threads reach it.
//!
//! A [`Domain`](crate::queue::Domain) is a set of requests that are ordered together: a scheduler with its
//! lock, and what threads know of the scheduler without the lock. A queue has one domain, or one for each hardware
//! queue if its scheduler keeps no order across hardware queues (`split`). A thread enters the domain by
//! `Domain::enter`, which lends it a [`Section`](section::Section): the scheduler under the lock together with the
//! queue, the thread's own lists, and the time. The section inserts, merges, chooses and hands through. When the
//! section ends, it brings up to date what other threads see of the domain. No other place does that.
//!
//! The [`Locking`](crate::queue::Locking) says which thread enters next, always one at a time, and what the
//! other threads do meanwhile. `entry` is the one place on the path of a request that tells the lockings apart. `entry`
//! has three questions for a locking: insert a plug, dispatch, and whether requests may pass the scheduler by as far as
//! the locking knows. A locking is one file, with a function for each question that it answers in a way of its own.
//! `combining` and `staged` have all three functions. `batch` differs from `single` in dispatching alone, and has the
//! other two functions from `single`.
//!
//! `path` calls this module. This module calls `device` for tags and to issue.

mod batch;
mod choose;
mod combining;
mod entry;
mod insert;
mod outcome;
mod section;
mod single;
mod split;
mod stage_all;
mod staged;
mod through;

pub(crate) use outcome::{Dispatched, Inserted};
