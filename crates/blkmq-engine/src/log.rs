//! The log: where the server reports what happens.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{io, thread};

/// The most lines that may wait for the log.
const WAITING: usize = 1024;
/// The most warnings of one topic that are logged without a pause.
const BURST: u32 = 20;
/// After this time one more warning of the topic may be logged.
const REST: Duration = Duration::from_millis(500);
/// How long a server that ends waits for its log.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// How much a line matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Clients come and go.
    Info,
    /// Something happened that should not happen, but the server goes on.
    Warning,
}

/// Takes the lines that a server logs. Every function with a level and a line as parameters implements this.
///
/// It is called by one thread of the server, which does nothing else. While a call has not returned, at most 1024 lines
/// wait, and further lines are lost; nothing else in the server waits for the log. Of the warnings of one topic, 20 are
/// passed on without a pause, and two a second after that. A further line says how many were left out.
pub trait Log: Send + Sync {
    /// Takes one line, without its end. Control characters in text from clients are escaped.
    fn line(&self, level: Level, text: &str);
}

impl<F: Fn(Level, &str) + Send + Sync> Log for F {
    fn line(&self, level: Level, text: &str) {
        self(level, text);
    }
}

/// The topics of warnings. If there are too many warnings of one topic, those of the other topics are still logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topic {
    /// The server itself.
    Server,
    /// A connection ended in a way in which no connection should end.
    Ending,
    /// A client was not let in.
    Refusal,
    /// What a device did.
    Device,
}

impl Topic {
    const ALL: [Self; 4] = [Self::Server, Self::Ending, Self::Refusal, Self::Device];

    fn name(self) -> &'static str {
        match self {
            Self::Server => "the server",
            Self::Ending => "connections that ended",
            Self::Refusal => "clients that were refused",
            Self::Device => "devices",
        }
    }
}

#[derive(Debug)]
enum Line {
    Info(String),
    Warning(Topic, String),
    /// No line: the thread that logs shall look at its state.
    Wake,
}

#[derive(Debug, Default)]
struct Progress {
    /// Lines that were lost because there was no room.
    lost: AtomicU64,
    is_over: AtomicBool,
}

/// Takes lines without waiting, and passes them to the thread that logs.
#[derive(Debug)]
pub struct Journal {
    lines: SyncSender<Line>,
    progress: Arc<Progress>,
}

/// The thread that logs.
#[derive(Debug)]
pub struct LogThread {
    /// Closed when the thread has ended.
    end: Mutex<Receiver<()>>,
}

impl Journal {
    /// Starts the thread, which has this name.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(log: Arc<dyn Log>, name: &str) -> io::Result<(Self, LogThread)> {
        let (lines, waiting) = sync_channel(WAITING);
        let (ends, end) = sync_channel(0);
        let progress = Arc::new(Progress::default());
        let shared = Arc::clone(&progress);
        thread::Builder::new().name(name.into()).spawn(move || {
            let _ends = ends;
            write_lines(&waiting, &shared, &*log);
        })?;
        Ok((Self { lines, progress }, LogThread { end: Mutex::new(end) }))
    }

    fn add(&self, line: Line) {
        if self.lines.try_send(line).is_err() {
            // Relaxed: this is only a count, which orders nothing.
            self.progress.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Logs what is as it should be.
    pub fn inform(&self, text: String) {
        self.add(Line::Info(text));
    }

    /// Logs what should not happen.
    pub fn warn(&self, topic: Topic, text: String) {
        self.add(Line::Warning(topic, text));
    }

    /// Called when no more lines come. Waits until all lines are logged, but not for long: the log may never take them.
    pub fn end(&self, log_thread: &LogThread) {
        // Relaxed: the thread that logs looks again at the latest when it is woken, and the thread that waits here has
        // sent all its lines.
        self.progress.is_over.store(true, Ordering::Relaxed);
        // If there is no room for this line, the thread that logs is not asleep.
        let _ = self.lines.try_send(Line::Wake);
        let _ = log_thread.end.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(SHUTDOWN_TIMEOUT);
    }
}

/// How many warnings of a topic may be logged now.
#[derive(Debug)]
struct Bucket {
    left: u32,
    /// When the number last grew.
    filled: Instant,
    left_out: u64,
}

impl Bucket {
    fn new(now: Instant) -> Self {
        Self { left: BURST, filled: now, left_out: 0 }
    }

    /// Returns true if another warning may be logged. Takes one from the number.
    fn take(&mut self, now: Instant) -> bool {
        let more = now.saturating_duration_since(self.filled).as_millis() / REST.as_millis();
        if more > 0 {
            self.left = BURST.min(self.left.saturating_add(u32::try_from(more).unwrap_or(u32::MAX)));
            self.filled = now;
        }
        let is_left = self.left > 0;
        self.left -= u32::from(is_left);
        is_left
    }
}

/// Logs lines until the server has ended and all lines are logged.
fn write_lines(lines: &Receiver<Line>, progress: &Progress, log: &dyn Log) {
    let mut buckets = Topic::ALL.map(|_| Bucket::new(Instant::now()));
    loop {
        let owes = buckets.iter().any(|bucket| bucket.left_out > 0);
        let line = match lines.try_recv() {
            // Relaxed: for the same reason as where the flag is set.
            Err(TryRecvError::Empty) if !progress.is_over.load(Ordering::Relaxed) => {
                if owes {
                    lines.recv_timeout(REST)
                } else {
                    lines.recv().map_err(|_| RecvTimeoutError::Disconnected)
                }
            }
            line => line.map_err(|_| RecvTimeoutError::Disconnected),
        };
        match &line {
            Ok(Line::Info(text)) => log.line(Level::Info, text),
            Ok(Line::Warning(topic, text)) => {
                let bucket = &mut buckets[*topic as usize];
                if bucket.take(Instant::now()) {
                    log.line(Level::Warning, text);
                } else {
                    bucket.left_out += 1;
                }
            }
            Ok(Line::Wake) | Err(_) => (),
        }
        let is_over = matches!(line, Err(RecvTimeoutError::Disconnected));
        // Relaxed: this is only a count, which orders nothing.
        let lost = progress.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            log.line(Level::Warning, &format!("{lost} lines were lost: more happens than the log takes"));
        }
        for (topic, bucket) in Topic::ALL.into_iter().zip(&mut buckets) {
            if bucket.left_out > 0 && (is_over || line.is_err() && bucket.take(Instant::now())) {
                let left_out = std::mem::take(&mut bucket.left_out);
                log.line(Level::Warning, &format!("{left_out} more lines about {} were left out", topic.name()));
            }
        }
        if is_over {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// Red, because it waits forever, if a thread that sends a line waits for the log: here the log goes on only after
    /// all lines are sent.
    #[test]
    fn a_log_that_takes_nothing_holds_nobody_up_and_is_told_what_it_lost() {
        let (go_on, waits) = channel::<()>();
        let waits = Mutex::new(waits);
        let (told, lines) = channel();
        let told = Mutex::new(told);
        let log = move |_: Level, text: &str| {
            let _ = waits.lock().unwrap().recv();
            let _ = told.lock().unwrap().send(text.to_owned());
        };
        let (journal, log_thread) = Journal::start(Arc::new(log), "log").unwrap();
        (0..5000).for_each(|number| journal.inform(number.to_string()));
        drop(go_on);
        // One line may be with the log while the others wait.
        let lost = lines
            .iter()
            .find_map(|line| line.strip_suffix(" lines were lost: more happens than the log takes").map(str::to_owned));
        let lost: usize = lost.expect("it is told").parse().unwrap();
        assert!((5000 - WAITING - 1..=5000 - WAITING).contains(&lost), "{lost}");
        journal.end(&log_thread);
    }

    /// Red if the number of warnings is not limited, if warnings that are left out are not counted, or if one topic
    /// uses up the limit of another.
    #[test]
    fn warnings_of_one_topic_are_limited_and_what_is_left_out_is_counted() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&lines);
        let log = move |level: Level, text: &str| told.lock().unwrap().push((level, text.to_owned()));
        let (journal, log_thread) = Journal::start(Arc::new(log), "log").unwrap();
        (0..1000).for_each(|_| journal.warn(Topic::Refusal, "no".to_owned()));
        journal.warn(Topic::Device, "oh".to_owned());
        journal.end(&log_thread);
        let lines = lines.lock().unwrap();
        let nr_told = lines.iter().filter(|(_, line)| line == "no").count();
        assert!((BURST as usize..900).contains(&nr_told), "{nr_told}");
        let left_out = lines.iter().filter_map(|(_, line)| {
            line.strip_suffix(" more lines about clients that were refused were left out")?.parse::<usize>().ok()
        });
        assert_eq!(left_out.sum::<usize>() + nr_told, 1000);
        assert!(lines.contains(&(Level::Warning, "oh".to_owned())));
    }

    /// Red if nothing is logged any more after a burst, or if the number of warnings that may be logged grows without a
    /// bound.
    #[test]
    fn there_is_one_more_after_a_while() {
        let start = Instant::now();
        let mut bucket = Bucket::new(start);
        assert_eq!((0..100).filter(|_| bucket.take(start)).count(), BURST as usize);
        assert!(!bucket.take(start + REST / 2) && bucket.take(start + REST) && !bucket.take(start + REST));
        assert_eq!((0..100).filter(|_| bucket.take(start + 1000 * REST)).count(), BURST as usize);
    }
}
