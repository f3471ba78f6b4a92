//! The options that a job obeys, and how each is read.

use blkmq::Class;

use super::draft::Draft;
use super::value::{Unit, Value, none_of};
use super::{HAS_NO, shown};
use crate::job::{BlockSize, Direction, Distribution, Operations, Order, RateProcess, Verify, Zone};

/// The most threads, and the most outstanding operations, of one job.
const MANY: u32 = 65536;

/// An option that a job obeys.
pub(super) struct Setting {
    pub(super) name: &'static str,
    /// Its other name, or "".
    alias: &'static str,
    pub(super) apply: fn(&mut Draft, Value<'_>) -> Result<(), String>,
}

/// The option of that name or other name.
pub(super) fn find(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| !name.is_empty() && (setting.name == name || setting.alias == name))
}

/// Every name, for suggestions.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    SETTINGS.iter().map(|setting| setting.name)
}

macro_rules! settings {
    ($($name:literal $(| $alias:literal)? : |$draft:ident, $value:ident| $apply:expr;)*) => {
        const SETTINGS: &[Setting] = &[$(Setting {
            name: $name,
            alias: concat!($($alias)?),
            apply: |$draft, $value| {
                $apply;
                Ok(())
            },
        }),*];
    };
}

settings! {
    "name": |draft, value| draft.job.name = value.text()?.to_owned();
    "description": |draft, value| draft.job.description = Some(value.text()?.to_owned());
    "filename": |draft, value| draft.job.files = filenames(value)?;
    "kb_base": |draft, value| draft.kilo = value.word(&[("1024", 1024), ("1000", 1000)])?;
    "numjobs": |draft, value| draft.job.numjobs = value.small(1..=MANY)?;
    "stonewall" | "wait_for_previous": |draft, value| draft.job.stonewall = value.flag()?;
    "new_group": |draft, value| draft.new_group = value.flag()?;
    "group_reporting": |draft, value| draft.job.group_reporting = value.flag()?;

    "rw" | "readwrite": |draft, value| rw(draft, value)?;
    "rwmixread": |draft, value| draft.read_percent = value.percent()?;
    "rwmixwrite": |draft, value| draft.read_percent = 100 - value.percent()?;
    "rw_sequencer": |_draft, value| rw_sequencer(value)?;
    "percentage_random": |draft, value| value.each(&mut draft.job.percentage_random, Value::percent)?;
    "random_distribution": |draft, value| draft.job.random_distribution = distribution(value)?;
    "norandommap": |draft, value| draft.job.norandommap = value.flag()?;
    "randseed": |draft, value| draft.seed = value.at_least(0)?;
    "randrepeat": |draft, value| draft.repeat = value.flag()?;
    "allrandrepeat": |draft, value| draft.repeat_all = value.flag()?;

    "bs" | "blocksize": |draft, value| value.each(&mut draft.job.bs, |value| value.at_least(1).map(BlockSize::Fixed))?;
    "bsrange" | "blocksize_range": |draft, value| bsrange(draft, value)?;
    "bssplit": |draft, value| value.each(&mut draft.job.bs, bssplit)?;
    "ba" | "blockalign": |draft, value| value.each(&mut draft.blockalign, |value| value.at_least(1).map(Some))?;
    "bs_unaligned" | "blocksize_unaligned": |draft, value| draft.job.bs_unaligned = value.flag()?;

    "size": |draft, value| draft.job.size = Some(value.extent()?);
    "filesize": |draft, value| draft.filesize = filesize(value)?;
    "offset" | "fileoffset": |draft, value| draft.job.offset = value.extent()?;
    "offset_increment": |draft, value| draft.job.offset_increment = value.extent()?;
    "offset_align": |draft, value| draft.job.offset_align = value.at_least(0)?;
    "io_size" | "io_limit": |draft, value| draft.job.io_size = Some(value.extent()?);
    "number_ios": |draft, value| draft.job.number_ios = Some(value.at_least(0)?).filter(|number| *number != 0);
    "loops": |draft, value| draft.job.loops = value.at_least(1)?;

    "ioengine": |draft, value| ioengine(draft, value)?;
    "iodepth": |draft, value| draft.job.iodepth = value.small(1..=MANY)?;
    "iodepth_batch" | "iodepth_batch_submit": |draft, value| draft.batch_submit = value.small(0..=MANY)?;
    "iodepth_batch_complete_min" | "iodepth_batch_complete":
        |draft, value| draft.batch_complete_min = value.small(0..=MANY)?;
    "iodepth_batch_complete_max": |draft, value| draft.batch_complete_max = value.small(0..=MANY)?;
    "iodepth_low": |draft, value| draft.depth_low = value.small(0..=MANY)?;
    "direct": |draft, value| draft.job.direct = value.flag()?;
    "buffered": |draft, value| draft.job.direct = !value.flag()?;
    "hipri": |draft, value| draft.job.hipri = value.flag()?;
    "fixedbufs": |draft, value| draft.job.fixedbufs = value.flag()?;
    "prioclass": |draft, value| draft.priority().class = class(value)?;
    "prio": |draft, value| draft.priority().level = value.small(0..=7)? as u8;
    "cmdprio_percentage": |draft, value| value.each(&mut draft.job.cmdprio_percentage, Value::percent)?;
    "cmdprio_class": |draft, value| value.each(&mut draft.cmdprio_class, class)?;
    "cmdprio": |draft, value| value.each(&mut draft.cmdprio, |value| Ok(value.small(0..=7)? as u8))?;

    "runtime" | "timeout": |draft, value|
        draft.job.runtime = Some(value.duration(Unit::Seconds)?).filter(|time| !time.is_zero());
    "time_based": |draft, value| draft.job.time_based = value.flag()?;
    "ramp_time": |draft, value| draft.job.ramp_time = value.duration(Unit::Seconds)?;
    "startdelay": |draft, value| draft.job.startdelay = value.range(|value| value.duration(Unit::Seconds))?;

    "rate": |draft, value| value.each(&mut draft.job.rate, rate)?;
    "rate_iops": |draft, value| value.each(&mut draft.job.rate_iops, rate)?;
    "rate_process": |draft, value|
        draft.job.rate_process = value.word(&[("linear", RateProcess::Linear), ("poisson", RateProcess::Poisson)])?;
    "rate_ignore_thinktime": |draft, value| draft.job.rate_ignore_thinktime = value.flag()?;
    "thinktime": |draft, value| draft.job.thinktime = value.duration(Unit::Microseconds)?;
    "thinktime_spin": |draft, value| draft.job.thinktime_spin = value.duration(Unit::Microseconds)?;
    "thinktime_blocks": |draft, value| draft.thinktime_blocks = Some(value.at_least(1)?);
    "thinktime_blocks_type": |draft, value|
        draft.job.thinktime_blocks_issue = value.word(&[("complete", false), ("issue", true)])?;
    "thinktime_iotime": |draft, value| draft.job.thinktime_iotime = value.duration(Unit::Seconds)?;

    "fsync": |draft, value| draft.job.fsync = value.small(0..=u32::MAX)?;
    "fdatasync": |draft, value| draft.job.fdatasync = value.small(0..=u32::MAX)?;
    "end_fsync": |draft, value| draft.job.end_fsync = value.flag()?;
    "fsync_on_close": |draft, value| draft.fsync_on_close = value.flag()?;
    "sync": |draft, value| draft.job.sync = value.word(SYNC)?;

    "verify": |draft, value| draft.job.verify = verify(value)?;
    "do_verify": |draft, value| draft.job.do_verify = value.flag()?;
    "verify_interval": |draft, value| draft.job.verify_interval = value.at_least(0)?;
    "verify_backlog": |draft, value| draft.job.verify_backlog = value.at_least(0)?;
    "verify_backlog_batch": |draft, value| draft.backlog_batch = value.at_least(0)?;
    "verify_fatal": |draft, value| draft.job.verify_fatal = value.flag()?;

    "gtod_reduce": |draft, value| draft.measure_none(value.flag()?);
    "disable_lat": |draft, value| draft.job.measure.lat = !value.flag()?;
    "disable_clat": |draft, value| draft.job.measure.clat = !value.flag()?;
    "disable_slat": |draft, value| draft.job.measure.slat = !value.flag()?;
    "clat_percentiles": |draft, value| draft.job.clat_percentiles = value.flag()?;
    "lat_percentiles": |draft, value| draft.job.lat_percentiles = value.flag()?;
    "slat_percentiles": |draft, value| draft.job.slat_percentiles = value.flag()?;
    "percentile_list": |draft, value| draft.job.percentile_list = percentiles(value)?;
}

/// Names of files, with colons between them. A colon behind a backslash belongs to a name.
fn filenames(value: Value<'_>) -> Result<Vec<String>, String> {
    let (mut names, mut name) = (Vec::new(), String::new());
    let mut rest = value.text()?.chars().peekable();
    while let Some(letter) = rest.next() {
        match letter {
            ':' => names.push(std::mem::take(&mut name)),
            '\\' if rest.next_if_eq(&':').is_some() => name.push(':'),
            letter => name.push(letter),
        }
    }
    names.push(name);
    Ok(names)
}

/// The words for `sync`, and whether each write is durable when it completes.
const SYNC: &[(&str, bool)] = &[("none", false), ("sync", true), ("dsync", true), ("0", false), ("1", true)];

/// The words for `rw`: what the job does, and whether at random places.
const RW: [(&str, (Operations, bool)); 11] = [
    ("read", (Operations::Only(Direction::Read), false)),
    ("write", (Operations::Only(Direction::Write), false)),
    ("trim", (Operations::Only(Direction::Trim), false)),
    ("rw", (Operations::ReadWrite { read_percent: 50 }, false)),
    ("readwrite", (Operations::ReadWrite { read_percent: 50 }, false)),
    ("trimwrite", (Operations::TrimWrite, false)),
    ("randread", (Operations::Only(Direction::Read), true)),
    ("randwrite", (Operations::Only(Direction::Write), true)),
    ("randtrim", (Operations::Only(Direction::Trim), true)),
    ("randrw", (Operations::ReadWrite { read_percent: 50 }, true)),
    ("randtrimwrite", (Operations::TrimWrite, true)),
];

fn rw(draft: &mut Draft, value: Value<'_>) -> Result<(), String> {
    let (word, suffix) = value.pair(':')?;
    let (operations, is_random) = word.word(&RW)?;
    draft.job.operations = operations;
    draft.job.order = if is_random {
        Order::Random { every: suffix.map_or(Ok(1), |every| every.small(1..=u32::MAX))? }
    } else {
        Order::Sequential { skip: suffix.map_or(Ok(0), Value::signed)? }
    };
    Ok(())
}

fn rw_sequencer(value: Value<'_>) -> Result<(), String> {
    match value.text()? {
        "sequential" => Ok(()),
        "identical" => Err(format!("{HAS_NO} 'rw_sequencer=identical'; leave it out")),
        other => Err(none_of(other, &["sequential"])),
    }
}

fn bsrange(draft: &mut Draft, value: Value<'_>) -> Result<(), String> {
    // The ranges of the directions are separated by a comma or a slash.
    let text = value.text()?.replace('/', ",");
    Value::new(Some(&text), draft.kilo).each(&mut draft.job.bs, |value| {
        let range = value.range(|value| value.at_least(1))?;
        Ok(if range.start() == range.end() { BlockSize::Fixed(*range.start()) } else { BlockSize::Range(range) })
    })
}

fn bssplit(value: Value<'_>) -> Result<BlockSize, String> {
    let parts = value.split(':')?.map(|part| {
        let (size, percent) = part.pair('/')?;
        Ok((size.at_least(1)?, given_percent(percent)?))
    });
    let parts = parts.collect::<Result<Vec<_>, String>>()?;
    let percents = share("percentages", parts.iter().map(|(_, percent)| *percent).collect())?;
    Ok(BlockSize::Split(parts.iter().map(|(size, _)| *size).zip(percents).collect()))
}

/// The percentage. `None` if it is left out.
fn given_percent(value: Option<Value<'_>>) -> Result<Option<u32>, String> {
    value.filter(|value| !value.is_empty()).map(Value::percent).transpose()
}

/// Divides the rest up to 100 evenly among the parts without a percentage. The first of these parts gets
/// the remainder.
fn share(what: &str, percents: Vec<Option<u32>>) -> Result<Vec<u32>, String> {
    let sum: u64 = percents.iter().flatten().map(|percent| u64::from(*percent)).sum();
    let missing = percents.iter().filter(|percent| percent.is_none()).count() as u32;
    if sum > 100 || sum < 100 && missing == 0 {
        return Err(format!("the {what} make {sum}, not 100"));
    }
    let rest = 100 - sum as u32;
    let mut extra = rest.checked_rem(missing).unwrap_or(0);
    Ok(percents
        .into_iter()
        .map(|percent| percent.unwrap_or_else(|| rest / missing + std::mem::take(&mut extra)))
        .collect())
}

fn distribution(value: Value<'_>) -> Result<Distribution, String> {
    let (word, parameter) = value.pair(':')?;
    let number = |default: f64, range| match parameter {
        Some(value) if value.text()?.contains(':') => {
            Err(format!("{HAS_NO} 'random_distribution' with a centre; leave out what follows the second colon"))
        }
        Some(value) => value.float(range),
        None => Ok(default),
    };
    match word.text()? {
        "random" => Ok(Distribution::Random),
        "zipf" => match number(1.1, f64::MIN_POSITIVE..=100.0)? {
            1.0 => Err("theta cannot be 1; use 0.99 or 1.01".to_owned()),
            theta => Ok(Distribution::Zipf { theta }),
        },
        "pareto" => match number(0.2, f64::MIN_POSITIVE..=1.0)? {
            1.0 => Err("the power must be less than 1".to_owned()),
            h => Ok(Distribution::Pareto { h }),
        },
        "normal" => Ok(Distribution::Normal { deviation: number(0.0, f64::MIN_POSITIVE..=100.0)? }),
        "zoned" => zones(parameter.ok_or("'zoned' needs zones, as in 'zoned:60/10:40/90'")?).map(Distribution::Zoned),
        "zoned_abs" => Err(format!("{HAS_NO} 'random_distribution=zoned_abs'; use 'zoned' with percentages")),
        other => Err(none_of(other, &["random", "zipf", "pareto", "normal", "zoned"])),
    }
}

fn zones(value: Value<'_>) -> Result<Vec<Zone>, String> {
    if value.text()?.contains(',') {
        return Err(format!("{HAS_NO} 'random_distribution' with zones for each direction; use one set for all"));
    }
    let parts = value.split(':')?.map(|part| {
        let (access, span) = part.pair('/')?;
        Ok((given_percent(Some(access))?, given_percent(span)?))
    });
    let (accesses, spans): (Vec<_>, Vec<_>) = parts.collect::<Result<Vec<_>, String>>()?.into_iter().unzip();
    let (accesses, spans) = (share("shares of access", accesses)?, share("shares of the area", spans)?);
    Ok(accesses.into_iter().zip(spans).map(|(access, span)| Zone { access, span }).collect())
}

fn filesize(value: Value<'_>) -> Result<Option<u64>, String> {
    let range = value.range(|value| value.at_least(0))?;
    if range.start() != range.end() {
        return Err(format!("{HAS_NO} 'filesize' with a range; give one size"));
    }
    Ok(Some(*range.start()).filter(|bytes| *bytes != 0))
}

fn ioengine(draft: &mut Draft, value: Value<'_>) -> Result<(), String> {
    const WAITS: [&str; 5] = ["sync", "psync", "vsync", "pvsync", "pvsync2"];
    const QUEUES: [&str; 4] = ["libaio", "io_uring", "posixaio", "null"];
    let name = value.text()?;
    if !WAITS.contains(&name) && !QUEUES.contains(&name) {
        // In the lenient mode these values are used instead.
        (draft.job.ioengine, draft.waits) = ("libaio".to_owned(), false);
        let accepted = [&QUEUES[..], &WAITS[..]].concat().join(", ");
        return Err(format!("{HAS_NO} engine '{}'; accepted: {accepted}", shown(name)));
    }
    (draft.job.ioengine, draft.waits) = (name.to_owned(), WAITS.contains(&name));
    Ok(())
}

fn class(value: Value<'_>) -> Result<Class, String> {
    Ok(match value.small(0..=3)? {
        1 => Class::RealTime,
        3 => Class::Idle,
        _ => Class::BestEffort,
    })
}

/// Reads a rate. A rate of 0 means no rate.
fn rate(value: Value<'_>) -> Result<Option<u64>, String> {
    value.at_least(0).map(|rate| Some(rate).filter(|rate| *rate != 0))
}

fn verify(value: Value<'_>) -> Result<Option<Verify>, String> {
    match value.text()? {
        "0" => Ok(None),
        "crc32c" | "crc32c-intel" => Ok(Some(Verify::Crc32c)),
        other => Err(format!("{HAS_NO} 'verify={}'; use verify=crc32c", shown(other))),
    }
}

fn percentiles(value: Value<'_>) -> Result<Vec<f64>, String> {
    let mut list = value.split(':')?.map(|value| value.float(0.0..=100.0)).collect::<Result<Vec<_>, _>>()?;
    if list.len() > 20 {
        return Err(format!("{} percentiles are more than 20", list.len()));
    }
    list.sort_by(f64::total_cmp);
    list.dedup();
    list.retain(|percentile| *percentile > 0.0);
    Ok(list)
}
