//! The negotiation before the first request. Bytes go in; bytes and a decision come out. The negotiation does no I/O
//! and reads no clock.

use std::sync::Arc;

use super::{
    BASE_ALLOCATION, BASE_ALLOCATION_ID, ContextQuery, Greeting, Info, Inquiry, MAX_STRING, OptionHead, handshake,
    info, option_replies, option_reply, options, string, transmission,
};

/// The longest data of an option, in bytes: more than a name and two queries of the greatest length.
pub const MAX_OPTION: usize = 16 << 10;
/// How many options a client may send: enough to ask for about a hundred exports one by one.
pub const MAX_OPTIONS: u32 = 1024;
/// How many bytes a client may send before its first request.
pub const MAX_NEGOTIATION: u64 = 1 << 20;
/// The number of zero bytes after the answer to `EXPORT_NAME`, unless the client asked to leave them out.
const NR_ZEROES: usize = 124;
/// The smallest block size in bytes, for every client. A client that asks for block sizes has to keep to this one. If
/// the server named the device's block size instead, such a client would have to read, change and write blocks itself,
/// without any order with other clients. The server does that in order. The preferred size tells clients which size is
/// best.
const MINIMUM: u32 = 1;

/// What a client is told of an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// The export's name. The default export has an empty name.
    pub name: String,
    /// A description for people, which may be empty.
    pub description: String,
    /// Size in bytes.
    pub size: u64,
    /// Bits of [`transmission`], without `SEND_DF`.
    pub flags: u16,
    /// The best block size in bytes. Requests that are smaller, or that begin or end elsewhere, are done too.
    pub preferred: u32,
    /// Longest read or write in bytes.
    pub maximum: u32,
}

/// What a negotiation can offer.
pub trait Catalogue {
    /// Returns the exports' names and descriptions, in the order of their numbers. The call does not wait.
    fn names(&self) -> impl Iterator<Item = (&str, &str)>;

    /// Returns why the client may not use an export, as a text for the client. `None` if it may. An export that the
    /// client may not use is not listed.
    fn refusal(&self, _export: usize) -> Option<String> {
        None
    }

    /// Called when the client has asked for an export that it may not use. The client is told this text.
    fn note_refusal(&self, _refusal: &str) {}

    /// What the client is told of an export that it asks for, as the export is now. The export's device may take time
    /// to answer, and then only the client that asks waits.
    fn offer(&self, export: usize) -> Offer;

    /// Lets the client use an export that it chooses.
    ///
    /// # Errors
    /// The client may not use it.
    fn admit(&self, export: usize) -> Result<(), NotAdmitted> {
        let _ = export;
        Ok(())
    }
}

/// Why a client may not use the export that it chose, as a text for the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotAdmitted(pub String);

/// Offers that are known already.
impl Catalogue for [Offer] {
    fn names(&self) -> impl Iterator<Item = (&str, &str)> {
        self.iter().map(|offer| (offer.name.as_str(), offer.description.as_str()))
    }

    fn offer(&self, export: usize) -> Offer {
        self[export].clone()
    }
}

/// What both sides agreed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agreement {
    /// The number of the export.
    pub export: usize,
    /// What the client was told of it.
    pub offer: Offer,
    /// Whether reads are answered with structured replies.
    pub has_structured_replies: bool,
    /// Whether the metadata context `base:allocation` was chosen for this export.
    pub has_allocation: bool,
}

/// Whether the connection is encrypted, or is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encryption {
    /// The connection is not encrypted, and a client that asks for encryption is refused.
    Off,
    /// A client may ask for it.
    Offered,
    /// A client must ask for encryption before it gets anything else.
    Required,
    /// The connection is encrypted.
    On,
}

/// The state of the negotiation after some bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// More bytes are needed.
    Short,
    /// Something was done. There may be more to do.
    On,
    /// The output is the last that is sent unencrypted. A TLS handshake comes next, and then the negotiation continues
    /// with its first option. Input that is not used yet came unencrypted, perhaps from an attacker, and is no part of
    /// the negotiation.
    Secure,
    /// An export is chosen. After the output has been sent, requests follow.
    Chosen(Agreement),
    /// The client wants no more. The output is its answer.
    Aborted,
    /// The client gets no export, for a reason that the catalogue knows. The option that the client used has no reply
    /// that refuses.
    Refused,
    /// The client breaks the protocol, for this reason. There is no output that answers it.
    Broken(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Greeted,
    BetweenOptions,
    /// This many bytes of an option that is too long have to be skipped.
    Skipping(u64),
    Over,
}

/// One client's negotiation.
#[derive(Debug)]
pub struct Negotiation<C: Catalogue + ?Sized> {
    catalogue: Arc<C>,
    encryption: Encryption,
    phase: Phase,
    sends_zeroes: bool,
    has_structured_replies: bool,
    /// The export for which `base:allocation` was chosen.
    allocation: Option<usize>,
    options: u32,
    bytes: u64,
}

impl<C: Catalogue + ?Sized> Negotiation<C> {
    /// Begins: appends the greeting to `output`.
    #[must_use]
    pub fn begin(catalogue: Arc<C>, encryption: Encryption, output: &mut Vec<u8>) -> Self {
        output.extend(Greeting { flags: handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES }.encode());
        Self {
            catalogue,
            encryption,
            phase: Phase::Greeted,
            sends_zeroes: true,
            has_structured_replies: false,
            allocation: None,
            options: 0,
            bytes: 0,
        }
    }

    /// Does one step with the input that has come and is not used yet. Answers are appended to `output`. Returns how
    /// many bytes were used. No step needs more than [`MAX_OPTION`] bytes in `input`, and the 16 bytes before them.
    pub fn advance(&mut self, input: &[u8], output: &mut Vec<u8>) -> (usize, Progress) {
        let (used, step) = match self.phase {
            Phase::Greeted => self.take_flags(input),
            Phase::BetweenOptions => self.take_option(input, output),
            Phase::Skipping(left) => self.skip(left, input),
            Phase::Over => (0, Progress::Broken("the negotiation is over".into())),
        };
        self.bytes += used as u64;
        let step = match step {
            Progress::On | Progress::Short | Progress::Secure if self.bytes > MAX_NEGOTIATION => {
                Progress::Broken(format!("more than {MAX_NEGOTIATION} bytes of options"))
            }
            step => step,
        };
        if !matches!(step, Progress::On | Progress::Short | Progress::Secure) {
            self.phase = Phase::Over;
        }
        (used, step)
    }

    fn take_flags(&mut self, input: &[u8]) -> (usize, Progress) {
        let Some((flags, _)) = input.split_first_chunk() else { return (0, Progress::Short) };
        let flags = u32::from_be_bytes(*flags);
        let known = u32::from(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES);
        if flags & !known != 0 {
            return (4, Progress::Broken(format!("the client's flags are {flags:#x}; the server offered {known:#x}")));
        }
        self.sends_zeroes = flags & u32::from(handshake::NO_ZEROES) == 0;
        self.phase = Phase::BetweenOptions;
        (4, Progress::On)
    }

    fn take_option(&mut self, input: &[u8], output: &mut Vec<u8>) -> (usize, Progress) {
        let Some((head, rest)) = input.split_first_chunk() else { return (0, Progress::Short) };
        let (option, length) = match OptionHead::decode(head) {
            Ok(OptionHead { option, len }) => (option, len),
            Err(magic) => {
                let broken = format!("an option begins with IHAVEOPT, not with {magic:#018x}");
                return (OptionHead::SIZE, Progress::Broken(broken));
            }
        };
        let long = length as usize > MAX_OPTION;
        if !long && rest.len() < length as usize {
            return (0, Progress::Short);
        }
        self.options += 1;
        if self.options > MAX_OPTIONS {
            return (OptionHead::SIZE, Progress::Broken(format!("more than {MAX_OPTIONS} options")));
        }
        if long {
            return (OptionHead::SIZE, self.refuse_long(option, length, output));
        }
        let (data, _) = rest.split_at(length as usize);
        (OptionHead::SIZE + data.len(), self.answer(option, data, output))
    }

    fn refuse_long(&mut self, option: u32, length: u32, output: &mut Vec<u8>) -> Progress {
        if option == options::EXPORT_NAME {
            // This option has no reply that refuses.
            return Progress::Broken(format!("the name of an export has {length} bytes"));
        }
        if self.is_withheld(option) {
            withhold(output, option);
        } else {
            let message = format!("an option has at most {MAX_OPTION} bytes of data, not {length}");
            reply(output, option, option_replies::ERR_TOO_BIG, &[message.as_bytes()]);
        }
        self.phase = Phase::Skipping(length.into());
        Progress::On
    }

    fn skip(&mut self, left: u64, input: &[u8]) -> (usize, Progress) {
        let skipped = left.min(input.len() as u64);
        self.phase = if skipped == left { Phase::BetweenOptions } else { Phase::Skipping(left - skipped) };
        (skipped as usize, if skipped == 0 { Progress::Short } else { Progress::On })
    }

    /// Returns true if the client has to ask for encryption before this option is accepted.
    fn is_withheld(&self, option: u32) -> bool {
        self.encryption == Encryption::Required && !matches!(option, options::ABORT | options::STARTTLS)
    }

    fn answer(&mut self, option: u32, data: &[u8], output: &mut Vec<u8>) -> Progress {
        if self.is_withheld(option) {
            if option == options::EXPORT_NAME {
                // This option has no reply that refuses.
                return Progress::Broken("the client asked for an export without TLS, which is required".into());
            }
            withhold(output, option);
            return Progress::On;
        }
        match option {
            options::EXPORT_NAME => return self.export_name(data, output),
            options::ABORT => {
                reply(output, option, option_replies::ACK, &[]);
                return Progress::Aborted;
            }
            options::LIST if data.is_empty() => self.list(output),
            options::STRUCTURED_REPLY if data.is_empty() => {
                self.has_structured_replies = true;
                reply(output, option, option_replies::ACK, &[]);
            }
            options::INFO | options::GO => return self.export_info(option, data, output),
            options::LIST_META_CONTEXT | options::SET_META_CONTEXT => self.contexts(option, data, output),
            options::STARTTLS if data.is_empty() => return self.start_tls(output),
            options::LIST | options::STRUCTURED_REPLY | options::STARTTLS => {
                invalid(output, option, "this option has no data");
            }
            _ => reply(output, option, option_replies::ERR_UNSUP, &[b"the server does not know this option"]),
        }
        Progress::On
    }

    fn start_tls(&mut self, output: &mut Vec<u8>) -> Progress {
        let option = options::STARTTLS;
        match self.encryption {
            Encryption::Off => reply(output, option, option_replies::ERR_POLICY, &[b"the server does without TLS"]),
            Encryption::On => invalid(output, option, "the connection is encrypted already"),
            Encryption::Offered | Encryption::Required => {
                reply(output, option, option_replies::ACK, &[]);
                // An attacker on the way may have sent whatever was agreed on so far.
                self.encryption = Encryption::On;
                self.has_structured_replies = false;
                self.allocation = None;
                return Progress::Secure;
            }
        }
        Progress::On
    }

    fn find(&self, name: &[u8]) -> Option<usize> {
        self.catalogue.names().position(|(other, _)| other.as_bytes() == name)
    }

    fn agreement(&self, export: usize, offer: Offer) -> Agreement {
        Agreement {
            export,
            offer,
            has_structured_replies: self.has_structured_replies,
            has_allocation: self.allocation == Some(export),
        }
    }

    fn flags(&self, offer: &Offer) -> u16 {
        if self.has_structured_replies { offer.flags | transmission::SEND_DF } else { offer.flags }
    }

    fn export_name(&self, name: &[u8], output: &mut Vec<u8>) -> Progress {
        let Some(export) = self.find(name) else {
            return Progress::Broken(format!("there is no export {:?}", String::from_utf8_lossy(name)));
        };
        if let Some(refusal) = self.catalogue.refusal(export) {
            self.catalogue.note_refusal(&refusal);
            return Progress::Refused;
        }
        if self.catalogue.admit(export).is_err() {
            return Progress::Refused;
        }
        let offer = self.catalogue.offer(export);
        output.extend(offer.size.to_be_bytes());
        output.extend(self.flags(&offer).to_be_bytes());
        if self.sends_zeroes {
            output.extend([0; NR_ZEROES]);
        }
        Progress::Chosen(self.agreement(export, offer))
    }

    fn list(&self, output: &mut Vec<u8>) {
        let listed = self.catalogue.names().enumerate().filter(|(export, _)| self.catalogue.refusal(*export).is_none());
        for (_, (name, description)) in listed {
            reply(output, options::LIST, option_replies::SERVER, &[&string(name), description.as_bytes()]);
        }
        reply(output, options::LIST, option_replies::ACK, &[]);
    }

    fn export_info(&self, option: u32, data: &[u8], output: &mut Vec<u8>) -> Progress {
        let Some(Inquiry { name, wanted }) = Inquiry::decode(data) else {
            invalid(output, option, "the data is a name, a count, and so many kinds of information");
            return Progress::On;
        };
        let Some(export) = self.find(name.as_bytes()) else {
            unknown(output, option, name);
            return Progress::On;
        };
        if let Some(refusal) = self.catalogue.refusal(export) {
            self.catalogue.note_refusal(&refusal);
            refuse(output, option, &refusal);
            return Progress::On;
        }
        if option == options::GO
            && let Err(NotAdmitted(why)) = self.catalogue.admit(export)
        {
            reply(output, option, option_replies::ERR_POLICY, &[why.as_bytes()]);
            return Progress::On;
        }
        let offer = self.catalogue.offer(export);
        let mut inform = |info: Info<'_>| reply(output, option, option_replies::INFO, &[&info.encode()]);
        inform(Info::Export { size: offer.size, flags: self.flags(&offer) });
        if wanted.contains(&info::NAME) {
            inform(Info::Name(&offer.name));
        }
        if wanted.contains(&info::DESCRIPTION) && !offer.description.is_empty() {
            inform(Info::Description(&offer.description));
        }
        // The sizes are also sent to a client that does not ask: longer requests will be refused.
        inform(Info::BlockSize { minimum: MINIMUM, preferred: offer.preferred, maximum: offer.maximum });
        reply(output, option, option_replies::ACK, &[]);
        if option == options::GO { Progress::Chosen(self.agreement(export, offer)) } else { Progress::On }
    }

    fn contexts(&mut self, option: u32, data: &[u8], output: &mut Vec<u8>) {
        let sets = option == options::SET_META_CONTEXT;
        if sets {
            // The earlier choice is forgotten, whether this choice succeeds or not.
            self.allocation = None;
        }
        if !self.has_structured_replies {
            return invalid(output, option, "structured replies come first");
        }
        let Some(ContextQuery { name, queries }) = ContextQuery::decode(data) else {
            return invalid(output, option, "the data is a name, a count, and so many queries");
        };
        let Some(export) = self.find(name.as_bytes()) else { return unknown(output, option, name) };
        if let Some(refusal) = self.catalogue.refusal(export) {
            return refuse(output, option, &refusal);
        }
        let all = !sets && (queries.is_empty() || queries.contains(&"base:"));
        if all || queries.contains(&BASE_ALLOCATION) {
            // The number means something only where the context is chosen.
            let id = if sets { BASE_ALLOCATION_ID } else { 0 };
            reply(output, option, option_replies::META_CONTEXT, &[&id.to_be_bytes(), BASE_ALLOCATION.as_bytes()]);
            if sets {
                self.allocation = Some(export);
            }
        }
        reply(output, option, option_replies::ACK, &[]);
    }
}

fn reply(output: &mut Vec<u8>, option: u32, kind: u32, parts: &[&[u8]]) {
    output.extend(option_reply(option, kind, &parts.concat()));
}

/// Refuses an option that is not accepted before the connection is encrypted.
fn withhold(output: &mut Vec<u8>, option: u32) {
    reply(output, option, option_replies::ERR_TLS_REQD, &[b"the server requires TLS: STARTTLS comes first"]);
}

fn invalid(output: &mut Vec<u8>, option: u32, message: &str) {
    reply(output, option, option_replies::ERR_INVALID, &[message.as_bytes()]);
}

fn unknown(output: &mut Vec<u8>, option: u32, name: &str) {
    let message = format!("there is no export {name:?}");
    reply(output, option, option_replies::ERR_UNKNOWN, &[cut(&message)]);
}

/// Refuses an export that the client may not use.
fn refuse(output: &mut Vec<u8>, option: u32, message: &str) {
    reply(output, option, option_replies::ERR_POLICY, &[cut(message)]);
}

/// As much of a message as may be sent.
fn cut(message: &str) -> &[u8] {
    &message.as_bytes()[..message.floor_char_boundary(MAX_STRING)]
}

#[cfg(test)]
mod tests;
