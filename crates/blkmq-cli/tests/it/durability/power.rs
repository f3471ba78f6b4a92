//! The power of a device fails, and the server in front of it ends, at a random moment.

use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use blkmq::driver::Driver;
use blkmq::driver::null::Null;
use blkmq::{Limits, RequestQueue, scheduler_names};
use blkmq_export::{Export, Server};

use crate::device::{Claims, Random, first_seed};
use crate::durability::AtEnd;
use crate::durability::ledger::{Ledger, Survives};
use crate::durability::load::{Worker, bytes_of};
use crate::served::{FUA, Nbd, WRITE_ZEROES};

const CLIENTS: usize = 3;
const NUMBERS: [usize; CLIENTS] = [0, 1, 2];

/// A server of a new queue in front of the device.
fn serve(driver: Arc<dyn Driver>, scheduler: &str) -> Server {
    let q = RequestQueue::builder(driver).scheduler(scheduler).build().expect("the queue is good");
    Server::builder().export(Export::new("", q)).start().expect("the server is right")
}

fn connect(server: &Server) -> Nbd {
    let (ours, theirs) = UnixStream::pair().expect("there are descriptors");
    server.serve(theirs.into(), Some("a test")).expect("there is room for a client");
    Nbd::connect(ours, "")
}

/// Of several power losses in a row on the same device: the number of those that lost data that should have been kept,
/// and what the first of them lost.
fn losses(fua: u8, flushes: bool, rounds: u64, claim: impl Fn(Limits) -> Limits) -> (u64, Option<String>) {
    let seed = first_seed();
    let mut random = Random(seed);
    let config = format!("memory_backed=1,cache_size=1,fua={fua},size=1M,discard=1,irqmode=2,completion_nsec=20us");
    let device = Arc::new(Null::new(config.parse().expect("the spec is good")));
    let ledger = Mutex::new(Ledger::new(bytes_of(CLIENTS), Survives::Durable));
    let (mut nr_lost, mut first) = (0, None);
    for round in 0..rounds {
        let driver: Arc<dyn Driver> = Arc::new(Claims { limits: claim(device.limits()), inner: device.clone() });
        let scheduler = random.pick(&scheduler_names());
        let server = serve(Arc::clone(&driver), scheduler);
        let (steps, ends_first) = (random.below(300), random.one_in(2));
        let is_off = AtomicBool::new(false);
        // All workers are connected before the first of them begins.
        let workers = NUMBERS.map(|number| Worker::new(connect(&server), number, seed + round, &ledger));
        let workers = workers.map(|worker| if flushes { worker } else { worker.without_flushes() });
        thread::scope(|scope| {
            for (number, mut worker) in workers.into_iter().enumerate() {
                let (server, device, is_off) = (&server, &device, &is_off);
                scope.spawn(move || {
                    if number == 0 {
                        let _stop = AtEnd(|| server.stop().now());
                        worker.steps(steps);
                        is_off.store(true, Ordering::Relaxed);
                        if ends_first {
                            server.stop().now();
                        }
                        device.lose_power();
                    }
                    while worker.steps(1) {
                        assert!(
                            worker.errors == 0 || is_off.load(Ordering::Relaxed),
                            "nothing fails with the power on"
                        );
                    }
                });
            }
        });
        drop(server);
        device.restore_power();
        let server = serve(driver, scheduler);
        let found = connect(&server).read(0, bytes_of(CLIENTS));
        let mut ledger = ledger.lock().expect("no test goes on after a panic");
        if let Err(lost) = ledger.check(&found) {
            nr_lost += 1;
            first.get_or_insert_with(|| format!("BLKMQ_SEED={seed}, round {round}: {lost}"));
            *ledger = Ledger::new(bytes_of(CLIENTS), Survives::Durable);
            // After a loss the device is reset, so that the next round begins with known contents.
            drop(server);
            zero(&device);
        }
    }
    (nr_lost, first)
}

/// Fills the device with zeroes, durably.
fn zero(device: &Arc<Null>) {
    let server = serve(device.clone(), "none");
    let mut client = connect(&server);
    let sent = client.try_send(FUA, WRITE_ZEROES, 0, 0, bytes_of(CLIENTS) as u32, &[]);
    sent.expect("the server talks on");
    assert_eq!(client.receive(), Some((0, 0)));
}

/// Red if the cache keeps its dirty pages at a flush.
#[test]
fn what_was_to_be_durable_survives_power_loss() {
    for fua in [0, 1] {
        for flushes in [false, true] {
            let (_, first) = losses(fua, flushes, 50, |limits| limits);
            assert_eq!(first, None, "fua={fua}, flushes: {flushes}");
        }
    }
}

/// The check can fail: a queue that believes that the device has no cache answers flushes and FUA, and passes none of
/// them on.
#[test]
fn flushes_that_are_only_answered_are_found_out() {
    let (nr_lost, _) = losses(1, true, 20, |limits| Limits { write_cache: false, fua: false, ..limits });
    assert!(nr_lost > 10, "{nr_lost} of 20");
}

/// The same for a device that claims to have FUA and has not: it gets the flag, and no flush after the data.
#[test]
fn fua_that_is_only_claimed_is_found_out() {
    let (nr_lost, _) = losses(0, false, 20, |limits| Limits { fua: true, ..limits });
    assert!(nr_lost > 10, "{nr_lost} of 20");
}
