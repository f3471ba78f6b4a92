//! A library that cannot be loaded, and one that tests make up.

pub(in crate::rbd) mod fake;

use super::*;

/// Red if a function that a library lacks is not named.
#[test]
fn what_is_missing_is_named() {
    // SAFETY: nothing is found.
    let found = unsafe { Api::find(Err) };
    assert_eq!(found.err(), Some(c"rados_create2"));
}

/// Red if the package that has the library is not named.
#[test]
#[cfg_attr(miri, ignore = "there is no loader")]
fn a_library_that_is_missing_is_named() {
    let missing = open_library(c"libblkmq-is-not-there.so.1").expect_err("there is none").to_string();
    assert!(missing.starts_with("libblkmq-is-not-there.so.1 cannot be loaded; Debian's package librbd1 has it: "));
}
