//! A disk below driver `file`: what it is told, what it holds, that it may be pulled out while it works, and that it
//! may grow.
//!
//! `scripts/nvme` runs this program in a guest, with an NVMe drive that QEMU emulates. There the program has one job at
//! a time, which `BLKMQ_DRIVE_JOB` names, on the disk `BLKMQ_DRIVE`. It destroys what is on the disk. What this program
//! cannot do there, such as to pull out the drive, it asks for: it prints a line `ASK what`, and waits for a line that
//! says that it was done. Outside of the guest the program then has the job `told`, to judge what the drive was told.
//!
//! Without a job, as `cargo test` runs it, the program writes to a file of its own. That shows what a file can show:
//! several threads find what they wrote.

#[path = "../it/common/mod.rs"]
mod common;
mod contents;
mod growth;
#[path = "../it/model.rs"]
mod model;
mod orders;
mod pulled;
mod told;
mod unpolled;

use std::env;
use std::io;
use std::path::Path;

use blkmq::{Buffer, Locking, RequestQueue};

const SECTOR: usize = 512;
/// Bytes of the blocks in which the jobs read and write, and their sectors.
const BLOCK: usize = 4096;
const BLOCK_SECTORS: u64 = (BLOCK / SECTOR) as u64;

fn queue(spec: &str, scheduler: &str, locking: Locking) -> RequestQueue {
    let driver = blkmq_drivers::open(spec).expect("the disk can be opened");
    RequestQueue::builder(driver).scheduler(scheduler).locking(locking).build().expect("the disk makes sense")
}

/// A block that is full of this byte.
fn block(byte: u8) -> Buffer {
    Buffer::from(&[byte; BLOCK][..])
}

/// Asks the program outside of the guest for something, and waits until that program has done it.
fn ask(what: &str) {
    println!("ASK {what}");
    let mut line = String::new();
    io::stdin().read_line(&mut line).expect("there is a line to the outside");
    assert!(line.trim_end().ends_with("done"), "{what}: {line:?}");
}

fn main() {
    let variable = |name| env::var(name).ok();
    match (variable("BLKMQ_DRIVE_JOB").as_deref(), variable("BLKMQ_DRIVE")) {
        (Some("orders"), Some(disk)) => orders::check(&disk),
        (Some("contents"), Some(disk)) => contents::check(&format!("path={disk}"), &disk),
        (Some("pulled"), Some(disk)) => pulled::check(&disk),
        (Some("growth"), Some(disk)) => growth::check(&disk),
        (Some("unpolled"), Some(disk)) => unpolled::check(&disk),
        (Some("told"), Some(folder)) => told::check(&folder),
        (None, None) => {
            let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("blkmq-drive-{}", std::process::id()));
            let disk = path.display().to_string();
            contents::check(&format!("path={disk},size=16M"), &disk);
            std::fs::remove_file(path).expect("it was just made");
        }
        (job, disk) => panic!("no such job: {job:?} on {disk:?}"),
    }
}
