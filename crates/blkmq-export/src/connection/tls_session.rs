//! The TLS session of a connection: encrypted bytes on the side of the socket, plain bytes on the side of the server.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::io::{Errno, read};
use rustls::{ServerConfig, ServerConnection};

use super::name::name_of;
use super::socket::{Fault, send};

/// The most encrypted bytes that one call takes from the socket, and the most that wait to be sent: four records.
const SIZE: usize = 64 << 10;

/// The encrypted bytes that came and are not decrypted yet.
struct Arrived {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Arrived {
    fn is_empty(&self) -> bool {
        self.start == self.end
    }
}

impl Read for Arrived {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let len = (&self.bytes[self.start..self.end]).read(target)?;
        self.start += len;
        Ok(len)
    }
}

/// The socket, as TLS writes to it.
struct Outlet<'a>(BorrowedFd<'a>);

impl Write for Outlet<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        Ok(send(self.0, slices)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A TLS session, which holds at most 64 KiB that came and are not decrypted, one record that is decrypted, and 64 KiB
/// that wait for the socket. Before the handshake is over, it also holds one handshake message, of at most 64 KiB.
pub(super) struct TlsSession {
    tls: ServerConnection,
    arrived: Arrived,
    /// How many encrypted bytes may still be taken from the socket, if that number was limited.
    left: Option<usize>,
    /// The client sends no more.
    has_ended: bool,
    /// The error, if there was one, which is returned when everything that was received before it has been taken.
    fault: Option<Fault>,
}

impl fmt::Debug for TlsSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsSession").field("has_ended", &self.has_ended).finish_non_exhaustive()
    }
}

impl TlsSession {
    pub(super) fn new(config: &Arc<ServerConfig>) -> Result<Self, Fault> {
        let mut tls = ServerConnection::new(Arc::clone(config)).map_err(Fault::Tls)?;
        tls.set_buffer_limit(Some(SIZE));
        let arrived = Arrived { bytes: vec![0; SIZE].into_boxed_slice(), start: 0, end: 0 };
        Ok(Self { tls, arrived, left: None, has_ended: false, fault: None })
    }

    pub(super) fn shake_hands(&mut self, socket: BorrowedFd<'_>) -> Result<bool, Fault> {
        self.flush(socket)?;
        if !self.tls.is_handshaking() {
            return Ok(true);
        }
        if self.arrived.is_empty() {
            self.fetch(socket)?;
        }
        if self.has_ended {
            return Err(Fault::System(Errno::CONNRESET));
        }
        if let Err(fault) = self.decrypt() {
            // What is flushed tells the client what is wrong, if the client listens.
            let _ = self.flush(socket);
            return Err(fault);
        }
        Ok(false)
    }

    pub(super) fn peer_name(&self) -> Option<String> {
        self.tls.peer_certificates()?.first().and_then(name_of)
    }

    pub(super) fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        slices: &mut [IoSliceMut<'_>],
    ) -> Result<(usize, bool), Fault> {
        let len: usize = slices.iter().map(|slice| slice.len()).sum();
        let mut all = 0;
        // The library ends a TLS session that sends many records without data in a row, so this loop ends.
        loop {
            all += self.take_out(slices, all);
            // Bytes that are already decrypted do not make the socket readable. There may be more of them if there was
            // no room.
            if all == len || self.has_ended {
                return Ok((all, false));
            }
            match self.fault.take() {
                Some(fault) if all == 0 => return Err(fault),
                Some(fault) => {
                    self.fault = Some(fault);
                    return Ok((all, false));
                }
                None => (),
            }
            let step = if self.arrived.is_empty() { self.fetch(socket) } else { self.decrypt() };
            match step {
                Ok(()) => (),
                Err(Fault::System(Errno::AGAIN)) if all > 0 => return Ok((all, true)),
                Err(fault) => self.fault = Some(fault),
            }
        }
    }

    /// Moves decrypted bytes to the slices, whose first `skip` bytes are filled already. Returns how many bytes.
    fn take_out(&mut self, slices: &mut [IoSliceMut<'_>], mut skip: usize) -> usize {
        let mut taken = 0;
        for slice in slices {
            let skipped = skip.min(slice.len());
            skip -= skipped;
            let mut rest = &mut slice[skipped..];
            while !rest.is_empty() {
                match self.tls.reader().read(rest) {
                    Ok(len) if len > 0 => {
                        taken += len;
                        rest = &mut rest[len..];
                    }
                    // There are no more bytes, or there never will be. `fetch` finds out which.
                    _ => return taken,
                }
            }
        }
        taken
    }

    /// Takes from the socket what one call returns. Nothing may be left of the last call.
    fn fetch(&mut self, socket: BorrowedFd<'_>) -> Result<(), Fault> {
        let most = self.left.map_or(SIZE, |left| left.min(SIZE));
        if most == 0 {
            return Err(Fault::System(Errno::AGAIN));
        }
        let len = read(socket, &mut self.arrived.bytes[..most])?;
        (self.arrived.start, self.arrived.end) = (0, len);
        if let Some(left) = &mut self.left {
            *left -= len;
        }
        // A client that ends without the message of TLS for that is treated like one without TLS. A request that was
        // cut off is not done. If the client waits for its answers, it has got the answers of all whole requests.
        self.has_ended |= len == 0;
        Ok(())
    }

    /// Decrypts a piece of what was fetched. Everything that was decrypted before has been taken out.
    fn decrypt(&mut self) -> Result<(), Fault> {
        self.tls.read_tls(&mut self.arrived).map_err(|error| Fault::Tls(general(&error)))?;
        let state = self.tls.process_new_packets().map_err(Fault::Tls)?;
        self.has_ended |= state.peer_has_closed();
        Ok(())
    }

    pub(super) fn send(&mut self, socket: BorrowedFd<'_>, slices: &[IoSlice<'_>]) -> Result<usize, Fault> {
        self.flush(socket)?;
        let sent = self.tls.writer().write_vectored(slices).map_err(|error| Fault::Tls(general(&error)))?;
        match self.flush(socket) {
            // The rest stays in memory, and the next call begins with it.
            Ok(()) | Err(Fault::System(Errno::AGAIN | Errno::INTR)) => Ok(sent),
            Err(fault) => Err(fault),
        }
    }

    pub(super) fn wants_write(&self) -> bool {
        self.tls.wants_write()
    }

    /// Takes no more than this many bytes from the socket from now on.
    pub(super) fn limit(&mut self, most: usize) {
        self.left = Some(most);
    }

    pub(super) fn close(&mut self, socket: BorrowedFd<'_>) -> Result<(), Fault> {
        self.tls.send_close_notify();
        self.flush(socket)
    }

    /// Hands the socket what TLS has for it. Unless there is an error, that is everything.
    fn flush(&mut self, socket: BorrowedFd<'_>) -> Result<(), Fault> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut Outlet(socket)).map_err(|error| match Errno::from_io_error(&error) {
                Some(errno) => Fault::System(errno),
                None => Fault::Tls(general(&error)),
            })?;
        }
        Ok(())
    }
}

/// Returns the library's own error within one of the system's type.
fn general(error: &io::Error) -> rustls::Error {
    let own = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    own.cloned().unwrap_or_else(|| rustls::Error::General(error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use rustls::crypto::ring::default_provider;
    use rustls::{ClientConfig, ClientConnection, RootCertStore};

    use super::*;

    /// Both ends of a TLS session whose handshake is over.
    fn pair() -> (TlsSession, UnixStream, ClientConnection, UnixStream) {
        let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = own.signing_key.serialize_der().try_into().unwrap();
        let builder = ServerConfig::builder_with_provider(Arc::new(default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let config = builder.with_single_cert(vec![own.cert.der().clone()], key).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(own.cert.der().clone()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
        let name = "localhost".try_into().unwrap();
        let mut client = ClientConnection::new(Arc::new(builder.with_no_client_auth()), name).unwrap();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        [&ours, &theirs].into_iter().for_each(|socket| socket.set_nonblocking(true).unwrap());
        let mut tls_session = TlsSession::new(&Arc::new(config)).unwrap();
        loop {
            let is_done = match tls_session.shake_hands(ours.as_fd()) {
                Err(Fault::System(Errno::AGAIN)) => false,
                step => step.unwrap(),
            };
            while client.wants_write() {
                client.write_tls(&mut theirs).unwrap();
            }
            if is_done && !client.is_handshaking() {
                return (tls_session, ours, client, theirs);
            }
            if client.read_tls(&mut theirs).is_ok() {
                client.process_new_packets().unwrap();
            }
        }
    }

    fn say(client: &mut ClientConnection, socket: &mut UnixStream, text: &[u8]) {
        client.writer().write_all(text).unwrap();
        while client.wants_write() {
            client.write_tls(socket).unwrap();
        }
    }

    fn heard(tls_session: &mut TlsSession, socket: &UnixStream, most: usize) -> Result<(Vec<u8>, bool), Errno> {
        let mut bytes = vec![0; most];
        let (first, second) = bytes.split_at_mut(most / 2);
        let mut slices = [IoSliceMut::new(first), IoSliceMut::new(second)];
        match tls_session.receive(socket.as_fd(), &mut slices) {
            Ok((len, is_short)) => {
                bytes.truncate(len);
                Ok((bytes, is_short))
            }
            Err(Fault::System(error)) => Err(error),
            Err(fault) => panic!("{fault}"),
        }
    }

    #[test]
    fn bytes_are_short_only_when_the_socket_is_empty_and_nothing_is_left_decrypted() {
        let (mut tls_session, ours, mut client, mut theirs) = pair();
        assert_eq!(heard(&mut tls_session, &ours, 8), Err(Errno::AGAIN));
        say(&mut client, &mut theirs, b"12345678901234567890");
        assert_eq!(heard(&mut tls_session, &ours, 8), Ok((b"12345678".to_vec(), false)));
        say(&mut client, &mut theirs, b"abc");
        assert_eq!(heard(&mut tls_session, &ours, 14), Ok((b"901234567890ab".to_vec(), false)));
        assert_eq!(heard(&mut tls_session, &ours, 8), Ok((b"c".to_vec(), true)));
        assert_eq!(heard(&mut tls_session, &ours, 8), Err(Errno::AGAIN));
    }

    #[test]
    fn what_fails_after_bytes_fails_when_these_were_taken() {
        let (mut tls_session, ours, mut client, mut theirs) = pair();
        say(&mut client, &mut theirs, b"abc");
        theirs.write_all(&[0xff; 100]).unwrap();
        assert_eq!(heard(&mut tls_session, &ours, 8), Ok((b"abc".to_vec(), false)));
        assert!(matches!(tls_session.receive(ours.as_fd(), &mut [IoSliceMut::new(&mut [0])]), Err(Fault::Tls(_))));
    }

    #[test]
    fn what_comes_after_a_limit_is_left_where_it_is() {
        let (mut tls_session, ours, mut client, mut theirs) = pair();
        say(&mut client, &mut theirs, b"abc");
        tls_session.limit(rustix::io::ioctl_fionread(&ours).unwrap() as usize);
        say(&mut client, &mut theirs, b"def");
        assert_eq!(heard(&mut tls_session, &ours, 8), Ok((b"abc".to_vec(), true)));
        assert_eq!(heard(&mut tls_session, &ours, 8), Err(Errno::AGAIN));
    }
}
