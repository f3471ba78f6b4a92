//! A disk of 1000 bytes behind every front-end.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use blkmq::RequestQueue;
use blkmq_export::{Export, Level, Server};
use blkmq_vhost_user::Device;

use crate::device::{Random, first_seed};
use crate::durability::block_device::BlockDevice;
use crate::durability::ledger::SECTOR;
use crate::durability::load::{Kind, Operation, Port};
use crate::durability::machine::Machine;
use crate::durability::{file, folder};
use crate::served::{FLUSH, connect, until};

const BYTES: usize = 1000;

/// Writes sectors, and waits. Returns whether it was told done.
fn write(port: &mut impl Port, sectors: Range<usize>, byte: u8) -> bool {
    let bytes = sectors.start * SECTOR..sectors.end * SECTOR;
    let data = vec![byte; bytes.len()];
    let operation = Operation { kind: Kind::Write, bytes, fua: false, preflush: false };
    port.ask(&operation, 1, &data) && port.answer().expect("the server answers").1
}

/// A queue in front of a file of so many bytes.
fn queue(device: &str, path: &Path, bytes: usize) -> RequestQueue {
    fs::write(path, vec![0; bytes]).expect("the folder is writable");
    RequestQueue::builder(blkmq_drivers::open(device).expect("it is there")).build().expect("the queue is good")
}

/// A server, with what it logs.
fn serve(q: RequestQueue) -> (Server, Arc<Mutex<Vec<String>>>) {
    let lines = Arc::<Mutex<Vec<String>>>::default();
    let kept = Arc::clone(&lines);
    let log = move |_: Level, line: &str| kept.lock().expect("no holder panics").push(line.to_owned());
    let server = Server::builder().export(Export::new("", q)).log(log).start().expect("the server is right");
    (server, lines)
}

/// Red if a disk is served of which nothing can be reached.
#[test]
fn a_disk_of_less_than_a_sector_is_refused_to_machines() {
    let folder = folder();
    let (path, disk) = file(&folder, "disk");
    let (server, _) = serve(queue(&format!("file,path={disk}"), &path, 100));
    let devices = vec![Device::new(folder.path().join("vm"))];
    let error = blkmq_vhost_user::Server::start(devices, server.engine()).expect_err("there is no sector").to_string();
    assert!(error.ends_with("has 100 bytes; a machine reaches whole sectors of 512 bytes alone"), "{error}");
    server.wait();
}

/// Red before a write of the last sector, of which the disk has a part, was told done behind vhost-user and ublk: what
/// the disk has no bytes for was lost. Red too if such a write changes what NBD clients have there.
#[test]
fn a_disk_that_ends_within_a_sector_keeps_what_is_told_done_behind_each_front_end() {
    let mut random = Random(first_seed());
    let folder = folder();
    for engine in ["any", "threads"] {
        let (path, disk) = file(&folder, engine);
        let q = queue(&format!("file,path={disk},engine={engine}"), &path, BYTES);
        let (server, lines) = serve(q);
        let socket = folder.path().join("vm");
        let machines = blkmq_vhost_user::Server::start(vec![Device::new(&socket)], server.engine());
        let machines = machines.expect("it can listen");
        let is_gone = Arc::new(AtomicBool::new(false));
        let (mut nbd, mut block) = (connect(&server), BlockDevice::new(server.engine(), &is_gone));
        let mut machine = Machine::new(&socket, false, &is_gone);
        assert_eq!((nbd.size, machine.capacity()), (BYTES as u64, 1));
        let told = format!("{}: the last 488 of the device's 1000 bytes are less than a block", socket.display());
        until(|| lines.lock().expect("no holder panics").iter().any(|line| line.starts_with(&told)));
        let mut model = vec![0; BYTES];
        for round in 0..300 {
            let byte = random.below(256) as u8;
            let (start, end) = random.pick(&[(0, 1), (1, 2), (0, 2), (2, 3)]);
            let is_there = end == 1;
            match random.below(3) {
                0 => {
                    let start = random.below(BYTES as u64) as usize;
                    let end = start + 1 + random.below((BYTES - start) as u64) as usize;
                    assert_eq!(block.beside(|| nbd.write(start as u64, &vec![byte; end - start])), 0);
                    model[start..end].fill(byte);
                }
                front_end => {
                    let is_done = match front_end {
                        1 => write(&mut block, start..end, byte),
                        _ => write(&mut machine, start..end, byte),
                    };
                    assert_eq!(is_done, is_there, "round {round}: sectors {start} to {end}");
                    model[..if is_there { SECTOR } else { 0 }].fill(byte);
                }
            }
            assert!(nbd.read(0, BYTES) == model, "round {round}");
        }
        nbd.send(FLUSH, 9, 0, 0, &[]);
        assert_eq!(nbd.receive(), Some((9, 0)));
        assert!(fs::read(&path).expect("it is there") == model);
        drop((block, machine, nbd));
        server.stop().drain();
        machines.wait();
        server.wait();
    }
}
