//! The part of HTTP/1.1 that the control socket speaks: one request and one answer for each connection.

use std::io::{self, ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use httparse::Status::Complete;
use serde::Serialize;

use super::schema::Refusal;
use super::seats::Seat;

/// The most bytes of a request's first line and header lines.
const MAX_HEAD: usize = 8 * 1024;
/// The most header lines.
const MAX_HEADERS: usize = 32;
/// The most bytes of a body. The longest value of a knob is far shorter.
const MAX_BODY: usize = 4 * 1024;
/// The most bytes that the server reads from a client that has its answer and still sends. Then the connection is
/// broken.
const MAX_REST: u64 = 1024 * 1024;

/// What a client asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// The path as it was sent, without the part after a question mark.
    pub(crate) path: String,
    pub(crate) body: Vec<u8>,
}

/// What a client gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The status's number and words.
    pub(crate) status: &'static str,
    pub(crate) kind: &'static str,
    /// The methods that would be right, for status 405.
    pub(crate) allow: Option<&'static str>,
    pub(crate) body: String,
}

pub(crate) const BAD_REQUEST: &str = "400 Bad Request";
pub(crate) const NOT_FOUND: &str = "404 Not Found";
const NOT_ALLOWED: &str = "405 Method Not Allowed";
pub(crate) const TIMED_OUT: &str = "408 Request Timeout";
const TOO_LARGE: &str = "413 Content Too Large";
pub(crate) const CONFLICT: &str = "409 Conflict";
pub(crate) const UNAVAILABLE: &str = "503 Service Unavailable";

impl Answer {
    /// A JSON value with a newline after it, so that a terminal shows it on a line of its own.
    fn of_json(status: &'static str, value: &impl Serialize) -> Self {
        let mut body = serde_json::to_string(value).expect("strings, numbers and maps with names for keys are JSON");
        body.push('\n');
        Self { status, kind: "application/json", allow: None, body }
    }

    pub(crate) fn json(value: &impl Serialize) -> Self {
        Self::of_json("200 OK", value)
    }

    pub(crate) fn accepted(value: &impl Serialize) -> Self {
        Self::of_json("202 Accepted", value)
    }

    pub(crate) fn text(kind: &'static str, body: String) -> Self {
        Self { status: "200 OK", kind, allow: None, body }
    }

    pub(crate) fn refusal(status: &'static str, error: impl Into<String>) -> Self {
        Self::of_json(status, &Refusal { error: error.into() })
    }

    /// The path is known, but it does not accept this method.
    pub(crate) fn not_allowed(allow: &'static str) -> Self {
        let refusal = Self::refusal(NOT_ALLOWED, format!("accepted here: {allow}"));
        Self { allow: Some(allow), ..refusal }
    }

    pub(crate) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { status, kind, allow, body } = self;
        let allow = allow.map_or_else(String::new, |methods| format!("Allow: {methods}\r\n"));
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{allow}Connection: close\r\n\r\n"
        );
        out.write_all((head + body).as_bytes())
    }
}

/// Why there is no request to answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// The client sent nothing and left.
    Gone,
    /// The answer to a client that sent something wrong.
    Wrong(Answer),
}

impl Unread {
    fn wrong(status: &'static str, error: &str) -> Self {
        Self::Wrong(Answer::refusal(status, error))
    }
}

/// A connection on which everything has to be said before a deadline. The deadline also ends the connection of a client
/// that sends a byte now and then.
#[derive(Debug)]
pub(super) struct Hasty<'a> {
    seat: &'a Seat,
    until: Instant,
}

impl<'a> Hasty<'a> {
    pub(super) fn new(seat: &'a Seat, limit: Duration) -> Self {
        Self { seat, until: Instant::now() + limit }
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        // For the system a timeout of zero would mean no limit.
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
    }

    /// Ends the answer and lets the client read it, although the client still sends. Bytes that were sent and not read
    /// would break the connection before the client has read the answer.
    pub(super) fn end(self) {
        let _ = self.seat.stream().shutdown(std::net::Shutdown::Write);
        let _ = io::copy(&mut self.take(MAX_REST), &mut io::sink());
    }
}

impl Read for Hasty<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut stream = self.seat.stream();
        stream.set_read_timeout(Some(self.left()?))?;
        stream.read(buffer)
    }
}

impl Write for Hasty<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let mut stream = self.seat.stream();
        stream.set_write_timeout(Some(self.left()?))?;
        stream.write(buffer).inspect(|_| self.seat.note())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.seat.stream().flush()
    }
}

/// Reads more of a request. If the connection ends in the middle of the request, the request is wrong.
fn more(stream: &mut dyn Read, buffer: &mut Vec<u8>) -> Result<(), Unread> {
    let mut chunk = [0; 2048];
    let length = loop {
        match stream.read(&mut chunk) {
            Err(error) if error.kind() == ErrorKind::Interrupted => (),
            result => break result,
        }
    };
    match length {
        Ok(0) if buffer.is_empty() => Err(Unread::Gone),
        Ok(0) => Err(Unread::wrong(BAD_REQUEST, "the request ends before it is complete")),
        Ok(length) => {
            buffer.extend_from_slice(&chunk[..length]);
            Ok(())
        }
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            Err(Unread::wrong(TIMED_OUT, "the request did not come in time"))
        }
        Err(_) => Err(Unread::Gone),
    }
}

/// The head of a request: its length, and what it says.
struct Head {
    length: usize,
    body: usize,
    method: String,
    path: String,
}

/// Reads the head if it is complete.
fn head(buffer: &[u8]) -> Result<Option<Head>, Unread> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    let length = match parsed.parse(buffer) {
        Ok(Complete(length)) if length <= MAX_HEAD => length,
        Ok(httparse::Status::Partial) if buffer.len() <= MAX_HEAD => return Ok(None),
        Ok(_) => return Err(Unread::wrong(TOO_LARGE, &format!("a request's head has at most {MAX_HEAD} bytes"))),
        Err(httparse::Error::TooManyHeaders) => {
            return Err(Unread::wrong(TOO_LARGE, &format!("a request has at most {MAX_HEADERS} header lines")));
        }
        Err(error) => return Err(Unread::wrong(BAD_REQUEST, &format!("this is not HTTP/1.1: {error}"))),
    };
    let path = parsed.path.unwrap_or_default();
    if !path.starts_with('/') {
        return Err(Unread::wrong(BAD_REQUEST, "a path begins with '/', as in /queues"));
    }
    let path = path.split('?').next().unwrap_or_default().to_owned();
    let body = body_length(parsed.headers)?;
    Ok(Some(Head { length, body, method: parsed.method.unwrap_or_default().to_owned(), path }))
}

fn body_length(headers: &[httparse::Header<'_>]) -> Result<usize, Unread> {
    if headers.iter().any(|header| header.name.eq_ignore_ascii_case("transfer-encoding")) {
        return Err(Unread::wrong(BAD_REQUEST, "a body is sent whole, with its Content-Length"));
    }
    let mut lengths = headers.iter().filter(|header| header.name.eq_ignore_ascii_case("content-length"));
    let Some(length) = lengths.next() else { return Ok(0) };
    let digits = std::str::from_utf8(length.value).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    if lengths.next().is_some() || digits.is_none_or(str::is_empty) {
        return Err(Unread::wrong(BAD_REQUEST, "a request has one Content-Length, a whole number"));
    }
    // A number that is too long for the type is too large as well.
    let length = digits.and_then(|digits| digits.parse().ok()).filter(|length| *length <= MAX_BODY);
    length.ok_or_else(|| Unread::wrong(TOO_LARGE, &format!("a body has at most {MAX_BODY} bytes")))
}

/// Reads one request.
pub(crate) fn read(stream: &mut dyn Read) -> Result<Request, Unread> {
    let mut buffer = Vec::new();
    let head = loop {
        more(stream, &mut buffer)?;
        if let Some(head) = head(&buffer)? {
            break head;
        }
    };
    let end = head.length + head.body;
    while buffer.len() < end {
        more(stream, &mut buffer)?;
    }
    Ok(Request { method: head.method, path: head.path, body: buffer[head.length..end].to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The status of the answer to bytes that are not a valid request.
    fn status(mut bytes: &[u8]) -> &'static str {
        match read(&mut bytes) {
            Err(Unread::Wrong(answer)) => answer.status,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_request_is_read_byte_by_byte_or_whole() {
        struct Slow<'a>(&'a [u8]);
        impl Read for Slow<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                let length = self.0.len().min(1);
                buffer[..length].copy_from_slice(&self.0[..length]);
                self.0 = &self.0[length..];
                Ok(length)
            }
        }
        let bytes = b"PUT /queues/a/knobs/b?c HTTP/1.1\r\nHost: x\r\ncontent-length: 4\r\n\r\nnoneGET";
        let expected =
            Request { method: "PUT".to_owned(), path: "/queues/a/knobs/b".to_owned(), body: b"none".to_vec() };
        assert_eq!(read(&mut &bytes[..]), Ok(expected));
        assert_eq!(read(&mut Slow(bytes)).unwrap().body, b"none");
    }

    #[test]
    fn what_is_no_request_is_refused_by_its_status() {
        assert_eq!(read(&mut &b""[..]), Err(Unread::Gone));
        for bad in [
            b"\0\0\0\0\xff\xfe".as_slice(),
            b"NBDMAGIC and more\r\n\r\n",
            b"GET / HTTP/1.1\r\nHo st: x\r\n\r\n",
            b"GET / HTTP/1.1\r\n",
            b"GET /",
            b"GET queues HTTP/1.1\r\n\r\n",
            b"PUT / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
            b"PUT / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
            b"PUT / HTTP/1.1\r\nContent-Length:\r\n\r\n",
            b"PUT / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
            b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"PUT / HTTP/1.1\r\nContent-Length: 5\r\n\r\nshor",
        ] {
            assert_eq!(status(bad), BAD_REQUEST, "{}", String::from_utf8_lossy(bad));
        }
        let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(MAX_HEAD + 4096));
        // It comes whole in one piece more than the longest head.
        let longer = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(MAX_HEAD - "GET / HTTP/1.1\r\n\r\n".len() + 1));
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(MAX_HEADERS + 1));
        let heavy = format!("PUT / HTTP/1.1\r\nContent-Length: {}\r\n\r\n", MAX_BODY + 1);
        let absurd = format!("PUT / HTTP/1.1\r\nContent-Length: {}\r\n\r\n", "9".repeat(99));
        for large in [long, longer, many, heavy, absurd] {
            assert_eq!(status(large.as_bytes()), TOO_LARGE);
        }
    }

    #[test]
    fn answers_have_their_length() {
        let mut text = Vec::new();
        Answer::not_allowed("GET, PUT").write(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 405 Method Not Allowed\r\n"), "{head}");
        assert!(head.contains("\r\nAllow: GET, PUT\r\n") && head.ends_with("\r\nConnection: close"), "{head}");
        assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{head}");
        assert_eq!(body, "{\"error\":\"accepted here: GET, PUT\"}\n");
    }
}
