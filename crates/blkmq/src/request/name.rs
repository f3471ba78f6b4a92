//! Which characters cannot stand in names, and how a text that has them is shown.

use std::fmt::{self, Write};

/// Whether a character cannot be seen, or changes how a line with it reads: a control character, a separator of lines,
/// one that turns the direction in which text runs, one without width, or a tag. Names of clients and groups have none,
/// so that two names that look alike are one, and a line with a name reads as it was written.
#[must_use]
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// A text with everything in it that [`is_hidden`] escaped, as in `\n` and `\u{202e}`. What it shows is one line.
#[derive(Debug, Clone, Copy)]
pub struct Shown<'a>(pub &'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .chars()
            .try_for_each(|c| if is_hidden(c) { write!(f, "{}", c.escape_default()) } else { f.write_char(c) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if a character that hides is let through, or a letter of some language is not.
    #[test]
    fn what_hides_is_told_from_letters() {
        let turning = ['\u{202a}', '\u{202e}', '\u{2066}', '\u{2069}', '\u{200e}', '\u{200f}', '\u{61c}'];
        let unseen = ['\u{200b}', '\u{200d}', '\u{2060}', '\u{feff}', '\u{ad}', '\u{180e}', '\u{e0041}'];
        let breaking = ['\0', '\n', '\u{1b}', '\u{7f}', '\u{85}', '\u{9b}', '\u{2028}', '\u{2029}'];
        assert!([&turning[..], &unseen, &breaking].concat().into_iter().all(is_hidden));
        assert!(!"a Z_-.@/:\u{a0}\u{e4}\u{5d0}\u{639}\u{6f22}\u{2010}\u{2030}\u{1f600}\u{fffd}".chars().any(is_hidden));
    }

    /// Red if something is shown that was to be escaped, or escaped that was to be shown.
    #[test]
    fn a_text_is_shown_in_one_line_as_it_was_written() {
        assert_eq!(Shown("a\u{202e}b\n\t\u{1b}\u{e4}").to_string(), "a\\u{202e}b\\n\\t\\u{1b}\u{e4}");
    }
}
