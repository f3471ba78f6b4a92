//! Clients: threads that submit.

mod buffers;
mod direct;
mod futures;
mod mix;
mod notified;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use blkmq_sched::{Class, IoPriority, RqId};
use blkmq_vcpu::{Random, thread};
use blkmq_virtual::{
    Bio, Client as Tenant, Completion, Op, QueueError, RejectReason, Rejected, Submitter, TenantError,
};

use self::buffers::Spare;
use self::direct::Rhythm;
use self::mix::{Mix, Wish};
use super::check::Violation;
use super::check::parts::parts;
use super::claims::Claim;
use super::event::{Asked, Event, Times};
use super::pace::magnitude;
use super::tenancy::tenant_name;
use super::world::{Share, World};

/// The way in which a client works.
#[derive(Debug, Clone)]
enum Kind {
    /// Passes on, polls and waits in a rhythm.
    Direct(Rhythm),
    /// Sleeps without the queue's help until it is told of a completion, or until the time at which its submitter wants
    /// to look again.
    Notified,
    /// Awaits at most this many futures at a time.
    Futures(u64),
}

/// A client with meetings comes only once in a while. Between two meetings it does nothing for a long time, and has
/// nothing outstanding.
#[derive(Debug, Clone, Copy)]
struct Meetings {
    period_ns: u64,
    /// Rounds that the client stays at a meeting, on average.
    rounds: u64,
}

/// What a client is like.
#[derive(Debug, Clone)]
pub(crate) struct Workload {
    kind: Kind,
    /// The priority of the operations that have none of their own.
    priority: IoPriority,
    tenant: u16,
    mix: Mix,
    /// The most operations that the client submits before it looks for completions.
    burst: u64,
    /// Percent of bursts that are handed over in one call.
    batches: u64,
    /// Rounds until the client leaves, on average. `None`: the client stays.
    stay: Option<u64>,
    /// The longest pause between rounds, in ns.
    pause_ns: u64,
    /// When all clients come together, if they do.
    meetings: Option<Meetings>,
    random: Random,
}

impl Workload {
    /// Draws about this many clients, sometimes fewer or more, of a device of this capacity. Some clients share a
    /// tenant and are one client to the queue. `period_ns`: how often the clients come together.
    pub(crate) fn draw_all(random: &mut Random, nr_clients: u16, capacity: u64, period_ns: Option<u64>) -> Vec<Self> {
        // Many busy clients would hide a missed wake-up: each finds work that another client should have been told of.
        let nr_clients = match random.below(8) {
            0 => 1,
            1 => nr_clients.min(2),
            2 => nr_clients.div_ceil(2),
            // A thread that starts requests notes the clients of these requests one by one. These are more clients than
            // a thread can note.
            3 if period_ns.is_none() && random.one_in(2) => 3 * nr_clients,
            _ => nr_clients,
        };
        let are_sleepers = period_ns.is_some() || random.one_in(3);
        let meetings = period_ns.map(|period_ns| Meetings { period_ns, rounds: *random.pick(&[1, 1, 2, 4]) });
        let most_at_once = if meetings.is_some() && random.one_in(4) { 200 } else { 64 };
        let nr_tenants = random.within(1, u64::from(nr_clients));
        // With several classes the higher ones go first, and deadlines matter little.
        let class = random.one_in(2).then(|| *random.pick(&Class::ALL));
        let alike = random.one_in(2).then(|| Mix::draw(random, capacity, class));
        let one = |_| {
            let number = random.below(nr_tenants);
            let mix = alike.clone().unwrap_or_else(|| Mix::draw(random, capacity, class));
            let priority = mix::priority(&mut Random::new(number), class);
            Self {
                kind: match random.below(8) {
                    0 => Kind::Futures(magnitude(random, 64)),
                    1 => Kind::Notified,
                    _ if are_sleepers => Kind::Direct(Rhythm::sleeper(random)),
                    _ => Kind::Direct(Rhythm::draw(random)),
                },
                tenant: number as u16,
                priority,
                mix,
                burst: magnitude(random, most_at_once),
                batches: *random.pick(&[0, 0, 50, 100]),
                stay: random.one_in(3).then(|| 1 + magnitude(random, 500)),
                pause_ns: if are_sleepers { 0 } else { magnitude(random, 100_000) },
                meetings,
                random: random.fork(),
            }
        };
        (0..nr_clients).map(one).collect()
    }
}

impl Workload {
    /// Draws clients of a few tenants that always have more outstanding than the device takes.
    pub(crate) fn flood_all(random: &mut Random, nr_clients: u16, capacity: u64) -> Vec<Self> {
        let nr_tenants = random.within(2, 4);
        let class = Some(Class::BestEffort);
        let one = |number: u64| {
            let tenant = number % nr_tenants;
            Self {
                kind: Kind::Direct(Rhythm::sleeper(random)),
                tenant: tenant as u16,
                priority: mix::priority(&mut Random::new(tenant), class),
                mix: Mix::flood(random, capacity),
                burst: 64,
                batches: *random.pick(&[0, 50, 100]),
                stay: None,
                pause_ns: 0,
                meetings: None,
                random: random.fork(),
            }
        };
        (0..nr_tenants.max(nr_clients.into())).map(one).collect()
    }

    /// Draws a few clients, each of a tenant of its own, that ask for little in one area.
    pub(crate) fn join_all(random: &mut Random, nr_clients: u16, capacity: u64) -> Vec<Self> {
        let nr_tenants = random.within(2, 6).min(nr_clients.max(2).into());
        let mix = Mix::joint(random, capacity);
        let one = |number: u64| Self {
            kind: Kind::Direct(Rhythm::idler(random)),
            tenant: number as u16,
            priority: IoPriority::default(),
            mix: mix.clone(),
            burst: random.within(1, 4),
            batches: *random.pick(&[0, 50, 100]),
            stay: random.one_in(3).then(|| 1 + magnitude(random, 500)),
            pause_ns: magnitude(random, 500_000),
            meetings: None,
            random: random.fork(),
        };
        (0..nr_tenants).map(one).collect()
    }

    /// The number of the tenant that the client submits for.
    pub(crate) const fn tenant(&self) -> u16 {
        self.tenant
    }
}

/// A client at work.
pub(crate) struct Client {
    world: Arc<World>,
    number: u16,
    workload: Workload,
    /// The outstanding operations of this client, by number, with the sectors that are taken for each.
    outstanding: BTreeMap<u64, Option<Claim>>,
    spare: Spare,
    /// The data of a read, one word for each sector.
    stamps: Vec<u64>,
    /// The lengths of an operation's buffers.
    pieces: Vec<usize>,
    /// How many times in a row the client has left without reaping any operation.
    vain_stays: u32,
}

impl Client {
    pub(crate) fn new(world: Arc<World>, number: u16, workload: Workload) -> Self {
        Self {
            spare: Spare::new(world.witness.clone()),
            world,
            number,
            workload,
            outstanding: BTreeMap::new(),
            stamps: Vec::new(),
            pieces: Vec::new(),
            vain_stays: 0,
        }
    }

    /// Submits until as many operations as the world wants were taken, and until all operations of this client are
    /// over.
    pub(crate) fn run(mut self) {
        while self.world.share(|share| share.wants_more()) {
            let submitter = self.join();
            match self.workload.kind.clone() {
                Kind::Direct(rhythm) => direct::work(&mut self, submitter, rhythm),
                Kind::Notified => notified::work(&mut self, submitter),
                Kind::Futures(tasks) => futures::work(&mut self, submitter, tasks),
            }
        }
    }

    fn join(&mut self) -> Submitter {
        let Workload { tenant, priority, .. } = self.workload;
        let submitter = loop {
            let (weight, group) = self.world.share(|share| share.tenancy.begin_to_join(tenant));
            let joined = self.world.q.submitter(&Tenant { name: tenant_name(tenant), weight, priority, group });
            self.world.share(|share| share.tenancy.end_joining(tenant));
            match joined {
                Ok(submitter) => break submitter,
                // The group has just been removed, so the tenant is in another one.
                Err(QueueError::BadTenant(TenantError::NoGroup(_))) => Self::rest(1),
                Err(error) => panic!("there are places for all clients of a world: {error}"),
            }
        };
        let nr_slots = u16::try_from(submitter.nr_slots()).expect("a submitter's slots are few");
        self.world.witness.tell(Event::Joined { submitter: self.number, nr_slots, tenant });
        submitter
    }

    /// Whether the client continues after this round.
    fn stays(&mut self) -> bool {
        let random = &mut self.workload.random;
        self.workload.stay.is_none_or(|stay| !random.one_in(stay)) && self.world.share(|share| share.wants_more())
    }

    /// Leaves with operations outstanding, or drains them first.
    fn leave(&mut self, mut submitter: Submitter) {
        if !self.world.share(|share| share.wants_more()) || self.workload.random.one_in(2) {
            self.drain(&mut submitter);
        }
        let hands_back = self.workload.random.one_in(2);
        self.leaves();
        if hands_back {
            for bio in submitter.leave() {
                self.world.witness.tell(Event::HandedBack { submitter: self.number, bio: bio.user_data });
                self.forget(bio.user_data);
            }
        } else {
            drop(submitter);
        }
        self.left(hands_back);
    }

    /// Tells that the client leaves. From here on it tells nothing about its outstanding operations.
    fn leaves(&self) {
        self.world.witness.tell(Event::Leaving { submitter: self.number });
    }

    /// Tells that the client has left. All its operations are over, whatever their results are.
    fn left(&mut self, hands_back: bool) {
        self.world.witness.tell(Event::Left { submitter: self.number, hands_back });
        for (_, claim) in std::mem::take(&mut self.outstanding) {
            claim.inspect(|claim| self.world.share(|share| share.claims.give_back(claim)));
        }
        self.wait_for_meeting();
        self.pause();
        // Joining costs many steps, so a client that leaves in vain again and again joins less often.
        Self::rest(self.vain_stays);
        self.vain_stays += 1;
    }

    /// Ends the stay at a meeting, with a chance of one in `rounds`: waits until all operations are over, and comes
    /// again at the next meeting.
    fn meets_again(&mut self, submitter: &mut Submitter) {
        let Some(Meetings { rounds, .. }) = self.workload.meetings else { return };
        if self.workload.random.one_in(rounds) {
            self.drain(submitter);
            self.wait_for_meeting();
        }
    }

    fn drain(&mut self, submitter: &mut Submitter) {
        while submitter.nr_outstanding() > 0 {
            self.sleeps(|| submitter.wait(1, None));
            submitter.reap_all(|completion| self.over(completion));
        }
    }

    /// Sleeps until all clients come together, or a little longer. The client has nothing outstanding.
    fn wait_for_meeting(&mut self) {
        let Some(Meetings { period_ns, .. }) = self.workload.meetings else { return };
        let now = self.world.q.clock().now().0;
        let late = magnitude(&mut self.workload.random, 20_000);
        thread::sleep(Duration::from_nanos(period_ns - now % period_ns + late));
    }

    /// The next operation, which the witness is told of. `None` if no sectors were free, or if enough operations were
    /// taken.
    fn next(&mut self) -> Option<(Bio, bool)> {
        let Self { world, workload, spare, .. } = self;
        let Wish { mut bio, fault, claim } = world.share(|share| {
            let wish = share.wants_more().then(|| workload.mix.next(&mut workload.random, &world.limits, share))??;
            share.take_one();
            Some(wish)
        })?;
        bio.user_data = world.share(Share::number);
        bio.buffers = workload.mix.buffers(&mut workload.random, &bio, fault, spare);
        self.outstanding.insert(bio.user_data, claim);
        let asked = self.asked(&bio);
        self.measure(&bio);
        let event = Event::Submitted { submitter: self.number, bio: bio.user_data, asked, pieces: &self.pieces };
        self.world.witness.tell(event);
        Some((bio, fault.is_some()))
    }

    /// Takes the lengths of an operation's buffers.
    fn measure(&mut self, bio: &Bio) {
        self.pieces.clear();
        self.pieces.extend(bio.buffers.iter().map(|buffer| buffer.len()));
    }

    fn asked(&self, bio: &Bio) -> Asked {
        let &Bio { op, sector, nr_sectors, flags, priority, .. } = bio;
        let Workload { priority: default, tenant, .. } = self.workload;
        let group = self.world.share(|share| share.tenancy.tenants[usize::from(tenant)].group.0);
        Asked { op, sector, nr_sectors, flags, priority: priority.unwrap_or(default), group }
    }

    /// The queue took an operation.
    fn took(&mut self, bio: u64, id: Option<RqId>, is_bad: bool) {
        if is_bad {
            let what = format!("operation {bio} asks for what cannot be, and was taken");
            self.world.witness.accuse(Violation::new("input", what).bio(bio));
        }
        if let Some(id) = id {
            self.world.witness.tell(Event::Named { submitter: self.number, bio, id });
        }
    }

    /// The queue did not take an operation.
    fn refused(&mut self, Rejected { bio, reason }: Rejected, is_bad: bool) {
        let (number, asked) = (bio.user_data, self.asked(&bio));
        if !is_bad && !matches!(reason, RejectReason::Full | RejectReason::Bad(blkmq_virtual::Status::TooLarge)) {
            let what = format!("operation {number} is a good one, and was rejected: {reason:?}");
            self.world.witness.accuse(Violation::new("input", what).bio(number));
        }
        self.world.witness.tell(Event::Rejected { submitter: self.number, bio: number, asked, reason });
        self.world.share(|share| share.give_one_back());
        self.forget(number);
        self.spare.keep(bio.buffers);
    }

    /// An operation is over.
    fn over(&mut self, completion: Completion) {
        self.vain_stays = 0;
        let Completion { id, status, submitted, issued, completed, bio, .. } = completion;
        self.allow_more(&bio);
        self.stamps.clear();
        if bio.op == Op::Read && status.is_ok() {
            buffers::read_stamps(&bio.buffers, &mut self.stamps);
        }
        let times = Times { submitted, issued, completed };
        let (submitter, data) = (self.number, &self.stamps[..]);
        self.world.witness.tell(Event::Reaped { submitter, bio: bio.user_data, id, status, times, data });
        self.forget(bio.user_data);
        self.spare.keep(bio.buffers);
    }

    /// Called when an operation is over. The world may then run for longer.
    fn allow_more(&mut self, bio: &Bio) {
        self.measure(bio);
        self.world.allow_more(parts(&self.world.limits, &self.asked(bio), &self.pieces).unwrap_or(1));
    }

    /// Frees the sectors of an operation for others. If this client does not know the operation, the queue gave it back
    /// twice or to the wrong client. The witness finds that.
    fn forget(&mut self, bio: u64) {
        if let Some(Some(claim)) = self.outstanding.remove(&bio) {
            self.world.share(|share| share.claims.give_back(&claim));
        }
    }

    /// Tells that the client has passed its plug on.
    fn passed_on(&self) {
        self.world.witness.tell(Event::PassedOn { submitter: self.number });
    }

    /// Sleeps by calling `sleep`, until an operation is over or until it is time to look again.
    fn sleeps<R>(&self, sleep: impl FnOnce() -> R) -> R {
        self.world.witness.tell(Event::Sleeps { submitter: self.number });
        let slept = sleep();
        self.world.witness.tell(Event::Wakes { submitter: self.number });
        slept
    }

    /// Tells what the queue says this client has outstanding.
    fn tell_outstanding(&self, submitter: &Submitter) {
        let nr_outstanding = submitter.nr_outstanding();
        self.world.witness.tell(Event::Outstanding { submitter: self.number, nr_outstanding });
    }

    /// Pauses a client that comes or polls for nothing again and again, as it does while the queue is closed or the
    /// device hangs. Each pause is twice as long as the last, up to about 2 ms.
    fn rest(empty_polls: u32) {
        thread::sleep(Duration::from_nanos((500 << empty_polls.min(12)) - 500));
    }

    fn pause(&mut self) {
        let ns = self.workload.random.below(self.workload.pause_ns + 1);
        thread::sleep(Duration::from_nanos(ns));
    }
}
