//! Whatever a client sends once it has chosen an export, the server answers each request at most once, in the form that
//! was agreed on. Then the server ends, and nothing is left.
#![no_main]

mod reach;

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::thread;

use blkmq::RequestQueue;
use blkmq::driver::spec;
use blkmq_export::nbd::command::REQUEST_SIZE;
use blkmq_export::nbd::{
    OPTION_MAGIC, REQUEST_MAGIC, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, commands, handshake, option_replies,
    options,
};
use blkmq_export::{Export, Server};
use libfuzzer_sys::fuzz_target;
use reach::Reached;

/// Bytes of the export.
const SIZE: usize = 1 << 16;
/// The longest data that a request asks for or brings, except for requests that are refused.
const LONGEST: u32 = 8192;

fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| {
        let device = spec::open("ram,size=64K").expect("this device is right");
        let q = RequestQueue::builder(device).scheduler("mq-deadline").build().expect("so is its queue");
        let read_only = Export::new("r", q.clone()).read_only();
        Server::builder().export(Export::new("", q)).export(read_only).start().expect("so is the server")
    })
}

fn option(kind: u32, data: &[u8]) -> Vec<u8> {
    [&OPTION_MAGIC.to_be_bytes()[..], &kind.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data].concat()
}

/// The words of a client up to its first request.
fn hello(is_structured: bool, export: &str) -> Vec<u8> {
    let mut words = u32::from(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES).to_be_bytes().to_vec();
    if is_structured {
        words.extend(option(options::STRUCTURED_REPLY, &[]));
    }
    let name = [&(export.len() as u32).to_be_bytes()[..], export.as_bytes(), &[0, 0]].concat();
    words.extend(option(options::GO, &name));
    words
}

/// A request made from few bytes, so that most requests are nearly valid, with its data.
fn request(bytes: &[u8; 6], cookie: u64) -> Vec<u8> {
    let [kind, flags, place, fraction, length, more] = bytes.map(u32::from);
    // One time in four, offsets and lengths need not be whole sectors. Sometimes a request reaches past the end.
    let unit = if flags & 0xc0 == 0 { 1 } else { 512 };
    let offset = u64::from((place * 512 + fraction * unit) % (SIZE as u32 + 4096));
    let length = (length * unit * 16 + more) / unit * unit % (LONGEST + 1);
    let kind = kind as u16 % 9;
    let mut words = REQUEST_MAGIC.to_be_bytes().to_vec();
    words.extend((flags as u16 & 0x1f).to_be_bytes());
    words.extend(kind.to_be_bytes());
    words.extend(cookie.to_be_bytes());
    words.extend(offset.to_be_bytes());
    words.extend(length.to_be_bytes());
    if kind == commands::WRITE {
        words.extend((0..length).map(|at| at as u8));
    }
    words
}

/// The last request: the server answers what came before and closes.
fn goodbye() -> Vec<u8> {
    [&REQUEST_MAGIC.to_be_bytes()[..], &[0, 0], &commands::DISC.to_be_bytes(), &[0; 20]].concat()
}

/// Reads the replies to options up to the last one, and returns the bytes after them.
fn after_options(said: &[u8], nr_options: usize) -> Option<&[u8]> {
    let mut rest = said.get(18..)?;
    let mut ended = 0;
    while ended < nr_options {
        let head = rest.get(..20)?;
        let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("four bytes"));
        ended += usize::from(number(12) == option_replies::ACK);
        assert!(number(12) < 1 << 31, "the options are right");
        rest = rest.get(20 + number(16) as usize..)?;
    }
    Some(rest)
}

/// Reads all replies. The data of a read is as long as `lengths` says for its cookie. Chunks give their length
/// themselves.
fn check_replies(mut rest: &[u8], is_structured: bool, lengths: &HashMap<u64, usize>, reached: &mut Reached) {
    let mut answered = HashMap::new();
    while !rest.is_empty() {
        let magic = u32::from_be_bytes(rest[..4].try_into().expect("a reply begins with a magic number"));
        let is_chunk = magic == STRUCTURED_REPLY_MAGIC;
        assert!(is_chunk && is_structured || magic == SIMPLE_REPLY_MAGIC, "{magic:#x}");
        let cookie = u64::from_be_bytes(rest[8..16].try_into().expect("both kinds have their cookie there"));
        let (is_last, is_error, length) = if is_chunk {
            let [flags, kind] = [4, 6].map(|at| u16::from_be_bytes([rest[at], rest[at + 1]]));
            let length = u32::from_be_bytes(rest[16..20].try_into().expect("a chunk has a length")) as usize;
            (flags & 1 != 0, kind & 1 << 15 != 0, 20 + length)
        } else {
            let is_error = rest[4..8] != [0; 4];
            let data = if is_error { 0 } else { lengths.get(&cookie).copied().unwrap_or_default() };
            (true, is_error, 16 + data)
        };
        assert!(rest.len() >= length, "a reply is whole");
        rest = &rest[length..];
        reached.add(if is_error { "errors" } else { "replies" }, 1);
        assert!(answered.insert(cookie, is_last) != Some(true), "one reply to {cookie}");
    }
    reached.add("requests answered", answered.len());
}

fn run(bytes: &[u8], reached: &mut Reached) {
    let Some((&first, bytes)) = bytes.split_first() else { return };
    let (is_structured, is_raw) = (first & 1 != 0, first & 6 == 6);
    let export = if first & 8 != 0 { "r" } else { "" };
    let mut words = hello(is_structured, export);
    let mut lengths = HashMap::new();
    if is_raw {
        words.extend_from_slice(bytes);
    } else {
        for (cookie, chunk) in bytes.as_chunks::<6>().0.iter().take(64).enumerate() {
            let request = request(chunk, cookie as u64);
            let kind = u16::from_be_bytes([request[6], request[7]]);
            let length = u32::from_be_bytes(request[24..REQUEST_SIZE].try_into().expect("a length has four bytes"));
            if kind == commands::READ && !is_structured {
                lengths.insert(cookie as u64, length as usize);
            }
            words.extend(request);
        }
    }
    words.extend(goodbye());
    let (mut client, socket) = UnixStream::pair().expect("there are descriptors");
    server().serve(socket.into(), Some("fuzz")).expect("there is a place");
    let mut said = Vec::new();
    thread::scope(|scope| {
        let mut sends = client.try_clone().expect("there are descriptors");
        scope.spawn(move || {
            // The server may close the connection before it has read everything.
            let _ = sends.write_all(&words);
            // Raw bytes may end with an incomplete request, and the server would wait for the rest of it.
            if is_raw {
                let _ = sends.shutdown(Shutdown::Write);
            }
        });
        // Everything that the server had sent by then is still there.
        let _ = client.read_to_end(&mut said);
    });
    while !server().clients().is_empty() {
        thread::yield_now();
    }
    if !is_raw && let Some(rest) = after_options(&said, 1 + usize::from(is_structured)) {
        check_replies(rest, is_structured, &lengths, reached);
    }
}

fuzz_target!(
    init: reach::seeds("transmission", &[("replies", 100), ("errors", 40), ("requests answered", 150)], run),
    |bytes: &[u8]| {
        // Its threads stay.
        server();
        reach::alone(|| run(bytes, &mut Reached::default()));
    }
);
