//! What a scheduler that wants reports is told: each request that bypasses it, and each that completes, once, and
//! before the next choice; and clients and groups.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::device::{Drive, ONE_QUEUE, Recorder, read, reap, write};
use blkmq::driver::Topology;
use blkmq::{Bio, Client, Limits, Locking, RequestQueue, Status, Submitter};
use blkmq_sched::{
    Admission, Class, ClientId, ClientSettings, DispatchContext, Event, FastRequest, Feedback, FeedbackKind, GroupId,
    GroupSettings, Info, InsertAt, Outstanding, Passing, RqId, Scheduler, Setting, Ticket, Time,
};

/// What a client has, as the scheduler was told.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Books {
    waiting: u64,
    /// Requests that were dispatched and not reported, by ticket, with their sectors.
    dispatched: BTreeMap<u32, u32>,
    /// Requests and sectors that passed, less those that completed. A completion may be told first.
    passing: (i64, i64),
    completed: u64,
    passed: u64,
}

#[derive(Debug, Default)]
struct State {
    clients: BTreeMap<ClientId, (ClientSettings, Books)>,
    groups: BTreeMap<GroupId, GroupSettings>,
    rotational: bool,
    passing: Option<Passing>,
    /// Requests other than reads are bounded, so that only reads pass.
    bounds_writes: bool,
    /// How many requests of a client may be outstanding.
    most: u64,
    /// Each call that matters, for a test that wants to see their order.
    calls: Vec<String>,
    wrong: Vec<String>,
}

impl State {
    fn books(&mut self, client: ClientId) -> &mut Books {
        if !self.clients.contains_key(&client) {
            self.wrong.push(format!("{client:?} is not there"));
        }
        &mut self.clients.entry(client).or_insert((ClientSettings::default(), Books::default())).1
    }

    fn check(&mut self, what: impl FnOnce() -> String, holds: bool) {
        if !holds {
            self.wrong.push(what());
        }
    }
}

/// A scheduler in order of arrival that keeps books. What is wrong it writes down, because a scheduler that panics ends
/// the process.
#[derive(Debug, Default)]
struct Bookkeeper {
    waiting: VecDeque<(RqId, Info)>,
    state: Arc<Mutex<State>>,
    next_ticket: u32,
}

impl Bookkeeper {
    fn new(passing: Passing, most: u64) -> (Box<Self>, Arc<Mutex<State>>) {
        let state = Arc::new(Mutex::new(State { passing: Some(passing), most, ..State::default() }));
        (Box::new(Self { state: Arc::clone(&state), ..Self::default() }), state)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics with it")
    }
}

impl Scheduler for Bookkeeper {
    fn name(&self) -> &'static str {
        "bookkeeper"
    }

    fn reserve(&mut self, capacity: usize) {
        self.waiting.reserve(capacity.saturating_sub(self.waiting.len()));
    }

    fn insert(&mut self, rq: RqId, info: &Info, at: InsertAt, _now: Time) {
        match at {
            InsertAt::Head => self.waiting.push_front((rq, *info)),
            InsertAt::Sorted => self.waiting.push_back((rq, *info)),
        }
        let mut state = self.state();
        state.books(info.client).waiting += 1;
        state.calls.push(format!("insert {}", info.sector));
    }

    fn dispatch(&mut self, context: &mut dyn DispatchContext, _now: Time) -> Option<RqId> {
        let (rq, info) = self.waiting.pop_front()?;
        self.next_ticket += 1;
        let ticket = self.next_ticket;
        let mut state = self.state();
        let books = state.books(info.client);
        books.waiting -= 1;
        books.dispatched.insert(ticket, info.nr_sectors);
        state.calls.push(format!("dispatch {}", info.sector));
        context.set_ticket(Ticket(NonZeroU32::new(ticket).expect("tickets begin at 1")));
        Some(rq)
    }

    /// It is not asked, because each request needs a ticket. A question costs tags that go back, and a fence.
    fn dispatch_fast(&mut self, _newcomers: &[FastRequest], _now: Time, _order: &mut [u8]) -> bool {
        self.state().wrong.push("asked to hand through".to_owned());
        false
    }

    fn len(&self) -> usize {
        self.waiting.len()
    }

    fn may_pass(&self, _class: Class, _client: ClientId) -> Passing {
        match self.state().passing {
            Some(passing) if self.waiting.is_empty() => passing,
            _ => Passing::Nobody,
        }
    }

    fn limit_depth(&self, newcomer: &Info, outstanding: Outstanding) -> Admission {
        let mut state = self.state();
        if state.bounds_writes && !newcomer.op.is_read() && !outstanding.is_below(50) {
            return Admission::Refused;
        }
        let most = state.most;
        let books = state.books(newcomer.client);
        Admission::fitting(books.waiting + (books.dispatched.len() as u64) < most)
    }

    fn join(&mut self, client: ClientId, settings: &ClientSettings) {
        let mut state = self.state();
        let known = settings.group == GroupId::ROOT || state.groups.contains_key(&settings.group);
        state.check(|| format!("{client:?} joins an unknown group"), known);
        state.clients.entry(client).or_default().0 = *settings;
    }

    fn leave(&mut self, client: ClientId) {
        let mut state = self.state();
        let gone = state.clients.remove(&client);
        let balances = gone
            .as_ref()
            .is_some_and(|(_, books)| books.waiting == 0 && books.dispatched.is_empty() && books.passing == (0, 0));
        state.check(|| format!("{client:?} leaves with {gone:?}"), balances);
    }

    fn join_group(&mut self, group: GroupId, settings: &GroupSettings) {
        let mut state = self.state();
        let known = settings.parent == GroupId::ROOT || state.groups.contains_key(&settings.parent);
        state.check(|| format!("{group:?} joins an unknown group"), known);
        state.groups.insert(group, *settings);
    }

    fn leave_group(&mut self, group: GroupId) {
        let mut state = self.state();
        let is_empty = state.clients.values().all(|(settings, _)| settings.group != group)
            && state.groups.values().all(|settings| settings.parent != group);
        let was_there = state.groups.remove(&group).is_some();
        state.check(|| format!("{group:?} leaves with something in it, or twice"), is_empty && was_there);
    }

    fn feedback(&self) -> FeedbackKind {
        FeedbackKind::Events
    }

    fn configure(&mut self, setting: Setting) {
        if let Setting::Rotational(rotational) = setting {
            self.state().rotational = rotational;
        }
    }

    fn observe(&mut self, feedback: Feedback<'_>) {
        let Feedback::Events(reports, _) = feedback else { return };
        let mut state = self.state();
        for report in reports {
            let sign = if report.event == Event::Passed { 1 } else { -1 };
            let books = state.books(report.client);
            match report.event {
                Event::Completed(Some(ticket)) => {
                    let known = books.dispatched.remove(&ticket.0.get());
                    books.completed += 1;
                    let is_right = known == Some(report.sectors) && report.requests == 1;
                    state.check(|| format!("{report:?} of what was {known:?}"), is_right);
                }
                Event::Passed | Event::Completed(None) => {
                    books.passing.0 += sign * i64::from(report.requests);
                    books.passing.1 += sign * i64::from(report.sectors);
                    books.passed += if sign > 0 { report.requests.into() } else { 0 };
                }
            }
        }
        state.calls.push(format!("report {}", reports.len()));
    }
}

fn looked<R>(state: &Arc<Mutex<State>>, look: impl FnOnce(&mut State) -> R) -> R {
    look(&mut state.lock().expect("nobody panics with it"))
}

/// Nothing was wrong, and nothing is outstanding.
fn assert_even(state: &Arc<Mutex<State>>) {
    looked(state, |state| {
        assert!(state.wrong.is_empty(), "{:#?}", &state.wrong[..state.wrong.len().min(5)]);
        for (client, (_, books)) in &state.clients {
            let is_even = books.waiting == 0 && books.dispatched.is_empty() && books.passing == (0, 0);
            assert!(is_even, "{client:?}: {books:?}");
        }
    });
}

fn recorder(depth: u16) -> Arc<Recorder> {
    let limits = Limits { capacity_sectors: 1 << 20, rotational: true, ..Limits::default() };
    Recorder::new(limits, Topology { depth, ..ONE_QUEUE })
}

fn submitter(q: &RequestQueue, name: &str) -> Submitter {
    q.submitter(&Client::new(name)).expect("there is a place")
}

fn submit(submitter: &mut Submitter, bio: Bio) {
    submitter.submit_now(bio);
}

/// Red if a completion is told only behind the next insertion or choice, or twice, or with another request's sectors.
#[test]
fn a_completion_is_told_before_the_next_request_comes() {
    for locking in Locking::ALL {
        let device = recorder(2);
        let (scheduler, state) = Bookkeeper::new(Passing::Nobody, 100);
        let q = RequestQueue::builder(device.clone()).scheduler(scheduler).locking(locking).build().unwrap();
        let (mut first, mut second) = (submitter(&q, "a"), submitter(&q, "b"));
        submit(&mut first, read(0, 8));
        // The other submitter completes it.
        device.finish_oldest(Status::Ok);
        second.poll();
        assert_eq!(reap(&mut first).len(), 1, "{locking}");
        submit(&mut first, write(100, 16));
        device.finish_oldest(Status::Medium);
        assert_eq!(reap(&mut first).len(), 1, "{locking}");
        submit(&mut second, read(200, 8));
        device.drain(&mut [&mut first, &mut second]);
        let calls = ["insert 0", "dispatch 0", "report 1", "insert 100", "dispatch 100", "report 1", "insert 200"];
        looked(&state, |state| {
            assert!(state.calls.starts_with(&calls.map(str::to_owned)), "{locking}: {:?}", state.calls)
        });
        assert!(looked(&state, |state| state.rotational));
        drop((first, second));
        assert_even(&state);
    }
}

/// Red if a client or a group that was there before the scheduler is not told, or if the scheduler is not told of a
/// change.
#[test]
fn a_scheduler_knows_the_clients_and_groups_that_were_there_before() {
    let q = RequestQueue::builder(recorder(2)).scheduler("none").build().unwrap();
    let outer = q.tenants().add_group("outer", GroupId::ROOT, 7).unwrap();
    let inner = q.tenants().add_group("inner", outer, 8).unwrap();
    let _submitter = q.submitter(&Client { group: inner, weight: 9, ..Client::new("a") }).unwrap();
    let (scheduler, state) = Bookkeeper::new(Passing::Nobody, 100);
    q.change_scheduler(scheduler).unwrap().wait().unwrap();
    let client = q.tenants().client_of("a").unwrap();
    let settings = |state: &mut State| state.clients[&client].0;
    looked(&state, |state| {
        assert_eq!(state.groups[&inner], GroupSettings { weight: 8, parent: outer });
        assert_eq!(settings(state), ClientSettings { weight: 9, group: inner, ..ClientSettings::default() });
    });
    q.tenants().set_client_weight(client, 10).unwrap();
    q.tenants().set_group_weight(inner, 11).unwrap();
    q.tenants().remove_group(outer).unwrap();
    q.tenants().move_client(client, GroupId::ROOT).unwrap();
    looked(&state, |state| {
        assert_eq!(state.groups, BTreeMap::from([(inner, GroupSettings { weight: 11, parent: GroupId::ROOT })]));
        assert_eq!(settings(state), ClientSettings { weight: 10, ..ClientSettings::default() });
    });
    assert_even(&state);
}

/// Red if a request passes that is not told of, or is told of twice; if those of another client pass than the one that
/// may; or if the gate stays open although the scheduler says something else now.
#[test]
fn requests_pass_as_the_scheduler_says_and_are_told() {
    for locking in Locking::ALL {
        let device = recorder(8);
        let (scheduler, state) = Bookkeeper::new(Passing::Client, 100);
        let q = RequestQueue::builder(device.clone()).scheduler(scheduler).locking(locking).bypass(true);
        let q = q.build().unwrap();
        let (mut first, mut second) = (submitter(&q, "a"), submitter(&q, "b"));
        let mut passed = |of: usize, times: u64| {
            let before = q.counters().bypassed;
            for number in 0..times {
                submit([&mut first, &mut second][of], read(1000 * number, 8));
                device.drain(&mut [&mut first, &mut second]);
            }
            q.counters().bypassed - before
        };
        assert!(passed(0, 12) >= 2, "{locking}");
        assert_eq!(passed(0, 5), 5, "{locking}");
        assert_eq!(passed(1, 1), 0, "{locking}: only the first may");
        assert!(passed(1, 12) >= 2, "{locking}");
        assert_eq!((passed(1, 1), passed(0, 1)), (1, 0), "{locking}");
        looked(&state, |state| (state.passing, state.bounds_writes) = (Some(Passing::All), true));
        let _ = passed(0, 12);
        assert_eq!((passed(0, 2), passed(1, 2)), (2, 2), "{locking}");
        looked(&state, |state| state.passing = Some(Passing::Nobody));
        // A write goes to the scheduler, because writes are bounded. At the end of that hold the scheduler is asked
        // anew.
        submit(&mut first, write(0, 8));
        device.drain(&mut [&mut first, &mut second]);
        let before = q.counters().bypassed;
        submit(&mut first, read(0, 8));
        device.drain(&mut [&mut first, &mut second]);
        assert_eq!(q.counters().bypassed, before, "{locking}: nobody may");
        let told = looked(&state, |state| state.clients.values().map(|(_, books)| books.passed).sum::<u64>());
        assert_eq!(told, q.counters().bypassed, "{locking}");
        drop((first, second));
        assert_even(&state);
    }
}

/// Red if a request that is not admitted goes all the same, holds up another client, or waits forever.
#[test]
fn what_is_not_admitted_waits_for_a_completion_of_its_client() {
    for locking in Locking::ALL {
        let device = recorder(8);
        let (scheduler, state) = Bookkeeper::new(Passing::Nobody, 2);
        let q = RequestQueue::builder(device.clone()).scheduler(scheduler).locking(locking).build().unwrap();
        let (mut first, mut second) = (submitter(&q, "a"), submitter(&q, "b"));
        for number in 0..6 {
            submit(&mut first, read(1000 * number, 8));
        }
        assert_eq!(device.nr_held(), 2, "{locking}");
        submit(&mut second, write(1 << 16, 8));
        assert_eq!(device.nr_held(), 3, "{locking}");
        for left in [2, 2, 2, 2, 1, 0] {
            device.finish_oldest(Status::Ok);
            second.poll();
            first.poll();
            let done = device.nr_held() - usize::from(second.nr_outstanding() > 0 && reap(&mut second).is_empty());
            assert!(done >= left.min(1), "{locking}: {left}");
        }
        device.drain(&mut [&mut first, &mut second]);
        drop((first, second));
        assert_even(&state);
    }
}
