//! A naive client: one blocking stream, and one answer after the other.

use std::io::{Read, Result, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use blkmq_export::Server;
use blkmq_export::nbd::{
    self, Chunk, Inquiry, OptionReply, Request, SimpleReply, chunks, commands, option_replies, options,
};
pub(crate) use blkmq_export::nbd::{option, string as named};

/// The answer to a request: an error number, or data.
pub(crate) type Answer = std::result::Result<Vec<u8>, u32>;

pub(crate) struct Client<S = UnixStream> {
    pub(crate) stream: S,
    /// Whether structured replies were agreed on.
    pub(crate) is_structured: bool,
    /// The message beside the last error.
    pub(crate) message: String,
}

impl Client {
    /// Connects and exchanges greetings.
    pub(crate) fn connect(path: &Path) -> Self {
        Self::greet(UnixStream::connect(path).expect("a server listens"))
    }

    /// Connects a new client by one end of a socket pair.
    pub(crate) fn pair(server: &Server) -> Self {
        let (ours, theirs) = UnixStream::pair().expect("there are descriptors left");
        server.serve(OwnedFd::from(theirs), Some("a test")).expect("there is room for a client");
        Self::greet(ours)
    }

    /// A client that uses the default export with simple replies.
    pub(crate) fn simple(server: &Server) -> Self {
        let mut client = Self::pair(server);
        client.go("");
        client
    }

    /// A client that uses the default export with structured replies and `base:allocation`.
    pub(crate) fn structured(server: &Server) -> Self {
        let mut client = Self::pair(server);
        client.agree_on_structure("");
        client.go("");
        client
    }

    /// Reads the server's greeting.
    pub(crate) fn greet(stream: UnixStream) -> Self {
        let mut client = Self::over(stream);
        client.exchange_greetings();
        client
    }

    pub(crate) fn shut_writing(&self) {
        self.stream.shutdown(Shutdown::Write).expect("the socket is connected");
    }
}

impl Client<TcpStream> {
    /// Connects to the first address of a server, and chooses the default export.
    pub(crate) fn tcp(server: &Server) -> Self {
        let address = server.uris()[0].trim_start_matches("nbd://").trim_end_matches('/');
        let mut client = Self::over(TcpStream::connect(address).expect("it listens"));
        client.exchange_greetings();
        client.go("");
        client
    }
}

impl<S: Read + Write> Client<S> {
    /// Reads the server's greeting, and answers it.
    pub(crate) fn exchange_greetings(&mut self) {
        assert_eq!(&self.take::<18>(), b"NBDMAGICIHAVEOPT\0\x03");
        self.send(&3_u32.to_be_bytes());
    }

    /// A client over this stream. The caller reads the greeting.
    pub(crate) fn over(stream: S) -> Self {
        Self { stream, is_structured: false, message: String::new() }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server takes it");
    }

    pub(crate) fn try_take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn take<const N: usize>(&mut self) -> [u8; N] {
        self.try_take().expect("the server sends it")
    }

    pub(crate) fn take_vec(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).expect("the server sends it");
        bytes
    }

    pub(crate) fn option(&mut self, number: u32, data: &[u8]) {
        self.send(&option(number, data));
    }

    /// The replies to an option, up to the acknowledgement or the error that ends them.
    pub(crate) fn replies(&mut self, option: u32) -> Vec<(u32, Vec<u8>)> {
        let mut replies = Vec::new();
        loop {
            let reply = OptionReply::decode(&self.take()).expect("a reply to an option is next");
            assert_eq!(reply.option, option);
            replies.push((reply.kind, self.take_vec(reply.len as usize)));
            if reply.kind == option_replies::ACK || reply.kind & option_replies::IS_ERROR != 0 {
                return replies;
            }
        }
    }

    pub(crate) fn ask(&mut self, option: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.option(option, data);
        self.replies(option)
    }

    pub(crate) fn agree_on_structure(&mut self, export: &str) {
        assert_eq!(self.ask(options::STRUCTURED_REPLY, &[]), [(option_replies::ACK, vec![])]);
        self.is_structured = true;
        let query = [&named(export)[..], &1_u32.to_be_bytes(), &named(nbd::BASE_ALLOCATION)].concat();
        assert_eq!(self.ask(options::SET_META_CONTEXT, &query).len(), 2);
    }

    /// Chooses an export. Returns its size and flags.
    pub(crate) fn go(&mut self, export: &str) -> (u64, u16) {
        let replies = self.ask(options::GO, &Inquiry { name: export, wanted: vec![] }.encode());
        assert_eq!(replies.last(), Some(&(option_replies::ACK, vec![])));
        let Some(nbd::Info::Export { size, flags }) = nbd::Info::decode(&replies[0].1) else {
            panic!("the size comes first: {replies:?}");
        };
        (size, flags)
    }

    pub(crate) fn request(&mut self, kind: u16, flags: u16, cookie: u64, offset: u64, length: u32) {
        self.send(&request(kind, flags, cookie, offset, length));
    }

    /// The next reply, of any request. `length` returns how long the data is if the request was a read and succeeded.
    pub(crate) fn reply(&mut self, length: impl Fn(u64) -> usize) -> (u64, Answer) {
        let start = self.take::<{ SimpleReply::SIZE }>();
        if let Ok(SimpleReply { errno, cookie }) = SimpleReply::decode(&start) {
            let answer = if errno == 0 { Ok(self.take_vec(length(cookie))) } else { Err(errno) };
            return (cookie, answer);
        }
        let head = [&start[..], &self.take::<{ Chunk::SIZE - SimpleReply::SIZE }>()].concat();
        let chunk = Chunk::decode(head.first_chunk().expect("it is whole")).expect("a chunk is next");
        assert!(self.is_structured, "structured replies were not agreed on");
        assert_eq!(chunk.flags, chunks::FLAG_DONE, "every reply has one chunk");
        let (cookie, chunk_length) = (chunk.cookie, chunk.len as usize);
        match chunk.kind {
            chunks::NONE => {
                assert_eq!(chunk_length, 0);
                (cookie, Ok(Vec::new()))
            }
            chunks::OFFSET_DATA => {
                self.take::<8>();
                (cookie, Ok(self.take_vec(chunk_length - 8)))
            }
            chunks::BLOCK_STATUS => (cookie, Ok(self.take_vec(chunk_length))),
            chunks::ERROR => {
                let error = u32::from_be_bytes(self.take());
                let message_length = usize::from(u16::from_be_bytes(self.take()));
                assert_eq!(chunk_length, 6 + message_length);
                self.message = String::from_utf8(self.take_vec(message_length)).expect("a message is UTF-8");
                (cookie, Err(error))
            }
            kind => panic!("a chunk of type {kind}"),
        }
    }

    /// Sends one request and returns its reply. `payload` is the data of a write.
    pub(crate) fn call(&mut self, kind: u16, flags: u16, offset: u64, length: u32, payload: &[u8]) -> Answer {
        self.request(kind, flags, 0x1234_5678_9abc_def0, offset, length);
        self.send(payload);
        // The data of a read with a simple reply. Other replies have the length of their data before it.
        let data = if kind == commands::READ && !self.is_structured { length as usize } else { 0 };
        let (cookie, answer) = self.reply(|_| data);
        assert_eq!(cookie, 0x1234_5678_9abc_def0);
        answer
    }

    pub(crate) fn read(&mut self, offset: u64, length: u32) -> Answer {
        self.call(commands::READ, 0, offset, length, &[])
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> Answer {
        self.call(commands::WRITE, 0, offset, data.len() as u32, data)
    }

    /// Says that nothing more comes, and checks that the server closes the connection without sending anything more.
    pub(crate) fn leave(mut self) {
        self.request(commands::DISC, 0, 0, 0, 0);
        assert!(self.is_closed());
    }

    /// Waits until the server sends something or closes the connection. Returns true if it closes.
    pub(crate) fn is_closed(&mut self) -> bool {
        match self.stream.read(&mut [0]) {
            Ok(len) => len == 0,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

/// The bytes of a request.
pub(crate) fn request(kind: u16, flags: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    Request { flags, kind, cookie, offset, length }.encode().to_vec()
}

/// The bytes of a write, with its data.
pub(crate) fn write(cookie: u64, offset: u64, data: &[u8]) -> Vec<u8> {
    [&request(commands::WRITE, 0, cookie, offset, data.len() as u32)[..], data].concat()
}
