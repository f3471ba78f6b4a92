//! Headers of fixed size: values on one side, bytes in network byte order on the other. No I/O.

use crate::{
    INIT_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, REQUEST_MAGIC, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, commands,
};

/// Defines headers: each a magic number, and the fields behind it in the order of the wire.
macro_rules! headers {
    ($($(#[$doc:meta])* $name:ident($magic:ident: $number:ty) { $($(#[$about:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name {
            $($(#[$about])* pub $field: $type,)*
        }

        impl $name {
            /// Bytes of the header.
            pub const SIZE: usize = size_of::<$number>() $(+ size_of::<$type>())*;

            /// Returns the header as it is sent.
            #[inline]
            #[must_use]
            pub fn encode(&self) -> [u8; Self::SIZE] {
                let mut bytes = [0; Self::SIZE];
                let (magic, rest) = bytes.split_at_mut(size_of::<$number>());
                magic.copy_from_slice(&$magic.to_be_bytes());
                $(let (field, rest) = rest.split_at_mut(size_of::<$type>());
                field.copy_from_slice(&self.$field.to_be_bytes());)*
                debug_assert!(rest.is_empty(), "the fields fill the header");
                bytes
            }

            /// Reads a header.
            ///
            /// # Errors
            /// The bytes do not begin with the magic number, but with this one. The bytes behind them have no meaning.
            #[inline]
            pub fn decode(bytes: &[u8; Self::SIZE]) -> Result<Self, $number> {
                let mut rest = &bytes[..];
                let magic = <$number>::from_be_bytes(take(&mut rest));
                if magic != $magic {
                    return Err(magic);
                }
                Ok(Self { $($field: <$type>::from_be_bytes(take(&mut rest)),)* })
            }
        }
    )*};
}

/// Takes the first bytes of a header.
#[inline]
fn take<const N: usize>(bytes: &mut &[u8]) -> [u8; N] {
    let (first, rest) = bytes.split_first_chunk().expect("a header is as long as its fields");
    *bytes = rest;
    *first
}

/// The magic numbers of a greeting.
const GREETING_MAGIC: u128 = (INIT_MAGIC as u128) << 64 | OPTION_MAGIC as u128;

headers! {
    /// The server's first bytes. Section "Newstyle negotiation".
    Greeting(GREETING_MAGIC: u128) {
        /// Bits of [`handshake`](crate::handshake).
        flags: u16,
    }

    /// The bytes before the data of an option. Section "Newstyle negotiation".
    OptionHead(OPTION_MAGIC: u64) {
        /// One of [`options`](crate::options), or an unknown number.
        option: u32,
        /// Bytes of data that follow.
        len: u32,
    }

    /// The bytes before the data of a reply to an option. Section "Fixed newstyle negotiation".
    OptionReply(OPTION_REPLY_MAGIC: u64) {
        /// The option that is answered.
        option: u32,
        /// One of [`option_replies`](crate::option_replies), or an unknown number.
        kind: u32,
        /// Bytes of data that follow.
        len: u32,
    }

    /// A request without its data. Section "Request message".
    Request(REQUEST_MAGIC: u32) {
        /// Bits of [`command_flags`](crate::command_flags).
        flags: u16,
        /// One of [`commands`], or an unknown number.
        kind: u16,
        /// The client's own number for the request.
        cookie: u64,
        /// First byte.
        offset: u64,
        /// Length in bytes.
        length: u32,
    }

    /// A simple reply without its data. Section "Simple reply message".
    SimpleReply(SIMPLE_REPLY_MAGIC: u32) {
        /// An [`Errno`](crate::Errno), or an unknown number; 0 for success.
        errno: u32,
        /// The cookie of the request that is answered.
        cookie: u64,
    }

    /// The bytes before the payload of a chunk of a structured reply. Section "Structured reply chunk message".
    Chunk(STRUCTURED_REPLY_MAGIC: u32) {
        /// [`FLAG_DONE`](crate::chunks::FLAG_DONE), or 0.
        flags: u16,
        /// One of [`chunks`](crate::chunks), or an unknown number.
        kind: u16,
        /// The cookie of the request that is answered.
        cookie: u64,
        /// Bytes of payload that follow.
        len: u32,
    }
}

impl Request {
    /// Returns the number of bytes of data that follow the request, whether the request is valid or not.
    #[must_use]
    pub const fn payload(&self) -> u32 {
        if self.kind == commands::WRITE { self.length } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if a field lies elsewhere, is in another byte order, or is read from another place than it is written to.
    #[test]
    fn headers_are_the_bytes_of_the_protocol() {
        let request = Request { flags: 0x102, kind: 0x304, cookie: 5, offset: 0x600, length: 0x7_0000 };
        let bytes = b"\x25\x60\x95\x13\x01\x02\x03\x04\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\x06\0\0\x07\0\0";
        assert_eq!((request.encode(), Request::decode(bytes)), (*bytes, Ok(request)));
        let reply = SimpleReply { errno: 28, cookie: 0x102_0304_0506_0708 };
        let bytes = b"\x67\x44\x66\x98\0\0\0\x1c\x01\x02\x03\x04\x05\x06\x07\x08";
        assert_eq!((reply.encode(), SimpleReply::decode(bytes)), (*bytes, Ok(reply)));
        let chunk = Chunk { flags: 1, kind: 0x8001, cookie: 2, len: 0x300 };
        let bytes = b"\x66\x8e\x33\xef\0\x01\x80\x01\0\0\0\0\0\0\0\x02\0\0\x03\0";
        assert_eq!((chunk.encode(), Chunk::decode(bytes)), (*bytes, Ok(chunk)));
        let greeting = Greeting { flags: 3 };
        let bytes = b"NBDMAGICIHAVEOPT\0\x03";
        assert_eq!((greeting.encode(), Greeting::decode(bytes)), (*bytes, Ok(greeting)));
        let option = OptionHead { option: 7, len: 0x100 };
        let bytes = b"IHAVEOPT\0\0\0\x07\0\0\x01\0";
        assert_eq!((option.encode(), OptionHead::decode(bytes)), (*bytes, Ok(option)));
        let reply = OptionReply { option: 7, kind: 0x8000_0001, len: 2 };
        let bytes = b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\x80\0\0\x01\0\0\0\x02";
        assert_eq!((reply.encode(), OptionReply::decode(bytes)), (*bytes, Ok(reply)));
    }

    /// Red if bytes without the magic number are a header, or if the error does not tell what stands in its place.
    #[test]
    fn a_header_begins_with_its_magic_number() {
        assert_eq!(SimpleReply::decode(&[1; SimpleReply::SIZE]), Err(0x0101_0101));
        assert_eq!(Request::decode(&[0; Request::SIZE]), Err(0));
        assert_eq!(OptionHead::decode(b"NBDMAGIC\0\0\0\x07\0\0\0\0"), Err(INIT_MAGIC));
    }

    #[test]
    fn only_a_write_is_followed_by_data() {
        let request = |kind| Request { flags: 0, kind, cookie: 0, offset: 0, length: 512 };
        let with_data = (0..9).filter(|kind| request(*kind).payload() > 0);
        assert_eq!(with_data.collect::<Vec<_>>(), [commands::WRITE]);
    }
}
