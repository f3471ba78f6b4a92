//! All integration tests of the crate in one program, a module for each subject.

mod common;
mod file;
mod model;
mod mount;
mod nbd;
mod nbd_leaving;
mod nbd_reconnect;
mod opened;
mod opening;
mod parameters;
mod pretend;
mod seccomp;
mod writeback_errors;
mod writeback_errors_unasked;
