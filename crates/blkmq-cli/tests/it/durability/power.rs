//! The power of a device fails, and the server in front of it ends, at a random moment.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use blkmq::driver::Driver;
use blkmq::driver::null::Null;
use blkmq::{Limits, scheduler_names};
use blkmq_export::Server;
use blkmq_vhost_user::Device;

use crate::device::front::claiming;
use crate::device::{Random, first_seed};
use crate::durability::block_device::BlockDevice;
use crate::durability::ledger::{Ledger, Survives};
use crate::durability::load::{Port, Worker, bytes_of};
use crate::durability::machine::Machine;
use crate::durability::{self, folder};
use crate::served::{AtEnd, FUA, Nbd, WRITE_ZEROES, connect};

const CLIENTS: usize = 3;
const NUMBERS: [usize; CLIENTS] = [0, 1, 2];

/// A server in front of a device, with clients of one front-end.
trait Site: Sync {
    type Client: Port + Send;

    /// `flushes`: clients flush.
    fn new(driver: Arc<dyn Driver>, scheduler: &str, flushes: bool) -> Self;

    fn connect(&self, number: usize) -> Self::Client;

    /// Ends the server at once.
    fn stop(&self);
}

/// A server of a new queue in front of the device.
fn serve(driver: Arc<dyn Driver>, scheduler: &str) -> Server {
    durability::serve(durability::queue(driver, scheduler))
}

impl Site for Server {
    type Client = Nbd;

    fn new(driver: Arc<dyn Driver>, scheduler: &str, _flushes: bool) -> Self {
        serve(driver, scheduler)
    }

    fn connect(&self, _number: usize) -> Nbd {
        connect(self)
    }

    fn stop(&self) {
        Self::stop(self).now();
    }
}

/// Queues of a block device, as the kernel has them.
struct BlockDevices {
    server: Server,
    is_gone: Arc<AtomicBool>,
}

impl Site for BlockDevices {
    type Client = BlockDevice;

    fn new(driver: Arc<dyn Driver>, scheduler: &str, _flushes: bool) -> Self {
        Self { server: serve(driver, scheduler), is_gone: Arc::default() }
    }

    fn connect(&self, _number: usize) -> BlockDevice {
        BlockDevice::new(self.server.engine(), &self.is_gone)
    }

    fn stop(&self) {
        self.is_gone.store(true, Ordering::Relaxed);
        self.server.stop().now();
    }
}

/// Machines, each with a disk at a socket of its own.
struct Machines {
    server: Server,
    machines: Option<blkmq_vhost_user::Server>,
    folder: tempfile::TempDir,
    flushes: bool,
    is_gone: Arc<AtomicBool>,
}

impl Machines {
    fn socket(folder: &tempfile::TempDir, number: usize) -> PathBuf {
        folder.path().join(number.to_string())
    }
}

impl Site for Machines {
    type Client = Machine;

    fn new(driver: Arc<dyn Driver>, scheduler: &str, flushes: bool) -> Self {
        let (server, folder) = (serve(driver, scheduler), folder());
        let devices = NUMBERS.map(|number| Device::new(Self::socket(&folder, number)));
        let machines = blkmq_vhost_user::Server::start(devices.into(), server.engine()).expect("it can listen");
        Self { server, machines: Some(machines), folder, flushes, is_gone: Arc::default() }
    }

    fn connect(&self, number: usize) -> Machine {
        Machine::new(&Self::socket(&self.folder, number), !self.flushes, &self.is_gone)
    }

    fn stop(&self) {
        self.server.stop().now();
        self.is_gone.store(true, Ordering::Relaxed);
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        self.stop();
        self.machines.take().into_iter().for_each(blkmq_vhost_user::Server::wait);
    }
}

/// What the device holds.
fn content(driver: Arc<dyn Driver>) -> Vec<u8> {
    connect(&serve(driver, "none")).read(0, bytes_of(CLIENTS))
}

/// Of several power losses in a row on the same device: the number of those that lost data that should have been kept,
/// and what the first of them lost.
fn losses<S: Site>(fua: u8, flushes: bool, rounds: u64, claim: fn(Limits) -> Limits) -> (u64, Option<String>) {
    let seed = first_seed();
    let mut random = Random(seed);
    let config = format!("memory_backed=1,cache_size=1,fua={fua},size=1M,discard=1,irqmode=2,completion_nsec=20us");
    let device = Arc::new(Null::new(config.parse().expect("the spec is good")));
    let ledger = Mutex::new(Ledger::new(bytes_of(CLIENTS), Survives::Durable));
    let (mut nr_lost, mut first) = (0, None);
    for round in 0..rounds {
        let driver = claiming(claim(device.limits()), device.clone());
        let scheduler = random.pick(&scheduler_names());
        let server = S::new(Arc::clone(&driver), scheduler, flushes);
        let (steps, ends_first) = (random.below(300), random.one_in(2));
        let is_off = AtomicBool::new(false);
        // All workers are connected before the first of them begins.
        let workers = NUMBERS.map(|number| Worker::new(server.connect(number), number, seed + round, &ledger));
        let workers = workers.map(|worker| if flushes { worker } else { worker.without_flushes() });
        thread::scope(|scope| {
            for (number, mut worker) in workers.into_iter().enumerate() {
                let (server, device, is_off) = (&server, &device, &is_off);
                scope.spawn(move || {
                    if number == 0 {
                        let _stop = AtEnd(|| server.stop());
                        worker.steps(steps);
                        is_off.store(true, Ordering::Relaxed);
                        if ends_first {
                            server.stop();
                        }
                        device.lose_power();
                    }
                    while worker.steps(1) {
                        let is_off = is_off.load(Ordering::Relaxed);
                        assert!(worker.errors == 0 || is_off, "nothing fails with the power on");
                    }
                });
            }
        });
        drop(server);
        device.restore_power();
        let found = content(driver);
        let mut ledger = ledger.lock().expect("no test goes on after a panic");
        if let Err(lost) = ledger.check(&found) {
            nr_lost += 1;
            first.get_or_insert_with(|| format!("BLKMQ_SEED={seed}, round {round}: {lost}"));
            *ledger = Ledger::new(bytes_of(CLIENTS), Survives::Durable);
            // After a loss the device is reset, so that the next round begins with known contents.
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

/// 200 losses of power, after which everything is there that was to be durable.
fn nothing_is_lost<S: Site>() {
    for fua in [0, 1] {
        for flushes in [false, true] {
            let (_, first) = losses::<S>(fua, flushes, 50, |limits| limits);
            assert_eq!(first, None, "fua={fua}, flushes: {flushes}");
        }
    }
}

/// Red if the cache keeps its dirty pages at a flush.
#[test]
fn what_was_to_be_durable_survives_power_loss() {
    nothing_is_lost::<Server>();
}

/// Red if a flush or FUA of the kernel is lost on its way to the device.
#[test]
fn what_was_to_be_durable_behind_ublk_survives_power_loss() {
    nothing_is_lost::<BlockDevices>();
}

/// Red if a flush of a machine is lost on its way to the device, or a write of a machine that does not flush is told
/// done before it is durable.
#[test]
fn what_was_to_be_durable_behind_vhost_user_survives_power_loss() {
    nothing_is_lost::<Machines>();
}

/// How many of 20 losses of power have lost data that was to be durable, behind each front-end.
fn of_each(flushes: bool, fua: u8, claim: fn(Limits) -> Limits) -> [u64; 3] {
    let losses = [losses::<Server>, losses::<BlockDevices>, losses::<Machines>];
    losses.map(|losses| losses(fua, flushes, 20, claim).0)
}

/// The check can fail: a queue that believes that the device has no cache answers flushes and FUA, and passes none of
/// them on.
#[test]
fn flushes_that_are_only_answered_are_found_out() {
    let found = of_each(true, 1, |limits| Limits { write_cache: false, fua: false, ..limits });
    assert!(found.iter().all(|nr_lost| *nr_lost > 10), "{found:?} of 20");
}

/// The same for a device that claims to have FUA and has not: it gets the flag, and no flush after the data.
#[test]
fn fua_that_is_only_claimed_is_found_out() {
    let found = of_each(false, 0, |limits| Limits { fua: true, ..limits });
    assert!(found.iter().all(|nr_lost| *nr_lost > 10), "{found:?} of 20");
}
