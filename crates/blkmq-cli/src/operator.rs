//! What the operator of a server is told while it runs. The server and its control socket call in.

use std::io::{self, Write};

/// Says something on standard error.
pub(crate) fn say(text: &str) {
    // If it cannot be written, there is no other place to say it.
    let _ = writeln!(io::stderr(), "blkmq: {text}");
}
