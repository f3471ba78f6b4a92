//! The history of one world, line by line.

use std::ops::ControlFlow;
use std::sync::mpsc::sync_channel;

use super::history::Entry;
use super::rig::{WORLD_REQUESTS, play_apart};
use super::world::Settings;

/// How far the world may be ahead of its reader, in lines.
const AHEAD: usize = 1024;

/// An entry of a history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Steps made until then.
    pub step: u64,
    /// Virtual time, in ns.
    pub time_ns: u64,
    /// The operation that it is about.
    pub bio: Option<u64>,
    /// The requests that it is about. If it is about an operation as well, this is the operation's.
    pub requests: [Option<u64>; 2],
    /// All of it in words.
    pub text: String,
}

/// What became of a world that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replayed {
    /// Operations that were taken.
    pub requests: u64,
    /// Steps of all virtual CPUs.
    pub steps: u64,
    /// The promise that was broken: the checker's name, and what happened.
    pub broken: Option<(&'static str, String)>,
}

/// Plays the world of a seed, with at most [`WORLD_REQUESTS`] operations, and gives each line of its history to `each`,
/// until that breaks off.
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
        // Who listens no more has broken off.
        let _ = tell.send(Some(Line { step, time_ns, bio, requests, text: entry.to_string() }));
    };
    let world = std::thread::spawn(move || {
        let outcome = play_apart(seed, requests.min(WORLD_REQUESTS), &settings, Some(Box::new(reader)));
        // The reader itself tells no end: a world that breaks off leaks what its CPUs own.
        let _ = told.send(None);
        outcome
    });
    let _ = heard.iter().map_while(|line| line).try_for_each(&mut each);
    drop(heard);
    let outcome = world.join().expect("playing apart passes no panic on");
    let broken = outcome.violation.map(|(_, violation)| (violation.rule, violation.what));
    Replayed { requests: outcome.requests, steps: outcome.steps, broken }
}
