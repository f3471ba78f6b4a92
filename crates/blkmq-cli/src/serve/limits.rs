//! How long the server waits for clients.

use std::time::Duration;

use blkmq_workbench::TextError;

use super::config::Given;
use crate::bench;

/// How long a server that ends waits for its clients: less than systemd, which gives 90 seconds, and Kubernetes, which gives 30.
const DRAIN: Duration = Duration::from_secs(20);
/// How long a client may take nothing of what waits for it. A machine that is paused for a moment is to find its disk again.
const STALL: Duration = Duration::from_secs(300);

/// Reads a time, or `off` for none.
fn time(given: &Given) -> Result<Option<Duration>, TextError> {
    if given.text == "off" {
        return Ok(None);
    }
    bench::duration(&given.text).map(Some).map_err(|what| given.fault(format!("{what}, or 'off' for no limit")))
}

/// How long clients are waited for when the server ends; `None` without end.
pub(super) fn drain_timeout(given: Option<&Given>) -> Result<Option<Duration>, TextError> {
    given.map_or(Ok(Some(DRAIN)), time)
}

/// How long a client may take nothing of its replies; `None` without end.
pub(super) fn stall_timeout(given: Option<&Given>) -> Result<Option<Duration>, TextError> {
    given.map_or(Ok(Some(STALL)), time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_time_or_off() {
        let read = |text: &str| time(&Given { text: text.to_owned(), place: "--drain-timeout".to_owned() });
        assert_eq!(read("1500ms"), Ok(Some(Duration::from_millis(1500))));
        assert_eq!(read("2m"), Ok(Some(Duration::from_secs(120))));
        assert_eq!(read("off"), Ok(None));
        assert!(drain_timeout(None).unwrap() < Some(Duration::from_secs(30)));
        for bad in ["", "0", "20", "-3s", "never"] {
            let error = read(bad).unwrap_err().to_string();
            assert_eq!(
                error,
                format!("--drain-timeout: '{bad}' is not a time above 0, as in 5s or 100ms, or 'off' for no limit")
            );
        }
    }
}
