//! The least that an NBD server does: a thread that sleeps until something comes, one receive and one send for
//! everything that came, and no device. The example is made from the parts of the protocol that need no socket. `floor
//! SOCKET` serves a GiB of zeroes that forgets what is written. `scripts/servers` measures it beside other servers, to
//! show what remains when the server itself costs nothing. Without an argument the program answers one read of its own.

use std::error::Error;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread;

use blkmq_engine::{Ask, Cause, Terms as ExportTerms};
use blkmq_export::nbd::command::{Command, NoRequest, Terms};
use blkmq_export::nbd::negotiation::{Agreement, Encryption, Negotiation, Offer, Progress};
use blkmq_export::nbd::reply::Head;
use blkmq_export::nbd::{
    Errno, Inquiry, MAX_PAYLOAD, OptionReply, Request, commands, option, option_replies, options, transmission,
};

const SIZE: u64 = 1 << 30;
/// The most bytes that one call receives.
const RECEIVED_AT_ONCE: usize = 256 << 10;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Outcome<()> {
    let Some(socket) = std::env::args_os().nth(1) else { return try_it() };
    for stream in UnixListener::bind(socket)?.incoming() {
        let stream = stream?;
        thread::spawn(|| serve(stream).inspect_err(|error| eprintln!("floor: {error}")));
    }
    Ok(())
}

/// Appends what has come. An error if the client has closed the connection.
fn receive(stream: &mut UnixStream, input: &mut Vec<u8>, buffer: &mut [u8]) -> Outcome<()> {
    let received = stream.read(buffer)?;
    if received == 0 {
        return Err("the client closed the connection".into());
    }
    input.extend_from_slice(&buffer[..received]);
    Ok(())
}

fn serve(mut stream: UnixStream) -> Outcome<()> {
    let (mut input, mut output) = (Vec::new(), Vec::new());
    let mut buffer = vec![0; RECEIVED_AT_ONCE];
    let Some(agreement) = negotiate(&mut stream, &mut input, &mut output, &mut buffer)? else { return Ok(()) };
    let (is_read_only, can_discard, can_zero) = (false, false, false);
    let export =
        ExportTerms { size: SIZE, block: 1, is_read_only, can_flush: true, can_fua: true, can_discard, can_zero };
    let Agreement { has_structured_replies, has_allocation, .. } = agreement;
    let terms = Terms { export, maximum: MAX_PAYLOAD, has_structured_replies, has_allocation };
    loop {
        let Some(used) = answer(&terms, &input, &mut output)? else { return Ok(()) };
        input.drain(..used);
        stream.write_all(&output)?;
        output.clear();
        receive(&mut stream, &mut input, &mut buffer)?;
    }
}

/// Talks until an export is chosen. The last answers are left in `output`. `None` if the client wants no export.
fn negotiate(
    stream: &mut UnixStream,
    input: &mut Vec<u8>,
    output: &mut Vec<u8>,
    buffer: &mut [u8],
) -> Outcome<Option<Agreement>> {
    let flags = transmission::HAS_FLAGS | transmission::SEND_FLUSH | transmission::CAN_MULTI_CONN;
    let (name, description) = (String::new(), "zeroes".to_owned());
    let offer = Offer { name, description, size: SIZE, flags, preferred: 4096, maximum: MAX_PAYLOAD };
    let offers: Arc<[Offer]> = Arc::from([offer]);
    let mut negotiation = Negotiation::begin(offers, Encryption::Off, output);
    loop {
        let (used, step) = negotiation.advance(input, output);
        input.drain(..used);
        match step {
            Progress::On | Progress::Secure => {}
            Progress::Short => {
                stream.write_all(output)?;
                output.clear();
                receive(stream, input, buffer)?;
            }
            Progress::Chosen(agreement) => return Ok(Some(agreement)),
            Progress::Aborted => {
                stream.write_all(output)?;
                return Ok(None);
            }
            Progress::Refused => return Err("the export is refused".into()),
            Progress::Broken(reason) => return Err(reason.into()),
        }
    }
}

/// Appends the answers to all complete requests. Returns how many bytes the requests took, or `None` if the client
/// leaves.
fn answer(terms: &Terms, input: &[u8], output: &mut Vec<u8>) -> Outcome<Option<usize>> {
    let mut used = 0;
    while let Some(head) = input[used..].first_chunk() {
        let request = Request::decode(head).map_err(NoRequest)?;
        let end = used + Request::SIZE + request.payload() as usize;
        if request.payload() > MAX_PAYLOAD {
            return Err("a write is longer than was agreed on".into());
        }
        if input.len() < end {
            break;
        }
        used = end;
        let (cookie, is_structured) = (request.cookie, terms.has_structured_replies);
        match terms.check(&request) {
            Ok(Command::Disconnect) => return Ok(None),
            Ok(Command::Operation(Ask::Read)) => {
                let head = if is_structured {
                    Head::data(cookie, request.offset, request.length)
                } else {
                    Head::simple(cookie, None)
                };
                output.extend_from_slice(head.bytes());
                output.resize(output.len() + request.length as usize, 0);
            }
            Ok(Command::BlockStatus { .. }) => {
                output.extend_from_slice(Head::extents(cookie, 8).bytes());
                output.extend_from_slice(&request.length.to_be_bytes());
                output.extend_from_slice(&[0; 4]);
            }
            Ok(_) => output.extend_from_slice(Head::simple(cookie, None).bytes()),
            Err(failure) => {
                let errno = if failure.cause == Cause::NoSpace { Errno::NoSpace } else { Errno::Invalid };
                let (head, message) = if is_structured {
                    Head::error(cookie, errno, &failure.message)
                } else {
                    (Head::simple(cookie, Some(errno)), "")
                };
                output.extend_from_slice(head.bytes());
                output.extend_from_slice(message.as_bytes());
            }
        }
    }
    Ok(Some(used))
}

/// Chooses the export, and reads its last 4 KiB.
fn try_it() -> Outcome<()> {
    let (mut client, server) = UnixStream::pair()?;
    let server = thread::spawn(|| serve(server));
    // The greeting (fixed newstyle without zeroes), and the option GO with an empty name and no questions.
    client.read_exact(&mut [0; 18])?;
    let go = option(options::GO, &Inquiry { name: "", wanted: vec![] }.encode());
    client.write_all(&[&3_u32.to_be_bytes()[..], &go].concat())?;
    let mut kind = option_replies::INFO;
    while kind != option_replies::ACK {
        let mut head = [0; OptionReply::SIZE];
        client.read_exact(&mut head)?;
        let reply = OptionReply::decode(&head).map_err(|_| "no reply to an option")?;
        client.read_exact(&mut vec![0; reply.len as usize])?;
        kind = reply.kind;
    }
    let request = |kind, offset, length| Request { flags: 0, kind, cookie: 7, offset, length }.encode();
    client.write_all(&request(commands::READ, SIZE - 4096, 4096))?;
    let mut reply = [1; 16 + 4096];
    client.read_exact(&mut reply)?;
    let expected = [Head::simple(7, None).bytes(), &[0; 4096]].concat();
    assert_eq!(reply[..], expected, "a reply without an error, and zeroes");
    client.write_all(&request(commands::DISC, 0, 0))?;
    server.join().map_err(|_| "the server panicked")??;
    println!("the floor holds: 4096 bytes of zeroes");
    Ok(())
}
