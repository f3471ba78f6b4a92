//! The history of a world in words: one line for each entry.

use std::fmt::{self, Display, Formatter};

use blkmq_sched::limiter::Progress;
use blkmq_sched::{
    self as sched, ClientSettings, Fairness, GroupSettings, Info, InsertAt, MergeHow, Op, Report, RqId, SchedDomain,
    Time, Usage,
};
use blkmq_virtual::{Flags, RejectReason};

use super::event::{Action, Asked, Control, DeviceState, Event, Phase};
use super::history::Entry;

/// Runs of equal sectors that are printed. A whole device has too many runs to print all.
const MOST_RUNS: usize = 12;

impl Display for Entry<'_> {
    /// The time, the step, the CPU and what happened, as in
    /// `    12.345678 ms  step     4711  cpu  3  bio 17: write 128+8 fua, submitted by submitter 2`.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let cpu = match self {
            Self::Event(stamp, _) => stamp.cpu,
            Self::Switch(switch) => switch.to,
        };
        write!(f, "{:>13} ms  step {:>8}  cpu {cpu:>2}  ", Millis(self.time_ns()), self.step())?;
        match self {
            Self::Event(_, event) => event.fmt(f),
            Self::Switch(switch) => {
                write!(f, "goes on after cpu {}", switch.from)?;
                switch.line.map_or(Ok(()), |line| write!(f, ", which touched {line}"))
            }
        }
    }
}

impl Display for Event<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Submitted { .. }
            | Self::Named { .. }
            | Self::Rejected { .. }
            | Self::Reaped { .. }
            | Self::HandedBack { .. }
            | Self::Forgotten { .. } => self.of_operation(f),
            Self::Joined { .. }
            | Self::Leaving { .. }
            | Self::Left { .. }
            | Self::PassedOn { .. }
            | Self::Sleeps { .. }
            | Self::Wakes { .. }
            | Self::Outstanding { .. } => self.of_submitter(f),
            Self::Counted(_)
            | Self::CountedRanges(_)
            | Self::Inflight(_)
            | Self::Dumped(_)
            | Self::Idle { .. }
            | Self::Memory { .. } => self.look(f),
            Self::Installed { scheduler } => write!(f, "scheduler {} is in place", scheduler.unwrap_or("none")),
            Self::Inserted { .. }
            | Self::Merged { .. }
            | Self::Absorbed { .. }
            | Self::Chosen { .. }
            | Self::Tagged { .. }
            | Self::HeldBack { .. }
            | Self::Token { .. }
            | Self::Throttled
            | Self::Adjusted { .. }
            | Self::Sent { .. }
            | Self::Withheld { .. }
            | Self::Limited
            | Self::Learned { .. }
            | Self::Used { .. }
            | Self::Folded { .. } => self.scheduled(f),
            Self::ClientJoined { .. }
            | Self::ClientLeft { .. }
            | Self::GroupJoined { .. }
            | Self::GroupLeft { .. }
            | Self::Ticketed { .. }
            | Self::Reported { .. }
            | Self::Expired { .. }
            | Self::Gated { .. } => self.told(f),
            Self::Offered { .. } => self.offered(f),
            Self::Overdue { rq, .. } => write!(f, "{}: takes too long, and the device is asked about it", Request(rq)),
            Self::Acted { rq, action } => write!(f, "{}: {action}", Request(rq)),
            Self::PowerLost { content } => {
                write!(f, "the device lost power and got it back; it holds {}", Runs(content))
            }
            Self::Changed { control, phase } => write!(f, "{control}: {phase}"),
        }
    }
}

impl Event<'_> {
    /// What happened to an operation.
    fn of_operation(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Submitted { submitter, bio, asked, .. } => {
                write!(f, "bio {bio}: {asked}, submitted by submitter {submitter}")
            }
            Self::Named { submitter, bio, id } => write!(f, "bio {bio}: is {} of submitter {submitter}", Request(id)),
            Self::Rejected { submitter, bio, asked, reason } => {
                write!(f, "bio {bio}: {asked}, not taken from submitter {submitter}: ")?;
                match reason {
                    RejectReason::Full => f.write_str("every slot is in use"),
                    RejectReason::Bad(status) => status.fmt(f),
                }
            }
            Self::Reaped { submitter, bio, id, status, data, .. } => {
                write!(f, "bio {bio}: over, reaped by submitter {submitter} as {}: {status}", Request(id))?;
                if data.is_empty() { Ok(()) } else { write!(f, "; read {}", Runs(data)) }
            }
            Self::HandedBack { submitter, bio } => write!(f, "bio {bio}: handed back undone to submitter {submitter}"),
            Self::Forgotten { submitter, bio } => write!(f, "bio {bio}: forgotten by submitter {submitter}"),
            _ => Ok(()),
        }
    }

    /// What a submitter did.
    fn of_submitter(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Joined { submitter, nr_slots, tenant } => {
                write!(f, "submitter {submitter}: joined for tenant {tenant}, with {nr_slots} slots")
            }
            Self::Leaving { submitter } => write!(f, "submitter {submitter}: leaves when all is over"),
            Self::Left { submitter, hands_back } => {
                let rest = if hands_back { "and got back" } else { "and dropped" };
                write!(f, "submitter {submitter}: left, {rest} what was not done")
            }
            Self::PassedOn { submitter } => write!(f, "submitter {submitter}: passed on what it had submitted"),
            Self::Sleeps { submitter } => write!(f, "submitter {submitter}: waits"),
            Self::Wakes { submitter } => write!(f, "submitter {submitter}: waits no more"),
            Self::Outstanding { submitter, nr_outstanding } => {
                write!(f, "submitter {submitter}: {nr_outstanding} outstanding")
            }
            _ => Ok(()),
        }
    }

    /// What a look at the whole queue shows.
    fn look(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Counted(counts) => {
                write!(f, "frozen; counted: {} in flight, {:?}, {:?}", counts.in_flight, counts.stats, counts.stat)
            }
            Self::CountedRanges(counts) => write!(f, "frozen; counted in {} ranges: {counts:?}", counts.len()),
            Self::Inflight([reads, others]) => {
                write!(f, "the device has {reads} reads and {others} others, says the queue")
            }
            Self::Dumped(text) => write!(f, "frozen; its dump has {} characters", text.len()),
            Self::Idle { until, device: DeviceState { held, hung, next_due } } => {
                write!(
                    f,
                    "every CPU sleeps, the next timer is due {}; the device works on {held} requests",
                    Due(until)
                )?;
                if hung > 0 {
                    write!(f, ", {hung} of them forever")?;
                }
                next_due.map_or(Ok(()), |due| write!(f, ", the next due at {} ms", Millis(due.0)))
            }
            Self::Memory { live } => write!(f, "{live} bytes of memory held"),
            _ => Ok(()),
        }
    }

    /// What a scheduler did.
    fn scheduled(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Inserted { value, rq, info, at, .. } => {
                let place = if at == InsertAt::Head { "in front of the scheduler's" } else { "into the scheduler" };
                write!(f, "{}: {}, inserted {place}", Request(rq), FastRequest(&info))?;
                if value == 0 { Ok(()) } else { write!(f, ", value {value}") }
            }
            Self::Merged { into, info, how } => {
                let place = match how {
                    MergeHow::Back => "behind",
                    MergeHow::Front => "in front of",
                    MergeHow::Discard => "as a further range of",
                };
                write!(f, "{}: {} joined {place} it in the scheduler", Request(into), FastRequest(&info))
            }
            Self::Absorbed { into, absorbed } => write!(f, "{}: absorbed {}", Request(into), Request(absorbed)),
            Self::Chosen { rq, .. } => write!(f, "{}: chosen by the scheduler", Request(rq)),
            Self::HeldBack { waiting, wakeup, .. } => {
                write!(f, "the scheduler chose none of {waiting} that wait")?;
                wakeup.map_or(Ok(()), |wakeup| write!(f, ", and would at {} ns", wakeup.0))
            }
            Self::Token { of, is_given, .. } => {
                write!(
                    f,
                    "the scheduler asked for a {} token, and got {}",
                    of.name(),
                    if is_given { "one" } else { "none" }
                )
            }
            Self::Throttled => f.write_str("a scheduler that takes tokens will be in place"),
            Self::Adjusted { depths, .. } => {
                f.write_str("the depths of the tokens were looked at")?;
                let changed = SchedDomain::ALL.into_iter().zip(depths).filter_map(|(of, depth)| Some((of, depth?)));
                changed.into_iter().try_for_each(|(of, depth)| write!(f, "; {depth} {} tokens", of.name()))
            }
            Self::Sent { rq, cost, bound: None, .. } => {
                write!(f, "{}: costs {cost} ns, and nothing is bounded", Request(rq))
            }
            Self::Sent { rq, cost, bound: Some(bound), phase } => {
                write!(f, "{}: costs {cost} ns within {bound} ns, {}", Request(rq), phase.name())
            }
            Self::Withheld { until } => {
                f.write_str("the limiter lets nothing go")?;
                until.map_or(Ok(()), |until| write!(f, ", and will at {} ns", until.0))
            }
            Self::Learned { progress: Progress { reads, others, in_flight, fairness, .. }, phase } => {
                let (reads, others, phase) = (reads.requests, others.requests, phase.name());
                write!(f, "the limiter learned of {reads} reads and {others} others, {in_flight} ns go on: {phase}")?;
                if *fairness == Fairness::Unknown { Ok(()) } else { write!(f, "; shares are {fairness:?}") }
            }
            Self::Tagged { rq, tag, is_special, is_exclusive, .. } => {
                write!(f, "{}: the tag of its client is {tag} ns", Request(rq))?;
                f.write_str(if is_special { ", by more than weights" } else { "" })?;
                f.write_str(if is_exclusive { ", exclusively" } else { "" })
            }
            Self::Limited => f.write_str("there is a new limiter"),
            Self::Used { usage } => {
                f.write_str("the scheduler is told what clients got:")?;
                let mut used = usage.iter().filter(|usage| usage.outstanding > 0 || usage.operations != [0; 3]);
                used.try_for_each(|Usage { client, operations: [reads, writes, others], outstanding, .. }| {
                    write!(
                        f,
                        " client {} {reads} reads {writes} writes {others} others, {outstanding} outstanding;",
                        client.0
                    )
                })
            }
            Self::Folded { completed, bypassed } => {
                write!(f, "the scheduler learned that by class {completed:?} have completed and {bypassed:?} passed it")
            }
            _ => Ok(()),
        }
    }

    /// What a scheduler was told of clients, groups and requests, and what it says to that.
    fn told(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ClientJoined { client, settings: ClientSettings { weight, group, .. } } => {
                write!(f, "the scheduler was told that client {} has weight {weight} in group {}", client.0, group.0)
            }
            Self::ClientLeft { client } => write!(f, "the scheduler was told that client {} is gone", client.0),
            Self::GroupJoined { group, settings: GroupSettings { weight, parent } } => {
                write!(f, "the scheduler was told that group {} has weight {weight} in group {}", group.0, parent.0)
            }
            Self::GroupLeft { group } => write!(f, "the scheduler was told that group {} is gone", group.0),
            Self::Ticketed { rq, ticket } => {
                write!(f, "{}: has the ticket {}", Request(rq), ticket.map_or(0, |ticket| ticket.0.get()))
            }
            Self::Reported { reports, .. } => {
                write!(f, "the scheduler was told that")?;
                reports.iter().enumerate().try_for_each(|(at, Report { event, client, requests, sectors, .. })| {
                    let comma = if at == 0 { "" } else { "," };
                    write!(f, "{comma} {requests} requests of client {} with {sectors} sectors ", client.0)?;
                    match event {
                        sched::Event::Passed => f.write_str("pass"),
                        sched::Event::Completed(None) => f.write_str("that passed are over"),
                        sched::Event::Completed(Some(ticket)) => write!(f, "and the ticket {} are over", ticket.0),
                    }
                })
            }
            Self::Expired { reason } => write!(f, "a queue leaves service: {}", reason.as_str()),
            Self::Gated { class, client, passing } => {
                write!(f, "the scheduler lets pass of class {class:?}, asked for client {}: {passing:?}", client.0)
            }
            _ => Ok(()),
        }
    }

    fn offered(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self::Offered { rq, hctx, tag, op, flags, sector, nr_sectors, ranges, segments, data, .. } = *self else {
            return Ok(());
        };
        write!(f, "{}: {} {sector}+{nr_sectors}{}, ", Request(rq), name(op), Marks(&flags))?;
        write!(f, "offered to the device by hardware queue {hctx} with tag {tag}")?;
        if ranges.len() > 1 {
            f.write_str("; ranges")?;
            ranges.iter().try_for_each(|(sector, nr_sectors)| write!(f, " {sector}+{nr_sectors}"))?;
        }
        if segments.len() > 1 {
            write!(f, "; pieces of {segments:?} bytes")?;
        }
        if data.is_empty() { Ok(()) } else { write!(f, "; writes {}", Runs(data)) }
    }
}

impl Display for Asked {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { op, sector, nr_sectors, flags, priority, .. } = self;
        write!(f, "{} {sector}+{nr_sectors}{}", name(*op), Marks(flags))?;
        if *priority == blkmq_virtual::IoPriority::default() {
            return Ok(());
        }
        write!(f, " {:?} {}", priority.class, priority.level)
    }
}

impl Display for Action {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::FinishedAtOnce(status) => write!(f, "the device finished it at once: {status}"),
            Self::Started { due } => write!(f, "the device began, due {}", Due(*due)),
            Self::Refused => f.write_str("the device refused it and those behind it: busy"),
            Self::GivenBack => f.write_str("the device gave it back for another try"),
            Self::Completed(status) => write!(f, "the device completed it: {status}"),
            Self::Stale => f.write_str("the device completed it, and heard that it has no such request"),
            Self::GaveUp => f.write_str("the device was asked about it, and gave it up"),
            Self::WantsTime { due } => {
                write!(f, "the device was asked about it, and wants more time; due {}", Due(*due))
            }
        }
    }
}

impl Display for Control {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scheduler(name) => write!(f, "control: scheduler {name}"),
            Self::Locking(locking) => write!(f, "control: locking {locking}"),
            Self::Bypass(bypass) => write!(f, "control: bypass={}", u8::from(*bypass)),
            Self::Knob(name, value) => write!(f, "control: iosched/{name}={value}"),
            Self::QueueKnob(name, value) => write!(f, "control: {name}={value}"),
            Self::NrRequests(number) => write!(f, "control: nr_requests={number}"),
            Self::WbtLatUsec(usec) => write!(f, "control: wbt_lat_usec={usec}"),
            Self::Topology(default, read, poll) => {
                write!(f, "control: hardware queues {default} default, {read} read, {poll} poll")
            }
            Self::Ranges(number) => write!(f, "control: {number} ranges counted apart"),
            Self::Freeze => f.write_str("control: freeze"),
            Self::Thaw => f.write_str("control: thaw"),
            Self::Quiesce => f.write_str("control: quiesce"),
            Self::Unquiesce => f.write_str("control: end of the quiescence"),
            Self::Background(number) => write!(f, "control: {number} background threads"),
            Self::TenantWeight(tenant, weight) => write!(f, "control: tenant {tenant} gets weight {weight}"),
            Self::Move(tenant, group) => write!(f, "control: tenant {tenant} moves to group {group}"),
            Self::GroupWeight(group, weight) => write!(f, "control: group {group} gets weight {weight}"),
            Self::AddGroup(parent, weight) => write!(f, "control: a group with weight {weight} in group {parent}"),
            Self::RemoveGroup(group) => write!(f, "control: group {group} goes"),
        }
    }
}

impl Display for Phase {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Begun => "asked for",
            Self::Done => "done",
            Self::Refused => "refused",
        })
    }
}

pub(crate) const fn name(op: Op) -> &'static str {
    match op {
        Op::Read => "read",
        Op::Write => "write",
        Op::Flush => "flush",
        Op::Discard => "discard",
        Op::WriteZeroes => "write-zeroes",
    }
}

/// A time in ns, as milliseconds.
pub(crate) struct Millis(pub(crate) u64);

impl Display for Millis {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let text = format_args!("{}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000).to_string();
        f.pad(&text)
    }
}

/// The moment at which something is due, if it ever is.
struct Due(Option<Time>);

impl Display for Due {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(time) => write!(f, "at {} ms", Millis(time.0)),
            None => f.write_str("never by itself"),
        }
    }
}

/// The id of a request: its pool, its slot there, and the slot's generation.
pub(crate) struct Request(pub(crate) RqId);

impl Display for Request {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let RqId(id) = self.0;
        write!(f, "request {}/{}.{}", id >> 16 & 0xffff, id & 0xffff, id >> 32)
    }
}

/// A request as a scheduler knows it.
pub(crate) struct FastRequest<'a>(pub(crate) &'a Info);

impl Display for FastRequest<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Info { op, sector, nr_sectors, priority, client, .. } = *self.0;
        let (class, level) = (priority.class, priority.level);
        write!(f, "{} {sector}+{nr_sectors} {class:?} {level} of client {}", name(op), client.0)
    }
}

/// The flags that are set, each with a blank before it.
pub(crate) struct Marks<'a>(pub(crate) &'a Flags);

impl Display for Marks<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Flags { sync, preflush, fua, readahead, meta, nowait, polled, at_head, nomerge, nounmap } = *self.0;
        let marks = [
            (sync, " sync"),
            (preflush, " preflush"),
            (fua, " fua"),
            (readahead, " readahead"),
            (meta, " meta"),
            (nowait, " nowait"),
            (polled, " polled"),
            (at_head, " at-head"),
            (nomerge, " nomerge"),
            (nounmap, " nounmap"),
        ];
        marks.iter().filter(|(is_set, _)| *is_set).try_for_each(|(_, mark)| f.write_str(mark))
    }
}

/// What sectors hold: the number of the operation that wrote each sector. Equal neighbours are printed together: `17 in
/// 8 sectors, 0 in 4`.
struct Runs<'a>(&'a [u64]);

impl Display for Runs<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut runs = self.0.chunk_by(|a, b| a == b);
        for (index, run) in runs.by_ref().take(MOST_RUNS).enumerate() {
            let (before, unit) = if index == 0 { ("", " sectors") } else { (", ", "") };
            write!(f, "{before}{} in {}{unit}", run[0], run.len())?;
        }
        match runs.count() {
            0 => Ok(()),
            more => write!(f, ", and {more} runs more"),
        }
    }
}
