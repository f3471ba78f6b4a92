//! The knobs of the queue itself, by name, beside those of its scheduler.

use std::time::Duration;

use blkmq_sched::{Knob, KnobError, MergeLevel, Unit};

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
        "Whether requests may bypass the scheduler while nothing waits; by default 1 under the locking combining.",
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

    /// Sets a knob from text, as operators give it. The knob has its value when this returns. Programs call
    /// [`set_io_timeout`](Self::set_io_timeout) and the like, which take values and do the same.
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
            return self.set_scheduler_knob(knob, number?);
        }
        let number = self.number(name, number)?;
        match name {
            "iostats" => self.set_iostats(number != 0),
            "nomerges" => self.0.settings.set_number(name, number),
            _ => {
                debug_assert_eq!(name, "io_timeout", "each knob that needs no drained queue is set here");
                self.set_io_timeout_ms(number)
            }
        }
        Ok(())
    }

    /// Sets a knob of the scheduler, for example `read_expire`; [`set_knob`](Self::set_knob) has it as
    /// `iosched/read_expire`.
    ///
    /// # Errors
    /// The scheduler has no such knob, or the value does not suit it. Nothing has changed then.
    pub fn set_scheduler_knob(&self, knob: &str, value: i64) -> Result<(), QueueError> {
        self.0.domains.set_knob(&self.0, knob, value).map_err(|error| match error {
            KnobError::Unknown => self.unknown(&format!("{SCHEDULER_PREFIX}{knob}")),
            error => QueueError::BadValue(error),
        })
    }

    /// Sets which merges are looked for: the knob `nomerges`.
    pub fn set_merge_level(&self, level: MergeLevel) {
        self.0.settings.set_merge_level(level);
    }

    /// Sets whether the statistics count the requests that enter from now on: the knob `iostats`.
    pub fn set_iostats(&self, is_on: bool) {
        self.0.set_iostats(is_on.into());
    }

    /// Sets how long the driver may keep a request before it is asked about it, in whole milliseconds: the knob
    /// `io_timeout`.
    ///
    /// # Errors
    /// The time is shorter than a millisecond, or longer than the knob can have.
    pub fn set_io_timeout(&self, timeout: Duration) -> Result<(), QueueError> {
        let ms = i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX);
        self.set_io_timeout_ms(self.number("io_timeout", Ok(ms))?);
        Ok(())
    }

    /// Begins to change how many requests each hardware queue may have, queued and with the driver: the knob
    /// `nr_requests`. The number stays when the scheduler changes later. Without a scheduler, a number above the depth
    /// that was set before acts as the depth.
    ///
    /// # Errors
    /// The number is out of range. When the change is made, it refuses a number above the depth if there is no
    /// scheduler.
    pub fn change_nr_requests(&self, nr_requests: u32) -> Result<Change, QueueError> {
        let nr_requests = self.number("nr_requests", Ok(nr_requests.into()))?;
        Ok(self.change(move |q| q.domains.set_nr_requests(q, nr_requests)))
    }

    /// Begins to change the locking: the knob `locking`. The change is refused, when it is made, for
    /// [`Staged`](Locking::Staged), whose buckets belong to one order of the whole queue, with a scheduler that orders
    /// each hardware queue by itself.
    pub fn change_locking(&self, locking: Locking) -> Change {
        self.change(move |q| q.domains.set_locking(q, locking))
    }

    /// Begins to change whether requests may bypass the scheduler while nothing waits: the knob `bypass`. It stays when
    /// the locking changes.
    pub fn change_bypass(&self, bypass: bool) -> Change {
        self.change(move |q| {
            q.domains.set_bypass(q, bypass);
            Ok(())
        })
    }

    /// Begins to change the latency target of the in-flight limiter, in microseconds: the knob `wbt_lat_usec`; see
    /// [`Builder::wbt_lat_usec`](crate::Builder::wbt_lat_usec). The target stays when the scheduler changes later.
    ///
    /// # Errors
    /// The value is out of range. When the change is made, it refuses a value other than 0 without a scheduler that
    /// orders the whole queue.
    pub fn change_wbt_lat_usec(&self, usec: i64) -> Result<Change, QueueError> {
        let usec = WBT_LAT_USEC.check(usec).map_err(QueueError::BadValue)?;
        Ok(self.change(move |q| q.domains.set_wbt_lat_usec(q, usec)))
    }

    /// Begins to change a knob from text. For a knob that needs no drained queue the change has nothing to wait for:
    /// it is made already, and [`Change::poll`] and [`Change::wait`] return at once.
    ///
    /// Programs call [`change_nr_requests`](Self::change_nr_requests) and the like, which take values and do the same.
    ///
    /// # Errors
    /// There is no such knob, or the value does not suit it. Nothing has changed then. When the change is made, it
    /// refuses what does not suit the scheduler.
    pub fn change_knob(&self, name: &str, value: &str) -> Result<Change, QueueError> {
        match name {
            "scheduler" => self.change_scheduler(value),
            "locking" => Ok(self.change_locking(value.parse()?)),
            "bypass" => Ok(self.change_bypass(self.number(name, parse(name, value))? != 0)),
            "wbt_lat_usec" => self.change_wbt_lat_usec(parse(name, value)?),
            "nr_requests" => self.change_nr_requests(self.number(name, parse(name, value))?),
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
    fn set_io_timeout_ms(&self, ms: u32) {
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

    /// Red if a knob set by value differs from the same knob set by text, or is not checked as by text.
    #[test]
    fn a_knob_by_value_is_the_knob_by_text() {
        let q = RequestQueue::builder(spec::open("null").unwrap()).scheduler("mq-deadline").build().unwrap();
        q.set_merge_level(MergeLevel::Never);
        q.set_iostats(false);
        q.set_io_timeout(Duration::from_secs(7)).unwrap();
        q.set_scheduler_knob("fifo_batch", 3).unwrap();
        q.change_nr_requests(48).and_then(Change::wait).unwrap();
        q.change_locking(Locking::Single).wait().unwrap();
        q.change_bypass(false).wait().unwrap();
        q.change_wbt_lat_usec(500).and_then(Change::wait).unwrap();
        let shown = |name| q.knob(name).unwrap();
        assert_eq!(["nomerges", "iostats", "io_timeout", "iosched/fifo_batch"].map(shown), ["2", "0", "7000", "3"]);
        assert_eq!(["nr_requests", "bypass", "wbt_lat_usec"].map(shown), ["48", "0", "500"]);
        assert!(shown("locking").contains("[single]"));
        let by_text = |name, value: &str| q.change_knob(name, value).err();
        assert_eq!(q.change_nr_requests(0).err(), by_text("nr_requests", "0"));
        assert_eq!(q.set_io_timeout(Duration::ZERO).err(), by_text("io_timeout", "0"));
        assert_eq!(q.change_wbt_lat_usec(-2).err(), by_text("wbt_lat_usec", "-2"));
        assert_eq!(q.set_scheduler_knob("slice", 1).err(), q.knob("iosched/slice").err());
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
