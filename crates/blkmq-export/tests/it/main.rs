//! All integration tests of the crate in one program, a module for each subject.

mod server;
