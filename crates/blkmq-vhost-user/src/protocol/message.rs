//! Messages of the front-end, parsed. Whatever bytes come, each becomes a message or an error.

use crate::memory::RegionInfo;

/// Bytes of a message's header.
pub(crate) const HEADER: usize = 12;
/// The most bytes of a message's body.
pub(crate) const MAX_BODY: usize = 4096;
/// The most descriptors that come with a message.
pub(crate) const MAX_FILES: usize = 8;

const VERSION: u32 = 1;
const VERSION_BITS: u32 = 3;
const IS_REPLY: u32 = 4;
const WANTS_REPLY: u32 = 8;
/// Of the number of a ring: no descriptor comes with it.
const NO_FILE: u64 = 1 << 8;
const RING_BITS: u64 = 0xff;

/// The messages of a front-end that are known here, by their numbers in the standard.
mod code {
    pub(super) const GET_FEATURES: u32 = 1;
    pub(super) const SET_FEATURES: u32 = 2;
    pub(super) const SET_OWNER: u32 = 3;
    pub(super) const RESET_OWNER: u32 = 4;
    pub(super) const SET_MEM_TABLE: u32 = 5;
    pub(super) const SET_VRING_NUM: u32 = 8;
    pub(super) const SET_VRING_ADDR: u32 = 9;
    pub(super) const SET_VRING_BASE: u32 = 10;
    pub(super) const GET_VRING_BASE: u32 = 11;
    pub(super) const SET_VRING_KICK: u32 = 12;
    pub(super) const SET_VRING_CALL: u32 = 13;
    pub(super) const SET_VRING_ERR: u32 = 14;
    pub(super) const GET_PROTOCOL_FEATURES: u32 = 15;
    pub(super) const SET_PROTOCOL_FEATURES: u32 = 16;
    pub(super) const GET_QUEUE_NUM: u32 = 17;
    pub(super) const SET_VRING_ENABLE: u32 = 18;
    pub(super) const SET_BACKEND_REQ_FD: u32 = 21;
    pub(super) const GET_CONFIG: u32 = 24;
    pub(super) const SET_CONFIG: u32 = 25;
    pub(super) const GET_INFLIGHT_FD: u32 = 31;
    pub(super) const SET_INFLIGHT_FD: u32 = 32;
    pub(super) const RESET_DEVICE: u32 = 34;
    pub(super) const GET_MAX_MEM_SLOTS: u32 = 36;
    pub(super) const ADD_MEM_REG: u32 = 37;
    pub(super) const REM_MEM_REG: u32 = 38;
}

/// What is known of the operations in progress, as the front-end keeps it for the next server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InflightInfo {
    pub(crate) len: u64,
    pub(crate) offset: u64,
    pub(crate) nr_queues: u16,
    pub(crate) size: u16,
}

impl InflightInfo {
    /// As they stand in a message.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let Self { len, offset, nr_queues, size } = self;
        [len.to_le_bytes(), offset.to_le_bytes()]
            .into_iter()
            .flatten()
            .chain([nr_queues.to_le_bytes(), size.to_le_bytes()].into_iter().flatten())
            .collect()
    }
}

/// A message of the front-end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Message {
    GetFeatures,
    SetFeatures(u64),
    SetOwner,
    ResetOwner,
    SetMemory(Vec<RegionInfo>),
    SetRingSize { ring: u32, size: u32 },
    SetRingPlace { ring: u32, flags: u32, descriptors: u64, used: u64, available: u64 },
    SetRingBase { ring: u32, base: u32 },
    GetRingBase { ring: u32 },
    SetKick { ring: u32, has_file: bool },
    SetCall { ring: u32, has_file: bool },
    SetError { ring: u32, has_file: bool },
    GetProtocolFeatures,
    SetProtocolFeatures(u64),
    GetNrQueues,
    EnableRing { ring: u32, is_enabled: bool },
    SetBackendChannel,
    GetConfig { offset: u32, len: u32, flags: u32 },
    SetConfig { offset: u32, bytes: Vec<u8> },
    GetInflight(InflightInfo),
    SetInflight(InflightInfo),
    ResetDevice,
    GetMaxRegions,
    AddRegion(RegionInfo),
    RemoveRegion(RegionInfo),
}

/// Why bytes are no message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MessageError {
    /// The version, or a reply to nothing.
    #[error("a message with the flags {0:#x}")]
    Flags(u32),
    /// The body's length.
    #[error("message {code} with {len} bytes")]
    Length { code: u32, len: usize },
    /// A message that is not known here.
    #[error("message {0}, which is not known here")]
    Unknown(u32),
    #[error("a table of {0} regions of memory")]
    Regions(u32),
    /// The number of descriptors beside the message.
    #[error("message {code} with {nr} descriptors")]
    Files { code: u32, nr: usize },
}

/// The header of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) code: u32,
    flags: u32,
    pub(crate) len: usize,
}

impl Header {
    pub(crate) fn parse(bytes: &[u8; HEADER]) -> Result<Self, MessageError> {
        let mut reader = Reader(bytes);
        let (code, flags, len) = (reader.word(), reader.word(), reader.word() as usize);
        if flags & VERSION_BITS != VERSION || flags & IS_REPLY != 0 {
            return Err(MessageError::Flags(flags));
        }
        if len > MAX_BODY {
            return Err(MessageError::Length { code, len });
        }
        Ok(Self { code, flags, len })
    }

    /// Whether the front-end wants to know how it went, if that was agreed on.
    pub(crate) fn wants_reply(&self) -> bool {
        self.flags & WANTS_REPLY != 0
    }

    /// The answer with this body.
    pub(crate) fn reply(&self, body: &[u8]) -> Vec<u8> {
        frame(self.code, VERSION | IS_REPLY, body)
    }
}

/// A message to the front-end: its configuration has changed.
pub(crate) fn config_change() -> Vec<u8> {
    const CONFIG_CHANGE_MSG: u32 = 2;
    frame(CONFIG_CHANGE_MSG, VERSION, &[])
}

fn frame(code: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + body.len());
    for word in [code, flags, body.len() as u32] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(body);
    bytes
}

/// Reads numbers from the front of bytes that are known to be as many.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (first, rest) = self.0.split_first_chunk().expect("the length was checked");
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn long(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    fn short(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    fn region(&mut self) -> RegionInfo {
        let (guest, len, user, offset) = (self.long(), self.long(), self.long(), self.long());
        RegionInfo { guest, len, user, offset }
    }

    fn inflight(&mut self) -> InflightInfo {
        let (len, offset) = (self.long(), self.long());
        InflightInfo { len, offset, nr_queues: self.short(), size: self.short() }
    }
}

/// The most regions of a table that comes in one message.
const MAX_TABLE: u32 = MAX_FILES as u32;
const REGION: usize = 32;
const CONFIG: usize = 12;

impl Message {
    /// A message, from its body, beside which so many descriptors came.
    pub(crate) fn parse(code: u32, body: &[u8], nr_files: usize) -> Result<Self, MessageError> {
        let length = MessageError::Length { code, len: body.len() };
        let exactly = |len: usize| if body.len() == len { Ok(Reader(body)) } else { Err(length.clone()) };
        let at_least = |len: usize| if body.len() >= len { Ok(Reader(body)) } else { Err(length.clone()) };
        let files = |nr: usize| if nr_files == nr { Ok(()) } else { Err(MessageError::Files { code, nr: nr_files }) };
        // A ring's number, and whether its descriptor comes with it.
        let ring_file = || {
            let value = exactly(8)?.long();
            let has_file = value & NO_FILE == 0;
            files(usize::from(has_file))?;
            Ok(((value & RING_BITS) as u32, has_file))
        };
        let message = match code {
            code::GET_FEATURES => exactly(0).map(|_| Self::GetFeatures)?,
            code::SET_FEATURES => Self::SetFeatures(exactly(8)?.long()),
            code::SET_OWNER => exactly(0).map(|_| Self::SetOwner)?,
            code::RESET_OWNER => exactly(0).map(|_| Self::ResetOwner)?,
            code::SET_MEM_TABLE => {
                let mut reader = at_least(8)?;
                let (nr, _) = (reader.word(), reader.word());
                if nr > MAX_TABLE {
                    return Err(MessageError::Regions(nr));
                }
                // A body that is longer than its regions is no fault.
                if reader.0.len() < nr as usize * REGION {
                    return Err(length);
                }
                files(nr as usize)?;
                return Ok(Self::SetMemory((0..nr).map(|_| reader.region()).collect()));
            }
            code::SET_VRING_NUM => {
                let mut reader = exactly(8)?;
                Self::SetRingSize { ring: reader.word(), size: reader.word() }
            }
            code::SET_VRING_ADDR => {
                let mut reader = exactly(40)?;
                let (ring, flags) = (reader.word(), reader.word());
                let (descriptors, used, available) = (reader.long(), reader.long(), reader.long());
                Self::SetRingPlace { ring, flags, descriptors, used, available }
            }
            code::SET_VRING_BASE => {
                let mut reader = exactly(8)?;
                Self::SetRingBase { ring: reader.word(), base: reader.word() }
            }
            code::GET_VRING_BASE => Self::GetRingBase { ring: exactly(8)?.word() },
            code::SET_VRING_KICK => ring_file().map(|(ring, has_file)| Self::SetKick { ring, has_file })?,
            code::SET_VRING_CALL => ring_file().map(|(ring, has_file)| Self::SetCall { ring, has_file })?,
            code::SET_VRING_ERR => ring_file().map(|(ring, has_file)| Self::SetError { ring, has_file })?,
            code::GET_PROTOCOL_FEATURES => exactly(0).map(|_| Self::GetProtocolFeatures)?,
            code::SET_PROTOCOL_FEATURES => Self::SetProtocolFeatures(exactly(8)?.long()),
            code::GET_QUEUE_NUM => exactly(0).map(|_| Self::GetNrQueues)?,
            code::SET_VRING_ENABLE => {
                let mut reader = exactly(8)?;
                // SPDK's initiator says 256 and means yes.
                Self::EnableRing { ring: reader.word(), is_enabled: reader.word() != 0 }
            }
            code::SET_BACKEND_REQ_FD => {
                files(1)?;
                Self::SetBackendChannel
            }
            code::GET_CONFIG => {
                let mut reader = at_least(CONFIG)?;
                let (offset, len, flags) = (reader.word(), reader.word(), reader.word());
                Self::GetConfig { offset, len, flags }
            }
            code::SET_CONFIG => {
                let mut reader = at_least(CONFIG)?;
                let (offset, len, _) = (reader.word(), reader.word() as usize, reader.word());
                if reader.0.len() < len {
                    return Err(length);
                }
                Self::SetConfig { offset, bytes: reader.0[..len].to_vec() }
            }
            // QEMU's body is padded to a multiple of 8.
            code::GET_INFLIGHT_FD => Self::GetInflight(at_least(20)?.inflight()),
            code::SET_INFLIGHT_FD => {
                files(1)?;
                Self::SetInflight(at_least(20)?.inflight())
            }
            code::RESET_DEVICE => exactly(0).map(|_| Self::ResetDevice)?,
            code::GET_MAX_MEM_SLOTS => exactly(0).map(|_| Self::GetMaxRegions)?,
            code::ADD_MEM_REG | code::REM_MEM_REG => {
                // In front of the region there are 8 bytes of padding.
                let mut reader = exactly(8 + REGION)?;
                let _ = reader.long();
                if code == code::REM_MEM_REG {
                    // Some front-ends send the region's descriptor along, as the standard once said.
                    return Ok(Self::RemoveRegion(reader.region()));
                }
                files(1)?;
                Self::AddRegion(reader.region())
            }
            _ => return Err(MessageError::Unknown(code)),
        };
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Red if one of the lengths that front-ends are known to send is refused, or if yes is only 1.
    #[test]
    fn messages_are_taken_as_front_ends_send_them() {
        let parse = |code, body: &[u32], nr_files| Message::parse(code, &words(body), nr_files);
        assert_eq!(parse(18, &[1, 256], 0), Ok(Message::EnableRing { ring: 1, is_enabled: true }));
        assert_eq!(parse(12, &[3, 0], 1), Ok(Message::SetKick { ring: 3, has_file: true }));
        assert_eq!(parse(12, &[0x103, 0], 0), Ok(Message::SetKick { ring: 3, has_file: false }));
        let mut config = words(&[0, 256, 0]);
        config.resize(12 + 256, 0);
        assert_eq!(Message::parse(24, &config, 0), Ok(Message::GetConfig { offset: 0, len: 256, flags: 0 }));
        let info = InflightInfo { len: 1, offset: 2, nr_queues: 3, size: 4 };
        let inflight = [1, 0, 2, 0, 0x0004_0003];
        assert_eq!(parse(31, &inflight, 0), Ok(Message::GetInflight(info)));
        assert_eq!(parse(32, &[&inflight[..], &[0]].concat(), 1), Ok(Message::SetInflight(info)));
        let region = RegionInfo { guest: 1, len: 2, user: 3, offset: 4 };
        let table = [&[1, 0][..], &[1, 0, 2, 0, 3, 0, 4, 0], &[0; 56]].concat();
        assert_eq!(parse(5, &table, 1), Ok(Message::SetMemory(vec![region])));
        let one = [&[0, 0][..], &[1, 0, 2, 0, 3, 0, 4, 0]].concat();
        assert_eq!(parse(37, &one, 1), Ok(Message::AddRegion(region)));
    }

    #[test]
    fn what_is_no_message_is_an_error() {
        let long = |code, len| Err(MessageError::Length { code, len });
        assert_eq!(Message::parse(1, &[0], 0), long(1, 1));
        assert_eq!(Message::parse(5, &words(&[2, 0, 0]), 2), long(5, 12));
        assert_eq!(Message::parse(5, &words(&[9, 0]), 0), Err(MessageError::Regions(9)));
        assert_eq!(Message::parse(12, &words(&[3, 0]), 0), Err(MessageError::Files { code: 12, nr: 0 }));
        assert_eq!(Message::parse(25, &words(&[0, 1, 0]), 0), long(25, 12));
        assert_eq!(Message::parse(99, &[], 0), Err(MessageError::Unknown(99)));
        let header = |flags| Header::parse(words(&[1, flags, 0]).as_slice().try_into().unwrap());
        assert_eq!(header(5), Err(MessageError::Flags(5)));
        assert_eq!(header(2), Err(MessageError::Flags(2)));
        assert!(header(9).unwrap().wants_reply() && !header(1).unwrap().wants_reply());
        assert!(Header::parse(words(&[1, 1, 4097]).as_slice().try_into().unwrap()).is_err());
        assert_eq!(header(9).unwrap().reply(&[7]), [&words(&[1, 5, 1])[..], &[7]].concat());
    }
}
