//! Operations come out of a load as they went in, however many there are.

use std::sync::atomic::AtomicBool;

use tempfile::SpooledData;

use super::*;

/// A read of one sector, of this task.
fn event(pid: u32, action: Action, time: u64, sector: u64) -> Event {
    Event { time, sector, ..Event::of_test(pid, action) }
}

fn load(events: impl IntoIterator<Item = Event>) -> Load {
    Load::read(events.into_iter().map(Ok), &Classes::default()).expect("the temporary file takes it")
}

/// The sector and the time of leaving the plug of all operations, by submitter.
fn operations(load: &Load) -> Vec<Vec<(u64, u64)>> {
    let submitters = load.submitters().expect("the temporary file can be read");
    let all = submitters.into_iter().map(|(mut coming, _)| {
        let mut all = Vec::new();
        while let Some(next) = coming.front() {
            all.push((next.sector, next.unplugged));
            coming.pop_front().expect("the temporary file can be read");
        }
        all
    });
    all.collect()
}

/// Three tasks, one behind the other and at last together, fill many buffers of their files. Red if an operation is
/// lost, read twice or given to another submitter.
#[test]
fn operations_of_several_submitters_are_read_back_in_order() {
    let alone = (0..3000_u32).map(|number| (number / 1000, number));
    let events = alone.chain((3000..9000).map(|number| (number % 3, number)));
    let load = load(events.map(|(pid, number)| event(pid, Action::Queue, number.into(), number.into())));
    assert_eq!((load.nr_operations, load.end, load.has_changes), (9000, 9000, false));
    for _ in 0..2 {
        let operations = operations(&load);
        assert_eq!(operations.iter().map(Vec::len).collect::<Vec<_>>(), [3000; 3]);
        for (pid, own) in operations.iter().enumerate() {
            let expected = (0..9000_usize).filter(|number| match number {
                0..3000 => number / 1000 == pid,
                _ => number % 3 == pid,
            });
            assert!(own.iter().map(|(sector, _)| *sector as usize).eq(expected), "{pid}");
        }
    }
}

/// Red if an operation is submitted in the order of the trace, not when its plug is emptied; or, with two processes on
/// one submitter, if one in a plug is overtaken by a later one of the other process.
#[test]
fn operations_come_in_the_order_in_which_plugs_were_emptied() {
    let [first, other] = [0, MAX_LANES as u32];
    let processes = (0..=other).map(|pid| event(pid, Action::Queue, 0, pid.into()));
    let unplugs = (0..=other).map(|pid| event(pid, Action::Unplug, 1, 0));
    let [queue, unplug] = [Action::Queue, Action::Unplug];
    let events = [
        event(first, queue, 2, 1000),
        event(first, queue, 3, 1001),
        event(other, queue, 4, 1002),
        event(other, unplug, 5, 0),
        event(other, queue, 6, 1003),
        event(first, unplug, 7, 0),
        // It completes before its plug is emptied, so it was in none.
        event(first, queue, 8, 1004),
        event(other, queue, 9, 1005),
        event(other, unplug, 10, 0),
        event(other, Action::Complete, 11, 1004),
        event(first, unplug, 12, 0),
    ];
    let load = load(processes.chain(unplugs).chain(events));
    let expected = [(0, 1), (128, 1), (1002, 5), (1000, 7), (1001, 7), (1004, 8), (1003, 10), (1005, 10)];
    assert_eq!(operations(&load)[0], expected);
}

/// Red if what a trace without completions leaves open is kept forever, or if its operations are held back until its
/// end.
#[test]
fn operations_that_never_complete_are_followed_for_a_while_only() {
    let classes = Classes::default();
    let mut reader = Reader::new(&classes, Source::Bios);
    let number = 3 * FOLLOWED;
    for at in 0..number {
        let flush = Event { bytes: 0, category: Category::FLUSH, ..event(2, Action::Queue, at, 0) };
        let read = event(1, Action::Queue, at, at);
        reader.step(if at % 2 == 0 { &flush } else { &read }).expect("the temporary file takes it");
    }
    assert!(reader.nr_open() <= 3 * FOLLOWED as usize, "{} are open", reader.nr_open());
    // A completion that comes so late belongs to none.
    reader.step(&event(0, Action::Complete, number, 1)).expect("the temporary file takes it");
    let load = reader.finish().expect("the temporary file takes it");
    assert_eq!((load.nr_operations, load.traced.completed), (number, 0));
    assert_eq!(load.traced.peaks, [number as usize / 2; 2]);
    let reads = &operations(&load)[1];
    assert!(reads.iter().copied().eq((1..number).step_by(2).map(|at| (at, at))));
}

/// Red if operations are taken of another kind than the first that the trace has, or if what came before them counts.
#[test]
fn a_kind_of_operation_that_comes_late_is_still_the_one() {
    let events = [Action::Issue, Action::Complete, Action::Insert, Action::Queue, Action::Insert, Action::Issue];
    let load = load(events.into_iter().zip(0..).map(|(action, time)| event(1, action, time, 0)));
    assert_eq!((load.source, load.nr_operations, load.nr_processes()), (Source::Bios, 1, 1));
    assert_eq!((load.traced.requests, load.traced.completed, operations(&load)), (2, 0, vec![vec![(0, 1)]]));
}

/// Red if a replay goes on without the operations that are missing, or leaves those before them with the device.
#[test]
fn a_load_that_cannot_be_read_on_is_played_to_there_and_said_so() {
    let load = load((0..1000).map(|at| event(1, Action::Queue, at, 16 * at)));
    let SpooledData::OnDisk(file) = &load.spools[0].data else { panic!("so many operations are in a file") };
    file.set_len(file.metadata().expect("it is a file").len() / 3).expect("the file is ours");
    let driver = blkmq::driver::spec::open("null,irqmode=2").expect("it has defaults");
    let clock = blkmq::Clock::Virtual(blkmq::VirtualClock::new());
    let q = blkmq::RequestQueue::builder(driver).clock(clock).build().expect("it makes sense");
    let played = crate::play(&load, &q, crate::Speed::Max, &AtomicBool::new(false), &mut |_| ());
    assert!(matches!(&played, Err(crate::PlayError::Load(error)) if error.kind() == io::ErrorKind::UnexpectedEof));
    assert_eq!(q.counters().issued, 333, "the operations that are there are played");
}
