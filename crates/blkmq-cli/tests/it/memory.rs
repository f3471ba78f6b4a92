//! How much memory `blkmq serve` takes, in a control group that ends it if it takes far more than it may.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use crate::run::memory;
use crate::served::{Nbd, READ, Served, WRITE};

const MIB: u64 = 1 << 20;
/// Clients at a time.
const CLIENTS: u64 = 30;

/// A control group with a limit, which goes when the test is over.
struct Group(PathBuf);

impl Group {
    /// A group of which the processes may have so many bytes. `None`, and a word about it, if none can be made.
    fn new(bytes: u64) -> Option<Self> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("blkmq-test-{}-{}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let mut reasons = Vec::new();
        for (root, file) in [("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")] {
            let group = Self(Path::new(root).join(&name));
            let made = fs::create_dir(&group.0).and_then(|()| fs::metadata(group.0.join(file)));
            match made.and_then(|_| fs::write(group.0.join(file), bytes.to_string())) {
                Ok(()) => return Some(group),
                Err(error) => reasons.push(format!("{}/{file}: {error}", group.0.display())),
            }
        }
        println!("SKIP no control group with a limit can be made: {}", reasons.join("; "));
        None
    }

    /// A server in it.
    fn serve(&self, folder: &TempDir, arguments: &[&str]) -> Served {
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(self.0.join("cgroup.procs"));
        shell.args([env!("CARGO_BIN_EXE_blkmq"), "serve", "--device", "null,size=1G"]);
        for (option, socket) in [("--nbd", "nbd"), ("--control", "control")] {
            shell.arg(option).arg(folder.path().join(socket));
        }
        shell.args(arguments);
        Served::begin(folder.path(), shell)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// Asks for `count` requests of so many bytes, at most `depth` at a time, and takes all answers.
fn load(client: &mut Nbd, kind: u16, len: u64, depth: u64, count: u64) {
    let data = vec![0; if kind == WRITE { len as usize } else { 0 }];
    let mut asked = 0;
    for answered in 0..count {
        while asked < count.min(answered + depth) {
            client.send(kind, asked, asked % 64 * len, len as u32, &data);
            asked += 1;
        }
        assert_eq!(client.receive().map(|(_, error)| error), Some(0), "the server goes on");
        if kind == READ {
            client.data(len as usize);
        }
    }
}

/// The most memory that the server has while many clients do this.
fn most(server: &Served, work: impl Fn(&mut Nbd) + Sync) -> u64 {
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| server.connect("")).collect();
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = clients.iter_mut().map(|client| scope.spawn(move || work(client))).collect();
        let mut most = 0;
        while threads.iter().any(|thread| !thread.is_finished()) {
            most = most.max(memory(server.child.id(), "RssAnon").expect("the server runs"));
            thread::sleep(Duration::from_millis(2));
        }
        most
    })
}

/// What a server may have that was given so many bytes for its clients.
const fn bound(given: u64) -> u64 {
    given + 32 * MIB + CLIENTS * (64 << 10)
}

/// Red before buffers came from memory that the system has again: the heap kept what was freed, 208 MiB with the reads
/// and 390 MiB with the writes.
#[test]
fn a_server_has_no_more_memory_than_it_was_given_and_a_little() {
    for (given, [kind, len, depth, count]) in [
        (24, [READ.into(), 64 << 10, 64, 256]),
        (24, [READ.into(), 4096, 256, 2048]),
        (64, [WRITE.into(), 4 * MIB, 4, 8]),
    ] {
        let Some(group) = Group::new(256 * MIB) else { return };
        let folder = tempfile::tempdir().unwrap();
        let memory = format!("{given}M");
        let mut server = group.serve(&folder, &["--memory", &memory, "--max-connections", "32"]);
        let most = most(&server, |client| load(client, kind as u16, len, depth, count));
        assert!(most <= bound(given * MIB), "{most} bytes, with {memory} given, for requests of {len} bytes");
        assert_eq!(server.terminate().0, Some(0));
    }
}

/// Red before the default heeded the limit of the group: clients got 192 MiB without a word, and the kernel ended the
/// server.
#[test]
fn by_default_a_server_lives_in_a_small_control_group_and_says_what_it_does_not_do() {
    let Some(group) = Group::new(256 * MIB) else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut server = group.serve(&folder, &[]);
    let metrics = server.get("/metrics");
    let given = metrics.lines().find_map(|line| line.strip_prefix("blkmq_memory_limit_bytes ")).unwrap();
    let given = given.parse::<u64>().unwrap();
    assert!(given <= 64 * MIB, "{given} bytes");
    let most = most(&server, |client| load(client, READ, MIB, 16, 64));
    assert!(most <= bound(given), "{most} bytes, of which {given} were given");
    let (code, said) = server.terminate();
    assert_eq!(code, Some(0), "{said}");
    let line = said.lines().find(|line| line.starts_with("blkmq: memory: clients have "));
    let line = line.unwrap_or_else(|| panic!("nothing is said: {said}"));
    assert!(line.contains(" at a time and not for 256; set memory or max_connections for more"), "{line}");
}
