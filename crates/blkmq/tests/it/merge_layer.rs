//! Which operations merge on their way through the layer, and which do not.

use std::sync::Arc;

use crate::device::{Drive, ONE_QUEUE, Recorder, join, reap, virtual_queue, write};
use blkmq::driver::Topology;
use blkmq::{Bio, Change, Class, Client, Flags, GroupId, IoPriority, Limits, Op, RequestQueue, Status, Submitter};

/// Limits that stop no merge. A test changes the limit that it is about.
fn roomy() -> Limits {
    Limits {
        capacity_sectors: 1 << 20,
        max_sectors: 256,
        max_segments: 64,
        max_discard_sectors: 1 << 16,
        max_discard_segments: 8,
        max_write_zeroes_sectors: 1 << 16,
        write_cache: true,
        fua: true,
        ..Limits::default()
    }
}

/// A device with one tag, which a request at a distant place holds. So what is submitted waits in the scheduler.
struct Rig {
    device: Arc<Recorder>,
    q: RequestQueue,
    submitter: Submitter,
}

impl Rig {
    fn new(limits: Limits) -> Self {
        let device = Recorder::new(limits, Topology { depth: 1, ..ONE_QUEUE });
        let (q, _) = virtual_queue(device.clone(), |q| q.scheduler("mq-deadline"));
        q.change_knob("nr_requests", "64").and_then(Change::wait).expect("64 is in range");
        let mut submitter = join(&q);
        submitter.submit_now(crate::device::read((1 << 20) - 8, 8));
        assert_eq!(device.take_seen().len(), 1);
        Self { device, q, submitter }
    }

    /// Submits all: each in a plug of its own (`apart`), or all in one.
    fn submit(&mut self, apart: bool, bios: impl IntoIterator<Item = Bio>) {
        for bio in bios {
            self.submitter.submit(bio).expect("there is a slot");
            if apart {
                self.submitter.flush_plug();
            }
        }
        self.submitter.flush_plug();
    }

    fn nr_merges(&self) -> u64 {
        self.q.counters().merges_plug + self.q.counters().merges_insert
    }

    fn set_nomerges(&self, value: &str) {
        self.q.set_knob("nomerges", value).expect("the knob takes this");
    }

    /// Lets the device finish everything. Returns the sectors of each request, and into how many pieces its data is
    /// cut. All operations succeed.
    fn drain(&mut self) -> Vec<(u64, u32, usize)> {
        let mut requests = Vec::new();
        while self.device.nr_held() > 0 {
            self.device.finish_oldest(Status::Ok);
            assert!(reap(&mut self.submitter).iter().all(|completion| completion.status == Status::Ok));
            for seen in self.device.take_seen() {
                assert!(
                    seen.op != Op::Write || seen.data == crate::device::pattern(seen.sector, seen.nr_sectors.into())
                );
                requests.push((seen.sector, seen.nr_sectors, seen.segments.len()));
            }
        }
        assert_eq!((self.submitter.nr_outstanding(), self.q.busy_tags()), (0, 0));
        requests.sort_unstable();
        requests
    }
}

fn writes(sectors: &[u64]) -> Vec<Bio> {
    sectors.iter().map(|sector| write(*sector, 8)).collect()
}

#[test]
fn neighbours_merge_behind_and_in_front() {
    for (apart, in_plug, in_scheduler) in [(false, 4, 0), (true, 0, 4)] {
        let mut rig = Rig::new(roomy());
        rig.submit(apart, writes(&[16, 24, 8, 32, 0]));
        assert_eq!((rig.q.counters().merges_plug, rig.q.counters().merges_insert), (in_plug, in_scheduler));
        assert_eq!(rig.drain(), [(0, 40, 5)]);
    }
}

#[test]
fn what_fills_a_gap_joins_both_sides() {
    let mut rig = Rig::new(roomy());
    rig.submit(true, writes(&[0, 16, 64, 48, 8, 56]));
    assert_eq!(rig.q.counters().merges_insert, 4);
    assert_eq!(rig.drain(), [(0, 24, 3), (48, 24, 3)]);
}

#[test]
fn nomerges_1_tries_the_latest_only_and_2_none() {
    for (level, expected) in [
        ("0", vec![(0, 24, 3), (64, 8, 1)]),
        ("1", vec![(0, 8, 1), (8, 16, 2), (64, 8, 1)]),
        ("2", vec![(0, 8, 1), (8, 8, 1), (16, 8, 1), (64, 8, 1)]),
    ] {
        let mut rig = Rig::new(roomy());
        rig.set_nomerges(level);
        // The fourth write touches the third one, which was inserted last, and the first one, which was not.
        rig.submit(true, writes(&[0, 64, 16, 8]));
        assert_eq!(rig.drain(), expected, "nomerges={level}");
        let mut rig = Rig::new(roomy());
        rig.set_nomerges(level);
        rig.submit(false, writes(&[0, 8, 16]));
        let expected = if level == "2" { vec![(0, 8, 1), (8, 8, 1), (16, 8, 1)] } else { vec![(0, 24, 3)] };
        assert_eq!(rig.drain(), expected, "nomerges={level} in the plug");
    }
}

#[test]
fn merged_requests_stay_within_each_limit() {
    for (limits, expected) in [
        (Limits { max_sectors: 16, ..roomy() }, vec![(0, 16, 2), (16, 16, 2)]),
        (Limits { max_segments: 3, ..roomy() }, vec![(0, 24, 3), (24, 8, 1)]),
        (Limits { boundary_sectors: 8, ..roomy() }, vec![(0, 8, 1), (8, 8, 1), (16, 8, 1), (24, 8, 1)]),
    ] {
        for apart in [false, true] {
            let mut rig = Rig::new(limits);
            let bios = writes(&[0, 8, 16, 24]);
            rig.submit(apart, bios);
            assert_eq!(rig.drain(), expected, "{limits:?} apart {apart}");
        }
    }
}

/// Red if the merge key has no priority.
#[test]
fn requests_that_differ_do_not_merge() {
    let flags = |change: fn(&mut Flags)| {
        let mut flags = Flags::default();
        change(&mut flags);
        write(8, 8).with_flags(flags)
    };
    let different = || {
        [
            write(8, 8).with_priority(IoPriority { class: Class::RealTime, level: 4 }),
            write(8, 8).with_priority(IoPriority { class: Class::BestEffort, level: 5 }),
            flags(|flags| flags.nowait = true),
            flags(|flags| flags.polled = true),
            flags(|flags| flags.fua = true),
            flags(|flags| flags.preflush = true),
            flags(|flags| flags.nomerge = true),
            crate::device::read(8, 8),
            Bio::write_zeroes(8, 8),
            Bio::discard(8, 8),
        ]
    };
    for at in 0..different().len() {
        for apart in [false, true] {
            let mut rig = Rig::new(roomy());
            let bios = [write(0, 8), different().into_iter().nth(at).expect("it is one of them"), write(16, 8)];
            rig.submit(apart, bios);
            assert_eq!(rig.nr_merges(), 0, "difference {at}");
            assert!(rig.drain().iter().all(|(_, nr_sectors, _)| *nr_sectors <= 8));
        }
    }
}

/// Red if zeroes that must not leave a hole and zeroes that may leave one go to the device as one request.
#[test]
fn zeroes_of_two_kinds_do_not_merge() {
    let zeroes = |sector, nounmap| Bio::write_zeroes(sector, 8).with_flags(Flags { nounmap, ..Flags::default() });
    for apart in [false, true] {
        for (kinds, merges) in [([true, true, true], 2), ([false, false, false], 2), ([true, false, true], 0)] {
            let mut rig = Rig::new(roomy());
            let bios = kinds.into_iter().enumerate().map(|(at, nounmap)| zeroes(at as u64 * 8, nounmap));
            rig.submit(apart, bios);
            assert_eq!(rig.nr_merges(), merges, "{kinds:?}");
            rig.drain();
        }
    }
}

/// A stream of writes that two clients, in the groups with these numbers, submit by turns. Returns how many merged.
/// Each client gets its own operations back, with `status`.
fn merges_of_a_striped_stream(groups: [u32; 2], status: Status) -> u64 {
    const STRIPES: u64 = 32;
    let mut rig = Rig::new(roomy());
    let made = ["one", "other"].map(|name| rig.q.tenants().add_group(name, GroupId::ROOT, 100).expect("there is room"));
    let join = |(name, group): (&str, u32)| {
        let group = if group == 0 { GroupId::ROOT } else { made[group as usize - 1] };
        rig.q.submitter(&Client { group, ..Client::new(name) }).expect("there is a place")
    };
    let mut submitters = [("even", groups[0]), ("odd", groups[1])].map(join);
    let mut asked = [Vec::new(), Vec::new()];
    for stripe in 0..STRIPES {
        let of = (stripe % 2) as usize;
        asked[of].push(submitters[of].submit(write(8 * stripe, 8)).expect("there is a slot"));
        submitters[of].flush_plug();
    }
    let merges = rig.q.counters().merges_insert;
    let (mut over, mut written) = ([Vec::new(), Vec::new()], Vec::new());
    rig.device.finish_oldest(Status::Ok);
    assert_eq!(reap(&mut rig.submitter).len(), 1);
    while rig.device.nr_held() > 0 {
        rig.device.finish_oldest(status);
        for (submitter, over) in submitters.iter_mut().zip(&mut over) {
            over.extend(reap(submitter).iter().map(|completion| {
                assert_eq!(completion.status, status);
                completion.id
            }));
        }
        for seen in rig.device.take_seen() {
            written.extend(seen.data);
        }
    }
    // An operation that one submitter completed was handed to the other.
    for (submitter, over) in submitters.iter_mut().zip(&mut over) {
        over.extend(reap(submitter).iter().map(|completion| completion.id));
        over.sort_unstable();
        assert_eq!(submitter.nr_outstanding(), 0);
    }
    asked.iter_mut().for_each(|ids| ids.sort_unstable());
    assert_eq!(over, asked);
    assert_eq!(written, crate::device::pattern(0, 8 * STRIPES));
    merges
}

/// Red if the merge key has the client, or has not the group.
#[test]
fn a_stream_over_two_clients_merges_in_one_group_and_not_in_two() {
    for status in [Status::Ok, Status::Medium] {
        assert_eq!(merges_of_a_striped_stream([0, 0], status), 31);
        assert_eq!(merges_of_a_striped_stream([1, 1], status), 31);
        assert_eq!(merges_of_a_striped_stream([1, 2], status), 0);
    }
}

#[test]
fn the_error_of_a_merged_request_reaches_each_operation() {
    for apart in [false, true] {
        let mut rig = Rig::new(roomy());
        let bios = writes(&[16, 24, 8, 0, 640]);
        rig.submit(apart, bios);
        rig.device.finish_oldest(Status::Ok);
        assert_eq!(reap(&mut rig.submitter).len(), 1);
        rig.device.finish_oldest(Status::Medium);
        let done = reap(&mut rig.submitter);
        let mut sectors: Vec<_> = done.iter().map(|completion| completion.bio.sector).collect();
        sectors.sort_unstable();
        assert_eq!(sectors, [0, 8, 16, 24]);
        assert!(done.iter().all(|completion| completion.status == Status::Medium));
        assert_eq!(rig.q.counters().errors, 4);
        rig.device.finish_oldest(Status::Ok);
        let done = reap(&mut rig.submitter);
        assert_eq!((done.len(), done[0].status, done[0].bio.sector), (1, Status::Ok, 640));
    }
}

/// The ranges of the one discard that reaches the device.
fn discarded(limits: Limits, sectors: &[u64], apart: bool) -> Vec<Vec<(u64, u32)>> {
    let mut rig = Rig::new(limits);
    let bios = sectors.iter().map(|sector| Bio::discard(*sector, 8));
    rig.submit(apart, bios);
    let mut requests = Vec::new();
    while rig.device.nr_held() > 0 {
        rig.device.finish_oldest(Status::Ok);
        reap(&mut rig.submitter);
        requests.extend(rig.device.take_seen().into_iter().map(|seen| seen.ranges));
    }
    assert_eq!(rig.submitter.nr_outstanding(), 0);
    requests
}

#[test]
fn discards_merge_as_ranges() {
    for apart in [false, true] {
        let ranges = vec![(100, 8), (0, 8), (500, 8)];
        assert_eq!(discarded(roomy(), &[100, 0, 500], apart), [ranges]);
        let three = Limits { max_discard_segments: 2, ..roomy() };
        assert_eq!(discarded(three, &[100, 0, 500], apart), [vec![(100, 8), (0, 8)], vec![(500, 8)]]);
        let small = Limits { max_discard_sectors: 16, ..roomy() };
        assert_eq!(discarded(small, &[100, 0, 500], apart), [vec![(100, 8), (0, 8)], vec![(500, 8)]]);
    }
}

#[test]
fn no_range_of_a_discard_crosses_the_boundary() {
    let limits = Limits { boundary_sectors: 16, ..roomy() };
    for apart in [false, true] {
        for sectors in [&[0, 8, 16, 24][..], &[100, 8, 16], &[0, 200, 208, 8, 16]] {
            for (sector, nr_sectors) in discarded(limits, sectors, apart).concat() {
                let last = sector + u64::from(nr_sectors) - 1;
                assert_eq!(sector / 16, last / 16, "{sector}+{nr_sectors} of {sectors:?}, apart {apart}");
            }
        }
    }
}
