//! What accesses cost: examples, and random accesses that are compared with a model. The model keeps nothing but a list
//! of all that happened.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::Random;

const NR_CPUS: usize = 5;
const NR_LINES: usize = 3;

const COSTS: Costs = Costs { hit: 1, update: 5, store: 2, fence: 4, memory: 900, share: 7, width: 2, buffer: 2 };

/// Two clusters, of three CPUs and of two, with a slightly different distance for each pair.
fn distances() -> Distances {
    Distances::new(NR_CPUS, |high, low| if high / 3 == low / 3 { 20 } else { 100 } + (high * 3 + low) as u64)
}

fn cache() -> Cache {
    Cache::new(distances(), COSTS)
}

/// What happened to a line: which CPU did what, and until when the line was busy with it.
struct Happened {
    line: usize,
    cpu: usize,
    is_load: bool,
    busy: u64,
}

/// Says what an access costs by reading the list of all earlier accesses.
#[derive(Default)]
struct Naive {
    happened: Vec<Happened>,
    /// The CPU of each store, and when the store ended.
    stores: Vec<(usize, u64)>,
}

impl Naive {
    /// The CPUs that have a line: those that read it since it was last written, and the CPU that wrote it.
    fn holders(&self, line: usize) -> Vec<usize> {
        let mut holders = Vec::new();
        for happened in self.happened.iter().rev().filter(|happened| happened.line == line) {
            if !holders.contains(&happened.cpu) {
                holders.push(happened.cpu);
            }
            if !happened.is_load {
                break;
            }
        }
        holders
    }

    fn busy(&self, line: usize) -> u64 {
        self.happened.iter().rev().find(|happened| happened.line == line).map_or(0, |happened| happened.busy)
    }

    fn last_store(&self, cpu: usize) -> u64 {
        self.stores.iter().filter(|(whose, _)| *whose == cpu).map(|(_, ended)| *ended).max().unwrap_or(0)
    }

    fn access(&mut self, cpu: usize, line: usize, access: Access, now: u64) -> Outcome {
        let far = distances();
        let asked = now;
        let now = match access {
            Access::Load => now,
            Access::Update => now.max(self.last_store(cpu)),
            Access::Store => {
                let mut under_way: Vec<u64> =
                    self.stores.iter().filter(|(whose, ended)| *whose == cpu && *ended > now).map(|s| s.1).collect();
                under_way.sort_unstable();
                if under_way.len() < COSTS.buffer { now } else { under_way[under_way.len() - COSTS.buffer] }
            }
        };
        let (before, busy) = (self.holders(line), self.busy(line));
        let others: Vec<u64> =
            before.iter().filter(|other| **other != cpu).map(|other| far.between(*other, cpu)).collect();
        let is_load = access == Access::Load;
        let is_hit = before.contains(&cpu) && (is_load || before.len() == 1);
        let begun = if is_hit { now } else { now.max(busy) };
        let distance = if is_load { others.iter().min() } else { others.iter().max() };
        let ended = begun + distance.copied().unwrap_or(COSTS.memory);
        let is_shared = is_load && before.len() > 1;
        if !is_hit {
            let busy = if is_shared { begun + COSTS.share } else { ended };
            self.happened.push(Happened { line, cpu, is_load, busy });
        }
        let done = match (access, is_hit) {
            (Access::Load, true) => now + COSTS.hit,
            (Access::Update, true) => now.max(busy) + COSTS.update,
            (Access::Store, _) => {
                let ended = if is_hit { busy } else { ended };
                self.stores.push((cpu, ended.max(self.last_store(cpu))));
                now + COSTS.store
            }
            (Access::Load | Access::Update, false) => ended,
        };
        let from_memory = u32::from(!is_hit && before.is_empty());
        let drained = if access == Access::Update { now - asked } else { 0 };
        Outcome { done, waited: begun - now, drained, moved: u32::from(!is_hit) - from_memory, fetched: from_memory }
    }
}

/// The CPUs' clocks. The CPU whose clock is earliest is the next one to do something.
struct Clocks(Vec<u64>);

impl Clocks {
    fn new(nr_cpus: usize) -> Self {
        Self(vec![0; nr_cpus])
    }

    /// The next CPU, and when.
    fn next(&self) -> (usize, u64) {
        self.0.iter().copied().enumerate().min_by_key(|(_, now)| *now).unwrap()
    }
}

fn any_access() -> impl Strategy<Value = (usize, Access, u64)> {
    let access = prop_oneof![Just(Access::Load), Just(Access::Store), Just(Access::Update)];
    (0..NR_LINES, access, prop_oneof![Just(0), 0..20_u64, 0..1500_u64])
}

proptest! {
    /// Red if any rule of the table, the order in which a line serves without a question, the bounds of posted stores,
    /// or what is told of waiting change.
    #[test]
    fn accesses_cost_what_the_list_of_all_of_them_says(accesses in vec(any_access(), 1..200)) {
        let (mut cache, mut naive, mut clocks) = (cache(), Naive::default(), Clocks::new(NR_CPUS));
        for (at, (line, access, pause)) in accesses.into_iter().enumerate() {
            let (cpu, now) = clocks.next();
            let expected = naive.access(cpu, line, access, now);
            let found = cache.access(cpu, line, access, now);
            prop_assert_eq!(found, expected, "access {}: {:?} by CPU {} at {}", at, access, cpu, now);
            clocks.0[cpu] = found.done + pause;
        }
    }
}

/// Whatever the number of CPUs, a counter that all of them change moves once for each change. Red if a line serves two
/// CPUs at a time.
#[test]
fn a_shared_counter_makes_one_change_per_move() {
    for nr_cpus in [2, 16, 128] {
        let mut cache = Cache::new(Distances::new(nr_cpus, |_, _| 70), COSTS);
        let mut clocks = Clocks::new(nr_cpus);
        for at in 1..=1000 {
            let (cpu, now) = clocks.next();
            clocks.0[cpu] = cache.access(cpu, 0, Access::Update, now).done;
            assert_eq!(clocks.0[cpu], COSTS.memory + (at - 1) * 70, "{nr_cpus} CPUs, change {at}");
        }
    }
}

/// Red if a load takes the line away from other CPUs that read it, or waits for longer than `share` for another load.
#[test]
fn readers_do_not_take_a_line_from_each_other() {
    let mut cache = cache();
    // The third CPU to read finds the line shared, and so does the fourth.
    let loads = [0, 1, 2, 3].map(|cpu| cache.access(cpu, 0, Access::Load, cpu as u64 / 2 * 10_000));
    assert_eq!([loads[2].waited, loads[3].waited], [0, COSTS.share]);
    cache.access(4, 0, Access::Load, 15_000);
    for cpu in 0..NR_CPUS {
        let Outcome { done, moved, .. } = cache.access(cpu, 0, Access::Load, 20_000);
        assert_eq!((done, moved), (20_000 + COSTS.hit, 0), "CPU {cpu}");
    }
    // The writer waits for the CPU that hears of it last.
    let farthest = (1..NR_CPUS).map(|cpu| distances().between(cpu, 0)).max().unwrap();
    assert_eq!(cache.access(0, 0, Access::Update, 30_000).done, 30_000 + farthest);
}

/// Red if a CPU waits for its store, if there is no bound on stores under way, or if an update or a fence does not wait
/// for these stores.
#[test]
fn stores_are_posted_and_bounded() {
    let far = distances().between(0, 4);
    let foreign = || {
        let mut cache = cache();
        cache.load_all(0, 0..NR_LINES, 0, |_| ());
        cache
    };
    let mut posted = foreign();
    assert_eq!(posted.access(4, 0, Access::Store, 5000).done, 5000 + COSTS.store);
    assert_eq!(posted.access(4, 1, Access::Store, 5002).done, 5002 + COSTS.store);
    assert_eq!(posted.access(4, 2, Access::Store, 5004).done, 5000 + far + COSTS.store, "the buffer is full");
    let mut fenced = foreign();
    fenced.access(4, 0, Access::Store, 5000);
    assert_eq!(fenced.access(4, 0, Access::Load, 5002).done, 5002 + COSTS.hit, "its own store is read at once");
    assert_eq!(fenced.fence(4, 5003), 5000 + far);
    assert_eq!(fenced.fence(4, 6000), 6000 + COSTS.fence, "nothing is under way any more");
    let mut updated = foreign();
    updated.access(4, 0, Access::Store, 5000);
    assert_eq!(updated.access(4, 0, Access::Update, 5002).done, 5000 + far + COSTS.update);
}

/// Red if loads that do not depend on each other are served one by one, or more than `width` at a time.
#[test]
fn independent_loads_overlap_up_to_the_width() {
    let mut cache = Cache::new(Distances::new(2, |_, _| 100), Costs { width: 4, ..COSTS });
    let mut load = |cpu, lines, now| {
        let mut each = Vec::new();
        let done = cache.load_all(cpu, lines, now, |outcome| each.push((outcome.done, outcome.moved, outcome.fetched)));
        (done, each)
    };
    load(0, 0..8, 0);
    let (done, each) = load(1, 0..8, 10_000);
    assert_eq!((done, each.len()), (10_200, 8));
    assert_eq!((each[3], each[4]), ((10_100, 1, 0), (10_200, 1, 0)));
    assert_eq!(load(1, 0..8, 20_000).0, 20_000 + 2 * COSTS.hit);
    assert_eq!(load(1, 8..9, 30_000), (30_000 + COSTS.memory, vec![(30_000 + COSTS.memory, 0, 1)]));
}

/// Red if a CPU waits for a line that it fetches, if the CPU can use the line before the line is there, if more lines
/// than `width` are under way, or if a CPU that fetches does not take the line away from others.
#[test]
fn a_line_that_was_fetched_comes_while_the_cpu_goes_on() {
    let mut cache = Cache::new(Distances::new(2, |_, _| 100), COSTS);
    cache.load_all(0, 0..4, 0, |_| ());
    let fetched = cache.fetch(1, 0, 10_000);
    assert_eq!((fetched.done, fetched.moved), (10_000 + COSTS.store, 1));
    assert_eq!(cache.fetch(1, 1, 10_010).done, 10_010 + COSTS.store);
    let full = cache.fetch(1, 2, 10_020).done;
    assert_eq!(full, 10_100 + COSTS.store, "two are under way, of which the first is there then");
    assert_eq!(cache.access(1, 1, Access::Load, full).done, 10_110 + COSTS.hit);
    assert_eq!(cache.data(1, 2, true, 10_115).done, 10_200);
    assert_eq!(cache.access(1, 0, Access::Update, 10_200).done, 10_200 + COSTS.update, "it is long there");
    assert_eq!(cache.fetch(1, 0, 10_300), Outcome::at_once(10_300 + COSTS.store));
    assert_eq!(cache.access(0, 0, Access::Load, 11_000).moved, 1, "it was taken away");
}

/// Red if a CPU that fetched a line and lost it still takes the line for there.
#[test]
fn a_line_that_was_fetched_and_lost_is_fetched_anew() {
    let mut cache = Cache::new(Distances::new(2, |_, _| 100), COSTS);
    cache.access(0, 0, Access::Update, 0);
    cache.fetch(1, 0, 10_000);
    let taken = cache.access(0, 0, Access::Update, 10_010);
    assert_eq!((taken.waited, taken.done), (90, 10_200), "the line serves the fetch first");
    assert_eq!(cache.access(1, 0, Access::Load, 10_210).done, 10_310);
}

/// Red if a CPU that fetches a line for the second time, while the first fetch has not ended, takes the end of the
/// first one for that of the second.
#[test]
fn a_line_that_is_fetched_twice_is_there_after_the_second_time() {
    let mut cache = Cache::new(Distances::new(2, |_, _| 100), COSTS);
    cache.access(0, 0, Access::Update, 0);
    cache.fetch(1, 0, 10_000);
    assert_eq!(cache.access(0, 0, Access::Store, 10_010).moved, 1, "the line is to be taken away again, at 10 200");
    cache.fetch(1, 0, 10_020);
    assert_eq!(cache.access(1, 0, Access::Load, 10_030).done, 10_300 + COSTS.hit);
}

/// Red if the second fetch of a line that is still under way makes the CPU forget the first: the line would be there at
/// once.
#[test]
fn a_line_that_is_fetched_twice_comes_no_earlier() {
    let mut cache = Cache::new(Distances::new(2, |_, _| 100), COSTS);
    cache.access(0, 0, Access::Update, 0);
    cache.fetch(1, 0, 10_000);
    assert_eq!(cache.fetch(1, 0, 10_010), Outcome::at_once(10_010 + COSTS.store));
    assert_eq!(cache.access(1, 0, Access::Load, 10_020).done, 10_100 + COSTS.hit);
}

/// Red if a CPU can do two things at a time.
#[test]
#[should_panic(expected = "CPU 1 goes on at 907 ps, and calls at 906 ps")]
fn a_call_of_a_busy_cpu_is_refused() {
    let mut cache = cache();
    cache.access(1, 0, Access::Load, 7);
    cache.access(1, 1, Access::Load, 906);
}

/// Red if a caller can serve an access before one that came earlier.
#[test]
#[should_panic(expected = "a call at 9 ps comes after one at 10 ps")]
fn a_call_out_of_order_is_refused() {
    let mut cache = cache();
    cache.access(0, 0, Access::Load, 10);
    cache.access(1, 1, Access::Load, 9);
}

/// The same accesses cost the same in every build and on every machine. Red if a cost depends on anything but the
/// accesses.
#[test]
fn accesses_cost_the_same_everywhere() {
    let mut random = Random::new(30);
    let mut cache = Cache::new(Distances::new(128, |high, low| 20_000 + (high ^ low) as u64 * 700), Costs::default());
    let (mut clocks, mut hash) = (Clocks::new(128), 0xcbf2_9ce4_8422_2325_u64);
    let mut note = |number: u64| hash = (hash ^ number).wrapping_mul(0x0100_0000_01b3);
    for _ in 0..200_000 {
        let (cpu, now) = clocks.next();
        let access = *random.pick(&[Access::Load, Access::Store, Access::Update]);
        let Outcome { done, waited, moved, fetched, .. } = cache.access(cpu, random.below(64) as usize, access, now);
        [cpu as u64, done, waited, moved.into(), fetched.into()].into_iter().for_each(&mut note);
        clocks.0[cpu] = done + random.below(200_000);
    }
    assert_eq!(hash, 12_542_509_292_629_059_940);
}

/// CPUs that ask before they act, again and again. What a CPU does next follows from what it has done.
struct Asking {
    cache: Cache,
    clocks: Clocks,
    /// By CPU: whether it waits.
    waits: Vec<bool>,
    /// By CPU: whether it has waited, and may act.
    may_act: Vec<bool>,
}

impl Asking {
    fn new(nr_cpus: usize, seed: u64) -> Self {
        let cache = Cache::new(Distances::new(nr_cpus, |_, _| 70), COSTS).with_seed(seed);
        Self { cache, clocks: Clocks::new(nr_cpus), waits: vec![false; nr_cpus], may_act: vec![false; nr_cpus] }
    }

    /// The next CPU that may act, and when.
    fn next(&mut self, mut wants: impl FnMut(usize) -> (usize, Wants)) -> (usize, u64) {
        loop {
            let ready = self.clocks.0.iter().copied().enumerate().filter(|(cpu, _)| !self.waits[*cpu]);
            let (cpu, now) = ready.min_by_key(|(_, now)| *now).unwrap_or((0, u64::MAX));
            if self.cache.next_free().is_some_and(|free| free <= now) {
                self.cache.serve();
                while let Some((cpu, at)) = self.cache.next_served() {
                    self.clocks.0[cpu] = at;
                    (self.waits[cpu], self.may_act[cpu]) = (false, true);
                }
                continue;
            }
            if std::mem::take(&mut self.may_act[cpu]) {
                return (cpu, now);
            }
            let (line, wants) = wants(cpu);
            match self.cache.ask(cpu, line, wants, now) {
                Asked::Ready => return (cpu, now),
                Asked::Later(at) => self.clocks.0[cpu] = at,
                Asked::Waits => self.waits[cpu] = true,
            }
        }
    }
}

/// Each of `n` CPUs loads a number, and changes the number if no other CPU has changed it since. If chance says which
/// CPU is served, a change takes as many attempts as in the birthday problem: about `sqrt(pi n / 2)`. Red if a line
/// serves in the order of the calls (about `n` attempts), or if some CPU is never served.
#[test]
fn a_compare_exchange_loop_takes_as_many_attempts_as_chance_says() {
    for nr_cpus in [4_usize, 16, 64] {
        let mut asking = Asking::new(nr_cpus, 7);
        let (mut number, mut seen, mut done) = (0_u64, vec![0_u64; nr_cpus], vec![0_u64; nr_cpus]);
        let attempts = 40_000;
        for _ in 0..attempts {
            let (cpu, now) = asking.next(|_| (0, Wants::Access(Access::Update)));
            asking.clocks.0[cpu] = asking.cache.access(cpu, 0, Access::Update, now).done;
            if seen[cpu] == number {
                number += 1;
                done[cpu] += 1;
            }
            seen[cpu] = number;
        }
        let (each, expected) = (attempts as f64 / number as f64, (std::f64::consts::PI * nr_cpus as f64 / 2.0).sqrt());
        assert!((0.8..1.2).contains(&(each / expected)), "{nr_cpus} CPUs: {each} attempts, {expected} expected");
        let mean = number / nr_cpus as u64;
        assert!(done.iter().all(|done| (mean / 2..mean * 2).contains(done)), "{done:?}");
    }
}

/// Red if a CPU does not say how long it waited for its own stores, or if that time counts as waiting for the line.
#[test]
fn an_update_says_how_long_its_own_stores_kept_it() {
    let mut cache = Cache::new(Distances::new(2, |_, _| 70), COSTS);
    for line in 0..2 {
        cache.access(1, line, Access::Load, 1000 * line as u64);
    }
    cache.access(0, 0, Access::Store, 10_000);
    let update = Wants::Access(Access::Update);
    assert_eq!(cache.ask(0, 1, update, 10_010), Asked::Later(10_070));
    assert_eq!(cache.ask(0, 1, update, 10_070), Asked::Ready);
    let expected = Outcome { done: 10_140, waited: 0, drained: 60, moved: 1, fetched: 0 };
    assert_eq!(cache.access(0, 1, Access::Update, 10_070), expected);
}

/// Red if a store that is posted while other CPUs wait for the line always goes before all of them, or always behind
/// all of them. Red too if the end of the store is wrong, or if a CPU that goes before the store is served late.
#[test]
fn chance_gives_a_posted_store_its_place_among_those_that_wait() {
    let place = |seed| {
        let mut cache = Cache::new(Distances::new(4, |_, _| 70), COSTS).with_seed(seed);
        cache.access(0, 0, Access::Update, 0);
        let waits = [1, 2].map(|cpu| cache.ask(cpu, 0, Wants::Access(Access::Update), 10));
        assert_eq!(waits, [Asked::Waits; 2]);
        cache.access(3, 0, Access::Store, 20);
        let first: Vec<_> = std::iter::from_fn(|| cache.next_served()).collect();
        // The line comes from memory to CPU 0, then goes to the CPUs that go first, and then to CPU 3.
        assert_eq!(cache.fence(3, 22), COSTS.memory + 70 * (first.len() as u64 + 1));
        assert!(first.iter().all(|(_, at)| (0..2).any(|before| *at == COSTS.memory + 70 * before)), "{first:?}");
        for _ in first.len()..2 {
            assert_eq!(cache.next_free(), Some(cache.line(0).busy));
            cache.serve();
            assert!(cache.next_served().is_some());
        }
        assert_eq!((cache.next_free(), cache.next_served()), (None, None));
        first.len()
    };
    let places: Vec<_> = (0..300).map(place).collect();
    for first in 0..=2 {
        let times = places.iter().filter(|place| **place == first).count();
        assert!((70..130).contains(&times), "{times} times {first} of two went first");
    }
}
