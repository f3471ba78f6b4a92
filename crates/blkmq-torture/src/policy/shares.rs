//! What bfq shows of its queues, beside what people have set: a client's request waits in the client's group, and a
//! queue or a group that begins to wait does so with the weight that it was given.
//!
//! bfq keeps a client in the queue that it has while the device has requests of the client that bypassed, as far as
//! bfq was told, and while there may be no room for another queue. So nothing is asked then. Nor is anything asked of
//! the weight of a queue that waited before: a weight holds from when a queue queues again.

use std::collections::BTreeMap;

use blkmq_sched::{ClientId, ClientSettings, Event, GroupId, GroupSettings, Info, InsertAt, Report, RqId};

/// How often it is looked whether a change holds, until it is seen to.
const LOOKS: u32 = 16;
/// One of so many other requests is looked at too.
const OTHERS: u32 = 64;
/// bfq has room for another queue as long as there are no more than so many beside one for each client.
const MORE_QUEUES: usize = 17;
/// By how much a weight may be raised.
const RAISED: [u64; 3] = [1, 30, 3000];

/// The weight of a client's queue, as bfq shows it.
fn weight_of(client: u16, level: u8) -> u64 {
    10 * u64::from(client) * u64::from(8 - level.min(7))
}

#[derive(Debug, Clone, Copy)]
struct Tenant {
    settings: ClientSettings,
    /// Requests that a thread waits for: those that passed less those of them that are over, as the scheduler was told.
    passing: i64,
    looks: u32,
}

#[derive(Debug, Clone, Copy)]
struct Group {
    settings: GroupSettings,
    looks: u32,
}

/// The clients and groups of one bfq, as people have set them.
#[derive(Debug, Default)]
pub(super) struct Shares {
    tenants: BTreeMap<ClientId, Tenant>,
    groups: BTreeMap<GroupId, Group>,
    nr_requests: u32,
}

/// A queue that bfq shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Queue {
    group: usize,
    is_busy: bool,
    weight: u64,
    /// The request that is asked about waits in it.
    is_asked: bool,
}

/// The queues that bfq shows, and the weight of each group by its place.
#[derive(Debug, Default)]
struct Shown {
    queues: Vec<Queue>,
    weights: BTreeMap<usize, u64>,
}

type Verdict = Result<(), String>;

impl Shown {
    fn read(text: &str, rq: RqId) -> Self {
        let mut shown = Self::default();
        let asked = format!("rq {} ", rq.0);
        for line in text.lines() {
            let numbers = line.split_once(": ").map_or("", |(_, numbers)| numbers);
            let number = |of: &str| {
                let mut words = numbers.split(' ').skip_while(|word| *word != of).skip(1);
                words.next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(u64::MAX)
            };
            if line.starts_with("queue ") {
                let (group, is_busy, weight) = (number("group") as usize, number("busy") == 1, number("weight"));
                shown.queues.push(Queue { group, is_busy, weight, is_asked: false });
            } else if let Some(place) = line.strip_prefix("group ").and_then(|rest| rest.split_once(':')) {
                shown.weights.insert(place.0.parse().unwrap_or(usize::MAX), number("weight"));
            } else if line.trim_start().starts_with(&asked)
                && let Some(queue) = shown.queues.last_mut()
            {
                queue.is_asked = true;
            }
        }
        shown
    }

    fn nr_busy(&self) -> usize {
        self.queues.iter().filter(|queue| queue.is_busy).count()
    }
}

impl Shares {
    pub(super) fn join(&mut self, client: ClientId, settings: &ClientSettings) {
        let passing = self.tenants.get(&client).map_or(0, |tenant| tenant.passing);
        self.tenants.insert(client, Tenant { settings: *settings, passing, looks: LOOKS });
    }

    pub(super) fn leave(&mut self, client: ClientId) {
        self.tenants.remove(&client);
    }

    pub(super) fn join_group(&mut self, group: GroupId, settings: &GroupSettings) {
        self.groups.insert(group, Group { settings: *settings, looks: LOOKS });
    }

    pub(super) fn leave_group(&mut self, group: GroupId) {
        self.groups.remove(&group);
    }

    pub(super) fn report(&mut self, report: &Report) {
        let requests = i64::from(report.requests);
        let more = match report.event {
            Event::Passed => requests,
            Event::Completed(None) => -requests,
            Event::Completed(Some(_)) => 0,
        };
        if (report.sync || report.op.is_read())
            && let Some(tenant) = self.tenants.get_mut(&report.client)
        {
            tenant.passing += more;
        }
    }

    /// The groups in which a client is, the inner ones first. The root is not among them.
    fn above(&self, client: ClientId) -> Vec<GroupId> {
        let (mut above, mut at) = (Vec::new(), self.tenants.get(&client).map(|tenant| tenant.settings.group));
        while let Some(id) = at
            && let Some(group) = self.groups.get(&id)
        {
            above.push(id);
            at = Some(group.settings.parent);
        }
        above
    }

    /// Whether this request, which is about to come in, is one to look at.
    pub(super) fn asks(&mut self, info: &Info, at: InsertAt) -> bool {
        let is_sync = info.sync || info.op.is_read();
        if !is_sync || at == InsertAt::Head || !self.tenants.contains_key(&info.client) {
            return false;
        }
        self.nr_requests += 1;
        let mut asks = self.nr_requests.is_multiple_of(OTHERS);
        let mut look = |looks: &mut u32| {
            asks |= *looks > 0;
            *looks = looks.saturating_sub(1);
        };
        for id in self.above(info.client) {
            look(&mut self.groups.get_mut(&id).expect("it is one of those above").looks);
        }
        look(&mut self.tenants.get_mut(&info.client).expect("the client is here").looks);
        asks
    }

    /// Judges what bfq showed before and after this request came in.
    pub(super) fn judge(&self, rq: RqId, info: &Info, texts: [&str; 2]) -> Verdict {
        let [before, after] = texts.map(|text| Shown::read(text, rq));
        let client = info.client;
        let Some(&Tenant { settings, passing, .. }) = self.tenants.get(&client) else { return Ok(()) };
        let has_room = after.queues.len() <= self.tenants.len() + MORE_QUEUES;
        let Some(queue) = after.queues.iter().find(|queue| queue.is_asked) else { return Ok(()) };
        if passing > 0 || !has_room {
            return Ok(());
        }
        if queue.group != settings.group.place() {
            return Err(format!(
                "the queue of client {} is in group {} when its request comes, and the client belongs to group {}",
                client.0,
                queue.group,
                settings.group.place()
            ));
        }
        // The queue that comes in may take another one out.
        if after.nr_busy() > before.nr_busy() {
            let set = weight_of(settings.weight, info.priority.level);
            if !RAISED.iter().any(|raised| set * raised == queue.weight) {
                let is = queue.weight;
                return Err(format!("the queue of client {} begins to wait with weight {is} of {set}", client.0));
            }
        }
        let above = self.above(client);
        for id in &above {
            let within =
                |place: usize| self.groups.keys().any(|known| known.place() == place && self.is_in(*known, *id));
            if before.queues.iter().any(|queue| queue.is_busy && within(queue.group)) {
                break;
            }
            let (set, is) = (self.groups[id].settings.weight, after.weights.get(&id.place()));
            if is != Some(&u64::from(set)) {
                return Err(format!("group {} begins to wait with weight {is:?} of {set}", id.place()));
            }
        }
        Ok(())
    }

    /// Whether a group is this one, or in it.
    fn is_in(&self, group: GroupId, outer: GroupId) -> bool {
        let mut at = Some(group);
        while let Some(id) = at {
            if id == outer {
                return true;
            }
            at = self.groups.get(&id).map(|group| group.settings.parent);
        }
        false
    }
}
