//! Virtual time alone, against a naive model.

mod backlog;
mod lag;
mod model;
mod operations;
mod pairs;
