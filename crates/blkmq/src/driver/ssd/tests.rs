//! The SSD as a driver, without the block layer.

mod published;

use blkmq_sched::Time;
use proptest::prelude::*;

use super::flash::{CommandKind, Flash};
use super::{Config, Ssd};
use crate::driver::harness::Harness;
use crate::driver::tests::{numbers, play, random_cases};
use crate::driver::{Driver, Topology};
use crate::request::bio::{Bio, Flags};
use crate::request::buffer::Buffer;

const US: u64 = 1000;

fn ssd(parameters: &str) -> Ssd {
    Ssd::new(parameters.parse::<Config>().unwrap())
}

fn flash(parameters: &str) -> Flash {
    Flash::new(parameters.parse().unwrap())
}

fn read(number: u64) -> Bio {
    Bio::read(8 * number, Buffer::zeroed(4096)).with_user_data(number)
}

/// A read of one page on an idle SSD, in whole microseconds: flash, channel, link, and the rest.
#[test]
fn a_read_takes_its_page_and_its_transfers() {
    let mut ssd = flash("read=45us,read_slow=45us,latency=20us,channel_mbps=1024,link_mbps=4096");
    let alone = ssd.submit(CommandKind::Read, 0, 8, Time(0));
    assert_eq!(alone, Time(45 * US + 20 * US + 4 * US + US));
    // Four pages in a row lie on four dies: only the transfers are longer.
    let later = Time(1_000_000);
    assert_eq!(ssd.submit(CommandKind::Read, 0, 128, later).since(later), 45 * US + 20 * US + 16 * US + 16 * US);
    // Two reads of one page: the die does one after the other.
    let later = Time(2_000_000);
    assert_eq!(ssd.submit(CommandKind::Read, 0, 8, later).since(later), 70 * US);
    assert!(ssd.submit(CommandKind::Read, 8, 8, later).since(later) >= 45 * US + 70 * US);
}

#[test]
fn a_third_of_the_pages_is_slow() {
    let mut ssd = flash("read=40us,read_slow=60us,latency=0,iops=1000000");
    let slow = (0..3000)
        .filter(|page| {
            let now = Time(page * 1_000_000);
            ssd.submit(CommandKind::Read, page * 32, 8, now).since(now) > 60 * US
        })
        .count();
    // Four standard deviations of a binomial distribution with n = 3000 and p = 1/3.
    assert!((897..=1103).contains(&slow), "{slow}");
}

#[test]
fn a_write_is_over_in_the_buffer_and_a_flush_when_it_is_in_the_flash() {
    let mut ssd = flash("latency=0,write_latency=0,program=300us");
    let now = Time(1_000_000);
    assert!(ssd.submit(CommandKind::Write, 0, 8, now).since(now) < 5 * US);
    let flushed = ssd.submit(CommandKind::Flush, 0, 0, now).since(now);
    assert!((300 * US..310 * US).contains(&flushed), "{flushed}");
    let later = Time(2_000_000);
    assert!(ssd.submit(CommandKind::Flush, 0, 0, later).since(later) < 5 * US, "the flash has everything");
    let forced = ssd.submit(CommandKind::WriteThrough, 0, 8, later).since(later);
    assert!((300 * US..310 * US).contains(&forced), "{forced}");
}

/// Red if what waits for room in the buffer does not take slots, or if the controller has more slots than it was given.
#[test]
fn writes_that_wait_for_room_keep_others_waiting_only_when_they_have_all_slots() {
    // A buffer of 64 rows, and one die: two rows a millisecond.
    let parameters = "buffer=1,max_sectors=32,channels=1,dies=1,row_pages=1,program=500us,gc_copies=0,gc_background=0,\
                      latency=0,slots=4";
    let full = |nr_more: u64| {
        let mut ssd = flash(parameters);
        (0..64 + nr_more).for_each(|number| _ = ssd.submit(CommandKind::Write, 32 * number, 32, Time(0)));
        ssd.submit(CommandKind::Read, 0, 8, Time(0)).0
    };
    // The read waits for the row under way, and for nothing else.
    assert!((0..4).all(|nr| full(nr) < 1200 * US), "{} {}", full(0), full(3));
    // Each further write waits until the row of the write four places before it is in the flash, and the read too.
    for nr in [8, 20] {
        let rows = nr - 3;
        assert!((500 * US * rows..500 * US * (rows + 2) + 100 * US).contains(&full(nr)), "{nr}: {}", full(nr));
    }
}

/// Red if a die that copies rows first is not slower by what the copies take, or programs less than a row at once.
#[test]
fn writing_is_as_fast_as_the_dies_program_and_copy() {
    let rate = |parameters: &str| {
        let (mut ssd, mut end) = (flash(parameters), Time(0));
        for number in 0..200 {
            end = ssd.submit(CommandKind::Write, number * 2048, 2048, end);
        }
        200 * 1_000_000_000 / ssd.submit(CommandKind::Flush, 0, 0, end).0
    };
    // 64 dies program three pages of 16 KiB in 1350 us.
    let fast = rate("gc_copies=0,max_sectors=2048");
    assert!((2000..=2223).contains(&fast), "{fast} MiB/s");
    // With from three to nine copies, of three reads and a program each.
    let slow = rate("spare=1,gc_size=1G,gc_copies=6,max_sectors=2048");
    assert!((200..=520).contains(&slow), "{slow} MiB/s");
}

/// Red if a die copies while it has something else to do, or does not copy when it has nothing else to do.
#[test]
fn an_idle_die_copies_rows_in_the_background() {
    let parameters = "channels=1,dies=1,row_pages=1,read=50us,read_slow=50us,program=500us,gc_copies=0,latency=0,\
                      gc_background=1";
    let mut ssd = flash(parameters);
    (0..3).for_each(|number| _ = ssd.submit(CommandKind::Write, 32 * number, 32, Time(0)));
    let flushed = ssd.submit(CommandKind::Flush, 0, 0, Time(0));
    assert!((1500 * US..1520 * US).contains(&flushed.0), "the three rows come first: {flushed:?}");
    // Then three copies of 550 us each. A read waits for the one under way, and the next one for nothing.
    let mut read = |at: u64| ssd.submit(CommandKind::Read, 0, 8, Time(at)).since(Time(at)) / US;
    assert!((500..=570).contains(&read(1600 * US)), "the first copy has 450 us to go");
    assert!((50..=60).contains(&read(10_000 * US)), "all are done");
}

#[test]
fn the_number_of_hardware_queues_changes_and_they_share_the_flash() {
    let ssd = ssd("submit_queues=1,iops=1000");
    let topology = Topology::new(3, 1023);
    ssd.set_topology(topology).unwrap();
    assert!(ssd.set_topology(Topology { default_queues: 0, ..topology }).is_err());
    for hctx in 0..3 {
        let mut queue = Harness::new(&ssd, hctx);
        queue.push(read(u64::from(hctx)));
        queue.issue(Time(0));
        let due = ssd.next_event(hctx).time().unwrap();
        assert_eq!(due.0 / 1_000_000, u64::from(hctx), "the controller takes a command each millisecond");
        assert_eq!(numbers(queue.poll(due)), [u64::from(hctx)]);
    }
}

#[test]
fn limits_follow_the_parameters() {
    let limits = ssd("").limits();
    assert!(limits.write_cache && limits.fua && !limits.rotational && limits.max_discard_segments == 256);
    assert!(!ssd("write_cache=0").limits().write_cache);
}

proptest! {
    #![proptest_config(random_cases(128))]

    /// Whatever is asked, and whenever the device is looked at, each request completes once, at the time that was said
    /// when it came. A second SSD with the same seed says the same.
    #[test]
    fn each_completes_once_at_a_time_that_the_seed_decides(
        seed in 0..4_u64,
        steps in prop::collection::vec((0..200_u64, 0..5u8, 0..4000_u64, 1..64_u64, any::<bool>()), 1..150),
    ) {
        let run = |looks| {
            let bios = steps.iter().map(|&(gap, op, sector, nr, look)| {
                let buffer = Buffer::zeroed(nr as usize * 512);
                let bio = match op {
                    0 | 1 => Bio::read(sector, buffer),
                    2 => Bio::flush(),
                    3 => Bio::write(sector, buffer).with_flags(Flags { fua: true, ..Flags::NONE }),
                    _ => Bio::write(sector, buffer),
                };
                (gap, bio, look)
            });
            play(&ssd(&format!("seed={seed},spare=1,gc_size=1,slots=3,size=64M,buffer=2")), bios, looks)
        };
        prop_assert_eq!(run(false), run(true));
    }
}
