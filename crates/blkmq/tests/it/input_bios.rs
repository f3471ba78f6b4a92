//! Operations that no device can do: each comes back with a status that says why, and leaves nothing behind.

use crate::device::{Drive, join, open};
use blkmq::{
    Bio, Buffer, Buffers, Class, Client, Flags, IoPriority, Op, RejectReason, RequestQueue, Status, Submitter,
};
use proptest::prelude::*;

/// 64 KiB in blocks of 4096 bytes.
const SMALL: &str = "null,memory_backed=1,discard=1,cache_size=1,size=64K,bs=4096,irqmode=2,completion_nsec=1000";
/// As [`SMALL`], without discard, zeroes and cache.
const PLAIN: &str = "null,size=64K,bs=4096";
const END: u64 = 128;

fn queue(device: &str, scheduler: &str) -> RequestQueue {
    RequestQueue::builder(open(device)).scheduler(scheduler).slots(16).build().expect("the queue is good")
}

/// The status of an operation, whether it is refused at submission or completes later.
fn outcome(submitter: &mut Submitter, bio: Bio) -> Status {
    let (op, sector, nr_sectors, user_data) = (bio.op, bio.sector, bio.nr_sectors, bio.user_data);
    let (bio, status) = match submitter.submit(bio) {
        Err(rejected) => {
            assert_eq!(submitter.nr_outstanding(), 0, "what is turned away takes no slot");
            let RejectReason::Bad(status) = rejected.reason else { panic!("an idle submitter is not full") };
            (rejected.bio, status)
        }
        Ok(_) => {
            let mut done = submitter.finish();
            assert_eq!(done.len(), 1);
            let done = done.remove(0);
            (done.bio, done.status)
        }
    };
    assert_eq!((bio.op, bio.sector, bio.nr_sectors, bio.user_data), (op, sector, nr_sectors, user_data));
    let q = submitter.queue();
    assert_eq!((q.busy_tags(), q.counters().entered), (0, q.counters().completed));
    status
}

fn io(op: Op, sector: u64, nr_sectors: u64, bytes: usize) -> Bio {
    let buffers = if bytes == 0 { Buffers::None } else { Buffer::zeroed(bytes).into() };
    Bio::new(op, sector, nr_sectors, buffers)
}

#[test]
fn each_bad_operation_has_its_status() {
    use Op::{Discard, Flush, Read, Write, WriteZeroes};
    use Status::{BadBuffer, BeyondEnd, Misaligned, Ok, TooLarge, Unsupported};
    let table = [
        (io(Read, 0, 8, 4096), Ok, Ok),
        (io(Write, END - 8, 8, 4096), Ok, Ok),
        (io(Write, 0, END, 65536), Ok, Ok),
        (io(Discard, 0, END, 0), Ok, Unsupported),
        (io(WriteZeroes, 0, END, 0), Ok, Unsupported),
        (io(Flush, 0, 0, 0), Ok, Ok),
        // Beyond the end: by a block, from the end on, completely, and by more sectors than there are.
        (io(Read, END - 8, 16, 8192), BeyondEnd, BeyondEnd),
        (io(Write, END, 8, 4096), BeyondEnd, BeyondEnd),
        (io(Read, 1 << 40, 8, 4096), BeyondEnd, BeyondEnd),
        (io(Write, 0, END + 8, 65536 + 4096), BeyondEnd, BeyondEnd),
        (io(Discard, 8, END, 0), BeyondEnd, BeyondEnd),
        // The sums overflow.
        (io(Read, u64::MAX - 7, 8, 4096), BeyondEnd, BeyondEnd),
        (io(Discard, 8, u64::MAX - 7, 0), BeyondEnd, BeyondEnd),
        (io(WriteZeroes, u64::MAX - 7, u64::MAX - 7, 0), BeyondEnd, BeyondEnd),
        (io(Write, 0, u64::MAX - 7, 4096), BeyondEnd, BeyondEnd),
        // Misaligned, or of no length.
        (io(Read, 1, 8, 4096), Misaligned, Misaligned),
        (io(Write, 0, 7, 3584), Misaligned, Misaligned),
        (io(Discard, 4, 8, 0), Misaligned, Misaligned),
        (io(Read, 0, 0, 0), Misaligned, Misaligned),
        (io(Write, u64::MAX, u64::MAX, 0), Misaligned, Misaligned),
        (io(WriteZeroes, 0, 0, 0), Misaligned, Misaligned),
        // Buffers of a wrong size, of parts of sectors, missing, or not wanted.
        (io(Read, 0, 8, 4095), BadBuffer, BadBuffer),
        (io(Write, 0, 8, 8192), BadBuffer, BadBuffer),
        (io(Read, 0, 8, 0), BadBuffer, BadBuffer),
        (Bio::new(Write, 0, 8, vec![Buffer::zeroed(100), Buffer::zeroed(3996)].into()), BadBuffer, BadBuffer),
        (Bio::new(Read, 0, 8, Vec::new().into()), BadBuffer, BadBuffer),
        (Bio::new(Read, 0, 8, vec![Buffer::zeroed(4096), Buffer::zeroed(0)].into()), Ok, Ok),
        (io(Flush, 0, 8, 0), BadBuffer, BadBuffer),
        (io(Flush, 0, 0, 4096), BadBuffer, BadBuffer),
        (io(Discard, 0, 8, 4096), BadBuffer, Unsupported),
        // An address means nothing to a flush.
        (io(Flush, u64::MAX, 0, 0), Ok, Ok),
    ];
    for (at, (bio, small, plain)) in table.into_iter().enumerate() {
        for scheduler in blkmq::scheduler_names() {
            for (device, expected) in [(SMALL, small), (PLAIN, plain)] {
                let copies = bio.buffers.iter().map(|buffer| Buffer::from(&buffer[..])).collect::<Vec<_>>();
                let copy = Bio::new(bio.op, bio.sector, bio.nr_sectors, copies.into()).with_user_data(at as u64);
                let q = queue(device, scheduler);
                assert_eq!(outcome(&mut join(&q), copy), expected, "row {at}: {bio:?} on {device}");
            }
        }
    }
    let q = queue("null,bs=512,max_sectors=8", "none");
    assert_eq!(outcome(&mut join(&q), io(Write, 0, 17 * 8, 17 * 4096)), TooLarge, "17 requests in 16 slots");
    assert_eq!(outcome(&mut join(&q), io(Write, 0, 16 * 8, 16 * 4096)), Ok);
}

#[test]
fn a_full_submitter_hands_the_operation_back_and_goes_on() {
    for scheduler in blkmq::scheduler_names() {
        let q = queue(PLAIN, scheduler);
        let mut submitter = join(&q);
        for number in 0..16 {
            submitter.submit(io(Op::Read, number * 8, 8, 4096).with_user_data(number)).expect("there is a slot");
        }
        let rejected = submitter.submit(io(Op::Read, 0, 8, 4096).with_user_data(99)).unwrap_err();
        assert_eq!((rejected.reason, rejected.bio.user_data), (RejectReason::Full, 99));
        assert_eq!(submitter.finish().len(), 16);
        assert_eq!(outcome(&mut submitter, rejected.bio), Status::Ok);
    }
}

/// Red if a `nowait` operation waits for a tag or for room in the scheduler, or is lost.
#[test]
fn nowait_ends_with_again_instead_of_waiting() {
    for scheduler in blkmq::scheduler_names() {
        let device = "null,size=1M,irqmode=2,completion_nsec=1000,hw_queue_depth=2,poll_queues=0";
        let q = queue(device, scheduler);
        if scheduler != "none" {
            q.change_knob("nr_requests", "4").and_then(blkmq::Change::wait).expect("4 is in range");
        }
        let mut submitter = join(&q);
        let flags = Flags { nowait: true, ..Flags::default() };
        for number in 0..16 {
            submitter.submit(io(Op::Read, number * 80, 8, 4096).with_flags(flags)).expect("there is a slot");
        }
        let done = submitter.finish();
        let again = done.iter().filter(|completion| completion.status == Status::Again).count();
        assert!((1..=14).contains(&again), "{scheduler}: {again}");
        assert!(done.iter().all(|completion| matches!(completion.status, Status::Ok | Status::Again)));
        assert_eq!((done.len(), q.busy_tags()), (16, 0));
        let freeze = q.freeze();
        submitter.submit(io(Op::Read, 0, 8, 4096).with_flags(flags)).expect("there is a slot");
        let refused = submitter.finish();
        drop(freeze);
        assert_eq!(refused[0].status, Status::Again);
        // A refused operation has the time of the refusal, and no time at which the driver got it.
        for completion in done.iter().chain(&refused) {
            let was_issued = completion.issued > blkmq_sched::Time(0);
            assert_eq!(was_issued, completion.status == Status::Ok);
            assert!(completion.completed >= completion.submitted && completion.completed > blkmq_sched::Time(0));
        }
    }
}

fn any_number() -> impl Strategy<Value = u64> {
    let near = |at: u64| (0_u64..20).prop_map(move |by| at.wrapping_sub(10).wrapping_add(by));
    prop_oneof![
        (0_u64..=END / 8).prop_map(|block| block * 8),
        near(0),
        near(END),
        near(1 << 32),
        near(1 << 55),
        any::<u64>()
    ]
}

fn any_bio() -> impl Strategy<Value = Bio> {
    let op = prop::sample::select(vec![Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes]);
    let level = (prop::sample::select(Class::ALL.to_vec()), 0_u8..9);
    let pieces = prop::collection::vec(prop_oneof![Just(4096_usize), Just(512), 0_usize..5000], 0..4);
    let fits = any::<bool>();
    (op, any_number(), any_number(), level, pieces, fits, any::<[bool; 10]>()).prop_map(
        |(op, sector, nr_sectors, (class, level), mut pieces, fits, flags)| {
            let has_data = matches!(op, Op::Read | Op::Write);
            if fits {
                // The buffers are as large as stated, where that is possible.
                pieces = if has_data && nr_sectors <= 2 * END { vec![nr_sectors as usize * 512] } else { Vec::new() };
            }
            let [sync, preflush, fua, readahead, meta, nowait, polled, at_head, nomerge, nounmap] = flags;
            let flags = Flags { sync, preflush, fua, readahead, meta, nowait, polled, at_head, nomerge, nounmap };
            let buffers = pieces.into_iter().map(Buffer::zeroed).collect::<Vec<_>>();
            Bio::new(op, sector, nr_sectors, buffers.into())
                .with_flags(flags)
                .with_priority(IoPriority { class, level })
        },
    )
}

proptest! {
    /// Red if an operation that an application submits, alone or among others, causes a panic, does not end once, or
    /// leaves something behind.
    #[test]
    fn any_operation_ends_and_leaves_nothing_behind(
        bios in prop::collection::vec(any_bio(), 1..12),
        device in prop::sample::select(vec![SMALL, PLAIN, "ram,size=64K,bs=4096", "null,size=64K,max_sectors=3"]),
        scheduler in prop::sample::select(blkmq::scheduler_names()),
    ) {
        let q = queue(device, scheduler);
        let mut submitter = join(&q);
        let mut taken = 0;
        for bio in bios {
            let fits = bio.sector.checked_add(bio.nr_sectors).is_some_and(|end| end <= END);
            let (op, fits) = (bio.op, fits || bio.op == Op::Flush);
            match submitter.submit(bio) {
                Ok(_) => {
                    prop_assert!(fits, "an operation beyond the end was taken");
                    taken += 1;
                }
                Err(rejected) => {
                    prop_assert!(rejected.bio.op == op && rejected.reason != RejectReason::Bad(Status::Ok));
                }
            }
        }
        let done = submitter.finish();
        prop_assert_eq!(done.len(), taken);
        prop_assert!(done.iter().all(|completion| matches!(completion.status, Status::Ok | Status::Again)));
        prop_assert_eq!((submitter.nr_outstanding(), q.busy_tags()), (0, 0));
        prop_assert_eq!(q.counters().entered, q.counters().completed);
    }
}

#[test]
fn a_priority_has_levels_from_0_to_7() {
    let q = queue(PLAIN, "mq-deadline");
    for (level, expected) in [(0, Status::Ok), (7, Status::Ok), (8, Status::BadPriority), (255, Status::BadPriority)] {
        let priority = IoPriority { class: Class::Idle, level };
        assert_eq!(outcome(&mut join(&q), io(Op::Read, 0, 8, 4096).with_priority(priority)), expected);
        let client = Client::new("test").with_priority(priority);
        let mut submitter = q.submitter(&client).expect("there is a place");
        assert_eq!(outcome(&mut submitter, io(Op::Read, 0, 8, 4096)), expected);
    }
}
