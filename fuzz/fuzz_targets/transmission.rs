//! Whatever a client sends once it has chosen an export, the server answers each request at most once, in the form that
//! was agreed on. Then the server ends, and nothing is left.
#![no_main]

#[macro_use]
mod reach;

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::thread;

use blkmq::RequestQueue;
use blkmq::driver::spec;
use blkmq_export::nbd::{
    Chunk, Inquiry, OptionReply, Request, SimpleReply, chunks, commands, handshake, option, option_replies, options,
};
use blkmq_export::{Export, Server};
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

/// The words of a client up to its first request.
fn hello(is_structured: bool, export: &str) -> Vec<u8> {
    let mut words = u32::from(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES).to_be_bytes().to_vec();
    if is_structured {
        words.extend(option(options::STRUCTURED_REPLY, &[]));
    }
    words.extend(option(options::GO, &Inquiry { name: export, wanted: vec![] }.encode()));
    words
}

/// A request made from few bytes, so that most requests are nearly valid.
fn request(bytes: &[u8; 6], cookie: u64) -> Request {
    let [kind, flags, place, fraction, length, more] = bytes.map(u32::from);
    // One time in four, offsets and lengths need not be whole sectors. Sometimes a request reaches past the end.
    let unit = if flags & 0xc0 == 0 { 1 } else { 512 };
    let offset = u64::from((place * 512 + fraction * unit) % (SIZE as u32 + 4096));
    let length = (length * unit * 16 + more) / unit * unit % (LONGEST + 1);
    Request { flags: flags as u16 & 0x1f, kind: kind as u16 % 9, cookie, offset, length }
}

/// The last request: the server answers what came before and closes.
const GOODBYE: Request = Request { flags: 0, kind: commands::DISC, cookie: 0, offset: 0, length: 0 };

/// Reads the replies to options up to the last one, and returns the bytes after them.
fn after_options(said: &[u8], nr_options: usize) -> Option<&[u8]> {
    let mut rest = said.get(18..)?;
    let mut ended = 0;
    while ended < nr_options {
        let (head, data) = rest.split_first_chunk()?;
        let OptionReply { kind, len, .. } = OptionReply::decode(head).expect("replies follow each other");
        ended += usize::from(kind == option_replies::ACK);
        assert!(kind & option_replies::IS_ERROR == 0, "the options are right");
        rest = data.get(len as usize..)?;
    }
    Some(rest)
}

/// Reads all replies. The data of a read is as long as `lengths` says for its cookie. Chunks give their length
/// themselves.
fn check_replies(mut rest: &[u8], is_structured: bool, lengths: &HashMap<u64, usize>, reached: &mut Reached) {
    let mut answered = HashMap::new();
    while !rest.is_empty() {
        let simple = rest.first_chunk().and_then(|head| SimpleReply::decode(head).ok());
        let (cookie, is_last, is_error, length) = if let Some(SimpleReply { errno, cookie }) = simple {
            let data = if errno == 0 { lengths.get(&cookie).copied().unwrap_or_default() } else { 0 };
            (cookie, true, errno != 0, SimpleReply::SIZE + data)
        } else {
            assert!(is_structured, "structured replies were not agreed on");
            let chunk = Chunk::decode(rest.first_chunk().expect("a reply is whole")).expect("this is a chunk");
            let is_last = chunk.flags & chunks::FLAG_DONE != 0;
            (chunk.cookie, is_last, chunk.kind & 1 << 15 != 0, Chunk::SIZE + chunk.len as usize)
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
            if request.kind == commands::READ && !is_structured {
                lengths.insert(request.cookie, request.length as usize);
            }
            words.extend(request.encode());
            words.extend((0..request.payload()).map(|at| at as u8));
        }
    }
    words.extend(GOODBYE.encode());
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

fn run_alone(bytes: &[u8], reached: &mut Reached) {
    // Its threads stay.
    server();
    reach::alone(|| run(bytes, reached));
}

target!("transmission", run_alone, [("replies", 100), ("errors", 40), ("requests answered", 150)], &[u8]);
