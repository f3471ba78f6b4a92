//! Whatever a server says, there are two cases. Either the device `nbd` does not open, for a readable reason. Or it
//! completes everything that it is asked for, and uses only its own memory.
#![no_main]

#[macro_use]
mod reach;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixListener;
use std::sync::{Mutex, OnceLock};
use std::thread;

use blkmq::SECTOR_SIZE;
use blkmq::{Bio, Buffer, Client, RequestQueue};
use blkmq_nbd::{Greeting, Info, SIMPLE_REPLY_MAGIC, handshake, option_replies, option_reply, options, transmission};
use reach::Reached;

/// A server that says the same words to each client, and after that only listens.
struct Server {
    spec: String,
    words: Mutex<Vec<u8>>,
}

fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| {
        let path = std::env::temp_dir().join(format!("blkmq-fuzz-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).expect("the folder can be written");
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("there are descriptors");
                let words = server().words.lock().expect("nobody panics with it").clone();
                // A device may connect more than once, while its first connection is still there.
                thread::spawn(move || {
                    let _ = stream.write_all(&words);
                    let _ = stream.shutdown(Shutdown::Write);
                    let _ = stream.read_to_end(&mut Vec::new());
                });
            }
        });
        Server {
            spec: format!("nbd,uri=nbd+unix:///?socket={},hw_queue_depth=8", path.display()),
            words: Mutex::default(),
        }
    })
}

/// The words of a server up to the first request. Its export has a MiB, and accepts every request.
fn greeting() -> Vec<u8> {
    let reply = |kind, data: &[u8]| option_reply(options::GO, kind, data);
    let can =
        transmission::SEND_FLUSH | transmission::SEND_FUA | transmission::SEND_TRIM | transmission::SEND_WRITE_ZEROES;
    let export = Info::Export { size: 1 << 20, flags: transmission::HAS_FLAGS | can }.encode();
    let greeting = Greeting { flags: handshake::FIXED_NEWSTYLE }.encode();
    [greeting.to_vec(), reply(option_replies::INFO, &export), reply(option_replies::ACK, &[])].concat()
}

fn run(bytes: &[u8], reached: &mut Reached) {
    let Some((&first, bytes)) = bytes.split_first() else { return };
    let mut words = if first % 4 > 0 { greeting() } else { Vec::new() };
    if first % 4 == 3 {
        // Replies begin with their magic number. The fuzzer chooses which request they answer, and how.
        bytes.chunks(12).for_each(|chunk| words.extend(SIMPLE_REPLY_MAGIC.to_be_bytes().iter().chain(chunk)));
    } else {
        words.extend_from_slice(bytes);
    }
    let Server { spec, words: said } = server();
    *said.lock().expect("nobody panics with it") = words;
    let driver = match blkmq_drivers::open(spec) {
        Ok(driver) => driver,
        Err(error) => {
            reached.add("not opened", 1);
            return assert!(!error.to_string().contains(char::is_control));
        }
    };
    reached.add("opened", 1);
    let q = RequestQueue::builder(driver).scheduler("none").build().expect("what a device says of itself makes sense");
    let block = q.limits().logical_block_size as usize;
    let sectors = (block / SECTOR_SIZE) as u64;
    let mut submitter = q.submitter(&Client::new("fuzz")).expect("there is a place");
    let mut asked = 0;
    let mut bios = vec![Bio::flush(), Bio::write(0, Buffer::zeroed(block))];
    bios.extend((0..4).map(|_| Bio::read(0, Buffer::zeroed(block))));
    bios.extend([Bio::discard(0, sectors), Bio::write_zeroes(0, sectors)]);
    for bio in bios {
        asked += usize::from(submitter.submit(bio).is_ok());
    }
    let mut answered = 0;
    while submitter.nr_outstanding() > 0 {
        submitter.wait(1, None);
        answered += submitter.reap_all(|done| {
            let data: usize = done.bio.buffers.iter().map(|buffer| buffer.len()).sum();
            assert!(data == 0 || data == block, "what was handed in comes back");
            reached.add("operations done", usize::from(done.status.is_ok()));
        });
    }
    assert_eq!(answered, asked);
}

fn run_alone(bytes: &[u8], reached: &mut Reached) {
    // Its threads stay.
    server();
    reach::alone(|| run(bytes, reached));
}

target!("device", run_alone, [("opened", 8), ("not opened", 3), ("operations done", 3)], &[u8]);
