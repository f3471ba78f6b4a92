//! The driver in front of a library that a test has made up.

use std::sync::mpsc;
use std::thread;

use blkmq::driver::harness::Harness;
use blkmq::driver::spec;
use blkmq::{Bio, Buffer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::library::tests::fake::Fake;
use super::*;

fn open(config: Config) -> Result<Rbd, String> {
    Rbd::open_with(config, Fake::load, &|_| ()).map_err(|error| error.to_string())
}

/// The driver of an image of so many bytes, of which clients have been told.
fn opened(bytes: usize) -> (Fake, Rbd) {
    let fake = Fake::new(bytes);
    let rbd = open(Config::new("rbd", "disk")).expect("the fake opens");
    assert_eq!(rbd.limits().capacity_sectors, bytes as u64 / 512);
    (fake, rbd)
}

fn filled(byte: u8, bytes: usize) -> Buffer {
    Buffer::from(&vec![byte; bytes][..])
}

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("it can be polled") == 1
}

/// Starts requests, which librbd gets all.
fn start(harness: &mut Harness<'_>, bios: impl IntoIterator<Item = Bio>) {
    bios.into_iter().for_each(|bio| harness.push(bio));
    assert!(harness.issue(Time(0)).is_empty(), "librbd has them");
}

/// The operations that librbd has, with their ranges.
fn pending(fake: &Fake) -> Vec<(&'static str, u64, u64)> {
    fake.pending().iter().map(|pending| (pending.what, pending.start, pending.bytes)).collect()
}

/// What becomes of one request that librbd answers with this.
fn status_of(harness: &mut Harness<'_>, fake: &Fake, bio: Bio, result: Option<isize>) -> Status {
    start(harness, [bio]);
    fake.answer(0, result);
    harness.poll(Time(0)).remove(0).1
}

/// Red if pieces get lost or out of order, if an answer ends another request, or if the descriptor does not tell of
/// answers, or tells of none forever.
#[test]
#[cfg_attr(miri, ignore = "there are no eventfds")]
fn requests_are_over_in_the_order_of_the_answers() {
    let (fake, rbd) = opened(1 << 20);
    let mut harness = Harness::new(&rbd, 0);
    let pieces = vec![filled(1, 512), filled(2, 1024), filled(3, 512)];
    let reads = [Bio::read(8, vec![Buffer::zeroed(1024), Buffer::zeroed(1024)]), Bio::read(100, Buffer::zeroed(512))];
    let bios = [Bio::write(8, pieces)].into_iter().chain(reads).zip(0..);
    start(&mut harness, bios.map(|(bio, number)| bio.with_user_data(number)));
    assert_eq!(pending(&fake), [("write", 4096, 2048), ("read", 4096, 2048), ("read", 51200, 512)]);
    let fd = rbd.ready_fd(0).expect("it has one");
    assert!(!is_readable(fd) && harness.poll(Time(0)).is_empty());
    fake.answer(2, None);
    fake.answer(0, None);
    assert!(is_readable(fd));
    let order = |over: Vec<(Bio, Status)>| over.iter().map(|(bio, _)| bio.user_data).collect::<Vec<_>>();
    assert_eq!(order(harness.poll(Time(0))), [2, 0]);
    assert!(!is_readable(fd));
    fake.answer(0, None);
    let over = harness.poll(Time(0));
    let data: Vec<u8> = over[0].0.buffers.iter().flat_map(|buffer| buffer.to_vec()).collect();
    assert!(data == [[1; 512], [2; 512], [2; 512], [3; 512]].concat() && over[0].1.is_ok());
    assert_eq!(fake.contents()[4096..6144], data);
}

/// Red if more answers than are taken by one call are left behind.
#[test]
#[cfg_attr(miri, ignore = "there are no eventfds")]
fn one_poll_takes_all_answers() {
    let (fake, rbd) = opened(1 << 20);
    let mut harness = Harness::new(&rbd, 0);
    start(&mut harness, (0..128).map(|number| Bio::write(number, filled(number as u8, 512))));
    (0..128).rev().for_each(|place| fake.answer(place, None));
    assert_eq!(harness.poll(Time(0)).len(), 128);
    assert!((0..128).all(|number| fake.contents()[number * 512..][..512] == [number as u8; 512]));
}

/// Red if an operation is not what librbd is asked for, or if its flag gets lost.
#[test]
#[cfg_attr(miri, ignore = "there are no eventfds")]
fn every_operation_is_one_of_librbd() {
    let (fake, rbd) = opened(1 << 20);
    let mut harness = Harness::new(&rbd, 0);
    let mut keeping = Bio::write_zeroes(16, 8);
    keeping.flags.nounmap = true;
    start(&mut harness, [Bio::flush(), Bio::discard(8, 8), Bio::write_zeroes(16, 8), keeping]);
    assert_eq!(
        pending(&fake),
        [("flush", 0, 0), ("discard", 4096, 4096), ("zero", 8192, 4096), ("thick zero", 8192, 4096)]
    );
    (0..4).for_each(|_| fake.answer(0, None));
    assert!(harness.poll(Time(0)).iter().all(|(_, status)| status.is_ok()));
}

/// Red if an error loses its meaning, if a short read counts as whole, or if a client that is shut out counts as well.
#[test]
#[cfg_attr(miri, ignore = "there are no eventfds")]
fn errors_keep_their_meaning() {
    let (fake, rbd) = opened(1 << 20);
    let mut harness = Harness::new(&rbd, 0);
    for (errno, status) in [
        (libc::EIO, Status::IoError),
        (libc::ENOSPC, Status::NoSpace),
        (libc::EDQUOT, Status::NoSpace),
        (libc::EAGAIN, Status::IoError),
        (libc::EROFS, Status::IoError),
        (libc::ETIMEDOUT, Status::Timeout),
        (libc::EOPNOTSUPP, Status::Unsupported),
    ] {
        let result = Some(-errno as isize);
        assert_eq!(status_of(&mut harness, &fake, Bio::write(0, filled(1, 512)), result), status, "{errno}");
    }
    for (bytes, status) in [(4096, Status::Ok), (512, Status::IoError), (0, Status::IoError)] {
        assert_eq!(status_of(&mut harness, &fake, Bio::read(0, Buffer::zeroed(4096)), Some(bytes)), status, "{bytes}");
    }
    assert_eq!(rbd.health(), Health::Good);
    let shut_out = Some(-libc::ESHUTDOWN as isize);
    assert_eq!(status_of(&mut harness, &fake, Bio::write(0, filled(1, 512)), shut_out), Status::IoError);
    assert!(rbd.health().trouble().is_some_and(|text| text.contains("blocklisted")), "{:?}", rbd.health());
}

/// Red if a request that librbd refuses is waited for, or if its completion is kept.
#[test]
#[cfg_attr(miri, ignore = "there are no eventfds")]
fn a_request_that_is_refused_is_over_at_once() {
    let (fake, rbd) = opened(1 << 20);
    let mut harness = Harness::new(&rbd, 0);
    fake.fail("write", libc::ENOSPC);
    harness.push(Bio::write(0, filled(1, 512)));
    harness.push(Bio::write(8, filled(2, 512)));
    let over = harness.issue(Time(0));
    assert_eq!(over.iter().map(|(_, status)| *status).collect::<Vec<_>>(), [Status::NoSpace]);
    fake.answer(0, None);
    assert_eq!(harness.poll(Time(0)).len(), 1, "the other one goes on");
    assert_eq!(status_of(&mut harness, &fake, Bio::write(0, filled(3, 512)), None), Status::Ok, "the tag is free");
}

/// Red if an image that grows is not told of, if a request reaches past the end of one that shrinks, or if what was
/// cut off counts as done.
#[test]
#[cfg_attr(miri, ignore = "there are no eventfds")]
fn nothing_is_written_past_the_end() {
    let (fake, rbd) = opened(8192);
    let mut harness = Harness::new(&rbd, 0);
    fake.resize(16384 + 100);
    assert_eq!(rbd.limits().capacity_sectors, 32, "whole sectors count");
    assert_eq!(status_of(&mut harness, &fake, Bio::write(24, filled(1, 4096)), None), Status::Ok);
    // Both are with librbd while the image shrinks. librbd cuts the write off, and says nothing.
    start(&mut harness, [Bio::write(8, filled(2, 8192)), Bio::write(0, filled(3, 4096))]);
    fake.resize(8192);
    (0..2).for_each(|_| fake.answer(0, None));
    let statuses: Vec<_> = harness.poll(Time(0)).iter().map(|(_, status)| *status).collect();
    assert_eq!(statuses, [Status::IoError, Status::Ok]);
    harness.push(Bio::read(16, Buffer::zeroed(512)));
    assert_eq!(harness.issue(Time(0))[0].1, Status::IoError, "librbd is not asked");
    assert!(fake.pending().is_empty());
    fake.resize(16384);
    harness.push(Bio::read(16, Buffer::zeroed(512)));
    assert_eq!(harness.issue(Time(0))[0].1, Status::IoError, "what was there is gone");
    let loss = "rbd/disk: the image has become smaller: it had 16484 bytes, and then 8192;";
    assert!(matches!(rbd.health(), Health::Failed(text) if text.starts_with(loss)));
}

/// Red if a request whose time is over is given up while librbd has its memory, or if nothing tells of it.
#[test]
#[cfg_attr(miri, ignore = "there are no eventfds")]
fn a_request_that_is_late_is_waited_for() {
    let (fake, rbd) = opened(8192);
    let mut harness = Harness::new(&rbd, 0);
    start(&mut harness, [Bio::write(0, filled(1, 512))]);
    assert!(harness.expire(0, Time(1)).is_none());
    assert!(matches!(rbd.health(), Health::Away(_)));
    fake.answer(0, None);
    assert!(harness.poll(Time(2))[0].1.is_ok());
    assert_eq!(rbd.health(), Health::Good);
}

/// Red if something is closed that librbd still uses, or in the wrong order, or if the driver does not wait for what
/// is in flight when it goes.
#[test]
#[cfg_attr(miri, ignore = "there are no eventfds")]
fn everything_is_closed_when_nothing_is_in_flight() {
    let (fake, rbd) = opened(8192);
    let mut harness = Harness::new(&rbd, 0);
    start(&mut harness, (0..2).map(|sector| Bio::write(sector, filled(1, 512))));
    // The harness cannot end the requests that are lost with the driver, so their memory is leaked.
    std::mem::forget(harness);
    fake.answer(1, None);
    let (ended, end) = mpsc::channel();
    let thread = thread::spawn(move || {
        drop(rbd);
        ended.send(()).expect("the test waits");
    });
    // The thread waits for the second answer once it has taken the first.
    while fake.has_answers() {
        thread::yield_now();
    }
    assert!(end.try_recv().is_err() && !fake.calls().contains(&"close".to_owned()));
    fake.answer(0, None);
    end.recv().expect("it ends");
    thread.join().expect("it ends well");
    let calls = fake.calls();
    assert_eq!(calls[calls.len() - 4..], ["unwatch", "close", "destroy", "shutdown"]);
}

/// Red if an image that a program takes leave of stays open, is closed twice, is closed while a request is in flight,
/// or is used once it is closed.
#[test]
#[cfg_attr(miri, ignore = "there are no eventfds")]
fn a_program_that_ends_takes_leave_of_the_image() {
    let (fake, rbd) = opened(8192);
    let mut harness = Harness::new(&rbd, 0);
    let closed = || fake.calls().iter().filter(|call| *call == "close").count();
    start(&mut harness, [Bio::write(0, filled(1, 512))]);
    rbd.close();
    assert_eq!(closed(), 0, "librbd has a request");
    fake.answer(0, None);
    assert!(harness.poll(Time(0))[0].1.is_ok());
    rbd.close();
    assert_eq!(closed(), 1);
    harness.push(Bio::write(0, filled(1, 512)));
    assert_eq!(harness.issue(Time(0))[0].1, Status::IoError);
    assert!(harness.poll(Time(0)).is_empty() && fake.pending().is_empty());
    drop(harness);
    drop(rbd);
    assert_eq!(fake.calls().iter().filter(|call| ["close", "shutdown"].contains(&call.as_str())).count(), 2);
}

/// Red if what a spec says does not reach Ceph, or a snapshot can be changed.
#[test]
#[cfg_attr(miri, ignore = "there are no eventfds")]
fn a_spec_says_what_is_opened() {
    let fake = Fake::new(1 << 20);
    let mut config = Config::new("images", "disk");
    config.namespace = Some("a".to_owned());
    config.snapshot = Some("old".to_owned());
    config.conf = Some(PathBuf::from("x.conf"));
    config.client = "client.me".to_owned();
    config.connect_timeout = Duration::from_millis(500);
    let rbd = open(config).expect("the fake opens");
    let expected = [
        "create client.me",
        "conf x.conf",
        "set rbd_cache=false",
        "set client_mount_timeout=1",
        "connect",
        "pool images",
        "namespace a",
        "open read-only disk old",
        "stat",
        "notify",
    ];
    assert_eq!(fake.calls(), expected);
    let limits = rbd.limits();
    assert!(limits.read_only && limits.max_discard_sectors == 0 && !limits.write_cache);
    assert_eq!(limits.max_sectors, 2048, "an object of the image");
    let mut shown = String::new();
    rbd.show(&mut shown).expect("a text takes it");
    assert!(shown.starts_with("rbd images/a/disk@old (1048576 bytes, objects of 1048576, read only, librbd 1.16.0)"));
    assert!(shown.contains("in units of 65536 bytes"), "{shown}");
}

/// Red if a cache that librbd has is not told of, because its pool or image says so or it was asked for.
#[test]
#[cfg_attr(miri, ignore = "there are no eventfds")]
fn a_cache_is_told_of() {
    for (options, is_cached) in [
        (&[("rbd_cache", "false")][..], false),
        (&[("rbd_cache", "true")], true),
        (&[("rbd_cache", "what")], true),
        (&[("rbd_persistent_cache_mode", "disabled")], false),
        (&[("rbd_persistent_cache_mode", "ssd")], true),
    ] {
        let fake = Fake::new(8192);
        options.iter().for_each(|(name, value)| fake.set(name, value));
        let told = std::cell::Cell::new(false);
        let config = Config::new("rbd", "disk");
        let rbd = Rbd::open_with(config, Fake::load, &|_| told.set(true)).expect("the fake opens");
        assert_eq!((rbd.limits().write_cache, told.get()), (is_cached, is_cached), "{options:?}");
        assert!(!rbd.limits().fua);
    }
    let fake = Fake::new(8192);
    let rbd = open(Config { cache: true, ..Config::new("rbd", "disk") }).expect("the fake opens");
    assert!(fake.calls().contains(&"set rbd_cache=true".to_owned()) && !rbd.limits().write_cache);
}

/// Red if an error does not name what is missing, or if what was open stays open.
#[test]
#[cfg_attr(miri, ignore = "there are no eventfds")]
fn an_image_that_cannot_be_opened_says_why() {
    let failing = |calls: &[&'static str], errno, snapshot: Option<&str>| {
        let fake = Fake::new(8192);
        calls.iter().for_each(|call| fake.fail(call, errno));
        let snapshot = snapshot.map(str::to_owned);
        let error = open(Config { snapshot, ..Config::new("rbd", "disk") }).expect_err("it fails");
        let mut calls = fake.calls();
        calls.retain(|call| ["unwatch", "close", "destroy", "shutdown"].contains(&&**call));
        (error, calls.join(" "))
    };
    let gone = "No such file or directory (os error 2)";
    let end = "destroy shutdown";
    assert_eq!(failing(&["pool"], 2, None), (format!("rbd/disk: there is no pool 'rbd': {gone}"), "shutdown".into()));
    assert_eq!(failing(&["open"], 2, None), (format!("rbd/disk: there is no image 'disk': {gone}"), end.into()));
    let twice = &["open read-only", "open read-only"];
    assert_eq!(failing(twice, 2, Some("old")), (format!("rbd/disk@old: there is no image 'disk': {gone}"), end.into()));
    assert_eq!(
        failing(&twice[1..], 2, Some("old")),
        (format!("rbd/disk@old: image 'disk' has no snapshot 'old': {gone}"), format!("close {end}"))
    );
    let (error, calls) = failing(&["conf"], 2, None);
    assert!(error.starts_with("rbd/disk: there is no configuration of a cluster in $CEPH_CONF"), "{error}");
    assert_eq!(calls, "shutdown");
    let (error, _) = failing(&["connect"], 110, None);
    assert!(error.starts_with("rbd/disk: no monitor has answered (as client.admin): "), "{error}");
    for call in ["stat", "notify"] {
        assert_eq!(failing(&[call], 5, None).1, format!("close {end}"));
    }
}

/// Red if a spec that names no image, or two clients, is accepted.
#[test]
fn a_spec_names_an_image_and_one_client() {
    let error_of =
        |spec| spec::open_one_of(&[DEVICE], spec, &spec::Opener::SILENT).expect_err("it is wrong").to_string();
    let missing = "device rbd: the pool or the image is missing, as in rbd,pool=rbd,image=disk";
    assert_eq!(["rbd", "rbd,pool=a", "rbd,image=a"].map(error_of), [missing; 3]);
    let twice = "rbd,pool=a,image=b,id=c,client=client.d";
    assert_eq!(error_of(twice), "device rbd: give id or client, not both");
}
