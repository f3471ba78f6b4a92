//! Virtual time alone, against a naive model and an ideal fluid system.

mod lag;
mod model;
mod operations;
