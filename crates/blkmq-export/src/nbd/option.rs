//! The data of an option: numbers and strings, one after the other.

use super::MAX_STRING;

/// The part of an option's data that has not been read yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields<'a>(&'a [u8]);

/// What an option asks about one export.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Inquiry<'a> {
    pub(super) name: &'a str,
    /// The kinds of information that the client wants.
    pub(super) wanted: Vec<u16>,
}

/// What an option asks about metadata contexts of one export.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ContextQuery<'a> {
    pub(super) name: &'a str,
    pub(super) queries: Vec<&'a str>,
}

impl<'a> Fields<'a> {
    pub(super) const fn new(data: &'a [u8]) -> Self {
        Self(data)
    }

    fn u16(&mut self) -> Option<u16> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u16::from_be_bytes(*field))
    }

    fn u32(&mut self) -> Option<u32> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_be_bytes(*field))
    }

    /// A length, and a text of that many bytes in UTF-8.
    fn string(&mut self) -> Option<&'a str> {
        let len = usize::try_from(self.u32()?).ok().filter(|len| *len <= MAX_STRING)?;
        let (field, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        std::str::from_utf8(field).ok()
    }

    /// All data of `INFO` and `GO`.
    pub(super) fn inquiry(mut self) -> Option<Inquiry<'a>> {
        let name = self.string()?;
        let count = self.u16()?;
        let wanted = (0..count).map(|_| self.u16()).collect::<Option<_>>()?;
        self.0.is_empty().then_some(Inquiry { name, wanted })
    }

    /// All data of `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
    pub(super) fn context_query(mut self) -> Option<ContextQuery<'a>> {
        let name = self.string()?;
        let count = self.u32()?;
        // A count that is too large ends at the end of the data. No memory is taken for it in advance.
        let mut queries = Vec::new();
        for _ in 0..count {
            queries.push(self.string()?);
        }
        self.0.is_empty().then_some(ContextQuery { name, queries })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inquiry_is_read_whole_or_not_at_all() {
        let data = [0, 0, 0, 2, b'a', b'b', 0, 2, 0, 3, 0, 1];
        let expected = Inquiry { name: "ab", wanted: vec![3, 1] };
        assert_eq!(Fields::new(&data).inquiry(), Some(expected));
        for len in 0..data.len() {
            assert_eq!(Fields::new(&data[..len]).inquiry(), None, "{len}");
        }
        assert_eq!(Fields::new(&[&data[..], &[0]].concat()).inquiry(), None);
        assert_eq!(Fields::new(&[0, 0, 0, 1, 0xff, 0, 0]).inquiry(), None, "that is not UTF-8");
        assert_eq!(Fields::new(&[0xff, 0xff, 0xff, 0xff, 0, 0]).inquiry(), None);
    }

    #[test]
    fn queries_are_read_whole_or_not_at_all() {
        let data = [0, 0, 0, 1, b'e', 0, 0, 0, 2, 0, 0, 0, 1, b'q', 0, 0, 0, 0];
        let expected = ContextQuery { name: "e", queries: vec!["q", ""] };
        assert_eq!(Fields::new(&data).context_query(), Some(expected));
        for len in 0..data.len() {
            assert_eq!(Fields::new(&data[..len]).context_query(), None, "{len}");
        }
        assert_eq!(Fields::new(&[0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]).context_query(), None);
    }

    #[test]
    fn a_string_is_at_most_so_long() {
        let inquiry = |len: usize| {
            let data = [&(len as u32).to_be_bytes()[..], &vec![b'x'; len], &[0, 0]].concat();
            Fields::new(&data).inquiry().is_some()
        };
        assert!(inquiry(MAX_STRING) && !inquiry(MAX_STRING + 1));
    }
}
