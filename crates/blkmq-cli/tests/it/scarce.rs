//! A server that the system gives no thread, or no memory, or whose file is taken away.

use std::io::BufRead;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::thread;

use crate::served::{Nbd, Served, ended};
use rustix::process::{Pid, Resource, Rlimit, Signal, getuid, prlimit};
use rustix::thread::{Gid, Uid, set_thread_res_gid, set_thread_res_uid};

/// A user and group that have no other process.
const NOBODY: u32 = 3_999_991;

/// Takes from a process the right to start threads. As root it has to be a process of [`NOBODY`].
fn forbid_threads(process: Pid) {
    thread::scope(|scope| {
        let forbid = || {
            if getuid().is_root() {
                // This thread alone becomes the user: root may not change the limits of others everywhere.
                let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
                set_thread_res_gid(group, group, group).expect("root may");
                set_thread_res_uid(user, user, user).expect("root may");
            }
            let none = Rlimit { current: Some(0), maximum: Some(0) };
            prlimit(Some(process), Resource::Nproc, none).expect("the process is of the same user");
        };
        scope.spawn(forbid).join().expect("it has the rights");
    });
}

/// Red (exit code 101) if the end needs a thread that is not there from the start.
#[test]
fn a_server_ends_in_order_where_no_thread_can_be_made() {
    // The kernel gives root threads beyond every limit.
    let id = NOBODY.to_string();
    let user: &[&str] = if getuid().is_root() { &["--user", &id, "--group", &id] } else { &[] };
    let mut server = Served::start(&[&["--device", "ram,size=1M"], user].concat());
    let mut client = server.connect("");
    assert_eq!(client.write(0, &[7; 512]), 0);
    forbid_threads(Pid::from_child(&server.child));
    let refused = UnixStream::connect(server.folder.join("nbd")).unwrap();
    assert!(Nbd::try_connect(refused, "").is_none(), "the server has no thread for it");
    assert_eq!(client.read(0, 512), [7; 512]);
    server.signal(Signal::TERM);
    drop(client);
    let (code, said) = server.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.lines().all(|line| line.starts_with("blkmq: a client could not be accepted: ")), "{said}");
}

/// Red if a server with a disk that is larger than its memory starts, and is aborted when clients write.
#[test]
fn a_disk_in_memory_that_cannot_be_had_is_refused_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let mut shell = Command::new("sh");
    let script = "ulimit -v 4000000 && exec \"$0\" serve --device ram,size=4G --run true";
    let shell = shell.args(["-c", script, env!("CARGO_BIN_EXE_blkmq")]).env("XDG_RUNTIME_DIR", folder.path());
    let error = ended(&shell.output().unwrap(), 2);
    assert!(error.starts_with("blkmq: --device: 4294967296 bytes of memory cannot be had: "), "{error}");
}

/// Red if an operator learns only after the end of the server that its file was deleted.
#[test]
fn a_server_says_that_its_file_was_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    let mut server = Served::start(&["--device", &format!("file,path={},size=1M", path.display())]);
    let metric = |state: &str, value| format!("\nblkmq_device_health{{queue=\"default\",state=\"{state}\"}} {value}\n");
    assert!(server.get("/metrics").contains(&metric("orphaned", 0)));
    std::fs::remove_file(&path).unwrap();
    let mut line = String::new();
    server.error.read_line(&mut line).unwrap();
    let expected = format!("the device of queue 'default' is orphaned: {}: the file was deleted", path.display());
    assert!(line.starts_with(&format!("blkmq: {expected}")), "{line}");
    let metrics = server.get("/metrics");
    assert!(metrics.contains(&metric("orphaned", 1)) && metrics.contains(&metric("good", 0)), "{metrics}");
    assert!(server.say(&["stat"]).contains("device orphaned: "), "{}", server.say(&["stat"]));
    assert_eq!(server.connect("").write(0, &[7; 512]), 0, "it is served on");
}
