//! Any text describes a device, or is refused in one line.
#![no_main]

#[macro_use]
mod reach;

use reach::Reached;

fn run(text: &str, reached: &mut Reached) {
    if let Some(text) = text.strip_suffix('\n') {
        run(text, reached);
    }
    // Devices outside of the program are not opened: their specs are checked.
    match blkmq_drivers::check(text) {
        Ok(()) => reached.add("specs accepted", 1),
        Err(error) => assert!(is_line(&error.to_string())),
    }
    match blkmq::driver::spec::open(text) {
        Ok(_) => reached.add("devices opened", 1),
        Err(error) => {
            assert!(is_line(&error.to_string()));
            reached.add("refused", 1);
        }
    }
}

fn is_line(text: &str) -> bool {
    !text.is_empty() && !text.contains(['\n', '\r'])
}

target!("spec", run, [("devices opened", 8), ("refused", 6), ("specs accepted", 11)], &str);
