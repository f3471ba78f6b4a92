//! A tokio program that writes a file and reads it back through a scheduler, eight operations at a time.

use blkmq::future::AsyncSubmitter;
use blkmq::{Bio, Buffer, Client, RequestQueue};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::temp_dir().join(format!("blkmq-tokio-{}.img", std::process::id()));
    let disk = blkmq_drivers::open(&format!("file,path={},size=64M", path.display()))?;
    let q = RequestQueue::builder(disk).scheduler("mq-deadline").build()?;
    // These threads poll the device, and wake the tasks whose operations are over.
    let threads = q.start_threads(1)?;
    let submitter = AsyncSubmitter::new(q.submitter(&Client::new("tokio"))?);
    for round in 0..8_u64 {
        let write = |block: u64| submitter.submit(Bio::write(block * 8, Buffer::from(&[block as u8; 4096][..])));
        let writes = (round * 8..round * 8 + 8).map(write).collect::<Result<Vec<_>, _>>()?;
        for done in writes {
            done.await?;
        }
    }
    for block in 0..64 {
        let done = submitter.submit(Bio::read(block * 8, Buffer::zeroed(4096)))?.await?;
        let data = done.bio.buffers.iter().next().expect("a read has a buffer");
        assert!(data.iter().all(|byte| *byte == block as u8));
    }
    println!("64 blocks written and read back: {}", q.disk_stats());
    drop((submitter, threads));
    Ok(std::fs::remove_file(path)?)
}
