//! Any text describes a device, or is refused in one line.
#![no_main]

mod reach;

use libfuzzer_sys::fuzz_target;
use reach::Reached;

fn run(text: &str, reached: &mut Reached) {
    match blkmq::driver::spec::open(text) {
        Ok(_) => reached.add("devices opened", 1),
        Err(error) => {
            let line = error.to_string();
            assert!(!line.is_empty() && !line.contains(['\n', '\r']));
            reached.add("refused", 1);
        }
    }
}

fuzz_target!(
    init: reach::seeds("spec", &[("devices opened", 8), ("refused", 4)], |bytes, reached| {
        run(std::str::from_utf8(bytes).expect("these seeds are text").trim_end(), reached);
    }),
    |text: &str| run(text, &mut Reached::default())
);
