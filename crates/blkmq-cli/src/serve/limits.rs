//! How long the server waits for clients, and how much memory they may have.

use std::time::Duration;

use blkmq::driver::spec::{Accepts, Value};
use blkmq_workbench::TextError;

use super::given::Given;
use crate::bench;

/// How long a server that ends waits for its clients: less than the limits of systemd (90 seconds) and of Kubernetes
/// (30 seconds).
const DRAIN: Duration = Duration::from_secs(20);
/// How long a client may take nothing of what waits for it. A machine that is paused for a moment must still find its
/// disk afterwards.
const STALL: Duration = Duration::from_secs(300);

/// Reads a time. `off` means no limit.
fn time(given: &Given) -> Result<Option<Duration>, TextError> {
    if given.text == "off" {
        return Ok(None);
    }
    bench::duration(&given.text).map(Some).map_err(|what| given.fault(format!("{what}, or 'off' for no limit")))
}

/// How long the server waits for clients when it ends. `None`: without a limit.
pub(super) fn drain_timeout(given: Option<&Given>) -> Result<Option<Duration>, TextError> {
    given.map_or(Ok(Some(DRAIN)), time)
}

/// How long a client may take nothing of its replies. `None`: without a limit.
pub(super) fn stall_timeout(given: Option<&Given>) -> Result<Option<Duration>, TextError> {
    given.map_or(Ok(Some(STALL)), time)
}

/// Reads bytes of memory, as in `500M`.
pub(super) fn memory(given: &Given) -> Result<usize, TextError> {
    let size = Accepts::Size { unit: 1, min: 0, max: usize::MAX as u64 };
    match size.parse(&given.text.to_ascii_uppercase()) {
        Ok(Value::Number(bytes)) => Ok(bytes as usize),
        _ => Err(given.fault(format!("'{}' is not a number of bytes, as in 500M or 4G", given.text))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_a_number_of_bytes() {
        let read = |text: &str| memory(&Given { text: text.to_owned(), place: "--memory".to_owned() });
        assert_eq!([read("4096"), read("500M"), read("4g")], [Ok(4096), Ok(500 << 20), Ok(4 << 30)]);
        for bad in ["", "M", "1.5G", "-1", "4GiB", "99999999T"] {
            let error = read(bad).unwrap_err().to_string();
            assert_eq!(error, format!("--memory: '{bad}' is not a number of bytes, as in 500M or 4G"));
        }
    }

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
