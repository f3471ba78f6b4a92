//! The control socket from outside: where commands find it, and what it refuses.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::served::{AtEnd, Served, answer, ended, program, scheduler, scrape, until};
use serde_json::Value;

#[test]
fn hostile_http_is_refused_and_harms_nobody() {
    let server = Served::start(&[]);
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(100_000));
    for (bytes, status) in [
        (&b"NBDMAGICIHAVEOPT\r\n\r\n"[..], "400 Bad Request"),
        (b"GET /queues/%ff%fe HTTP/1.1\r\n\r\n", "400 Bad Request"),
        (b"PUT /queues/default/knobs/nomerges HTTP/1.1\r\nContent-Length: 2\r\n\r\n\xff\xfe", "400 Bad Request"),
        (b"PUT /queues/default/knobs/nomerges HTTP/1.1\r\nContent-Length: 1\r\n\r\n3", "400 Bad Request"),
        (b"PUT /queues/default/knobs/nomerges HTTP/1.1\r\n\r\n", "400 Bad Request"),
        (b"PUT /queues/default/knobs/scheduler HTTP/1.1\r\nContent-Length: 3\r\n\r\ncfq", "400 Bad Request"),
        (b"GET / HTTP/1.1\r\n\r\n", "404 Not Found"),
        (b"GET /queues/ HTTP/1.1\r\n\r\n", "404 Not Found"),
        (b"GET /queues/../../etc/passwd HTTP/1.1\r\n\r\n", "404 Not Found"),
        (b"GET /queues/none HTTP/1.1\r\n\r\n", "404 Not Found"),
        (b"GET /queues/default/knobs/none HTTP/1.1\r\n\r\n", "404 Not Found"),
        (b"GET /queues/default/knobs HTTP/1.1\r\n\r\n", "404 Not Found"),
        (b"POST /queues HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
        (b"DELETE /queues/default/knobs/nomerges HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
        (b"GET /stop HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
        (long.as_bytes(), "413 Content Too Large"),
    ] {
        let stream = UnixStream::connect(&server.control).unwrap();
        let _ = (&stream).write_all(bytes);
        // A client that sends nothing more has to say so, or the server waits for it.
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let (head, body) = answer(stream);
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(80)]);
        assert!(head.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{shown}: {head}");
        let refusal: Value = serde_json::from_str(&body).unwrap();
        assert!(refusal["error"].as_str().is_some_and(|error| !error.is_empty()), "{shown}: {body}");
    }
    assert_eq!(server.say(&["get", "nomerges"]), "0\n");
}

/// Red if a client that is late keeps its place for as long again, to read that it is.
#[test]
fn who_is_slow_is_told_and_has_had_its_time() {
    let server = Served::start(&[]);
    let slow = UnixStream::connect(&server.control).unwrap();
    (&slow).write_all(b"GET /queues HTTP/1.1\r\nHost").unwrap();
    let (head, _) = answer(slow.try_clone().unwrap());
    assert!(head.starts_with("HTTP/1.1 408 Request Timeout\r\n"), "{head}");
    assert!((&slow).write_all(b"X").is_err(), "the server has closed its end");
}

/// Red before a silent connection gave its place: the metrics were denied for as long as others came again.
#[test]
fn silent_connections_that_renew_themselves_keep_nobody_from_the_metrics() {
    let (_server, address) = Served::with_metrics(&[]);
    let (nr_connected, ends) = (AtomicUsize::new(0), AtomicBool::new(false));
    let be_silent = || {
        while !ends.load(Ordering::Relaxed) {
            let mut stream = TcpStream::connect(&address).unwrap();
            stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            nr_connected.fetch_add(1, Ordering::Relaxed);
            // Until the server closes the connection, which this end then makes anew.
            let mut is_open = true;
            while is_open && !ends.load(Ordering::Relaxed) {
                is_open = stream.read(&mut [0; 64]).is_err_and(|error| !is_end(&error));
            }
        }
    };
    thread::scope(|scope| {
        let _ends = AtEnd(|| ends.store(true, Ordering::Relaxed));
        (0..32).for_each(|_| _ = scope.spawn(be_silent));
        until(|| nr_connected.load(Ordering::Relaxed) >= 32);
        for _ in 0..10 {
            let (head, _) = scrape(&address, "GET /metrics");
            assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        }
    });
}

/// Whether the other end has closed the connection.
fn is_end(error: &io::Error) -> bool {
    !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

#[test]
fn without_a_name_the_only_server_is_meant() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| program(folder.path(), arguments).output().unwrap();
    assert_eq!(ended(&run(&["list", "--json"]), 0), "[]\n");
    let nobody = ended(&run(&["get"]), 1);
    assert!(nobody.contains("no server runs") && nobody.contains("blkmq serve"), "{nobody}");

    let first = Served::start_in(folder.path(), &[]);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder.path().join("blkmq")), 0o700);
    assert_eq!(mode(Path::new(&first.control)), 0o600);
    assert_eq!(ended(&run(&["set", "scheduler", "none"]), 0), scheduler("none") + "\n");

    let second = Served::start_in(folder.path(), &["--device", "null"]);
    let both = ended(&run(&["get"]), 2);
    assert!(both.contains(&first.control) && both.contains(&second.control), "{both}");
    let listed: Value = serde_json::from_str(&ended(&run(&["list", "--json"]), 0)).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 2);
    assert_eq!(second.say(&["get", "scheduler"]), scheduler("mq-deadline") + "\n");
}

#[test]
fn what_a_killed_server_left_is_no_obstacle() {
    let folder = tempfile::tempdir().unwrap();
    let left = |folder: &Path| fs::read_dir(folder).unwrap().count();
    let mut killed = Served::start_in(folder.path(), &[]);
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    assert_eq!(left(&folder.path().join("blkmq")), 2);
    let gone = ended(&killed.output(&["get"]), 1);
    assert!(gone.contains("no server listens there any more"), "{gone}");
    let next = Served::start_in(folder.path(), &[]);
    assert_eq!(left(&folder.path().join("blkmq")), 2, "those of the next");
    assert_eq!(ended(&program(folder.path(), &["get", "nomerges"]).output().unwrap(), 0), "0\n");
    drop(next);

    let [control, nbd] = ["c", "n"].map(|name| folder.path().join(name).display().to_string());
    let sockets = ["--control", &control, "--nbd", &nbd];
    let mut killed = Served::start_in(folder.path(), &sockets);
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    let next = Served::start_in(folder.path(), &sockets);
    assert_eq!(next.say(&["get", "nomerges"]), "0\n");
    for taken in [["--control", &control], ["--nbd", &nbd]] {
        let error = ended(&program(folder.path(), &[&["serve"], &taken[..]].concat()).output().unwrap(), 1);
        assert!(error.contains("listens there"), "{error}");
    }
}

#[test]
fn a_folder_that_is_not_ours_alone_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let sockets = folder.path().join("blkmq");
    fs::create_dir(&sockets).unwrap();
    fs::set_permissions(&sockets, fs::Permissions::from_mode(0o777)).unwrap();
    let run = |arguments: &[&str]| ended(&program(folder.path(), arguments).output().unwrap(), 1);
    for command in ["serve", "get", "list"] {
        assert!(run(&[command]).contains("others may use this folder"), "{command}");
    }
    fs::remove_dir(&sockets).unwrap();
    std::os::unix::fs::symlink("/tmp", &sockets).unwrap();
    assert!(run(&["serve"]).contains("not a folder"));
    assert!(ended(&program(Path::new("/nowhere"), &["serve"]).output().unwrap(), 1).contains("/nowhere/blkmq: "));
}

#[test]
fn what_is_no_server_is_said_to_be_none() {
    let folder = tempfile::tempdir().unwrap();
    let ask = |path: &str| ended(&program(folder.path(), &["get", "--control", path]).output().unwrap(), 1);
    assert!(ask("/nowhere").contains("/nowhere: there is no such socket"));
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let other = thread::spawn(move || listener.accept().unwrap().0.write_all(b"NBDMAGICIHAVEOPT").unwrap());
    assert!(ask(&path.display().to_string()).contains("not the control socket of a server"));
    other.join().unwrap();
}
