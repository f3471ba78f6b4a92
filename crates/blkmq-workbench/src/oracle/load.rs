//! The load of a recording: its jobs, and the processes that run them.

use std::collections::BTreeMap;

use super::client::Client;
use super::recording::Recording;
use crate::order::Members;
use crate::{JobFile, Mode, Surroundings, TextError};

/// Before the first job starts, in nanoseconds: on Linux's clock it is long after the machine's start.
const FIRST_NS: u64 = 1_000_000_000;

/// A job file says all; nothing is taken from this machine.
struct Nothing;

impl Surroundings for Nothing {}

/// The processes that run a recording's jobs, each with its job's name. `first` says when a job's first request was
/// inserted, in nanoseconds from the first one of all.
///
/// # Errors
/// A job that is not modelled, or that the recording does not know.
pub(super) fn clients(
    recording: &Recording,
    members: &Members,
    first: &dyn Fn(&str) -> Option<u64>,
) -> Result<(Vec<String>, Vec<Client>), TextError> {
    let pids: BTreeMap<&str, u32> = recording.processes.all().iter().filter_map(|p| Some((&*p.job, p.pid?))).collect();
    let (mut names, mut clients) = (Vec::new(), Vec::new());
    for name in recording.job_files()? {
        let file = JobFile::parse(&name, &recording.text(&name)?, &[], Mode::Lenient, &Nothing)?;
        for job in file.jobs {
            let fault = |what: &str| TextError { place: format!("job '{}'", job.name), what: what.to_owned() };
            let first = first(&job.name).ok_or_else(|| fault("outcome.json has no job of that name"))?;
            let pid = pids.get(job.name.as_str()).ok_or_else(|| fault("processes.txt has no process of that name"))?;
            let (id, priority) = members.client(*pid).ok_or_else(|| fault("its process is no client"))?;
            clients.push(Client::new(&job, id, priority, FIRST_NS + first)?);
            names.push(job.name);
        }
    }
    Ok((names, clients))
}
