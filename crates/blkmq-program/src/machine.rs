//! Where and when something was measured.

use std::fs;
use std::thread;

/// Processor, number of CPUs, and kernel, as far as the system says.
pub fn name() -> String {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("an unnamed processor", |(_, model)| model.trim());
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let kernel = read("/proc/sys/kernel/osrelease");
    let kernel = if kernel.is_empty() { String::new() } else { format!(", Linux {}", kernel.trim()) };
    format!("{model}, {cpus} CPUs{kernel}")
}

/// Now, in universal time.
pub fn date() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%d %H:%MZ").to_string()
}

/// How this program was called. `program` is what the user calls it: `blkmq`, or a command of it that is a program of
/// its own.
pub fn command(program: &str) -> String {
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    std::iter::once(program.to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}
