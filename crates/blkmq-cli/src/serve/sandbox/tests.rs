//! What can still be done in the sandbox, and what not. The sandbox holds for a thread and for the threads that it
//! starts, so each test enters it in a thread of its own.

use std::fs;
use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::thread;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, socket};

use super::*;

/// What comes of `act` in the sandbox; `None` where the kernel has no Landlock.
fn inside<T: Send>(needs: &Needs, act: impl FnOnce() -> T + Send) -> Option<T> {
    thread::scope(|scope| {
        let act = || {
            let held = enter(needs, None, true).unwrap();
            let is_whole = held == "Landlock, no_new_privs, seccomp";
            if !is_whole {
                assert!(held.starts_with("no_new_privs, seccomp; Landlock is not to be had here: "), "{held}");
                println!("SKIP Landlock: {held}");
            }
            is_whole.then(act)
        };
        scope.spawn(act).join().unwrap()
    })
}

/// Red if the rules are not in force, for this thread and those that it starts, or allow more than is needed.
#[test]
fn no_file_is_opened_but_what_the_server_needs() {
    let folder = tempfile::tempdir().unwrap();
    let [read, sockets] = ["read", "sockets"].map(|name| folder.path().join(name));
    [&read, &sockets].into_iter().for_each(|path| fs::create_dir(path).unwrap());
    fs::write(read.join("ca-crl.pem"), "a list").unwrap();
    let listener = UnixListener::bind(sockets.join("nbd")).unwrap();
    let needs = Needs { read: vec![read.clone()], remove: vec![sockets.clone()], connects: false };
    let denied = Some(ErrorKind::PermissionDenied);
    let kind = |result: std::io::Result<()>| result.err().map(|error| error.kind());
    inside(&needs, || {
        assert_eq!(kind(fs::read("/etc/passwd").map(drop)), denied);
        let child = thread::spawn(|| fs::read("/etc/passwd").map(drop));
        assert_eq!(kind(child.join().unwrap()), denied, "threads inherit it");
        assert_eq!(fs::read(read.join("ca-crl.pem")).unwrap(), b"a list");
        assert_eq!(kind(fs::write(read.join("new"), "")), denied);
        assert_eq!(kind(fs::write(read.join("ca-crl.pem"), "")), denied);
        assert_eq!(kind(fs::remove_file(read.join("ca-crl.pem"))), denied);
        UnixStream::connect(sockets.join("nbd")).unwrap();
        fs::remove_file(sockets.join("nbd")).unwrap();
        assert_eq!(kind(UnixListener::bind(sockets.join("another")).map(drop)), denied);
    });
    drop(listener);
    fs::read("/etc/passwd").expect("other threads are as they were");
}

/// Red if connections are not among what the rules are about, or are refused to a server with a device at another
/// server.
#[test]
fn no_server_is_connected_to_unless_a_device_is_there() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let connect = || TcpStream::connect(address).map(drop).map_err(|error| error.kind());
    let to_nobody = inside(&Needs::default(), connect);
    assert!(to_nobody.is_none_or(|result| result == Err(ErrorKind::PermissionDenied)), "{to_nobody:?}");
    let to_servers = inside(&Needs { connects: true, ..Needs::default() }, connect);
    assert!(to_servers.is_none_or(|result| result == Ok(())), "{to_servers:?}");
}

/// Red if the filter is not in force, or a call is missing from it: each of these works for root otherwise.
#[test]
fn no_program_is_run_and_no_call_is_made_that_a_server_does_not_need() {
    thread::spawn(|| {
        let held = enter(&Needs::default(), None, true).unwrap();
        assert!(held.contains("seccomp") && !held.contains("seccomp is not"), "{held}");
        // EPERM is the error of the filter; the error of Landlock is EACCES.
        let refused = Some(Errno::PERM.raw_os_error());
        assert_eq!(Command::new("/bin/true").status().unwrap_err().raw_os_error(), refused);
        assert_eq!(socket(AddressFamily::NETLINK, SocketType::RAW, None).unwrap_err(), Errno::PERM);
        socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        assert_eq!(rustix::process::chroot("/").unwrap_err(), Errno::PERM);
    })
    .join()
    .unwrap();
    assert!(Command::new("/bin/true").status().unwrap().success(), "other threads are as they were");
}

/// Red if the folder that a link leads to is left out: a certificate that was renewed could not be read. Red too if the
/// folder itself is left out, for the next link there.
#[test]
fn a_folder_for_tls_is_where_its_links_lead_too() {
    let folder = tempfile::tempdir().unwrap();
    let [live, archive] = ["live", "archive"].map(|name| folder.path().join(name));
    [&live, &archive].into_iter().for_each(|path| fs::create_dir(path).unwrap());
    fs::write(archive.join("cert1.pem"), "").unwrap();
    std::os::unix::fs::symlink(archive.join("cert1.pem"), live.join("server-cert.pem")).unwrap();
    fs::write(live.join("server-key.pem"), "").unwrap();
    let expected = [&archive, &live].map(|path| path.canonicalize().unwrap());
    assert_eq!(files::of_tls(&live.canonicalize().unwrap()), expected);
}

/// Red if the rule is for the file that was there at the start: a server that has another address when it is back is
/// not found by its name once a DHCP client has replaced `/etc/resolv.conf`.
#[test]
fn a_file_that_is_renamed_over_another_is_read_in_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let [etc, run, other] = ["etc", "run", "other"].map(|name| folder.path().join(name));
    [&etc, &run, &other].into_iter().for_each(|path| fs::create_dir(path).unwrap());
    let [hosts, resolv] = ["hosts", "resolv.conf"].map(|name| etc.join(name));
    fs::write(&hosts, "old").unwrap();
    fs::write(run.join("resolv.conf"), "old").unwrap();
    std::os::unix::fs::symlink(run.join("resolv.conf"), &resolv).unwrap();
    fs::write(other.join("file"), "").unwrap();
    let read = files::folders_of(&[hosts.clone(), resolv.clone()]);
    let (entered, enters) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        // The files are replaced from outside, once the sandbox is entered.
        let (replaced, is_replaced) = std::sync::mpsc::channel();
        let act = move || {
            entered.send(()).unwrap();
            is_replaced.recv().unwrap();
            assert_eq!([&hosts, &resolv].map(|path| fs::read(path).unwrap()), [b"new", b"new"]);
            let refused = fs::read(other.join("file")).unwrap_err().kind();
            assert_eq!(refused, ErrorKind::PermissionDenied);
        };
        let sandboxed = scope.spawn(move || inside(&Needs { read, ..Needs::default() }, act));
        if enters.recv().is_ok() {
            for place in [etc.join("hosts"), run.join("resolv.conf")] {
                fs::write(folder.path().join("new"), "new").unwrap();
                fs::rename(folder.path().join("new"), place).unwrap();
            }
            replaced.send(()).unwrap();
        }
        sandboxed.join().unwrap();
    });
}

/// Red if `/etc` can be read by a server that looks up no name, or cannot be by one that does.
#[test]
fn names_are_looked_up_where_a_host_has_one() {
    let looks_up = |device: &str| looks_up(&Given::option("device", device));
    for device in
        ["nbd,uri=nbd://disks.example:10809/a", "nbd,reconnect_delay=1s,uri=nbd://disks", "rbd,pool=a,image=b"]
    {
        assert!(looks_up(device), "{device}");
    }
    for device in [
        "nbd,uri=nbd://10.0.0.7/a",
        "nbd,uri=nbd://10.0.0.7:1,submit_queues=2",
        "nbd,uri=nbd://[::1]:7/a",
        "nbd,uri=nbd://[::1]",
        "nbd,uri=nbd+unix:///a?socket=/run/a.sock",
        "ram,size=1G",
    ] {
        assert!(!looks_up(device), "{device}");
    }
    for (place, is_named) in [("9100", false), ("0.0.0.0:9100", false), ("[::]:1", false), ("localhost:9100", true)] {
        assert_eq!(names_host(place), is_named, "{place}");
    }
}
