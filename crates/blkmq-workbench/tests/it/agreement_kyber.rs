//! How often kyber chooses as Linux's kyber did, and whether it changes the same depths at the same times, on
//! recordings of Linux. More recordings than the repository has are read from `../shared` where that is.
//!
//! `recorded_choices_and_depths_are_ours_too` went red with each of these changes. Of the choices: a batch of 15 reads,
//! one of 9 writes, no end of tokens, a choice in vain that does not end the turn. Of the depths: 1, 400 or 600 samples
//! instead of 500; half a second instead of one, or none; a second for each of the two latencies; congestion never, by
//! the total latency, or by the 99th percentile; a bucket more or less; depths without bounds; what was found before
//! not remembered, or used twice; another interval. Recordings of one submitter cannot tell when its list is let in;
//! kyber's own tests do.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use blkmq_workbench::blktrace::{Action, Category, Event};
use blkmq_workbench::order::Adjustment;
use blkmq_workbench::{Classes, Settings};
use flate2::read::GzDecoder;

use crate::whole::{self, Whole};

/// The shares of choices that must agree. On the domain; on the domain where several wait, as the mean of those choices
/// that stay with the last domain and those that do not; and on the request.
const MARKS: Shares = Shares { domain: 0.997, balanced: 0.99, request: 0.99 };

/// The same for recordings that are not in the repository.
const MARKS_OF_OTHERS: Shares = Shares { domain: 0.985, balanced: 0.95, request: 0.98 };

/// Two of Linux's ticks, in nanoseconds.
const LATE: u64 = 8_000_000;

struct Recording {
    name: String,
    trace: Vec<u8>,
    queue: String,
    /// The depths that Linux changed: time, domain, depth.
    adjustments: Vec<(u64, String, u32)>,
}

impl Recording {
    fn open(folder: &Path) -> Self {
        let read = |name: &str| {
            fs::read_to_string(folder.join(name)).unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        };
        let mut trace = Vec::new();
        match fs::File::open(folder.join("trace.blktrace.0.gz")) {
            Ok(packed) => _ = GzDecoder::new(packed).read_to_end(&mut trace).expect("the trace is whole"),
            Err(_) => trace = fs::read(folder.join("trace.blktrace.0")).expect("the recording has a trace"),
        }
        let adjustments =
            read("kyber.txt").lines().filter(|line| !line.starts_with('#')).filter_map(adjustment).collect();
        let name = folder.file_name().expect("a recording has a name").to_string_lossy().into_owned();
        Self { name, trace, queue: read("queue.txt"), adjustments }
    }

    /// One of those that are in the repository.
    fn named(name: &str) -> Self {
        Self::open(&kept().join(name))
    }

    fn all() -> Vec<Self> {
        let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/oracle/linux-6.12-kyber");
        let mut folders: BTreeMap<_, PathBuf> = BTreeMap::new();
        for parent in [shared, kept()] {
            let entries = fs::read_dir(parent).into_iter().flatten();
            folders
                .extend(entries.map(|entry| entry.expect("the folder can be read")).map(|e| (e.file_name(), e.path())));
        }
        folders.values().map(|folder| Self::open(folder)).collect()
    }

    fn events(&self) -> Vec<Event> {
        whole::events(&self.trace)
    }

    fn replay_of(&self, events: &[Event], changes: &[&str]) -> Whole {
        let mut settings = Settings::parse("queue.txt", &self.queue).expect("the recording's settings are well formed");
        for change in changes {
            settings.set(change).expect("the change is well formed");
        }
        whole::replay(events, &settings, &Classes::default()).expect("the settings are accepted")
    }

    fn replay(&self, changes: &[&str]) -> Whole {
        self.replay_of(&self.events(), changes)
    }
}

fn kept() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/linux-6.12-kyber")
}

/// `TIME adjust DOMAIN DEPTH`; nothing for another line.
fn adjustment(line: &str) -> Option<(u64, String, u32)> {
    let [time, "adjust", domain, depth] = line.split_whitespace().collect::<Vec<_>>()[..] else { return None };
    Some((time.parse().ok()?, domain.to_owned(), depth.parse().ok()?))
}

fn words(adjustments: &[Adjustment]) -> Vec<(u64, String, u32)> {
    let capitals = |Adjustment { time, of, depth }: &Adjustment| (*time, of.name().to_ascii_uppercase(), *depth);
    adjustments.iter().map(capitals).collect()
}

/// Whether ours are Linux's, in order, each within two ticks.
fn are_alike(ours: &[(u64, String, u32)], linux: &[(u64, String, u32)]) -> bool {
    let is_alike = |(ours, linux): (&(u64, String, u32), &(u64, String, u32))| {
        ours.0.abs_diff(linux.0) <= LATE && (&ours.1, ours.2) == (&linux.1, linux.2)
    };
    ours.len() == linux.len() && ours.iter().zip(linux).all(is_alike)
}

fn domain(event: &Event) -> char {
    match (event.category.contains(Category::DISCARD), event.is_write()) {
        (true, _) => 'D',
        (false, true) => 'W',
        (false, false) => 'R',
    }
}

#[derive(Debug)]
struct Shares {
    domain: f64,
    balanced: f64,
    request: f64,
}

/// Counts on the trace itself, by a book of its own of what waits.
fn shares(events: &[Event], agreement: &Whole) -> Shares {
    let mut waiting: BTreeMap<char, BTreeSet<u64>> = BTreeMap::new();
    let mut choices = agreement.choices.iter();
    let (mut all, mut alike, mut same, mut last) = (0, 0, 0, None);
    // Staying with the last domain, and going to another: all of them, and those on which both agree.
    let mut contested = [(0, 0); 2];
    for event in events {
        let of = domain(event);
        match event.action {
            Action::Insert => _ = waiting.entry(of).or_default().insert(event.sector),
            Action::FrontMerge => {
                let sectors = waiting.entry(of).or_default();
                if sectors.remove(&(event.sector + u64::from(event.nr_sectors()))) {
                    sectors.insert(event.sector);
                }
            }
            Action::Issue => {
                let ours = choices.next().expect("there is a choice for each issue").ours;
                let agrees = ours.is_some_and(|rq| rq.direction() == of);
                all += 1;
                alike += usize::from(agrees);
                same += usize::from(agrees && ours.is_some_and(|rq| rq.sector == event.sector));
                if waiting.values().filter(|sectors| !sectors.is_empty()).count() >= 2 {
                    let kind = &mut contested[usize::from(last != Some(of))];
                    *kind = (kind.0 + 1, kind.1 + usize::from(agrees));
                }
                waiting.entry(of).or_default().remove(&event.sector);
                last = Some(of);
            }
            _ => {}
        }
    }
    assert!(choices.next().is_none(), "there is an issue for each choice");
    let share = |(all, alike): (usize, usize)| alike as f64 / all as f64;
    let [stay, switch] = contested.map(share);
    Shares { domain: share((all, alike)), balanced: f64::midpoint(stay, switch), request: share((all, same)) }
}

#[test]
fn recorded_choices_and_depths_are_ours_too() {
    let recordings = Recording::all();
    assert!(recordings.len() >= 5, "the repository has five");
    for recording in recordings {
        let agreement = recording.replay(&[]);
        let shares = shares(&recording.events(), &agreement);
        let ours = words(agreement.adjustments.as_deref().expect("kyber has depths"));
        println!("{}: {} choices, {shares:.4?}, {} new depths", recording.name, agreement.choices.len(), ours.len());
        assert!(agreement.choices.len() > 5000, "the recording holds too few choices to judge by");
        let marks = if kept().join(&recording.name).exists() { MARKS } else { MARKS_OF_OTHERS };
        let is_near =
            shares.domain >= marks.domain && shares.balanced >= marks.balanced && shares.request >= marks.request;
        assert!(is_near, "{}: {shares:?}", recording.name);
        assert!(are_alike(&ours, &recording.adjustments), "{}: {ours:?}", recording.name);
    }
}

/// Red if the depths do not follow from the targets.
#[test]
fn other_targets_make_other_depths() {
    for (name, change) in [
        ("knobs-d32", "write_lat_nsec=500000000"),
        ("knobs-d32", "iosched/read_lat_nsec=1000"),
        ("writecong-d32", "write_lat_nsec=200000000"),
        ("writecong-d32", "read_lat_nsec=9000000"),
        ("bursts-d8", "write_lat_nsec=1000000"),
        ("merge-d8", "read_lat_nsec=100000000"),
        ("discard-d8", "read_lat_nsec=1000000"),
    ] {
        let recording = Recording::named(name);
        let ours = words(recording.replay(&[change]).adjustments.as_deref().expect("kyber has depths"));
        assert!(!are_alike(&ours, &recording.adjustments), "{name} with {change}: {ours:?}");
    }
}

/// Red if a message that a knob was changed is not heard.
#[test]
fn depths_follow_the_knobs_that_the_trace_changes() {
    let recording = Recording::named("knobs-d32");
    let events: Vec<_> = recording.events().into_iter().filter(|event| event.message().is_none()).collect();
    let ours = words(recording.replay_of(&events, &[]).adjustments.as_deref().expect("kyber has depths"));
    assert!(!are_alike(&ours, &recording.adjustments), "{ours:?}");
}

/// Red if a scheduler that takes no tokens has depths, or if its choices agree as often.
#[test]
fn another_scheduler_agrees_less_and_has_no_depths() {
    for name in ["knobs-d32", "discard-d8", "writecong-d32"] {
        let recording = Recording::named(name);
        let mut settings = Settings::parse("queue.txt", &recording.queue).unwrap();
        settings.use_scheduler("mq-deadline");
        let agreement = whole::replay(&recording.events(), &settings, &Classes::default()).unwrap();
        assert_eq!(agreement.adjustments, None);
        let shares = shares(&recording.events(), &agreement);
        assert!(shares.balanced < 0.9 && shares.request < 0.5, "{name}: {shares:?}");
    }
}

/// Red if a line has another form than `TIME SECTOR R|W|D` or `TIME DOMAIN DEPTH`.
#[test]
fn choices_and_depths_are_lines() {
    let recording = Recording::named("discard-d8");
    let agreement = recording.replay(&["read_lat_nsec=1000000"]);
    let mut choices = Vec::new();
    for choice in &agreement.choices {
        choice.write(&mut choices).expect("memory takes every write");
    }
    let choices = String::from_utf8(choices).expect("a list of choices is plain text");
    let events = recording.events();
    let issues: Vec<&Event> = events.iter().filter(|event| event.action == Action::Issue).collect();
    assert_eq!(choices.lines().count(), issues.len());
    let is_same =
        |(line, issue): &(&str, &&Event)| *line == format!("{} {} {}", issue.time, issue.sector, domain(issue));
    let same = choices.lines().zip(&issues).filter(is_same).count();
    assert_eq!(same, agreement.agree());
    assert!(issues.iter().any(|issue| domain(issue) == 'D'));
    let mut depths = Vec::new();
    for adjustment in agreement.adjustments.iter().flatten() {
        adjustment.write(&mut depths).expect("memory takes every write");
    }
    let depths = String::from_utf8(depths).expect("a list of depths is plain text");
    assert!(!depths.is_empty());
    for (line, Adjustment { time, of, depth }) in depths.lines().zip(agreement.adjustments.unwrap()) {
        assert_eq!(line, format!("{time} {} {depth}", of.name().to_uppercase()));
    }
}
