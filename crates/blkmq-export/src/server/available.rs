//! How much memory this process may use.

use std::fs;
use std::path::{Path, PathBuf};

/// The memory of the machine in bytes, or the smallest limit of the control groups around this process. `None` if
/// neither is known.
#[must_use]
pub fn memory() -> Option<usize> {
    let machine = read(Path::new("/proc/meminfo")).as_deref().and_then(of_machine);
    let own = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let groups = files(&own).into_iter().filter_map(|file| read(&file)?.trim().parse().ok());
    groups.chain(machine).min()
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// What `/proc/meminfo` says.
fn of_machine(text: &str) -> Option<usize> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix(" kB")?.parse::<usize>().ok()?.checked_mul(1024)
}

/// The files that hold the limits of the control groups of a process, given its `/proc/self/cgroup`: the limits of its
/// own group and of the groups around that. In a container the outermost group may be the process's own, whatever the
/// text says.
fn files(text: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(kinds), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (root, file) = if kinds.is_empty() {
            ("/sys/fs/cgroup", "memory.max")
        } else if kinds.split(',').any(|kind| kind == "memory") {
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
        } else {
            continue;
        };
        let path = Path::new(path.trim_start_matches('/'));
        files.extend(path.ancestors().map(|group| Path::new(root).join(group).join(file)));
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if the kernel's unit is ignored.
    #[test]
    fn the_machine_has_what_the_kernel_says() {
        assert_eq!(of_machine("MemTotal:       24624868 kB\nMemFree: 1 kB\n"), Some(24_624_868 << 10));
        assert_eq!(of_machine("MemFree: 1 kB\n"), None);
        assert!(memory().is_none_or(|bytes| bytes > 1 << 20));
    }

    /// Red if only the group of the process itself is read: the limit is mostly that of a group around it.
    #[test]
    fn every_group_around_the_process_may_have_a_limit() {
        let found = |text: &str| files(text).iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
        assert_eq!(
            found("0::/a/b\n"),
            ["/sys/fs/cgroup/a/b/memory.max", "/sys/fs/cgroup/a/memory.max", "/sys/fs/cgroup/memory.max"]
        );
        assert_eq!(
            found("5:cpu,cpuacct:/x\n4:memory:/y\n"),
            ["/sys/fs/cgroup/memory/y/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.limit_in_bytes"]
        );
        assert_eq!(found("nonsense"), [""; 0]);
    }
}
