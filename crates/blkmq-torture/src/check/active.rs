//! The shares of clients that ask for service, by their weights and those of their groups, as fair divides.
//!
//! A client counts in a class while requests of it wait, and for a while after that. When it stops to count depends on
//! what the scheduler was told, and so it is uncertain from the earliest time on.

use std::collections::BTreeMap;

use blkmq_sched::{Class, ClientId, ClientSettings, DEFAULT_WEIGHT, GroupId, GroupSettings, Time};

/// A client by its name's hash. Requests of a client that did not join are those of one more, without a name.
pub(super) type Known = u64;

/// The requests of a client in one class.
pub(super) type Flow = (Known, Class);

/// How long a client counts at least after its last request was chosen, in ns: 20 ms at the scale of the rig.
const ACTIVE_NS: u64 = 200_000;

/// One over the least share.
const MOST_OVER: f64 = 16_777_216.0;

#[derive(Debug, Clone, Copy)]
struct Member {
    id: ClientId,
    weight: u16,
    group: GroupId,
}

const STRANGER: Member = Member { id: ClientId(0), weight: DEFAULT_WEIGHT, group: GroupId::ROOT };

/// Why a flow counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waits,
    IdleSince(Time),
    Uncertain,
}

/// One over a client's share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct OverShare {
    /// If all count that may.
    pub(super) most: f64,
    /// None is uncertain.
    pub(super) is_certain: bool,
}

/// The clients and groups, and the flows that count.
#[derive(Debug, Default)]
pub(super) struct Active {
    names: BTreeMap<ClientId, Known>,
    members: BTreeMap<Known, Member>,
    groups: BTreeMap<GroupId, GroupSettings>,
    states: BTreeMap<Flow, State>,
}

impl Active {
    /// Nobody counts.
    pub(super) fn begin_anew(&mut self) {
        self.states.clear();
    }

    pub(super) fn told_of_client(&mut self, id: ClientId, settings: &ClientSettings) {
        self.names.insert(id, settings.name);
        self.members.insert(settings.name, Member { id, weight: settings.weight, group: settings.group });
    }

    pub(super) fn client_left(&mut self, id: ClientId) {
        if let Some(name) = self.names.remove(&id) {
            self.states.retain(|(known, _), _| *known != name);
        }
    }

    pub(super) fn told_of_group(&mut self, id: GroupId, settings: GroupSettings) {
        self.groups.insert(id, settings);
    }

    pub(super) fn group_left(&mut self, id: GroupId) {
        self.groups.remove(&id);
    }

    pub(super) fn known(&self, id: ClientId) -> Known {
        self.names.get(&id).copied().unwrap_or(0)
    }

    fn member(&self, known: Known) -> Member {
        self.members.get(&known).copied().unwrap_or(STRANGER)
    }

    /// The id that the client had last.
    pub(super) fn id(&self, known: Known) -> ClientId {
        self.member(known).id
    }

    /// A request waits.
    pub(super) fn waits(&mut self, flow: Flow) {
        self.states.insert(flow, State::Waits);
    }

    /// The last request that waited was chosen.
    pub(super) fn ends_waiting(&mut self, flow: Flow, now: Time) {
        self.states.insert(flow, State::IdleSince(now));
    }

    /// The scheduler chooses at this time.
    pub(super) fn note_time(&mut self, class: Class, now: Time) {
        for (_, state) in self.states.iter_mut().filter(|((_, of), _)| *of == class) {
            if matches!(state, State::IdleSince(since) if since.after(ACTIVE_NS) <= now) {
                *state = State::Uncertain;
            }
        }
    }

    /// The weights of what counts in a group.
    fn sum(&self, group: GroupId, class: Class) -> u64 {
        let clients = self.states.keys().filter(|(_, of)| *of == class).map(|(known, _)| self.member(*known));
        let clients = clients.filter(|member| member.group == group).map(|member| u64::from(member.weight));
        let groups = self.groups.iter().filter(|(id, settings)| settings.parent == group && **id != group);
        let groups = groups.filter(|(id, _)| self.sum(**id, class) > 0).map(|(_, settings)| u64::from(settings.weight));
        clients.sum::<u64>() + groups.sum::<u64>()
    }

    pub(super) fn over_share(&self, (known, class): Flow) -> OverShare {
        let Member { weight, mut group, .. } = self.member(known);
        let (mut weight, mut most) = (weight, 1.0);
        loop {
            most *= self.sum(group, class) as f64 / f64::from(weight);
            let Some(settings) = self.groups.get(&group) else { break };
            (weight, group) = (settings.weight, settings.parent);
        }
        let is_certain = self.states.iter().all(|((_, of), state)| *of != class || *state != State::Uncertain);
        OverShare { most: most.min(MOST_OVER), is_certain }
    }
}
