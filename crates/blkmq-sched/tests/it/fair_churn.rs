//! What `fair` makes of clients that join and leave within a window of usage.

use crate::bench::{MS, ROOMY, lone};
use blkmq_sched::{
    ClientId, ClientSettings, Fair, Fairness, Feedback, GroupId, GroupSettings, InsertAt, Op, RqId, Scheduler, Setting,
    Time, Usage,
};

/// A scheduler that is told what clients got, as an embedder tells it.
pub(crate) struct Tenants {
    pub(crate) fair: Fair,
    pub(crate) now: Time,
    /// How often each place was given.
    times: [u32; 4],
    reports: Vec<Usage>,
    /// What the scheduler made of each window that is over.
    pub(crate) verdicts: Vec<Fairness>,
}

impl Tenants {
    pub(crate) fn new() -> Self {
        let mut fair = Fair::new();
        fair.configure(Setting::MergeLimits(ROOMY));
        Self { fair, now: Time(0), times: [0; _], reports: Vec::new(), verdicts: Vec::new() }
    }

    fn join_group(&mut self) -> GroupId {
        let (group, settings) = (GroupId::new(1, 1), GroupSettings { weight: 100, parent: GroupId::ROOT });
        self.fair.join_group(group, &settings);
        group
    }

    pub(crate) fn id(&self, of: usize) -> ClientId {
        ClientId::new(of, self.times[of])
    }

    /// A client of this name joins in this place.
    fn join_as(&mut self, of: usize, name: u64, group: GroupId) {
        self.times[of] += 1;
        self.fair.join(self.id(of), &ClientSettings { name, group, ..ClientSettings::default() });
    }

    pub(crate) fn join(&mut self, of: usize) {
        self.join_as(of, of as u64, GroupId::ROOT);
    }

    pub(crate) fn leave(&mut self, of: usize) {
        self.fair.leave(self.id(of));
    }

    /// The client that came last in this place got so many reads of 4 KiB, and has so many outstanding.
    pub(crate) fn got(&mut self, of: usize, operations: u64, outstanding: u32) {
        let (client, sectors) = (self.id(of), [8 * operations, 0]);
        self.reports.push(Usage { client, operations: [operations, 0, 0], sectors, outstanding });
    }

    /// The client has so many reads waiting, one after the other, and they are dispatched.
    pub(crate) fn order(&mut self, of: usize, requests: u64) {
        for rq in 0..requests {
            self.fair.reserve(1);
            self.fair.insert(RqId(rq), &lone(self.id(of), 0, Op::Read), InsertAt::Sorted, self.now);
            assert_eq!(self.fair.dispatch(&mut (), self.now), Some(RqId(rq)), "nothing is held back");
        }
    }

    /// So many milliseconds have passed since the last report.
    pub(crate) fn report(&mut self, ms: u64) {
        self.now = self.now.after(ms * MS);
        let verdict = self.fair.observe(Feedback::Usage(&self.reports, self.now));
        self.reports.clear();
        self.verdicts.extend((verdict != Fairness::Unknown).then_some(verdict));
    }

    fn all(&self, expected: Fairness) -> bool {
        self.verdicts.len() >= 8 && self.verdicts.iter().all(|verdict| *verdict == expected)
    }
}

/// A client that is always hungry, beside clients that stay for some milliseconds, get a fifth of the device, and
/// leave. Reports come each millisecond, as while a limiter is bounded, or each window.
///
/// Red if a client that joined within the window counts as one that was there all the time, however many reports there
/// were: it got less than it was due of the window then. Tried.
#[test]
fn clients_that_come_and_go_start_nothing() {
    for (stays, pauses, every, has_name) in [
        (3, 2, 1, false),
        (30, 5, 1, false),
        (45, 1, 1, false),
        (3, 0, 50, false),
        (30, 5, 50, false),
        (3, 12, 1, true),
    ] {
        let mut tenants = Tenants::new();
        tenants.join(1);
        let (mut got, mut names) = ([0; 2], 100);
        for ms in 0..1000 {
            let at = ms % (stays + pauses);
            if at == 0 {
                names += u64::from(!has_name);
                tenants.join_as(2, names, GroupId::ROOT);
            }
            let is_there = at < stays;
            got = if is_there { [got[0] + 80, got[1] + 20] } else { [got[0] + 100, got[1]] };
            tenants.order(1, 100);
            let is_last = at + 1 == stays;
            if is_last || (ms + 1) % every == 0 && is_there {
                // The reports of who leaves come with the next ones of all.
                tenants.got(2, std::mem::take(&mut got[1]), if is_last { 0 } else { 8 });
            }
            if is_last {
                tenants.leave(2);
            }
            if (ms + 1) % every == 0 {
                tenants.got(1, std::mem::take(&mut got[0]), 64);
                tenants.report(every);
            }
            assert_eq!(tenants.fair.next_wakeup(), None, "nobody waits for another one");
        }
        let verdicts = &tenants.verdicts;
        assert!(tenants.all(Fairness::Kept), "{stays} ms, {pauses} ms, each {every} ms: {verdicts:?}");
    }
}

/// One client of a group and one beside it always want more; another one of the group leaves within each window. What
/// all three got of 10000, and who is below its due.
///
/// Red if what a client got that has left is not counted: tried. Then the first two had a third and two thirds in the
/// first case, and half each in the second.
#[test]
fn what_a_client_got_that_has_left_counts() {
    for (got, expected) in [([2400, 5000, 2600], Fairness::Kept), ([2000, 2000, 6000], Fairness::Violated)] {
        for every in [1, 50] {
            let mut tenants = Tenants::new();
            let group = tenants.join_group();
            tenants.join_as(1, 1, group);
            tenants.join_as(2, 2, GroupId::ROOT);
            tenants.report(50);
            for name in 100..120 {
                tenants.join_as(3, name, group);
                tenants.got(3, got[2], 0);
                tenants.leave(3);
                for _ in 0..50 / every {
                    (1..3).for_each(|of| tenants.got(of, got[of - 1] * every / 50, 32));
                    tenants.report(every);
                }
            }
            assert!(tenants.all(expected), "{got:?}, each {every} ms: {:?}", tenants.verdicts);
        }
    }
}

/// A tenant that leaves and joins again all the time beside one that stays. Both always want more, and one of them gets
/// too little.
///
/// Red if what it got under earlier ids is not what its name got, or if it is not known that its name was there when
/// the window began: tried.
#[test]
fn who_leaves_and_joins_again_is_judged_by_what_its_name_got() {
    for (got, expected) in
        [([8000, 2000], Fairness::Violated), ([2000, 8000], Fairness::Violated), ([5000; 2], Fairness::Kept)]
    {
        for (every, stays) in [(1, 5), (50, 5), (50, 1)] {
            let mut tenants = Tenants::new();
            (1..3).for_each(|of| tenants.join(of));
            tenants.report(50);
            for ms in 1..=1000 {
                if ms % stays == 0 {
                    tenants.got(2, got[1] * stays / 50, 0);
                    tenants.leave(2);
                    tenants.join(2);
                }
                if ms % every == 0 {
                    tenants.got(1, got[0] * every / 50, 32);
                    tenants.got(2, 0, 32);
                    tenants.report(every);
                }
            }
            assert!(tenants.all(expected), "{got:?}, each {every} ms: {:?}", tenants.verdicts);
        }
    }
}

/// Red if a client that joins again escapes because many others have left since: tried.
#[test]
fn a_storm_of_clients_hides_nobody() {
    let mut tenants = Tenants::new();
    (1..3).for_each(|of| tenants.join(of));
    tenants.report(50);
    for window in 0..20 {
        for round in 0..100 {
            tenants.leave(2);
            tenants.join(2);
            tenants.join_as(3, 1000 + 100 * window + round, GroupId::ROOT);
            tenants.leave(3);
        }
        tenants.got(1, 800, 32);
        tenants.got(2, 200, 32);
        tenants.report(50);
    }
    assert!(tenants.all(Fairness::Violated), "{:?}", tenants.verdicts);
}

/// Many connections of one tenant, each with one operation outstanding, beside a client that gets most. With so few
/// operations outstanding that a client could not use more, nobody is held back for it.
///
/// Red if each connection is looked at for itself: tried.
#[test]
fn connections_of_a_tenant_are_hungry_together() {
    for (connections, expected) in [(8, Fairness::Enforced), (2, Fairness::Violated)] {
        let mut tenants = Tenants::new();
        (1..3).for_each(|of| tenants.join(of));
        tenants.report(50);
        for _ in 0..10 {
            (0..300).for_each(|_| (1..3).for_each(|of| tenants.order(of, 1)));
            tenants.got(1, 800, 32);
            (0..connections).for_each(|_| tenants.got(2, 200 / connections, 1));
            tenants.report(50);
        }
        assert_eq!(tenants.verdicts.last(), Some(&expected), "{connections}: {:?}", tenants.verdicts);
    }
}
