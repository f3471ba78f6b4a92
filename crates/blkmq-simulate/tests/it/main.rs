//! All integration tests of the crate in one program, a module for each subject.

mod lines;
mod planted;
mod program;
#[path = "../../../blkmq-cli/tests/it/run/mod.rs"]
mod run;
mod tags;
