//! The blkmq program.
fn main() {}
