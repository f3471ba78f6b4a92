//! What a published row ran.

use serde::Deserialize;

/// What was run, with what is known of it. A row's threads and machine belong to it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Load {
    /// folly's SmallLocksBenchmark. A thread goes round: a section that writes [`LockDesign::lines`] lines and does
    /// nothing else, then 1000 rounds of an empty loop. All CPUs of the machine take part, or as many
    /// threads as were asked for if those are more, and no thread is bound to a CPU. They share `running / asked`
    /// locks, rounded down: thread t uses the one of number t modulo that. Each lock's lines are its own.
    SmallLocks {
        /// The lock.
        design: LockDesign,
        /// How many threads were asked for at each lock. Where that does not divide the CPUs, there are more.
        asked: usize,
    },
    /// folly's benchmark of priority queues. Each thread pushes a random number and pops the greatest in turn, and does
    /// nothing else. The operations of all threads are 262144.
    PriorityQueue {
        /// The queue.
        design: QueueDesign,
        /// How many numbers of 4 bytes are in it.
        items: usize,
    },
    /// The same with threads that only push and threads that only pop, on a queue that is empty at first. A thread that
    /// finds nothing looks again, through the lock.
    ProducersConsumers {
        /// The queue.
        design: QueueDesign,
        /// The threads that push.
        producers: usize,
        /// The threads that pop.
        consumers: usize,
    },
    /// folly's benchmark of its flat combining queue: a thread pushes, does 1000 rounds of an
    /// addition, pops, and does them again. There are 64 numbers of 4 bytes in the queue.
    Pairs {
        /// The queue.
        design: QueueDesign,
    },
    /// The concurrency hierarchy: threads, each bound to a core of its own, add one to a counter, with nothing between
    /// two additions.
    Counter {
        /// How they add.
        design: CounterDesign,
    },
    /// will-it-scale with threads of one process.
    WillItScale {
        /// What each thread does.
        benchmark: Benchmark,
        /// The locks of the kernel.
        locks: KernelLocks,
    },
    /// fio on Linux's block layer.
    BlockLayer {
        /// The scheduler of each device.
        scheduler: Scheduler,
        /// How threads take turns at it.
        #[serde(default)]
        locking: Locking,
        /// The devices, which have a scheduler each. A job goes to them in turn.
        devices: usize,
        /// The hardware queues of each device.
        queues: usize,
        /// The job, which each thread or process runs.
        job: Job,
    },
    /// Synchronous reads of a device that takes no time and has 48 hardware queues, where the requests in flight are
    /// counted.
    InFlight {
        /// How they are counted.
        counted: Counting,
    },
}

impl Load {
    /// Whether it is a lock, a counter or a queue by itself, and not a part of Linux.
    #[must_use]
    pub const fn is_primitive(&self) -> bool {
        !matches!(self, Self::WillItScale { .. } | Self::BlockLayer { .. } | Self::InFlight { .. })
    }

    /// Whether its threads are bound to no CPU.
    #[must_use]
    pub const fn is_anywhere(&self) -> bool {
        self.is_primitive() && !matches!(self, Self::Counter { .. })
    }
}

/// A lock of folly's benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LockDesign {
    /// `std::mutex`: a word that is taken by an exchange, and a futex to sleep at.
    Mutex,
    /// folly's `DistributedMutex`: waiters are in a queue, and spin on a place of their own before they sleep.
    Distributed,
    /// The same, whose holder runs the sections of the waiters in the queue.
    Combining,
    /// folly's `FlatCombining`: each thread has a record in a list, and the holder runs what it finds there.
    FlatCombining,
    /// No lock: an atomic addition to each line.
    Add,
    /// No lock: one atomic exclusive or.
    Xor,
    /// No lock: one addition by compare-exchange, which is tried until it succeeds.
    Cas,
}

impl LockDesign {
    /// How many lines the section writes, each with one number, which it reads and adds one to.
    #[must_use]
    pub const fn lines(self) -> usize {
        match self {
            Self::Mutex | Self::Distributed | Self::Combining | Self::Add => 5,
            Self::FlatCombining | Self::Xor | Self::Cas => 1,
        }
    }
}

/// A priority queue of folly's benchmarks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueueDesign {
    /// A binary heap under a mutex.
    Lock,
    /// A binary heap under flat combining.
    FlatCombining,
    /// A tree of short lists with a lock each, which does not always pop the greatest.
    Mound,
}

/// How threads add to a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CounterDesign {
    /// An atomic addition.
    Add,
    /// A load, and a compare-exchange until it succeeds.
    Cas,
    /// Under `std::mutex`.
    Mutex,
    /// Under a flag that waiters read until it is free, with a pause between two reads, and take by an exchange.
    PauseSpin,
    /// Under a ticket lock whose waiters read the ticket that is served.
    Ticket,
    /// Under a lock that is handed to the waiters in turn. Each sleeps at a condition of its own, and a mutex is around
    /// the list of them.
    Fifo,
}

/// A benchmark of will-it-scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Benchmark {
    /// Duplicates a descriptor and closes it.
    Dup1,
    /// Opens a file of its own and closes it.
    Open1,
    /// Locks the first byte of one file that all have open, or unlocks it: each is an operation.
    Lock2,
    /// Maps 128 MiB and unmaps them.
    Mmap1,
    /// Takes 128 MiB from the allocator and gives them back: maps, touches one page, unmaps.
    Malloc1,
    /// Goes to the start of one file that all have open, and writes 4 KiB.
    #[serde(rename = "writeseek2")]
    WriteSeek2,
    /// The same with a read.
    #[serde(rename = "readseek2")]
    ReadSeek2,
    /// Reads from the one file.
    Read2,
    /// Takes a mutex of its process and lets it go.
    PthreadMutex1,
    /// Changes the protection of a page, so that all CPUs flush it.
    TlbFlush1,
}

/// How an operation of a benchmark holds the lock that limits it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Section {
    /// How often an operation takes it to write.
    pub holds: u32,
    /// How long it is held at a time, in nanoseconds, as a kernel that keeps statistics of locks measured with 94
    /// threads. The lines that come from other CPUs are within it, and the statistics too, so it is an upper bound.
    pub held_ns: f64,
}

impl Benchmark {
    /// The lock that limits it: of the descriptors of the process (`dup1`, `open1`), of the locks of the file
    /// (`lock2`), of the memory of the process (`mmap1`, `malloc1`), or of the file (`writeseek2`). `None`: the others,
    /// of which that was not published or no lock limits them. The lock of the memory is held to read as well, for
    /// 4160 ns once by `mmap1` and for 47230 ns twice by `malloc1`, which is not modelled.
    ///
    /// From rs3lab/TCLocks, branch fds, doc/results/srv10/will-it-scale/stock-lock-stat-96, commit fa63377.
    #[must_use]
    pub const fn section(self) -> Option<Section> {
        let (holds, held_ns) = match self {
            Self::Dup1 => (2, 250.0),
            Self::Open1 => (2, 210.0),
            Self::Lock2 => (1, 310.0),
            Self::Mmap1 => (2, 5_580.0),
            Self::Malloc1 => (2, 21_230.0),
            Self::WriteSeek2 => (1, 1_260.0),
            Self::ReadSeek2 | Self::Read2 | Self::PthreadMutex1 | Self::TlbFlush1 => return None,
        };
        Some(Section { holds, held_ns })
    }
}

/// The locks of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KernelLocks {
    /// Linux's own: queued spinlocks, and sleeping locks whose waiters spin at first.
    Queued,
    /// The same locks, whose holder runs the sections of the waiters.
    Combining,
}

/// A scheduler of Linux.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheduler {
    /// None.
    None,
    /// mq-deadline.
    MqDeadline,
    /// Kyber.
    Kyber,
    /// BFQ.
    Bfq,
}

impl Scheduler {
    /// Its name in blkmq.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::MqDeadline => "mq-deadline",
            Self::Kyber => "kyber",
            Self::Bfq => "bfq",
        }
    }
}

/// How threads take turns at a scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Locking {
    /// As in Linux's releases: one lock, held for each insertion and for the choice of each request. Where there is no
    /// scheduler, it means nothing.
    #[default]
    Single,
    /// One thread chooses at a time, and a second one leaves at once.
    Dispatch,
    /// And a thread that finds the lock taken does not look for a request to merge with.
    Merges,
    /// And a thread that finds another one inserting leaves its requests in one of 32 buckets, for that thread to take.
    Buckets,
    /// Insertion is to a list with a lock of its own, which the thread that chooses empties.
    Lists,
    /// Several requests are chosen in one hold.
    Batch,
}

impl Locking {
    /// The locking of blkmq that does the same, as one would set it. `None`: there is none.
    #[must_use]
    pub const fn of_blkmq(self) -> Option<&'static str> {
        match self {
            Self::Single => Some("single"),
            Self::Dispatch => Some("staged:dispatch"),
            Self::Merges => Some("staged:dispatch+merges"),
            Self::Buckets => Some("staged"),
            Self::Lists => None,
            Self::Batch => Some("batch"),
        }
    }
}

/// A job of fio.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Job {
    /// Reads 4 KiB at random places by io_uring, 128 at a time; in the published runs submitted and completed by
    /// about one, and synchronously.
    Icpe24,
    /// `scaling-32x4.fio`: reads 512 bytes by io_uring, 4 at a time, submitted by 4 and completed by 4.
    #[serde(rename = "scaling-32x4")]
    Scaling32x4,
    /// The same with 128 at a time.
    #[serde(rename = "scaling-1x128")]
    Scaling1x128,
    /// `batch-16x32.fio`: writes 4 KiB by io_uring, 32 at a time, submitted by 8 and completed by 8.
    #[serde(rename = "batch-16x32")]
    Batch16x32,
}

/// How requests in flight are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Counting {
    /// Not at all.
    Off,
    /// In one word of the device, which each request changes twice.
    OneWord,
    /// By looking at which tags are in use, at the time at which statistics are read.
    ByTags,
}
