//! The program, killed under load and started again.

use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use blkmq::scheduler_names;
use rustix::process::Signal;

use crate::device::{Random, first_seed};
use crate::durability::ledger::{Ledger, Survives};
use crate::durability::load::{Worker, bytes_of};
use crate::durability::{file, folder, lockings};
use crate::served::{AtEnd, Nbd, Served};

const CLIENTS: usize = 3;
const NUMBERS: [usize; CLIENTS] = [0, 1, 2];
/// How often the server is killed.
const KILLS: u64 = 200;

/// A server of the file, with settings that follow from the seed.
fn serve(folder: &tempfile::TempDir, disk: &str, random: &mut Random) -> Served {
    let direct = random.below(2);
    let size = bytes_of(CLIENTS);
    let queues = random.pick(&[1, 2]);
    let spec = format!("file,path={disk},size={size},direct={direct},submit_queues={queues},hw_queue_depth=8");
    let scheduler = random.pick(&scheduler_names());
    let locking = random.pick(&lockings(scheduler)).name();
    let [nbd, control] = ["nbd", "control"].map(|name| file(folder, name).1);
    let sockets = ["--nbd", &nbd, "--control", &control];
    let device = ["--device", &spec, "--scheduler", scheduler, "--locking", locking];
    Served::start_in(folder.path(), &[&sockets[..], &device].concat())
}

/// What the device holds.
fn content(server: &Served) -> Vec<u8> {
    let mut client: Nbd = server.connect("");
    client.read(0, bytes_of(CLIENTS))
}

/// Red if a write is answered before the kernel has done all of it.
#[test]
fn what_was_answered_is_there_after_a_kill() {
    let seed = first_seed();
    let folder = folder();
    let (path, disk) = file(&folder, "disk");
    let ledger = Mutex::new(Ledger::new(bytes_of(CLIENTS), Survives::Answered));
    let mut random = Random(seed);
    let mut server = serve(&folder, &disk, &mut random);
    let answers = AtomicU64::new(0);
    for kill in 0..KILLS {
        let steps = random.below(200);
        // All workers are connected before the first of them begins.
        let workers = NUMBERS.map(|number| Worker::new(server.connect(""), number, seed + kill, &ledger));
        thread::scope(|scope| {
            for (number, mut worker) in workers.into_iter().enumerate() {
                let (server, answers) = (&server, &answers);
                scope.spawn(move || {
                    if number == 0 {
                        // The kill comes in the middle of this worker's work and of the others'.
                        let _kill = AtEnd(|| server.signal(Signal::KILL));
                        assert!(worker.steps(steps), "the server went by itself");
                    }
                    worker.steps(u64::MAX);
                    assert_eq!(worker.errors, 0, "nothing is refused");
                    answers.fetch_add(worker.answers, Ordering::Relaxed);
                });
            }
        });
        assert_eq!(server.child.wait().expect("it is a child of this one").code(), None, "it was killed");
        server = serve(&folder, &disk, &mut random);
        let kept = ledger.lock().expect("no test goes on after a panic").check(&content(&server));
        assert_eq!(kept, Ok(()), "BLKMQ_SEED={seed}, kill {kill}");
    }
    let found = content(&server);
    drop(server);
    assert!(fs::read(path).expect("the file is there") == found, "BLKMQ_SEED={seed}");
    let answers = answers.into_inner();
    assert!(answers > 20 * KILLS, "{answers} answers are no load");
}
