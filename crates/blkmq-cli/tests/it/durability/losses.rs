//! Syncs that fail: a loss is reported to every client that asks for durability afterwards, and not only to the first
//! one.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use blkmq_drivers::file::{Asked, Config, File, Journal};
use blkmq_export::Server;
use tempfile::TempDir;

use crate::durability::mount::Mount;
use crate::durability::{file, folder, queue, serve};
use crate::served::{FLUSH, FUA, Nbd, Served, WRITE, WRITE_ZEROES, connect};

/// The protocol's numbers.
const EIO: u32 = 5;
const ENOSPC: u32 = 28;

const BLOCK: usize = 4096;

/// The error with which a request is answered; 0 for none.
fn ask(client: &mut Nbd, kind: u16, flags: u16, offset: u64) -> u32 {
    let length = if kind == FLUSH { 0 } else { BLOCK };
    let data = if kind == WRITE { vec![9; length] } else { Vec::new() };
    client.try_send(flags, kind, 1, offset, length as u32, &data).expect("the server talks on");
    client.receive().expect("the server answers").1
}

/// Checks that nothing is durable for the client any more.
fn is_promised_nothing(client: &mut Nbd) {
    for _ in 0..3 {
        assert_eq!(ask(client, FLUSH, 0, 0), EIO);
        assert_eq!(ask(client, WRITE, FUA, 0), EIO);
        assert_ne!(ask(client, WRITE_ZEROES, FUA, BLOCK as u64), 0);
    }
}

/// A file system on a disk that fills up, as a thin volume does. The file system is unmounted when the test ends.
struct FillsUp {
    path: String,
    folder: String,
    // The fields are dropped in this order.
    _large: Mount,
    _small: Mount,
}

impl FillsUp {
    /// What clients can write there: more than there is room for.
    const PARTS: usize = 40;
    const PART: usize = 1 << 20;

    /// `None` without the rights or programs for it. Then a message says that the test is skipped.
    fn new(folder: &TempDir) -> Option<Self> {
        let [small, image, large] = ["small", "small/image", "large"].map(|name| file(folder, name).1);
        for path in [&small, &large] {
            std::fs::create_dir(path).expect("the folder for tests is writable");
        }
        let mount = Mount::new(&["-t", "tmpfs", "-o", "size=20M", "tmpfs"], &small)?;
        std::fs::File::create(&image).and_then(|file| file.set_len(64 << 20)).expect("it is a hole");
        if !Command::new("mkfs.ext4").args(["-q", &image]).status().is_ok_and(|status| status.success()) {
            println!("SKIP there is no mkfs.ext4");
            return None;
        }
        let _large = Mount::new(&["-o", "loop", &image], &large)?;
        Some(Self { path: format!("{large}/disk"), folder: large, _large, _small: mount })
    }

    /// A file of the same file system, as an overlay on top of it shows it.
    fn under_overlay(&self) -> Option<(String, Mount)> {
        let [lower, upper, work, merged] = ["lower", "upper", "work", "merged"].map(|name| {
            let path = format!("{}/{name}", self.folder);
            std::fs::create_dir(&path).expect("root may write there");
            path
        });
        let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
        let mount = Mount::new(&["-t", "overlay", "-o", &options, "overlay"], &merged)?;
        Some((format!("{merged}/disk"), mount))
    }

    /// Writes more than there is room for. The data is in the page cache.
    fn fill(client: &mut Nbd) {
        for part in 0..Self::PARTS {
            let word = |number: usize| (part * Self::PART + number).wrapping_mul(0x9e37_79b9).to_le_bytes();
            let data: Vec<u8> = (0..Self::PART / 8).flat_map(word).collect();
            assert_eq!(client.write((part * Self::PART) as u64, &data), 0);
        }
    }
}

/// Reports success for every sync, as the kernel does for all but one of the syncs that wait for the same loss.
#[derive(Debug, Default)]
struct Others(Mutex<BTreeSet<(u16, u16)>>);

impl Journal for Others {
    fn asked(&self, hctx: u16, tag: u16, asked: Asked) {
        if asked == Asked::Sync {
            self.0.lock().expect("no thread panicked").insert((hctx, tag));
        }
    }

    fn answered(&self, hctx: u16, tag: u16, result: i32) -> i32 {
        if self.0.lock().expect("no thread panicked").remove(&(hctx, tag)) { result.max(0) } else { result }
    }
}

/// Red if the driver believes a sync that the kernel reported as good, while the answer to another sync, to which the
/// kernel reported the loss, is still under way.
#[test]
fn a_loss_that_the_kernel_has_told_another_sync_is_seen() {
    let folder = folder();
    let Some(disk) = FillsUp::new(&folder) else { return };
    let server = serve_with(&disk.path, Arc::<Others>::default());
    let (mut a, mut b) = (connect(&server), connect(&server));
    assert_eq!(ask(&mut a, FLUSH, 0, 0), 0);
    FillsUp::fill(&mut a);
    is_promised_nothing(&mut b);
    is_promised_nothing(&mut a);
}

/// A server of a file through the page cache, with a ring for each of two clients.
fn serve_with(path: &str, journal: Arc<dyn Journal>) -> Server {
    let config = Config { size: Some(48 << 20), direct: false, queues: 2, ..Config::new(path) };
    serve(queue(Arc::new(File::open_with_journal(config, journal).expect("the file can be made")), "none"))
}

/// Holds the answer to the sync that reports the loss until another ring's sync waits for it, and reports success for
/// every other sync.
#[derive(Debug, Default)]
struct Late {
    is_waited_for: AtomicBool,
    has_loss: AtomicBool,
}

impl Late {
    fn wait(flag: &AtomicBool) {
        // The wait has a limit, so that a test that fails ends.
        let began = Instant::now();
        while !flag.load(Ordering::Relaxed) && began.elapsed() < Duration::from_secs(60) {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Journal for Late {
    fn asked(&self, _hctx: u16, _tag: u16, asked: Asked) {
        if asked == Asked::Pause {
            self.is_waited_for.store(true, Ordering::Relaxed);
        }
    }

    fn answered(&self, _hctx: u16, _tag: u16, result: i32) -> i32 {
        let is_loss = result == -(EIO as i32) || result == -(ENOSPC as i32);
        if is_loss && !self.has_loss.swap(true, Ordering::Relaxed) {
            Self::wait(&self.is_waited_for);
            return result;
        }
        result.max(0)
    }
}

/// Red if the driver believes B's flush, which the kernel reported as good, before the answer to A's flush, to which
/// the kernel reported the loss: on an overlay the kernel keeps no errors that the driver could ask for.
#[test]
fn on_an_overlay_a_flush_waits_for_those_beside_it() {
    let folder = folder();
    let Some(disk) = FillsUp::new(&folder) else { return };
    let Some((path, _overlay)) = disk.under_overlay() else { return };
    let journal = Arc::<Late>::default();
    let server = serve_with(&path, Arc::clone(&journal) as _);
    let (mut a, mut b) = (connect(&server), connect(&server));
    assert_eq!(ask(&mut a, FLUSH, 0, 0), 0);
    FillsUp::fill(&mut a);
    thread::scope(|scope| {
        let first = scope.spawn(move || ask(&mut a, FLUSH, 0, 0));
        Late::wait(&journal.has_loss);
        is_promised_nothing(&mut b);
        assert!([ENOSPC, EIO].contains(&first.join().expect("it does not panic")));
    });
}

/// Red if B's flush or A's third flush succeeds, or if nothing is written for the operator.
#[test]
fn what_a_disk_that_fills_up_has_lost_is_told_to_all_clients_and_to_operators() {
    let folder = folder();
    let Some(disk) = FillsUp::new(&folder) else { return };
    let device = format!("file,path={},size=48M,direct=0,submit_queues=2", disk.path);
    let mut server = Served::start(&["--device", &device]);
    let (mut a, mut b) = (server.connect(""), server.connect(""));
    FillsUp::fill(&mut a);
    let first = ask(&mut a, FLUSH, 0, 0);
    assert!([ENOSPC, EIO].contains(&first), "{first}");
    is_promised_nothing(&mut a);
    is_promised_nothing(&mut b);

    let trouble = "a sync failed at 20";
    let listed = server.json(&["list"]);
    let queue = &listed[0]["queues"][0];
    assert_eq!(queue["health"], "failed", "{listed}");
    assert!(queue["trouble"].as_str().is_some_and(|text| text.starts_with(trouble)), "{listed}");
    assert!(server.get("/queues/default").contains(r#""health":"failed""#));
    assert_eq!(server.json(&["stat"])["queues"][0]["health"], "failed");
    for command in ["list", "stat"] {
        let said = server.say(&[command]);
        assert!(said.contains(&format!("device failed: {trouble}")), "{said}");
    }
    let metrics = server.get("/metrics");
    for (state, value) in [("good", 0), ("away", 0), ("failed", 1)] {
        let line = format!("\nblkmq_device_health{{queue=\"default\",state=\"{state}\"}} {value}\n");
        assert!(metrics.contains(&line), "{metrics}");
    }
    assert!(server.say(&["dump"]).contains(&format!("\nhealth failed: {trouble}")));
    drop((a, b));
    let (_, log) = server.terminate();
    let told = format!("blkmq: the device of queue 'default' has failed: {trouble}");
    assert_eq!(log.lines().filter(|line| line.starts_with(&told)).count(), 1, "{log}");
}
