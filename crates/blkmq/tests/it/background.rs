//! Background threads that cannot all be started.

use std::env;
use std::process::Command;

use crate::device::{join, open};
use blkmq::{Bio, Buffer, QueueError, RequestQueue};

/// Set in the process that has no room for threads.
const HAS_NO_THREADS: &str = "BLKMQ_TEST_HAS_NO_THREADS";

/// Red if the call panics where the system has no thread left, if a place in the queue stays taken, or if submitters
/// go on relying on threads that do not run.
#[test]
fn without_threads_the_call_fails_and_the_queue_goes_on() {
    if env::var_os(HAS_NO_THREADS).is_none() {
        // A stack of an exbibyte is more than a process can have, so each start of a thread fails there.
        let test = env::current_exe().expect("the test's program is known");
        let mut child = Command::new(test);
        child.args(["--exact", "background::without_threads_the_call_fails_and_the_queue_goes_on", "--test-threads=1"]);
        let output = child.env(HAS_NO_THREADS, "1").env("RUST_MIN_STACK", (1u64 << 60).to_string()).output();
        let output = output.expect("the program runs");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
        return;
    }
    let q = RequestQueue::builder(open("null,size=64M")).build().unwrap();
    // A queue has 1023 places.
    for _ in 0..1100 {
        let error = q.start_threads(3).map(drop).expect_err("there are no threads");
        assert!(matches!(error, QueueError::NoThread(_)), "not a lack of places, which are given back: {error}");
        assert!(error.to_string().starts_with("a background thread cannot be started: "), "{error}");
    }
    assert!(q.dump().contains(" background 0\n"), "{}", q.dump());
    let mut submitter = join(&q);
    submitter.submit(Bio::read(0, Buffer::zeroed(4096))).unwrap();
    submitter.wait(1, None);
    assert!(submitter.reap().is_some_and(|completion| completion.status.is_ok()));
}
