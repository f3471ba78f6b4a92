//! What inputs reach. A target that refuses every input at its first byte finds nothing, and only these counts show
//! that.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Defines a target by its name, the function that runs an input, what its seeds reach at least, and the type of its
/// inputs.
macro_rules! target {
    ($name:literal, $run:ident, $least:expr, $($input:tt)+) => {
        libfuzzer_sys::fuzz_target!(
            init: reach::seeds($name, &$least, |bytes, reached| $run(reach::Input::of(bytes), reached)),
            |input: $($input)+| $run(input, &mut reach::Reached::default())
        );
    };
}

/// What the fuzzer makes of bytes.
pub trait Input<'a> {
    fn of(bytes: &'a [u8]) -> Self;
}

impl<'a> Input<'a> for &'a [u8] {
    fn of(bytes: &'a [u8]) -> Self {
        bytes
    }
}

impl<'a> Input<'a> for &'a str {
    fn of(bytes: &'a [u8]) -> Self {
        std::str::from_utf8(bytes).expect("these seeds are text")
    }
}

/// How often the inputs of a target reached the places that matter.
#[derive(Debug, Default)]
pub struct Reached(BTreeMap<&'static str, u64>);

impl Reached {
    /// Counts that the place was reached this many times more.
    pub fn add(&mut self, what: &'static str, times: usize) {
        *self.0.entry(what).or_default() += times as u64;
    }
}

/// Runs `work`, and returns when all threads that it started have ended. Between two inputs libFuzzer looks for lost
/// memory. The memory of a thread that is just beginning or ending is not lost, and is found by nothing.
#[allow(dead_code, reason = "most targets start no threads")]
pub fn alone(work: impl FnOnce()) {
    let nr_threads = || fs::read_dir("/proc/self/task").expect("Linux tells a process of its threads").count();
    let before = nr_threads();
    work();
    while nr_threads() > before {
        std::thread::yield_now();
    }
}

/// Runs the target on each of its seeds, and prints what they reach.
///
/// # Panics
/// The seeds reach a place less often than `least` says: then the target, or its seeds, are of no use.
pub fn seeds(target: &str, least: &[(&'static str, u64)], run: impl Fn(&[u8], &mut Reached)) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target);
    let mut reached = Reached::default();
    let mut files: Vec<_> =
        fs::read_dir(&folder).expect("each target has seeds").flatten().map(|file| file.path()).collect();
    files.sort();
    for file in &files {
        run(&fs::read(file).expect("a seed can be read"), &mut reached);
    }
    let words: Vec<_> = reached.0.iter().map(|(what, times)| format!("{what} {times}")).collect();
    println!("REACHED {target}: {} seeds, {}", files.len(), words.join(", "));
    for (what, times) in least {
        let found = reached.0.get(what).copied().unwrap_or_default();
        assert!(found >= *times, "the seeds of {target} reach '{what}' {found} times, and not {times}");
    }
}
