//! The job files of published measurements, those that come with fio, and random ones that fio itself judges.
//!
//! The random test prints its seed and takes another from `BLKMQ_SEED`, its length from `BLKMQ_CASES`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use blkmq_workbench::bench::{Bench, ClockKind, Control, Setup};
use blkmq_workbench::job::{BlockSize, ByDirection, Direction, Extent, Measure, Operations, Order};
use blkmq_workbench::{Job, JobFile, Mode, Surroundings, System};
use proptest::prelude::*;
use proptest::test_runner::Config;

use crate::bench_options::{MS, batched};
use crate::input::runner;

/// The machine that the tests run on, with the variables that two of fio's examples need.
struct Examples;

impl Surroundings for Examples {
    fn variable(&self, name: &str) -> Option<String> {
        let variables = [("FIO_RW", "randread"), ("FIO_IODEPTH", "4"), ("FIO_BS", "4k")];
        variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    }

    fn keyword(&self, name: &str) -> Option<u64> {
        System.keyword(name)
    }

    fn include(&self, file: &str, path: &str) -> std::io::Result<(String, String)> {
        System.include(file, path)
    }
}

/// Where Debian's package fio-examples puts its files.
const EXAMPLES: &str = "/usr/share/doc/fio/examples";

#[test]
fn published_jobs_are_understood() {
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    let job = |name, numjobs, runtime| {
        let base = Job { numjobs, group_reporting: true, direct: true, time_based: true, ..Job::new(name) };
        Job { runtime: seconds(runtime), ..base }
    };
    let at_random = |job| Job { order: Order::Random { every: 1 }, ..job };
    let writes = |job| Job { operations: Operations::Only(Direction::Write), ..job };
    let unmeasured = |job| Job { measure: Measure { lat: false, clat: false, slat: false }, ..job };
    let deep = |iodepth, batch, job| Job { ioengine: "io_uring".to_owned(), ..batched(iodepth, batch, job) };
    let scaling = Job {
        norandommap: true,
        bs: ByDirection::all(BlockSize::Fixed(512)),
        blockalign: ByDirection::all(512),
        fixedbufs: true,
        ..deep(4, 4, unmeasured(at_random(job("scaletest", 32, 60))))
    };
    let batch = deep(32, 8, writes(at_random(job("test", 16, 30))));
    let accounting = Job { norandommap: true, ..unmeasured(at_random(job("stats", 32, 30))) };
    let merging = Job {
        size: Some(Extent::Bytes(1 << 30)),
        offset_increment: Extent::Bytes(2 << 30),
        ..deep(32, 1, writes(job("seqwrite", 64, 30)))
    };
    for (name, expected, without_effect) in [
        ("scaling-32x4.fio", scaling, &["invalidate", "thread"][..]),
        ("batch-16x32.fio", batch, &[]),
        ("accounting-32.fio", accounting, &["thread"]),
        ("merge-64x32.fio", merging, &[]),
    ] {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("jobs").join(name);
        let text = fs::read_to_string(&path).expect("the job is in the repository");
        let mut file = JobFile::parse(name, &text, &[], Mode::Strict, &System).expect("the job is understood");
        file.jobs[0].options.clear();
        assert_eq!((file.jobs, file.warnings.len()), (vec![expected], 0), "{name}");
        assert_eq!(file.without_effect, without_effect, "{name}");
    }
}

/// A device that is large enough for all of them, and so slow that little data moves in the time of each.
const LARGE: &str = "null,memory_backed=1,discard=1,irqmode=2,completion_nsec=1ms,hw_queue_depth=4,size=4T";

/// Red if a file is not accepted as `data/fio-examples.txt` says, is refused for another reason, or does not run.
#[test]
fn examples_of_fio() {
    let Ok(folder) = fs::read_dir(EXAMPLES) else {
        println!("SKIP there are no job files in {EXAMPLES}; scripts/tools fio-examples installs them");
        return;
    };
    let mut files: Vec<PathBuf> = folder.map(|entry| entry.expect("the folder can be read").path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "fio"));
    files.sort();
    let setup = Setup { clock: ClockKind::Virtual, ..Setup::new(LARGE) };
    let control = Control { runtime: Some(10 * MS), ..Control::default() };
    let mut found = Vec::new();
    for path in &files {
        let name = path.file_name().and_then(|name| name.to_str()).expect("the names are plain");
        let bytes = fs::read(path).expect("the file can be read");
        let text = String::from_utf8_lossy(&bytes);
        let refusal = match JobFile::parse(name, &text, &["ramp_time=0"], Mode::Strict, &Examples) {
            Ok(file) => {
                let outcome = Bench::new(&file.jobs, &setup).and_then(|mut bench| bench.run(&control));
                let outcome = outcome.unwrap_or_else(|error| panic!("{name}: {error}"));
                assert_eq!(outcome.error(), None, "{name}");
                assert!(outcome.layer.requests > 0, "{name} did nothing");
                String::new()
            }
            Err(error) => {
                let error = error.to_string();
                assert!(error.starts_with(&format!("{name}: line ")), "{error}");
                // The first name in quotes is what blkmq lacks.
                error.split('\'').nth(1).unwrap_or_else(|| panic!("{error}")).to_owned()
            }
        };
        found.push((name.to_owned(), refusal));
    }
    let lines = include_str!("../data/fio-examples.txt").lines().filter(|line| !line.starts_with('#'));
    let verdicts: BTreeMap<&str, &str> = lines.map(|line| line.split_once(' ').unwrap_or((line, ""))).collect();
    found.retain(|(name, _)| verdicts.contains_key(&**name));
    assert!(found.len() * 10 > verdicts.len() * 9, "only {} of the files are there", found.len());
    for (name, refusal) in found {
        assert_eq!(verdicts[&*name], refusal, "{name}");
    }
}

fn fio_accepts(job: &Path) -> bool {
    let status = Command::new("fio").arg("--parse-only").arg(job).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.expect("fio can be started").success()
}

/// A line of a job: names and values that fio's manual allows, and some that it does not.
fn any_line() -> impl Strategy<Value = String> {
    const LINES: &[&str] = &[
        "rw=(rand)?(read|write|trim|rw)(:[1-9])?",
        "rw=(trimwrite|readwrite|write:4k|read:-8k)",
        "rwmix(read|write)=[0-9]{1,3}",
        "(bs|blocksize)=(512|[1-9]k|1m|4kib|0x1000|[0-9]{1,4})(,(4k|8k)?){0,3}",
        "(bsrange|blocksize_range)=[1-9]k(-|:)[0-9]k?(,[1-9]k-16k)?",
        "bssplit=4k/[0-9]{1,2}:8k/[0-9]{0,2}(:16k/?)?",
        "(ba|blockalign)=(4k|512)(,8k)?",
        "(size|io_size|offset|offset_increment)=([0-9]{1,3}%|[0-9]{1,5}[kmgtpbKMG]?|[1-9](mib|kb))",
        "(number_ios|loops|numjobs|fsync|fdatasync)=[0-9]{1,3}k?",
        "(iodepth|iodepth_batch|iodepth_batch_submit|iodepth_batch_complete_min|iodepth_low)=[0-9]{1,3}",
        "iodepth_batch_complete(_max)?=[0-9]{1,2}",
        "ioengine=(psync|sync|libaio|null|posixaio|io_uring|pvsync|nosuch)",
        "(runtime|timeout|ramp_time)=[0-9]{1,4}(s|m|h|d|ms|us|sec|msec|usec)?",
        "startdelay=[0-9]{1,2}(s|ms)?(-[0-9]{1,2})?",
        "thinktime(_spin|_iotime)?=[0-9]{1,4}(us|ms|s)?",
        "thinktime_blocks(_type)?=([1-9]|issue|complete)",
        "rate=([1-9]m)?(,[1-9]00k){0,2}",
        "rate_iops=[1-9]0{1,3}(,5)?",
        "rate_process=(linear|poisson|even)",
        "(prio|prioclass)=[0-9]",
        "(randrepeat|allrandrepeat|do_verify|verify_fatal|disable_lat|disable_clat|gtod_reduce)=[0-2]",
        "(norandommap|group_reporting|stonewall|new_group|thread|time_based)(=[01])?",
        "randseed=(0x)?[0-9]{1,9}",
        "percentage_random=[0-9]{1,3}(,50)?",
        "random_distribution=(random|zipf|zipf:1.2|pareto:0.[0-9]|normal:[0-9]{1,3}|zoned:60/10:40/90|zoned:50/5:50/)",
        "verify=(crc32c|0|md5|crc32c-intel)",
        "verify_(backlog|backlog_batch)=[0-9]{1,2}",
        "percentile_list=[1-9](:[1-9][0-9](.[0-9])?){0,3}",
        "sync=(0|1|none|sync|dsync)",
        "(bogus|filename|description|direct|buffered)=[01]",
    ];
    proptest::sample::select(LINES)
        .prop_flat_map(|pattern| proptest::string::string_regex(pattern).expect("the patterns are well formed"))
}

#[test]
fn fio_accepts_what_we_accept() {
    if Command::new("fio").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("SKIP there is no fio; scripts/tools fio installs it");
        return;
    }
    // Few attempts, because each starts fio.
    let mut runner = runner(60, Config { max_shrink_iters: 64, ..Config::default() });
    let cases = runner.config().cases;
    let path = std::env::temp_dir().join(format!("blkmq-job-{}.fio", std::process::id()));
    let accepted = std::cell::Cell::new(0);
    let lines = proptest::collection::vec(any_line(), 1..6);
    let result = runner.run(&lines, |lines| {
        let text = format!("[global]\nsize=1g\nruntime=1\n[job]\n{}\n", lines.join("\n"));
        if JobFile::parse("job", &text, &[], Mode::Strict, &System).is_ok() {
            fs::write(&path, &text).expect("the file can be written");
            accepted.set(accepted.get() + 1);
            prop_assert!(fio_accepts(&path), "fio refuses what was accepted:\n{}", text);
        }
        Ok(())
    });
    // It does not matter whether the file exists.
    drop(fs::remove_file(&path));
    result.unwrap_or_else(|error| panic!("{error}"));
    assert!(accepted.get() * 5 > cases, "only {} of {cases} were accepted: the lines judge nothing", accepted.get());
}
