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
use std::path::{Path, PathBuf};

use blkmq_workbench::Classes;
use blkmq_workbench::blktrace::{Action, Category, Event};
use blkmq_workbench::order::Adjustment;

use crate::whole::{self, Recording, Whole, data};

/// The shares of choices that must agree. On the domain; on the domain where several wait, as the mean of those choices
/// that stay with the last domain and those that do not; and on the request.
const MARKS: Shares = Shares { domain: 0.997, balanced: 0.99, request: 0.99 };

/// The same for recordings that are not in the repository.
const MARKS_OF_OTHERS: Shares = Shares { domain: 0.985, balanced: 0.95, request: 0.98 };

/// Two of Linux's ticks, in nanoseconds.
const LATE: u64 = 8_000_000;

/// A recording, its name, and the depths that Linux changed: time, domain, depth.
struct Adjusted {
    recording: Recording,
    name: String,
    adjustments: Vec<(u64, String, u32)>,
}

impl Adjusted {
    fn open(folder: &Path) -> Self {
        let lines = fs::read_to_string(folder.join("kyber.txt")).expect("the recording has the depths");
        let adjustments = lines.lines().filter(|line| !line.starts_with('#')).filter_map(adjustment).collect();
        let name = folder.file_name().expect("a recording has a name").to_string_lossy().into_owned();
        Self { recording: Recording::open(folder), name, adjustments }
    }

    /// One of those that are in the repository.
    fn named(name: &str) -> Self {
        Self::open(&data(KYBER).join(name))
    }

    fn all() -> Vec<Self> {
        let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/oracle").join(KYBER);
        let mut folders: BTreeMap<_, PathBuf> = BTreeMap::new();
        for parent in [shared, data(KYBER)] {
            let entries =
                fs::read_dir(parent).into_iter().flatten().map(|entry| entry.expect("the folder can be read"));
            folders.extend(entries.map(|entry| (entry.file_name(), entry.path())));
        }
        folders.values().map(|folder| Self::open(folder)).collect()
    }
}

const KYBER: &str = "linux-6.12-kyber";

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
    let recordings = Adjusted::all();
    assert!(recordings.len() >= 5, "the repository has five");
    for Adjusted { recording, name, adjustments } in recordings {
        let agreement = recording.replay(&[]);
        let shares = shares(&recording.events(), &agreement);
        let ours = words(agreement.adjustments.as_deref().expect("kyber has depths"));
        println!("{name}: {} choices, {shares:.4?}, {} new depths", agreement.choices.len(), ours.len());
        assert!(agreement.choices.len() > 5000, "the recording holds too few choices to judge by");
        let marks = if data(KYBER).join(&name).exists() { MARKS } else { MARKS_OF_OTHERS };
        let is_near =
            shares.domain >= marks.domain && shares.balanced >= marks.balanced && shares.request >= marks.request;
        assert!(is_near, "{name}: {shares:?}");
        assert!(are_alike(&ours, &adjustments), "{name}: {ours:?}");
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
        let Adjusted { recording, adjustments, .. } = Adjusted::named(name);
        let ours = words(recording.replay(&[change]).adjustments.as_deref().expect("kyber has depths"));
        assert!(!are_alike(&ours, &adjustments), "{name} with {change}: {ours:?}");
    }
}

/// Red if a message that a knob was changed is not heard.
#[test]
fn depths_follow_the_knobs_that_the_trace_changes() {
    let Adjusted { recording, adjustments, .. } = Adjusted::named("knobs-d32");
    let events: Vec<_> = recording.events().into_iter().filter(|event| event.message().is_none()).collect();
    let ours = words(recording.replay_of(&events, &[]).adjustments.as_deref().expect("kyber has depths"));
    assert!(!are_alike(&ours, &adjustments), "{ours:?}");
}

/// Red if a scheduler that takes no tokens has depths, or if its choices agree as often.
#[test]
fn another_scheduler_agrees_less_and_has_no_depths() {
    for name in ["knobs-d32", "discard-d8", "writecong-d32"] {
        let Adjusted { recording, .. } = Adjusted::named(name);
        let mut settings = recording.settings(&[]);
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
    let Adjusted { recording, .. } = Adjusted::named("discard-d8");
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
