//! Reads random blocks of a file one after the other through an io_uring, and does nothing else: the least that a
//! program can take for it on this machine. `scripts/storage` shows it beside fio and blkmq.
//!
//! `ring_floor [FILE [SECONDS]]` reads 4 KiB at a time past the page cache, with the file and the buffer registered.
//! Without a file it makes one of 1 MiB and reads it for a tenth of a second.
#![expect(unsafe_code, reason = "memory is handed to the kernel")]

use std::error::Error;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use io_uring::{IoUring, cqueue, opcode, types};

/// Bytes of a read, and the alignment of its memory.
const BLOCK: usize = 4096;

/// Memory for one read.
#[repr(align(4096))]
struct Block([u8; BLOCK]);

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let Some(path) = arguments.next() else {
        let path = small_file()?;
        let reads = read(&path, Duration::from_millis(100));
        fs::remove_file(&path)?;
        return report(reads?);
    };
    let seconds: f64 = arguments.next().map_or(Ok(2.0), |text| text.parse())?;
    report(read(Path::new(&path), Duration::try_from_secs_f64(seconds)?)?)
}

fn small_file() -> Result<PathBuf, Box<dyn Error>> {
    let path = std::env::temp_dir().join(format!("blkmq-ring-floor-{}", std::process::id()));
    File::create(&path)?.write_all(&vec![1; 1 << 20])?;
    Ok(path)
}

fn report(reads: u64) -> Result<(), Box<dyn Error>> {
    println!("{reads} reads");
    if reads == 0 { Err("no read was done".into()) } else { Ok(()) }
}

/// Reads for this long. Returns the number of reads.
fn read(path: &Path, time: Duration) -> Result<u64, Box<dyn Error>> {
    let open = |flags| OpenOptions::new().read(true).custom_flags(flags).open(path);
    // A file system without direct I/O refuses the flag.
    let file = open(libc::O_DIRECT).or_else(|_| open(0))?;
    // A block device has no length of its own; its end is found by seeking.
    let blocks = std::io::Seek::seek(&mut &file, std::io::SeekFrom::End(0))? / BLOCK as u64;
    if blocks == 0 {
        return Err(format!("{}: shorter than a block of {BLOCK} bytes", path.display()).into());
    }
    let mut block = Box::new(Block([0; BLOCK]));
    let memory = block.0.as_mut_ptr();
    // Kernels before 6.1 refuse the flags.
    let deferred = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(1);
    let mut ring: IoUring = deferred.or_else(|_| IoUring::new(1))?;
    ring.submitter().register_files(&[file.as_raw_fd()])?;
    let piece = libc::iovec { iov_base: memory.cast(), iov_len: BLOCK };
    // SAFETY: the block lives until the ring is dropped, and nothing else uses it.
    unsafe { ring.submitter().register_buffers(&[piece]) }?;
    let (end, mut place, mut reads) = (Instant::now() + time, 1_u64, 0);
    while Instant::now() < end {
        // A generator that passes each place about as often.
        place = place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let entry = opcode::ReadFixed::new(types::Fixed(0), memory, BLOCK as u32, 0)
            .offset((place >> 20) % blocks * BLOCK as u64)
            .build();
        // SAFETY: the entry names the block, which lives until the ring is dropped. No other read is in flight.
        unsafe { ring.submission().push(&entry) }?;
        ring.submit_and_wait(1)?;
        let completion: cqueue::Entry = ring.completion().next().ok_or("the kernel woke without a completion")?;
        if completion.result() != BLOCK as i32 {
            return Err(format!("a read ended with {}", completion.result()).into());
        }
        reads += 1;
    }
    drop(ring);
    drop(block);
    Ok(reads)
}
