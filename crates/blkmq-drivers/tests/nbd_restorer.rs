//! A process of its own, because the test limits the memory of its process and looks for a thread by name: the thread
//! of the device `nbd` that connects again.

#[path = "it/common/mod.rs"]
mod common;
mod memory;
#[path = "it/pretend/mod.rs"]
mod pretend;

use std::fs;
use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;

use blkmq::driver::Health;
use blkmq::{Bio, Buffer, RequestQueue, Status};
use blkmq_nbd::SimpleReply;
use common::{run, submitter};
use memory::allow_threads;
use pretend::{SIZE, accept, request};

/// The state of the thread that connects again, if the process has one: `S` while it sleeps.
fn restorer() -> Option<char> {
    fs::read_dir("/proc/self/task").expect("proc is there").find_map(|task| {
        // The thread's number, its name in brackets, its state, and numbers.
        let stat = task.and_then(|task| fs::read_to_string(task.path().join("stat"))).ok()?;
        let (_, rest) = stat.split_once("(nbd restorer) ")?;
        rest.chars().next()
    })
}

fn answer(stream: &mut UnixStream) {
    let cookie = request(stream).expect("the client asks").cookie;
    let reply = SimpleReply { errno: 0, cookie }.encode();
    stream.write_all(&[&reply[..], &[7; 512]].concat()).expect("the client waits");
}

/// Red (hangs) if the thread is made only when it is needed, because then the system may give none; or if it outlives
/// the device. Red if requests are taken without it, or if the operator is not told why the system gives no thread.
#[test]
fn the_thread_that_connects_again_is_there_from_the_first_request_to_the_end_of_the_device() {
    let folder = tempfile::tempdir().expect("there is room");
    let socket = folder.path().join("a");
    let listener = UnixListener::bind(&socket).unwrap();
    let server = thread::spawn(move || {
        let accept = || accept(&listener, SIZE, 0);
        let mut first = accept();
        answer(&mut first);
        // The first server has the request, and ends.
        request(&mut first).expect("the client asks");
        drop(first);
        answer(&mut accept());
    });
    let spec = format!("nbd,uri=nbd+unix:///?socket={},reconnect_delay=600s", socket.display());
    let q = RequestQueue::builder(blkmq_drivers::open(&spec).unwrap()).build().unwrap();
    let mut submitter = submitter(&q);
    let mut read = || run(&mut submitter, [Bio::read(0, Buffer::zeroed(512))]).remove(0).status;

    allow_threads(false);
    assert_eq!(read(), Status::IoError, "a connection that breaks would be broken for good");
    let health = q.driver().health();
    assert!(
        matches!(&health, Health::Away(text) if text.contains("until the system gives the device a thread")),
        "{health:?}"
    );
    let error =
        blkmq_drivers::open("nbd,uri=nbd://localhost:1/").expect_err("no thread can look up the name").to_string();
    assert!(error.contains("'localhost' cannot be looked up: the system gives no thread"), "{error}");
    allow_threads(true);
    assert_eq!(read(), Status::Ok);
    assert_eq!(q.driver().health(), Health::Good);
    // The thread takes its name and memory for its stack when it runs, and then sleeps.
    while restorer() != Some('S') {
        thread::yield_now();
    }
    allow_threads(false);
    assert_eq!(read(), Status::Ok, "the next server answers");
    allow_threads(true);
    server.join().unwrap();
    drop((submitter, q));
    // A joined thread may be listed for a moment longer.
    while restorer().is_some() {
        thread::yield_now();
    }
}
