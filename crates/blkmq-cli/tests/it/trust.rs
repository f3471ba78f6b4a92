//! What `blkmq serve` shows to each client, and what it reports about clients.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Stdio;

use crate::served::{Config, Served, ended, program};
use rustix::process::{Pid, Signal, kill_process};

/// Red if the warning at the start or the word in the list is missing, or if a device that keeps its data gets one.
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
pub(crate) fn equip(folder: &Path) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("the name is good");
    fs::write(folder.join("server-cert.pem"), made.cert.pem()).expect("there is room for a file");
    fs::write(folder.join("server-key.pem"), made.signing_key.serialize_pem()).expect("there is room for a file");
}

/// Red if SIGHUP is not handled, so that it ends the program, or if a bad set of files is not reported.
#[test]
fn sighup_reads_the_files_for_tls_again_and_tells_what_came_of_it() {
    let folder = tempfile::tempdir().unwrap();
    equip(folder.path());
    let path = folder.path().display().to_string();
    let mut server = Served::start(&["--tls", "on", "--tls-certificates", &path]);
    let read = "blkmq: SIGHUP: the files for TLS are read again, and count for connections to come";
    assert_eq!(server.told_of_hangup(), read);
    fs::remove_file(folder.path().join("server-key.pem")).unwrap();
    let refused = server.told_of_hangup();
    let expected = format!(
        "blkmq: SIGHUP: nothing has changed, and what was read before counts: {path}/server-key.pem: No such file"
    );
    assert!(refused.starts_with(&expected), "{refused}");
    equip(folder.path());
    assert_eq!(server.told_of_hangup(), read);
    assert_eq!(server.connect("").read(0, 512), [0; 512], "clients are served as before");
}

/// Red if SIGHUP is not handled when there is no TLS: a supervisor that reloads all its services would end the server.
#[test]
fn sighup_ends_no_server_that_has_nothing_to_read_again() {
    let mut server = Served::start(&[]);
    let said = server.told_of_hangup();
    assert_eq!(said, "blkmq: SIGHUP: without --tls and --config there are no files to read again");
    assert_eq!(ended(&server.output(&["get", "nomerges"]), 0), "0\n");
}

/// Red if a server that is not ready yet ends with SIGHUP, or forgets it.
#[test]
fn sighup_while_a_server_starts_is_heard_when_it_is_ready() {
    let folder = tempfile::tempdir().expect("there is room for a folder");
    let control = folder.path().join("control");
    let mut server = program(folder.path(), &["serve", "--control", &control.display().to_string()]);
    let mut server = server.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the program starts");
    while !control.exists() {
        assert!(server.try_wait().expect("it is a child of this process").is_none(), "the server starts");
    }
    let pid = Pid::from_child(&server);
    kill_process(pid, Signal::HUP).expect("it may be signalled");
    let error = BufReader::new(server.stderr.take().expect("it is piped, and taken once"));
    let heard = error.lines().map_while(Result::ok).any(|line| line.starts_with("blkmq: SIGHUP: without --tls"));
    kill_process(pid, Signal::TERM).expect("it may be signalled");
    server.wait().expect("it is a child of this process");
    assert!(heard);
}

/// Red if `--allow` gets lost between the command line and the server, or if only the server's own user can use the
/// socket.
#[test]
fn users_may_do_what_is_allowed_to_them() {
    let me = fs::metadata("/proc/self").unwrap().uid();
    let mode = |server: &Served| fs::metadata(server.folder.join("nbd")).unwrap().permissions().mode() & 0o777;
    let reader = Served::start(&["--allow", &format!("user={me}"), "--device", "ram,size=1M"]);
    let mut client = reader.connect("");
    assert_eq!((client.read(0, 512), client.write(0, &[1; 512]), mode(&reader)), (vec![0; 512], 1, 0o666));
    let writer = Served::start(&["--allow", &format!("user={me},access=write")]);
    assert_eq!(writer.connect("").write(0, &[1; 512]), 0);
    let mut other = Served::start(&["--allow", &format!("user={}", me + 1)]);
    let expected = format!("the user {me} is not among those whom the server allows export \"\"");
    assert_eq!(other.refusal(), (0x8000_0002, expected.clone()), "it is against the server's policy");
    other.http(b"POST /stop HTTP/1.1\r\n\r\n");
    let (code, said) = other.end();
    assert!(code == Some(0) && said.contains(&format!(": {expected}\n")), "{said}");
    assert_eq!(mode(&Served::start(&[])), 0o600);
}

/// A field of each thread of a process, as the kernel reports it.
fn of_threads(process: &str, field: &str) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).expect("the process is there");
    let texts = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("status")).ok());
    let value = |text: String| {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{field}:\t"))).map(str::to_owned);
        line.expect("the kernel tells it")
    };
    texts.map(value).collect()
}

/// Red if rights are given up after a thread was started, because that thread keeps them: a thread of the server, or
/// one that does the requests of a file without io_uring. Red too if `--sandbox off` has no effect.
#[test]
fn every_thread_of_a_server_is_in_the_sandbox_unless_it_is_switched_off() {
    let of = |server: &Served, field: &str| of_threads(&server.child.id().to_string(), field);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk").display().to_string();
    for device in ["ram,size=1M".to_owned(), format!("file,path={path},size=1M,submit_queues=2,engine=threads")] {
        let server = Served::start(&["--device", &device]);
        let mut client = server.connect("");
        assert_eq!(client.read(0, 512), [0; 512]);
        let (privileges, filters) = (of(&server, "NoNewPrivs"), of(&server, "Seccomp"));
        assert!(privileges.len() > 3 && privileges.iter().all(|value| value == "1"), "{device}: {privileges:?}");
        assert!(filters.iter().all(|value| value == "2"), "{device}: {filters:?}");
        let has_thread = of(&server, "Name").iter().any(|name| name == "file");
        assert_eq!(has_thread, device.starts_with("file,"), "the kernel is asked by a thread");
    }
    let free = Served::start(&["--sandbox", "off"]);
    let ours = |field: &str| of_threads("self", field).remove(0);
    for field in ["NoNewPrivs", "Seccomp"] {
        assert!(of(&free, field).iter().all(|value| *value == ours(field)), "{field}");
    }
    let folder = tempfile::tempdir().unwrap();
    let refused = program(folder.path(), &["serve", "--sandbox", "no"]).output().unwrap();
    assert_eq!(ended(&refused, 2), "blkmq: --sandbox: 'no' is not accepted; accepted: on, off\n");
}

/// Red if the user changes before the sockets are there, if the user does not change, or if a group is kept.
#[test]
fn a_server_goes_on_as_another_user_where_root_starts_it() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |arguments: &[&str], code: i32| {
        let arguments = [&["serve"], arguments].concat();
        ended(&program(folder.path(), &arguments).output().unwrap(), code)
    };
    assert!(refused(&["--user", "no such user"], 2).starts_with("blkmq: --user: this machine knows no user 'no such"));
    assert!(refused(&["--user", "3999999"], 2).contains("does not know what group '3999999' is in; say --group too"));
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        assert!(refused(&["--user", "0"], 1).contains("--user: cannot go on as '0': "));
        return;
    }
    let server = Served::start(&["--user", "3999999", "--group", "3999998"]);
    assert_eq!(server.connect("").read(0, 512), [0; 512]);
    let process = server.child.id().to_string();
    for (field, expected) in [("Uid", "3999999"), ("Gid", "3999998")] {
        let values = of_threads(&process, field);
        assert!(values.iter().all(|value| *value == [expected; 4].join("\t")), "{field}: {values:?}");
    }
    assert!(of_threads(&process, "Groups").iter().all(|groups| groups.trim() == "3999998"));
    assert!(of_threads(&process, "CapEff").iter().all(|rights| rights.trim_matches('0').is_empty()));
}

/// Red if the server does not warn at the start, or does not answer the command that sets the knob with a warning.
#[test]
fn priorities_and_weights_that_do_nothing_are_told_at_the_start_and_when_that_is_set() {
    let text = "[[export]]\nname = \"gold\"\ndevice = \"ram,size=1M\"\nscheduler = \"none\"\npriority = \"rt/0\"\n\
                [[export]]\nname = \"bronze\"\nqueue = \"gold\"\npriority = \"idle\"\n";
    let mut server = Config::new(text).serve();
    let set = |knob, value| {
        let output = server.output(&["set", "gold", knob, value]);
        assert!(output.status.success());
        String::from_utf8(output.stderr).expect("it is text")
    };
    assert_eq!(set("scheduler", "mq-deadline"), "");
    let (gold, bronze) = ("the priority of gold (rt/0)", "bronze (idle) does nothing: ");
    let said = set("nr_requests", "1");
    assert!(said.starts_with(&format!("blkmq: {gold}, {bronze}with nr_requests=1 all requests fit")), "{said}");
    assert_eq!(set("nr_requests", "1000"), "");
    assert!(set("scheduler", "none").contains(": there is no scheduler; set the knob scheduler to mq-deadline\n"));
    server.http(b"POST /stop HTTP/1.1\r\n\r\n");
    let said = server.end().1;
    let lines: Vec<_> = said.lines().filter(|line| line.contains(" does nothing: ")).collect();
    assert_eq!(lines.len(), 3, "{said}");
    assert!(lines[0].starts_with(&format!("blkmq: gold: {gold}, {bronze}there is no scheduler")), "{said}");
}
