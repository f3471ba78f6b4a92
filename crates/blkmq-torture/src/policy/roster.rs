//! Whom one value of a scheduler knows: it hears of clients and groups before anything of them comes, and that they are
//! gone when nothing of them is left.

use std::collections::BTreeMap;

use blkmq_sched::{ClientId, ClientSettings, Event, GroupId, GroupSettings, Report, RqId};

/// The clients and groups that a scheduler was told of, and whose requests wait in it.
#[derive(Debug, Default)]
pub(super) struct Roster {
    clients: BTreeMap<ClientId, GroupId>,
    /// By group: its parent.
    groups: BTreeMap<GroupId, GroupId>,
    waiting: BTreeMap<RqId, ClientId>,
    /// Requests that wait, were dispatched and not reported, or passed and are not over.
    outstanding: BTreeMap<ClientId, u64>,
}

type Verdict = Result<(), String>;

impl Roster {
    fn is_known(&self, group: GroupId) -> bool {
        group == GroupId::ROOT || self.groups.contains_key(&group)
    }

    pub(super) fn join(&mut self, client: ClientId, settings: &ClientSettings) -> Verdict {
        if !self.is_known(settings.group) {
            return Err(format!("client {} joined in group {}, which is not there", client.0, settings.group.0));
        }
        let of_place = self.clients.keys().find(|known| known.place() == client.place() && **known != client);
        if let Some(other) = of_place {
            return Err(format!("client {} joined, and has the place of client {}", client.0, other.0));
        }
        self.clients.insert(client, settings.group);
        Ok(())
    }

    /// A client other than this one.
    pub(super) fn another(&self, client: ClientId) -> Option<ClientId> {
        self.clients.keys().copied().find(|other| *other != client)
    }

    pub(super) fn leave(&mut self, client: ClientId) -> Verdict {
        self.outstanding.remove(&client);
        if let Some((rq, _)) = self.waiting.iter().find(|(_, owner)| **owner == client) {
            return Err(format!("client {} is gone, and its request {:#x} waits", client.0, rq.0));
        }
        self.clients.remove(&client).map(|_| ()).ok_or_else(|| format!("client {} is gone, and was not here", client.0))
    }

    pub(super) fn join_group(&mut self, group: GroupId, settings: &GroupSettings) -> Verdict {
        let mut above = settings.parent;
        while let Some(parent) = self.groups.get(&above) {
            if above == group {
                return Err(format!("group {} belongs to itself", group.0));
            }
            above = *parent;
        }
        if above != GroupId::ROOT || group == GroupId::ROOT {
            return Err(format!("group {} joined in group {}, which is not there", group.0, above.0));
        }
        self.groups.insert(group, settings.parent);
        Ok(())
    }

    pub(super) fn leave_group(&mut self, group: GroupId) -> Verdict {
        if let Some((client, _)) = self.clients.iter().find(|(_, of)| **of == group) {
            return Err(format!("group {} is gone, and client {} belongs to it", group.0, client.0));
        }
        if let Some((child, _)) = self.groups.iter().find(|(_, parent)| **parent == group) {
            return Err(format!("group {} is gone, and group {} belongs to it", group.0, child.0));
        }
        self.groups.remove(&group).map(|_| ()).ok_or_else(|| format!("group {} is gone, and was not here", group.0))
    }

    /// A request comes in. One of no client belongs to nobody.
    pub(super) fn insert(&mut self, rq: RqId, client: ClientId) -> Verdict {
        self.waiting.insert(rq, client);
        *self.outstanding.entry(client).or_default() += 1;
        if self.clients.contains_key(&client) {
            return Ok(());
        }
        Err(format!("request {:#x} of client {} came in, which is not here", rq.0, client.0))
    }

    /// A request was dispatched.
    pub(super) fn dispatch(&mut self, rq: RqId) {
        self.waiting.remove(&rq);
    }

    /// A request was absorbed, and is no request of its own any more.
    pub(super) fn absorb(&mut self, rq: RqId) {
        if let Some(client) = self.waiting.remove(&rq) {
            self.end(client, 1);
        }
    }

    fn end(&mut self, client: ClientId, requests: u64) {
        if let Some(outstanding) = self.outstanding.get_mut(&client) {
            *outstanding = outstanding.saturating_sub(requests);
        }
    }

    pub(super) fn report(&mut self, report: &Report) {
        match report.event {
            Event::Passed => *self.outstanding.entry(report.client).or_default() += u64::from(report.requests),
            Event::Completed(_) => self.end(report.client, report.requests.into()),
        }
    }

    /// The scheduler does not admit a request of this client.
    pub(super) fn refuse(&self, client: ClientId) -> Verdict {
        let has_some = self.outstanding.get(&client).is_some_and(|outstanding| *outstanding > 0);
        // A queue may also ask about a request of no client.
        if has_some || !self.clients.contains_key(&client) {
            return Ok(());
        }
        Err(format!("client {} has nothing outstanding, and its request is not admitted", client.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ClientId = ClientId(1);
    const INNER: GroupId = GroupId(2);
    const OUTER: GroupId = GroupId(1);

    fn client(group: GroupId) -> ClientSettings {
        ClientSettings { group, ..ClientSettings::default() }
    }

    fn group(parent: GroupId) -> GroupSettings {
        GroupSettings { weight: 100, parent }
    }

    fn said(verdict: &Verdict) -> &str {
        verdict.as_ref().expect_err("that is wrong")
    }

    /// Red if a scheduler may hear of clients, groups and requests in another order than this.
    #[test]
    fn each_comes_before_those_in_it_and_goes_behind_them() {
        let mut roster = Roster::default();
        assert!(said(&roster.join_group(INNER, &group(OUTER))).contains("in group 1, which is not there"));
        assert!(said(&roster.join(A, &client(OUTER))).contains("which is not there"));
        assert!(said(&roster.insert(RqId(6), A)).contains("client 1 came in, which is not here"));
        assert_eq!(roster.join_group(OUTER, &group(GroupId::ROOT)), Ok(()));
        assert_eq!(roster.join_group(INNER, &group(OUTER)), Ok(()));
        assert!(said(&roster.join_group(OUTER, &group(INNER))).contains("belongs to itself"));
        assert_eq!(roster.join(A, &client(INNER)), Ok(()));
        assert!(said(&roster.join(ClientId::new(A.place(), 1), &client(OUTER))).contains("has the place of client 1"));
        assert!(said(&roster.leave_group(INNER)).contains("client 1 belongs to it"));
        assert!(said(&roster.leave_group(OUTER)).contains("group 2 belongs to it"));
        roster.absorb(RqId(6));
        assert!(said(&roster.refuse(A)).contains("client 1 has nothing outstanding"));
        assert_eq!(roster.insert(RqId(7), A), Ok(()));
        assert_eq!(roster.refuse(A), Ok(()));
        assert!(said(&roster.leave(A)).contains("its request 0x7 waits"));
        roster.dispatch(RqId(7));
        assert_eq!(roster.leave(A), Ok(()));
        assert!(said(&roster.leave(A)).contains("was not here"));
        assert_eq!((roster.leave_group(INNER), roster.leave_group(OUTER)), (Ok(()), Ok(())));
        assert!(said(&roster.leave_group(OUTER)).contains("was not here"));
    }
}
