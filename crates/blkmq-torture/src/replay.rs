//! The history of one world, line by line.

use std::ops::ControlFlow;
use std::sync::mpsc::sync_channel;

use super::history::Entry;
use super::play::play_apart;
use super::rig::WORLD_REQUESTS;
use super::settings::Settings;

/// How many lines the world may be ahead of the thread that reads them.
const AHEAD: usize = 1024;

/// An entry of a history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Steps made until this entry.
    pub step: u64,
    /// Virtual time of this entry, in ns.
    pub time_ns: u64,
    /// The operation that the entry is about.
    pub bio: Option<u64>,
    /// The requests that the entry is about. If it is about an operation as well, the request is the operation's.
    pub requests: [Option<u64>; 2],
    /// The entry in words.
    pub text: String,
}

/// The result of a world that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replayed {
    /// Operations that were taken.
    pub requests: u64,
    /// Steps of all virtual CPUs.
    pub steps: u64,
    /// The promise that was broken: the name of the checker that found it, and what happened.
    pub broken: Option<(&'static str, String)>,
}

/// Plays the world of a seed, with at most [`WORLD_REQUESTS`] operations, and calls `each` with each line of the
/// world's history, until `each` breaks off.
pub fn replay(
    seed: u64,
    requests: u64,
    settings: &Settings,
    mut each: impl FnMut(Line) -> ControlFlow<()>,
) -> Replayed {
    let (told, heard) = sync_channel(AHEAD);
    let settings = settings.clone();
    let tell = told.clone();
    let reader = move |entry: Entry<'_>| {
        let [first, second] = entry.requests();
        let requests = [first.map(|id| id.0), second.map(|id| id.0)];
        let (step, time_ns, bio) = (entry.step(), entry.time_ns(), entry.bio());
        // The send fails once the receiver has broken off.
        let _ = tell.send(Some(Line { step, time_ns, bio, requests, text: entry.to_string() }));
    };
    let world = std::thread::spawn(move || {
        let outcome = play_apart(seed, requests.min(WORLD_REQUESTS), &settings, Some(Box::new(reader)));
        // The end is told here and not by the reader: the reader of a world that breaks off may be leaked, together
        // with what the CPUs own.
        let _ = told.send(None);
        outcome
    });
    let _ = heard.iter().map_while(|line| line).try_for_each(&mut each);
    drop(heard);
    let outcome = world.join().expect("playing apart passes no panic on");
    let broken = outcome.violation.map(|(_, violation)| (violation.rule, violation.what));
    Replayed { requests: outcome.requests, steps: outcome.steps, broken }
}
