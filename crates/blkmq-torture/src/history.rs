//! The history of a world: one number, a hash, that stands for all of it, and a reader that may see each entry.

use std::hash::{Hash, Hasher};

use blkmq_sched::RqId;
use blkmq_vcpu::Switch;

use super::event::{Event, Stamp};

/// What a history is made of.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Entry<'a> {
    /// Something happened.
    Event(Stamp, Event<'a>),
    /// Another CPU runs from now on.
    Switch(Switch),
}

/// A reader that is called for each entry while the world runs.
pub(crate) type Reader = Box<dyn FnMut(Entry<'_>) + Send>;

/// A running hash of everything that happened, in order.
pub(crate) struct History {
    mix: Mix,
    reader: Option<Reader>,
}

impl History {
    /// A history that nothing has happened in.
    pub(crate) fn new(reader: Option<Reader>) -> Self {
        Self { mix: Mix::new(), reader }
    }

    /// Takes an entry in.
    pub(crate) fn note(&mut self, entry: Entry<'_>) {
        match &entry {
            // The allocator and the standard library decide how much memory a table takes, so the number must not
            // change the hash.
            Entry::Event(stamp, Event::Memory { .. }) => stamp.hash(&mut self.mix),
            Entry::Event(stamp, event) => (stamp, event).hash(&mut self.mix),
            Entry::Switch(switch) => switch.hash(&mut self.mix),
        }
        if let Some(reader) = &mut self.reader {
            reader(entry);
        }
    }

    /// The hash of all that was noted.
    pub(crate) fn hash(&self) -> u64 {
        self.mix.finish()
    }
}

/// A hash that depends on the order of the words. Each word changes the hash one to one, so two histories that differ
/// in a single word never have the same hash. But two histories with the same hash are easy to find on purpose.
#[derive(Debug, Clone)]
pub(crate) struct Mix(u64);

impl Mix {
    /// Nothing yet.
    pub(crate) const fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    #[inline]
    const fn word(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
}

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        blkmq_vcpu::Random::new(self.0).next()
    }

    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.word(u64::from_le_bytes(*word)));
        rest.iter().for_each(|byte| self.word(u64::from(*byte)));
    }

    fn write_u8(&mut self, number: u8) {
        self.word(u64::from(number));
    }

    fn write_u16(&mut self, number: u16) {
        self.word(u64::from(number));
    }

    fn write_u32(&mut self, number: u32) {
        self.word(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        self.word(number);
    }

    fn write_usize(&mut self, number: usize) {
        self.word(number as u64);
    }
}

impl Entry<'_> {
    /// Steps made so far.
    pub(crate) const fn step(&self) -> u64 {
        match self {
            Self::Event(stamp, _) => stamp.step,
            Self::Switch(switch) => switch.step,
        }
    }

    /// Virtual time, in ns.
    pub(crate) const fn time_ns(&self) -> u64 {
        match self {
            Self::Event(stamp, _) => stamp.time.0,
            Self::Switch(switch) => switch.time,
        }
    }

    /// The operation that the event is about.
    pub(crate) const fn bio(&self) -> Option<u64> {
        let Self::Event(_, event) = self else { return None };
        match *event {
            Event::Submitted { bio, .. }
            | Event::Named { bio, .. }
            | Event::Rejected { bio, .. }
            | Event::Reaped { bio, .. }
            | Event::HandedBack { bio, .. } => Some(bio),
            _ => None,
        }
    }

    /// The requests that the event is about. If the event is about an operation as well, the request is the
    /// operation's.
    pub(crate) const fn requests(&self) -> [Option<RqId>; 2] {
        let Self::Event(_, event) = self else { return [None, None] };
        match *event {
            Event::Named { id, .. } | Event::Reaped { id, .. } => [Some(id), None],
            Event::Inserted { rq, .. }
            | Event::Merged { into: rq, .. }
            | Event::Chosen { rq, .. }
            | Event::Offered { rq, .. }
            | Event::Overdue { rq, .. }
            | Event::Acted { rq, .. } => [Some(rq), None],
            Event::Absorbed { into, absorbed } => [Some(into), Some(absorbed)],
            _ => [None, None],
        }
    }

    /// Whether the event changes the whole world.
    pub(crate) const fn is_about_all(&self) -> bool {
        matches!(
            self,
            Self::Event(
                _,
                Event::Changed { .. }
                    | Event::Installed { .. }
                    | Event::PowerLost { .. }
                    | Event::Joined { .. }
                    | Event::Left { .. }
            )
        )
    }
}

#[cfg(test)]
mod tests {
    use blkmq_sched::Time;

    use super::*;

    fn hash(entries: &[Entry<'_>]) -> u64 {
        let mut history = History::new(None);
        entries.iter().for_each(|entry| history.note(*entry));
        history.hash()
    }

    fn at(step: u64, event: Event<'_>) -> Entry<'_> {
        Entry::Event(Stamp { step, time: Time(20 * step), cpu: 1 }, event)
    }

    #[test]
    fn whatever_differs_makes_another_hash() {
        let lost = |content| at(3, Event::PowerLost { content });
        let switch = |to, line| Entry::Switch(Switch { step: 3, time: 60, from: 1, to, line });
        let left = at(3, Event::Left { submitter: 1, hands_back: true });
        let histories: [&[Entry<'_>]; 13] = [
            &[],
            &[left],
            &[left, left],
            &[at(4, Event::Left { submitter: 1, hands_back: true })],
            &[at(3, Event::Left { submitter: 2, hands_back: true })],
            &[at(3, Event::Chosen { rq: RqId(1), now: Time(0) })],
            &[lost(&[])],
            &[lost(&[1, 2])],
            &[lost(&[2, 1])],
            &[switch(2, None)],
            &[switch(3, None)],
            &[switch(3, Some("queue.word"))],
            &[switch(3, Some("queue.words"))],
        ];
        let mut hashes: Vec<u64> = histories.into_iter().map(hash).collect();
        hashes.push(hash(&[left, switch(2, None)]));
        hashes.push(hash(&[switch(2, None), left]));
        assert_eq!(hash(&[left]), hashes[1]);
        let count = hashes.len();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), count);
    }
}
