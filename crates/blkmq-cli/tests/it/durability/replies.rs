//! Every flush and FUA that a file is asked for, compared with the journal of its rings.

use std::sync::{Arc, Mutex};
use std::thread;

use blkmq::{Client, Locking, RequestQueue, scheduler_names};
use blkmq_drivers::file::{Config, File};

use crate::device::first_seed;
use crate::durability::journal::{Log, Tally};
use crate::durability::ledger::{Ledger, Survives};
use crate::durability::load::{Port, Worker, bytes_of};
use crate::durability::{file, folder, lockings, serve};
use crate::served::connect;

const CLIENTS: usize = 3;

/// A file with a journal, behind a queue.
fn queue(config: Config, log: &Arc<Log>, scheduler: &str, locking: Locking) -> RequestQueue {
    let driver = File::open_with_journal(config, log.clone()).expect("the file can be made");
    let q = RequestQueue::builder(Arc::new(driver)).scheduler(scheduler).locking(locking);
    q.build().expect("the queue is good")
}

/// Runs the load of several clients, each with this many steps, through these ports.
fn run<P: Port + Send>(log: &Log, steps: u64, port: impl Fn() -> P) {
    let ledger = Mutex::new(Ledger::new(bytes_of(CLIENTS), Survives::Answered));
    let seed = first_seed();
    thread::scope(|scope| {
        for number in 0..CLIENTS {
            let mut worker = Worker::new(port(), number, seed, &ledger).logged(log);
            scope.spawn(move || {
                assert!(worker.steps(steps) && worker.finish());
                assert_eq!(worker.errors, 0);
            });
        }
    });
}

fn config(folder: &tempfile::TempDir, name: &str, direct: bool) -> Config {
    let size = Some(bytes_of(CLIENTS) as u64);
    Config { size, direct, queues: 2, depth: 8, ..Config::new(file(folder, name).0) }
}

/// Red if the driver leaves out the sync of a flush, the sync after zeroes and discards with FUA, or the flag of a
/// write with FUA; or if the flush machine lets waiting flushes share the flush that runs, or sends the data of a write
/// before the flush that the write asks for.
#[test]
fn every_reply_follows_its_sync() {
    let folder = folder();
    for scheduler in scheduler_names() {
        for locking in lockings(scheduler) {
            let direct = locking != Locking::Single;
            let log = Arc::new(Log::default());
            let q = queue(config(&folder, &format!("{scheduler}-{locking}"), direct), &log, scheduler, locking);
            run(&log, 300, || q.submitter(&Client::new("test")).expect("there is a place"));
            let Tally { flushes, fuas, preflushes } =
                log.check().unwrap_or_else(|error| panic!("{scheduler} {locking}: {error}"));
            assert!(flushes > 10 && fuas > 10 && preflushes > 2, "{flushes} {fuas} {preflushes}");
        }
    }
}

#[test]
fn every_reply_to_an_nbd_client_follows_its_sync() {
    let folder = folder();
    let log = Arc::new(Log::default());
    let q = queue(config(&folder, "disk", true), &log, "mq-deadline", Locking::default());
    let server = serve(q);
    run(&log, 300, || connect(&server));
    let Tally { flushes, fuas, .. } = log.check().unwrap_or_else(|error| panic!("{error}"));
    assert!(flushes > 10 && fuas > 10, "{flushes} {fuas}");
}
