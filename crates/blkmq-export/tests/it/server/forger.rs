//! A TLS client that sends records as no library would.

use std::io::{Result, Write};
use std::os::unix::net::UnixStream;

use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use rustls::{ClientConnection, ConnectionTrafficSecrets, ProtocolVersion, StreamOwned};

/// The types of the records in a TLS session.
pub(crate) const HANDSHAKE: u8 = 22;
pub(crate) const DATA: u8 = 23;

/// Sends and receives the records of a TLS session from here on.
pub(crate) struct Forger {
    pub(crate) socket: UnixStream,
    key: LessSafeKey,
    iv: [u8; 12],
    sequence: u64,
    version: ProtocolVersion,
}

impl Forger {
    /// Takes over from the library, whose handshake is over.
    pub(crate) fn take_over(stream: StreamOwned<ClientConnection, UnixStream>) -> Self {
        let (tls_session, socket) = stream.into_parts();
        let version = tls_session.protocol_version().expect("the handshake is over");
        let (sequence, secrets) = tls_session.dangerous_extract_secrets().expect("that was allowed").tx;
        let (algorithm, key, iv) = match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => panic!("a cipher that this client does not know"),
        };
        let key = LessSafeKey::new(UnboundKey::new(algorithm, key.as_ref()).expect("the key is that long"));
        let iv = iv.as_ref().try_into().expect("they all have 12 bytes");
        Self { socket, key, iv, sequence, version }
    }

    /// Sends records of these types and contents in one piece.
    pub(crate) fn send(&mut self, records: &[(u8, &[u8])]) -> Result<()> {
        let bytes: Vec<u8> = records.iter().flat_map(|(kind, content)| self.record(*kind, content)).collect();
        self.socket.write_all(&bytes)
    }

    fn record(&mut self, kind: u8, content: &[u8]) -> Vec<u8> {
        let sequence = self.sequence.to_be_bytes();
        self.sequence += 1;
        let mut nonce = self.iv;
        nonce[4..].iter_mut().zip(sequence).for_each(|(byte, other)| *byte ^= other);
        let is_new = self.version == ProtocolVersion::TLSv1_3;
        let tag = self.key.algorithm().tag_len();
        let mut sealed = content.to_vec();
        // Version 1.3 hides the type after the content. In earlier versions, AES has eight bytes of its nonce before
        // the content.
        let (outer, explicit, aad) = if is_new {
            sealed.push(kind);
            let head = [&[DATA, 3, 3][..], &((sealed.len() + tag) as u16).to_be_bytes()].concat();
            (DATA, Vec::new(), head)
        } else {
            let has_explicit = self.key.algorithm() != &CHACHA20_POLY1305;
            let explicit = if has_explicit { nonce[4..].to_vec() } else { Vec::new() };
            let head = [&sequence[..], &[kind, 3, 3], &(content.len() as u16).to_be_bytes()].concat();
            (kind, explicit, head)
        };
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.key.seal_in_place_append_tag(nonce, Aad::from(aad), &mut sealed).expect("it is short enough");
        let length = (explicit.len() + sealed.len()) as u16;
        [&[outer, 3, 3][..], &length.to_be_bytes(), &explicit, &sealed].concat()
    }
}
