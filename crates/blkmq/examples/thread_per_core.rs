//! One thread per core, each with its own submitter, on one device: `cargo run --release --example thread_per_core`.

use std::thread;

use blkmq::driver::spec;
use blkmq::{Bio, Buffer, Client, RequestQueue};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = spec::open("null,irqmode=2,completion_nsec=20000,hw_queue_depth=32")?;
    let q = RequestQueue::builder(device).scheduler("mq-deadline").build()?;
    let cores = thread::available_parallelism()?.get();
    thread::scope(|scope| {
        for core in 0..cores as u64 {
            let mut submitter = q.submitter(&Client::new(format!("core {core}"))).expect("there is room for each core");
            scope.spawn(move || {
                let (mut next, mut done) = (core << 20, 0);
                while done < 10_000 {
                    // Keep 16 reads outstanding.
                    while submitter.nr_outstanding() < 16 {
                        submitter.submit(Bio::read(next, Buffer::zeroed(4096))).expect("there are more slots");
                        next += 64;
                    }
                    submitter.wait(1, None);
                    while let Some(completion) = submitter.reap() {
                        assert!(completion.status.is_ok());
                        done += 1;
                    }
                }
            });
        }
    });
    println!("{cores} cores: {:?}", q.counters());
    Ok(())
}
