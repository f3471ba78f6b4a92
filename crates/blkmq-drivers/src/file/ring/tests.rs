//! A ring without the block layer: what wakes a thread that sleeps on it, and what the kernel is handed.

use std::thread;
use std::time::Duration;

use blkmq::Notify;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::file::Config;

fn is_readable(ring: &Ring) -> bool {
    let fd = ring.fd();
    poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&Timespec::default())).expect("it can be polled") == 1
}

fn ring() -> Ring {
    ring_of(false)
}

fn ring_of(is_owned: bool) -> Ring {
    let folder = tempfile::tempdir().expect("it can be made");
    let path = folder.path().join("file");
    let target =
        Target::open(&Config { size: Some(1 << 20), ..Config::new(&path) }, &|_| ()).expect("it can be opened");
    Ring::new(&target, 4, is_owned, None).expect("the kernel has rings")
}

/// Red if the call does not wait: a thread that sleeps would wake at once, again and again, while another thread
/// takes completions.
#[test]
#[cfg_attr(miri, ignore = "there is no io_uring")]
fn a_thread_about_to_sleep_waits_for_the_one_that_takes_completions() {
    let ring = ring();
    let reaping = lock(&ring.reaping);
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| ring.fd());
        thread::sleep(Duration::from_millis(20));
        assert!(!sleeper.is_finished(), "it did not wait");
        drop(reaping);
    });
}

#[test]
#[cfg_attr(miri, ignore = "there is no io_uring")]
fn a_ring_is_readable_while_completions_lie_on_it() {
    let ring = ring();
    assert!(!is_readable(&ring) && !ring.is_behind());
    for tag in 0..4 {
        let transfer = lock(&ring.transfers[usize::from(tag)]);
        ring.put(&mut lock(&ring.starting), tag, &transfer);
    }
    assert!(!is_readable(&ring), "the kernel has not been asked yet");
    ring.submit(&mut lock(&ring.starting));
    let timeout = Timespec { tv_sec: 60, tv_nsec: 0 };
    let fd = ring.fd();
    assert_eq!(poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&timeout)), Ok(1));
    let mut over = Vec::new();
    while over.len() < 4 {
        // SAFETY: no other thread has the ring.
        let completions = unsafe { ring.uring.completion_shared() };
        over.extend(completions.map(|completion| (completion.user_data(), completion.result())));
    }
    over.sort_unstable();
    assert_eq!(over, [(0, 0), (1, 0), (2, 0), (3, 0)]);
    assert!(!is_readable(&ring) && !ring.is_behind());
}

/// Longer than any test takes: a sleep that nothing ends shows by what is missing after it.
const TIMEOUT: Option<Duration> = Some(Duration::from_secs(60));

/// Takes everything off the ring: how many transfers, and how often the watched event was readable.
fn take_all(ring: &Ring) -> (usize, usize) {
    // SAFETY: no other thread has the ring.
    let completions: Vec<_> = unsafe { ring.uring.completion_shared() }.collect();
    completions.iter().filter(|completion| completion.user_data() & BELL != 0).for_each(|bell| ring.note_bell(bell));
    let is_bell = |word: u64| word & BELL != 0 && word != BELL | NO_BELL;
    // The answer for a watch that was ended is an error.
    let nr_bells = completions.iter().filter(|bell| is_bell(bell.user_data()) && bell.result() > 0);
    let nr_transfers = completions.iter().filter(|completion| completion.user_data() & BELL == 0).count();
    (nr_transfers, nr_bells.count())
}

/// Red if the ring watches no event, watches it for one sleep only, or goes on watching the event of a submitter
/// that has left.
#[test]
#[cfg_attr(miri, ignore = "there is no io_uring")]
fn an_event_ends_the_sleep_on_a_ring_each_time() {
    let ring = ring_of(true);
    let (first, second) = (EventFd::new().expect("it can be made"), EventFd::new().expect("it can be made"));
    for bell in [&first, &first, &second, &first] {
        thread::scope(|scope| {
            scope.spawn(|| bell.notify());
            assert!(ring.sleep(bell, TIMEOUT), "the kernel lets a thread sleep on a ring");
        });
        let (transfers, bells) = take_all(&ring);
        assert!(transfers == 0 && bells > 0, "{bells} bells");
        bell.drain();
    }
    first.drain();
    second.notify();
    ring.sleep(&first, Some(Duration::ZERO));
    assert_eq!(take_all(&ring), (0, 0), "the event of the submitter that has left is not watched");
}

/// Red if an event that was readable before the ring watched it, or between two sleeps, is missed.
#[test]
#[cfg_attr(miri, ignore = "there is no io_uring")]
fn an_event_from_before_the_sleep_ends_the_sleep() {
    let ring = ring_of(true);
    let bell = EventFd::new().expect("it can be made");
    for _ in 0..2 {
        bell.notify();
        ring.sleep(&bell, TIMEOUT);
        assert_eq!(take_all(&ring), (0, 1));
    }
}

/// Red if a sleep on the ring does not hand over what the kernel has not taken, or does not say that it has.
#[test]
#[cfg_attr(miri, ignore = "there is no io_uring")]
fn a_sleep_hands_over_what_the_kernel_has_not_taken() {
    let ring = ring_of(true);
    let bell = EventFd::new().expect("it can be made");
    let transfer = lock(&ring.transfers[3]);
    ring.sleep(&bell, Some(Duration::ZERO));
    ring.put(&mut lock(&ring.starting), 3, &transfer);
    ring.set_behind(true);
    ring.sleep(&bell, TIMEOUT);
    assert_eq!((take_all(&ring), ring.is_behind()), ((1, 0), false));
}

/// Red if what found no room on the ring is forgotten, is torn apart, or is overtaken by what comes later.
#[test]
#[cfg_attr(miri, ignore = "there is no io_uring")]
fn what_finds_no_room_goes_later_and_in_order() {
    let ring = ring();
    let mut side = lock(&ring.starting);
    let nop = |number: u64| opcode::Nop::new().build().user_data(number);
    let chain = |first: u64| (first..first + 3).map(nop).collect::<Box<[_]>>();
    let nr_fit = (0..).take_while(|number| ring.fits(&[nop(*number)])).count() as u64;
    assert!(nr_fit >= 6, "two chains fit on the shortest ring");
    side.later.extend([chain(nr_fit), chain(nr_fit + 3)]);
    ring.set_behind(true);
    ring.push(&mut side, &[nop(nr_fit + 6)]);
    ring.submit(&mut side);
    assert_eq!((side.later.len(), ring.is_behind()), (0, false));
    drop(side);
    // SAFETY: no other thread has the ring.
    let completions = unsafe { ring.uring.completion_shared() };
    let numbers: Vec<_> = completions.map(|completion| completion.user_data()).collect();
    assert_eq!(numbers, (0..nr_fit + 7).collect::<Vec<_>>());
}
