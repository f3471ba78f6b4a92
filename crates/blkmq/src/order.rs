//! The ordered path: a scheduler under its lock, and the ways in which threads reach it.
//!
//! A [`Domain`](crate::queue::domain::Domain) is a set of requests that are ordered together: a scheduler with its
//! lock, and what threads know of the scheduler without the lock. A queue has one domain today. A thread enters the
//! domain by `Domain::enter`, which lends it a [`Section`](section::Section): the scheduler under the lock together
//! with the queue, the thread's own lists, and the time. The section inserts, merges, chooses and hands through. When
//! the section ends, it brings up to date what other threads see of the domain. No other place does that.
//!
//! The [`Locking`](crate::queue::Locking) says how many threads enter, one after another, and what the other
//! threads do meanwhile. Each locking is one file with three entry points: insert a plug, dispatch, and whether
//! requests may pass the scheduler by as far as the locking is concerned. `entry` is the one place that names them.
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
mod stage_all;
mod staged;
mod through;

pub(crate) use outcome::{Dispatched, Inserted};
