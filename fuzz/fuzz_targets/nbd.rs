//! Any bytes lead a negotiation to a result, in steps that keep their promises. The bytes after an agreement are read
//! as requests, and each request is refused or lies within its export.
#![no_main]

#[macro_use]
mod reach;

use std::sync::Arc;

use blkmq_engine::{Ask, Terms as ExportTerms};
use blkmq_export::nbd::command::{Command, Terms};
use blkmq_export::nbd::negotiation::{
    Agreement, Encryption, MAX_NEGOTIATION, MAX_OPTION, Negotiation, Offer, Progress,
};
use blkmq_export::nbd::{OPTION_REPLY_MAGIC, Request};
use reach::Reached;

const SIZE: u64 = 1 << 20;

fn offers() -> Arc<[Offer]> {
    let offer = |name: &str| Offer {
        name: name.into(),
        description: "d".into(),
        size: SIZE,
        flags: 1,
        preferred: 4096,
        maximum: 65536,
    };
    [offer(""), offer("a")].into()
}

/// Negotiates with the bytes that a socket would give, `piece` bytes at a time. Returns the agreement, and how many
/// bytes were used.
fn negotiate(encryption: Encryption, bytes: &[u8], piece: usize, reached: &mut Reached) -> Option<(Agreement, usize)> {
    let mut output = Vec::new();
    let mut negotiation = Negotiation::begin(offers(), encryption, &mut output);
    let mut is_secure = encryption == Encryption::On;
    let (mut used, mut given) = (0, 0);
    loop {
        output.clear();
        let (more, step) = negotiation.advance(&bytes[used..given], &mut output);
        used += more;
        assert!(used <= given && used as u64 <= MAX_NEGOTIATION + MAX_OPTION as u64 + 16);
        assert!(output.len() < 1 << 20);
        let magic = OPTION_REPLY_MAGIC.to_be_bytes();
        reached.add("replies to options", output.windows(8).filter(|window| *window == magic).count());
        match step {
            Progress::On => (),
            // The handshake belongs to TLS. The bytes after it are the rest.
            Progress::Secure => {
                assert!(!is_secure && encryption != Encryption::Off && !output.is_empty());
                is_secure = true;
                reached.add("secured", 1);
            }
            Progress::Short => {
                assert!(more == 0 && output.is_empty() && given - used < MAX_OPTION + 16);
                if given == bytes.len() {
                    return None;
                }
                given = bytes.len().min(given + piece);
            }
            Progress::Chosen(agreement) => {
                assert!(is_secure || encryption != Encryption::Required);
                assert!(agreement.export < 2 && (agreement.has_structured_replies || !agreement.has_allocation));
                reached.add("agreements", 1);
                reached.add("with structured replies", usize::from(agreement.has_structured_replies));
                reached.add("with allocation", usize::from(agreement.has_allocation));
                return Some((agreement, used));
            }
            Progress::Aborted => return None,
            Progress::Refused => panic!("the catalogue refuses nothing"),
            Progress::Broken(reason) => {
                assert!(!reason.is_empty() && !reason.contains(char::is_control));
                return None;
            }
        }
    }
}

fn check(request: &Request, terms: &Terms, reached: &mut Reached) {
    match terms.check(request) {
        Ok(Command::Disconnect) => (),
        Ok(Command::Operation(Ask::Flush)) => assert!(terms.export.can_flush),
        Ok(command) => {
            reached.add("requests let through", 1);
            let end = request.offset.checked_add(request.length.into()).expect("no end overflows");
            assert!(end <= terms.export.size);
            if let Command::Operation(ask) = command {
                assert!(!(ask.changes() && terms.export.is_read_only));
                assert!(!matches!(ask, Ask::Read | Ask::Write { .. }) || request.length <= terms.maximum);
            }
        }
        Err(refusal) => {
            reached.add("requests refused", 1);
            assert!(!refusal.message.is_empty() && !refusal.message.contains(char::is_control));
        }
    }
}

fn run(bytes: &[u8], reached: &mut Reached) {
    let Some((&first, bytes)) = bytes.split_first() else { return };
    let all = [Encryption::Off, Encryption::Offered, Encryption::Required, Encryption::On];
    let encryption = all[usize::from(first) % all.len()];
    let whole = negotiate(encryption, bytes, usize::MAX - bytes.len(), reached);
    assert_eq!(whole, negotiate(encryption, bytes, 7, &mut Reached::default()), "pieces make no difference");
    let (agreement, mut rest) = match whole {
        Some((agreement, used)) => (agreement, &bytes[used..]),
        None => (
            Agreement { export: 0, offer: offers()[0].clone(), has_structured_replies: true, has_allocation: true },
            bytes,
        ),
    };
    let is_first = agreement.export == 0;
    let export = ExportTerms {
        size: SIZE,
        block: 512,
        is_read_only: !is_first,
        can_flush: is_first,
        can_fua: is_first,
        can_discard: true,
        can_zero: true,
    };
    let Agreement { has_structured_replies, has_allocation, .. } = agreement;
    let terms = Terms { export, maximum: 65536, has_structured_replies, has_allocation };
    while let Some((head, more)) = rest.split_first_chunk() {
        let Ok(request) = Request::decode(head) else { break };
        check(&request, &terms, reached);
        rest = more.get(request.payload() as usize..).unwrap_or_default();
    }
}

const LEAST: [(&str, u64); 7] = [
    ("replies to options", 20),
    ("agreements", 6),
    ("with structured replies", 3),
    ("with allocation", 2),
    ("secured", 2),
    ("requests let through", 10),
    ("requests refused", 5),
];

target!("nbd", run, LEAST, &[u8]);
