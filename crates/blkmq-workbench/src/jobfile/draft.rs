//! A job whose options are being read, and the job that results from all of its options together.

use std::collections::BTreeMap;

use blkmq::{Class, IoPriority};

use crate::TextError;
use crate::job::{BlockSize, ByDirection, Direction, Distribution, Extent, Job, Measure, Operations};

with_defaults! {
/// The options of a job that were read so far. Options that have a meaning by themselves go into `job`. The others wait
/// for [`settle`](Draft::settle).
#[derive(Debug, Clone)]
pub(super) struct Draft {
    pub(super) job: Job = Job::new(""),
    /// The factor that `k` stands for.
    pub(super) kilo: u64 = 1024,
    /// How many percent of a mixture are reads.
    pub(super) read_percent: u32 = 50,
    pub(super) new_group: bool = false,
    pub(super) seed: u64 = Job::SEED,
    pub(super) repeat: bool = true,
    pub(super) repeat_all: bool = false,
    pub(super) blockalign: ByDirection<Option<u64>> = ByDirection::all(None),
    pub(super) filesize: Option<u64> = None,
    /// Whether the engine waits for each operation.
    pub(super) waits: bool = true,
    /// 0 stands for `iodepth`.
    pub(super) batch_submit: u32 = 1,
    pub(super) batch_complete_min: u32 = 1,
    /// 0 stands for the minimum.
    pub(super) batch_complete_max: u32 = 0,
    /// 0 stands for `iodepth`.
    pub(super) depth_low: u32 = 0,
    pub(super) cmdprio_class: ByDirection<Class> = ByDirection::all(Class::RealTime),
    pub(super) cmdprio: ByDirection<u8> = ByDirection::all(0),
    pub(super) thinktime_blocks: Option<u64> = None,
    pub(super) fsync_on_close: bool = false,
    /// 0 stands for `verify_backlog`.
    pub(super) backlog_batch: u64 = 0,
    /// The place where each option was last given, in a global section or in the job's own.
    places: BTreeMap<&'static str, String> = BTreeMap::new(),
}
}

impl Draft {
    /// A draft for a section that follows these global options.
    pub(super) fn section(&self, name: &str) -> Self {
        let mut draft = self.clone();
        draft.job.options.clear();
        // As with fio, a `name` in a global section is ignored.
        name.clone_into(&mut draft.job.name);
        draft
    }

    /// Notes that an option was given.
    pub(super) fn record(&mut self, name: &'static str, place: &str, text: Option<&str>) {
        self.places.insert(name, place.to_owned());
        if name == "name" {
            return;
        }
        // fio's reports leave out options without a value.
        if let Some(text) = text {
            self.job.options.retain(|(other, _)| other != name);
            self.job.options.push((name.to_owned(), text.to_owned()));
        }
    }

    /// The options that were given.
    pub(super) fn given(self) -> Vec<(String, String)> {
        self.job.options
    }

    /// The job's priority, at first level 0 of the best-effort class.
    pub(super) fn priority(&mut self) -> &mut IoPriority {
        self.job.priority.get_or_insert(IoPriority { class: Class::BestEffort, level: 0 })
    }

    pub(super) fn measure_none(&mut self, none: bool) {
        self.job.measure = Measure { lat: !none, clat: !none, slat: !none };
    }

    /// Reports an option that has no effect because another option is missing. `section` is the place of the job's
    /// section. Called after everything was read, overrides included.
    pub(super) fn note(&self, section: &str) -> Option<TextError> {
        let Job { iodepth, ioengine, .. } = &self.job;
        if !self.waits || *iodepth == 1 {
            return None;
        }
        let engine = if self.places.contains_key("ioengine") {
            format!("the engine '{ioengine}'")
        } else {
            format!("'{ioengine}', fio's engine where the file names none,")
        };
        let what = format!(
            "option 'iodepth': {iodepth} has no effect, the job has 1 operation outstanding: {engine} waits for each one; \
             write 'ioengine=libaio' for {iodepth}"
        );
        Some(TextError { place: self.place("iodepth", section), what })
    }

    /// The place where an option was given. `section` if it was not given.
    fn place(&self, name: &str, section: &str) -> String {
        self.places.get(name).map_or(section, String::as_str).to_owned()
    }

    /// The job that results from all options together. `section` is the place of its section.
    pub(super) fn settle(mut self, section: &str) -> Result<Job, TextError> {
        self.check(section)?;
        self.settle_access();
        self.settle_depth();
        let job = &mut self.job;
        job.seed = (self.repeat || self.repeat_all).then_some(self.seed);
        for direction in Direction::ALL {
            let (class, level) = (self.cmdprio_class[direction], self.cmdprio[direction]);
            job.cmdprio[direction] = IoPriority { class, level };
        }
        // Pauses by time switch off pauses by count, unless both are asked for.
        let by_count = if job.thinktime_iotime.is_zero() { 1 } else { u64::MAX };
        job.thinktime_blocks = self.thinktime_blocks.unwrap_or(by_count);
        job.thinktime_spin = job.thinktime_spin.min(job.thinktime);
        job.end_fsync |= self.fsync_on_close;
        job.verify_backlog_batch = if self.backlog_batch == 0 { job.verify_backlog } else { self.backlog_batch };
        Ok(self.job)
    }

    fn settle_access(&mut self) {
        let job = &mut self.job;
        if let Operations::ReadWrite { read_percent } = &mut job.operations {
            *read_percent = self.read_percent;
        }
        for direction in Direction::ALL {
            job.norandommap |= self.blockalign[direction].is_some();
            job.blockalign[direction] = self.blockalign[direction].unwrap_or(*job.bs[direction].bounds().start());
        }
        job.norandommap |= job.random_distribution != Distribution::Random;
        job.size = job.size.filter(|size| !matches!(size, Extent::Bytes(0)));
        if let Some(filesize) = self.filesize {
            job.size = match job.size {
                Some(Extent::Bytes(size)) => Some(Extent::Bytes(size.min(filesize))),
                _ => Some(Extent::Bytes(filesize)),
            };
        }
        job.io_size = job.io_size.filter(|size| !matches!(size, Extent::Bytes(0)));
    }

    fn settle_depth(&mut self) {
        let job = &mut self.job;
        if self.waits {
            job.iodepth = 1;
        }
        let up_to_depth = |value: u32| if value == 0 { job.iodepth } else { value.min(job.iodepth) };
        job.iodepth_batch_submit = up_to_depth(self.batch_submit);
        job.iodepth_low = up_to_depth(self.depth_low);
        job.iodepth_batch_complete_min = self.batch_complete_min.min(job.iodepth);
        job.iodepth_batch_complete_max =
            self.batch_complete_max.clamp(job.iodepth_batch_complete_min.max(1), job.iodepth);
    }

    /// Refuses combinations of options that make no sense.
    fn check(&self, section: &str) -> Result<(), TextError> {
        let fault = |name: &str, what: String| {
            Err(TextError { place: self.place(name, section), what: format!("option '{name}': {what}") })
        };
        let job = &self.job;
        if job.time_based && job.runtime.is_none() {
            return fault("time_based", "there is no runtime; give one, as in 'runtime=30s'".to_owned());
        }
        if Direction::ALL.iter().any(|direction| job.rate[*direction].is_some() && job.rate_iops[*direction].is_some())
        {
            return fault("rate_iops", "there is a rate too; give one of them".to_owned());
        }
        let interval = job.verify_interval;
        let odd = |bytes: &u64| interval != 0 && !bytes.is_multiple_of(interval);
        if let Some(bytes) = Direction::ALL.iter().flat_map(|direction| units(&job.bs[*direction])).find(odd) {
            return fault("verify_interval", format!("{interval} does not divide the block size {bytes}"));
        }
        Ok(())
    }
}

/// Sizes such that each length is a multiple of one of them.
fn units(bs: &BlockSize) -> Vec<u64> {
    match bs {
        BlockSize::Split(parts) => parts.iter().map(|(bytes, _)| *bytes).collect(),
        BlockSize::Fixed(_) | BlockSize::Range(_) => vec![*bs.bounds().start()],
    }
}
