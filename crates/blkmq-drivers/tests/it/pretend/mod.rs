//! The beginning of a conversation, for a server that a test writes by hand.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};

use blkmq_nbd::{Greeting, Info, Request, handshake, option_replies, option_reply, options, transmission};

/// Bytes of the export.
pub(crate) const SIZE: u64 = 1 << 20;

/// Talks like a server up to the first request. The export has `size` bytes, and the flags `more` besides those that
/// every export has.
pub(crate) fn greet(stream: &mut UnixStream, size: u64, more: u16) {
    let mut bytes = [0; 256];
    let greeting = Greeting { flags: handshake::FIXED_NEWSTYLE };
    stream.write_all(&greeting.encode()).expect("the client talks on");
    let _ = stream.read(&mut bytes).expect("the client talks on");
    let export = Info::Export { size, flags: transmission::HAS_FLAGS | more }.encode();
    let reply = |kind, data: &[u8]| option_reply(options::GO, kind, data);
    let replies = [reply(option_replies::INFO, &export), reply(option_replies::ACK, &[])].concat();
    stream.write_all(&replies).expect("the client talks on");
}

/// Accepts a client, and [greets](greet) it.
pub(crate) fn accept(listener: &UnixListener, size: u64, more: u16) -> UnixStream {
    let mut stream = listener.accept().expect("the client comes").0;
    greet(&mut stream, size, more);
    stream
}

/// The next request, without its data; `None` if the client is gone.
pub(crate) fn request(stream: &mut UnixStream) -> Option<Request> {
    let mut head = [0; Request::SIZE];
    stream.read_exact(&mut head).ok()?;
    Some(Request::decode(&head).expect("the client keeps to the protocol"))
}
