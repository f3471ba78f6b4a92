//! Open files: each client needs some, and systems give a process few unless it asks for more.

use std::fs;
use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors of a client: its socket, and an eventfd that wakes its thread.
const PER_CLIENT: u64 = 2;
/// Descriptors for the 128 clients that may negotiate at a time, for control connections, and for files that are read
/// again.
const SPARE: u64 = 128 * PER_CLIENT + 64;

/// Returns the limit that is to be set, or `None` if so many descriptors can be opened now.
fn raised(limit: Rlimit, wanted: u64) -> Option<u64> {
    // Without a number there is no limit.
    let is_lower = limit.current.is_some_and(|current| current < wanted);
    is_lower.then(|| limit.maximum.map_or(wanted, |maximum| maximum.min(wanted)))
}

/// Makes sure that this many clients can be served at once, as far as the system allows. If the system allows less,
/// returns what the operator should know and do. Called once the devices are open.
pub(super) fn provide(clients: u64) -> Option<String> {
    let nr_open = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count) as u64;
    let wanted = nr_open.saturating_add(SPARE).saturating_add(clients.saturating_mul(PER_CLIENT));
    let limit = getrlimit(Resource::Nofile);
    let most = raised(limit, wanted)?;
    let set = setrlimit(Resource::Nofile, Rlimit { current: Some(most), ..limit }).map_err(io::Error::from);
    if most < wanted {
        let served = most.saturating_sub(nr_open + SPARE) / PER_CLIENT;
        return Some(format!(
            "a process may have {most} open files here, enough for some {served} of {clients} clients at once; type \
             'ulimit -Hn {wanted}' as root before the start, or set LimitNOFILE={wanted} in the service's unit"
        ));
    }
    set.err().map(|error| format!("the limit of open files could not be raised to {wanted}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if a limit that is high enough is changed, or one is set that the system refuses.
    #[test]
    fn limits_are_raised_as_far_as_they_can_be() {
        for (current, maximum, expected) in [
            (Some(1024), Some(1024), None),
            (None, None, None),
            (Some(300), Some(4096), Some(860)),
            (Some(300), None, Some(860)),
            (Some(300), Some(860), Some(860)),
            (Some(300), Some(859), Some(859)),
        ] {
            assert_eq!(raised(Rlimit { current, maximum }, 860), expected, "{current:?} {maximum:?}");
        }
    }
}
