//! Makes a hang visible. Otherwise a test with a lost wake-up never ends and says nothing.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use blkmq::RequestQueue;

use super::random::from_env;

/// Prints the queue and aborts when no thread has noted progress for two minutes. This finds hangs, and does not limit
/// the time of a test. `BLKMQ_WATCHDOG` sets another number of seconds.
#[derive(Debug)]
pub(crate) struct Watchdog {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    q: RequestQueue,
    progress: AtomicU64,
    is_over: AtomicBool,
    /// What each thread says it is doing.
    doing: Mutex<Vec<String>>,
}

/// The handle by which a thread says that it makes progress.
#[derive(Debug, Clone)]
pub(crate) struct Progress(Arc<Shared>, usize);

impl Progress {
    pub(crate) fn note(&self) {
        self.0.progress.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes what the thread is about to do, in case it never comes back.
    pub(crate) fn doing(&self, what: &str) {
        let mut doing = self.0.doing.lock().expect("no thread panics while it writes a line");
        doing[self.1].clear();
        doing[self.1].push_str(what);
    }
}

impl Watchdog {
    pub(crate) fn new(q: &RequestQueue) -> Self {
        let shared = Arc::new(Shared {
            q: q.clone(),
            progress: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            doing: Mutex::new(Vec::new()),
        });
        let patience = Duration::from_secs(from_env("BLKMQ_WATCHDOG", 120));
        let watched = Arc::clone(&shared);
        Self { shared, thread: Some(std::thread::spawn(move || watched.watch(patience))) }
    }

    /// A handle for one more thread.
    pub(crate) fn progress(&self) -> Progress {
        let mut doing = self.shared.doing.lock().expect("no thread panics while it writes a line");
        doing.push(String::new());
        Progress(Arc::clone(&self.shared), doing.len() - 1)
    }
}

impl Shared {
    fn watch(&self, patience: Duration) {
        let mut last = (self.progress.load(Ordering::Relaxed), Instant::now());
        while !self.is_over.load(Ordering::Relaxed) {
            std::thread::park_timeout(Duration::from_millis(200));
            let progress = self.progress.load(Ordering::Relaxed);
            if progress != last.0 {
                last = (progress, Instant::now());
            } else if last.1.elapsed() > patience {
                self.give_up();
            }
        }
    }

    fn give_up(&self) -> ! {
        eprintln!("no progress; the queue:\n{}", self.q.dump());
        for (thread, doing) in self.doing.lock().expect("no thread panics while it writes a line").iter().enumerate() {
            eprintln!("thread {thread}: {doing}");
        }
        std::process::abort();
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}
