//! Any text describes a device, or is refused in one line.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Err(error) = blkmq::driver::spec::open(text) {
        let line = error.to_string();
        assert!(!line.is_empty() && !line.contains(['\n', '\r']));
    }
});
