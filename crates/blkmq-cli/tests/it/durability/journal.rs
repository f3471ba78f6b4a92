//! The journal of what clients asked of a file, what its driver asked of the rings, and all answers, in one order. The
//! journal checks whether each flush and each FUA was answered after a sync that made durable what it should.
//!
//! An event that asks for something is in the journal before the request has an effect. An event that answers is in the
//! journal after the answer has happened. So whatever is after an answer in the journal came after it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

use blkmq_drivers::file::{Asked, Journal};

use crate::durability::load::{Kind, Operation};

#[derive(Debug, Clone, PartialEq, Eq)]
enum Event {
    /// A client is about to ask for something.
    Operation(Client, Operation),
    /// A client has its answer, and whether it was done.
    Over(Client, bool),
    /// A ring is about to be asked.
    Asked(Tag, Asked),
    /// A ring has answered: bytes done, or below zero an error.
    Answered(Tag, i32),
}

/// A client and its cookie.
type Client = (usize, u64);
/// A hardware queue and a tag.
type Tag = (u16, u16);

/// The journal of a run.
#[derive(Debug, Default)]
pub(crate) struct Log(Mutex<Vec<Event>>);

impl Journal for Log {
    fn asked(&self, hctx: u16, tag: u16, asked: Asked) {
        self.events().push(Event::Asked((hctx, tag), asked));
    }

    fn answered(&self, hctx: u16, tag: u16, result: i32) -> i32 {
        self.events().push(Event::Answered((hctx, tag), result));
        result
    }
}

/// Something that was asked for and answered, with both positions in the journal.
#[derive(Debug, Clone)]
struct Done<T> {
    what: T,
    asked: usize,
    answered: usize,
}

/// A change that a ring made in the file.
#[derive(Debug, Clone)]
struct Change {
    bytes: Range<u64>,
    /// Whether it was durable by itself when it was answered.
    is_durable: bool,
}

/// The numbers of what was checked.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) flushes: usize,
    pub(crate) fuas: usize,
    pub(crate) preflushes: usize,
}

impl Log {
    fn events(&self) -> MutexGuard<'_, Vec<Event>> {
        self.0.lock().expect("no test goes on after a panic")
    }

    pub(crate) fn operation(&self, client: usize, cookie: u64, operation: &Operation) {
        self.events().push(Event::Operation((client, cookie), operation.clone()));
    }

    pub(crate) fn over(&self, client: usize, cookie: u64, is_done: bool) {
        self.events().push(Event::Over((client, cookie), is_done));
    }

    /// Checks every reply.
    pub(crate) fn check(&self) -> Result<Tally, String> {
        check(&self.events())
    }
}

fn check(events: &[Event]) -> Result<Tally, String> {
    let (mut syncs, mut changes, mut operations) = (Vec::new(), Vec::new(), Vec::new());
    let (mut asked, mut pending) = (BTreeMap::new(), BTreeMap::new());
    for (place, event) in events.iter().enumerate() {
        match event {
            Event::Asked(tag, what) => _ = asked.insert(*tag, (place, *what)),
            Event::Answered(tag, result) => {
                let (asked, what) = asked.remove(tag).ok_or("an answer to what nobody asked for")?;
                let mut change = |bytes, is_durable| {
                    changes.push(Done { what: Change { bytes, is_durable }, asked, answered: place });
                };
                match what {
                    Asked::Write { offset, bytes, is_durable } => {
                        change(offset..offset + bytes.min((*result).max(0) as u64), is_durable);
                    }
                    Asked::Zero { offset, bytes } => {
                        change(offset..offset + if *result < 0 { 0 } else { bytes }, false);
                    }
                    Asked::Sync if *result == 0 => syncs.push(Done { what: (), asked, answered: place }),
                    Asked::Sync | Asked::Read | Asked::Pause => (),
                    Asked::Other(number) => return Err(format!("nobody knows what entry {number} does")),
                }
            }
            Event::Operation(client, operation) => _ = pending.insert(*client, (place, operation.clone())),
            Event::Over(client, is_done) => {
                let (asked, what) = pending.remove(client).ok_or("an answer to an operation that nobody asked for")?;
                if *is_done {
                    operations.push(Done { what, asked, answered: place });
                }
            }
        }
    }
    let rings = Rings { syncs, changes };
    let mut tally = Tally::default();
    for operation in &operations {
        rings.check(operation, &mut tally).map_err(|what| format!("{what}: {operation:?}"))?;
    }
    Ok(tally)
}

/// What the rings did.
struct Rings {
    syncs: Vec<Done<()>>,
    changes: Vec<Done<Change>>,
}

impl Rings {
    /// Whether a sync began after one position and was over before another.
    fn has_sync(&self, after: usize, before: usize) -> bool {
        self.syncs.iter().any(|sync| sync.asked > after && sync.answered < before)
    }

    /// The position of the last change that was over before another position. A flush that is asked for there covers
    /// it.
    fn last_change(&self, before: usize) -> usize {
        self.changes.iter().map(|change| change.answered).filter(|place| *place < before).max().unwrap_or(0)
    }

    /// The changes that were made for an operation. Operations that are in progress together have separate ranges, so
    /// the ranges tell them apart.
    fn parts(&self, operation: &Done<Operation>) -> impl Iterator<Item = &Done<Change>> {
        let Range { start, end } = operation.what.bytes;
        let (start, end) = (start as u64, end as u64);
        let (asked, answered) = (operation.asked, operation.answered);
        self.changes.iter().filter(move |change| {
            let meets = change.what.bytes.start < end && start < change.what.bytes.end;
            meets && change.asked > asked && change.answered < answered
        })
    }

    fn check(&self, operation: &Done<Operation>, tally: &mut Tally) -> Result<(), &'static str> {
        let Done { what: Operation { kind, bytes, fua, preflush }, asked, answered } = operation;
        let covered = self.last_change(*asked);
        if *kind == Kind::Flush {
            tally.flushes += 1;
            return if self.has_sync(covered, *answered) { Ok(()) } else { Err("a flush without a sync") };
        }
        if *preflush {
            tally.preflushes += 1;
            let first = self.parts(operation).map(|part| part.asked).min().ok_or("a write that wrote nothing")?;
            if !self.has_sync(covered, first) {
                return Err("a write before the sync that was to come first");
            }
        }
        if *fua {
            tally.fuas += 1;
            let durable = |part: &&Done<Change>| part.what.is_durable || self.has_sync(part.answered, *answered);
            let parts = self.parts(operation).filter(durable).map(|part| part.what.bytes.clone());
            if !covers(parts.collect(), bytes.start as u64..bytes.end as u64) {
                return Err("FUA without a durable write, or a sync behind it");
            }
        }
        Ok(())
    }
}

/// Whether the parts cover the whole range.
fn covers(mut parts: Vec<Range<u64>>, whole: Range<u64>) -> bool {
    parts.sort_by_key(|part| part.start);
    let reached = parts.iter().fold(
        whole.start,
        |reached, part| {
            if part.start <= reached { reached.max(part.end) } else { reached }
        },
    );
    reached >= whole.end
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAG: Tag = (0, 1);
    const SYNC: Tag = (0, 2);

    fn operation(cookie: u64, kind: Kind, bytes: Range<usize>, fua: bool, preflush: bool) -> Event {
        Event::Operation((0, cookie), Operation { kind, bytes, fua, preflush })
    }

    fn over(cookie: u64) -> Event {
        Event::Over((0, cookie), true)
    }

    /// A ring's write of this many bytes, of which it did some.
    fn write(bytes: u64, is_durable: bool, done: i32) -> [Event; 2] {
        [Event::Asked(TAG, Asked::Write { offset: 0, bytes, is_durable }), Event::Answered(TAG, done)]
    }

    fn zero() -> [Event; 2] {
        [Event::Asked(TAG, Asked::Zero { offset: 0, bytes: 512 }), Event::Answered(TAG, 0)]
    }

    fn sync(result: i32) -> [Event; 2] {
        [Event::Asked(SYNC, Asked::Sync), Event::Answered(SYNC, result)]
    }

    fn judge(events: &[&[Event]]) -> Result<Tally, String> {
        check(&events.concat())
    }

    #[test]
    fn a_flush_is_answered_behind_a_sync_that_began_after_the_writes_it_covers() {
        let written: &[Event] =
            &[&[operation(1, Kind::Write, 0..512, false, false)], &write(512, false, 512)[..], &[over(1)]].concat();
        let asked = &[operation(2, Kind::Flush, 0..0, false, false)];
        let [begun, synced] = &sync(0).map(|event| [event]);
        let good = judge(&[written, asked, &sync(0), &[over(2)]]);
        assert_eq!(good, Ok(Tally { flushes: 1, ..Tally::default() }));
        assert!(judge(&[written, begun, asked, synced, &[over(2)]]).is_ok(), "it covers it too");

        assert!(judge(&[written, asked, &[over(2)]]).is_err(), "no sync");
        assert!(judge(&[written, asked, &sync(-5), &[over(2)]]).is_err(), "one that failed");
        assert!(judge(&[written, asked, &[over(2)], &sync(0)]).is_err(), "one that came too late");
        assert!(judge(&[written, asked, begun, &[over(2)], synced]).is_err(), "one that went on");
        assert!(judge(&[&sync(0), written, asked, &[over(2)]]).is_err(), "one before the write");
        let [wrote, done] = &write(512, false, 512).map(|event| [event]);
        let first = &[operation(1, Kind::Write, 0..512, false, false)];
        let early = judge(&[first, wrote, begun, done, &[over(1)], asked, synced, &[over(2)]]);
        assert!(early.is_err(), "one that began before the write was over");
    }

    #[test]
    fn fua_is_answered_behind_a_durable_write_or_a_sync() {
        for (kind, bytes) in [(Kind::Write, 0..512), (Kind::Zero, 0..512), (Kind::Discard, 0..512)] {
            let asked = &[operation(1, kind, bytes, true, false)];
            let end = &[over(1)];
            let part = if kind == Kind::Write { write(512, false, 512) } else { zero() };
            assert_eq!(judge(&[asked, &part, &sync(0), end]), Ok(Tally { fuas: 1, ..Tally::default() }));
            assert!(judge(&[asked, &part, end]).is_err(), "neither");
            assert!(judge(&[asked, &part, end, &sync(0)]).is_err(), "a sync that came too late");
            assert!(judge(&[asked, &sync(0), &part, end]).is_err(), "a sync that came too early");
        }
        let asked = &[operation(1, Kind::Write, 0..1024, true, false)];
        let rest = |is_durable| {
            [Event::Asked(TAG, Asked::Write { offset: 512, bytes: 512, is_durable }), Event::Answered(TAG, 512)]
        };
        assert!(judge(&[asked, &write(1024, true, 1024), &[over(1)]]).is_ok());
        assert!(judge(&[asked, &write(1024, true, 512), &[over(1)]]).is_err(), "half of it is not written");
        assert!(judge(&[asked, &write(1024, true, 512), &rest(true), &[over(1)]]).is_ok());
        assert!(judge(&[asked, &write(1024, true, 512), &rest(false), &[over(1)]]).is_err(), "half is not durable");
    }

    #[test]
    fn a_write_that_wants_a_flush_before_it_comes_behind_a_sync() {
        let before: &[Event] =
            &[&[operation(1, Kind::Write, 512..1024, false, false)], &write(2048, false, 2048)[..], &[over(1)]]
                .concat();
        let asked = &[operation(2, Kind::Write, 0..512, false, true)];
        let part = write(512, false, 512);
        let good = judge(&[before, asked, &sync(0), &part, &[over(2)]]);
        assert_eq!(good, Ok(Tally { preflushes: 1, ..Tally::default() }));
        assert!(judge(&[before, asked, &part, &sync(0), &[over(2)]]).is_err());
        assert!(judge(&[before, asked, &part, &[over(2)]]).is_err());
    }
}
