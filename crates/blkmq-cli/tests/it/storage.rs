//! Loads on a disk of the user's: what runs, what is refused, and what is said of it.

use std::fs;
use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};

use crate::run::{blkmq, printed, recording, refused, temporary};
use serde_json::Value;

/// A path at which there is no file.
fn absent(name: &str) -> String {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_file(&path);
    path.display().to_string()
}

/// A file that holds data.
fn disk(name: &str) -> String {
    temporary(name, &[7; 1 << 20])
}

fn is_untouched(path: &str) -> bool {
    fs::read(path).expect("it is there") == [7; 1 << 20]
}

fn job(name: &str, lines: &str) -> String {
    temporary(name, format!("[j]\nioengine=libaio\nbs=4k\n{lines}\n").as_bytes())
}

fn file(path: &str) -> String {
    format!("file,path={path}")
}

/// The JSON of a run that must succeed, which may tell something besides.
fn found(arguments: &[&str]) -> (Value, String) {
    let Output { status, stdout, stderr } = blkmq(&[&["bench"], arguments, &["--json"]].concat());
    let told = String::from_utf8(stderr).expect("the program prints text");
    assert_eq!(status.code(), Some(0), "{arguments:?}: {told}");
    (serde_json::from_slice(&stdout).expect("it prints JSON"), told)
}

/// Red before: the second side waited 30 s for the lock that the first one had, and was refused. Red too if the page
/// says of a file that its times follow from parameters.
#[test]
fn a_comparison_runs_on_a_file_that_both_sides_write() {
    let (path, page) = (disk("storage-ab.img"), temporary("storage-ab.html", b""));
    let write = job("storage-ab.fio", "rw=randwrite\niodepth=4");
    let device = file(&path);
    let begun = Instant::now();
    let arguments = ["bench", &write, "--device", &device, "--overwrite", "--ab", "scheduler=none,mq-deadline"];
    let slices = ["--rounds", "2", "--runtime", "50ms", "--report", &page];
    let words = printed(&[&arguments[..], &slices].concat());
    assert!(words.contains("B/A") && begun.elapsed() < Duration::from_secs(20), "{words}");
    let pair = format!("device={device}::{device},hw_queue_depth=4");
    let text = refused(&["bench", &write, "--overwrite", "--ab", &pair]);
    assert!(text.contains("both sides are the file") && begun.elapsed() < Duration::from_secs(20), "{text}");
    let html = fs::read_to_string(page).expect("the page was written");
    assert!(html.contains("is real storage") && !html.contains("follows from its parameters"), "{html}");
}

/// Red before: the jobs were refused, because 2300 is not a multiple of 512. Red if requests count instead of
/// operations, or if the file ends at a whole block.
#[test]
fn a_log_of_odd_appends_runs_on_a_file() {
    let path = absent("storage-log.img");
    let log = |name: &str, lines: &str| {
        temporary(name, format!("[log]\nbs=2300\nsize=115000\nfilename={path}\n{lines}\n").as_bytes())
    };
    let append = log("storage-log.fio", "rw=write\nfdatasync=1\nnumjobs=2\noffset_increment=115000");
    let (appended, _) = found(&[&append]);
    for job in appended["jobs"].as_array().expect("a list") {
        let write = &job["write"];
        assert_eq!((&write["total_ios"], &write["io_bytes"]), (&50.into(), &115_000.into()), "{job}");
        assert_eq!((&job["read"]["total_ios"], &job["sync"]["total_ios"]), (&0.into(), &49.into()), "{job}");
    }
    assert!(appended["blkmq"]["requests"].as_u64() >= Some(200), "each reads its blocks and writes them: {appended}");
    assert_eq!(fs::metadata(&path).expect("it was made").len(), 230_000);
    let many = "iodepth=8\nioengine=libaio\nverify=crc32c\nnumjobs=4\noffset_increment=34500\nsize=34500";
    let verified = log("storage-log-verify.fio", &format!("rw=randwrite\n{many}"));
    let (verified, _) = found(&[&verified, "--overwrite"]);
    for job in verified["jobs"].as_array().expect("a list") {
        assert_eq!((&job["write"]["total_ios"], &job["read"]["total_ios"]), (&15.into(), &15.into()), "{job}");
    }
    let text = refused(&["bench", &append, "--option", "direct=1", "--overwrite"]);
    assert!(text.contains("job log: bs=2300 is no multiple"), "{text}");
    assert!(text.contains("bs=2560, or direct=0") || text.contains("bs=4096, or direct=0"), "{text}");
}

/// Red if a page names another device than those that were compared, or calls a model real.
#[test]
fn a_page_says_of_each_device_whether_it_is_real() {
    let (path, page) = (disk("storage-page.img"), temporary("storage-page.html", b""));
    let read = job("storage-page.fio", "rw=randread");
    let pair = format!("device=null,irqmode=1::{}", file(&path));
    printed(&["bench", &read, "--ab", &pair, "--rounds", "2", "--runtime", "50ms", "--report", &page]);
    let html = fs::read_to_string(page).expect("the page was written");
    for text in ["null,irqmode=1&#39; is part of blkmq", "storage-page.img&#39; is real storage"] {
        assert!(html.replace('\'', "&#39;").contains(text), "{text}: {html}");
    }
}

/// Red before: virtual time was accepted on a file, and its latencies were those of a clock that stands still.
#[test]
fn real_devices_are_refused_on_virtual_time() {
    let path = absent("storage-virtual.img");
    let (made, read) = (format!("file,path={path},size=1M"), job("storage-virtual.fio", "rw=randread\nsize=1m"));
    let named = job("storage-named.fio", &format!("rw=randread\nsize=1m\nfilename={path}"));
    let trace = &recording("mixed", "trace");
    let pair = format!("device=hdd::{made}");
    for arguments in [
        &["bench", &read, "--device", &made][..],
        &["bench", &named],
        &["bench", &read, "--ab", &pair],
        &["replay", trace, "--device", &made],
        &["bench", &read, "--device", "nbd,uri=nbd+unix:///?socket=/nowhere"],
    ] {
        let text = refused(&[arguments, &["--clock", "virtual"]].concat());
        let says = ["virtual time does not pass while real storage works", "leave out --clock virtual"];
        assert!(says.iter().all(|words| text.contains(words)), "{arguments:?}: {text}");
        assert!(!fs::exists(&path).expect("the folder can be read"), "{arguments:?} made the file");
    }
}

/// Red before: both wrote over whatever the device held.
#[test]
fn data_is_overwritten_only_with_the_option_for_it() {
    let path = disk("storage-data.img");
    let (device, write) = (file(&path), job("storage-write.fio", "rw=write\nsize=1m"));
    let trim = job("storage-trim.fio", "rw=randtrim\nsize=1m");
    let trace = &recording("mixed", "trace");
    for arguments in [
        &["bench", &write, "--device", &device][..],
        &["bench", &trim, "--device", &device],
        &["bench", &write, "--device", &device, "--ab", "nomerges=0,1"],
        &["replay", trace, "--speed", "max", "--device", &device],
    ] {
        let text = refused(arguments);
        assert!(text.contains("it may hold data") && text.contains("--overwrite"), "{arguments:?}: {text}");
        assert!(is_untouched(&path), "{arguments:?}");
    }
    printed(&["bench", &job("storage-read.fio", "rw=read\nsize=1m"), "--device", &device]);
    assert!(is_untouched(&path), "reads need no option");
    printed(&["bench", &write, "--device", &device, "--overwrite"]);
    assert!(!is_untouched(&path));
    let output = blkmq(&["replay", trace, "--speed", "max", "--device", &device, "--overwrite"]);
    assert!(!String::from_utf8_lossy(&output.stderr).contains("may hold data"), "{output:?}");
    // A file that the run itself makes is nobody's data.
    let made = format!("file,path={},size=1M", absent("storage-made.img"));
    printed(&["bench", &write, "--device", &made]);
}

/// Red before: the jobs ran on null, whatever file they named.
#[test]
fn jobs_run_on_the_file_that_they_name() {
    let path = disk("storage-named.img");
    let read = job("storage-reads.fio", &format!("rw=randread\nsize=256k\nfilename={path}"));
    let device = |arguments: &[&str]| found(arguments).0["blkmq"]["device"].as_str().map(str::to_owned);
    assert_eq!(device(&[&read]), Some(file(&path)));
    assert_eq!(device(&[&read, "--device", "null"]).as_deref(), Some("null"), "--device takes precedence");
    let write = job("storage-writes.fio", &format!("rw=randwrite\nsize=256k\nfilename={path}"));
    let text = refused(&["bench", &write]);
    assert!(text.contains("it may hold data") && is_untouched(&path), "{text}");
    assert_eq!(device(&[&write, "--overwrite"]), Some(file(&path)));
    let commas = disk("storage-named,twice,.img");
    let read = job("storage-commas.fio", &format!("rw=randread\nsize=256k\nfilename={commas}"));
    assert_eq!(device(&[&read]), Some(file(&commas.replace(',', ",,"))), "a comma in a spec is written twice");
}

/// Red if a file that is not there is not made, or has a hole where the jobs read; or if syncs of it take no time.
#[test]
fn a_file_that_is_not_there_is_made_with_the_jobs_size() {
    let path = absent("storage-new.img");
    let write = job("storage-new.fio", &format!("rw=write\nsize=64k\noffset=64k\nfsync=1\nfilename={path}"));
    let (json, told) = found(&[&write]);
    assert!(told.contains("making it, 128 KiB"), "{told}");
    assert_eq!(fs::metadata(&path).expect("it was made").len(), 128 << 10);
    let sync = &json["jobs"][0]["sync"]["lat_ns"];
    assert!(sync["N"].as_u64() >= Some(15) && sync["min"].as_u64() > Some(0), "{sync}");

    let path = absent("storage-filled.img");
    let read = job("storage-filled.fio", &format!("rw=randread\nnumjobs=2\nsize=64k\nfilename={path}"));
    assert!(found(&[&read]).1.contains("making it, 64 KiB"));
    let content = fs::read(&path).expect("it was made");
    assert!(content.len() == 64 << 10 && content.chunks(4096).all(|block| block.iter().any(|byte| *byte != 0)));
    assert_eq!(found(&[&read]).1, "", "it is there now");

    let unsized_job = job("storage-unsized.fio", &format!("rw=randread\nfilename={}", absent("storage-unsized.img")));
    let text = refused(&["bench", &unsized_job]);
    assert!(text.contains("there is no file") && text.contains("'size=1g'"), "{text}");
}

/// Red before: reads of a file that had just been made, or cut to its size, were measured as if a disk had done them.
/// Red too if a load that only writes, or a file without holes, is warned of.
#[test]
fn reads_of_holes_are_told() {
    const SAYS: &str = "100 % of it are holes, and reads there do not reach a disk";
    let made = format!("{},size=1M", file(&absent("storage-holes.img")));
    let read = job("storage-holes-read.fio", "rw=randread\nsize=1m");
    let told = found(&[&read, "--device", &made]).1;
    assert!(told.contains(SAYS), "{told}");
    let told = blkmq(&["bench", &read, "--device", &made, "--ab", "iostats=0,1", "--rounds", "2", "--runtime", "5ms"]);
    assert_eq!(String::from_utf8_lossy(&told.stderr).matches(SAYS).count(), 1, "{told:?}");
    let write = job("storage-holes-write.fio", "rw=write\nsize=1m");
    assert_eq!(found(&[&write, "--device", &made]).1, "");
    assert_eq!(found(&[&read, "--device", &made]).1, "", "it is filled now");

    let made = format!("{},size=1G", file(&absent("storage-holes-replay.img")));
    let played = blkmq(&["replay", &recording("prio", "trace.blktrace.0"), "--device", &made, "--overwrite"]);
    assert!(String::from_utf8_lossy(&played.stderr).contains(SAYS), "{played:?}");
}

/// Red before: each of these ran on null.
#[test]
fn jobs_that_name_no_single_file_are_told_what_to_write() {
    for (number, (lines, says)) in [
        ("filename=/a:/b", "'filename' has 2 files"),
        ("directory=/tmp", "option 'directory'"),
        ("filename_format=$jobname", "option 'filename_format'"),
        ("filename=/a\n[k]\nfilename=/b", "job j names '/a', and job k names '/b'"),
        ("filename=/a\n[k]\nbs=4k", "job j names '/a', and job k names no file"),
    ]
    .into_iter()
    .enumerate()
    {
        let path = job(&format!("storage-several-{number}.fio"), &format!("size=1m\n{lines}\nsize=1m"));
        let text = refused(&["bench", &path]);
        assert!(text.contains(says) && (text.contains("--device") || text.contains("link")), "{lines}: {text}");
        printed(&["bench", &path, "--device", "null"]);
    }
}
