//! Servers that take the place of others.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ChildStderr, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::served::{Served, ended, program, until};
use rustix::process::getuid;

/// How often two servers want one place: before there was one hand-over, both served in one round of seven.
const ROUNDS: usize = 40;
/// How long one of two servers that serve may take to end.
const LIMIT: Duration = Duration::from_secs(60);

/// A server that wants a place. It is killed if the test fails.
struct Rival {
    child: Child,
    error: BufReader<ChildStderr>,
    /// What it has said until it served, or until its end.
    said: String,
    serves: bool,
}

impl Rival {
    fn start(folder: &Path, arguments: &[&str]) -> Self {
        let mut program = program(folder, &[&["serve"], arguments].concat());
        let mut child = program.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the program starts");
        let error = BufReader::new(child.stderr.take().expect("it is piped, and taken once"));
        Self { child, error, said: String::new(), serves: false }
    }

    /// Waits until it serves, or has ended.
    fn settle(mut self) -> Self {
        while !self.serves && self.error.read_line(&mut self.said).expect("the program prints text") > 0 {
            self.serves = self.said.contains("\nCtrl-C ends the server");
        }
        self
    }

    fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("it is a child of this process").is_some()
    }

    fn code(&mut self) -> Option<i32> {
        let _ = self.error.read_to_string(&mut self.said);
        self.child.wait().expect("it is a child of this process").code()
    }
}

impl Drop for Rival {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Red if two servers get the sockets of one: both then serve, each with data of its own.
#[test]
fn of_two_servers_that_take_a_place_at_once_one_gets_it() {
    let folder = tempfile::tempdir().unwrap();
    let [nbd, control] = ["nbd", "control"].map(|name| folder.path().join(name).display().to_string());
    let arguments = ["--device", "ram,size=1M", "--nbd", &nbd, "--control", &control];
    let mut server = Rival::start(folder.path(), &arguments).settle();
    assert!(server.serves, "{}", server.said);
    for round in 0..ROUNDS {
        let arguments = [&arguments[..], &["--replace", &control]].concat();
        let rivals = [(); 2].map(|()| Rival::start(folder.path(), &arguments));
        let mut rivals = thread::scope(|scope| {
            rivals.map(|rival| scope.spawn(move || rival.settle())).map(|rival| rival.join().unwrap())
        });
        assert_eq!(server.code(), Some(0), "round {round}: {}", server.said);
        // Where both serve, the second one has taken the place of the first.
        let began = Instant::now();
        while !rivals.iter_mut().any(Rival::has_ended) {
            assert!(began.elapsed() < LIMIT, "round {round}: both serve");
            thread::sleep(Duration::from_millis(1));
        }
        let [mut lost, mut won] = rivals;
        if !lost.has_ended() {
            std::mem::swap(&mut lost, &mut won);
        }
        assert!(won.serves, "round {round}: {}", won.said);
        let code = lost.code();
        let is_told = lost.said.starts_with("blkmq: --replace: ") && lost.said.lines().count() == 1;
        assert!(lost.serves && code == Some(0) || is_told && code == Some(1), "round {round}: {code:?}: {}", lost.said);
        server = won;
    }
}

/// Begins to take a server's place by hand. Returns the first line of the answer; the place is kept while the stream is
/// open.
fn begin_to_replace(server: &Served) -> (String, BufReader<UnixStream>) {
    let mut stream = UnixStream::connect(&server.control).expect("the server listens");
    stream.write_all(b"POST /replace HTTP/1.1\r\nHost: x\r\n\r\n").expect("the server reads");
    let (mut line, mut stream) = (String::new(), BufReader::new(stream));
    stream.read_line(&mut line).expect("the server answers");
    (line.trim_end().to_owned(), stream)
}

/// Red if a second server gets the sockets while a first one has not said that it takes them, if it is not told at once
/// that it does not; or if a server ends though the one that wanted its place has given up.
#[test]
fn a_place_is_offered_to_one_server_and_kept_if_that_one_gives_up() {
    let server = Served::start(&["--device", "ram,size=1M"]);
    let (answer, first) = begin_to_replace(&server);
    assert_eq!(answer, "HTTP/1.1 200 OK");
    // A server that gets the place ends with its command.
    let arguments = ["serve", "--device", "ram,size=1M", "--run", "true", "--replace", &server.control];
    let error = ended(&program(&server.folder, &arguments).output().unwrap(), 1);
    let expected = "another server takes the place of that server already";
    assert_eq!(error, format!("blkmq: --replace: {}: {expected}\n", server.control));
    drop(first);
    until(|| begin_to_replace(&server).0 == "HTTP/1.1 200 OK");
    assert_eq!(server.connect("").read(0, 512), [0; 512], "it serves on");
}

/// Red if a server that takes the place of another leaves the socket as open as it was, or as closed: every user of the
/// machine could write what nobody but the server's own user is to reach, or those in the list could not connect.
#[test]
fn the_mode_of_a_socket_follows_the_server_that_takes_it_over() {
    let folder = tempfile::tempdir().unwrap();
    let [nbd, control] = ["nbd", "control"].map(|name| folder.path().join(name).display().to_string());
    let list = ["--allow", &format!("user={}", getuid().as_raw())].map(str::to_owned);
    let list = list.each_ref().map(String::as_str);
    let mode = || fs::metadata(&nbd).unwrap().permissions().mode() & 0o777;
    let device = ["--device", "ram,size=1M", "--control", &control];
    let mut server = Served::start_in(folder.path(), &[&device[..], &["--nbd", &nbd], &list].concat());
    assert_eq!(mode(), 0o666);
    let (own, none): (&[&str], &[&str]) = (&["--nbd", &nbd], &[]);
    for (at, allow, expected) in
        [(own, none, 0o600), (own, &list[..], 0o666), (none, none, 0o600), (none, &list[..], 0o666)]
    {
        let next = Served::start_in(folder.path(), &[&device[..], at, allow, &["--replace", &control]].concat());
        let (code, said) = std::mem::replace(&mut server, next).end();
        assert_eq!(code, Some(0), "{said}");
        assert_eq!(mode(), expected, "{at:?} {allow:?}");
        assert_eq!(server.connect("").read(0, 512), [0; 512]);
    }
}

/// Red if a server ends whose sockets another one gets that cannot set their mode.
#[test]
fn a_server_goes_on_if_the_mode_of_its_socket_cannot_be_set() {
    let server = Served::start(&["--device", "ram,size=1M"]);
    let nbd = server.folder.join("nbd");
    let mut client = server.connect("");
    fs::remove_file(&nbd).unwrap();
    // A server that gets the place ends with its command.
    let arguments = ["serve", "--device", "ram,size=1M", "--run", "true", "--replace", &server.control];
    for what in ["No such file", "the file at its path is no socket"] {
        // The server may not have heard yet that the one before has given up.
        let error = loop {
            let error = ended(&program(&server.folder, &arguments).output().unwrap(), 1);
            if !error.contains("another server takes") {
                break error;
            }
        };
        let expected = format!("the permissions of the socket {} cannot be set: {what}", nbd.display());
        assert!(error.contains(&expected) && error.ends_with("; that server goes on\n"), "{error}");
        assert_eq!(client.read(0, 512), [0; 512]);
        fs::write(&nbd, "").unwrap();
    }
}
