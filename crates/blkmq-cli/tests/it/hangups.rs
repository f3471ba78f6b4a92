//! What SIGHUP does with files that cannot be read again, or are wrong.

use std::fs::{self, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::served::{AtEnd, Config, Served};
use crate::trust::equip;
use rustix::fs::{CWD, Mode, mkfifoat};
use serde_json::json;

const GROUPS: &str = "device = \"ram,size=1M\"\n[groups.gold]\nweight = 300\n";

fn make_pipe(path: &Path) {
    mkfifoat(CWD, path, Mode::RUSR | Mode::WUSR).expect("the folder is the test's own");
}

/// What a server says at SIGHUP. A server that opens this pipe and waits for a writer gets one, which writes nothing.
fn told_beside_pipe(server: &mut Served, pipe: &Path) -> String {
    let is_told = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            // The call fails while no process has the pipe open to read.
            let open = || OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(pipe);
            while !is_told.load(Ordering::Relaxed) {
                drop(open());
                thread::sleep(Duration::from_millis(5));
            }
        });
        let _told = AtEnd(|| is_told.store(true, Ordering::Relaxed));
        server.told_of_hangup()
    })
}

fn groups(server: &Served) -> serde_json::Value {
    server.json(&["groups"]).as_array().expect("it is a list").iter().map(|group| group["group"].clone()).collect()
}

/// Red if a reload opens the pipe again: it would wait for a writer forever, and with an empty text it would drop all
/// groups.
#[test]
fn a_configuration_from_a_pipe_is_read_once_and_hangs_no_reload() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("disks.toml");
    make_pipe(&pipe);
    let mut server = thread::scope(|scope| {
        // It waits until the server reads.
        scope.spawn(|| OpenOptions::new().write(true).open(&pipe).unwrap().write_all(GROUPS.as_bytes()).unwrap());
        Served::start(&["--config", pipe.to_str().unwrap()])
    });
    for _ in 0..2 {
        let told = told_beside_pipe(&mut server, &pipe);
        assert!(told.starts_with("blkmq: SIGHUP: nothing has changed, and what was read before counts: "), "{told}");
        assert!(told.ends_with("disks.toml: not a regular file, so it is read only when the server starts"), "{told}");
    }
    assert_eq!(groups(&server), json!(["gold"]));
}

/// Red if a reload opens a pipe among the files for TLS: it would wait for a writer forever.
#[test]
fn a_pipe_among_the_files_for_tls_hangs_no_reload() {
    let folder = tempfile::tempdir().unwrap();
    equip(folder.path());
    let path = folder.path().display().to_string();
    let mut server = Served::start(&["--tls", "on", "--tls-certificates", &path]);
    let key = folder.path().join("server-key.pem");
    fs::remove_file(&key).unwrap();
    make_pipe(&key);
    let told = told_beside_pipe(&mut server, &key);
    assert!(told.ends_with("server-key.pem: not a regular file"), "{told}");
}

/// Red if a reload checks less than `--check` does: the file would count in part, and without its groups.
#[test]
fn a_file_that_check_refuses_changes_nothing_at_a_reload() {
    let config = Config::new(GROUPS);
    let mut server = config.serve();
    for wrong in
        ["scheduler = \"nope\"\n", "set = { no_knob = 1 }\n", "memory = \"much\"\n", "metrics = \"127.0.0.1\"\n"]
    {
        config.write(&format!("device = \"ram,size=1M\"\n{wrong}"));
        let refused = config.checked(2);
        let told = server.told_of_hangup();
        let why = refused.trim_end().strip_prefix("blkmq: ").expect("every error begins so");
        assert_eq!(told, format!("blkmq: SIGHUP: nothing has changed, and what was read before counts: {why}"));
        assert_eq!(groups(&server), json!(["gold"]), "{wrong}");
    }
}

/// Red if the sandbox keeps the server from looking up the name of a host that the file names: the file would be
/// refused at each reload.
#[test]
fn a_file_with_the_name_of_a_host_is_read_again_in_the_sandbox() {
    let config = Config::new(&format!("metrics = \"localhost:0\"\n{GROUPS}"));
    let mut server = config.serve();
    let told = server.told_of_hangup();
    assert!(told.contains(" is read again: "), "{told}");
}

/// Red if a server that root has started as another user reads nothing again at SIGHUP because that user cannot read
/// the key.
#[test]
fn files_for_tls_that_the_servers_user_cannot_read_keep_nothing_else_from_being_read_again() {
    let folder = tempfile::tempdir().unwrap();
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        println!("SKIP only root can start a server as another user");
        return;
    }
    equip(folder.path());
    let [config, key] = ["disks.toml", "server-key.pem"].map(|name| folder.path().join(name));
    for (path, mode) in [(folder.path(), 0o755), (&key, 0o600)] {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    let path = folder.path().display();
    let text = |group: &str| {
        format!(
            "device = \"ram,size=1M\"\nscheduler = \"bfq\"\ntls = \"on\"\ntls_certificates = \"{path}\"\n[groups.{group}]\n"
        )
    };
    fs::write(&config, text("old")).unwrap();
    let options = ["--config", config.to_str().unwrap(), "--user", "3999999", "--group", "3999998"];
    let mut server = Served::start(&options);
    fs::write(&config, text("new")).unwrap();
    let told = server.told_of_hangup();
    let expected = "blkmq: SIGHUP: the files for TLS are as they were when the server started: ";
    assert!(told.starts_with(expected) && told.contains("server-key.pem: Permission denied"), "{told}");
    assert_eq!(groups(&server), json!(["new"]));
}
