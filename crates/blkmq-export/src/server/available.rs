//! How much memory this process may use, and what of it clients have if nobody says.

use std::fs;
use std::path::{Path, PathBuf};

use blkmq_engine::least_memory;

/// The most connections at a time, unless the builder sets another number.
pub const MAX_CONNECTIONS: u16 = 256;

/// Bytes of the machine, or of a control group around this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Memory {
    all: usize,
    /// What can be had without taking it from a process.
    free: usize,
    /// What may be swapped out.
    swap: usize,
}

impl Memory {
    /// What clients get of it.
    fn share(self) -> usize {
        (self.all / 4).min(self.free / 2)
    }
}

/// The files of a control group.
#[derive(Debug, PartialEq, Eq)]
struct Files {
    root: &'static str,
    limits: &'static [&'static str],
    usage: &'static str,
    /// The line of `memory.stat` with the pages of files that the kernel takes back before it ends a process.
    idle: &'static str,
    /// The limit of what is swapped out alone, if the kernel has one.
    swap: Option<&'static str>,
}

const FIRST: Files = Files {
    root: "/sys/fs/cgroup/memory",
    limits: &["memory.limit_in_bytes"],
    usage: "memory.usage_in_bytes",
    idle: "total_inactive_file",
    swap: None,
};
const SECOND: Files = Files {
    root: "/sys/fs/cgroup",
    limits: &["memory.max", "memory.high"],
    usage: "memory.current",
    idle: "inactive_file",
    swap: Some("memory.swap.max"),
};

/// Returns the number of bytes that clients get if nobody says how many: of the machine, or of the control group around
/// this process that has the least, a quarter, and no more than half of what is free. `None` if nothing is known.
pub(super) fn share() -> Option<usize> {
    known().map(Memory::share).min()
}

/// Returns the most bytes that a process may have, with all that can be swapped out: as many as the machine has, or as
/// the control groups around this process allow. `None` if nothing is known.
#[must_use]
pub fn memory() -> Option<usize> {
    most(known())
}

fn most(known: impl Iterator<Item = Memory>) -> Option<usize> {
    // No group gets more than the machine has.
    known
        .fold(None, |least: Option<(usize, usize)>, memory| {
            let (all, swap) = least.unwrap_or((usize::MAX, usize::MAX));
            Some((all.min(memory.all), swap.min(memory.swap)))
        })
        .map(|(all, swap)| all.saturating_add(swap))
}

/// Returns the memory of the machine, and that of each control group around this process that has a limit.
fn known() -> impl Iterator<Item = Memory> {
    let machine = meminfo().as_deref().and_then(of_machine);
    let own = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let groups = groups(&own).into_iter().filter_map(|(folder, files)| of_group(&folder, files));
    groups.chain(machine)
}

/// Returns the memory and the number of connections of a server for which nobody has said how much memory clients have.
/// `share` is what they get, if it is known, and `connections` how many there may be, if somebody has said it. The text
/// is what the operator should know.
pub(super) fn divide(share: Option<usize>, connections: Option<usize>) -> (usize, usize, Option<String>) {
    let most = connections.unwrap_or(MAX_CONNECTIONS.into());
    let (least, share) = (least_memory(most), share.unwrap_or_else(|| least_memory(most)));
    if share >= least {
        return (share, most, None);
    }
    let mib = |bytes: usize| bytes >> 20;
    let have = format!("clients have {} MiB by default here", mib(share));
    if connections.is_some() {
        let text = format!(
            "memory: {most} clients take {} MiB at least, and get them, although {have}; set memory, or allow fewer \
             clients",
            mib(least)
        );
        return (least, most, Some(text));
    }
    let fewer = (share / least_memory(1)).max(1);
    let text = format!(
        "memory: {have}, enough for {fewer} at a time and not for {most}; set memory or max_connections for more"
    );
    (share.max(least_memory(fewer)), fewer, Some(text))
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// Returns the text of `/proc/meminfo`.
fn meminfo() -> Option<String> {
    read(Path::new("/proc/meminfo"))
}

/// Returns the number of bytes that `/proc/meminfo` has under a name.
fn bytes_of(text: &str, name: &str) -> Option<usize> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().strip_suffix(" kB")?.parse::<usize>().ok()?.checked_mul(1024)
}

/// What `/proc/meminfo` says.
fn of_machine(text: &str) -> Option<Memory> {
    let all = bytes_of(text, "MemTotal")?;
    let free = bytes_of(text, "MemAvailable").unwrap_or(all);
    Some(Memory { all, free, swap: bytes_of(text, "SwapTotal").unwrap_or(0) })
}

/// Returns the folders of the control groups of a process, given its `/proc/self/cgroup`: its own group, and the groups
/// around that. In a container the outermost group may be the process's own, whatever the text says.
fn groups(text: &str) -> Vec<(PathBuf, &'static Files)> {
    let mut groups = Vec::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(kinds), Some(path)) = (fields.next(), fields.next()) else { continue };
        let files = if kinds.is_empty() {
            &SECOND
        } else if kinds.split(',').any(|kind| kind == "memory") {
            &FIRST
        } else {
            continue;
        };
        let path = Path::new(path.trim_start_matches('/'));
        groups.extend(path.ancestors().map(|group| (Path::new(files.root).join(group), files)));
    }
    groups
}

/// What a control group has. `None` if it has no limit.
fn of_group(folder: &Path, files: &Files) -> Option<Memory> {
    let number = |name: &str| read(&folder.join(name))?.trim().parse::<usize>().ok();
    let all = files.limits.iter().filter_map(|name| number(name)).min()?;
    let stat = read(&folder.join("memory.stat")).unwrap_or_default();
    let mut lines = stat.lines().filter_map(|line| line.split_once(' '));
    let idle = lines.find_map(|(name, bytes)| (name == files.idle).then(|| bytes.trim().parse().ok())?).unwrap_or(0);
    let used = number(files.usage).unwrap_or(0).saturating_sub(idle);
    let swap = files.swap.and_then(number).unwrap_or(usize::MAX);
    Some(Memory { all, free: all.saturating_sub(used), swap })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// Red if the kernel's unit is ignored.
    #[test]
    fn the_machine_has_what_the_kernel_says() {
        let expected = Memory { all: 24_624_868 << 10, free: 2 << 10, swap: 2_097_148 << 10 };
        let text = "MemTotal:       24624868 kB\nMemFree: 1 kB\nMemAvailable:    2 kB\nSwapTotal:       2097148 kB\n";
        assert_eq!(of_machine(text), Some(expected));
        assert_eq!(of_machine("MemTotal: 1 kB\n"), Some(Memory { all: 1024, free: 1024, swap: 0 }));
        assert_eq!(of_machine("MemFree: 1 kB\n"), None);
        assert!(share().is_none_or(|bytes| bytes > 1 << 20));
    }

    /// Red if only the group of the process itself is read: the limit is mostly that of a group around it.
    #[test]
    fn every_group_around_the_process_may_have_a_limit() {
        let found = |text: &str| groups(text).iter().map(|(path, _)| path.display().to_string()).collect::<Vec<_>>();
        assert_eq!(found("0::/a/b\n"), ["/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup/"]);
        assert_eq!(found("5:cpu,cpuacct:/x\n4:memory:/y\n"), ["/sys/fs/cgroup/memory/y", "/sys/fs/cgroup/memory/"]);
        assert_eq!(found("nonsense"), [""; 0]);
    }

    /// Red if what others in the group use counts as free, or if pages of files that the kernel takes back do not.
    #[test]
    #[cfg_attr(miri, ignore = "there are no files")]
    fn a_group_has_its_limit_and_free_is_what_nobody_in_it_uses() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("memory.max", "max\n");
        assert_eq!(of_group(folder.path(), &SECOND), None, "it has no limit");
        write("memory.high", &format!("{}\n", 512 * MIB));
        write("memory.current", &format!("{}\n", 400 * MIB));
        write("memory.stat", &format!("anon 1\ninactive_file {}\nactive_file 5\n", 100 * MIB));
        let expected = Memory { all: 512 * MIB, free: 212 * MIB, swap: usize::MAX };
        assert_eq!(of_group(folder.path(), &SECOND), Some(expected));
        assert_eq!([expected.share(), Memory { free: 512 * MIB, ..expected }.share()], [106 * MIB, 128 * MIB]);
        write("memory.limit_in_bytes", &format!("{}\n", 64 * MIB));
        let first = Memory { all: 64 * MIB, free: 64 * MIB, swap: usize::MAX };
        assert_eq!(of_group(folder.path(), &FIRST), Some(first));
        write("memory.swap.max", "0\n");
        assert_eq!(of_group(folder.path(), &SECOND), Some(Memory { swap: 0, ..expected }));
    }

    /// Red if the machine's swap space counts for a group that may not have it: a process that takes it is killed.
    #[test]
    fn a_group_that_may_not_swap_has_its_memory_alone() {
        let machine = Memory { all: 8 << 30, free: 1 << 30, swap: 8 << 30 };
        let group = |swap| Memory { all: 1 << 30, free: 1 << 30, swap };
        assert_eq!(most([machine].into_iter()), Some(16 << 30));
        assert_eq!(most([group(0), machine].into_iter()), Some(1 << 30));
        assert_eq!(most([group(2 << 30), machine].into_iter()), Some(3 << 30));
        assert_eq!(most([group(usize::MAX), machine].into_iter()), Some(9 << 30));
        assert_eq!(most([].into_iter()), None);
    }

    /// Red if clients get more than their share, or fewer of them are served, and nobody is told.
    #[test]
    fn nothing_is_more_or_less_than_said_without_a_word() {
        let most = usize::from(MAX_CONNECTIONS);
        assert_eq!(divide(Some(192 * MIB), None), (192 * MIB, most, None));
        assert_eq!(divide(None, None), (192 * MIB, most, None));
        assert_eq!(divide(Some(6 << 30), Some(1000)), (6 << 30, 1000, None));
        let (memory, connections, said) = divide(Some(64 * MIB), None);
        assert_eq!((memory, connections), (64 * MIB, 85));
        let expected = "memory: clients have 64 MiB by default here, enough for 85 at a time and not for 256; set memory or \
                        max_connections for more";
        assert_eq!(said.as_deref(), Some(expected));
        let (memory, connections, said) = divide(Some(64 * MIB), Some(100));
        assert_eq!((memory, connections), (75 * MIB, 100));
        assert!(said.unwrap().starts_with("memory: 100 clients take 75 MiB at least, and get them, although"));
        assert_eq!(divide(Some(0), None).1, 1);
    }
}
