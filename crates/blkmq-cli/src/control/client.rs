//! How commands speak to a running server.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use httparse::Status::Complete;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;

use super::folder;
use super::schema::{Queue, Refusal};
use blkmq_program::Failure;

/// How long a server may take to answer: longer than the 10 s for which a server lets a change wait for its queue.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Most bytes of an answer. A dump of many threads and tags has some 100 KB.
const MAX_ANSWER: u64 = 64 << 20;
/// The characters that need no encoding in a part of a path.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Which server a command speaks to.
#[derive(Debug, Args)]
pub(crate) struct Which {
    /// The server's control socket [default: that of the only server there is].
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
}

impl Which {
    /// Whether a server was named.
    pub(crate) fn is_given(&self) -> bool {
        self.control.is_some()
    }

    /// The server with the named control socket, or else the only server that runs.
    pub(crate) fn server(&self) -> Result<Server, Failure> {
        let mut found = self.servers()?;
        match (found.pop(), found.len()) {
            (Some(server), 0) => Ok(server),
            (None, _) => {
                let folder = folder::path().display().to_string();
                Err(Failure::Running(format!("no server runs: none in {folder}; start one by 'blkmq serve'")))
            }
            (Some(last), _) => {
                let names: Vec<_> =
                    found.iter().chain([&last]).map(|server| server.path.display().to_string()).collect();
                Err(Failure::Input(format!("several servers run; choose one by --control: {}", names.join(", "))))
            }
        }
    }

    /// The server with the named control socket, or else all servers that run.
    pub(crate) fn servers(&self) -> Result<Vec<Server>, Failure> {
        match &self.control {
            Some(path) => Ok(vec![Server { path: path.clone() }]),
            None => Ok(folder::servers()?.into_iter().map(|path| Server { path }).collect()),
        }
    }
}

/// A path from its parts. A part may contain any character, also the `/` in the name of a knob.
pub(crate) fn path(parts: &[&str]) -> String {
    parts.iter().map(|part| format!("/{}", utf8_percent_encode(part, PLAIN))).collect()
}

/// A running server.
#[derive(Debug)]
pub(crate) struct Server {
    path: PathBuf,
}

impl Server {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// All queues.
    pub(crate) fn queues(&self) -> Result<Vec<Queue>, Failure> {
        self.get(&["queues"])
    }

    /// The queue of that name, or the only one.
    pub(crate) fn queue(&self, name: Option<&str>) -> Result<Queue, Failure> {
        if let Some(name) = name {
            return self.get(&["queues", name]);
        }
        let mut queues = self.queues()?;
        match (queues.pop(), queues.len()) {
            (Some(queue), 0) => Ok(queue),
            (last, _) => {
                let names: Vec<_> = queues.iter().chain(&last).map(|queue| queue.name.as_str()).collect();
                Err(Failure::Input(format!("name one of the queues that this server has: {}", names.join(", "))))
            }
        }
    }

    /// Reads the value at a path, which is given by its parts.
    pub(crate) fn get<T: DeserializeOwned>(&self, parts: &[&str]) -> Result<T, Failure> {
        self.read(&self.ask("GET", parts, "")?)
    }

    /// Reads the text at a path.
    pub(crate) fn text(&self, parts: &[&str]) -> Result<String, Failure> {
        self.ask("GET", parts, "")
    }

    /// Sets the value at a path.
    pub(crate) fn put<T: DeserializeOwned>(&self, parts: &[&str], value: &str) -> Result<T, Failure> {
        self.read(&self.ask("PUT", parts, value)?)
    }

    /// Removes what is at a path.
    pub(crate) fn delete<T: DeserializeOwned>(&self, parts: &[&str]) -> Result<T, Failure> {
        self.read(&self.ask("DELETE", parts, "")?)
    }

    fn read<T: DeserializeOwned>(&self, body: &str) -> Result<T, Failure> {
        serde_json::from_str(body).map_err(|error| self.failure(&format!("not the answer of a server: {error}")))
    }

    fn failure(&self, what: &str) -> Failure {
        Failure::Running(format!("{}: {what}", self.path.display()))
    }

    fn ask(&self, method: &str, parts: &[&str], body: &str) -> Result<String, Failure> {
        let bytes = self.talk(method, &path(parts), body).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => self.failure("there is no such socket; 'blkmq list' names the servers that run"),
            io::ErrorKind::ConnectionRefused => self.failure("no server listens there any more"),
            io::ErrorKind::WouldBlock => self.failure("the server does not answer"),
            _ => self.failure(&error.to_string()),
        })?;
        if bytes.is_empty() {
            return Err(self.failure("the server ended without an answer"));
        }
        let (code, body) = parse(&bytes).ok_or_else(|| self.failure("this is not the control socket of a server"))?;
        if (200..300).contains(&code) {
            return Ok(body);
        }
        let what = refusal(body);
        // If the status says that the request was wrong, the user's input was.
        if code != 408 && matches!(code, 400..=409 | 413) {
            Err(Failure::Input(what))
        } else {
            Err(self.failure(&what))
        }
    }

    fn talk(&self, method: &str, path: &str, body: &str) -> io::Result<Vec<u8>> {
        let mut stream = UnixStream::connect(&self.path)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n");
        // A server that turns a connection away does not read the request. So writing it may fail, and the answer says
        // why.
        let asked = stream.write_all((head + body).as_bytes());
        let mut bytes = Vec::new();
        match stream.take(MAX_ANSWER).read_to_end(&mut bytes) {
            Err(error) if bytes.is_empty() => Err(asked.err().unwrap_or(error)),
            _ => Ok(bytes),
        }
    }
}

/// The reason that a refusal's body gives; the whole body if it is not a refusal in JSON.
pub(super) fn refusal(body: String) -> String {
    serde_json::from_str(&body).map_or(body, |Refusal { error }| error)
}

/// The status and the body of an answer, if the answer is complete.
pub(super) fn parse(bytes: &[u8]) -> Option<(u16, String)> {
    let mut headers = [httparse::EMPTY_HEADER; 16];
    let mut answer = httparse::Response::new(&mut headers);
    let Ok(Complete(length)) = answer.parse(bytes) else { return None };
    let code = answer.code?;
    let said = answer.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"))?;
    let body = &bytes[length..];
    (std::str::from_utf8(said.value).ok()?.parse() == Ok(body.len())).then_some(())?;
    Some((code, String::from_utf8(body.to_vec()).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_keep_what_names_contain() {
        assert_eq!(path(&["queues", "a/b c", "knobs", "nr_requests"]), "/queues/a%2Fb%20c/knobs/nr_requests");
    }

    #[test]
    fn only_whole_answers_count() {
        let whole = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        assert_eq!(parse(whole), Some((200, "ok".to_owned())));
        assert_eq!(parse(&whole[..whole.len() - 1]), None);
        assert_eq!(parse(b"NBDMAGIC"), None);
        assert_eq!(parse(b""), None);
    }
}
