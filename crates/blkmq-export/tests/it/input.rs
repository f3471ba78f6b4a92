//! Bytes that are almost right. Such bytes must not make the parsers panic, use more bytes than there are, or accept a
//! request outside of the export.

use std::sync::Arc;

use blkmq_export::nbd::command::{Command, Terms};
use blkmq_export::nbd::negotiation::{Encryption, Negotiation, Offer, Step};
use blkmq_export::nbd::{Inquiry, OptionHead, REQUEST_MAGIC, Request, option};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

const SIZE: u64 = 1 << 20;

fn offers() -> Arc<[Offer]> {
    let (name, description) = ("a".to_owned(), String::new());
    [Offer { name, description, size: SIZE, flags: 1, preferred: 4096, maximum: 65536 }].into()
}

/// An option with a small number, small fields in its data, and a length that may be wrong.
fn almost_option(random: &mut SmallRng) -> Vec<u8> {
    if random.random_bool(0.05) {
        return option(random.random_range(6..9), &Inquiry { name: "a", wanted: vec![] }.encode());
    }
    let mut data = Vec::new();
    for _ in 0..random.random_range(0..6) {
        let number: u32 = if random.random_bool(0.1) { random.random() } else { random.random_range(0..3) };
        data.extend(number.to_be_bytes());
        data.extend(b"abase:".iter().take(random.random_range(0..7)));
    }
    let len = data.len() as u32 + if random.random_bool(0.1) { random.random_range(0..100_000) } else { 0 };
    [&OptionHead { option: random.random_range(0..12), len }.encode()[..], &data].concat()
}

#[test]
fn a_negotiation_gets_somewhere_with_any_bytes() {
    let mut random = SmallRng::seed_from_u64(2);
    let mut ends = [0; 4];
    let mut secured = 0;
    for round in 0..4000 {
        let encryption = [Encryption::Off, Encryption::Offered, Encryption::Required, Encryption::On][round % 4];
        let mut input = vec![0, 0, 0, 3];
        (0..10).for_each(|_| input.extend(almost_option(&mut random)));
        let mut output = Vec::new();
        let mut negotiation = Negotiation::begin(offers(), encryption, &mut output);
        let mut is_secure = encryption == Encryption::On;
        let mut at = 0;
        loop {
            let (used, step) = negotiation.advance(&input[at..], &mut output);
            at += used;
            assert!(at <= input.len());
            match step {
                Step::On => assert!(used > 0),
                Step::Short => break ends[0] += 1,
                Step::Secure => {
                    assert!(used > 0 && !is_secure && encryption != Encryption::Off);
                    is_secure = true;
                    secured += 1;
                }
                Step::Chosen(agreement) => {
                    assert!(is_secure || encryption != Encryption::Required, "an export in the clear");
                    assert_eq!(agreement.export, 0);
                    assert!(agreement.has_structured_replies || !agreement.has_allocation);
                    break ends[1] += 1;
                }
                Step::Aborted => break ends[2] += 1,
                Step::Refused => panic!("the catalogue refuses nothing"),
                Step::Broken(reason) => {
                    assert!(!reason.contains(char::is_control), "{reason:?}");
                    break ends[3] += 1;
                }
            }
        }
    }
    assert!(secured > 0 && ends.iter().all(|count| *count > 0), "{secured} {ends:?}");
}

#[test]
fn a_request_that_is_let_through_lies_within_its_export() {
    let mut random = SmallRng::seed_from_u64(3);
    let mut taken = 0;
    for _ in 0..100_000 {
        let mut bytes = [0; Request::SIZE];
        random.fill(&mut bytes[..]);
        bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        // Mostly small numbers, so that many requests are valid.
        bytes[4] = 0;
        bytes[6] = 0;
        bytes[7] %= 9;
        for at in [5, 16, 17, 18, 19, 20, 24, 27] {
            bytes[at] *= u8::from(random.random_bool(0.05));
        }
        bytes[21] %= 32;
        bytes[22] &= 0xfe;
        bytes[23] *= u8::from(random.random_bool(0.1));
        bytes[25] %= 2;
        bytes[26] &= 0xfe;
        let request = Request::decode(&bytes).unwrap();
        let terms = Terms {
            size: SIZE,
            block: 512,
            maximum: 65536,
            is_read_only: random.random_bool(0.2),
            can_flush: random.random(),
            can_fua: random.random(),
            can_trim: true,
            can_zero: true,
            has_structured_replies: true,
            has_allocation: true,
        };
        match terms.check(&request) {
            Ok(Command::Disconnect | Command::Flush) => (),
            Ok(command) => {
                taken += 1;
                let end = request.offset + u64::from(request.length);
                assert!(end <= SIZE);
                let only_reads = matches!(command, Command::Read | Command::Cache | Command::BlockStatus { .. });
                assert!(only_reads || !terms.is_read_only);
            }
            Err(refusal) => assert!(!refusal.message.contains(char::is_control), "{:?}", refusal.message),
        }
    }
    assert!(taken > 1000, "{taken} were right");
}
