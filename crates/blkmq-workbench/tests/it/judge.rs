//! The judge tells broken schedulers: each of the planted ones fails the test that is about its fault, and no other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use blkmq::driver::spec::Opener;
use blkmq_sched::{
    Bfq, Class, ClientId, ClientSettings, DispatchContext, Fairness, Feedback, FeedbackKind, GroupId, GroupSettings,
    Info, InsertAt, Knob, KnobError, MergeLevel, MqDeadline, Passing, RqId, Scheduler, Setting, Time,
};
use blkmq_workbench::bench::SchedulerSource;
use blkmq_workbench::judge::{Contestant, Promises, Row, Settings, Shares, Site, interference, judge, sections, tests};
use blkmq_workbench::report::Report;

/// A device so slow that some seconds are few operations.
const DEVICE: &str = "null,irqmode=2,completion_nsec=1ms,hw_queue_depth=8";

/// Runs are so many times shorter, because the targets are far from what these schedulers reach.
const SHORTER: u64 = 10;
/// The same where no figure is compared with a target.
const SHORTEST: u64 = 100;

fn rows(contestants: &[Contestant], tests: &[&'static str]) -> Vec<Row> {
    judged(DEVICE, contestants, tests, SHORTER)
}

fn judged(device: &str, contestants: &[Contestant], tests: &[&'static str], shorter: u64) -> Vec<Row> {
    let site = Site::open(device, false, &Opener::SILENT).expect("the device is good");
    let settings = Settings { tests: tests.to_vec(), shorter, ..Settings::default() };
    judge(&site, contestants, &settings, &|_, _| ()).expect("the runs end")
}

/// The tests that a scheduler fails.
fn failed(contestant: Contestant) -> BTreeSet<&'static str> {
    let rows = rows(&[contestant], &[]);
    rows.iter().filter(|row| row.pass == Some(false)).inspect(|row| println!("{row:?}")).map(|row| row.id).collect()
}

fn planted(
    name: &str,
    promises: Promises,
    make: impl Fn() -> Box<dyn Scheduler> + Send + Sync + 'static,
) -> Contestant {
    Contestant { name: name.to_owned(), scheduler: SchedulerSource::own(make), promises }
}

/// A scheduler with a fault, in front of mq-deadline, which is right.
#[derive(Debug)]
struct Faulty {
    inner: MqDeadline,
    fault: Fault,
    handed_out: u64,
    paused_until: Time,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// It tells mq-deadline that the first sector is the last one.
    Inverts,
    /// It hands out nothing for a while, though the device is idle, and says until when.
    Idles,
    /// The same, without a word.
    Forgets,
}

impl Faulty {
    fn new(fault: Fault) -> Self {
        Self { inner: MqDeadline::new(), fault, handed_out: 0, paused_until: Time(0) }
    }

    /// Begins a pause behind every 32nd request, unless the request that waits is alone.
    fn is_pausing(&mut self, now: Time) -> bool {
        if self.fault == Fault::Inverts || self.inner.len() < 2 {
            return false;
        }
        if self.handed_out >= 32 {
            self.handed_out = 0;
            self.paused_until = now.after(2_000_000);
        }
        now < self.paused_until
    }
}

impl Scheduler for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }
    fn reserve(&mut self, capacity: usize) {
        self.inner.reserve(capacity);
    }
    fn configure(&mut self, setting: Setting) {
        self.inner.configure(setting);
    }
    fn insert(&mut self, rq: RqId, info: &Info, at: InsertAt, now: Time) {
        let mut info = Info { merge: MergeLevel::Never, ..*info };
        if self.fault == Fault::Inverts {
            info.sector = (1 << 50) - info.end();
        }
        self.inner.insert(rq, &info, at, now);
    }
    fn dispatch(&mut self, context: &mut dyn DispatchContext, now: Time) -> Option<RqId> {
        if self.is_pausing(now) {
            return None;
        }
        self.handed_out += 1;
        self.inner.dispatch(context, now)
    }
    fn len(&self) -> usize {
        self.inner.len()
    }
    fn feedback(&self) -> FeedbackKind {
        self.inner.feedback()
    }
    fn observe(&mut self, feedback: Feedback<'_>) -> Fairness {
        self.inner.observe(feedback)
    }
    fn next_wakeup(&self) -> Option<Time> {
        let paused = (self.fault == Fault::Idles && self.inner.len() >= 2).then_some(self.paused_until);
        [paused.filter(|until| until.0 > 0), self.inner.next_wakeup()].into_iter().flatten().min()
    }
    fn knobs(&self) -> &'static [Knob] {
        self.inner.knobs()
    }
    fn set_knob(&mut self, name: &str, value: i64) -> Result<(), KnobError> {
        self.inner.set_knob(name, value)
    }
}

/// First come, first served.
#[derive(Debug, Default)]
struct Fifo(VecDeque<RqId>);

impl Scheduler for Fifo {
    fn name(&self) -> &'static str {
        "fifo"
    }
    fn reserve(&mut self, capacity: usize) {
        self.0.reserve(capacity.saturating_sub(self.0.len()));
    }
    fn insert(&mut self, rq: RqId, _info: &Info, at: InsertAt, _now: Time) {
        match at {
            InsertAt::Head => self.0.push_front(rq),
            InsertAt::Sorted => self.0.push_back(rq),
        }
    }
    fn dispatch(&mut self, _context: &mut dyn DispatchContext, _now: Time) -> Option<RqId> {
        self.0.pop_front()
    }
    fn len(&self) -> usize {
        self.0.len()
    }
    fn may_pass(&self, _class: Class, _client: ClientId) -> Passing {
        if self.0.is_empty() { Passing::All } else { Passing::Nobody }
    }
}

/// Each client gets the device by its weight, request by request. Its fault: if the client whose turn it is has nothing
/// just now, the turn goes to another one.
#[derive(Debug)]
struct Lender {
    groups: BTreeMap<GroupId, GroupSettings>,
    tenants: BTreeMap<ClientId, Tenant>,
    waiting: usize,
    /// The tag of the request that went last.
    served: f64,
}

#[derive(Debug)]
struct Tenant {
    settings: ClientSettings,
    waiting: VecDeque<(RqId, u32)>,
    /// What it has had, by its share.
    tag: f64,
}

impl Lender {
    fn new() -> Self {
        let root = GroupSettings { weight: 100, parent: GroupId::ROOT };
        let groups = BTreeMap::from([(GroupId::ROOT, root)]);
        Self { groups, tenants: BTreeMap::new(), waiting: 0, served: 0.0 }
    }

    /// The part of the device that is due to a client of this weight, as a part of what is due to its group.
    fn share(&self, group: GroupId, weight: f64) -> f64 {
        let clients = self.tenants.values().filter(|tenant| tenant.settings.group == group);
        let groups = self.groups.iter().filter(|(id, settings)| **id != GroupId::ROOT && settings.parent == group);
        let clients: f64 = clients.map(|tenant| client_weight(tenant.settings)).sum();
        let all = clients + groups.map(|(_, settings)| group_weight(*settings)).sum::<f64>();
        let of_group = if group == GroupId::ROOT {
            1.0
        } else {
            let settings = self.groups[&group];
            self.share(settings.parent, group_weight(settings))
        };
        of_group * weight / all
    }
}

/// Weights in Linux's units, in which a client of default priority weighs 40 and a group 100.
fn client_weight(settings: ClientSettings) -> f64 {
    0.4 * f64::from(settings.weight)
}

fn group_weight(settings: GroupSettings) -> f64 {
    f64::from(settings.weight)
}

impl Scheduler for Lender {
    fn name(&self) -> &'static str {
        "lender"
    }
    fn reserve(&mut self, _capacity: usize) {}
    fn join(&mut self, client: ClientId, settings: &ClientSettings) {
        let tenant = Tenant { settings: *settings, waiting: VecDeque::new(), tag: 0.0 };
        self.tenants.entry(client).or_insert(tenant).settings = *settings;
    }
    fn leave(&mut self, client: ClientId) {
        self.tenants.remove(&client);
    }
    fn join_group(&mut self, group: GroupId, settings: &GroupSettings) {
        self.groups.insert(group, *settings);
    }
    fn leave_group(&mut self, group: GroupId) {
        self.groups.remove(&group);
    }
    fn insert(&mut self, rq: RqId, info: &Info, _at: InsertAt, _now: Time) {
        let tenant = self.tenants.get_mut(&info.client).expect("the client joined");
        if tenant.waiting.is_empty() {
            tenant.tag = tenant.tag.max(self.served);
        }
        tenant.waiting.push_back((rq, info.nr_sectors));
        self.waiting += 1;
    }
    fn dispatch(&mut self, _context: &mut dyn DispatchContext, _now: Time) -> Option<RqId> {
        let candidates = self.tenants.iter().filter(|(_, tenant)| !tenant.waiting.is_empty());
        let (client, tenant) = candidates.min_by(|(_, one), (_, other)| one.tag.total_cmp(&other.tag))?;
        let (client, settings) = (*client, tenant.settings);
        let share = self.share(settings.group, client_weight(settings));
        let tenant = self.tenants.get_mut(&client)?;
        let (rq, nr_sectors) = tenant.waiting.pop_front()?;
        self.served = tenant.tag;
        tenant.tag += f64::from(nr_sectors) / share;
        self.waiting -= 1;
        Some(rq)
    }
    fn len(&self) -> usize {
        self.waiting
    }
}

/// Red if a target is too strict for a scheduler that keeps its promises, or if a test forgets a scheduler.
#[test]
fn schedulers_that_keep_their_promises_fail_nothing() {
    let rows = rows(&["none", "mq-deadline"].map(Contestant::named), &[]);
    let wrong: Vec<&Row> = rows.iter().filter(|row| row.pass == Some(false)).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    for (id, _) in tests() {
        for scheduler in ["none", "mq-deadline"] {
            assert!(
                rows.iter().any(|row| row.id == id && row.scheduler == scheduler),
                "{scheduler} has no row of {id}"
            );
        }
    }
    let judged = |scheduler| rows.iter().filter(|row| row.scheduler == scheduler && row.pass.is_some()).count();
    assert!(judged("none") < judged("mq-deadline"), "none promises less");
    let bad: Vec<&Row> = rows.iter().filter(|row| !row.value.is_finite() || row.meaning.is_empty()).collect();
    assert!(bad.is_empty(), "{bad:?}");
}

/// Red if kyber or bfq does not keep a flood of writes out of an SSD, or if it takes the writers' throughput for that.
#[test]
fn kyber_and_bfq_keep_their_promise_to_a_reader_beside_a_flood() {
    for scheduler in ["kyber", "bfq"] {
        let rows = judged("ssd", &[Contestant::named(scheduler)], &["Q7"], 6);
        let aimed: Vec<&Row> = rows.iter().filter(|row| row.pass.is_some()).collect();
        assert!(aimed.len() == 4 && aimed.iter().all(|row| row.pass == Some(true)), "{scheduler}: {aimed:?}");
        let ratios: Vec<&Row> = rows.iter().filter(|row| row.case.ends_with("p99 of none")).collect();
        let is_small = ratios.iter().all(|row| row.value < 10.0);
        assert!(ratios.len() == 2 && is_small, "{scheduler}: at most a tenth, in percent: {ratios:?}");
    }
}

/// Minutes of computing: run by the step `long`, and not by the step `test`.
mod long {
    use super::{Contestant, Row, judged};

    /// Red if clients do not get their shares from bfq, by weight, in groups, with requests of several sizes, beside
    /// many connections, and when they think between two requests.
    fn bfq_keeps_its_promise_of_shares(device: &str, is_asked: impl Fn(&Row) -> bool) {
        let rows = judged(device, &[Contestant::named("bfq")], &["Q6"], 2);
        let aimed = rows.iter().filter(|row| row.pass.is_some()).count();
        // In half of the turns an error may be twice as large.
        let is_small = |row: &Row| row.case.ends_with("largest error") && row.value <= 10.0;
        let missed = rows.iter().filter(|row| row.pass == Some(false) && is_asked(row) && !is_small(row));
        let missed: Vec<&Row> = missed.collect();
        assert!(aimed >= 20 && missed.is_empty(), "{device}: {missed:?}");
    }

    /// With 32 requests in the disk, what a client asked for in its turn is done in the next ones too. So a unit test
    /// beside the loads asks for the shares of requests of several sizes, of a disk that takes one request.
    #[test]
    fn bfq_keeps_its_promise_of_shares_of_a_disk() {
        bfq_keeps_its_promise_of_shares("hdd", |row| !row.case.starts_with("sizes"));
    }

    #[test]
    fn bfq_keeps_its_promise_of_shares_of_an_ssd() {
        bfq_keeps_its_promise_of_shares("ssd", |_| true);
    }
}

/// Red if an application does not start as if it were alone, or if the load is one under which any scheduler starts it
/// quickly.
#[test]
fn bfq_keeps_its_promise_of_a_quick_start() {
    let rows = judged("hdd", &["none", "bfq"].map(Contestant::named), &["Q9"], 1);
    let of = |scheduler| rows.iter().filter(move |row| row.scheduler == scheduler && row.unit == "times");
    let is_load = |row: &&Row| !row.case.ends_with("that stop");
    assert!(of("none").filter(is_load).all(|row| row.value >= 5.0), "{rows:?}");
    let judged: Vec<_> = of("bfq").filter(is_load).collect();
    assert!(judged.len() == 6 && judged.iter().all(|row| row.pass == Some(true)), "{rows:?}");
}

/// Red if clients with many connections get more and no row says so, or if weights are not looked at.
#[test]
fn a_fifo_that_calls_itself_fair_fails_the_shares() {
    let promises = Promises { shares: Some(Shares::OF_BYTES), ..Promises::NOTHING };
    assert_eq!(failed(planted("fair", promises, || Box::new(Fifo::default()))), BTreeSet::from(["Q6"]));
}

/// bfq with budgets so small that its shares are right after a few requests.
fn keeper() -> Box<dyn Scheduler> {
    let mut scheduler = Bfq::new();
    for (name, value) in [("low_latency", 0), ("max_budget", 8)] {
        scheduler.set_knob(name, value).expect("there is such a knob");
    }
    Box::new(scheduler)
}

/// Red if no load tells a share that is kept from one that is lent to the flood each time its owner looks idle, or if
/// what the judge asks of shares is more than a scheduler can do that keeps them.
#[test]
fn a_scheduler_that_lends_the_share_of_a_thinking_client_fails_that_row_alone() {
    let promises = Promises { shares: Some(Shares::OF_BYTES), idles: true, ..Promises::NOTHING };
    let failed = |make: fn() -> Box<dyn Scheduler>| {
        let rows = rows(&[planted("fair", promises, make)], &[]);
        let of_shares = rows.iter().filter(|row| row.id == "Q6" && row.pass.is_some()).count();
        assert!(of_shares >= 20, "{of_shares} rows with a target");
        rows.into_iter().filter(|row| row.pass == Some(false)).map(|row| (row.id, row.case)).collect::<Vec<_>>()
    };
    assert_eq!(failed(keeper), []);
    assert_eq!(failed(|| Box::new(Lender::new())), [("Q6", "thinker 10:1 beside a flood".to_owned())]);
}

/// mq-deadline with knobs under which reads starve writes.
fn starver() -> Box<dyn Scheduler> {
    let mut scheduler = MqDeadline::new();
    for name in ["writes_starved", "write_expire"] {
        scheduler.set_knob(name, i64::from(i32::MAX)).expect("it is the largest value");
    }
    Box::new(scheduler)
}

/// Red if a write that is never served counts for nothing because it never ends in time, if the order of dispatch is
/// not compared with what waits, or if time in which the device has nothing to do counts only where clients have
/// nothing to do either.
#[test]
fn a_scheduler_with_a_fault_fails_the_test_that_is_about_it() {
    let faulty = |name, promises, fault| planted(name, promises, move || Box::new(Faulty::new(fault)));
    for (contestant, test) in [
        (planted("starver", Promises::MQ_DEADLINE, starver), "Q8"),
        (faulty("inverter", Promises::MQ_DEADLINE, Fault::Inverts), "Q13"),
        (faulty("idler", Promises::MQ_DEADLINE, Fault::Idles), "Q10"),
        (faulty("forgetter", Promises::NOTHING, Fault::Forgets), "Q10"),
    ] {
        let name = contestant.name.clone();
        assert_eq!(failed(contestant), BTreeSet::from([test]), "{name}");
    }
}

/// Red if idling that a scheduler asks for is not told apart from idling that nothing explains.
#[test]
fn idling_as_asked_is_a_row_of_its_own() {
    let idle = |fault| {
        let make = move || Box::new(Faulty::new(fault)) as Box<dyn Scheduler>;
        let rows = rows(&[planted("idler", Promises::NOTHING, make)], &["Q10"]);
        let of = |case: &str| rows.iter().find(|row| row.case == case).expect("it is there").value;
        (of("idle"), of("idle as asked"))
    };
    let (idles, asked) = idle(Fault::Idles);
    assert!(idles == 0.0 && asked > 5.0, "{idles} {asked}");
    let (idles, asked) = idle(Fault::Forgets);
    assert!(idles > 5.0 && asked == 0.0, "{idles} {asked}");
}

/// Red if a row depends on anything but device, load and scheduler: on the thread that measures it, on a hash, on time.
#[test]
fn two_judgements_are_the_same() {
    let contestants = ["mq-deadline", "none"].map(Contestant::named);
    let [first, second] = [0, 1].map(|_| judged(DEVICE, &contestants, &["Q6", "Q7", "Q9", "Q12", "Q13"], SHORTEST));
    assert!(first.len() > 60, "{}", first.len());
    assert_eq!(first, second);
}

/// Red if the report is no page, or a test has no plot in it.
#[test]
fn the_report_shows_each_test() {
    let rows = judged(DEVICE, &["none", "mq-deadline"].map(Contestant::named), &["Q5", "Q6"], SHORTEST);
    let sections = sections(&rows);
    for title in ["Q5 in us: ", "Q6: ", "Q6 in %: ", "Q6: a victim", "All rows"] {
        assert!(sections.iter().any(|section| section.title.starts_with(title)), "{title}");
    }
    let word = || "word".to_owned();
    let report = Report { title: word(), command: word(), machine: word(), date: word(), modelled: word(), sections };
    let html = report.html();
    let page = html.strip_prefix("<!DOCTYPE html>\n").expect("it is HTML");
    let page = roxmltree::Document::parse(page).expect("the page is well-formed");
    assert_eq!(page.descendants().filter(|node| node.has_tag_name("svg")).count(), 4);
}

/// Red if a row of the table is missing, or stands beside figures that were published of another scheduler.
#[test]
fn the_interference_table_stands_beside_what_was_published() {
    let site = Site::open(DEVICE, false, &Opener::SILENT).expect("the device is good");
    let settings = Settings { shorter: SHORTEST, ..Settings::default() };
    let own = planted("own", Promises::NOTHING, || Box::new(Fifo::default()));
    let contestants = [Contestant::named("none"), Contestant::named("mq-deadline"), own];
    let rows = interference(&site, &contestants, &settings, &|_, _| ()).expect("the runs end");
    let names: Vec<&str> = rows.iter().map(|row| &*row.scheduler).collect();
    assert_eq!(names, ["none", "mq-deadline", "own"].repeat(7));
    assert_eq!(rows.iter().map(|row| row.applications).max(), Some(256));
    for row in &rows {
        // Beside the most applications no read ends in so short a run.
        assert!(row.p99_ms > 0.0 || row.applications == 256, "{row:?}");
        assert!(row.p99_9_ms >= row.p99_ms, "{row:?}");
        assert_eq!(row.background_mib_s > 0.0, row.applications > 0, "{row:?}");
        assert_eq!(row.published_p99_ms.is_some(), row.scheduler != "own", "{row:?}");
    }
    let last = &rows[18];
    assert_eq!((last.published_p99_ms, last.published_p99_9_ms), (Some(405.0), Some(776.0)), "32 writers, none");
}

/// Red if what was measured before a judgement is stopped is lost, or if a test that was not measured has rows.
#[test]
fn a_stopped_judgement_keeps_the_tests_that_were_measured() {
    let site = Site::open(DEVICE, false, &Opener::SILENT).expect("the device is good");
    let stop = Arc::new(AtomicBool::new(false));
    let settings = Settings { tests: vec!["Q5", "Q6", "Q13"], stop: Arc::clone(&stop), ..Settings::default() };
    let contestants = [Contestant::named("none")];
    let tell = |_, _| stop.store(true, Ordering::Relaxed);
    let rows = judge(&site, &contestants, &settings, &tell).expect("a test was measured");
    let ids: BTreeSet<&str> = rows.iter().map(|row| row.id).collect();
    assert!(!ids.is_empty() && !ids.contains("Q6"), "{ids:?}");
    let error = judge(&site, &contestants, &settings, &tell).expect_err("it is stopped from the beginning");
    assert!(matches!(error, blkmq_workbench::judge::JudgeError::Stopped), "{error}");
}
