//! Any text describes a device, or is refused in one line.
#![no_main]

mod reach;

use libfuzzer_sys::fuzz_target;
use reach::Reached;

fn run(text: &str, reached: &mut Reached) {
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

fuzz_target!(
    init: reach::seeds("spec", &[("devices opened", 8), ("refused", 6), ("specs accepted", 11)], |bytes, reached| {
        run(std::str::from_utf8(bytes).expect("these seeds are text").trim_end(), reached);
    }),
    |text: &str| run(text, &mut Reached::default())
);
