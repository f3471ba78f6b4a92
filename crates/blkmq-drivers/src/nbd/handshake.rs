//! How a connection begins: the fixed newstyle negotiation, up to the chosen export.
//!
//! The [session](super::session) calls in when it opens the device, adds a connection, or connects again.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use blkmq::SECTOR_SIZE;
use blkmq::is_hidden;
use blkmq_nbd::{
    Greeting, Info, Inquiry, MAX_PAYLOAD, MAX_STRING, OptionReply, handshake, info, option, option_replies, options,
    transmission,
};
use rustix::event::PollFlags;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::address::Address;
use super::connector::{Connector, TIMEOUT};
use crate::OpenError;

/// The longest reply to an option that is read, in bytes.
const MAX_REPLY: u32 = 64 << 10;

/// What the server has agreed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Terms {
    pub(super) size: u64,
    /// Requests begin and end at multiples of this number of bytes.
    pub(super) block_size: u32,
    pub(super) max_bytes: u32,
    /// Bits of [`transmission`], without those that the device does not use.
    pub(super) flags: u16,
}

impl Terms {
    const USED: u16 = transmission::READ_ONLY
        | transmission::SEND_FLUSH
        | transmission::SEND_FUA
        | transmission::ROTATIONAL
        | transmission::SEND_TRIM
        | transmission::SEND_WRITE_ZEROES
        | transmission::CAN_MULTI_CONN;

    /// Returns true if the server has set this flag.
    pub(super) const fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// Why this device gets no export.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("{0}")]
    System(#[from] io::Error),
    #[error("{0}")]
    Server(String),
}

fn refused<T>(what: impl Into<String>) -> Result<T, Refused> {
    Err(Refused::Server(what.into()))
}

/// Connects, and chooses the export, within this time. The socket is non-blocking.
pub(super) fn connect(
    connector: &Connector,
    address: &Address,
    timeout: Duration,
) -> Result<(OwnedFd, Terms), OpenError> {
    let begun = begin(connector, address, timeout).map_err(|refused| match refused {
        Refused::System(error) => match error.kind() {
            io::ErrorKind::UnexpectedEof => OpenError::system("the server closes the connection", error),
            io::ErrorKind::TimedOut if timeout < TIMEOUT => {
                OpenError::system("the server does not answer within what is left of reconnect_delay", error)
            }
            io::ErrorKind::TimedOut => {
                OpenError::system(format!("the server does not answer within {timeout:?}"), error)
            }
            _ => error.into(),
        },
        Refused::Server(what) => OpenError::new(what),
    });
    begun.map_err(|error| error.at(address))
}

fn begin(connector: &Connector, address: &Address, timeout: Duration) -> Result<(OwnedFd, Terms), Refused> {
    let until = Instant::now() + timeout;
    let socket = connector.connect_to(&address.endpoint, until)?;
    let mut hasty = Hasty { connector, socket, until };
    let terms = negotiate(&mut hasty, &address.export)?;
    Ok((hasty.socket, terms))
}

/// A stream socket with a deadline for reads and writes, however little each of them moves.
struct Hasty<'a> {
    connector: &'a Connector,
    socket: OwnedFd,
    until: Instant,
}

impl Read for Hasty<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let receive = || recv(&self.socket, &mut *bytes, RecvFlags::empty());
        Ok(self.connector.when_ready(&self.socket, PollFlags::IN, self.until, receive)?.0)
    }
}

impl Write for Hasty<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let send = || send(&self.socket, bytes, SendFlags::NOSIGNAL);
        self.connector.when_ready(&self.socket, PollFlags::OUT, self.until, send)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn array<const N: usize>(stream: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Talks to a server up to the first request.
fn negotiate(stream: &mut (impl Read + Write), export: &str) -> Result<Terms, Refused> {
    let Ok(Greeting { flags }) = Greeting::decode(&array(stream)?) else {
        return refused("this is no NBD server, or one from before 2013");
    };
    if flags & handshake::FIXED_NEWSTYLE == 0 {
        return refused("the server does not speak the fixed newstyle negotiation");
    }
    if export.len() > MAX_STRING {
        return refused(format!("the export's name is too long; at most {MAX_STRING} bytes"));
    }
    let flags = u32::from(handshake::FIXED_NEWSTYLE | flags & handshake::NO_ZEROES).to_be_bytes();
    let inquiry = Inquiry { name: export, wanted: vec![info::BLOCK_SIZE] };
    stream.write_all(&[&flags[..], &option(options::GO, &inquiry.encode())].concat())?;
    replies(stream, export)
}

/// Reads the replies to `GO`.
fn replies(stream: &mut impl Read, export: &str) -> Result<Terms, Refused> {
    let (mut told, mut blocks) = (None, None);
    loop {
        let reply = OptionReply::decode(&array(stream)?).ok();
        let Some(OptionReply { kind, len, .. }) = reply.filter(|it| it.option == options::GO && it.len <= MAX_REPLY)
        else {
            return refused("the server's answer makes no sense");
        };
        let mut data = vec![0; len as usize];
        stream.read_exact(&mut data)?;
        match kind {
            option_replies::ACK => break,
            option_replies::INFO => match Info::decode(&data) {
                Some(Info::Export { size, flags }) => told = Some((size, flags)),
                Some(Info::BlockSize { minimum, maximum, .. }) => blocks = Some((minimum, maximum)),
                _ => (),
            },
            option_replies::ERR_UNKNOWN => return refused(format!("the server has no export '{export}'")),
            option_replies::ERR_TLS_REQD => return refused("the server wants TLS, which is not there"),
            _ if kind & option_replies::IS_ERROR != 0 => {
                let text = String::from_utf8_lossy(&data);
                let text: String = text.chars().filter(|c| !is_hidden(*c)).take(200).collect();
                return refused(format!("the server refuses the export '{export}' with {kind:#x}: {text}"));
            }
            _ => (),
        }
    }
    let Some((size, flags)) = told else { return refused("the server does not tell the export's size") };
    let flags = flags & Terms::USED;
    let mut terms = Terms { size, block_size: SECTOR_SIZE as u32, max_bytes: MAX_PAYLOAD, flags };
    if let Some((least, most)) = blocks {
        let least = least.max(SECTOR_SIZE as u32);
        if !least.is_power_of_two() || least > 64 << 10 || most < least {
            return refused(format!("the server asks for blocks of {least} to {most} bytes"));
        }
        terms.block_size = least;
        terms.max_bytes = most.min(MAX_PAYLOAD) / least * least;
    }
    if !size.is_multiple_of(terms.block_size.into()) {
        return refused(format!(
            "the export has {size} bytes, which are no whole blocks of {0}; 'truncate -s %{0}' makes the file behind it longer by \
             what is missing",
            terms.block_size
        ));
    }
    if terms.size == 0 {
        return refused(format!("the export has {size} bytes, less than one block of {}", terms.block_size));
    }
    Ok(terms)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;
    use std::os::unix::net::{UnixListener, UnixStream};

    use blkmq_nbd::option_reply;

    use super::*;

    fn reply(kind: u32, data: &[u8]) -> Vec<u8> {
        option_reply(options::GO, kind, data)
    }

    fn export(size: u64, flags: u16) -> Vec<u8> {
        reply(option_replies::INFO, &Info::Export { size, flags }.encode())
    }

    fn blocks(least: u32, most: u32) -> Vec<u8> {
        reply(option_replies::INFO, &Info::BlockSize { minimum: least, preferred: 0, maximum: most }.encode())
    }

    fn told(answers: &[Vec<u8>]) -> Result<Terms, String> {
        replies(&mut Cursor::new(answers.concat()), "x").map_err(|refused| refused.to_string())
    }

    #[test]
    fn the_terms_are_what_the_server_says() {
        let terms =
            told(&[export(999_424, 0b1_0000_0101), blocks(4096, 10_000), reply(option_replies::ACK, &[])]).unwrap();
        assert_eq!((terms.size, terms.block_size, terms.max_bytes), (999_424, 4096, 8192));
        assert_eq!(terms.flags, transmission::SEND_FLUSH | transmission::CAN_MULTI_CONN);
        let plain = told(&[export(1 << 20, 1), reply(option_replies::ACK, &[])]).unwrap();
        assert_eq!((plain.block_size, plain.max_bytes), (512, 32 << 20));
        let fine = told(&[export(1 << 20, 1), blocks(1, u32::MAX), reply(option_replies::ACK, &[])]).unwrap();
        assert_eq!((fine.block_size, fine.max_bytes), (512, 32 << 20));
    }

    /// Red, for example, if a part at the end of an export is left out without an error.
    #[test]
    fn answers_without_sense_are_refused() {
        let ack = || reply(option_replies::ACK, &[]);
        for (answers, words) in [
            (vec![ack()], "size"),
            (vec![export(0, 1), ack()], "0 bytes, less than one block"),
            (vec![export(1000, 1), ack()], "1000 bytes, which are no whole blocks of 512; 'truncate -s %512'"),
            (vec![export(1_000_448, 1), blocks(4096, 1 << 20), ack()], "no whole blocks of 4096"),
            (vec![export(1 << 20, 1), blocks(3000, 9000), ack()], "blocks of 3000"),
            (vec![export(1 << 20, 1), blocks(4096, 512), ack()], "blocks of 4096"),
            (vec![reply(option_replies::ERR_UNKNOWN, b"")], "no export 'x'"),
            (vec![reply(option_replies::ERR_TLS_REQD, b"")], "TLS"),
            (vec![reply(option_replies::ERR_POLICY, b"no\nyou")], "0x80000002: noyou"),
            (vec![vec![7; 20]], "no sense"),
            (vec![export(1 << 20, 1)], "failed to fill whole buffer"),
        ] {
            let error = told(&answers).unwrap_err();
            assert!(error.contains(words), "{words}: {error}");
        }
    }

    /// Red (hangs) before such a name was refused here: the server was asked for an export that none can have.
    #[test]
    fn a_name_longer_than_the_protocol_allows_is_not_sent() {
        let (mut ours, mut theirs) = UnixStream::pair().expect("there are descriptors");
        theirs.write_all(&Greeting { flags: handshake::FIXED_NEWSTYLE }.encode()).expect("there is room");
        let refused = negotiate(&mut ours, &"x".repeat(MAX_STRING + 1));
        assert!(matches!(refused, Err(Refused::Server(what)) if what.contains("at most 4096 bytes")));
        drop(ours);
        assert_eq!(theirs.read(&mut [0]).expect("the other end is closed"), 0, "nothing was sent");
    }

    /// Red if the sentence names a time that the operator has not set, such as 0ns.
    #[test]
    fn a_server_that_does_not_answer_is_told_with_the_time_that_it_had() {
        let folder = tempfile::tempdir().expect("there is room");
        let path = folder.path().join("a");
        let _listener = UnixListener::bind(&path).expect("the folder is new");
        let connector = Connector::new().expect("there are descriptors");
        let address = format!("nbd+unix:///?socket={}", path.display()).parse().expect("it is a URI");
        let error = connect(&connector, &address, Duration::ZERO).unwrap_err().to_string();
        assert!(error.ends_with("the server does not answer within what is left of reconnect_delay"), "{error}");
    }
}
