//! A failure is reported to the client that asked and in the log, and everything else continues.

use std::fs::{self, OpenOptions};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use crate::durability::mount::Mount;
use crate::durability::{file, folder};
use crate::served::{FLUSH, FUA, Nbd, Served, TRIM, WRITE, WRITE_ZEROES};

/// The protocol's numbers.
const EIO: u32 = 5;
const ENOSPC: u32 = 28;

/// A server of the device `bad`, with a second export that has nothing to do with it.
fn serve(bad: &str) -> Served {
    let [bad, good] = [format!("bad={bad}"), "good=ram,size=1M".to_owned()];
    Served::start(&["--export", &bad, "--export", &good])
}

/// Checks that everything else continues: another export, and new clients.
fn others_go_on(server: &Served) {
    let mut other = server.connect("good");
    assert_eq!(other.write(4096, &[6; 4096]), 0);
    assert_eq!(other.read(4096, 4096), [6; 4096]);
}

/// Ends the server, and checks what it has logged: as many lines as there are texts, each with one of the texts.
fn log(mut server: Served, texts: &[&str]) {
    let (code, log) = server.terminate();
    assert_eq!(code, Some(0), "{log}");
    assert_eq!(log.lines().count(), texts.len(), "{log}");
    for (line, text) in log.lines().zip(texts) {
        assert!(line.starts_with("blkmq: ") && line.contains(text), "{line:?} says nothing of {text:?}");
    }
}

/// The same, but the lines may come in any order.
fn log_in_any_order(mut server: Served, texts: &[&str]) {
    let (code, log) = server.terminate();
    let lines: Vec<_> = log.lines().filter(|line| line.starts_with("blkmq: ")).collect();
    assert_eq!((code, lines.len()), (Some(0), texts.len()), "{log}");
    for text in texts {
        assert!(lines.iter().any(|line| line.contains(text)), "no line of {log} says {text:?}");
    }
}

/// Asks for a read and returns the error.
fn read_error(client: &mut Nbd, offset: u64) -> u32 {
    client.send(crate::served::READ, 1, offset, 4096, &[]);
    client.receive().expect("the server answers").1
}

/// Red, like the tests below, if a failure of the device is not in the log.
#[test]
fn a_full_disk_fails_the_writes_that_it_has_no_room_for() {
    let folder = folder();
    let path = folder.path().display().to_string();
    let Some(_mount) = Mount::new(&["-t", "tmpfs", "-o", "size=1M", "tmpfs"], &path) else { return };
    let server = serve(&format!("file,path={},size=8M", file(&folder, "disk").1));
    let (mut client, mut another) = (server.connect("bad"), server.connect("bad"));
    let errors: Vec<_> = (0..32).map(|number| client.write(number << 16, &[1; 1 << 16])).collect();
    assert!(errors.contains(&0) && errors.contains(&ENOSPC), "{errors:?}");
    assert!(errors.iter().all(|error| [0, ENOSPC].contains(error)), "{errors:?}");
    let is_full = |error: &u32| *error == ENOSPC;
    let written = errors.iter().position(is_full).expect("it was just found") as u64 - 1;
    assert_eq!(another.read(written << 16, 1 << 16), [1; 1 << 16], "what is there stays there");
    others_go_on(&server);
    // Room that was given back can be used again.
    client.send(TRIM, 2, 0, 1 << 19, &[]);
    assert_eq!(client.receive(), Some((2, 0)));
    assert_eq!(another.write(0, &[2; 4096]), 0);
    assert_eq!(client.read(0, 4096), [2; 4096]);
    log(server, &["export \"bad\": a write at sector"]);
}

/// Red before the signal that comes with such a write (SIGXFSZ) ended the server.
#[test]
fn a_write_beyond_the_largest_file_that_may_be_finds_no_room_and_ends_nothing() {
    const LIMIT: u64 = 1 << 20;
    let folder = folder();
    for (engine, direct) in [("any", 0), ("any", 1), ("threads", 0), ("threads", 1)] {
        let disk = file(&folder, &format!("{engine}-{direct}")).1;
        let server = serve(&format!("file,path={disk},size=8M,engine={engine},direct={direct}"));
        let limit = Rlimit { current: Some(LIMIT), maximum: Some(LIMIT) };
        prlimit(Some(Pid::from_child(&server.child)), Resource::Fsize, limit).expect("a parent may do so");
        let (mut client, mut another) = (server.connect("bad"), server.connect("bad"));
        assert_eq!(client.write(LIMIT, &[1; 8192]), ENOSPC, "{engine}, direct={direct}");
        assert_eq!(client.write(LIMIT - 4096, &[2; 8192]), ENOSPC, "{engine}, direct={direct}: half of it");
        client.try_send(FUA, WRITE, 1, LIMIT, 4096, &[3; 4096]).expect("the server talks on");
        assert_eq!(client.receive(), Some((1, ENOSPC)), "{engine}, direct={direct}: a durable one");
        assert_eq!(another.write(LIMIT - 4096, &[4; 4096]), 0, "what lies before the limit goes on");
        assert_eq!(client.read(LIMIT - 4096, 8192), [[4; 4096], [0; 4096]].concat());
        client.send(FLUSH, 2, 0, 0, &[]);
        assert_eq!(client.receive(), Some((2, 0)), "nothing that was told done is lost");
        others_go_on(&server);
        drop((client, another));
        log(server, &["export \"bad\": a write at sector 2048 failed: no space left"]);
    }
}

/// Red if data that is written past the new end makes the file longer again, with zeroes before it that no client
/// wrote; or if the failure is not reported.
#[test]
fn a_file_that_was_cut_short_fails_what_reaches_behind_its_end() {
    const LEFT: u64 = 1 << 16;
    let folder = folder();
    let (path, disk) = file(&folder, "disk");
    // First at once, in the last block, where a write would make the file as long as it was. Then elsewhere, after the
    // driver must have seen the new length.
    for (direct, at, waits) in
        [(0, (1 << 20) - 4096, 0), (1, (1 << 20) - 4096, 0), (0, 1 << 18, 100), (1, 1 << 18, 100)]
    {
        fs::write(&path, vec![3; 1 << 20]).expect("the folder for tests is writable");
        let server = serve(&format!("file,path={disk},direct={direct}"));
        let (mut client, mut another) = (server.connect("bad"), server.connect("bad"));
        assert_eq!(client.write(at, &[3; 4096]), 0);
        let file = OpenOptions::new().write(true).open(&path).expect("it is there");
        file.set_len(LEFT).expect("the folder for tests is writable");
        thread::sleep(Duration::from_millis(waits));
        assert_eq!(client.write(at, &[4; 4096]), EIO);
        assert_eq!(read_error(&mut another, 1 << 17), EIO);
        for kind in [TRIM, WRITE_ZEROES, FLUSH] {
            let (offset, length) = if kind == FLUSH { (0, 0) } else { (1 << 17, 4096) };
            another.send(kind, 2, offset, length, &[]);
            assert_eq!(another.receive(), Some((2, EIO)), "{kind}");
        }
        assert_eq!(client.read(4096, 4096), [3; 4096]);
        assert_eq!(client.write(4096, &[5; 4096]), 0, "what is there goes on");
        assert_eq!(fs::metadata(&path).map(|found| found.len()).ok(), Some(LEFT), "nothing made it longer");
        others_go_on(&server);
        let listed = server.json(&["list"]);
        assert!(listed.to_string().contains("\"the file became shorter at 20"), "{listed}");
        // A client that chooses the export sees how long the file is.
        drop(server.connect("bad"));
        let shorter = "has failed: the file became shorter at 20";
        let mut texts =
            ["a write at sector", "a read at sector 256 failed: I/O error", "may grow but not shrink", shorter]
                .to_vec();
        texts.extend(["a discard at sector 256", "a write of zeroes at sector 256", "a flush failed"]);
        log_in_any_order(server, &texts);
    }
}

/// Red if a client that cannot be accepted is left to wait, or the server takes no more when there are descriptors
/// again.
#[test]
fn without_descriptors_clients_are_turned_away_and_the_others_served() {
    let folder = folder();
    let server = serve(&format!("file,path={},size=1M", file(&folder, "disk").1));
    let mut clients = [server.connect("bad"), server.connect("good")];
    let mut work = || {
        for client in &mut clients {
            assert_eq!(client.write(0, &[5; 8192]), 0);
            assert_eq!(client.read(4096, 4096), [5; 4096]);
        }
    };
    work();
    let pid = Pid::from_child(&server.child);
    let open = fs::read_dir(format!("/proc/{}/fd", server.child.id())).expect("it runs");
    let highest = open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u64>().ok()).max();
    let numbers = highest.expect("it has some") + 1;
    // The server inherits its limit of descriptors from this process.
    let before = getrlimit(Resource::Nofile);
    let mut others = Vec::new();
    // No client asks so often that the server measures what a wake-up takes, which needs descriptors too. Each client
    // takes two. In the first round the last client gets none, and in the second it gets one and lacks the
    // other.
    for numbers in [numbers, numbers + 1] {
        let limit = Rlimit { current: Some(numbers), maximum: before.maximum };
        prlimit(Some(pid), Resource::Nofile, limit).expect("a parent may do so");
        let connect = || UnixStream::connect(server.folder.join("nbd")).expect("the server listens");
        others.extend(std::iter::from_fn(|| Nbd::try_connect(connect(), "good")));
        work();
    }
    prlimit(Some(pid), Resource::Nofile, before).expect("a parent may do so");
    others_go_on(&server);
    assert_eq!(server.connect("bad").read(4096, 4096), [5; 4096]);
    work();
    drop((clients, others));
    log(server, &["a client could not be accepted: Too many open files"; 2]);
}
