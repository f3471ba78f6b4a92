//! What the threads of a queue share lies on lines that have a name.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};

use blkmq_vcpu::cache::Access;
use blkmq_vcpu::schedule::Uniform;
use blkmq_vcpu::{Accessed, CpuId, Ended, LineOf, Options, Random, go_on_for, run, thread};
use blkmq_virtual::driver::spec::open;
use blkmq_virtual::future::AsyncSubmitter;
use blkmq_virtual::{
    Bio, Buffer, Client, Flags, GroupId, Locking, RequestQueue, SectorRange, Submitter, scheduler_names,
};

const THREADS: u64 = 3;
const BATCH: u64 = 4;
/// Cache lines of a slot.
const SLOT_LINES: u32 = 4;
/// Steps without an end after which a run counts as hanging.
const STEPS: u64 = 3_000_000;

/// Devices that finish a request at once, and later.
const DEVICES: [&str; 2] = ["irqmode=0", "irqmode=2,completion_nsec=3000"];
/// A device that has a cache to flush and gives back some of what it is offered.
const FAULTY: &str = "irqmode=2,completion_nsec=3000,memory_backed=1,cache_size=1,fua=0,requeue=4,50,0,-1";

/// How often something was done, by the line that it was done to, and by the line of the code if that has no name.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Accesses {
    named: BTreeMap<LineOf, usize>,
    unnamed: BTreeMap<String, usize>,
    /// Which CPUs touched each named line, by the file of the code that did and by whether it loaded only.
    cpus: BTreeMap<(LineOf, &'static str, bool), BTreeSet<CpuId>>,
}

/// A file of the sources, from the folder of its crate on.
fn file(path: &str) -> String {
    let mut parts = Vec::new();
    for part in Path::new(path).components() {
        match part {
            Component::ParentDir => _ = parts.pop(),
            Component::Normal(part) => parts.push(part.to_string_lossy().into_owned()),
            _ => {}
        }
    }
    let sources = parts.iter().rposition(|part| part == "src").expect("a source lies under src");
    parts[sources - 1..].join("/")
}

/// What threads did on virtual CPUs while the flag that `main` gets was set.
fn listen(seed: u64, main: impl FnOnce(&AtomicBool) + Send + 'static) -> Accesses {
    let (accesses, is_at_work) = (Arc::new(Mutex::new(Accesses::default())), Arc::new(AtomicBool::new(false)));
    let on_access = {
        let (accesses, is_at_work) = (Arc::clone(&accesses), Arc::clone(&is_at_work));
        Box::new(move |Accessed { cpu, line, access, at, .. }: Accessed| {
            if !is_at_work.load(Relaxed) {
                return;
            }
            let mut accesses = accesses.lock().expect("one thread");
            let count = match line {
                Some(line) => accesses.named.entry(line).or_default(),
                None => accesses.unnamed.entry(format!("{}:{}", file(at.file()), at.line())).or_default(),
            };
            *count += 1;
            if let Some(line) = line {
                accesses.cpus.entry((line, at.file(), access == Access::Load)).or_default().insert(cpu);
            }
        })
    };
    let options = Options { on_access: Some(on_access), ..Options::default() };
    let ended = run(Box::new(Uniform::new(Random::new(seed), 3)), options, move || {
        go_on_for(STEPS);
        main(&is_at_work);
    });
    assert_eq!(ended, Ended::Finished);
    accesses.lock().expect("one thread").clone()
}

/// A queue with few tags. `None`: the scheduler has no such locking.
fn queue(device: &str, scheduler: &str, locking: Locking) -> Option<RequestQueue> {
    let device = open(&format!("null,size=1M,submit_queues=2,hw_queue_depth=4,{device}")).expect("it is a device");
    RequestQueue::builder(device).scheduler(scheduler).locking(locking).bypass(false).build().ok()
}

/// Whether the scheduler has such a locking.
fn is_possible(scheduler: &str, locking: Locking) -> bool {
    let is_possible = Arc::new(AtomicBool::new(false));
    let found = Arc::clone(&is_possible);
    let (scheduler, options) = (scheduler.to_owned(), Options::default());
    let ended = run(Box::new(Uniform::new(Random::new(0), 3)), options, move || {
        found.store(queue(DEVICES[0], &scheduler, locking).is_some(), Relaxed);
    });
    assert_eq!(ended, Ended::Finished);
    is_possible.load(Relaxed)
}

/// Every scheduler under every locking that it has.
fn each() -> Vec<(&'static str, Locking)> {
    let all = scheduler_names().into_iter().flat_map(|name| Locking::ALL.map(|locking| (name, locking)));
    let each: Vec<_> = all.filter(|(name, locking)| is_possible(name, *locking)).collect();
    let schedulers: BTreeSet<_> = each.iter().map(|(name, _)| *name).collect();
    assert!(schedulers.into_iter().eq(BTreeSet::from_iter(scheduler_names())), "each scheduler has a locking");
    each
}

fn submitters(q: &RequestQueue) -> Vec<Submitter> {
    (0..THREADS).map(|_| q.submitter(&Client::new("test")).expect("there is a place")).collect()
}

/// Several threads do this with their submitters, and bring them back.
fn work(submitters: Vec<Submitter>, work: fn(u64, &mut Submitter), meanwhile: impl FnOnce()) -> Vec<Submitter> {
    let begin = |(number, mut submitter)| {
        thread::spawn(move || {
            work(number, &mut submitter);
            submitter
        })
    };
    let threads: Vec<_> = (0..).zip(submitters).map(begin).collect();
    meanwhile();
    threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
}

fn finish(submitter: &mut Submitter) {
    while submitter.nr_outstanding() > 0 {
        submitter.wait(1, None);
        submitter.reap_all(|completion| assert!(completion.status.is_ok(), "{:?}", completion.status));
    }
}

/// Reads, with a few operations at a time.
fn read(number: u64, submitter: &mut Submitter) {
    const ROUNDS: u64 = 6;
    for first in (0..ROUNDS).map(|round| (number * ROUNDS + round) * BATCH) {
        for at in first..first + BATCH {
            submitter.submit(Bio::read(at * 16, Buffer::zeroed(512))).expect("there are slots");
        }
        finish(submitter);
    }
}

/// Writes and flushes, some at once and some in one.
fn write(number: u64, submitter: &mut Submitter) {
    for round in 0..20 {
        let fua = Flags { fua: round % 2 == 0, ..Flags::default() };
        for at in (0..BATCH).map(|at| (number * BATCH + at) * 2) {
            submitter.submit(Bio::write(at, Buffer::zeroed(512)).with_flags(fua)).expect("there are slots");
        }
        submitter.submit(Bio::flush()).expect("there are slots");
        finish(submitter);
    }
}

/// Reads by a future.
fn read_by_future(q: &RequestQueue) {
    let submitter = AsyncSubmitter::new(q.submitter(&Client::new("tasks")).expect("there is a place"));
    for at in 0..3 {
        let mut operation = pin!(submitter.submit(Bio::read(at * 16, Buffer::zeroed(512))).expect("there are slots"));
        while operation.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            thread::yield_now();
        }
    }
}

/// Changes all that can be changed, and looks at all that can be looked at.
fn control(q: &RequestQueue) {
    q.start_threads(1).map(drop).expect("there is a place");
    read_by_future(q);
    q.freeze().wait();
    drop(q.quiesce());
    let ranges = [0, 1].map(|at| SectorRange { name: at.to_string(), first: at * 8, nr_sectors: 8 });
    q.change_ranges(ranges.into()).and_then(|change| change.wait()).expect("they lie apart");
    let group = q.tenants().add_group("group", GroupId::ROOT, 50).expect("it is new");
    let client = q.tenants().client_of("test").expect("it is there");
    q.tenants().move_client(client, group).expect("both are there");
    let changes =
        [q.change_knob("nr_requests", "4"), q.change_knob("wbt_lat_usec", "2000"), q.change_knob("bypass", "1")];
    for change in changes {
        // Some schedulers have no such setting.
        let _ = change.expect("the value is a good one").wait();
    }
    q.revalidate().expect("it did not shrink");
    let looks = (q.counters(), q.range_stats(), q.tenants().clients(), q.tenants().groups(), q.busy_tags(), q.dump());
    assert!(looks.5.contains("hctx 0"));
}

/// What three threads did that read through one queue, from when all had joined until all were done.
fn accesses_of_reads(device: &'static str, scheduler: &'static str, locking: Locking, seed: u64) -> Accesses {
    listen(seed, move |is_at_work| {
        let q = queue(device, scheduler, locking).expect("it is possible");
        let submitters = submitters(&q);
        is_at_work.store(true, Relaxed);
        let submitters = work(submitters, read, || ());
        is_at_work.store(false, Relaxed);
        drop(submitters);
    })
}

/// What three threads did that write while a fourth one changes the queue, from when the queue was there until it was
/// not used any more.
fn accesses_of_control(scheduler: &'static str, locking: Locking, seed: u64) -> Accesses {
    listen(seed, move |is_at_work| {
        let q = queue(FAULTY, scheduler, locking).expect("it is possible");
        is_at_work.store(true, Relaxed);
        drop(work(submitters(&q), write, || control(&q)));
        is_at_work.store(false, Relaxed);
    })
}

/// Red if any code on the way of a request touches what is on no line.
#[test]
fn what_threads_share_has_a_name() {
    for (scheduler, locking) in each() {
        for seed in 0..8 {
            let accesses = accesses_of_reads(DEVICES[seed as usize % 2], scheduler, locking, seed);
            assert!(accesses.named.len() > 20, "{scheduler}, {locking}: {:?}", accesses.named);
            assert_eq!(accesses.unnamed, BTreeMap::new(), "{scheduler}, {locking}");
        }
    }
}

/// Red if any code beside the way of a request does.
#[test]
fn what_is_shared_with_the_thread_that_controls_a_queue_has_a_name() {
    let (mut unnamed, mut names) = (BTreeMap::new(), BTreeSet::new());
    for (scheduler, locking) in each() {
        for seed in 0..2 {
            let accesses = accesses_of_control(scheduler, locking, seed);
            names.extend(accesses.named.into_keys().map(|line| line.name));
            unnamed.extend(accesses.unnamed);
        }
    }
    assert_eq!(unnamed, BTreeMap::new());
    let reached = [
        "account.ranges",
        "background.stop",
        "future.submitter",
        "hctx.dispatch",
        "hctx.flush",
        "null.faults",
        "pools.control",
        "queue.backlog",
        "queue.control",
        "queue.queued",
        "queue.tenants",
    ];
    reached.iter().for_each(|name| assert!(names.contains(*name), "{name} is not among {names:?}"));
}

/// The requests that each CPU touched by code of this file, and those that it did not only load.
fn requests_of(accesses: &Accesses, code: &str) -> [BTreeSet<(u32, u32, CpuId)>; 2] {
    let lines = accesses.cpus.iter().filter(|((line, file, _), _)| line.name == "request.slot" && file.ends_with(code));
    let mut requests = [BTreeSet::new(), BTreeSet::new()];
    for ((line, _, is_load), cpus) in lines {
        let of = |cpu: &CpuId| (line.instance, line.line / SLOT_LINES, *cpu);
        requests.iter_mut().take(2 - usize::from(*is_load)).for_each(|of_kind| of_kind.extend(cpus.iter().map(of)));
    }
    requests
}

/// Red if the body of a request is not told where its token is used, by `Request::body` and by `Request::body_mut`: a
/// CPU moves requests by their state, and reads the body of each; and CPUs change what other CPUs changed.
#[test]
fn each_cpu_that_moves_a_request_touches_its_body() {
    for (scheduler, locking) in each() {
        let mut are_passed_on = false;
        for seed in 0..8 {
            let accesses = accesses_of_reads(DEVICES[seed as usize % 2], scheduler, locking, seed);
            let [[moved, _], [touched, changed]] =
                ["src/request/state.rs", "src/request/token.rs"].map(|code| requests_of(&accesses, code));
            let untouched: Vec<_> = moved.difference(&touched).collect();
            assert!(!moved.is_empty() && untouched.is_empty(), "{scheduler}, {locking}: {untouched:?}");
            let requests: BTreeSet<_> = changed.iter().map(|(pool, slot, _)| (pool, slot)).collect();
            are_passed_on |= requests.len() < changed.len();
        }
        assert!(are_passed_on, "{scheduler}, {locking}");
    }
}

/// What CPUs hand to each other of a scheduler, by the name of the place and the code that touches it.
fn kept_by(scheduler: &str) -> &'static [(&'static str, &'static str)] {
    match scheduler {
        "mq-deadline" => &[
            ("sched.free", "slab.rs"),
            ("sched.hash", "hash.rs"),
            ("sched.node", "slab.rs"),
            ("sched.root", "list.rs"),
            ("sched.root", "mergeable.rs"),
            ("sched.root", "mq_deadline.rs"),
            ("sched.root", "slab.rs"),
            ("sched.root", "tree.rs"),
        ],
        "kyber" => &[
            ("kyber.ctxs", "list.rs"),
            ("sched.free", "slab.rs"),
            ("sched.node", "slab.rs"),
            ("sched.root", "kyber.rs"),
            ("sched.root", "list.rs"),
            ("sched.root", "slab.rs"),
        ],
        "bfq" => &[
            ("bfq.clients", "client.rs"),
            ("bfq.entities", "slab.rs"),
            ("bfq.groups", "group.rs"),
            ("bfq.queues", "slab.rs"),
            ("bfq.trees", "slab.rs"),
            ("bfq.trees", "tree.rs"),
            ("sched.free", "slab.rs"),
            ("sched.hash", "hash.rs"),
            ("sched.node", "slab.rs"),
            ("sched.root", "bfq.rs"),
            ("sched.root", "choose.rs"),
            ("sched.root", "complete.rs"),
            ("sched.root", "list.rs"),
            ("sched.root", "mergeable.rs"),
            ("sched.root", "slab.rs"),
            ("sched.root", "wf2q.rs"),
        ],
        "fair" => &[
            ("fair.clients", "client.rs"),
            ("fair.flows", "slab.rs"),
            ("fair.flows", "tree.rs"),
            ("fair.groups", "group.rs"),
            ("sched.free", "slab.rs"),
            ("sched.hash", "hash.rs"),
            ("sched.node", "slab.rs"),
            ("sched.root", "fair.rs"),
            ("sched.root", "list.rs"),
            ("sched.root", "mergeable.rs"),
            ("sched.root", "slab.rs"),
            ("sched.root", "tree.rs"),
        ],
        other => panic!("what {other} keeps is told here"),
    }
}

/// Red if any of the code named above does not tell what it reads and changes, or if a scheduler that is new is not
/// looked at: the requests that it keeps, the heads and roots by which it finds them, and its own numbers go from the
/// CPU that has the scheduler to the next one.
#[test]
fn what_a_scheduler_keeps_goes_from_one_cpu_to_the_next() {
    for (scheduler, locking) in each().into_iter().filter(|(scheduler, _)| *scheduler != "none") {
        let mut cpus = BTreeMap::<_, BTreeSet<CpuId>>::new();
        for seed in 0..8 {
            for ((line, file, _), by) in accesses_of_reads(DEVICES[1], scheduler, locking, seed).cpus {
                cpus.entry((seed, line, file)).or_default().extend(by);
            }
        }
        let passed_on: BTreeSet<_> = cpus
            .into_iter()
            .filter(|(_, by)| by.len() > 1)
            .map(|((_, line, file), _)| (line.name, Path::new(file).file_name().and_then(|name| name.to_str())))
            .collect();
        let is_missing = |(name, file): &&(&'static str, &'static str)| !passed_on.contains(&(*name, Some(*file)));
        let missing: Vec<_> = kept_by(scheduler).iter().filter(is_missing).collect();
        assert!(missing.is_empty(), "{scheduler}, {locking}: {missing:?}");
    }
}

/// Red if lines are told by anything that does not follow from the seed.
#[test]
fn the_lines_of_a_run_are_the_same_each_time() {
    for (scheduler, locking) in each() {
        let first = accesses_of_reads(DEVICES[1], scheduler, locking, 7);
        let _elsewhere = vec![0_u8; 12345];
        assert_eq!(accesses_of_reads(DEVICES[1], scheduler, locking, 7), first, "{scheduler}, {locking}");
    }
}

/// The names of places that lie on one line while threads read, or while one changes the queue.
fn neighbours(scheduler: &'static str, locking: Locking) -> BTreeSet<(&'static str, &'static str)> {
    let found = Arc::new(Mutex::new(BTreeSet::new()));
    for device in [DEVICES[1], FAULTY] {
        let theirs = Arc::clone(&found);
        listen(1, move |_| {
            let q = queue(device, scheduler, locking).expect("it is possible");
            let submitters = work(submitters(&q), if device == FAULTY { write } else { read }, || {
                if device == FAULTY {
                    control(&q);
                }
            });
            theirs.lock().expect("one thread").extend(blkmq_vcpu::neighbours());
            drop(submitters);
        });
    }
    found.lock().expect("one thread").clone()
}

/// Values that share a line of the product, so that the model does not see that this line moves for both; and why that
/// is no matter.
const ON_ONE_LINE: [(&str, &[&str]); 7] = [
    ("changed where requests are parked, or wait in software queues", HCTX),
    ("written when a submitter joins", &["thread.client", "thread.group", "thread.taken", "thread.is_background"]),
    ("written when a thread joins or leaves, or the queue is changed", QUEUE),
    ("of one thread, which sleeps", &["parker.token", "submitter.notify", "submitter.has_notify"]),
    ("of one thread's operations", &["future.wakers", "future.is_news"]),
    ("changed with a setting", &["pool.depth", "pools.control"]),
    ("changed with the ranges", &["account.range_names", "account.nr_ranges"]),
];
const QUEUE: &[&str] = &["queue.capacity", "queue.threads", "queue.nr_background", "queue.control", "hctx.layout"];
const HCTX: &[&str] = &["tags.geometry", "hctx.dispatch", "hctx.nr_marked", "hctx.dispatch_from"];

/// Memory that does not begin at a line: it is a matter of chance what lies before and behind it.
fn is_by_chance(name: &str) -> bool {
    let owner = name.split('.').next();
    matches!(owner, Some("sched" | "bfq" | "fair" | "kyber" | "background"))
        || ["queue.backlog", "queue.queued", "account.ranges", "future.submitter", "hctx.started"].contains(&name)
}

/// Red if two values come to share a line and are not in the list: the model takes values that have a name each to lie
/// on lines of their own, so it would not show that CPUs take that line from each other. Also red if a value of the
/// list has got a line of its own. Values that are alone on their lines by their type cannot come here.
#[test]
fn values_that_threads_share_have_lines_of_their_own() {
    let all: BTreeSet<_> = each().into_iter().flat_map(|(name, locking)| neighbours(name, locking)).collect();
    let is_known = |(one, other): &(&str, &str)| {
        ON_ONE_LINE.iter().any(|(_, names)| [one, other].iter().all(|name| names.contains(name)))
    };
    let new: Vec<_> =
        all.iter().filter(|pair| !is_known(pair) && !is_by_chance(pair.0) && !is_by_chance(pair.1)).collect();
    assert!(new.is_empty(), "on one line: {new:?}");
    for (_, names) in ON_ONE_LINE {
        let alone: Vec<_> =
            names.iter().filter(|name| !all.iter().any(|(one, other)| [one, other].contains(name))).collect();
        assert!(alone.is_empty(), "on lines of their own: {alone:?}");
    }
}
