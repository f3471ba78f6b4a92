//! The NBD protocol as bytes, for the server and for the device that is a client: its numbers, the headers of fixed
//! size, and the data of options. Values are encoded to bytes and decoded from slices; nothing here does I/O. Names and
//! sections are those of the protocol's own description, `doc/proto.md` of the project nbd.

mod errno;
mod header;
mod option;

pub use errno::Errno;
pub use header::{Chunk, Greeting, OptionHead, OptionReply, Request, SimpleReply};
pub use option::{ContextQuery, Info, Inquiry, option, option_reply, string};

/// First 64 bits of a server's greeting: `NBDMAGIC`.
pub const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Before each option, and the second 64 bits of the greeting: `IHAVEOPT`.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Before each reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Before each request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Before each simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Before each chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Longest name of an export, description or query, in bytes.
pub const MAX_STRING: usize = 4096;
/// The longest read or write, in bytes, that a client may rely on if the server names no limit.
pub const MAX_PAYLOAD: u32 = 32 << 20;

/// Flags of the greeting and of the client's answer. Sections "Handshake flags" and "Client flags".
pub mod handshake {
    /// The server answers every option.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// No zeroes follow the answer to `EXPORT_NAME`.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Options of the negotiation. Section "Option types".
pub mod options {
    /// Chooses an export and ends the negotiation; errors end the connection.
    pub const EXPORT_NAME: u32 = 1;
    /// Ends the connection.
    pub const ABORT: u32 = 2;
    /// Lists the exports.
    pub const LIST: u32 = 3;
    /// Asks for encryption.
    pub const STARTTLS: u32 = 5;
    /// Asks about an export.
    pub const INFO: u32 = 6;
    /// Chooses an export and ends the negotiation.
    pub const GO: u32 = 7;
    /// Asks for structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// Lists metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Chooses metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Replies to options. Section "Option reply types".
pub mod option_replies {
    /// Set in the replies that are errors.
    pub const IS_ERROR: u32 = 1 << 31;
    /// The option is done, and no more replies to it follow.
    pub const ACK: u32 = 1;
    /// One export.
    pub const SERVER: u32 = 2;
    /// One piece of information about an export.
    pub const INFO: u32 = 3;
    /// One metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// The server does not know the option.
    pub const ERR_UNSUP: u32 = IS_ERROR + 1;
    /// The server does not allow the option.
    pub const ERR_POLICY: u32 = IS_ERROR + 2;
    /// The option's data makes no sense.
    pub const ERR_INVALID: u32 = IS_ERROR + 3;
    /// The connection has to be encrypted first.
    pub const ERR_TLS_REQD: u32 = IS_ERROR + 5;
    /// There is no such export.
    pub const ERR_UNKNOWN: u32 = IS_ERROR + 6;
    /// The option's data is too long.
    pub const ERR_TOO_BIG: u32 = IS_ERROR + 9;
}

/// Pieces of information about an export. Section "Option reply types", `NBD_REP_INFO`.
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// The name.
    pub const NAME: u16 = 1;
    /// A description, as free text.
    pub const DESCRIPTION: u16 = 2;
    /// Minimum, preferred and maximum block size.
    pub const BLOCK_SIZE: u16 = 3;
}

/// What an export can do. Section "Transmission flags".
pub mod transmission {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Nothing can be written.
    pub const READ_ONLY: u16 = 1 << 1;
    /// `FLUSH` is understood.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// `FUA` is understood.
    pub const SEND_FUA: u16 = 1 << 3;
    /// A seek takes time.
    pub const ROTATIONAL: u16 = 1 << 4;
    /// `TRIM` is understood.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// `WRITE_ZEROES` and `NO_HOLE` are understood.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// `DF` is understood; only together with structured replies.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush on one connection covers what completed on any other.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// `CACHE` is understood.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// `FAST_ZERO` is understood.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Types of requests. Section "Request types".
pub mod commands {
    /// Reads.
    pub const READ: u16 = 0;
    /// Writes; data follows the request.
    pub const WRITE: u16 = 1;
    /// Ends the connection when everything before it has been answered.
    pub const DISC: u16 = 2;
    /// Makes what has completed durable.
    pub const FLUSH: u16 = 3;
    /// Data is no longer needed.
    pub const TRIM: u16 = 4;
    /// Data will be wanted soon.
    pub const CACHE: u16 = 5;
    /// Writes zeroes without data.
    pub const WRITE_ZEROES: u16 = 6;
    /// Asks what is allocated.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of requests. Section "Command flags".
pub mod command_flags {
    /// Answer when the effect is durable.
    pub const FUA: u16 = 1 << 0;
    /// Zeroes must take up room.
    pub const NO_HOLE: u16 = 1 << 1;
    /// The data of a reply comes in one chunk.
    pub const DF: u16 = 1 << 2;
    /// The reply has one extent, no longer than asked for.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Fail at once if zeroing is no faster than writing.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Types of a structured reply's chunks. Sections "Structured reply flags" and "Structured reply types".
pub mod chunks {
    /// No data.
    pub const NONE: u16 = 0;
    /// An offset and the data there.
    pub const OFFSET_DATA: u16 = 1;
    /// A metadata context and its extents.
    pub const BLOCK_STATUS: u16 = 5;
    /// An error with a message.
    pub const ERROR: u16 = (1 << 15) + 1;
    /// Set on the last chunk of a reply.
    pub const FLAG_DONE: u16 = 1 << 0;
}

/// What `base:allocation` says of an extent. Section "The `base:` metadata context".
pub mod states {
    /// The extent takes up no room.
    pub const HOLE: u32 = 1 << 0;
    /// The extent reads as zeroes.
    pub const ZERO: u32 = 1 << 1;
}

/// The metadata context that says what is allocated.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// The number that the server gives this context.
pub const BASE_ALLOCATION_ID: u32 = 1;
