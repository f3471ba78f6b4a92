//! Sockets that a server is handed, and what the server prints when another program started it.

use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::served::{Served, ended, program};
use serde_json::json;

/// A server that is handed a socket which listens at `nbd` in the folder.
fn activated(folder: &Path, arguments: &[&str]) -> Command {
    let listener = UnixListener::bind(folder.join("nbd")).expect("there is no such file yet");
    let mut shell = Command::new("sh");
    // As with systemd, the first descriptor has the number 3.
    let script = "LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=nbd exec \"$0\" serve \"$@\" 3<&0 </dev/null";
    shell.args(["-c", script, env!("CARGO_BIN_EXE_blkmq")]).args(arguments).env("XDG_RUNTIME_DIR", folder);
    shell.stdin(std::os::fd::OwnedFd::from(listener));
    shell
}

/// Red if a socket that was handed over is not used, if it is not named in the list, or if its file is removed at the
/// end.
#[test]
fn a_socket_that_was_handed_over_is_listened_at() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nbd");
    let mut server = Served::begin(folder.path(), activated(folder.path(), &["--device", "ram,size=1M"]));
    let uri = format!("nbd+unix:///?socket={}", path.display());
    assert_eq!(server.json(&["list"])[0]["queues"][0]["uris"], json!([uri]));
    let mut client = server.connect("");
    assert_eq!(client.write(0, &[1; 512]), 0);
    assert_eq!(client.read(0, 512), [1; 512]);
    drop(client);
    assert_eq!(server.terminate(), (Some(0), String::new()));
    assert!(path.exists(), "it belongs to who handed it over");
}

/// Red if the greeting goes to standard output, which belongs to the program that starts a server: libnbd's tests
/// compare it.
#[test]
fn a_server_says_nothing_on_standard_output() {
    let folder = tempfile::tempdir().unwrap();
    let control = folder.path().join("control");
    let arguments = ["--device", "ram,size=1M", "--control", control.to_str().unwrap()];
    let named = program(folder.path(), &[&["serve"], &arguments[..]].concat());
    for mut program in [named, activated(folder.path(), &arguments)] {
        let server = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stream = loop {
            match UnixStream::connect(&control) {
                Ok(stream) => break stream,
                Err(_) => thread::sleep(Duration::from_millis(5)),
            }
        };
        stream.write_all(b"POST /stop HTTP/1.1\r\n\r\n").unwrap();
        let output = server.wait_with_output().unwrap();
        let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!((output.status.code(), &*out), (Some(0), ""));
        assert!(error.contains(&format!("\ncontrol socket: {}\n", control.display())), "{error}");
    }
}

/// Red if `Running::start` leaves the variables in the environment, or if `handed::claim` leaves the descriptor open
/// for other programs.
#[test]
fn what_was_handed_over_is_not_handed_on() {
    let folder = tempfile::tempdir().unwrap();
    let check =
        "test -z \"$LISTEN_PID$LISTEN_FDS$LISTEN_FDNAMES\" && test ! -S /proc/$$/fd/3 && test -S \"${uri#*socket=}\"";
    let output = activated(folder.path(), &["--run", check]).output().unwrap();
    assert_eq!(ended(&output, 0), "");
}

/// Red if a server with `--nbd` leaves such a socket unused without saying so; if it takes a descriptor that is not
/// such a socket or is not open; or if it takes one that was handed to another process.
#[test]
fn sockets_that_were_handed_over_are_used_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let output = activated(folder.path(), &["--nbd", "other"]).output().unwrap();
    assert_eq!(
        ended(&output, 2),
        "blkmq: --nbd: LISTEN_FDS hands over sockets to listen at; leave out this address, or start the server without them\n"
    );
    let with = |variables: &[(&str, &str)], script: &str| {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("{script} exec \"$0\" serve --run true 3</dev/null"), env!("CARGO_BIN_EXE_blkmq")]);
        shell.envs(variables.iter().copied()).env("XDG_RUNTIME_DIR", folder.path()).output().unwrap()
    };
    let no_socket = ended(&with(&[("LISTEN_FDS", "1")], "LISTEN_PID=$$"), 2);
    assert!(no_socket.contains("hand over a stream socket that listens"), "{no_socket}");
    let no_number = ended(&with(&[("LISTEN_FDS", "one")], "LISTEN_PID=$$"), 2);
    assert_eq!(no_number, "blkmq: LISTEN_FDS: 'one' is not a number\n");
    assert_eq!(ended(&with(&[("LISTEN_FDS", "1"), ("LISTEN_PID", "1")], ""), 0), "", "they are another process's");
}
