//! The settings of a queue and its scheduler, as a recording lists them: kernel names and units, one in each line.

use std::str::FromStr;

use blkmq_sched::{Description, KnobError, SCHEDULERS, Scheduler, Setting, Throttle};

use crate::TextError;
use crate::text::numbered_lines;

/// The files of Linux's `queue/` directory.
const QUEUE_ATTRIBUTES: &str = "add_random async_depth atomic_write_boundary_bytes atomic_write_max_bytes atomic_write_unit_max_bytes \
     atomic_write_unit_min_bytes chunk_sectors dax discard_granularity discard_max_bytes discard_max_hw_bytes \
     discard_zeroes_data dma_alignment fua hw_sector_size io_poll io_poll_delay io_timeout iostats \
     iostats_passthrough logical_block_size max_active_zones max_discard_segments max_hw_sectors_kb \
     max_integrity_segments max_open_zones max_sectors_kb max_segment_size max_segments minimum_io_size nomerges \
     nr_requests nr_zones optimal_io_size physical_block_size read_ahead_kb rotational rq_affinity scheduler \
     stable_writes throttle_sample_time virt_boundary_mask wbt_lat_usec write_cache write_same_max_bytes \
     write_zeroes_max_bytes write_zeroes_unmap_max_bytes write_zeroes_unmap_max_hw_bytes zone_append_max_bytes \
     zone_write_granularity zoned";

/// The parameters of Linux's null_blk, and the line that names the kernel.
const RECORDING_ATTRIBUTES: &str = "badblocks blocking blocksize bs cache_size completion_nsec discard fua gb home_node hw_queue_depth irqmode \
     kernel max_sectors mbps memory_backed no_sched nr_devices poll_queues queue_mode requeue shared_tag_bitmap \
     shared_tags size submit_queues timeout use_per_node_hctx virt_boundary";

fn is_attribute(name: &str) -> bool {
    [QUEUE_ATTRIBUTES, RECORDING_ATTRIBUTES].iter().any(|names| names.split(' ').any(|known| known == name))
}

/// The settings that a recording lists, with the changes of the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The scheduler that was active.
    scheduler: Entry,
    /// Every other setting, in the order of the file.
    entries: Vec<Entry>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    /// The place where the entry was set, for errors.
    place: String,
    name: String,
    value: String,
    /// Only a knob of the scheduler is accepted, because the command line said `iosched/`.
    knob_only: bool,
}

impl Settings {
    /// Reads lines of the form `NAME VALUE`. The line `scheduler` lists the schedulers with the active one in brackets.
    /// Empty lines and lines that start with `#` are skipped. `file` is the name that errors give the text.
    ///
    /// # Errors
    /// The line that is not of this form; or there is no line `scheduler`.
    pub fn parse(file: &str, text: &str) -> Result<Self, TextError> {
        let mut scheduler = None;
        let mut entries = Vec::new();
        for (number, line) in numbered_lines(text) {
            let fault = |what| TextError::in_line(file, number, what);
            let Some((name, value)) = line.split_once(char::is_whitespace) else {
                return Err(fault(format!("'{line}' is not of the form NAME VALUE, as in 'nr_requests 64'")));
            };
            let value = value.trim();
            if name == "scheduler" {
                scheduler = Some(active(value).ok_or_else(|| {
                    fault(format!("'{value}' does not say which scheduler is active, as 'none [mq-deadline]' does"))
                })?);
            } else {
                let place = format!("{file}: line {number}");
                entries.push(Entry { place, name: name.to_owned(), value: value.to_owned(), knob_only: false });
            }
        }
        let value = scheduler.ok_or_else(|| TextError {
            place: file.to_owned(),
            what: "there is no line 'scheduler', as in 'scheduler none [mq-deadline]'".to_owned(),
        })?;
        let (place, name) = (format!("{file}: scheduler"), "scheduler".to_owned());
        Ok(Self { scheduler: Entry { place, name, value, knob_only: false }, entries })
    }

    /// The scheduler that was active.
    #[must_use]
    pub fn scheduler(&self) -> &str {
        &self.scheduler.value
    }

    /// An error about the scheduler that was active.
    pub(crate) fn fault(&self, what: String) -> TextError {
        self.scheduler.fault(what)
    }

    /// Changes a setting: `NAME=VALUE` for the queue, `iosched/NAME=VALUE` for the scheduler.
    ///
    /// # Errors
    /// The word does not have this form. Whether there is such a setting is checked only when it is
    /// [applied](Self::apply).
    pub fn set(&mut self, text: &str) -> Result<(), TextError> {
        let place = format!("--set {text}");
        let (name, value) = assignment(text)?;
        let (name, knob_only) = name.strip_prefix("iosched/").map_or((name, false), |knob| (knob, true));
        let entry = Entry { place, name: name.to_owned(), value: value.to_owned(), knob_only };
        if name == "scheduler" && !knob_only {
            self.scheduler = entry;
        } else {
            self.entries.push(entry);
        }
        Ok(())
    }

    /// The setting of this name that holds, if any is given.
    fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().rfind(|entry| entry.name == name && !entry.knob_only)
    }

    /// The queue's `nr_requests`. The default is 256, which is Linux's default with a scheduler.
    ///
    /// # Errors
    /// The value is not a number from 1 to 65536.
    pub fn nr_requests(&self) -> Result<u32, TextError> {
        let Some(entry) = self.entry("nr_requests") else { return Ok(256) };
        let number = entry.value.parse().ok().filter(|value| (1..=65536).contains(value));
        number.ok_or_else(|| entry.fault(format!("nr_requests: '{}' is not a number from 1 to 65536", entry.value)))
    }

    /// A whole number that must be set.
    ///
    /// # Errors
    /// It is not set, or no whole number.
    pub(crate) fn number(&self, name: &str) -> Result<u64, TextError> {
        let entry = self.entry(name).ok_or_else(|| self.fault(format!("'{name}' is not set")))?;
        entry.number()
    }

    /// Whether the device is said to rotate. The default is that it does not.
    ///
    /// # Errors
    /// The value of `rotational` is neither 0 nor 1.
    pub fn is_rotational(&self) -> Result<bool, TextError> {
        let Some(entry) = self.entry("rotational") else { return Ok(false) };
        match entry.value.as_str() {
            "0" => Ok(false),
            "1" => Ok(true),
            other => Err(entry.fault(format!("rotational: '{other}' is neither 0 nor 1"))),
        }
    }

    /// Takes another scheduler than the one that was active. The knobs that only other schedulers have are dropped,
    /// unless the command line set them.
    pub fn use_scheduler(&mut self, name: &str) {
        self.scheduler =
            Entry { place: format!("--scheduler {name}"), value: name.to_owned(), ..self.scheduler.clone() };
        let has = |scheduler: &Description, knob: &str| scheduler.knobs.iter().any(|known| known.name == knob);
        self.entries.retain(|entry| {
            let is_of = |scheduler: &&Description| has(scheduler, &entry.name);
            let owners: Vec<_> = SCHEDULERS.iter().filter(is_of).map(|scheduler| scheduler.name).collect();
            owners.is_empty() || owners.contains(&name) || entry.place.starts_with("--set ")
        });
    }

    /// Sets the knobs of the scheduler, and of the control of its tokens if it takes tokens. Settings of the queue are
    /// accepted, and left to a caller that has a queue.
    ///
    /// # Errors
    /// A name that is neither a knob nor a setting of a queue, or a value outside its range.
    pub fn apply(&self, scheduler: &mut dyn Scheduler, mut throttle: Option<&mut Throttle>) -> Result<(), TextError> {
        scheduler.configure(Setting::NrRequests(self.nr_requests()?));
        for entry in &self.entries {
            let name = entry.name.as_str();
            let knobs = [scheduler.knobs(), throttle.as_ref().map_or(&[], |throttle| throttle.knobs())].concat();
            if knobs.iter().any(|knob| knob.name == name) {
                let set = set_knob(scheduler, throttle.as_deref_mut(), name, entry.number()?);
                set.map_err(|error| entry.fault(error.to_string()))?;
            } else if entry.knob_only || !is_attribute(name) {
                let accepted: Vec<&str> = knobs.iter().map(|knob| knob.name).collect();
                let kind = if entry.knob_only { "knob" } else { "setting" };
                let others =
                    if entry.knob_only { "" } else { ", the files of Linux's queue/, the parameters of null_blk" };
                return Err(entry.fault(format!(
                    "'{name}' is no {kind} of {}; accepted: {}{others}",
                    scheduler.name(),
                    accepted.join(", ")
                )));
            }
        }
        Ok(())
    }
}

/// Sets a knob of a scheduler, or of the control of its tokens.
pub(crate) fn set_knob(
    scheduler: &mut dyn Scheduler,
    throttle: Option<&mut Throttle>,
    name: &str,
    value: i64,
) -> Result<(), KnobError> {
    match (scheduler.set_knob(name, value), throttle) {
        (Err(KnobError::Unknown), Some(throttle)) => throttle.set_knob(name, value),
        (set, _) => set,
    }
}

/// Splits `NAME=VALUE`, in the form that the option `--set` takes.
///
/// # Errors
/// The text is not of this form.
pub fn assignment(text: &str) -> Result<(&str, &str), TextError> {
    text.split_once('=').filter(|(name, value)| !name.is_empty() && !value.is_empty()).ok_or_else(|| TextError {
        place: format!("--set {text}"),
        what: format!("'{text}' is not of the form NAME=VALUE, as in 'iosched/fifo_batch=16'"),
    })
}

impl Entry {
    fn number<T: FromStr>(&self) -> Result<T, TextError> {
        self.value.parse().map_err(|_| self.fault(format!("{}: '{}' is not a whole number", self.name, self.value)))
    }

    fn fault(&self, what: String) -> TextError {
        TextError { place: self.place.clone(), what }
    }
}

/// The word in brackets, or the only word there is.
fn active(list: &str) -> Option<String> {
    let mut bracketed = list.split_whitespace().filter_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    match (bracketed.next(), bracketed.next()) {
        (Some(name), None) if !name.is_empty() => Some(name.to_owned()),
        (None, _) if !list.contains(char::is_whitespace) && !list.is_empty() => Some(list.to_owned()),
        _ => None,
    }
}
