//! Reports when the health of a served device changes.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use blkmq::RequestQueue;
use blkmq::driver::Health;

/// How often devices are checked. Clients learn of a change from their requests.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A thread that checks devices until this value is dropped, and then once more.
#[derive(Debug)]
pub(super) struct Watch {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Checks the devices of these queues. Each comes with the name that commands use. `say` is called for each change,
    /// with one line.
    pub(super) fn start(queues: Vec<(String, RequestQueue)>, say: impl Fn(&str) + Send + 'static) -> io::Result<Self> {
        let (end, ended) = mpsc::channel();
        let mut reported = vec![Health::Good; queues.len()];
        let mut look = move || {
            for ((name, q), reported) in queues.iter().zip(&mut reported) {
                let health = q.driver().health();
                if *reported != health {
                    say(&line(name, &health));
                    *reported = health;
                }
            }
        };
        let watch = move || {
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(LOOK_EVERY) {
                look();
            }
            look();
        };
        let thread = Some(thread::Builder::new().name("health".to_owned()).spawn(watch)?);
        Ok(Self { end: Some(end), thread })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            // If the thread has panicked, it has reported that.
            let _ = thread.join();
        }
    }
}

/// The line about a device that has this health from now on.
fn line(name: &str, health: &Health) -> String {
    let trouble = health.trouble().map(|text| format!(": {text}")).unwrap_or_default();
    let state = match health {
        Health::Good => "is well again",
        Health::Away(_) => "is away",
        Health::Orphaned(_) => "is orphaned",
        _ => "has failed",
    };
    format!("the device of queue '{name}' {state}{trouble}")
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use blkmq::driver::{Batch, Driver, Topology};
    use blkmq::{Limits, Status, Time};

    use std::sync::Arc;

    use super::*;

    #[derive(Debug)]
    struct Ailing(Mutex<Health>);

    impl Driver for Ailing {
        fn name(&self) -> &'static str {
            "ailing"
        }

        fn limits(&self) -> Limits {
            Limits { capacity_sectors: 8, ..Limits::default() }
        }

        fn health(&self) -> Health {
            self.0.lock().unwrap().clone()
        }

        fn topology(&self) -> Topology {
            Topology::new(1, 1)
        }

        fn queue_rqs(&self, _hctx: u16, batch: &mut Batch<'_>, _now: Time) {
            batch.finish_all(Status::Ok);
        }
    }

    /// Red if a change is not reported, or if something that has not changed is reported again.
    #[test]
    fn each_change_is_reported_once() {
        let (report, reported) = mpsc::channel();
        let device = Arc::new(Ailing(Mutex::default()));
        let q = RequestQueue::builder(Arc::clone(&device) as Arc<dyn Driver>).build().unwrap();
        let watch = Watch::start(vec![("a".to_owned(), q)], move |line| report.send(line.to_owned()).unwrap()).unwrap();
        for (health, line) in [
            (Health::Away("nobody answers".to_owned()), "the device of queue 'a' is away: nobody answers"),
            (Health::Good, "the device of queue 'a' is well again"),
        ] {
            *device.0.lock().unwrap() = health;
            assert_eq!(reported.recv().unwrap(), line);
        }
        *device.0.lock().unwrap() = Health::Failed("it broke".to_owned());
        drop(watch);
        let rest: Vec<String> = reported.iter().collect();
        assert_eq!(
            rest,
            ["the device of queue 'a' has failed: it broke"],
            "it is reported though the end comes at once"
        );
    }
}
