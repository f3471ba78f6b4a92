//! The knobs of the queue itself, by name, beside those of its scheduler.

use blkmq_sched::{Knob, KnobError, Unit};

use crate::control::Change;
use crate::queue::{
    CONTROL, IO_TIMEOUT, Locking, NR_REQUESTS, QueueError, RequestQueue, SCHEDULER_PREFIX, WBT_LAT_USEC,
    scheduler_names,
};
use blkmq_sync::atomic::Ordering;
use blkmq_sync::order;

/// The knobs of every queue whose value is a number. The value of `scheduler` and `locking` is a name, `iosched/...`
/// are the scheduler's knobs, and `size` is the device's.
pub const QUEUE_KNOBS: &[Knob] = &[
    NR_REQUESTS,
    choice(
        "nomerges",
        Some(0),
        2,
        "0 looks for every merge, 1 only for one with the request that was inserted last, 2 for none.",
    ),
    IO_TIMEOUT,
    choice("iostats", Some(1), 1, "Whether the statistics count the requests that enter from now on."),
    choice(
        "bypass",
        None,
        1,
        "Whether requests may pass the scheduler by while nothing waits; by default 1 under the locking combining.",
    ),
    WBT_LAT_USEC,
];

/// A knob with the values from 0 to `max`.
const fn choice(name: &'static str, default: Option<i64>, max: i64, about: &'static str) -> Knob {
    Knob { name, unit: Unit::Count, default, min: 0, max, about }
}

impl RequestQueue {
    /// The value of a knob as text. `scheduler` and `locking` show all names, with the chosen one in brackets. `size`,
    /// in sectors, can only be read.
    ///
    /// # Errors
    /// There is no such knob.
    pub fn knob(&self, name: &str) -> Result<String, QueueError> {
        match name {
            "scheduler" => Ok(marked(&scheduler_names(), self.scheduler())),
            "locking" => {
                let chosen = self.locking();
                // `staged` has several measures. The list shows one `staged`, with the chosen measures.
                let is_same = |known: &Locking| std::mem::discriminant(known) == std::mem::discriminant(&chosen);
                let names = Locking::ALL.map(|known| if is_same(&known) { chosen.name() } else { known.name() });
                Ok(marked(&names, chosen.name()))
            }
            "size" => Ok(self.limits().capacity_sectors.to_string()),
            "bypass" => Ok(u32::from(self.has_bypass()).to_string()),
            "wbt_lat_usec" => Ok(self.0.settings.shown_wbt_lat_usec().to_string()),
            _ => {
                let unknown = || self.unknown(name);
                let own = || self.0.domains.knob(&self.0, name.strip_prefix(SCHEDULER_PREFIX)?);
                let value = self.0.settings.number(name).map(i64::from).or_else(own);
                value.map(|value| value.to_string()).ok_or_else(unknown)
            }
        }
    }

    /// Sets a knob from text. The knob has its value when this returns.
    ///
    /// # Errors
    /// There is no such knob, the value does not suit it, or it is one of `scheduler`, `locking`, `bypass`,
    /// `nr_requests` and `wbt_lat_usec`, which need a drained queue and are changed by
    /// [`change_knob`](Self::change_knob). Nothing has changed then.
    pub fn set_knob(&self, name: &str, value: &str) -> Result<(), QueueError> {
        match name {
            "scheduler" | "locking" | "bypass" | "nr_requests" | "wbt_lat_usec" => {
                return Err(QueueError::NeedsDrain(name.to_owned()));
            }
            "size" => {
                return Err(QueueError::OfDevice(name.to_owned()));
            }
            _ => {}
        }
        let number = parse(name, value);
        if let Some(knob) = name.strip_prefix(SCHEDULER_PREFIX) {
            self.0.domains.knob(&self.0, knob).ok_or_else(|| self.unknown(name))?;
            return self.0.domains.set_knob(&self.0, knob, number?).map_err(|error| match error {
                KnobError::Unknown => self.unknown(name),
                error => QueueError::BadValue(error),
            });
        }
        let number = self.number(name, number)?;
        match name {
            "iostats" => self.0.set_iostats(number),
            "nomerges" => self.0.settings.set_number(name, number),
            _ => {
                debug_assert_eq!(name, "io_timeout", "each knob that needs no drained queue is set here");
                self.set_io_timeout(number)
            }
        }
        Ok(())
    }

    /// Begins to change a knob from text. For a knob that needs no drained queue the change has nothing to wait for:
    /// it is made already, and [`Change::poll`] and [`Change::wait`] return at once.
    ///
    /// `nr_requests` and `wbt_lat_usec` stay when the scheduler changes later. Without a scheduler, an `nr_requests`
    /// above the depth counts as the depth. Where no scheduler orders the whole queue, nothing is held back whatever
    /// `wbt_lat_usec` is. Whether requests pass the scheduler by stays when the locking changes.
    ///
    /// # Errors
    /// There is no such knob, or the value does not suit it. Nothing has changed then. When the change is made, it
    /// refuses what does not suit the scheduler: an `nr_requests` above the depth without one; the locking
    /// [`Staged`](Locking::Staged), whose buckets belong to one order of the whole queue, with one that orders each
    /// hardware queue by itself; and a `wbt_lat_usec` other than 0 without one that orders the whole queue.
    pub fn change_knob(&self, name: &str, value: &str) -> Result<Change, QueueError> {
        match name {
            "scheduler" => self.change_scheduler(value),
            "locking" => {
                let locking = value.parse()?;
                Ok(self.change(move |q| q.domains.set_locking(q, locking)))
            }
            "bypass" => {
                let bypass = self.number(name, parse(name, value))? != 0;
                Ok(self.change(move |q| {
                    q.domains.set_bypass(q, bypass);
                    Ok(())
                }))
            }
            "wbt_lat_usec" => {
                let usec = WBT_LAT_USEC.check(parse(name, value)?).map_err(QueueError::BadValue)?;
                Ok(self.change(move |q| q.domains.set_wbt_lat_usec(q, usec)))
            }
            "nr_requests" => {
                let nr_requests = self.number(name, parse(name, value))?;
                Ok(self.change(move |q| q.domains.set_nr_requests(q, nr_requests)))
            }
            _ => {
                self.set_knob(name, value)?;
                Ok(Change { q: self.clone(), freeze: None, apply: None, result: Ok(()) })
            }
        }
    }

    /// A number that suits one of the queue's own knobs.
    fn number(&self, name: &str, number: Result<i64, QueueError>) -> Result<u32, QueueError> {
        let knob = QUEUE_KNOBS.iter().find(|knob| knob.name == name).ok_or_else(|| self.unknown(name))?;
        let number = knob.check(number?).map_err(QueueError::BadValue)?;
        Ok(u32::try_from(number).expect("the ranges of these knobs lie within u32"))
    }

    /// The error for an unknown name; it lists the knobs that there are.
    fn unknown(&self, name: &str) -> QueueError {
        let mut known: Vec<_> = ["scheduler", "locking", "size"].map(str::to_owned).to_vec();
        known.extend(QUEUE_KNOBS.iter().map(|knob| knob.name.to_owned()));
        let own = self.0.domains.knobs(&self.0).into_iter().map(|knob| format!("{SCHEDULER_PREFIX}{knob}"));
        known.extend(own);
        QueueError::UnknownKnob { name: name.to_owned(), known, scheduler: self.scheduler() }
    }

    /// Moves the timeout scan to an earlier time. Otherwise the scan would come too late for requests issued under the
    /// new, shorter timeout.
    fn set_io_timeout(&self, ms: u32) {
        self.0.settings.set_number("io_timeout", ms);
        let next = self.clock().now().after(self.0.settings.timeout_ns());
        // Release publishes the new timeout to a thread that begins a scan that was due. Otherwise that thread would
        // plan the next scan by the old timeout.
        let release = order("timeout.set", Ordering::Release);
        if self.0.timeout_scan.fetch_min(next.0, release) > next.0 {
            self.0.wake_sleepers(CONTROL);
        }
    }
}

/// All names, with the chosen one in brackets.
fn marked(names: &[&str], chosen: &str) -> String {
    let mark = |name: &&str| if *name == chosen { format!("[{name}]") } else { (*name).to_owned() };
    names.iter().map(mark).collect::<Vec<_>>().join(" ")
}

fn parse(name: &str, value: &str) -> Result<i64, QueueError> {
    value.parse().map_err(|_| QueueError::NotANumber { knob: name.to_owned(), value: value.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::spec;

    /// Red if a knob that is set at once leaves a `Change` to be handled, or if one that needs a drained queue is left
    /// undone without a word.
    #[test]
    fn a_knob_is_set_when_set_knob_returns() {
        let q = RequestQueue::builder(spec::open("null").unwrap()).scheduler("mq-deadline").build().unwrap();
        assert_eq!(q.set_knob("nomerges", "2"), Ok(()));
        assert_eq!(q.set_knob("iosched/fifo_batch", "4"), Ok(()));
        assert_eq!((q.knob("nomerges").as_deref(), q.knob("iosched/fifo_batch").as_deref()), (Ok("2"), Ok("4")));
        for (name, value) in [("nr_requests", "8"), ("locking", "single"), ("bypass", "0"), ("scheduler", "none")] {
            let before = q.knob(name);
            assert_eq!(q.set_knob(name, value), Err(QueueError::NeedsDrain(name.to_owned())));
            assert_eq!(q.knob(name), before);
            q.change_knob(name, value).and_then(Change::wait).unwrap();
            assert_ne!(q.knob(name), before, "{name}");
        }
        assert_eq!(q.change_knob("nomerges", "1").unwrap().poll(), Some(Ok(())));
    }

    /// Red if the list leaves out a knob that there is, or the knob that was meant is not named.
    #[test]
    fn an_unknown_knob_is_answered_with_all_that_there_are_and_the_one_that_was_meant() {
        let q = RequestQueue::builder(spec::open("null").unwrap()).scheduler("mq-deadline").build().unwrap();
        let refused = |name: &str| {
            let told = q.knob(name).unwrap_err();
            assert_eq!(q.set_knob(name, "1").err(), Some(told.clone()), "{name}");
            told.to_string()
        };
        let all = "scheduler, locking, size, nr_requests, nomerges, io_timeout, iostats, bypass, wbt_lat_usec";
        let own = "iosched/read_expire, iosched/write_expire";
        let text = refused("fifo_batch");
        assert!(text.starts_with(&format!("unknown knob 'fifo_batch'; there are: {all}, {own}, ")), "{text}");
        assert!(text.ends_with("; for the scheduler's say 'iosched/fifo_batch'"), "{text}");
        let text = refused("iosched/slice");
        assert!(text.starts_with(&format!("unknown knob 'iosched/slice'; there are: {all}, {own}, ")), "{text}");
        let known = text.split(": ").nth(1).unwrap().split(", ");
        for name in known {
            assert!(q.knob(name).is_ok(), "{name}");
        }
        q.change_knob("scheduler", "none").and_then(|change| change.wait()).unwrap();
        for name in ["fifo_batch", "iosched/fifo_batch"] {
            let end = "; 'iosched/fifo_batch' belongs to mq-deadline, and the scheduler is none";
            assert_eq!(refused(name), format!("unknown knob '{name}'; there are: {all}{end}"));
        }
    }
}
