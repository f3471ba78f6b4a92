//! A driver of one's own, and its test: a disk in memory, at which a thread of its own reads and writes.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use blkmq::SECTOR_SIZE;
use blkmq::driver::{Batch, BorrowedRequest, Done, Driver, Topology};
use blkmq::{Bio, Buffer, Client, Limits, Op, RequestQueue, Status, Time};

/// What the thread is to do: the request, what it asks for, and the first byte of the disk.
type Job = (BorrowedRequest, Op, usize);

#[derive(Debug)]
struct Disk {
    sectors: u64,
    jobs: Sender<Job>,
    over: Mutex<Receiver<BorrowedRequest>>,
}

impl Disk {
    fn new(sectors: u64) -> Self {
        let ((jobs, todo), (done, over)) = (channel::<Job>(), channel());
        std::thread::spawn(move || {
            let mut memory = vec![0; sectors as usize * SECTOR_SIZE];
            for (mut borrowed, op, mut at) in todo {
                for mut segment in borrowed.segments() {
                    let place = &mut memory[at..at + segment.len()];
                    at += segment.len();
                    match op {
                        Op::Write => segment.copy_to(0, place),
                        _ => segment.copy_from(0, place),
                    }
                }
                done.send(borrowed).expect("the disk waits for what it has begun");
            }
        });
        Self { sectors, jobs, over: Mutex::new(over) }
    }
}

impl Driver for Disk {
    fn name(&self) -> &'static str {
        "disk"
    }
    fn limits(&self) -> Limits {
        Limits { capacity_sectors: self.sectors, ..Limits::default() }
    }
    fn topology(&self) -> Topology {
        Topology::new(1, 32)
    }
    fn queue_rqs(&self, _hctx: u16, batch: &mut Batch<'_>, _now: Time) {
        while let Some(rq) = batch.next_request() {
            let (op, at) = (rq.op(), rq.sector() as usize * SECTOR_SIZE);
            self.jobs.send((batch.borrow(rq), op, at)).expect("the thread is there as long as the disk");
        }
    }
    fn poll(&self, _hctx: u16, done: &mut Done<'_>, _now: Time) {
        let over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        over.try_iter().for_each(|borrowed| done.give_back(borrowed, Status::Ok));
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let q = RequestQueue::builder(Arc::new(Disk::new(2048))).build()?;
    let mut submitter = q.submitter(&Client::new("example"))?;
    submitter.submit(Bio::write(8, Buffer::from(&[7; 4096][..])))?;
    submitter.wait(1, None);
    println!("{:?}", submitter.reap().expect("the write is over").into_result()?.bio);
    Ok(())
}

#[test]
fn what_is_written_is_read() {
    let disk = Disk::new(2048);
    let mut harness = blkmq::driver::harness::Harness::new(&disk, 0);
    assert!(harness.run(Bio::write(8, Buffer::from(&[7; 4096][..]))).1.is_ok());
    let (bio, status) = harness.run(Bio::read(0, Buffer::zeroed(8192)));
    let data: Vec<u8> = bio.buffers.iter().flat_map(|buffer| buffer.to_vec()).collect();
    assert!(status.is_ok() && data == [[0; 4096], [7; 4096]].concat());
}
