//! Traces played through the whole layer on virtual time, where every number is exact.

use std::sync::atomic::{AtomicBool, Ordering};

use blkmq::driver::spec;
use blkmq::{Clock, RequestQueue, Status, VirtualClock};
use blkmq_workbench::blktrace::Event;
use blkmq_workbench::{Classes, Load, Outcome, Source, Speed, play};

use crate::whole::{self, Recording};
use crate::written::Trace;

/// A device that takes one request at a time, for half a millisecond.
const SLOW: &str = "null,irqmode=2,completion_nsec=500us,hw_queue_depth=1";

/// Half a millisecond, in microseconds.
const TAKES: u64 = 500;

fn queue(device: &str, scheduler: &str, slots: u16) -> RequestQueue {
    let driver = spec::open(device).expect("the device is well described");
    let clock = Clock::Virtual(VirtualClock::new());
    let builder = RequestQueue::builder(driver).scheduler(scheduler).clock(clock).slots(slots);
    let q = builder.build().expect("the device makes sense");
    if scheduler != "none" {
        q.change_knob("nr_requests", "64").expect("the knob exists").wait().expect("the value is accepted");
    }
    q
}

fn loaded(events: Vec<Event>, classes: &Classes) -> Load {
    Load::read(events.into_iter().map(Ok), classes).expect("the temporary file takes it")
}

fn load(trace: &Trace, classes: &str) -> Load {
    loaded(whole::events(&trace.bytes), &Classes::parse("c", classes).expect("the classes are well formed"))
}

fn played(load: &Load, q: &RequestQueue, speed: Speed) -> Outcome {
    play(load, q, speed, &AtomicBool::new(false), &mut |_| ()).expect("the queue takes submitters")
}

fn run(trace: &Trace, device: &str, scheduler: &str, speed: Speed) -> Outcome {
    played(&load(trace, ""), &queue(device, scheduler, 64), speed)
}

const AS_TRACED: Speed = Speed::Scaled(1.0);

/// Median and longest latency in microseconds. Both are exact, because the numbers have at most four digits.
fn latency(latencies: &blkmq_workbench::Latencies, kind: &str) -> (u64, u64) {
    let found = latencies.percentiles(kind).unwrap_or_else(|| panic!("there was no {kind}"));
    (found.p50.div_ceil(100) / 10, found.max.div_ceil(100) / 10)
}

/// Three reads at once, which cannot merge.
fn three_reads() -> Trace {
    Trace::of("Q0+8 G0+8 P0+0 @1 Q100+8 @1 Q200+8 @1 U3")
}

#[test]
fn a_device_that_takes_one_at_a_time_makes_the_others_wait() {
    for scheduler in ["none", "mq-deadline"] {
        let outcome = run(&three_reads(), SLOW, scheduler, AS_TRACED);
        assert_eq!((outcome.completed, outcome.stats.issued), (3, 3));
        assert_eq!(outcome.duration, 3 * TAKES * 1000);
        assert_eq!(latency(&outcome.latencies, "read"), (2 * TAKES, 3 * TAKES), "{scheduler}");
    }
    let outcome = run(&three_reads(), "null,irqmode=2,completion_nsec=500us", "none", AS_TRACED);
    assert_eq!(latency(&outcome.latencies, "read"), (TAKES, TAKES));
}

/// Two reads a millisecond apart, each of which took 10 us under Linux.
fn two_reads() -> Trace {
    Trace::of("@1 Q0+8 @11 0:C0+8 @1001 Q100+8 @1011 0:C100+8")
}

#[test]
fn speed_scales_the_times_between_operations() {
    for (speed, us) in [("1", 1000), ("2", 500), ("0.5", 2000), ("4", 500), ("100", 500)] {
        let outcome = run(&two_reads(), SLOW, "none", speed.parse().expect("a number above 0 is a speed"));
        assert_eq!(outcome.duration, (us + TAKES) * 1000, "{speed}");
    }
    // At four times the speed the second read comes after 250 us and then waits for 250 us.
    let outcome = run(&two_reads(), SLOW, "none", Speed::Scaled(4.0));
    assert_eq!(latency(&outcome.latencies, "read"), (TAKES, TAKES + 250));
}

/// Red if with speed `max` a process has more operations outstanding than in the trace: one, and three.
#[test]
fn as_fast_as_the_device_takes_it_keeps_the_traced_number_outstanding() {
    let outcome = run(&two_reads(), SLOW, "none", Speed::Max);
    assert_eq!((outcome.duration, latency(&outcome.latencies, "read")), (2 * TAKES * 1000, (TAKES, TAKES)));
    let outcome = run(&three_reads(), SLOW, "none", Speed::Max);
    assert_eq!(latency(&outcome.latencies, "read"), (2 * TAKES, 3 * TAKES));
}

/// Red if two reads that touch merge in a plug although they came in two plugs, or do not although they came in one. In
/// both cases both are submitted before the device answers.
#[test]
fn a_plug_of_the_trace_is_a_plug_here() {
    let one = Trace::of("Q0+8 Q8+8 U2");
    let two = Trace::of("Q0+8 U1 Q8+8 U1");
    for (trace, merges) in [(one, 1), (two, 0)] {
        let outcome = run(&trace, SLOW, "none", Speed::Max);
        assert_eq!((outcome.completed, outcome.stats.merges_plug), (2, merges));
    }
}

#[test]
fn speeds_are_numbers_above_zero_or_max() {
    for text in ["0", "max", "0.0"] {
        assert_eq!(text.parse(), Ok(Speed::Max), "{text}");
    }
    assert_eq!("2.5".parse(), Ok(Speed::Scaled(2.5)));
    for text in ["", "-1", "fast", "nan", "inf", "1x"] {
        assert!(text.parse::<Speed>().unwrap_err().to_string().starts_with("accepted: a number above 0"), "{text}");
    }
}

/// Red if mq-deadline, or the class of a request, has no effect. While the device is busy with a read, two writes and
/// then a read arrive, and mq-deadline lets the read go first.
#[test]
fn the_scheduler_decides_who_waits() {
    let trace = Trace::of("@1 Q0+8 @2 I0+8 @11 Qw100+8 @11 Iw100+8 @21 Qw300+8 @21 Iw300+8 @31 Q500+8 @31 I500+8");
    let longest_read = |scheduler| latency(&run(&trace, SLOW, scheduler, AS_TRACED).latencies, "read").1;
    assert_eq!(longest_read("none"), 4 * TAKES - 29);
    assert_eq!(longest_read("mq-deadline"), 2 * TAKES - 29);
    // In a higher class the writes go first.
    let load = load(&trace, "100 400 rt\n");
    let outcome = played(&load, &queue(SLOW, "mq-deadline", 64), AS_TRACED);
    assert_eq!(latency(&outcome.latencies, "read").1, 4 * TAKES - 29);
}

/// Red if operations of one plug under Linux are not in one plug here. Other operations can only merge in the
/// scheduler.
#[test]
fn plugs_are_those_of_the_trace() {
    let plugged = Trace::of("Qw0+8 Gw0+8 P0+0 Qw8+8 Mw8+8 Qw16+8 Mw16+8 U1");
    let apart = Trace::of("Qw900+8 Iw900+8 Qw0+8 Iw0+8 Qw8+8 Mw8+8 Qw16+8 Mw16+8");
    for (trace, scheduler, merges) in [
        (&plugged, "none", (2, 0)),
        (&plugged, "mq-deadline", (2, 0)),
        (&apart, "none", (0, 0)),
        (&apart, "mq-deadline", (0, 2)),
    ] {
        let stats = run(trace, SLOW, scheduler, AS_TRACED).stats;
        assert_eq!((stats.merges_plug, stats.merges_insert), merges, "{scheduler}");
    }
    assert_eq!(load(&plugged, "").traced.merges, 2);
    // The plug was emptied 7 us after the first operation, so the first operation is over 7 us later.
    let outcome = run(&plugged, SLOW, "none", AS_TRACED);
    assert_eq!((outcome.duration, latency(&outcome.latencies, "write").1), ((TAKES + 7) * 1000, TAKES + 7));
}

#[test]
fn processes_have_plugs_of_their_own() {
    let trace = Trace::of("Qw0+8 Gw0+8 P0+0 2:Qw8+8 2:Gw8+8 2:P0+0 Qw16+8 U2 2:U1");
    assert_eq!(load(&trace, "").nr_processes(), 2);
    assert_eq!(run(&trace, SLOW, "none", AS_TRACED).stats.merges_plug, 0);
}

#[test]
fn what_the_device_cannot_do_is_counted_by_reason() {
    let trace = Trace::of("Q2040+8 Q2041+8 Q18446744073709551608+8 Q4+8 Qd0+8 Q0+0 Qf0+0");
    let outcome = run(&trace, "null,size=1M,bs=4096", "none", AS_TRACED);
    assert_eq!(outcome.completed, 2, "a read and a flush");
    let expected = [(Status::Misaligned, 3), (Status::BeyondEnd, 1), (Status::Unsupported, 1)];
    assert_eq!(outcome.refused, expected);
    // 256 KiB in requests of 4 KiB need 64 slots, and there are 64.
    let trace = Trace::of("Qw0+512 Qw0+520 Qw0+4194304");
    let outcome = run(&trace, "null,max_sectors=8", "none", AS_TRACED);
    assert_eq!((outcome.completed, outcome.refused), (1, vec![(Status::TooLarge, 2)]));
}

#[test]
fn failures_are_counted_by_status() {
    let trace = three_reads().then("Q96+2");
    let outcome = run(&trace, "null,badblocks=97-103", "mq-deadline", AS_TRACED);
    assert_eq!((outcome.completed, outcome.failed), (4, vec![(Status::Medium, 2)]));
}

/// Red if the latency of an operation that is submitted late does not count from the time at which it was due: there
/// are three at once, and two slots.
#[test]
fn waiting_for_room_counts_as_latency() {
    let outcome = played(&load(&three_reads(), ""), &queue(SLOW, "none", 2), AS_TRACED);
    assert_eq!((outcome.completed, outcome.duration), (3, 3 * TAKES * 1000));
    assert_eq!(latency(&outcome.latencies, "read"), (2 * TAKES, 3 * TAKES));
}

/// Red before an operation that became due while the others were looked at was waited for: the reads of one process,
/// 13 us apart, waited for the next operation of another process, half a second later.
#[test]
fn on_the_machines_time_no_operation_waits_for_one_of_another_process() {
    let reads = (0..400).fold(Trace::default(), |trace, n| trace.at(1 + 13 * n).add(1, "Q", 8 * n, 8));
    let trace = reads.then("@500000 2:Q8000+8");
    let q = RequestQueue::builder(spec::open("null").expect("the device is well described"));
    let q = q.clock(Clock::real()).build().expect("the device makes sense");
    let outcome = played(&load(&trace, ""), &q, AS_TRACED);
    assert_eq!(outcome.completed, 401);
    // The reads are over after 5 ms, unless the machine is busy.
    let (p50, _) = latency(&outcome.latencies, "read");
    assert!(p50 < 100_000, "half of the reads took more than {p50} us");
}

/// Red if a completion is matched with the wrong one of merged, split or equal operations, or if a flush, which has no
/// place, is not matched.
#[test]
fn latencies_of_the_trace_are_matched_by_place() {
    let traced = |trace: Trace| load(&trace, "").traced;
    let merged = Trace::of("@1 Q0+8 @11 Q8+8 @101 0:C0+16");
    let traced_merged = traced(merged);
    assert_eq!((traced_merged.completed, latency(&traced_merged.latencies, "read")), (2, (90, 100)));
    assert_eq!((traced_merged.duration, traced_merged.peaks), (100_000, vec![2]));

    let split = Trace::of("@1 Qw0+16 @2 Xw0+8 @51 0:Cw8+8 @81 0:Cw0+8");
    assert_eq!(latency(&traced(split).latencies, "write"), (80, 80));
    let in_parts = Trace::of("@1 Qw0+16 @51 0:Cw0+8 @81 0:Cw8+8");
    assert_eq!(latency(&traced(in_parts).latencies, "write"), (80, 80));

    let alike = "@1 Q0+8 @1 Qw0+8 @21 2:Q0+8 @31 0:C0+8 @41 0:Cw0+8 @71 0:C0+8 @81 0:C0+8";
    let alike = traced(Trace::of(alike));
    assert_eq!((alike.completed, latency(&alike.latencies, "read")), (3, (30, 50)));
    assert_eq!((latency(&alike.latencies, "write"), alike.peaks), ((40, 40), vec![2, 1]));

    let flush = traced(Trace::of("@1 Qf0+0 @1 Qd0+800 @9 0:Cd0+800 @16 0:Cf0+0"));
    assert_eq!((latency(&flush.latencies, "flush"), latency(&flush.latencies, "discard")), ((15, 15), (8, 8)));
}

#[test]
fn a_trace_without_bios_is_read_by_its_requests() {
    let requests = Trace::of("I0+8 D0+8 I50+8 0:C0+8");
    let inserted = load(&requests, "");
    assert_eq!((inserted.source, inserted.nr_operations, inserted.traced.requests), (Source::Insertions, 2, 1));
    assert_eq!(latency(&inserted.traced.latencies, "read"), (3, 3));
    let issued = load(&Trace::of("D0+8 0:C0+8 0:C700+8"), "");
    assert_eq!((issued.source, issued.nr_operations, issued.traced.completed), (Source::Issues, 1, 1));
    assert!(load(&Trace::of("P0+0 0:C0+8"), "").nr_operations == 0);
}

fn recording(name: &str) -> Load {
    let recording = Recording::of_mq_deadline(name);
    loaded(recording.events(), &recording.classes)
}

/// Red if bios, merges, requests or completions of a recording are not as many as blkparse's summary says.
#[test]
fn recordings_are_read_whole() {
    for (name, operations, merges, requests, processes) in [
        ("mixed", 1391, 0, 1391, 2),
        ("expiry", 1400, 0, 1400, 2),
        ("depth4", 3184, 0, 3184, 2),
        ("prio", 1806, 0, 1806, 3),
        ("merge", 5931, 5202, 729, 3),
    ] {
        let load = recording(name);
        assert_eq!((load.source, load.nr_operations, load.nr_processes()), (Source::Bios, operations, processes));
        assert_eq!((load.traced.merges, load.traced.requests, load.traced.completed), (merges, requests, operations));
    }
}

/// Red if the same trace on virtual time does not end the same, to the nanosecond, on devices that queue, refuse or
/// lose requests.
#[test]
fn virtual_time_repeats_itself() {
    for name in ["mixed", "merge", "prio"] {
        let load = recording(name);
        for device in [
            SLOW.to_owned(),
            "null,submit_queues=3,irqmode=1".to_owned(),
            format!("{SLOW},requeue=3,50,0,-1,timeout=1,5,0,8,seed=7"),
        ] {
            for scheduler in ["none", "mq-deadline"] {
                for speed in [AS_TRACED, Speed::Scaled(3.0), Speed::Max] {
                    let outcome = || played(&load, &queue(&device, scheduler, 256), speed);
                    let first = outcome();
                    assert_eq!(first.completed, load.nr_operations, "{name} {device} {scheduler} {speed:?}");
                    assert_eq!(first, outcome(), "{name} {device} {scheduler} {speed:?}");
                }
            }
        }
    }
}

/// Red if on a device like the recorded one mq-deadline does not merge nearly all that Linux merged; or if `none`
/// merges.
#[test]
fn sequential_writers_merge_in_the_scheduler_alone() {
    let load = recording("merge");
    let device = "null,irqmode=2,completion_nsec=700us,hw_queue_depth=1,max_sectors=128";
    let stats = |scheduler| {
        let outcome = played(&load, &queue(device, scheduler, 1024), AS_TRACED);
        assert_eq!(outcome.stats.issued + outcome.stats.merges_plug + outcome.stats.merges_insert, 5931);
        outcome.stats
    };
    assert_eq!(stats("none").merges_insert, 0);
    let merges = stats("mq-deadline").merges_insert;
    assert!(merges > 5000, "{merges} of the 5202 merges under Linux");
}

#[test]
fn progress_is_told_while_time_passes() {
    let mut told = Vec::new();
    let load = recording("mixed");
    play(&load, &queue(SLOW, "none", 64), AS_TRACED, &AtomicBool::new(false), &mut |done| told.push(done))
        .expect("the queue takes submitters");
    assert!(told.len() >= 3 && told.is_sorted() && told.iter().all(|done| *done < 1391), "{told:?}");
}

/// Red if a count is wrong on the machine's clock. Times are not checked.
#[test]
fn the_machines_clock_plays_all_of_it() {
    let q = RequestQueue::builder(spec::open("null").expect("it has defaults")).build().expect("it makes sense");
    for speed in [Speed::Scaled(50.0), Speed::Max] {
        let load = recording("prio");
        assert_eq!(played(&load, &q, speed).completed, 1806);
    }
}

/// Red if a replay that is stopped submits more, loses what it has, or never ends.
#[test]
fn a_stopped_replay_ends_with_what_it_has() {
    let load = recording("mixed");
    let stop = AtomicBool::new(true);
    let none =
        play(&load, &queue(SLOW, "none", 64), AS_TRACED, &stop, &mut |_| ()).expect("the queue takes submitters");
    assert_eq!(none.completed, 0);
    stop.store(false, Ordering::Relaxed);
    let mut tell = |_| stop.store(true, Ordering::Relaxed);
    let some = play(&load, &queue(SLOW, "none", 64), AS_TRACED, &stop, &mut tell).expect("the queue takes submitters");
    assert!(some.completed > 0 && some.completed < load.nr_operations, "{}", some.completed);
}
