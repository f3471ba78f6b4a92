//! What holds of every model of a device, and what the tests of single ones share.

use blkmq_sched::Time;

use super::cloud::Cloud;
use super::harness::Harness;
use super::hdd::Hdd;
use super::model::Profile;
use super::null::Null;
use super::ssd::Ssd;
use super::{Driver, Model, spec};
use crate::request::Status;
use crate::request::bio::{Bio, Flags};
use crate::request::buffer::Buffer;

/// So many cases, from a seed that is printed and that `BLKMQ_SEED` sets.
pub(super) fn random_cases(cases: u32) -> proptest::test_runner::Config {
    let seed = std::env::var("BLKMQ_SEED").map_or(0x5eed, |seed| seed.parse().expect("BLKMQ_SEED is a number"));
    println!("BLKMQ_SEED={seed}");
    proptest::test_runner::Config {
        cases,
        rng_seed: proptest::test_runner::RngSeed::Fixed(seed),
        failure_persistence: None,
        ..Default::default()
    }
}

/// The numbers of bios that are over without an error.
pub(super) fn numbers(done: Vec<(Bio, Status)>) -> Vec<u64> {
    done.into_iter().inspect(|done| assert!(done.1.is_ok())).map(|(bio, _)| bio.user_data).collect()
}

/// Issues each bio so many microseconds after the one before, numbered from 0. Polls whenever something is over, and,
/// if it `looks`, before each bio with which that is said. Returns which was over when.
pub(super) fn play(driver: &dyn Driver, bios: impl Iterator<Item = (u64, Bio, bool)>, looks: bool) -> Vec<(u64, Time)> {
    let mut queue = Harness::new(driver, 0);
    let (mut now, mut over, mut issued) = (Time(0), Vec::new(), 0);
    for (gap, bio, look) in bios {
        let until = now.after(gap * 1000);
        while let Some(at) = driver.next_event(0).time().filter(|at| *at <= until || issued - over.len() == 60) {
            over.extend(numbers(queue.poll(at)).into_iter().map(|number| (number, at)));
            now = now.max(at);
        }
        now = now.max(until);
        if looks && look {
            over.extend(numbers(queue.poll(now)).into_iter().map(|number| (number, now)));
        }
        queue.push(bio.with_user_data(issued as u64));
        assert!(queue.issue(now).is_empty());
        issued += 1;
    }
    while let Some(at) = driver.next_event(0).time() {
        over.extend(numbers(queue.poll(at)).into_iter().map(|number| (number, at)));
    }
    let mut all: Vec<_> = over.iter().map(|(number, _)| *number).collect();
    all.sort_unstable();
    assert_eq!(all, (0..issued as u64).collect::<Vec<_>>(), "each is over once");
    over
}

/// Red if a model completes a request that it gave up, keeps a place for it, or tells other times than it keeps to.
#[test]
fn each_completes_when_it_is_due_and_a_request_given_up_to_a_timeout_never() {
    for spec in ["null,irqmode=2,completion_nsec=100", "hdd", "hdd,write_cache=0", "ssd", "cloud"] {
        let device = spec::open(spec).unwrap();
        let mut queue = Harness::new(&*device, 0);
        (0..3).for_each(|number| queue.push(Bio::read(number << 23, Buffer::zeroed(4096)).with_user_data(number)));
        assert!(numbers(queue.issue(Time(0))).is_empty(), "{spec}");
        let due = device.next_event(0).time().expect("the device has three requests");
        assert_eq!(queue.due_times().1, Some(due), "{spec}");
        assert!(queue.poll(Time(due.0 - 1)).is_empty(), "{spec}");
        let (bio, status) = queue.expire(2, Time(1)).expect("the device gives it up");
        assert_eq!((bio.user_data, status), (2, Status::Timeout), "{spec}");
        let mut over = Vec::new();
        while let Some(at) = device.next_event(0).time() {
            over.extend(numbers(queue.poll(at)));
        }
        over.sort_unstable();
        assert_eq!((over, queue.due_times().0), (vec![0, 1], 0), "{spec}");
    }
}

#[test]
fn a_power_loss_takes_what_was_neither_flushed_nor_forced() {
    fn check<C: Profile>(device: &Model<C>, left: [u8; 3]) {
        let mut queue = Harness::new(device, 0);
        let filled = |sector, byte| Bio::write(sector, Buffer::from(&[byte; 512][..]));
        let forced = filled(1, 3).with_flags(Flags { fua: true, ..Flags::NONE });
        for bio in [filled(0, 1), Bio::flush(), filled(0, 2), forced, filled(2, 4)] {
            assert!(queue.run(bio).1.is_ok(), "{device:?}");
        }
        let mut first_bytes = || {
            let (bio, status) = queue.run(Bio::read(0, Buffer::zeroed(3 * 512)));
            let bytes = || bio.buffers.iter().flat_map(|buffer| [buffer[0], buffer[512], buffer[1024]]).collect();
            status.is_ok().then(bytes)
        };
        assert_eq!(first_bytes(), Some(vec![2, 3, 4]), "{device:?}");
        device.lose_power();
        assert_eq!(first_bytes(), None, "a device without power answers nothing: {device:?}");
        device.restore_power();
        assert_eq!(first_bytes(), Some(left.to_vec()), "{device:?}");
    }
    let config = "memory_backed=1,size=16M";
    check(&Null::new(format!("{config},irqmode=0,cache_size=1").parse().unwrap()), [1, 3, 0]);
    check(&Hdd::new(config.parse().unwrap()), [1, 3, 0]);
    check(&Ssd::new(config.parse().unwrap()), [1, 3, 0]);
    check(&Ssd::new(format!("{config},write_cache=0").parse().unwrap()), [2, 3, 4]);
    check(&Cloud::new(config.parse().unwrap()), [2, 3, 4]);
}

#[test]
fn parameters_that_contradict_each_other_are_refused_with_the_reason() {
    for (device, parameters, reason) in [
        ("null", "discard=1", "discard=1 needs memory_backed=1"),
        ("null", "cache_size=1", "cache_size needs memory_backed=1"),
        ("null", "bs=1000", "bs=1000 is not one of 512, 1024, 2048, 4096"),
        ("null", "size=1536,bs=1024", "a size of 1536 bytes is no multiple of bs=1024"),
        ("null", "size=1M,gb=1", "give size or gb, not both"),
        ("null", "max_sectors=7,bs=4096", "max_sectors=7 is less than a block of 8 sectors"),
        ("null", "submit_queues=1024", "1024 default, 0 read and 1 polled hardware queues are more than 1024"),
        ("hdd", "seek_average=1us", "a longer seek takes longer: seek_track <= seek_average <= seek_full"),
        ("hdd", "cache_size=1,max_sectors=4096", "a request of max_sectors=4096 does not fit into cache_size"),
        ("hdd", "size=2G,gb=1", "give size or gb, not both"),
        ("ssd", "page=5", "page=5120 is not a power of two"),
        ("ssd", "read_slow=1us", "a slow page takes longer: read <= read_slow"),
        ("ssd", "buffer=1", "a request of max_sectors=2560 does not fit into the buffer"),
        ("ssd", "size=2G,gb=1", "give size or gb, not both"),
        ("cloud", "iops=0", "iops=\"0\": give a number of operations a second from 1 to 1000000000"),
        ("cloud", "mbps=2G", "mbps=\"2G\": give a number of MB/s from 1 to 1000000"),
        ("cloud", "hold=2s", "hold=\"2s\": give a time from 0 to 1000000000 (in ns, or with ns, us, ms, s)"),
        ("cloud", "burst=2d", "burst=\"2d\": \"d\" is no unit; there are: ns, us, ms, s"),
        ("cloud", "size=2G,gb=1", "give size or gb, not both"),
    ] {
        let error = spec::open(&format!("{device},{parameters}")).expect_err(reason).to_string();
        assert_eq!(error, format!("device {device}: {reason}"));
    }
}
