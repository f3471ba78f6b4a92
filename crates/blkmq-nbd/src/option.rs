//! The data of options, and of replies that describe an export: numbers and strings, one after the other.

use crate::{MAX_STRING, OptionHead, OptionReply, info};

/// Returns an option as it is sent: its head and its data.
#[must_use]
pub fn option(option: u32, data: &[u8]) -> Vec<u8> {
    [&OptionHead { option, len: data.len() as u32 }.encode(), data].concat()
}

/// Returns a reply to an option as it is sent: its head and its data.
#[must_use]
pub fn option_reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    [&OptionReply { option, kind, len: data.len() as u32 }.encode(), data].concat()
}

/// The data of `INFO` and `GO`. Section "Option types".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inquiry<'a> {
    /// The export's name.
    pub name: &'a str,
    /// The kinds of [`info`] that the client wants.
    pub wanted: Vec<u16>,
}

impl<'a> Inquiry<'a> {
    /// Returns the data as it is sent.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = string(self.name);
        bytes.extend((self.wanted.len() as u16).to_be_bytes());
        bytes.extend(self.wanted.iter().flat_map(|kind| kind.to_be_bytes()));
        bytes
    }

    /// Reads the data. `None` if it is not such data as a whole, or a string is longer than [`MAX_STRING`].
    #[must_use]
    pub fn decode(data: &'a [u8]) -> Option<Self> {
        let mut fields = Fields(data);
        let name = fields.string()?;
        let count = fields.array().map(u16::from_be_bytes)?;
        let wanted = (0..count).map(|_| fields.array().map(u16::from_be_bytes)).collect::<Option<_>>()?;
        fields.0.is_empty().then_some(Self { name, wanted })
    }
}

/// The data of `LIST_META_CONTEXT` and `SET_META_CONTEXT`. Section "Option types".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContextQuery<'a> {
    /// The export's name.
    pub name: &'a str,
    /// Names of contexts, or of groups of them.
    pub queries: Vec<&'a str>,
}

impl<'a> ContextQuery<'a> {
    /// Reads the data. `None` if it is not such data as a whole, or a string is longer than [`MAX_STRING`].
    #[must_use]
    pub fn decode(data: &'a [u8]) -> Option<Self> {
        let mut fields = Fields(data);
        let name = fields.string()?;
        let count = fields.array().map(u32::from_be_bytes)?;
        // A count that is too large ends at the end of the data. No memory is taken for it in advance.
        let mut queries = Vec::new();
        for _ in 0..count {
            queries.push(fields.string()?);
        }
        fields.0.is_empty().then_some(Self { name, queries })
    }
}

/// The data of a reply of the kind [`INFO`](crate::option_replies::INFO). Section "Option reply types".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Info<'a> {
    /// What the export is like.
    Export {
        /// Size in bytes.
        size: u64,
        /// Bits of [`transmission`](crate::transmission).
        flags: u16,
    },
    /// The export's name.
    Name(&'a str),
    /// A description for people.
    Description(&'a str),
    /// The sizes of requests, in bytes. Section "Block size constraints".
    BlockSize {
        /// Requests begin and end at multiples of it.
        minimum: u32,
        /// The best one.
        preferred: u32,
        /// The longest read or write.
        maximum: u32,
    },
}

impl<'a> Info<'a> {
    /// Returns the data as it is sent.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let of = |kind: u16, data: &[u8]| [&kind.to_be_bytes(), data].concat();
        match *self {
            Self::Export { size, flags } => of(info::EXPORT, &[&size.to_be_bytes()[..], &flags.to_be_bytes()].concat()),
            Self::Name(name) => of(info::NAME, name.as_bytes()),
            Self::Description(text) => of(info::DESCRIPTION, text.as_bytes()),
            Self::BlockSize { minimum, preferred, maximum } => {
                of(info::BLOCK_SIZE, [minimum, preferred, maximum].map(u32::to_be_bytes).as_flattened())
            }
        }
    }

    /// Reads the data. `None` if its kind is unknown, or it is not such data as a whole.
    #[must_use]
    pub fn decode(data: &'a [u8]) -> Option<Self> {
        let mut fields = Fields(data);
        let decoded = match fields.array().map(u16::from_be_bytes)? {
            info::EXPORT => Self::Export {
                size: fields.array().map(u64::from_be_bytes)?,
                flags: fields.array().map(u16::from_be_bytes)?,
            },
            info::NAME => Self::Name(fields.text(fields.0.len())?),
            info::DESCRIPTION => Self::Description(fields.text(fields.0.len())?),
            info::BLOCK_SIZE => Self::BlockSize {
                minimum: fields.array().map(u32::from_be_bytes)?,
                preferred: fields.array().map(u32::from_be_bytes)?,
                maximum: fields.array().map(u32::from_be_bytes)?,
            },
            _ => return None,
        };
        fields.0.is_empty().then_some(decoded)
    }
}

/// Returns a string with its length before it.
#[must_use]
pub fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat()
}

/// The part of the data that has not been read yet.
#[derive(Debug)]
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }

    /// Returns a length, and a text of that many bytes in UTF-8.
    fn string(&mut self) -> Option<&'a str> {
        let len = self.array().map(u32::from_be_bytes)? as usize;
        self.text(len)
    }

    fn text(&mut self, len: usize) -> Option<&'a str> {
        let (field, rest) = self.0.split_at_checked(len).filter(|_| len <= MAX_STRING)?;
        self.0 = rest;
        std::str::from_utf8(field).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inquiry_is_read_whole_or_not_at_all() {
        let data = [0, 0, 0, 2, b'a', b'b', 0, 2, 0, 3, 0, 1];
        let expected = Inquiry { name: "ab", wanted: vec![3, 1] };
        assert_eq!(expected.encode(), data);
        assert_eq!(Inquiry::decode(&data), Some(expected));
        for len in 0..data.len() {
            assert_eq!(Inquiry::decode(&data[..len]), None, "{len}");
        }
        assert_eq!(Inquiry::decode(&[&data[..], &[0]].concat()), None);
        assert_eq!(Inquiry::decode(&[0, 0, 0, 1, 0xff, 0, 0]), None, "that is not UTF-8");
        assert_eq!(Inquiry::decode(&[0xff, 0xff, 0xff, 0xff, 0, 0]), None);
    }

    #[test]
    fn queries_are_read_whole_or_not_at_all() {
        let data = [0, 0, 0, 1, b'e', 0, 0, 0, 2, 0, 0, 0, 1, b'q', 0, 0, 0, 0];
        let expected = ContextQuery { name: "e", queries: vec!["q", ""] };
        assert_eq!(ContextQuery::decode(&data), Some(expected));
        for len in 0..data.len() {
            assert_eq!(ContextQuery::decode(&data[..len]), None, "{len}");
        }
        assert_eq!(ContextQuery::decode(&[0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]), None);
    }

    /// Red if a field is left out, lies elsewhere, or if bytes behind the data are taken.
    #[test]
    fn information_is_read_whole_or_not_at_all() {
        for (known, data) in [
            (Info::Export { size: 0x100, flags: 5 }, &b"\0\0\0\0\0\0\0\0\x01\0\0\x05"[..]),
            (Info::Name("a"), b"\0\x01a"),
            (Info::Description("d e"), b"\0\x02d e"),
            (Info::BlockSize { minimum: 1, preferred: 0x1000, maximum: 2 }, b"\0\x03\0\0\0\x01\0\0\x10\0\0\0\0\x02"),
        ] {
            assert_eq!((&known.encode()[..], Info::decode(data)), (data, Some(known)));
            assert_ne!(Info::decode(&data[..data.len() - 1]), Some(known));
            assert_ne!(Info::decode(&[data, &[0]].concat()), Some(known));
        }
        assert_eq!((Info::decode(&[0]), Info::decode(&[0, 9])), (None, None));
    }

    #[test]
    fn a_string_is_at_most_so_long() {
        let is_inquiry =
            |len: usize| Inquiry::decode(&Inquiry { name: &"x".repeat(len), wanted: vec![] }.encode()).is_some();
        assert!(is_inquiry(MAX_STRING) && !is_inquiry(MAX_STRING + 1));
    }
}
