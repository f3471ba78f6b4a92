//! The beginning of a conversation, for a server that a test writes by hand.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};

use blkmq_nbd::{INIT_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, handshake, info, option_replies, options, transmission};

/// Bytes of the export.
pub(crate) const SIZE: u64 = 1 << 20;

/// Talks like a server up to the first request. The export has `size` bytes, and the flags `more` besides those that
/// every export has.
pub(crate) fn greet(stream: &mut UnixStream, size: u64, more: u16) {
    let mut bytes = [0; 256];
    let flags = handshake::FIXED_NEWSTYLE.to_be_bytes();
    let greeting = [&INIT_MAGIC.to_be_bytes()[..], &OPTION_MAGIC.to_be_bytes(), &flags].concat();
    stream.write_all(&greeting).expect("the client talks on");
    let _ = stream.read(&mut bytes).expect("the client talks on");
    let reply = |kind: u32, data: &[u8]| {
        let head = [&OPTION_REPLY_MAGIC.to_be_bytes()[..], &options::GO.to_be_bytes(), &kind.to_be_bytes()].concat();
        [&head, &(data.len() as u32).to_be_bytes()[..], data].concat()
    };
    let (size, flags) = (size.to_be_bytes(), (transmission::HAS_FLAGS | more).to_be_bytes());
    let export = [&info::EXPORT.to_be_bytes()[..], &size, &flags].concat();
    let replies = [reply(option_replies::INFO, &export), reply(option_replies::ACK, &[])].concat();
    stream.write_all(&replies).expect("the client talks on");
}

/// Accepts a client, and [greets](greet) it.
pub(crate) fn accept(listener: &UnixListener, size: u64, more: u16) -> UnixStream {
    let mut stream = listener.accept().expect("the client comes").0;
    greet(&mut stream, size, more);
    stream
}
