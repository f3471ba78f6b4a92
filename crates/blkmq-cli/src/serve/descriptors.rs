//! Open files: each client needs some, and systems give a process few unless it asks for more.

use std::fs;
use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors of a client: its socket, and an eventfd that wakes its thread.
const PER_CLIENT: u64 = 2;
/// Descriptors for the 128 clients that may negotiate at a time, for control connections, and for files that are read
/// again.
const SPARE: u64 = 128 * PER_CLIENT + 64;

/// The result of comparing the limits with the number of clients.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// There are enough descriptors.
    Enough,
    /// There are enough once the limit is raised to this number.
    Raise(u64),
    /// There are not enough: the limit can be raised to the first number, but the second number is needed.
    TooFew(u64, u64),
}

fn judge(limit: Rlimit, nr_open: u64, clients: u64) -> Verdict {
    let wanted = nr_open.saturating_add(SPARE).saturating_add(clients.saturating_mul(PER_CLIENT));
    // Without a number there is no limit.
    if limit.current.is_none_or(|current| current >= wanted) {
        return Verdict::Enough;
    }
    match limit.maximum {
        Some(maximum) if maximum < wanted => Verdict::TooFew(maximum, wanted),
        _ => Verdict::Raise(wanted),
    }
}

/// Makes sure that this many clients can be served at once, as far as the system allows. If the system allows less,
/// returns what the operator should know and do. Called once the devices are open.
pub(super) fn provide(clients: u64) -> Option<String> {
    let nr_open = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count) as u64;
    let limit = getrlimit(Resource::Nofile);
    let set = |current: u64| setrlimit(Resource::Nofile, Rlimit { current: Some(current), ..limit });
    let failed =
        |error: io::Error, wanted: u64| format!("the limit of open files could not be raised to {wanted}: {error}");
    match judge(limit, nr_open, clients) {
        Verdict::Enough => None,
        Verdict::Raise(wanted) => set(wanted).err().map(|error| failed(error.into(), wanted)),
        Verdict::TooFew(maximum, wanted) => {
            let _ = set(maximum);
            let served = maximum.saturating_sub(nr_open + SPARE) / PER_CLIENT;
            Some(format!(
                "a process may have {maximum} open files here, enough for some {served} of {clients} clients at once; type \
                 'ulimit -Hn {wanted}' as root before the start, or set LimitNOFILE={wanted} in the service's unit"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if there is a complaint about a limit that can be raised, or no complaint about one that cannot.
    #[test]
    fn limits_are_raised_where_that_helps_and_told_where_it_does_not() {
        let limit = |current, maximum| Rlimit { current, maximum };
        for (limit, verdict) in [
            (limit(Some(1024), Some(1024)), Verdict::Enough),
            (limit(None, None), Verdict::Enough),
            (limit(Some(300), Some(4096)), Verdict::Raise(860)),
            (limit(Some(300), None), Verdict::Raise(860)),
            (limit(Some(300), Some(860)), Verdict::Raise(860)),
            (limit(Some(300), Some(859)), Verdict::TooFew(859, 860)),
        ] {
            assert_eq!(judge(limit, 28, 256), verdict, "{limit:?}");
        }
    }
}
