//! What a modelled load comes to: the same for the same seed in every build, and with a fault planted in the load, the
//! line of the fault.

use std::sync::Arc;

use blkmq_simulate::scaling::{Row, row};
use blkmq_simulate::{Each, Load, Machine, Setting, Stop};
use blkmq_vcpu::place_at;
use blkmq_vcpu::sync::atomic::{AtomicU64, Ordering};
use blkmq_virtual::{Accounting, Locking};
use blkmq_workbench::Job;
use blkmq_workbench::job::Order;

/// A job that reads at random places, four operations at a time.
fn load() -> Load {
    let job = Job {
        order: Order::Random { every: 1 },
        ioengine: "io_uring".to_owned(),
        iodepth: 4,
        iodepth_batch_submit: 4,
        iodepth_batch_complete_min: 4,
        iodepth_batch_complete_max: 4,
        iodepth_low: 4,
        ..Job::new("test")
    };
    Load::of(&job).expect("it can be modelled")
}

fn setting(scheduler: &str, each: Option<Each>) -> Setting {
    let cores = Machine::named("7950x").expect("it is known").cores();
    Setting {
        scheduler: scheduler.to_owned(),
        locking: Locking::Combining,
        each,
        requests: 4000,
        ..Setting::new(cores, "null,irqmode=0,poll_queues=0,submit_queues={threads}")
    }
}

fn modelled(threads: usize, scheduler: &str, each: Option<Each>) -> Row {
    row(&load(), threads, &setting(scheduler, each)).expect("it can be run")
}

/// The line that moves most for each request.
fn busiest(row: &Row) -> &'static str {
    let most = row.lines_per_request.iter().max_by(|one, other| one.1.total_cmp(other.1));
    most.map_or("none", |(name, _)| *name)
}

/// A hash of a text, FNV-1a.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Red if the same seed gives another result the second time, elsewhere in memory, or in a build of another kind; or
/// if what is modelled has changed: then the number is to be changed with it, on purpose.
#[test]
fn the_same_seed_gives_the_same_rows() {
    let rows = || {
        let rows = [2, 5].map(|threads| modelled(threads, "mq-deadline", None));
        serde_json::to_string(&rows).expect("rows are numbers and names")
    };
    let first = rows();
    let _elsewhere = vec![0_u8; 12345];
    assert_eq!(rows(), first);
    let other = Setting { seed: 2, ..setting("mq-deadline", None) };
    let other = row(&load(), 5, &other).expect("it can be run");
    assert_ne!(other, modelled(5, "mq-deadline", None), "the seed decides something");
    assert_eq!(format!("{:016x}", hash(&first)), "b44e12f40f92fc27", "{first}");
}

/// Red if a row says that threads wait for each other which share nothing, or if 'none' is not the load itself.
#[test]
fn threads_without_a_scheduler_scale() {
    let [one, many] = [1, 16].map(|threads| modelled(threads, "none", None));
    assert!(many.requests_per_s > 15.5 * one.requests_per_s, "{one:?} {many:?}");
    assert!(many.wait_share < 0.001 && many.idle_share < 0.001 && many.lines_per_request.values().sum::<f64>() < 0.01);
    assert!((one.ratio_to_none - 1.0).abs() < 1e-9);
}

/// Red if what threads do at the scheduler is not counted: what is left and taken over, in which batches, and what
/// that takes.
#[test]
fn a_scheduler_shows_as_batches_and_as_requests_that_are_left() {
    let alone = modelled(1, "mq-deadline", None);
    assert_eq!((alone.batch.mean, alone.batch.p99, alone.staged, alone.bypassed), (4.0, 4, 0.0, 0.0), "{alone:?}");
    assert!((alone.holds_per_request - 0.25).abs() < 0.01, "{alone:?}");
    let many = modelled(16, "mq-deadline", None);
    assert!(many.staged > 0.2 && many.staged_ns.count > 0 && many.staged_ns.mean > 0.0, "{many:?}");
    assert!(many.batch.mean > 4.0 && many.batch.p99 >= 8, "{many:?}");
    assert!((many.combining_share.iter().sum::<f64>() - 1.0).abs() < 1e-9 && many.combining_share.len() == 16);
    let measured = many.combining_ns.count + many.others_ns.count;
    assert_eq!(measured, 4000, "each operation that is measured is timed once: {many:?}");
    let bypass = Setting { bypass: Some(true), ..setting("mq-deadline", None) };
    let bypass = row(&load(), 8, &bypass).expect("it can be run");
    assert!(bypass.bypassed > 0.99 && bypass.ratio_to_none > 0.9, "{bypass:?}");
}

/// Red if threads that each have a hardware queue of their own take kyber's tokens from words that they share.
#[test]
fn threads_take_tokens_without_moving_lines() {
    let bypass = Setting { bypass: Some(true), ..setting("kyber", None) };
    let many = row(&load(), 32, &bypass).expect("it can be run");
    assert!(many.bypassed > 0.99 && many.ratio_to_none > 0.85, "{many:?}");
    assert!(many.lines_per_request.get("pool.word").is_none_or(|moves| *moves < 0.01), "{many:?}");
}

/// Red if a row does not show how threads wait for each other: for how long the scheduler is held and for how many
/// requests, whom they wake and why, and how long the gate is shut.
#[test]
fn a_row_shows_holds_wakeups_and_the_gate() {
    let run = |threads, setting: &Setting| row(&load(), threads, setting).expect("it can be run");
    let alone = modelled(1, "mq-deadline", None);
    assert_eq!((alone.requests_per_hold, alone.gate_shut_share), (4.0, None), "each batch is one hold: {alone:?}");
    let batch_ns = 4e9 / alone.requests_per_s;
    assert!((0.2..0.9).contains(&(alone.hold_ns.mean / batch_ns)), "a hold is a part of a batch: {alone:?}");
    assert!(alone.wakeups_per_request.values().all(|woken| *woken == 0.0), "there is nobody to wake: {alone:?}");
    let passing = run(8, &Setting { bypass: Some(true), ..setting("mq-deadline", None) });
    assert_eq!((passing.hold_ns.count, passing.gate_shut_share), (0, Some(0.0)), "all pass: {passing:?}");
    // Eight threads want 32 tags of 8.
    let few_tags = "null,irqmode=0,poll_queues=0,submit_queues=1,hw_queue_depth=8";
    let few_tags = |scheduler| Setting { device: few_tags.to_owned(), bypass: Some(true), ..setting(scheduler, None) };
    let waiting = run(8, &few_tags("mq-deadline"));
    let woken = &waiting.wakeups_per_request;
    assert!(woken["completed"] > 0.0 && woken["completed"] <= 1.0, "threads sleep for their requests: {waiting:?}");
    assert_eq!(waiting.gate_shut_share, Some(0.0), "WAITING keeps them, no gate: {waiting:?}");
    let told = run(8, &few_tags("bfq"));
    assert!(told.gate_shut_share > Some(0.1), "bfq's gate is shut after something has waited: {told:?}");
}

/// Red if a holder that cannot finish what was left puts a part of it into the scheduler: the next holders then can
/// hand nothing through, as long as there is always more.
#[test]
fn requests_that_many_threads_leave_go_through_the_scheduler() {
    let cores = Machine::named("7773x").expect("it is known").cores();
    let many = row(&load(), 48, &Setting { cores, ..setting("mq-deadline", None) }).expect("it can be run");
    assert!(many.staged > 0.9 && many.batch.mean > 40.0, "{many:?}");
    let node = many.lines_per_request.get("sched.node").copied().unwrap_or(0.0);
    assert!(node < 0.1, "a request that is inserted moves a node: {node} of {many:?}");
}

/// Red if a scheduler that declines once what many threads left is not asked again for long. On a device this small two
/// of 64 reads often touch each other.
#[test]
fn requests_of_many_threads_go_through_again_after_some_were_declined() {
    let cores = Machine::named("7773x").expect("it is known").cores();
    let setting = Setting { cores, ..setting("mq-deadline", None) };
    let setting = Setting { device: format!("{},size=256M", setting.device), ..setting };
    let many = row(&load(), 48, &setting).expect("it can be run");
    let node = many.lines_per_request.get("sched.node").copied().unwrap_or(0.0);
    assert!(node > 0.0, "nothing was declined: {many:?}");
    assert!(node < 0.3, "a request that is inserted moves a node: {node} of {many:?}");
}

/// Red if threads that share a CPU take as long as if each had one, or if a machine of two CPUs cannot have four.
#[test]
fn threads_that_share_a_cpu_take_turns() {
    let two = Machine::parse("two.csv", ",\n50,\n").expect("it is right").cores();
    let setting = Setting { cores: two, t0: 5_000_000, ..setting("none", None) };
    let [two, four] = [2, 4].map(|threads| row(&load(), threads, &setting).expect("it can be run"));
    assert!((0.8..1.05).contains(&(four.requests_per_s / two.requests_per_s)), "{two:?} {four:?}");
}

/// Red if the counts of one of several devices are taken for those of all, or if one is subtracted from another's:
/// then the second mark panics, or finds too few. Each request of a device is counted by its own queue.
#[test]
fn several_devices_are_counted_together() {
    let eight = Setting { devices: 8, bypass: Some(true), ..setting("mq-deadline", None) };
    let eight = |seed| row(&load(), 4, &Setting { seed, ..eight.clone() }).expect("it can be run");
    for seed in 1..=4 {
        let row = eight(seed);
        assert!((0.99..1.01).contains(&row.bypassed), "{row:?}");
    }
}

/// Red if a device that fails makes the program panic, or if it is not said what failed; or if a load of nothing runs.
#[test]
fn what_cannot_be_modelled_is_an_error() {
    let said = |threads, setting: Setting| row(&load(), threads, &setting).expect_err("it cannot be run");
    let bad = "null,irqmode=0,badblocks=0-999999999";
    let failing = Setting { device: bad.to_owned(), ..setting("none", None) };
    assert_eq!(said(2, failing), format!("device {bad}: an operation of the load failed: medium error"));
    assert_eq!(said(0, setting("none", None)), "no threads; a load has 1 or more");
    assert_eq!(said(2, Setting { devices: 0, ..setting("none", None) }), "no devices; a load has 1 or more");
    let all = Setting { stop: Some(Stop { threads: 2, at_ns: 0, settle_ns: 0 }), ..setting("none", None) };
    assert_eq!(said(2, all), "no threads that go on; a load has 1 or more");
    let far = Load::closed_loop("rw=randread\nbs=4k\noffset=300g", 1, 1);
    let thread_load = |number| Setting { thread_load: Some((number, far.clone())), ..setting("none", None) };
    assert!(said(2, thread_load(1)).contains("the area of thread 1 does not fit"));
    assert_eq!(said(2, thread_load(2)), "no thread 2, which has a load of its own; threads are numbered from 0 to 1");
}

/// Red if what threads do while they wait counts as waiting, or the other way round: beside a device that takes its
/// time one thread waits for most of its time and does the rest there; beside one that takes none it never waits.
#[test]
fn work_that_is_done_while_a_thread_waits_is_told_apart() {
    let slow = Setting { device: "null,irqmode=2,completion_nsec=20us".to_owned(), ..setting("none", None) };
    let slow = row(&load(), 1, &slow).expect("it can be run");
    assert!((0.8..0.99).contains(&slow.idle_share), "{slow:?}");
    assert!((0.001..0.2).contains(&slow.work_in_wait_share), "{slow:?}");
    let quick = modelled(1, "none", None);
    assert_eq!((quick.idle_share, quick.work_in_wait_share), (0.0, 0.0), "{quick:?}");
}

/// Red if operations are counted or timed by another thread than the one that submitted them, if some are left out, or
/// if a thread that was given a load of its own does what the others do.
#[test]
fn each_thread_is_counted_and_timed_by_itself() {
    let one = Load::closed_loop("rw=randread\nbs=4k", 1, 1);
    let row =
        row(&load(), 3, &Setting { thread_load: Some((1, one)), ..setting("none", None) }).expect("it can be run");
    assert_eq!(row.threads_ns.iter().map(|thread| thread.count).sum::<u64>(), 4000, "{row:?}");
    let [first, lone, last] = &row.threads_ns[..] else { panic!("there are three threads: {row:?}") };
    for other in [first, last] {
        assert!(lone.count < other.count && lone.p99 < other.p50, "a batch of four takes longer: {row:?}");
    }
}

/// Red if threads go on that are to stop, or if the measurement begins before they do.
#[test]
fn threads_that_stop_leave_the_others_alone() {
    let stop = Some(Stop { threads: 3, at_ns: 100_000, settle_ns: 0 });
    let row = row(&load(), 4, &Setting { stop, ..setting("none", None) }).expect("it can be run");
    let counts: Vec<u64> = row.threads_ns.iter().map(|thread| thread.count).collect();
    assert!(counts[0] >= 4000 - 3 * 4 && counts[1..].iter().all(|count| *count <= 4), "{row:?}");
    let alone = modelled(1, "none", None);
    assert!((0.98..1.02).contains(&(row.requests_per_s / alone.requests_per_s)), "{row:?} {alone:?}");
}

/// Red if the counter of the block layer's own that all threads can be made to share is not seen.
#[test]
fn the_shared_accounting_is_named() {
    let shared = Setting { accounting: Accounting::Shared, ..setting("none", None) };
    let shared = row(&load(), 8, &shared).expect("it can be run");
    let apart = modelled(8, "none", None);
    assert!(shared.requests_per_s < 0.5 * apart.requests_per_s && busiest(&shared) == "queue.gauge", "{shared:?}");
}

/// Red if the model does not see a counter that all threads share, or does not tell which line it is.
#[test]
fn a_counter_that_all_threads_share_is_named() {
    let count = Arc::new(AtomicU64::new(0));
    let each: Each = Arc::new(move |_| {
        place_at("planted.counter", &*count);
        count.fetch_add(1, Ordering::Relaxed);
    });
    let [without, with] = [None, Some(each)].map(|each| modelled(16, "none", each));
    assert!(with.requests_per_s < 0.7 * without.requests_per_s, "{without:?} {with:?}");
    // The line goes from thread to thread with each addition, and nothing else moves.
    let moved = with.lines_per_request["planted.counter"];
    let others = with.lines_per_request.values().sum::<f64>() - moved;
    assert!((0.9..=1.0).contains(&moved) && others < 0.01, "{with:?}");
    assert!(with.wait_share > 0.1 && with.wait_ns_per_request["planted.counter"] > 1.0, "{with:?}");
}

/// A value for each of two threads, on one line.
#[repr(align(64))]
#[derive(Debug, Default)]
struct Together([AtomicU64; 2]);

/// Red if two threads that write each its own word of one line are not seen to take that line from each other, or if
/// they are although each has a line of its own.
#[test]
fn two_words_on_one_line_are_named() {
    let each = |nr_lines: usize| -> Each {
        let words: Arc<Vec<Together>> = Arc::new((0..nr_lines).map(|_| Together::default()).collect());
        Arc::new(move |thread| {
            place_at("planted.words", &**words);
            let count = &words[thread % words.len()].0[thread % 2];
            count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        })
    };
    let [apart, together] = [2, 1].map(|nr_lines| modelled(2, "none", Some(each(nr_lines))));
    assert!(apart.lines_per_request.get("planted.words").copied().unwrap_or(0.0) < 0.01, "{apart:?}");
    let moved = together.lines_per_request["planted.words"];
    let others = together.lines_per_request.values().sum::<f64>() - moved;
    assert!((0.3..=2.0).contains(&moved) && others < 0.01, "two accesses move it twice at most: {together:?}");
    assert!(together.requests_per_s < 0.97 * apart.requests_per_s, "{apart:?} {together:?}");
}

/// Red if threads that wait in a queue for a lock, and all look at the same word meanwhile, are not seen.
#[test]
fn a_lock_that_spins_in_a_queue_is_named() {
    let words: Arc<[Together; 2]> = Arc::default();
    let each: Each = Arc::new(move |_| {
        let [next, serving] = &*words;
        place_at("planted.next", next);
        place_at("planted.serving", serving);
        let mine = next.0[0].fetch_add(1, Ordering::Relaxed);
        while serving.0[0].load(Ordering::Relaxed) != mine {
            std::hint::spin_loop();
        }
        blkmq_vcpu::work(20_000);
        serving.0[0].store(mine + 1, Ordering::Relaxed);
    });
    let [without, with] = [None, Some(each)].map(|each| modelled(8, "none", each));
    assert!(with.requests_per_s < 0.7 * without.requests_per_s, "{without:?} {with:?}");
    assert_eq!(busiest(&with), "planted.serving", "{with:?}");
    assert!(with.lines_per_request["planted.serving"] > 4.0, "each thread that waits gets the line anew: {with:?}");
}
