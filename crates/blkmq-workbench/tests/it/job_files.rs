//! The job files of published measurements, those that come with fio, and random ones that fio itself judges.
//!
//! The random test prints its seed and takes another from `BLKMQ_SEED`, its length from `BLKMQ_CASES`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use blkmq_workbench::job::{BlockSize, ByDirection, Direction, Extent, Measure, Operations, Order};
use blkmq_workbench::{Job, JobFile, Mode, Surroundings, System};
use proptest::prelude::*;
use proptest::test_runner::Config;

use crate::input::runner;

/// The machine that the tests run on, with the variables that two of fio's examples need.
struct Examples;

impl Surroundings for Examples {
    fn variable(&self, name: &str) -> Option<String> {
        let value = match name {
            "FIO_RW" => "randread",
            "FIO_IODEPTH" => "4",
            "FIO_BS" => "4k",
            _ => return None,
        };
        Some(value.to_owned())
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

fn published(name: &str) -> (Job, Vec<&'static str>) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("jobs").join(name);
    let text = fs::read_to_string(&path).expect("the job is in the repository");
    let mut file = JobFile::parse(name, &text, &[], Mode::Strict, &System).expect("the job is understood");
    assert_eq!((file.jobs.len(), file.warnings.len()), (1, 0), "{name}");
    let mut job = file.jobs.remove(0);
    job.options.clear();
    (job, file.without_effect)
}

const NOTHING_MEASURED: Measure = Measure { lat: false, clat: false, slat: false };
const AT_RANDOM: Order = Order::Random { every: 1 };

#[test]
fn scaling() {
    let (job, without_effect) = published("scaling-32x4.fio");
    let expected = Job {
        numjobs: 32,
        group_reporting: true,
        direct: true,
        order: AT_RANDOM,
        norandommap: true,
        bs: ByDirection::all(BlockSize::Fixed(512)),
        blockalign: ByDirection::all(512),
        ioengine: "io_uring".to_owned(),
        iodepth: 4,
        iodepth_batch_submit: 4,
        iodepth_batch_complete_min: 4,
        iodepth_batch_complete_max: 4,
        iodepth_low: 4,
        fixedbufs: true,
        runtime: Some(Duration::from_secs(60)),
        time_based: true,
        measure: NOTHING_MEASURED,
        ..Job::new("scaletest")
    };
    assert_eq!(job, expected);
    assert_eq!(without_effect, ["invalidate", "thread"]);
}

#[test]
fn batch() {
    let (job, without_effect) = published("batch-16x32.fio");
    let expected = Job {
        numjobs: 16,
        group_reporting: true,
        direct: true,
        operations: Operations::Only(Direction::Write),
        order: AT_RANDOM,
        ioengine: "io_uring".to_owned(),
        iodepth: 32,
        iodepth_batch_submit: 8,
        iodepth_batch_complete_min: 8,
        iodepth_batch_complete_max: 8,
        iodepth_low: 32,
        runtime: Some(Duration::from_secs(30)),
        time_based: true,
        ..Job::new("test")
    };
    assert_eq!(job, expected);
    assert_eq!(without_effect, [""; 0]);
}

#[test]
fn accounting() {
    let (job, without_effect) = published("accounting-32.fio");
    let expected = Job {
        numjobs: 32,
        group_reporting: true,
        direct: true,
        order: AT_RANDOM,
        norandommap: true,
        runtime: Some(Duration::from_secs(30)),
        time_based: true,
        measure: NOTHING_MEASURED,
        ..Job::new("stats")
    };
    assert_eq!(job, expected);
    assert_eq!(without_effect, ["thread"]);
}

#[test]
fn merging() {
    let (job, without_effect) = published("merge-64x32.fio");
    let expected = Job {
        numjobs: 64,
        group_reporting: true,
        direct: true,
        operations: Operations::Only(Direction::Write),
        size: Some(Extent::Bytes(1 << 30)),
        offset_increment: Extent::Bytes(2 << 30),
        ioengine: "io_uring".to_owned(),
        iodepth: 32,
        iodepth_low: 32,
        runtime: Some(Duration::from_secs(30)),
        time_based: true,
        ..Job::new("seqwrite")
    };
    assert_eq!(job, expected);
    assert_eq!(without_effect, [""; 0]);
}

/// The files of fio-examples 3.33. For each the option or engine that blkmq lacks, so that it refuses the file; "" if
/// it accepts the file.
const VERDICTS: &[(&str, &str)] = &[
    ("1mbs_clients.fio", "rate_min"),
    ("aio-read.fio", ""),
    ("backwards-read.fio", ""),
    ("basic-verify.fio", ""),
    ("butterfly.fio", "flow"),
    ("cmdprio-bssplit.fio", "cmdprio_bssplit"),
    ("cmdprio-percentage.fio", ""),
    ("cpp_null.fio", "cpp_null"),
    ("cpuio.fio", "cpuio"),
    ("cross-stripe-verify.fio", ""),
    ("dedupe-global.fio", ""),
    ("dev-dax.fio", "dev-dax"),
    ("dfs.fio", "dfs"),
    ("disk-zone-profile.fio", "zonemode"),
    ("e4defrag.fio", "e4defrag"),
    ("e4defrag2.fio", "e4defrag"),
    ("enospc-pressure.fio", "continue_on_error"),
    ("exec.fio", "exec"),
    ("exitwhat.fio", "exitall"),
    ("falloc.fio", "falloc"),
    ("filecreate-ioengine.fio", "nrfiles"),
    ("filedelete-ioengine.fio", "filedelete"),
    ("filestat-ioengine.fio", "filestat"),
    ("fio-rand-RW.fio", ""),
    ("fio-rand-read.fio", ""),
    ("fio-rand-write.fio", ""),
    ("fio-seq-RW.fio", ""),
    ("fio-seq-read.fio", ""),
    ("fio-seq-write.fio", ""),
    ("fixed-rate-submission.fio", "io_submit_mode"),
    ("flow.fio", "flow_sleep"),
    ("fsx.fio", ""),
    ("ftruncate.fio", "ftruncate"),
    ("gfapi.fio", "gfapi"),
    ("gpudirect-rdmaio-client.fio", "rdma"),
    ("gpudirect-rdmaio-server.fio", "rdma"),
    ("http-s3-crypto.fio", "http"),
    ("http-s3-storage-class.fio", "http"),
    ("http-s3.fio", "http"),
    ("http-swift.fio", "http"),
    ("http-webdav.fio", "http"),
    ("ime.fio", "ime_psync"),
    ("iometer-file-access-server.fio", ""),
    ("jesd219.fio", ""),
    ("latency-profile.fio", "latency_target"),
    ("libcufile-cufile.fio", "libcufile"),
    ("libcufile-posix.fio", "libcufile"),
    ("libhdfs.fio", "libhdfs"),
    ("libiscsi.fio", "libiscsi"),
    ("libpmem.fio", "libpmem"),
    ("librpma_apm-client.fio", "librpma_apm_client"),
    ("librpma_apm-server.fio", "librpma_apm_server"),
    ("librpma_gpspm-client.fio", "librpma_gpspm_client"),
    ("librpma_gpspm-server.fio", "librpma_gpspm_server"),
    ("libzbc-rand-write.fio", "zonemode"),
    ("libzbc-seq-read.fio", "zonemode"),
    ("mtd.fio", "mtd"),
    ("nbd.fio", "nbd"),
    ("netio.fio", "net"),
    ("netio_multicast.fio", "net"),
    ("nfs.fio", "nfs_url"),
    ("null.fio", ""),
    ("numa.fio", ""),
    ("pmemblk.fio", "pmemblk"),
    ("poisson-rate-submission.fio", "io_submit_mode"),
    ("rados.fio", "rados"),
    ("rand-zones.fio", ""),
    ("rbd.fio", "rbd"),
    ("rdmaio-client.fio", "rdma"),
    ("rdmaio-server.fio", "rdma"),
    ("sg_verify-fail.fio", "sg"),
    ("sg_verify.fio", "sg"),
    ("sg_write_same_ndob.fio", "sg"),
    ("ssd-steadystate.fio", ""),
    ("ssd-test.fio", ""),
    ("steadystate.fio", "steadystate"),
    ("surface-scan.fio", "verify=meta"),
    ("tiobench-example.fio", ""),
    ("uring-cmd-ng.fio", "io_uring_cmd"),
    ("uring-cmd-zoned.fio", "io_uring_cmd"),
    ("waitfor.fio", "wait_for"),
    ("xnvme-compare.fio", ""),
    ("xnvme-zoned.fio", "zonemode"),
    ("zbd-rand-write.fio", "zonemode"),
    ("zbd-seq-read.fio", "zonemode"),
    ("zipf.fio", ""),
];

/// Red if a file is not accepted as the table says, or is refused for another reason.
#[test]
fn examples_of_fio() {
    let Ok(folder) = fs::read_dir(EXAMPLES) else {
        println!("SKIP there are no job files in {EXAMPLES}; scripts/tools fio-examples installs them");
        return;
    };
    let mut files: Vec<PathBuf> = folder.map(|entry| entry.expect("the folder can be read").path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "fio"));
    files.sort();
    let mut found = Vec::new();
    for path in &files {
        let name = path.file_name().and_then(|name| name.to_str()).expect("the names are plain");
        let bytes = fs::read(path).expect("the file can be read");
        let refusal = match JobFile::parse(name, &String::from_utf8_lossy(&bytes), &[], Mode::Strict, &Examples) {
            Ok(_) => String::new(),
            Err(error) => {
                let error = error.to_string();
                assert!(error.starts_with(&format!("{name}: line ")), "{error}");
                // The first name in quotes is what blkmq lacks.
                error.split('\'').nth(1).unwrap_or_else(|| panic!("{error}")).to_owned()
            }
        };
        found.push((name.to_owned(), refusal));
    }
    let known = |name: &str| VERDICTS.iter().find(|(known, _)| *known == name);
    let judged: Vec<_> = found.iter().filter(|(name, _)| known(name).is_some()).collect();
    assert!(judged.len() * 10 > VERDICTS.len() * 9, "only {} of the files are there", judged.len());
    for (name, refusal) in judged {
        assert_eq!(known(name).map(|(_, refusal)| *refusal), Some(refusal.as_str()), "{name}");
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
