//! Limits the memory of a test's process. Such a test has a process of its own.

use std::fs;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// More memory than the test needs, and less than the stack of a thread.
const LEFT: u64 = 1 << 20;

/// Limits the memory of the process so that it can make no thread, or removes the limit.
pub(crate) fn allow_threads(are_allowed: bool) {
    let status = fs::read_to_string("/proc/self/status").expect("proc is there");
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")?.trim().strip_suffix(" kB"));
    let size: u64 = size.and_then(|size| size.parse().ok()).expect("a process has a size");
    let current = (!are_allowed).then_some((size << 10) + LEFT);
    setrlimit(Resource::As, Rlimit { current, ..getrlimit(Resource::As) }).expect("a limit may become lower");
}
