//! The contents that may be found after a crash, for each sector.

use std::ops::Range;

/// Bytes of a sector. No crash leaves a part of a sector's write.
pub(crate) const SECTOR: usize = 512;

/// One possible content of a sector.
#[derive(Debug, Clone, Copy)]
struct Version {
    /// The position of its write in the order of all writes.
    number: u64,
    /// The word that fills the sector.
    word: u64,
}

#[derive(Debug)]
struct Known {
    /// The oldest content that may be found, and all later ones. Writes to one sector come one after the other.
    versions: Vec<Version>,
    /// The number of the latest write that was answered.
    answered: u64,
}

/// Everything that was written and acknowledged.
#[derive(Debug)]
pub(crate) struct Ledger {
    sectors: Vec<Known>,
    next: u64,
    /// Whether everything that is answered survives, or only what a flush or FUA has made durable.
    survives: Survives,
}

/// What a crash leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Survives {
    /// Everything that was answered: the process dies, and the kernel continues.
    Answered,
    /// Everything that a flush or FUA was answered for: the power fails.
    Durable,
}

impl Ledger {
    /// The ledger of a device of zeroes.
    pub(crate) fn new(bytes: usize, survives: Survives) -> Self {
        let known = || Known { versions: vec![Version { number: 0, word: 0 }], answered: 0 };
        Self { sectors: std::iter::repeat_with(known).take(bytes / SECTOR).collect(), next: 1, survives }
    }

    /// Called before a write or a zeroing is asked for. Returns its number. A write fills each word with this number.
    pub(crate) fn asked(&mut self, sectors: Range<usize>, zeroes: bool) -> u64 {
        let number = self.next;
        self.next += 1;
        for known in &mut self.sectors[sectors] {
            known.versions.push(Version { number, word: if zeroes { 0 } else { number } });
        }
        number
    }

    /// Called when a write was answered: the write is done, and durable if it had to be.
    pub(crate) fn answered(&mut self, sectors: Range<usize>, number: u64, is_durable: bool) {
        let keeps = is_durable || self.survives == Survives::Answered;
        for known in &mut self.sectors[sectors] {
            known.answered = number;
            if keeps {
                known.keep(number);
            }
        }
    }

    /// What a flush that is about to be asked for will cover.
    pub(crate) fn covered(&self) -> Vec<u64> {
        self.sectors.iter().map(|known| known.answered).collect()
    }

    /// Called when a flush was answered.
    pub(crate) fn flushed(&mut self, covered: &[u64]) {
        for (known, number) in self.sectors.iter_mut().zip(covered) {
            known.keep(*number);
        }
    }

    /// Compares the ledger with the contents after a crash. These contents are the only possible ones from now on.
    pub(crate) fn check(&mut self, found: &[u8]) -> Result<(), String> {
        assert_eq!(found.len(), self.sectors.len() * SECTOR);
        for (sector, (known, data)) in self.sectors.iter_mut().zip(found.chunks(SECTOR)).enumerate() {
            let word = u64::from_le_bytes(data[..8].try_into().expect("eight bytes are eight"));
            if data.chunks(8).any(|chunk| chunk != &data[..8]) {
                return Err(format!("sector {sector} is torn"));
            }
            let Some(version) = known.versions.iter().rev().find(|version| version.word == word) else {
                let possible: Vec<_> = known.versions.iter().map(|version| version.word).collect();
                return Err(format!("sector {sector} holds {word}, and may hold {possible:?}"));
            };
            *known = Known { versions: vec![*version], answered: version.number };
        }
        Ok(())
    }
}

impl Known {
    /// From now on nothing older than this version may be found.
    fn keep(&mut self, number: u64) {
        self.versions.retain(|version| version.number >= number);
    }
}

fn sectors(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes().repeat(SECTOR / 8)).collect()
}

#[test]
fn the_ledger_knows_what_may_be_lost() {
    let mut ledger = Ledger::new(2 * SECTOR, Survives::Durable);
    let first = ledger.asked(0..2, false);
    assert!(ledger.check(&sectors(&[0, first])).is_ok(), "each sector by itself");
    let second = ledger.asked(0..2, false);
    let covered = ledger.covered();
    ledger.answered(0..2, second, false);
    ledger.flushed(&covered);
    assert!(ledger.check(&sectors(&[0, first])).is_ok(), "the flush was asked for before the write was answered");

    let third = ledger.asked(0..2, false);
    ledger.answered(0..2, third, false);
    let covered = ledger.covered();
    let zeroes = ledger.asked(1..2, true);
    ledger.flushed(&covered);
    assert_eq!(ledger.check(&sectors(&[0, third])), Err(format!("sector 0 holds 0, and may hold [{third}]")));
    assert!(ledger.check(&sectors(&[third, 0])).is_ok(), "zeroes on their way");
    ledger.answered(1..2, zeroes, true);
    let fourth = ledger.asked(1..2, false);
    ledger.answered(1..2, fourth, true);
    assert!(ledger.check(&sectors(&[third, 0])).is_err(), "what was to be durable is lost");
    let mut torn = sectors(&[third, fourth]);
    torn[8] ^= 1;
    assert_eq!(ledger.check(&torn), Err("sector 0 is torn".to_owned()));

    let mut ledger = Ledger::new(SECTOR, Survives::Answered);
    let number = ledger.asked(0..1, false);
    ledger.answered(0..1, number, false);
    assert!(ledger.check(&sectors(&[0])).is_err(), "an answer is enough");
}
