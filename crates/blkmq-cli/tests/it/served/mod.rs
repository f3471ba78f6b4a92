//! A server in a process of its own, and clients that speak to it.
#![allow(dead_code, reason = "not every test uses all of it")]

#[path = "../../../../blkmq-export/tests/it/server/client.rs"]
mod client;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use blkmq::{Locking, scheduler_names};
pub(crate) use blkmq_export::nbd::command_flags::FUA;
pub(crate) use blkmq_export::nbd::commands::{FLUSH, READ, TRIM, WRITE, WRITE_ZEROES};
use blkmq_export::nbd::{Greeting, Inquiry, Request, SimpleReply, options};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use client::Client;

/// The program, with `folder` for its sockets.
pub(crate) fn program(folder: &Path, arguments: &[&str]) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_blkmq"));
    program.args(arguments).env("XDG_RUNTIME_DIR", folder);
    program
}

/// The text of a command that must end with that exit code: its output, or the one line of its error.
pub(crate) fn ended(output: &Output, code: i32) -> String {
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{out}{error}");
    if code == 0 {
        assert_eq!(error, "");
        return out.into_owned();
    }
    assert_eq!((&*out, error.lines().count()), ("", 1), "{error}");
    error.into_owned()
}

/// How a knob shows all names, with the chosen one in brackets.
fn marked(names: &[&str], chosen: &str) -> String {
    assert!(names.contains(&chosen), "{chosen} is one of {names:?}");
    names
        .iter()
        .map(|name| if *name == chosen { format!("[{name}]") } else { (*name).to_owned() })
        .collect::<Vec<_>>()
        .join(" ")
}

pub(crate) fn scheduler(chosen: &str) -> String {
    marked(&scheduler_names(), chosen)
}

pub(crate) fn locking(chosen: &str) -> String {
    marked(&Locking::ALL.map(Locking::name), chosen)
}

/// Waits until `is_so`. Only a bug can make this wait last forever.
pub(crate) fn until(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Calls a function when it is dropped, also after a panic, because other threads wait for the call.
pub(crate) struct AtEnd<F: FnMut()>(pub(crate) F);

impl<F: FnMut()> Drop for AtEnd<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// A folder with a file `disks.toml` for `--config`.
pub(crate) struct Config(pub(crate) TempDir);

impl Config {
    pub(crate) fn new(text: &str) -> Self {
        let config = Self(tempfile::tempdir().expect("there is room for a folder"));
        config.write(text);
        config
    }

    pub(crate) fn path(&self) -> String {
        self.0.path().join("disks.toml").display().to_string()
    }

    /// Writes another text into the file.
    pub(crate) fn write(&self, text: &str) {
        std::fs::write(self.path(), text).expect("there is room for a file");
    }

    pub(crate) fn serve(&self) -> Served {
        Served::start(&["--config", &self.path()])
    }

    /// What `--check` says of it, which ends with this exit code.
    pub(crate) fn checked(&self, code: i32) -> String {
        ended(&program(self.0.path(), &["serve", "--check", &self.path()]).output().expect("the program starts"), code)
    }
}

/// A connection to a server in this process.
pub(crate) fn connect(server: &blkmq_export::Server) -> Nbd {
    let (ours, theirs) = UnixStream::pair().expect("there are descriptors");
    server.serve(theirs.into(), Some("a test")).expect("there is room for a client");
    Nbd::connect(ours, "")
}

/// A running server, which is killed if a test fails.
pub(crate) struct Served {
    pub(crate) child: Child,
    /// Where its sockets are.
    pub(crate) folder: PathBuf,
    pub(crate) control: String,
    /// What it said when it began.
    pub(crate) greeting: String,
    /// What it said on standard error during its greeting, without the greeting.
    said: String,
    /// Where it says more.
    pub(crate) error: BufReader<ChildStderr>,
    /// Kept until the server has ended.
    _temporary: Option<TempDir>,
}

impl Served {
    /// A server with a folder of its own; its sockets there are `control` and `nbd`.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let temporary = tempfile::tempdir().expect("there is room for a folder");
        let [control, nbd] = ["control", "nbd"].map(|name| temporary.path().join(name).display().to_string());
        let mut served =
            Self::start_in(temporary.path(), &[&["--control", &control, "--nbd", &nbd], arguments].concat());
        served._temporary = Some(temporary);
        served
    }

    /// A server with metrics, and the address at which they are read.
    pub(crate) fn with_metrics(arguments: &[&str]) -> (Self, String) {
        // Port 0 stands for any free port, and the greeting says which one it is.
        let server = Self::start(&[arguments, &["--metrics", "0"]].concat());
        let url = server.greeting.lines().find_map(|line| line.strip_prefix("metrics: http://")).expect("it is told");
        let address = url.strip_suffix("/metrics").expect("it is a URL").to_owned();
        (server, address)
    }

    /// A server with its sockets in the runtime folder `folder`, or where `arguments` say.
    pub(crate) fn start_in(folder: &Path, arguments: &[&str]) -> Self {
        let mut program = program(folder, &["serve"]);
        program.args(arguments);
        Self::begin(folder, program)
    }

    /// A server that a command starts, with its sockets in the runtime folder `folder`, or where its arguments say.
    pub(crate) fn begin(folder: &Path, mut program: Command) -> Self {
        let mut child = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
        let mut error = BufReader::new(child.stderr.take().expect("it is piped, and taken once"));
        let mut heard = String::new();
        while !heard.contains("\nCtrl-C ends the server") {
            let length = error.read_line(&mut heard).expect("the program prints text");
            assert_ne!(length, 0, "{program:?}: {heard}");
        }
        let control = heard.lines().find_map(|line| line.strip_prefix("control socket: "));
        let control = control.expect("a greeting tells where the control socket is").to_owned();
        let said = heard.split_inclusive('\n').filter(|line| line.starts_with("blkmq: ")).collect();
        let greeting = heard;
        Self { child, folder: folder.to_owned(), control, greeting, said, error, _temporary: None }
    }

    /// The output of a command that speaks to it.
    pub(crate) fn output(&self, arguments: &[&str]) -> Output {
        program(&self.folder, &[arguments, &["--control", &self.control]].concat())
            .output()
            .expect("the program starts")
    }

    /// The output of a command that speaks to it and must succeed.
    pub(crate) fn say(&self, arguments: &[&str]) -> String {
        ended(&self.output(arguments), 0)
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.say(&[arguments, &["--json"]].concat())).expect("it prints JSON")
    }

    /// The answer to bytes that are sent to its control socket: head and body.
    pub(crate) fn http(&self, bytes: &[u8]) -> (String, String) {
        let mut stream = UnixStream::connect(&self.control).expect("the server listens");
        // The server may answer before it has heard everything.
        let _ = stream.write_all(bytes);
        answer(stream)
    }

    pub(crate) fn get(&self, path: &str) -> String {
        let (head, body) = self.http(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{path}: {head}{body}");
        body
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let _ = kill_process(Pid::from_raw(self.child.id() as i32).expect("a process has a number"), signal);
    }

    /// What it prints when it gets SIGHUP.
    pub(crate) fn told_of_hangup(&mut self) -> String {
        self.signal(Signal::HUP);
        let mut line = String::new();
        while !line.contains("SIGHUP") {
            line.clear();
            assert_ne!(self.error.read_line(&mut line).expect("the program prints text"), 0, "the server goes on");
        }
        line.trim_end().to_owned()
    }

    /// Waits for its end: the exit code, and what it said on standard error beside its greeting.
    pub(crate) fn end(&mut self) -> (Option<i32>, String) {
        self.error.read_to_string(&mut self.said).expect("the program prints text");
        let code = self.child.wait().expect("the program is a child of this one").code();
        (code, std::mem::take(&mut self.said))
    }

    /// Signals it to end, and waits for its end.
    pub(crate) fn terminate(&mut self) -> (Option<i32>, String) {
        self.signal(Signal::TERM);
        self.end()
    }

    /// The kind and the message of the error with which a client that asks for the default export is refused.
    pub(crate) fn refusal(&self) -> (u32, String) {
        let mut client = Client::connect(&self.folder.join("nbd"));
        let (kind, text) = client.ask(options::GO, &Inquiry { name: "", wanted: vec![] }.encode()).remove(0);
        (kind, String::from_utf8(text).expect("a sentence is text"))
    }

    pub(crate) fn connect(&self, export: &str) -> Nbd {
        Nbd::connect(UnixStream::connect(self.folder.join("nbd")).expect("the server listens"), export)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The answer to a request at a server's address for metrics: head and body.
pub(crate) fn scrape(address: &str, asked: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    // The server may answer before it has heard everything.
    let _ = stream.write_all(format!("{asked} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
    answer(stream)
}

/// Reads an answer to its end.
pub(crate) fn answer(mut stream: impl Read) -> (String, String) {
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer is text");
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
    (format!("{head}\r\n"), body.to_owned())
}

/// An NBD client with simple replies, which may have several requests in progress.
pub(crate) struct Nbd {
    client: Client,
    /// Bytes of the export, as the server said.
    pub(crate) size: u64,
}

/// Keeps `depth` reads of 512 bytes outstanding, and counts the answers, until it is told to end.
pub(crate) fn flood(client: &mut Nbd, depth: u64, answered: &AtomicU64, ends: &AtomicBool) {
    let ask = |client: &mut Nbd, number: u64| client.send(READ, number, number % 1024 * 4096, 512, &[]);
    (0..depth).for_each(|number| ask(client, number));
    let mut next = depth;
    while !ends.load(Ordering::Relaxed) {
        assert_eq!(client.receive().map(|(_, error)| error), Some(0));
        client.data(512);
        answered.fetch_add(1, Ordering::Relaxed);
        ask(client, next);
        next += 1;
    }
}

impl Nbd {
    pub(crate) fn connect(stream: UnixStream, export: &str) -> Self {
        Self::try_connect(stream, export).expect("the server greets")
    }

    /// The same; `None` if the server closes the connection without a word.
    pub(crate) fn try_connect(stream: UnixStream, export: &str) -> Option<Self> {
        let mut client = Client::over(stream);
        client.try_take::<{ Greeting::SIZE }>().ok()?;
        client.send(&3_u32.to_be_bytes());
        let (size, _) = client.go(export);
        Some(Self { client, size })
    }

    /// Sends a request without waiting for its answer.
    pub(crate) fn send(&mut self, kind: u16, cookie: u64, offset: u64, length: u32, data: &[u8]) {
        self.try_send(0, kind, cookie, offset, length, data).expect("the server talks on");
    }

    /// The same, with flags, to a server that may be gone.
    pub(crate) fn try_send(
        &mut self,
        flags: u16,
        kind: u16,
        cookie: u64,
        offset: u64,
        length: u32,
        data: &[u8],
    ) -> std::io::Result<()> {
        let request = Request { flags, kind, cookie, offset, length }.encode();
        self.client.stream.write_all(&[&request, data].concat())
    }

    /// An answer without data: its cookie and error; `None` if the server has closed the connection.
    pub(crate) fn receive(&mut self) -> Option<(u64, u32)> {
        let head = self.client.try_take().ok()?;
        let SimpleReply { errno, cookie } = SimpleReply::decode(&head).expect("the server answers");
        Some((cookie, errno))
    }

    /// Writes, and tells the error.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> u32 {
        self.send(WRITE, 7, offset, data.len() as u32, data);
        self.receive().expect("the server answers").1
    }

    pub(crate) fn read(&mut self, offset: u64, length: usize) -> Vec<u8> {
        self.send(READ, 8, offset, length as u32, &[]);
        assert_eq!(self.receive(), Some((8, 0)));
        self.data(length)
    }

    /// The data behind an answer.
    pub(crate) fn data(&mut self, length: usize) -> Vec<u8> {
        self.client.take_vec(length)
    }
}
