//! What `blkmq serve` shows to whom, and what it says of it.

mod served;

use std::fs;
use std::io::BufRead;
use std::path::Path;

use rustix::process::Signal;
use served::{Served, ended};

/// Red if the line or the word is left out, or a device that keeps its data gets one.
#[test]
fn what_throws_data_away_says_so_at_the_start_and_in_the_list() {
    let exports = ["--export", "b=hdd,size=1G", "--export", "c=ssd,size=1G", "--export", "d=null,memory_backed=1"];
    let mut server = Served::start(&[&["--device", "null,size=1G"], &exports[..]].concat());
    let listed = server.json(&["list"]);
    let kept: Vec<_> = (0..4).map(|index| listed[0]["queues"][index]["keeps_data"].as_bool().unwrap()).collect();
    assert_eq!(kept, [false, false, false, true]);
    let list = server.say(&["list"]);
    assert!(list.contains("  default: null,size=1G, 1 GiB KEEPS NOTHING, scheduler "), "{list}");
    assert_eq!(list.matches("KEEPS NOTHING").count(), 3, "{list}");
    server.http(b"POST /stop HTTP/1.1\r\n\r\n");
    let (code, said) = server.end();
    assert_eq!((code, said.lines().count(), said.matches("NOTHING IS KEPT").count()), (Some(0), 3, 3), "{said}");
    assert!(said.starts_with("blkmq: default: null,size=1G THROWS AWAY WHAT IS WRITTEN. NOTHING IS KEPT"), "{said}");
}

/// Writes a server's certificate and its key.
fn equip(folder: &Path) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("the name is good");
    fs::write(folder.join("server-cert.pem"), made.cert.pem()).expect("there is room for a file");
    fs::write(folder.join("server-key.pem"), made.signing_key.serialize_pem()).expect("there is room for a file");
}

/// What a server says when it hears SIGHUP.
fn told_of_hangup(server: &mut Served) -> String {
    server.signal(Signal::HUP);
    let mut line = String::new();
    while !line.contains("SIGHUP") {
        line.clear();
        assert_ne!(server.error.read_line(&mut line).expect("the program prints text"), 0, "the server goes on");
    }
    line.trim_end().to_owned()
}

/// Red if SIGHUP is not listened to, which ends the program, or a bad set of files is not told of.
#[test]
fn sighup_reads_the_files_for_tls_again_and_tells_what_came_of_it() {
    let folder = tempfile::tempdir().unwrap();
    equip(folder.path());
    let path = folder.path().display().to_string();
    let mut server = Served::start(&["--tls", "on", "--tls-certificates", &path]);
    assert_eq!(
        told_of_hangup(&mut server),
        "blkmq: SIGHUP: the files for TLS are read again, and count for connections to come"
    );
    fs::remove_file(folder.path().join("server-key.pem")).unwrap();
    let refused = told_of_hangup(&mut server);
    let expected = format!(
        "blkmq: SIGHUP: nothing has changed, and the files read before count: {path}/server-key.pem: No such file"
    );
    assert!(refused.starts_with(&expected), "{refused}");
    equip(folder.path());
    assert_eq!(
        told_of_hangup(&mut server),
        "blkmq: SIGHUP: the files for TLS are read again, and count for connections to come"
    );
    assert_eq!(server.connect("").read(0, 512), [0; 512], "clients are served as before");
}

/// Red if SIGHUP is left as it is where there is no TLS: a supervisor that reloads all its services would end the server.
#[test]
fn sighup_ends_no_server_that_has_nothing_to_read_again() {
    let mut server = Served::start(&[]);
    let said = told_of_hangup(&mut server);
    assert_eq!(said, "blkmq: SIGHUP: without --tls there are no files to read again");
    assert_eq!(ended(&server.output(&["get", "nomerges"]), 0), "0\n");
}
