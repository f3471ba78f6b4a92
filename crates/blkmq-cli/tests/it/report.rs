//! `--report` from outside: the page says what the words say.

use std::fs;

use crate::run::{blkmq, failed, has_all, interrupted, printed, refused, temporary};

const JOB: &[u8] =
    b"[global]\nrw=randread\nsize=64m\n[oltp & co]\niodepth=4\nioengine=libaio\n[log]\nrw=write\nstonewall\n";

/// What the program prints, and the page it writes.
fn page(name: &str, arguments: &[&str]) -> (String, String) {
    let path = temporary(name, b"");
    let words = printed(&[arguments, &["--report", &path]].concat());
    (words, fs::read_to_string(path).expect("the page was written"))
}

#[test]
fn a_run_has_its_numbers_on_the_page() {
    let job = temporary("report.fio", JOB);
    let device = "null,irqmode=2,completion_nsec=100us";
    let (words, html) =
        page("run.html", &["bench", &job, "--clock", "virtual", "--device", device, "--scheduler", "none"]);
    let line = words.lines().find(|line| line.starts_with("oltp & co")).expect("the job has a line");
    for number in line["oltp & co".len()..].split_whitespace() {
        assert!(html.contains(&format!("<td>{number}</td>")), "{number}");
    }
    has_all(&html, &["<td>oltp &amp; co</td>", "<h2>Latencies</h2>", "oltp &amp; co: read", "log: write", device]);
    has_all(&html, &["Times are virtual"]);
    assert_eq!(html.matches("<svg ").count(), 2);
}

#[test]
fn a_comparison_and_a_table_have_theirs() {
    let job = temporary("report-ab.fio", JOB);
    let slices = ["--rounds", "2", "--runtime", "5ms"];
    let (words, html) =
        page("ab.html", &[&["bench", &job, "--ab", "scheduler=none,mq-deadline"], &slices[..]].concat());
    assert!(words.contains("B/A"), "{words}");
    has_all(&html, &["scheduler=mq-deadline", "<h2>Ratio</h2>", "from 2 rounds", "were measured on the machine above"]);
    let (words, html) = page("table.html", &[&["reproduce", "batch"], &slices[..]].concat());
    assert!(words.contains("263K"), "{words}");
    has_all(&html, &["<td>263K</td>", "<td>263000</td>", "<td>475K</td><td>+80.6 %</td>", "Yu Kuai 2025"]);
    has_all(&html, &["<h2>batch: rates</h2>", "<h2>batch: ratios</h2>", "<h2>batch: published gains</h2>"]);
    has_all(&html, &["Rates over those of ", "blkmq reproduce batch"]);
}

#[test]
fn a_page_is_kept_until_there_is_another() {
    let job = temporary("report-kept.fio", JOB);
    let path = temporary("kept.html", &[b'x'; 1 << 20]);
    let failing = "null,memory_backed=1,badblocks=0-100000000";
    for (arguments, code) in [(["--ab", "windmill"], 2), (["--device", "nul"], 2)] {
        failed(&[&["bench", &job, "--report", &path], &arguments[..]].concat(), code);
        assert_eq!(fs::metadata(&path).expect("it is there").len(), 1 << 20);
    }
    let output = blkmq(&["bench", &job, "--report", &path, "--device", failing]);
    assert_eq!(output.status.code(), Some(1));
    let html = fs::read_to_string(&path).expect("the page was written");
    assert!(html.starts_with("<!DOCTYPE html>") && html.trim_end().ends_with("</html>"), "nothing old is left");
}

/// Red if Ctrl-C does not end a run that would take a month, or if the results so far are not printed, or not on the
/// page.
#[test]
fn an_interrupted_run_tells_what_it_measured() {
    let job = temporary("report-month.fio", b"[a]\nrw=randread\ntime_based\nruntime=30d\n");
    let path = temporary("month.html", b"");
    fs::remove_file(&path).expect("it was just made");
    let output = interrupted(&["bench", &job], &path);
    let (words, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{error}");
    has_all(&words, &["requests to the driver"]);
    assert!(error.ends_with("interrupted before its end\n"), "{error}");
    assert!(fs::read_to_string(&path).expect("the page was written").contains("requests to the driver"));
}

/// Red if the page is opened only after the jobs have run, which takes a month here.
#[test]
fn a_page_that_cannot_be_written_is_refused_at_once() {
    let job = temporary("report-long.fio", b"[a]\ntime_based\nruntime=30d\n");
    let text = refused(&["bench", &job, "--report", "/no/such/folder/page.html"]);
    assert!(text.contains("--report /no/such/folder/page.html: the file cannot be written"), "{text}");
    let text = refused(&["reproduce", "all", "--report", "/no/such/folder/page.html"]);
    assert!(text.contains("the file cannot be written"), "{text}");
}
