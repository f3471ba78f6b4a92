//! What the threads of a queue share lies on lines that have a name, or is listed here.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use blkmq_vcpu::schedule::Uniform;
use blkmq_vcpu::{Accessed, Ended, Options, Random, go_on_for, run, thread};
use blkmq_virtual::driver::spec::open;
use blkmq_virtual::{Bio, Buffer, Client, Locking, RequestQueue, Submitter, scheduler_names};

const THREADS: u64 = 3;
const ROUNDS: u64 = 6;
const BATCH: u64 = 4;

/// The files whose code touches what has no name, and what that is.
const NAMELESS: [(&str, &str); 9] = [
    ("blkmq-sync/src/stack.rs", "the links of slots"),
    ("blkmq-sync/src/staging.rs", "the links of slots"),
    ("blkmq/src/driver/started.rs", "which request has which tag"),
    ("blkmq/src/queue.rs", "the capacity, and how many background threads there are"),
    ("blkmq/src/queue/account/range.rs", "how many ranges are counted"),
    ("blkmq/src/queue/hctx.rs", "dispatch lists, what stands beside ctx_map, and the layout"),
    ("blkmq/src/queue/member.rs", "the members' clients and groups, and how many members there have been"),
    ("blkmq/src/request/list.rs", "the links of slots"),
    ("blkmq/src/request/state.rs", "the deadlines of slots"),
];

/// Devices that finish a request at once, and later.
const DEVICES: [&str; 2] = ["irqmode=0", "irqmode=2,completion_nsec=3000"];

/// How often something was done, by the line that it was done to, and by the file of the code if that has no name.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Told {
    named: BTreeMap<String, usize>,
    unnamed: BTreeMap<String, usize>,
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

/// Three threads read through one queue that has few tags: what they did from when all had joined the queue until none
/// had anything left to do. `None`: the scheduler has no such locking.
fn told(device: &'static str, scheduler: &'static str, locking: Locking, seed: u64) -> Option<Told> {
    let (told, is_at_work) = (Arc::new(Mutex::new(Told::default())), Arc::new(AtomicBool::new(false)));
    let on_access = {
        let (told, is_at_work) = (Arc::clone(&told), Arc::clone(&is_at_work));
        Box::new(move |Accessed { line, at, .. }: Accessed| {
            if !is_at_work.load(Relaxed) {
                return;
            }
            let mut told = told.lock().expect("one thread");
            let count = match line {
                Some(line) => told.named.entry(format!("{} {}+{}", line.name, line.instance, line.line)).or_default(),
                None => told.unnamed.entry(file(at.file())).or_default(),
            };
            *count += 1;
        })
    };
    let (is_possible, is_at_work) = (Arc::new(AtomicBool::new(true)), Arc::clone(&is_at_work));
    let main = {
        let is_possible = Arc::clone(&is_possible);
        move || {
            go_on_for(300_000);
            let device =
                open(&format!("null,size=1M,submit_queues=2,hw_queue_depth=4,{device}")).expect("it is a device");
            let builder = RequestQueue::builder(device).scheduler(scheduler).locking(locking).bypass(false);
            let Ok(q) = builder.build() else {
                is_possible.store(false, Relaxed);
                return;
            };
            let join = |_| q.submitter(&Client::new("test")).expect("there is a place");
            let submitters: Vec<_> = (0..THREADS).map(join).collect();
            is_at_work.store(true, Relaxed);
            let work = |(number, mut submitter)| {
                thread::spawn(move || {
                    (0..ROUNDS).for_each(|round| make_round(&mut submitter, (number * ROUNDS + round) * BATCH));
                    submitter
                })
            };
            let threads: Vec<_> = (0..).zip(submitters).map(work).collect();
            let submitters: Vec<_> = threads.into_iter().map(|thread| thread.join().expect("no panic")).collect();
            is_at_work.store(false, Relaxed);
            drop(submitters);
        }
    };
    let options = Options { on_access: Some(on_access), ..Options::default() };
    let ended = run(Box::new(Uniform::new(Random::new(seed), 3)), options, main);
    assert_eq!(ended, Ended::Finished, "{scheduler}, {locking}");
    let told = told.lock().expect("one thread").clone();
    is_possible.load(Relaxed).then_some(told)
}

/// Reads, with a few operations at a time, and waits for all of them.
fn make_round(submitter: &mut Submitter, first: u64) {
    for at in first..first + BATCH {
        submitter.submit(Bio::read(at * 16, Buffer::zeroed(512))).expect("there are slots");
    }
    while submitter.nr_outstanding() > 0 {
        let _ = submitter.wait();
        submitter.reap_all(|completion| assert!(completion.status.is_ok()));
    }
}

/// Every scheduler under every locking.
fn each() -> impl Iterator<Item = (&'static str, Locking)> {
    scheduler_names().into_iter().flat_map(|name| Locking::ALL.map(|locking| (name, locking)))
}

/// Red if code of a file that is not listed touches what is on no line, or if all that a listed file touches has a name
/// now.
#[test]
fn what_threads_share_has_a_name_or_is_listed() {
    let (mut unnamed, mut schedulers) = (BTreeSet::new(), BTreeSet::new());
    for (scheduler, locking) in each() {
        let seeds = (0..8).filter_map(|seed: u64| told(DEVICES[seed as usize % 2], scheduler, locking, seed));
        for told in seeds {
            assert!(told.named.len() > 20, "{scheduler}, {locking}: {:?}", told.named);
            schedulers.insert(scheduler);
            unnamed.extend(told.unnamed.into_keys());
        }
    }
    assert!(schedulers.into_iter().eq(BTreeSet::from_iter(scheduler_names())), "each scheduler has a locking");
    let listed: Vec<_> = NAMELESS.iter().map(|(file, _)| *file).collect();
    assert_eq!(unnamed.iter().map(String::as_str).collect::<Vec<_>>(), listed);
}

/// Red if lines are told by anything that does not follow from the seed.
#[test]
fn the_lines_of_a_run_are_the_same_each_time() {
    for (scheduler, locking) in each() {
        let first = told(DEVICES[1], scheduler, locking, 7);
        let _elsewhere = vec![0_u8; 12345];
        assert_eq!(told(DEVICES[1], scheduler, locking, 7), first, "{scheduler}, {locking}");
    }
}
