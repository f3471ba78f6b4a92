//! Messages of the front-end, parsed. Whatever bytes come, each becomes a message or an error.

use vhost::vhost_user::message::{BackendReq, FrontendReq, VhostUserHeaderFlag};

use crate::memory::RegionInfo;

/// Bytes of a message's header.
pub(crate) const HEADER: usize = 12;
/// The most bytes of a message's body.
pub(crate) const MAX_BODY: usize = 4096;
/// The most descriptors that come with a message.
pub(crate) const MAX_FILES: usize = 8;

const VERSION: u32 = 1;
const IS_REPLY: u32 = VhostUserHeaderFlag::REPLY.bits();
/// Of the number of a ring: no descriptor comes with it.
const NO_FILE: u64 = 1 << 8;
const RING_BITS: u64 = 0xff;

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
        let (longs, shorts) =
            ([len, offset].map(|long| long.to_le_bytes()), [nr_queues, size].map(|short| short.to_le_bytes()));
        [longs.as_flattened(), shorts.as_flattened()].concat()
    }
}

/// One of the eventfds by which the guest and the device wake each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    Kick,
    Call,
    Error,
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
    SetRingAddress { ring: u32, flags: u32, descriptors: u64, used: u64, available: u64 },
    SetRingBase { ring: u32, base: u32 },
    GetRingBase { ring: u32 },
    SetSignal { ring: u32, signal: Signal, has_file: bool },
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
    /// A message that the server has no use for.
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
        if flags & VhostUserHeaderFlag::VERSION.bits() != VERSION || flags & IS_REPLY != 0 {
            return Err(MessageError::Flags(flags));
        }
        if len > MAX_BODY {
            return Err(MessageError::Length { code, len });
        }
        Ok(Self { code, flags, len })
    }

    /// Whether the front-end wants to know how it went, if that was agreed on.
    pub(crate) fn wants_reply(&self) -> bool {
        self.flags & VhostUserHeaderFlag::NEED_REPLY.bits() != 0
    }

    /// The answer with this body.
    pub(crate) fn reply(&self, body: &[u8]) -> Vec<u8> {
        frame(self.code, VERSION | IS_REPLY, body)
    }
}

/// A message to the front-end: its configuration has changed.
pub(crate) fn config_change() -> Vec<u8> {
    frame(BackendReq::CONFIG_CHANGE_MSG.into(), VERSION, &[])
}

fn frame(code: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    let header = [code, flags, body.len() as u32].map(u32::to_le_bytes);
    [header.as_flattened(), body].concat()
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
        let signal = |signal| {
            let value = exactly(8)?.long();
            let has_file = value & NO_FILE == 0;
            files(usize::from(has_file))?;
            Ok(Self::SetSignal { ring: (value & RING_BITS) as u32, signal, has_file })
        };
        // In front of a single region there are 8 bytes of padding.
        let region = || Ok(Reader(&exactly(8 + REGION)?.0[8..]).region());
        let request = FrontendReq::try_from(code).map_err(|()| MessageError::Unknown(code))?;
        Ok(match request {
            FrontendReq::GET_FEATURES => exactly(0).map(|_| Self::GetFeatures)?,
            FrontendReq::SET_FEATURES => Self::SetFeatures(exactly(8)?.long()),
            FrontendReq::SET_OWNER => exactly(0).map(|_| Self::SetOwner)?,
            FrontendReq::RESET_OWNER => exactly(0).map(|_| Self::ResetOwner)?,
            FrontendReq::SET_MEM_TABLE => {
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
                Self::SetMemory((0..nr).map(|_| reader.region()).collect())
            }
            FrontendReq::SET_VRING_NUM => {
                let mut reader = exactly(8)?;
                Self::SetRingSize { ring: reader.word(), size: reader.word() }
            }
            FrontendReq::SET_VRING_ADDR => {
                let mut reader = exactly(40)?;
                let (ring, flags) = (reader.word(), reader.word());
                let (descriptors, used, available) = (reader.long(), reader.long(), reader.long());
                Self::SetRingAddress { ring, flags, descriptors, used, available }
            }
            FrontendReq::SET_VRING_BASE => {
                let mut reader = exactly(8)?;
                Self::SetRingBase { ring: reader.word(), base: reader.word() }
            }
            FrontendReq::GET_VRING_BASE => Self::GetRingBase { ring: exactly(8)?.word() },
            FrontendReq::SET_VRING_KICK => signal(Signal::Kick)?,
            FrontendReq::SET_VRING_CALL => signal(Signal::Call)?,
            FrontendReq::SET_VRING_ERR => signal(Signal::Error)?,
            FrontendReq::GET_PROTOCOL_FEATURES => exactly(0).map(|_| Self::GetProtocolFeatures)?,
            FrontendReq::SET_PROTOCOL_FEATURES => Self::SetProtocolFeatures(exactly(8)?.long()),
            FrontendReq::GET_QUEUE_NUM => exactly(0).map(|_| Self::GetNrQueues)?,
            FrontendReq::SET_VRING_ENABLE => {
                let mut reader = exactly(8)?;
                // SPDK's initiator says 256 and means yes.
                Self::EnableRing { ring: reader.word(), is_enabled: reader.word() != 0 }
            }
            FrontendReq::SET_BACKEND_REQ_FD => files(1).map(|()| Self::SetBackendChannel)?,
            FrontendReq::GET_CONFIG => {
                let mut reader = at_least(CONFIG)?;
                Self::GetConfig { offset: reader.word(), len: reader.word(), flags: reader.word() }
            }
            FrontendReq::SET_CONFIG => {
                let mut reader = at_least(CONFIG)?;
                let (offset, len, _) = (reader.word(), reader.word() as usize, reader.word());
                Self::SetConfig { offset, bytes: reader.0.get(..len).ok_or(length)?.to_vec() }
            }
            // QEMU's body is padded to a multiple of 8.
            FrontendReq::GET_INFLIGHT_FD => Self::GetInflight(at_least(20)?.inflight()),
            FrontendReq::SET_INFLIGHT_FD => {
                files(1)?;
                Self::SetInflight(at_least(20)?.inflight())
            }
            FrontendReq::RESET_DEVICE => exactly(0).map(|_| Self::ResetDevice)?,
            FrontendReq::GET_MAX_MEM_SLOTS => exactly(0).map(|_| Self::GetMaxRegions)?,
            FrontendReq::ADD_MEM_REG => {
                let region = region()?;
                files(1)?;
                Self::AddRegion(region)
            }
            // Some front-ends send the region's descriptor along, as the standard once said.
            FrontendReq::REM_MEM_REG => Self::RemoveRegion(region()?),
            _ => return Err(MessageError::Unknown(code)),
        })
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
        assert_eq!(parse(12, &[3, 0], 1), Ok(Message::SetSignal { ring: 3, signal: Signal::Kick, has_file: true }));
        assert_eq!(
            parse(12, &[0x103, 0], 0),
            Ok(Message::SetSignal { ring: 3, signal: Signal::Kick, has_file: false })
        );
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
