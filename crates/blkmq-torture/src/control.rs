//! The controller: an operator that changes the queue while it is in use.

mod shares;

use std::sync::Arc;
use std::time::Duration;

use blkmq_sched::Knob;
use blkmq_vcpu::{Random, thread, uninterrupted};
use blkmq_virtual::driver::Topology;
use blkmq_virtual::{
    Background, Change, Freeze, Locking, MAX_RANGES, QUEUE_KNOBS, QueueError, SectorRange, scheduler_names,
};

use super::check::Violation;
use super::event::{Control, Counts, Event, Phase, RangeCount};
use super::pace::{Pace, magnitude, shallow, wbt_lat_usec};
use super::policy::Watched;
use super::settings::{go_together, orders_all};
use super::world::World;

/// What may be done to a queue.
#[derive(Debug, Clone, Copy)]
enum Deed {
    Scheduler,
    Locking,
    Bypass,
    Knob,
    QueueKnob,
    NrRequests,
    Freeze,
    Quiesce,
    Topology,
    Ranges,
    Background,
    Shares,
    Look,
    /// Only in worlds that have limiters.
    WbtLatUsec,
}

const DEEDS: [Deed; 13] = [
    Deed::Scheduler,
    Deed::Locking,
    Deed::Bypass,
    Deed::Knob,
    Deed::QueueKnob,
    Deed::NrRequests,
    Deed::Freeze,
    Deed::Quiesce,
    Deed::Topology,
    Deed::Ranges,
    Deed::Background,
    Deed::Shares,
    Deed::Look,
];

/// What the settings let each world decide.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Alterable {
    pub(crate) scheduler: bool,
    pub(crate) locking: bool,
}

/// What the controller does to a queue, and how often.
#[derive(Debug, Clone)]
pub(crate) struct Whims {
    /// The deeds that occur in this world. If there are none, no CPU changes the queue.
    deeds: Vec<Deed>,
    /// The longest time between two deeds, in ns.
    pause_ns: u64,
    pace: Pace,
    /// Each deed is done once, and then no CPU changes the queue any more.
    once: bool,
    /// Background threads at the start.
    nr_threads: u16,
    /// No other controller changes the queue in a way that shows in the counts.
    is_first: bool,
    /// Submitters that each own a hardware queue of each type; 0 if the queues are shared.
    nr_owners: u16,
    random: Random,
}

impl Whims {
    /// `is_alone`: there are no background threads.
    pub(crate) fn draw(random: &mut Random, may_change: Alterable, pace: Pace, is_alone: bool) -> Self {
        let mut deeds: Vec<_> = DEEDS.into_iter().filter(|_| random.one_in(3)).collect();
        deeds.retain(|deed| may_change.scheduler || !matches!(deed, Deed::Scheduler));
        deeds.retain(|deed| may_change.locking || !matches!(deed, Deed::Locking));
        deeds.retain(|deed| !(is_alone && matches!(deed, Deed::Background)));
        let has_threads = random.one_in(4) && !is_alone;
        Self {
            deeds,
            pause_ns: pace.pause_ns(random),
            pace,
            once: matches!(pace, Pace::Together(_)) && random.one_in(2),
            nr_threads: if has_threads { random.within(1, 2) as u16 } else { 0 },
            is_first: true,
            nr_owners: 0,
            random: random.fork(),
        }
    }

    /// The same whims for a queue on which each of this many submitters owns a hardware queue of each type.
    pub(crate) fn of_owners(mut self, nr_owners: u16) -> Self {
        self.nr_owners = nr_owners;
        self.nr_threads = 0;
        self.deeds.retain(|deed| !matches!(deed, Deed::Background));
        self
    }

    /// The same whims for a queue whose clients matter by what they ask for: only shares and the locking change.
    pub(crate) fn of_shares(mut self) -> Self {
        self.deeds.retain(|deed| matches!(deed, Deed::Shares | Deed::Locking | Deed::Look));
        self
    }

    /// The same whims for a queue that has a limiter now and then, with other targets.
    pub(crate) fn of_limiters(mut self) -> Self {
        self.deeds.push(Deed::WbtLatUsec);
        self
    }

    /// The whims of a second controller, which stops the queue while the first one changes it. In most worlds there is
    /// none.
    pub(crate) fn draw_second(random: &mut Random, pace: Pace) -> Option<Self> {
        let mut deeds: Vec<_> = [Deed::Freeze, Deed::Quiesce].into_iter().collect();
        deeds.retain(|_| random.one_in(2));
        let pause_ns = pace.pause_ns(random);
        let whims = Self {
            deeds,
            pause_ns,
            pace,
            once: false,
            nr_threads: 0,
            is_first: false,
            nr_owners: 0,
            random: random.fork(),
        };
        (random.one_in(3) && !whims.deeds.is_empty()).then_some(whims)
    }
}

/// The operator that changes the queue.
pub(crate) struct Controller {
    world: Arc<World>,
    whims: Whims,
    scheduler: &'static str,
    locking: Locking,
    background: Option<Background>,
}

/// What a change comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Made,
    /// The device or the scheduler may refuse it.
    MadeOrRefused,
    Refused,
}

impl Controller {
    pub(crate) fn new(world: Arc<World>, whims: Whims, scheduler: &'static str, locking: Locking) -> Self {
        Self { world, whims, scheduler, locking, background: None }
    }

    /// Makes changes until the world's clients have come to their end.
    pub(crate) fn run(mut self) {
        if self.whims.nr_threads > 0 {
            self.set_background(self.whims.nr_threads);
        }
        let (mut seen, mut doublings) = (0, 0);
        while !self.whims.deeds.is_empty() && !self.world.share(|share| share.is_over) {
            let next = self.whims.random.below(self.whims.deeds.len() as u64) as usize;
            let deed = if self.whims.once { self.whims.deeds.swap_remove(next) } else { self.whims.deeds[next] };
            match deed {
                Deed::Scheduler => self.change_scheduler(),
                Deed::Locking => self.change_locking(),
                Deed::Bypass => self.change_bypass(),
                Deed::Knob => self.set_knob(),
                Deed::QueueKnob => self.set_queue_knob(),
                Deed::NrRequests => self.change_nr_requests(),
                Deed::Freeze => self.freeze(),
                Deed::Quiesce => self.quiesce(),
                Deed::Topology => self.change_topology(),
                Deed::Ranges => self.change_ranges(),
                Deed::Background => {
                    let nr_threads = self.whims.random.below(3) as u16;
                    self.set_background(nr_threads);
                }
                Deed::Shares => self.change_shares(),
                Deed::Look => self.look(),
                Deed::WbtLatUsec => self.change_wbt_lat_usec(),
            }
            // While a device hangs for long, time passes without operations, so a world would see very many changes.
            let taken = self.world.share(|share| share.taken());
            doublings = if taken == seen { u32::min(doublings + 1, 24) } else { 0 };
            seen = taken;
            let most_ns = u64::max(self.whims.pause_ns, self.whims.pace.most_pause_ns());
            self.pause((self.whims.pause_ns << doublings).min(most_ns));
        }
        while self.background.is_some() && !self.world.share(|share| share.is_over) {
            let ns = self.whims.pause_ns.clamp(100_000, 100_000_000);
            self.pause(ns);
        }
        if self.background.is_some() {
            self.set_background(0);
        }
    }

    fn tell(&self, control: Control, phase: Phase) {
        self.world.witness.tell(Event::Changed { control, phase });
    }

    fn accuse(&self, what: String) {
        self.world.witness.accuse(Violation::new("control", what));
    }

    fn pause(&mut self, most_ns: u64) {
        let ns = self.whims.random.below(most_ns + 1);
        thread::sleep(Duration::from_nanos(ns));
    }

    /// Asks again and again. Each pause is longer than the last, up to 1 ms.
    fn until<T>(mut ask: impl FnMut() -> Option<T>) -> T {
        let mut nap = Duration::from_nanos(500);
        loop {
            if let Some(answer) = ask() {
                return answer;
            }
            thread::sleep(nap);
            nap = (2 * nap).min(Duration::from_millis(1));
        }
    }

    /// Makes a change that needs a drained queue, or gives the change up before it is made. `expected`: what the queue
    /// may do with it. Returns whether the change was made.
    fn change(&mut self, control: Control, change: Result<Change, QueueError>, expected: Answer) -> bool {
        let mut change = match change {
            Ok(change) => change,
            Err(error) => {
                self.accuse(format!("{control} was refused: {error}"));
                return false;
            }
        };
        if self.whims.random.one_in(8) {
            self.pause(10_000);
            drop(change);
            self.tell(control, Phase::Refused);
            return false;
        }
        // `Change::wait` spins, so it is called only on a queue that has drained already. In both cases the queue
        // stays frozen until the witness was told of the change.
        let outer = self.whims.random.one_in(4).then(|| {
            let mut freeze = self.world.q.freeze();
            Self::until(|| freeze.poll().then_some(()));
            freeze
        });
        let (made, _change) =
            if outer.is_some() { (change.wait(), None) } else { (Self::until(|| change.poll()), Some(change)) };
        match &made {
            Ok(()) => {
                if expected == Answer::Refused {
                    self.accuse(format!(
                        "{control} was made, with the scheduler {} and the locking {}",
                        self.scheduler, self.locking
                    ));
                }
                self.tell(control, Phase::Done);
                match control {
                    Control::Scheduler(name) => {
                        self.scheduler = name;
                        self.world.tell_installed(name);
                    }
                    Control::Locking(locking) => self.locking = locking,
                    Control::Ranges(_) => self.world.tell_ranges(),
                    _ => {}
                }
            }
            Err(error) => {
                if expected == Answer::Made {
                    self.accuse(format!("{control} was refused: {error}"));
                }
                self.tell(control, Phase::Refused);
            }
        }
        made.is_ok()
    }

    fn change_scheduler(&mut self) {
        let name = *self.whims.random.pick(&scheduler_names());
        let control = Control::Scheduler(name);
        self.tell(control, Phase::Begun);
        let shallow = shallow(&mut self.whims.random);
        let change = match Watched::named(name, self.world.witness.clone(), shallow) {
            Some(scheduler) => self.world.q.change_scheduler(scheduler),
            None => self.world.q.change_scheduler(name),
        };
        let expected = if go_together(name, self.locking) { Answer::Made } else { Answer::Refused };
        self.change(control, change, expected);
    }

    fn change_locking(&mut self) {
        let locking = *self.whims.random.pick(&Locking::ALL);
        let control = Control::Locking(locking);
        self.tell(control, Phase::Begun);
        let change = self.world.q.change_knob("locking", locking.name());
        let expected = if go_together(self.scheduler, locking) { Answer::Made } else { Answer::Refused };
        if self.change(control, change, expected) && self.world.q.locking() != locking {
            self.accuse(format!("{control} was made and it is another"));
        }
    }

    fn change_bypass(&mut self) {
        let bypass = self.whims.random.one_in(2);
        let control = Control::Bypass(bypass);
        self.tell(control, Phase::Begun);
        let change = self.world.q.change_knob("bypass", if bypass { "1" } else { "0" });
        if self.change(control, change, Answer::Made) && self.world.q.has_bypass() != bypass {
            self.accuse(format!("{control} was made and it is another"));
        }
    }

    fn change_wbt_lat_usec(&mut self) {
        if self.whims.random.one_in(4) {
            drop(self.world.q.limiter());
            return;
        }
        let usec = wbt_lat_usec(&mut self.whims.random);
        let control = Control::WbtLatUsec(usec);
        self.tell(control, Phase::Begun);
        let change = self.world.q.change_knob("wbt_lat_usec", &usec.to_string());
        let expected = if usec == 0 || orders_all(self.scheduler) { Answer::Made } else { Answer::Refused };
        if self.change(control, change, expected) && self.world.q.knob("wbt_lat_usec") != Ok(usec.to_string()) {
            self.accuse(format!("{control} was made and it is another"));
        }
    }

    fn change_nr_requests(&mut self) {
        let nr_requests = magnitude(&mut self.whims.random, 2048) as u32;
        let control = Control::NrRequests(nr_requests);
        self.tell(control, Phase::Begun);
        let change = self.world.q.change_knob("nr_requests", &nr_requests.to_string());
        // Without a scheduler the depth of the device is the limit.
        let expected = if self.scheduler == "none" { Answer::MadeOrRefused } else { Answer::Made };
        self.change(control, change, expected);
    }

    fn change_topology(&mut self) {
        let random = &mut self.whims.random;
        // An owner that leaves joins again, and then needs its hardware queues.
        let nr = |drawn: u64| if drawn == 0 { 0 } else { self.whims.nr_owners + drawn as u16 };
        let (default_queues, read_queues, poll_queues) =
            (nr(random.within(1, 4)), nr(random.below(3)), nr(random.below(3)));
        let control = Control::Topology(default_queues, read_queues, poll_queues);
        self.tell(control, Phase::Begun);
        let change = self.world.q.change_topology(Topology { default_queues, read_queues, poll_queues, depth: 1 });
        self.change(control, change, Answer::MadeOrRefused);
    }

    fn change_ranges(&mut self) {
        let random = &mut self.whims.random;
        let capacity = self.world.limits.capacity_sectors;
        let nr_ranges = random.below(5);
        let each = capacity / nr_ranges.max(1);
        let ranges: Vec<_> = (0..nr_ranges)
            .map(|at| {
                let skipped = random.below(each);
                let (first, nr_sectors) = (at * each + skipped, random.within(1, each - skipped));
                SectorRange { name: format!("p{}", at + random.below(2) * nr_ranges), first, nr_sectors }
            })
            .collect();
        let control = Control::Ranges(nr_ranges as u16);
        self.tell(control, Phase::Begun);
        let change = self.world.q.change_ranges(ranges);
        self.change(control, change, Answer::Made);
    }

    fn set_background(&mut self, nr_threads: u16) {
        let control = Control::Background(nr_threads);
        self.tell(control, Phase::Begun);
        self.background = None;
        if nr_threads > 0 {
            self.background = Some(self.world.q.start_threads(nr_threads).expect("there are places for a few threads"));
        }
        self.tell(control, Phase::Done);
    }

    fn set_knob(&mut self) {
        let known = blkmq_sched::SCHEDULERS.iter().find(|known| known.name == self.scheduler);
        let known = known.map_or(&[][..], |known| known.knobs);
        let random = &mut self.whims.random;
        let Some(knob) = (!known.is_empty()).then(|| random.pick(known)) else {
            if self.world.q.set_knob("iosched/read_expire", "1").is_ok() {
                self.accuse("a knob of no scheduler was set".to_owned());
            }
            return;
        };
        let (value, is_good) = match knob.name {
            // About what requests take here. A target of 0 makes every request too slow.
            "read_lat_nsec" | "write_lat_nsec" if random.one_in(2) => (magnitude(random, 10_000_000) as i64, true),
            // While a client is waited for so long, nothing happens.
            "slice_idle" => (random.below(20) as i64, true),
            "slice_idle_us" => (magnitude(random, 20_000) as i64, true),
            "max_budget" if random.one_in(2) => (magnitude(random, 1024) as i64, true),
            _ => value(random, knob),
        };
        let control = Control::Knob(knob.name, value);
        self.tell(control, Phase::Begun);
        let result = self.world.q.set_knob(&format!("iosched/{}", knob.name), &value.to_string());
        self.judge(control, is_good, result);
        if is_good && self.world.q.knob(&format!("iosched/{}", knob.name)) != Ok(value.to_string()) {
            self.accuse(format!("{control} was set and has another value"));
        }
    }

    fn set_queue_knob(&mut self) {
        let random = &mut self.whims.random;
        // Only the knobs that take effect at once.
        let needs_drain = |knob: &&Knob| matches!(knob.name, "nr_requests" | "bypass" | "wbt_lat_usec");
        let knobs: Vec<_> = QUEUE_KNOBS.iter().filter(|knob| !needs_drain(knob)).collect();
        let knob = *random.pick(&knobs);
        let (value, is_good) = match knob.name {
            "io_timeout" if !random.one_in(8) => (self.whims.pace.io_timeout_ms(random).into(), true),
            "io_timeout" => (0, false),
            _ => value(random, knob),
        };
        let control = Control::QueueKnob(knob.name, value);
        self.tell(control, Phase::Begun);
        let result = self.world.q.set_knob(knob.name, &value.to_string());
        self.judge(control, is_good, result);
        if is_good && self.world.q.knob(knob.name) != Ok(value.to_string()) {
            self.accuse(format!("{control:?} was set and has another value"));
        }
    }

    fn judge(&self, control: Control, is_good: bool, result: Result<(), QueueError>) {
        self.tell(control, if result.is_ok() { Phase::Done } else { Phase::Refused });
        if result.is_ok() != is_good {
            self.accuse(format!("{control} should have been {}", if is_good { "set" } else { "refused" }));
        }
    }

    fn freeze(&mut self) {
        self.tell(Control::Freeze, Phase::Begun);
        let mut freeze = self.world.q.freeze();
        let mut inner = self.whims.random.one_in(4).then(|| self.world.q.freeze());
        if !self.whims.random.one_in(8) {
            Self::until(|| freeze.poll().then_some(()));
            inner.iter_mut().for_each(Freeze::wait);
            self.tell(Control::Freeze, Phase::Done);
            if self.whims.is_first {
                self.world.tell_counts();
                if self.whims.random.one_in(8) {
                    self.world.tell_dump();
                }
            }
            self.pause(20_000);
        }
        self.tell(Control::Thaw, Phase::Begun);
        self.thaw(freeze, inner);
        self.tell(Control::Thaw, Phase::Done);
    }

    /// Ends both freezes, in a random order.
    fn thaw(&mut self, outer: Freeze, inner: Option<Freeze>) {
        let (first, second) = if self.whims.random.one_in(2) { (Some(outer), inner) } else { (inner, Some(outer)) };
        drop(first);
        if self.whims.random.one_in(2) {
            self.pause(5_000);
        }
        drop(second);
    }

    fn quiesce(&mut self) {
        self.tell(Control::Quiesce, Phase::Begun);
        let quiesce = self.world.q.quiesce();
        self.tell(Control::Quiesce, Phase::Done);
        // During a long quiescence many requests become due and overdue, so completions meet the timeout scan after it.
        let most_ns = if self.whims.random.one_in(4) { 5_000_000 } else { 50_000 };
        self.pause(most_ns);
        self.tell(Control::Unquiesce, Phase::Begun);
        drop(quiesce);
        self.tell(Control::Unquiesce, Phase::Done);
    }

    /// Reads what can be read. A look must not disturb the threads at work. While they work, the values in one look
    /// come from different moments.
    fn look(&mut self) {
        let q = &self.world.q;
        match self.whims.random.below(7) {
            0 => drop(q.counters()),
            1 => drop(q.disk_stats()),
            2 => self.world.witness.tell(Event::Inflight(uninterrupted(|| q.inflight()))),
            3 => drop(q.range_stats()),
            4 => _ = q.busy_tags(),
            5 => drop(q.knob("scheduler")),
            _ => drop(q.dump()),
        }
    }
}

/// A value for a knob, and whether the knob takes it. Mostly it does.
fn value(random: &mut Random, knob: &Knob) -> (i64, bool) {
    if random.one_in(8) {
        let beyond = knob.max.checked_add(1).filter(|_| random.one_in(2));
        return (beyond.unwrap_or(knob.min.saturating_sub(1)), false);
    }
    let small = random.below(20) as i64;
    let value = match random.below(8) {
        0 => knob.min,
        1 => knob.max,
        2 => -small,
        _ => small,
    };
    (value.clamp(knob.min, knob.max), true)
}

const _: () = assert!(MAX_RANGES >= 8);

impl World {
    /// Tells what the queue counts at one moment.
    pub(crate) fn tell_counts(&self) {
        let q = &self.q;
        let (counts, ranges) = uninterrupted(|| {
            let (stats, stat, in_flight, inflight) = (q.counters(), q.disk_stats(), q.busy_tags(), q.inflight());
            (Counts { stats, stat, in_flight, inflight }, self.count_ranges())
        });
        self.witness.tell(Event::Counted(&counts));
        self.witness.tell(Event::CountedRanges(&ranges));
        self.witness.tell_memory();
    }

    /// What the queue counts for each of its ranges.
    fn count_ranges(&self) -> Vec<RangeCount> {
        let counts = self.q.range_stats().into_iter().map(|(SectorRange { name, first, nr_sectors }, stat)| {
            let name = name.trim_start_matches('p').parse().expect("a range has a number for its name");
            RangeCount { name, first, end: first + nr_sectors, stat }
        });
        counts.collect()
    }

    /// Tells what the queue counts for each of its ranges. Called when the ranges have changed.
    fn tell_ranges(&self) {
        let ranges = uninterrupted(|| self.count_ranges());
        self.witness.tell(Event::CountedRanges(&ranges));
    }

    /// Tells everything that the drained queue holds.
    pub(crate) fn tell_dump(&self) {
        self.witness.tell(Event::Dumped(&self.q.dump()));
    }

    /// Tells which scheduler is in place.
    pub(crate) fn tell_installed(&self, name: &'static str) {
        self.witness.tell(Event::Installed { scheduler: Some(name).filter(|name| *name != "none") });
    }
}
