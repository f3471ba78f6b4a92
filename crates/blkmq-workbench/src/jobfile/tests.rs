//! The meaning of each notation, and the error for each wrong one.

use std::time::Duration;

use blkmq::{Class, IoPriority};

use super::*;
use crate::job::{
    BlockSize, ByDirection, Direction, Distribution, Extent, Operations, Order, RateProcess, Verify, Zone,
};

/// A machine that only the tests have.
struct Nowhere;

impl Surroundings for Nowhere {
    fn variable(&self, name: &str) -> Option<String> {
        (name == "BS").then(|| "8k".to_owned())
    }

    fn keyword(&self, name: &str) -> Option<u64> {
        (name == "ncpus").then_some(3)
    }

    fn include(&self, file: &str, path: &str) -> std::io::Result<(String, String)> {
        match path {
            "common" => Ok((format!("{file}/common"), "[global]\nbs=16k\n".to_owned())),
            "wrong" => Ok(("wrong".to_owned(), "[global]\n\nbs=0\n".to_owned())),
            "itself" => Ok(("itself".to_owned(), "include itself\ninclude itself\n".to_owned())),
            _ => Err(std::io::Error::other("there is no such file")),
        }
    }
}

fn parse(text: &str, overrides: &[&str], mode: Mode) -> Result<JobFile, TextError> {
    JobFile::parse("a.fio", text, overrides, mode, &Nowhere)
}

/// The only job of a file whose job has these options.
fn job(options: &str) -> Job {
    let mut file = parse(&format!("[a]\n{}", options.replace(' ', "\n")), &[], Mode::Strict).unwrap();
    assert_eq!(file.jobs.len(), 1, "{options}");
    file.jobs.remove(0)
}

/// The error for this file.
fn error(text: &str) -> String {
    parse(text, &[], Mode::Strict).unwrap_err().to_string()
}

/// The error for a file whose job has these options, without the place.
fn complaint(options: &str) -> String {
    let text = format!("[a]\n{}", options.replace(' ', "\n"));
    let error = parse(&text, &[], Mode::Strict).expect_err(options);
    assert!(error.place.starts_with("a.fio: line "), "{error}");
    error.what
}

fn bytes(text: &str) -> u64 {
    let Some(Extent::Bytes(bytes)) = job(text).size else { panic!("{text} gives no size") };
    bytes
}

#[test]
fn numbers_and_their_units() {
    let cases = [
        ("size=4096", 4096),
        ("size=4096b", 4096),
        ("size=4k", 4096),
        ("size=4K", 4096),
        ("size=4kb", 4096),
        ("size=4ki", 4096),
        ("size=4KiB", 4000),
        ("size=3m", 3 << 20),
        ("size=3g", 3 << 30),
        ("size=3t", 3 << 40),
        ("size=3p", 3 << 50),
        ("size=0x1f", 31),
        ("size=4k kb_base=1000", 4000),
        ("kb_base=1000 size=4kib", 4096),
        ("kb_base=1000 size=4mb", 4_000_000),
    ];
    for (text, expected) in cases {
        assert_eq!(bytes(text), expected, "{text}");
    }
    for text in ["1.5m", "4x", "0x10k", "k", "-4k", "9p9", "(4*4k)", "99999999t", "0x", "4kk", "4é"] {
        assert!(complaint(&format!("size={text}")).starts_with("option 'size': '"), "{text}");
    }
    assert_eq!(
        complaint("size=(2*4k)"),
        "option 'size': '(2*4k)' is an expression; blkmq has no arithmetic, write the number"
    );
    assert_eq!(complaint("size="), "option 'size': needs a value");
    assert_eq!(complaint("iodepth=0"), "option 'iodepth': '0' is not from 1 to 65536");
    assert_eq!(complaint("kb_base=512"), "option 'kb_base': '512' is none of 1024, 1000");
}

#[test]
fn times_and_their_units() {
    let seconds = Duration::from_secs;
    let cases = [
        ("10", seconds(10)),
        ("10s", seconds(10)),
        ("2m", seconds(120)),
        ("1H", seconds(3600)),
        ("1d", seconds(86400)),
        ("500ms", Duration::from_millis(500)),
        ("500msec", Duration::from_millis(500)),
        ("7us", Duration::from_micros(7)),
        ("7usec", Duration::from_micros(7)),
    ];
    for (text, expected) in cases {
        assert_eq!(job(&format!("runtime={text}")).runtime, Some(expected), "{text}");
    }
    assert_eq!(job("timeout=0").runtime, None);
    assert_eq!(job("thinktime=5 thinktime_spin=3").thinktime, Duration::from_micros(5));
    assert_eq!(job("thinktime=5 thinktime_spin=30").thinktime_spin, Duration::from_micros(5));
    assert_eq!(job("thinktime_iotime=5").thinktime_iotime, seconds(5));
    assert_eq!(job("startdelay=4").startdelay, seconds(4)..=seconds(4));
    assert_eq!(job("startdelay=8s-500ms").startdelay, Duration::from_millis(500)..=seconds(8));
    for text in ["10q", "1.5", "s", "-1", "99999999999d"] {
        assert!(complaint(&format!("runtime={text}")).starts_with("option 'runtime': '"), "{text}");
    }
}

#[test]
fn flags_with_and_without_a_value() {
    assert!(job("norandommap").norandommap);
    assert!(job("norandommap=1").norandommap);
    assert!(!job("norandommap=0").norandommap);
    assert_eq!(complaint("norandommap=yes"), "option 'norandommap': 'yes' is neither 0 nor 1");
    assert_eq!(complaint("iodepth"), "option 'iodepth': needs a value");
}

#[test]
fn values_for_each_direction() {
    let lengths = |text: &str| Direction::ALL.map(|direction| *job(text).bs[direction].bounds().start());
    assert_eq!(lengths("bs=8k"), [8192; 3]);
    assert_eq!(lengths("bs=8k,16k"), [8192, 16384, 16384]);
    assert_eq!(lengths("bs=8k,16k,512"), [8192, 16384, 512]);
    assert_eq!(lengths("bs=8k,"), [8192, 4096, 4096]);
    assert_eq!(lengths("bs=,8k"), [4096, 8192, 8192]);
    assert_eq!(lengths("blocksize=1k bs=,,8k"), [1024, 1024, 8192]);
    assert_eq!(
        job("rate=1m,500k").rate,
        ByDirection { read: Some(1 << 20), write: Some(500 << 10), trim: Some(500 << 10) }
    );
    assert_eq!(job("rate_iops=,7").rate_iops, ByDirection { read: None, write: Some(7), trim: Some(7) });
    assert_eq!(job("rate=0").rate, ByDirection::all(None));
    assert!(complaint("bs=1k,1k,1k,1k").contains("more than three values"));
    assert_eq!(lengths("bs=2300,1"), [2300, 1, 1]);
    assert_eq!(complaint("bs=0"), "option 'bs': '0' is less than 1");
}

#[test]
fn what_a_job_does() {
    use Direction::{Read, Trim, Write};
    use Operations::{Only, ReadWrite, TrimWrite};
    let half = ReadWrite { read_percent: 50 };
    let cases = [
        ("read", Only(Read), false),
        ("write", Only(Write), false),
        ("trim", Only(Trim), false),
        ("rw", half, false),
        ("readwrite", half, false),
        ("trimwrite", TrimWrite, false),
        ("randread", Only(Read), true),
        ("randwrite", Only(Write), true),
        ("randtrim", Only(Trim), true),
        ("randrw", half, true),
        ("randtrimwrite", TrimWrite, true),
    ];
    for (text, operations, random) in cases {
        let job = job(&format!("rw={text}"));
        assert_eq!((job.operations, matches!(job.order, Order::Random { every: 1 })), (operations, random), "{text}");
    }
    assert_eq!(job("rw=randrw rwmixread=70").operations, ReadWrite { read_percent: 70 });
    assert_eq!(job("rwmixread=70 rwmixwrite=20 readwrite=rw").operations, ReadWrite { read_percent: 80 });
    assert_eq!(job("rw=write:8k").order, Order::Sequential { skip: 8192 });
    assert_eq!(job("rw=read:-8k").order, Order::Sequential { skip: -8192 });
    assert_eq!(job("rw=write:7").order, Order::Sequential { skip: 7 });
    assert_eq!(job("rw=randread:8").order, Order::Random { every: 8 });
    for text in ["rw=randreadwrite", "rw=READ", "rw=randread:0", "rw=randread:-1", "rwmixread=101"] {
        complaint(text);
    }
}

#[test]
fn lengths_of_operations() {
    let read = |text: &str| job(text).bs.read;
    assert_eq!(read("bsrange=1k-4k"), BlockSize::Range(1024..=4096));
    assert_eq!(read("bsrange=4k:1k"), BlockSize::Range(1024..=4096));
    assert_eq!(read("bsrange=4k-4k"), BlockSize::Fixed(4096));
    assert_eq!(job("bsrange=1k-4k/8k-32k").bs.write, BlockSize::Range(8192..=32768));
    assert_eq!(job("bsrange=1k-4k,8k-32k").bs.trim, BlockSize::Range(8192..=32768));
    assert_eq!(read("bssplit=4k/10:64k/50:32k/40"), BlockSize::Split(vec![(4096, 10), (65536, 50), (32768, 40)]));
    assert_eq!(read("bssplit=4k/50:1k/:32k"), BlockSize::Split(vec![(4096, 50), (1024, 25), (32768, 25)]));
    assert_eq!(read("bssplit=1k:2k:4k"), BlockSize::Split(vec![(1024, 34), (2048, 33), (4096, 33)]));
    assert_eq!(job("bssplit=1k/100,2k/100").bs.write, BlockSize::Split(vec![(2048, 100)]));
    assert_eq!(complaint("bssplit=4k/50:8k/20"), "option 'bssplit': the percentages make 70, not 100");
    assert_eq!(complaint("bssplit=4k/50:8k/60:1k"), "option 'bssplit': the percentages make 110, not 100");
    assert_eq!(job("bsrange=1k-4k").blockalign.read, 1024);
    let aligned = job("ba=8k,1k");
    assert_eq!((aligned.blockalign.read, aligned.blockalign.trim, aligned.norandommap), (8192, 1024, true));
}

#[test]
fn areas() {
    let area = job("size=10% offset=20% offset_increment=1g io_size=150 number_ios=7 loops=3 offset_align=1m");
    assert_eq!((area.size, area.offset), (Some(Extent::Percent(10)), Extent::Percent(20)));
    assert_eq!((area.offset_increment, area.io_size), (Extent::Bytes(1 << 30), Some(Extent::Bytes(150))));
    assert_eq!((area.number_ios, area.loops, area.offset_align), (Some(7), 3, 1 << 20));
    assert_eq!((job("size=0").size, job("io_limit=0").io_size, job("number_ios=0").number_ios), (None, None, None));
    assert_eq!(bytes("filesize=1m"), 1 << 20);
    assert_eq!(bytes("filesize=1m size=3m"), 1 << 20);
    assert_eq!(bytes("filesize=3m size=1m"), 1 << 20);
    assert_eq!(complaint("size=101%"), "option 'size': '101' is not from 0 to 100");
    let odd = job("offset=100 offset_increment=2300");
    assert_eq!((odd.offset, odd.offset_increment), (Extent::Bytes(100), Extent::Bytes(2300)));
    assert!(complaint("filesize=1m-2m").starts_with("blkmq has no 'filesize' with a range"));
    assert_eq!(job("filename=/dev/a:/dev/b").files, ["/dev/a", "/dev/b"]);
    assert_eq!(job("filename=/dev/disk\\:1\\x").files, ["/dev/disk:1\\x"]);
    assert!(job("bs=4k").files.is_empty());
}

#[test]
fn random_places_and_numbers() {
    let distribution = |text: &str| job(&format!("random_distribution={text}")).random_distribution;
    assert_eq!(distribution("random"), Distribution::Random);
    assert_eq!(distribution("zipf:1.2"), Distribution::Zipf { theta: 1.2 });
    assert_eq!(distribution("pareto:0.3"), Distribution::Pareto { h: 0.3 });
    assert_eq!(distribution("normal:20"), Distribution::Normal { deviation: 20.0 });
    let zones = |list: [(u32, u32); 3]| Distribution::Zoned(list.map(|(access, span)| Zone { access, span }).to_vec());
    assert_eq!(distribution("zoned:50/5:30/15:20/80"), zones([(50, 5), (30, 15), (20, 80)]));
    assert_eq!(distribution("zoned:50/5:30/15:20/"), zones([(50, 5), (30, 15), (20, 80)]));
    assert!(job("random_distribution=zipf:0.5").norandommap);
    for text in
        ["zipf:1", "zipf:0", "zipf:x", "pareto:1", "normal:101", "zoned", "zoned:50/50", "zoned:50/5:50/5", "gauss"]
    {
        assert!(
            complaint(&format!("random_distribution={text}")).starts_with("option 'random_distribution': "),
            "{text}"
        );
    }
    let error = complaint("random_distribution=zipf:0");
    assert_eq!(error, "option 'random_distribution': '0' is not above 0 and up to 100");
    for text in ["zipf:1.2:0.25", "zoned_abs:60/10G:40/20G", "zoned:100/100,zoned:100/100"] {
        assert!(complaint(&format!("random_distribution={text}")).starts_with("blkmq has no 'random_"), "{text}");
    }
    assert_eq!(job("").seed, Some(Job::SEED));
    assert_eq!(job("randseed=7").seed, Some(7));
    assert_eq!(job("randseed=7 randrepeat=0").seed, None);
    assert_eq!(job("randrepeat=0 allrandrepeat=1").seed, Some(Job::SEED));
    assert_eq!(job("percentage_random=30,60").percentage_random.trim, 60);
}

#[test]
fn depth_and_batches() {
    let depths = |text: &str| {
        let job = job(text);
        let complete = (job.iodepth_batch_complete_min, job.iodepth_batch_complete_max);
        (job.iodepth, job.iodepth_batch_submit, complete, job.iodepth_low)
    };
    assert_eq!(depths("iodepth=32"), (1, 1, (1, 1), 1), "psync waits for each operation");
    assert_eq!(depths("ioengine=libaio iodepth=32"), (32, 1, (1, 1), 32));
    assert_eq!(
        depths("ioengine=io_uring iodepth=32 iodepth_batch=8 iodepth_batch_complete=8 iodepth_low=16"),
        (32, 8, (8, 8), 16)
    );
    assert_eq!(
        depths("ioengine=null iodepth=4 iodepth_batch=0 iodepth_batch_complete_min=0 iodepth_batch_complete_max=64"),
        (4, 4, (0, 4), 4)
    );
    assert_eq!(
        depths("ioengine=null iodepth=4 iodepth_batch_submit=9 iodepth_batch_complete_min=9"),
        (4, 4, (4, 4), 4)
    );
    assert_eq!(
        complaint("ioengine=rbd"),
        "blkmq has no engine 'rbd'; accepted: libaio, io_uring, posixaio, null, sync, psync, vsync, pvsync, pvsync2"
    );
    let priority = |text: &str| job(text).priority.map(|priority| (priority.class, priority.level));
    assert_eq!(priority(""), None);
    assert_eq!(priority("prioclass=1"), Some((Class::RealTime, 0)));
    assert_eq!(priority("prio=7"), Some((Class::BestEffort, 7)));
    assert_eq!(job("prioclass=3 prio=2").priority, Some(IoPriority { class: Class::Idle, level: 2 }));
    assert!(complaint("prio=8").contains("not from 0 to 7"));
}

#[test]
fn time_rate_flush_and_verify() {
    assert_eq!(complaint("time_based"), "option 'time_based': there is no runtime; give one, as in 'runtime=30s'");
    assert!(complaint("rate=1m rate_iops=5").starts_with("option 'rate_iops': there is a rate too"));
    let rated = job("rate=1m, rate_iops=,5 rate_process=poisson");
    assert_eq!((rated.rate.read, rated.rate_iops.write), (Some(1 << 20), Some(5)));
    assert_eq!(rated.rate_process, RateProcess::Poisson);
    let pauses = |text: &str| job(text).thinktime_blocks;
    assert_eq!((pauses("thinktime=1"), pauses("thinktime_blocks=4")), (1, 4));
    assert_eq!((pauses("thinktime_iotime=1"), pauses("thinktime_iotime=1 thinktime_blocks=4")), (u64::MAX, 4));
    assert!(job("thinktime_blocks_type=issue").thinktime_blocks_issue);
    let flushes = job("fsync=4 fdatasync=5 fsync_on_close=1 sync=dsync");
    assert_eq!((flushes.fsync, flushes.fdatasync, flushes.end_fsync, flushes.sync), (4, 5, true, true));
    assert!(!job("sync=none").sync);
    let verify = job("verify=crc32c-intel verify_backlog=8 verify_fatal=1 do_verify=0 bs=64k verify_interval=512");
    assert_eq!((verify.verify, verify.do_verify), (Some(Verify::Crc32c), false));
    assert_eq!((verify.verify_backlog, verify.verify_backlog_batch, verify.verify_interval), (8, 8, 512));
    assert_eq!(job("verify_backlog=8 verify_backlog_batch=4").verify_backlog_batch, 4);
    assert_eq!(job("bs=2300 verify_interval=1150").verify_interval, 1150);
    assert_eq!(complaint("verify=md5"), "blkmq has no 'verify=md5'; use verify=crc32c");
    assert_eq!(
        complaint("bssplit=4k/50:1k/50 verify_interval=2k"),
        "option 'verify_interval': 2048 does not divide the block size 1024"
    );
}

#[test]
fn what_is_measured() {
    let measure = |text: &str| {
        let measure = job(text).measure;
        (measure.lat, measure.clat, measure.slat)
    };
    assert_eq!(measure(""), (true, true, true));
    assert_eq!(measure("gtod_reduce=1"), (false, false, false));
    assert_eq!(measure("gtod_reduce disable_clat=0"), (false, true, false));
    assert_eq!(measure("disable_slat=1"), (true, true, false));
    assert_eq!(job("percentile_list=99.9:50:50").percentile_list, [50.0, 99.9]);
    assert!(complaint("percentile_list=101").contains("not from 0 to 100"));
    assert!(complaint(&format!("percentile_list=1{}", ":2".repeat(20))).contains("more than 20"));
}

#[test]
fn sections_comments_and_groups() {
    let text = "; a comment\n  # another\n\n[global]\nbs=8k ; behind an option\nnumjobs=2\n\
                [a]\nname=first\nnumjobs=3\n[b]\nnew_group\n[global]\nbs=1k\n[c]\n[d]\nstonewall=1\nrw=write\n";
    let file = parse(text, &[], Mode::Strict).unwrap();
    let jobs: Vec<_> = file.jobs.iter().map(|job| (&*job.name, job.group, job.numjobs, job.bs.read.clone())).collect();
    let fixed = BlockSize::Fixed;
    assert_eq!(
        jobs,
        [("first", 0, 3, fixed(8192)), ("b", 1, 2, fixed(8192)), ("c", 1, 2, fixed(1024)), ("d", 2, 2, fixed(1024))]
    );
    let options = |list: &[(&str, &str)]| -> Vec<_> {
        list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    assert_eq!(file.global, options(&[("numjobs", "2"), ("bs", "1k")]));
    assert_eq!(file.jobs[0].options, options(&[("numjobs", "3")]));
    assert_eq!(file.jobs[3].options, options(&[("stonewall", "1"), ("rw", "write")]));
}

#[test]
fn variables_and_included_files() {
    let file = parse("[a]\nbs=${BS}\nnumjobs=$ncpus\ndescription=$5 ${BS}\n", &[], Mode::Strict).unwrap();
    assert_eq!((&file.jobs[0].bs.read, file.jobs[0].numjobs), (&BlockSize::Fixed(8192), 3));
    assert_eq!(file.jobs[0].description.as_deref(), Some("$5 8k"));
    assert_eq!(parse("include common\n[a]\n", &[], Mode::Strict).unwrap().jobs[0].bs.read, BlockSize::Fixed(16384));
    assert_eq!(
        error("[a]\nbs=${NONE}\n"),
        "a.fio: line 2: option 'bs': the environment has no variable 'NONE'; set it before the run"
    );
    assert_eq!(error("include wrong\n[a]\n"), "wrong: line 3: option 'bs': '0' is less than 1");
    assert_eq!(error("\ninclude nothing\n"), "a.fio: line 2: cannot include 'nothing': there is no such file");
    assert!(error("include itself\n").contains("more than 64 files are included"));
}

#[test]
fn unknown_and_missing_options_are_refused() {
    assert_eq!(error("[a]\n\niodepht=4\n"), "a.fio: line 3: option 'iodepht' is not known; did you mean 'iodepth'?");
    assert_eq!(error("[a]\nfoo\n"), "a.fio: line 2: option 'foo' is not known; see fio's manual for its options");
    assert_eq!(error("[global]\nrunt1me=4\n"), "a.fio: line 2: option 'runt1me' is not known; did you mean 'runtime'?");
    assert!(error("[a]\nss=iops:10%\n").starts_with("a.fio: line 2: blkmq has no 'steadystate'; "));
    assert!(parse("[a]\nzonemode=none\nnrfiles=1\n", &[], Mode::Strict).is_ok());
    assert!(error("bs=4k\n[a]\n").contains("'bs' stands before the first section"));
    assert!(error("[global]\n").contains("there is no job"));
    assert!(error("[a]\nrw = read\n").contains("without blanks"));
    for text in ["[]", "[a", "[a] b", "[a]]"] {
        assert!(error(text).contains("is no section"), "{text}");
    }
    assert_eq!(error("[a]\nbs=\u{1b}[2J\r\n").lines().count(), 1);
    assert!(!error("[a]\nbs=\u{1b}[2J\r\n").contains('\u{1b}'));

    let text = "[global]\nioengine=rbd\npool=x\n[a]\nfoo=1\nwait_for=b\niodepth=4\n";
    let file = parse(text, &["bar=2"], Mode::Lenient).unwrap();
    let warnings: Vec<String> = file.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(warnings.len(), 5, "{warnings:?}");
    assert!(warnings[0].starts_with("a.fio: line 2: blkmq has no engine 'rbd'"));
    assert!(warnings[4].starts_with("--option bar=2: option 'bar' is not known"));
    assert_eq!((&*file.jobs[0].ioengine, file.jobs[0].iodepth), ("libaio", 4));
    assert!(parse("[a]\nbs=0\n", &[], Mode::Lenient).is_err(), "what is wrong stays wrong");
}

/// Red before: `trim_percentage` and `latency_target` were answered by options that have nothing to do with them.
#[test]
fn an_option_that_is_not_implemented_is_answered_by_what_to_write_instead() {
    for (option, advice) in [
        ("trim_percentage=10", "write 'rw=randtrimwrite'"),
        ("latency_target=10ms", "run the job at several depths, as '--option iodepth=8'"),
        ("wait_for=b", "write 'stonewall'"),
        ("exitall", "give the jobs the same runtime"),
        ("nrfiles=4", "numjobs with offset_increment"),
        ("ioscheduler=none", "as '--scheduler none'"),
        ("verify_only", "write 'rw=read' with verify=crc32c"),
        ("max_latency=10", "no latency ends a job"),
        ("zoneskip=4k", "write 'rw=read:SKIP'"),
    ] {
        let error = error(&format!("[a]\n{option}\n"));
        assert!(error.contains("line 2: blkmq has no '") && error.contains(advice), "{error}");
    }
    // An advice names options that a job obeys.
    for advice in unsupported::advices() {
        for quoted in advice.split('\'').skip(1).step_by(2).filter(|text| !text.starts_with("blkmq ")) {
            let option = quoted.strip_prefix("--option ").unwrap_or(quoted).replace("SKIP", "4k");
            if !option.starts_with("--") {
                let text = if option.contains('=') { format!("[a]\n{option}\n") } else { format!("[a]\n{option}=1\n") };
                assert!(parse(&text, &[], Mode::Strict).is_ok(), "'{quoted}' in '{advice}'");
            }
        }
    }
}

#[test]
fn what_has_no_effect_is_listed() {
    let file = parse("[global]\ndirect=1\nfilename=${NONE}x\n[a]\nthread\ndirect=0\nmem=mmap\n", &[], Mode::Strict);
    assert!(file.is_err(), "the name may hide several files");
    let file = parse("[global]\nmem=mmap\n[a]\nthread\nmem=shm\ndirectory=${NONE}\n", &[], Mode::Strict).unwrap();
    assert_eq!(file.without_effect, ["mem", "thread", "directory"]);
}

/// Red if a depth that an engine cannot keep is ignored without a warning, or if an override that corrects it has no
/// effect.
#[test]
fn a_depth_without_effect_is_warned_of() {
    let warnings = |text: &str, overrides: &[&str]| {
        let file = parse(text, overrides, Mode::Strict).unwrap();
        file.warnings.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let text = "[global]\niodepth=32\n[a]\n[b]\n[c]\nioengine=libaio\n";
    let [warning] = &warnings(text, &[])[..] else { panic!("one for both jobs: {:?}", warnings(text, &[])) };
    let expected = "a.fio: line 2: option 'iodepth': 32 has no effect, the job has 1 operation outstanding: 'psync', fio's \
                    engine where the file names none, waits for each one; write 'ioengine=libaio' for 32";
    assert_eq!(warning, expected);
    let warning = &warnings("[a]\nioengine=pvsync\n", &["iodepth=4"])[0];
    assert!(warning.starts_with("--option iodepth=4: option 'iodepth': 4 has no effect"), "{warning}");
    assert!(warning.contains("the engine 'pvsync' waits"), "{warning}");
    assert!(warnings(text, &["ioengine=null"]).is_empty());
    assert!(warnings("[a]\niodepth=1\n[b]\n", &[]).is_empty());
}

#[test]
fn overrides_come_last_and_reach_every_job() {
    let file = parse("[a]\nnumjobs=4\n[b]\nbs=1k\n", &["numjobs=2", "kb_base=1000", "size=1k"], Mode::Strict).unwrap();
    for job in &file.jobs {
        assert_eq!((job.numjobs, job.size), (2, Some(Extent::Bytes(1000))), "{}", job.name);
    }
    let complaint = |text: &str| parse("[a]\n", &[text], Mode::Strict).unwrap_err().to_string();
    assert_eq!(complaint("numjobs=0"), "--option numjobs=0: option 'numjobs': '0' is not from 1 to 65536");
    assert_eq!(complaint("foo=1"), "--option foo=1: option 'foo' is not known; see fio's manual for its options");
    assert!(complaint("=1").starts_with("--option =1: '=1' is no option"));
}

/// Red if a name is in two tables, or in one table twice: one entry would hide the other.
#[test]
fn no_option_is_there_twice() {
    let mut names: Vec<_> = options::names().chain(unsupported::names()).collect();
    names.sort_unstable();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count);
    assert!(options::names().all(|name| unsupported::find(name).is_none()));
}
