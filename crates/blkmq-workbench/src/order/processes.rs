//! Who asked in a recording: the processes with their priorities, and the control groups with their weights.

use std::collections::BTreeMap;

use blkmq_sched::{Class, ClientId, ClientSettings, DEFAULT_WEIGHT, GroupId, GroupSettings, IoPriority, Scheduler};

use crate::TextError;
use crate::text::numbered_lines;

/// The most processes, and the most groups, that a recording may have.
const MOST: usize = 1000;

/// The processes of a recording.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Processes {
    /// In the order of the file.
    all: Vec<Process>,
}

/// A process of a recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its number; `None` if the recording does not know it.
    pub pid: Option<u32>,
    /// The job that it ran.
    pub job: String,
    /// The path of its control group; empty for the root.
    pub group: String,
    /// Its priority.
    pub priority: IoPriority,
}

/// The control groups of a recording: path and weight.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Groups(BTreeMap<String, u16>);

impl Processes {
    /// Reads lines of the form `PID JOB GROUP CLASS LEVEL ...`. PID is `-` where it is not known, GROUP is `/` for the
    /// root, CLASS is 1 (real-time), 2 (best-effort), 3 (idle) or `-`, LEVEL is 0 to 7 or `-`. What follows is ignored,
    /// as are empty lines, and lines that start with `#`. `file` is the name that errors give the text.
    ///
    /// # Errors
    /// The line and the word that cannot be read, a pid that is given twice, or more processes than 1000.
    pub fn parse(file: &str, text: &str) -> Result<Self, TextError> {
        let mut all: Vec<Process> = Vec::new();
        for (number, line) in numbered_lines(text) {
            let fault = |what| TextError::in_line(file, number, what);
            let words: Vec<&str> = line.split_whitespace().collect();
            let process = process(&words).map_err(fault)?;
            if process.pid.is_some() && all.iter().any(|other| other.pid == process.pid) {
                return Err(fault(format!("process {} is given twice", words[0])));
            }
            if all.len() >= MOST {
                return Err(fault(format!("this is one process more than {MOST}, the most that a recording may have")));
            }
            all.push(process);
        }
        Ok(Self { all })
    }

    /// All of them, in the order of the file.
    #[must_use]
    pub fn all(&self) -> &[Process] {
        &self.all
    }
}

fn process(words: &[&str]) -> Result<Process, String> {
    let [pid, job, group, class, level, ..] = words else {
        let form = "is not of the form PID JOB GROUP CLASS LEVEL, as in '603 ax a/x 2 4'";
        return Err(format!("'{}' {form}", words.join(" ")));
    };
    let pid = match *pid {
        "-" => None,
        pid => Some(pid.parse().map_err(|_| format!("'{pid}' is no pid, and not '-'"))?),
    };
    let class = match *class {
        "-" | "2" => Class::BestEffort,
        "1" => Class::RealTime,
        "3" => Class::Idle,
        other => return Err(format!("'{other}' is no class; accepted: 1, 2, 3, -")),
    };
    let level = match *level {
        "-" => IoPriority::default().level,
        level => level
            .parse()
            .ok()
            .filter(|level| *level < 8)
            .ok_or_else(|| format!("'{level}' is no level; accepted: 0 to 7, -"))?,
    };
    Ok(Process {
        pid,
        job: (*job).to_owned(),
        group: group.trim_matches('/').to_owned(),
        priority: IoPriority { class, level },
    })
}

impl Groups {
    /// Reads lines of the form `PATH ... WEIGHT`, with names of groups inside one another parted by `/`. Empty lines,
    /// and lines that start with `#`, are skipped. `file` is the name that errors give the text.
    ///
    /// # Errors
    /// The line and the word that cannot be read, a group that is given twice, or more groups than 1000.
    pub fn parse(file: &str, text: &str) -> Result<Self, TextError> {
        let mut all = BTreeMap::new();
        for (number, line) in numbered_lines(text) {
            let fault = |what| TextError::in_line(file, number, what);
            let words: Vec<&str> = line.split_whitespace().collect();
            let [path, .., word] = words[..] else {
                return Err(fault(format!("'{line}' is not of the form PATH WEIGHT, as in 'a/x default 100'")));
            };
            let weight = word.parse().ok().filter(|weight| (1..=1000).contains(weight));
            let weight = weight.ok_or_else(|| fault(format!("'{word}' is not a weight from 1 to 1000")))?;
            let path = path.trim_matches('/');
            if path.split('/').any(str::is_empty) {
                return Err(fault(format!("'{}' is not the path of a group, as in 'a/x'", words[0])));
            }
            if all.insert(path.to_owned(), weight).is_some() {
                return Err(fault(format!("group '{path}' is given twice")));
            }
            if all.len() > MOST {
                return Err(fault(format!("this is one group more than {MOST}, the most that a recording may have")));
            }
        }
        Ok(Self(all))
    }
}

/// The clients and groups that have joined a scheduler.
#[derive(Debug, Default)]
pub(crate) struct Members {
    clients: BTreeMap<u32, (ClientId, IoPriority)>,
    /// The pids of clients, by the client's place.
    pids: Vec<u32>,
}

impl Members {
    /// Joins all processes and groups of the files to a scheduler. A group that has no weight there has the default.
    ///
    /// # Errors
    /// There are more groups than a scheduler may have.
    pub(crate) fn join(
        scheduler: &mut dyn Scheduler,
        processes: &Processes,
        groups: &Groups,
    ) -> Result<Self, TextError> {
        let mut ids = BTreeMap::from([("", GroupId::ROOT)]);
        let mut names: Vec<&str> = groups.0.keys().map(String::as_str).collect();
        names.extend(processes.all.iter().map(|process| process.group.as_str()));
        for name in names {
            // Every group that holds this one comes first.
            let ends = name.match_indices('/').map(|(at, _)| at).chain([name.len()]);
            for path in ends.map(|end| &name[..end]).filter(|path| !path.is_empty()) {
                if ids.contains_key(path) {
                    continue;
                }
                if ids.len() >= GroupId::PLACES {
                    let what = format!("there are more than {} groups", GroupId::PLACES - 1);
                    return Err(TextError { place: format!("group '{path}'"), what });
                }
                let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
                let id = GroupId::new(ids.len(), 0);
                let weight = groups.0.get(path).copied().unwrap_or(DEFAULT_WEIGHT);
                scheduler.join_group(id, &GroupSettings { weight, parent: ids[parent] });
                ids.insert(path, id);
            }
        }
        let mut members = Self::default();
        for process in &processes.all {
            let Some(pid) = process.pid else { continue };
            let settings = ClientSettings {
                priority: process.priority,
                group: ids[process.group.as_str()],
                ..ClientSettings::default()
            };
            let client =
                members.add(pid, process.priority).expect("a file names fewer processes than there are places");
            scheduler.join(client, &settings);
        }
        Ok(members)
    }

    /// Gives a process a place; `None` if all are taken.
    pub(crate) fn add(&mut self, pid: u32, priority: IoPriority) -> Option<ClientId> {
        // Place 0 is left out: the default id belongs to no client.
        let place = self.pids.len() + 1;
        let client = (place < ClientId::PLACES).then(|| ClientId::new(place, 0))?;
        self.clients.insert(pid, (client, priority));
        self.pids.push(pid);
        Some(client)
    }

    /// The client that a process is, if it has a place, and its priority.
    pub(crate) fn client(&self, pid: u32) -> Option<(ClientId, IoPriority)> {
        self.clients.get(&pid).copied()
    }

    /// The process that a client is.
    pub(crate) fn pid(&self, client: ClientId) -> Option<u32> {
        self.pids.get(client.place().checked_sub(1)?).copied()
    }
}
