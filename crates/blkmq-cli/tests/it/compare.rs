//! Comparisons of two settings by `blkmq bench --ab`: how long they take, and what is said of them.

use std::io::{BufRead, BufReader};
use std::time::Instant;

use crate::run::{interrupt, printed, refused, spawn, temporary};

/// Red if nobody is told at the beginning how long a comparison can take, also on a pipe.
#[test]
fn a_comparison_says_at_once_how_long_it_can_take() {
    let path = temporary("long.fio", b"[a]\nrw=randread\n");
    let mut program = spawn(&["bench", &path, "--ab", "iostats=0,1", "--runtime", "20s"]);
    let mut told = String::new();
    BufReader::new(program.stderr.take().expect("it is piped")).read_line(&mut told).expect("it is text");
    interrupt(&program);
    assert_eq!(program.wait().expect("it ends").code(), Some(1));
    assert!(told.contains("200 rounds of four, take up to 4 h 26 min, 21 min 20 s if it is soon clear"), "{told}");
}

/// Red if `--for` takes longer than it says, or accepts what does not fit.
#[test]
fn a_comparison_ends_in_the_time_that_it_is_given() {
    let path = temporary("for.fio", b"[a]\nrw=randread\n");
    let began = Instant::now();
    let words = printed(&["bench", &path, "--ab", "iostats=0,1", "--for", "1s"]);
    assert!(words.contains("rounds of four slices of 20 ms"), "{words}");
    // Far from the 80 s of a comparison without a limit.
    assert!(began.elapsed().as_secs() < 30, "{:?}", began.elapsed());
    let error = refused(&["bench", &path, "--ab", "iostats=0,1", "--for", "1s", "--runtime", "1s"]);
    assert!(error.contains("--for 1 s: two rounds of four slices take 8 s; give --for more"), "{error}");
}

/// Red if slices that take longer than planned make a comparison longer: the operation that is outstanding at the end
/// of a slice of 20 ms takes 10 ms more, and twelve rounds are planned.
#[test]
fn a_comparison_with_slow_slices_ends_in_the_time_that_it_is_given() {
    let path = temporary("for-slow.fio", b"[a]\nrw=randread\n");
    let device = "null,irqmode=2,completion_nsec=15ms";
    let words = printed(&["bench", &path, "--device", device, "--ab", "iostats=0,1", "--for", "1s"]);
    let rounds = words.split(" rounds of four").next().and_then(|head| head.rsplit(' ').next());
    let rounds: u32 = rounds.and_then(|number| number.parse().ok()).expect("it tells the rounds");
    assert!(rounds < 12, "{words}");
}

/// Red before a comparison that `--for` had ended asked for more rounds, which `--for` chooses.
#[test]
fn a_comparison_says_what_would_give_it_more_rounds() {
    let path = temporary("more.fio", b"[a]\nrw=randread\n");
    let words = |arguments: &[&str]| printed(&[&["bench", &path, "--ab", "iostats=0,1"], arguments].concat());
    let limited = words(&["--for", "400ms", "--runtime", "40ms"]);
    assert!(limited.contains("is not reliable: give --for a longer time."), "{limited}");
    let counted = words(&["--rounds", "2", "--runtime", "5ms"]);
    assert!(counted.contains("fewer than 16 rounds is not reliable: give more --rounds."), "{counted}");
}

/// Red before: nothing said which device both sides had been compared on, so that the figures of null, which a job file
/// without a filename runs on, looked like those of a disk.
#[test]
fn a_comparison_names_its_device() {
    let path = temporary("named.fio", b"[a]\nrw=randread\n");
    let few = ["--rounds", "2", "--runtime", "5ms"];
    let words = |ab: &str| printed(&[&["bench", &path, "--ab", ab], &few[..]].concat());
    let same = words("iostats=0,1");
    assert!(same.contains("device     null\n"), "{same}");
    let compared = words("device=null::null,irqmode=1");
    assert!(!compared.contains("device     ") && compared.contains("device=null,irqmode=1"), "{compared}");
}

/// Red before: a scheduler in front of a device that takes everything at once was compared with another one without a
/// word on why there was no difference.
#[test]
fn a_scheduler_that_has_nothing_to_order_is_said_to_be_one() {
    const SAYS: &str = "nothing waits that the scheduler could order";
    let path = temporary("order.fio", b"[a]\nrw=randread\nioengine=libaio\niodepth=8\nruntime=1\n");
    let words = |depth: u32, more: &[&str]| {
        let device = format!("null,irqmode=2,hw_queue_depth={depth}");
        printed(&[&["bench", &path, "--device", &device, "--clock", "virtual", "--runtime", "10ms"], more].concat())
    };
    let single = ["--scheduler", "mq-deadline"];
    assert!(words(64, &single).contains(SAYS) && !words(1, &single).contains(SAYS), "{}", words(1, &single));
    assert!(!words(64, &[]).contains(SAYS), "there is no scheduler");
    let pair = ["--ab", "scheduler=none,mq-deadline", "--rounds", "2"];
    let compared = words(64, &pair);
    assert!(compared.contains(&format!("B    {SAYS}")) && !compared.contains(&format!("A    {SAYS}")), "{compared}");
    assert!(!words(1, &pair).contains(SAYS), "{}", words(1, &pair));
}
