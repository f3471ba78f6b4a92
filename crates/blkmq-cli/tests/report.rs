//! `--report` from outside: the page says what the words say.

mod run;

use std::fs;

use run::{printed, refused, temporary};

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
    for text in [
        "<td>oltp &amp; co</td>",
        "<h2>Latencies</h2>",
        "oltp &amp; co: read",
        "log: write",
        "Times are virtual",
        device,
    ] {
        assert!(html.contains(text), "{text}");
    }
    assert_eq!(html.matches("<svg ").count(), 2);
}

#[test]
fn a_comparison_and_a_table_have_theirs() {
    let job = temporary("report-ab.fio", JOB);
    let slices = ["--rounds", "2", "--runtime", "5ms"];
    let (words, html) =
        page("ab.html", &[&["bench", &job, "--ab", "scheduler=none,mq-deadline"], &slices[..]].concat());
    assert!(words.contains("B/A"), "{words}");
    for text in ["scheduler=mq-deadline", "<h2>Ratio</h2>", "from 2 rounds", "were measured on the machine above"] {
        assert!(html.contains(text), "{text}");
    }
    let (words, html) = page("table.html", &[&["reproduce", "batch"], &slices[..]].concat());
    assert!(words.contains("263K"), "{words}");
    for text in ["<td>263K</td>", "<td>263000</td>", "Yu Kuai 2025", "<h2>batch: ratios</h2>", "blkmq reproduce batch"]
    {
        assert!(html.contains(text), "{text}");
    }
}

/// Before the jobs run, which would take this job forever.
#[test]
fn a_page_that_cannot_be_written_is_refused_at_once() {
    let job = temporary("report-long.fio", b"[a]\ntime_based\nruntime=30d\n");
    let text = refused(&["bench", &job, "--report", "/no/such/folder/page.html"]);
    assert!(text.contains("--report /no/such/folder/page.html: the file cannot be written"), "{text}");
    let text = refused(&["reproduce", "all", "--report", "/no/such/folder/page.html"]);
    assert!(text.contains("the file cannot be written"), "{text}");
}
