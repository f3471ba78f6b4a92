//! The names of groups: paths, as those of control groups are.

use blkmq::{MAX_GROUP_DEPTH, is_hidden};

/// The most bytes of a part.
const MAX_PART: usize = 64;

/// A text that can be no group's path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{}' cannot be a group; accepted: 1 to {MAX_PART} letters, digits, '-', '_' or '.', as in gold, and at most \
     {MAX_GROUP_DEPTH} of these with '/' between them, as in gold/batch",
    // What is long or cannot be shown in a line is cut.
    .0.chars().take(80).map(|c| if is_hidden(c) { '?' } else { c }).collect::<String>()
)]
pub struct PathError(String);

/// Checks whether a text can be the path of a group: one part, or the path of its parent and `/` and one more part.
///
/// # Errors
/// It has no part or too many, or a part is empty, too long, or has other characters than letters, digits, `-`, `_` and
/// `.` in it.
pub fn check_group(path: &str) -> Result<(), PathError> {
    let is_plain = |c: u8| c.is_ascii_alphanumeric() || b"-_.".contains(&c);
    let is_part = |part: &str| (1..=MAX_PART).contains(&part.len()) && part.bytes().all(is_plain);
    let fits = path.split('/').all(is_part) && path.split('/').count() <= MAX_GROUP_DEPTH;
    if fits { Ok(()) } else { Err(PathError(path.to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if a bound is off by one, or if a path could name no place in a tree.
    #[test]
    fn paths_are_those_of_a_tree() {
        let long = "x".repeat(MAX_PART);
        let deep = ["a"; MAX_GROUP_DEPTH].join("/");
        for good in ["gold", "gold/batch", "A-1_b.c", ".", &long, &format!("a/{long}"), &deep] {
            assert_eq!(check_group(good), Ok(()), "{good}");
        }
        let [longer, deeper] = [format!("{long}x"), format!("{deep}/a")];
        for bad in [
            "",
            "/",
            "/gold",
            "gold/",
            "gold//batch",
            "a b",
            "a,b",
            "a=b",
            "\u{e4}",
            "a\n",
            "a\u{202e}",
            &longer,
            &deeper,
        ] {
            let error = check_group(bad).unwrap_err().to_string();
            assert!(error.contains("cannot be a group; accepted: ") && !error.contains(is_hidden), "{error:?}");
        }
    }
}
