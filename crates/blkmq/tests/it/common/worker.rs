//! A thread that submits at random and checks everything that comes back.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use blkmq::{Bio, Buffers, Class, Client, Completion, Flags, IoPriority, Op, RejectReason, RequestQueue, RqId};
use blkmq::{Status, Submitter};

use super::content::{self, Area, Content};
use super::control;
use super::random::Random;
use super::watchdog::Progress;

/// What all submitters of a run share.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) q: RequestQueue,
    pub(crate) nr_threads: u64,
    /// How many operations are still to be submitted, by any submitter.
    pub(crate) budget: AtomicU64,
    /// The device keeps data.
    pub(crate) has_data: bool,
    /// How an operation may end, beside [`Status::Ok`] and, for an operation that must not wait, [`Status::Again`].
    pub(crate) failures: Vec<Status>,
    /// The longest operation in sectors.
    pub(crate) most_sectors: u64,
    /// After how many operations, on average, a submitter leaves and joins again; and after how many it changes the
    /// queue itself. 0 for never.
    pub(crate) leaves: u64,
    pub(crate) changes: u64,
    /// Percent of the looks at the queue that sleep until something completes.
    pub(crate) sleeps: u64,
}

/// The counts of one thread, or of all.
#[derive(Debug, Default, Clone)]
pub(crate) struct Counts {
    /// Operations by how they ended.
    pub(crate) by_status: HashMap<Status, u64>,
    pub(crate) submitted: u64,
    /// Parts that the queue must have counted, and parts of operations for whose end the thread did not wait.
    pub(crate) parts: u64,
    pub(crate) unsure_parts: u64,
    /// Operations that came back undone because their submitter left.
    pub(crate) gone: u64,
    pub(crate) split: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Self) {
        for (status, count) in &other.by_status {
            *self.by_status.entry(*status).or_default() += count;
        }
        self.submitted += other.submitted;
        self.parts += other.parts;
        self.unsure_parts += other.unsure_parts;
        self.gone += other.gone;
        self.split += other.split;
    }

    pub(crate) fn failed(&self) -> u64 {
        self.by_status.iter().filter(|(status, _)| !status.is_ok()).map(|(_, count)| count).sum()
    }
}

/// An operation that was submitted and has not come back.
#[derive(Debug)]
struct Pending {
    id: RqId,
    op: Op,
    area: Option<Area>,
    stamp: u64,
    parts: u64,
    may_say_again: bool,
    /// Where its buffers are.
    places: Vec<usize>,
}

pub(crate) struct Worker {
    load: Arc<Load>,
    thread: u64,
    random: Random,
    progress: Progress,
    content: Content,
    submitter: Submitter,
    pending: HashMap<u64, Pending>,
    counts: Counts,
}

/// All threads serve one client, so that their operations may merge.
fn join(load: &Load) -> Submitter {
    load.q.submitter(&Client::new("all")).expect("there is room for a few threads")
}

fn places(buffers: &Buffers) -> Vec<usize> {
    buffers.iter().map(|buffer| buffer.as_ptr().addr()).collect()
}

impl Worker {
    pub(crate) fn new(load: Arc<Load>, thread: u64, random: Random, progress: Progress) -> Self {
        let content = Content::new(thread, load.nr_threads);
        let submitter = join(&load);
        let (pending, counts) = (HashMap::new(), Counts::default());
        Self { load, thread, random, progress, content, submitter, pending, counts }
    }

    /// Submits until the budget is used up, then waits for what is outstanding.
    pub(crate) fn run(mut self) -> Counts {
        let spend = |left: u64| left.checked_sub(1);
        while self.load.budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend).is_ok() {
            self.submit_one();
            self.look();
            let (leaves, changes) = (self.load.leaves, self.load.changes);
            if leaves > 0 && self.random.one_in(leaves) {
                self.leave();
            }
            if changes > 0 && self.random.one_in(changes) {
                self.change();
            }
        }
        self.drain();
        let Self { submitter, counts, .. } = self;
        assert!(submitter.leave().is_empty(), "nothing was in the plug");
        counts
    }

    fn submit_one(&mut self) {
        let Some((mut bio, area, stamp)) = self.draw() else { return };
        let user_data = self.counts.submitted + self.thread * (1 << 40);
        bio.user_data = user_data;
        let parts = self.count_parts(&bio);
        let pending = Pending {
            id: RqId(u64::MAX),
            op: bio.op,
            area,
            stamp,
            parts,
            may_say_again: bio.flags.nowait,
            places: places(&bio.buffers),
        };
        loop {
            match self.submitter.submit(bio) {
                Ok(id) => {
                    self.pending.insert(user_data, Pending { id, ..pending });
                    break;
                }
                Err(rejected) => {
                    assert_eq!(rejected.reason, RejectReason::Full, "{:?}", rejected.bio);
                    bio = rejected.bio;
                    self.wait();
                    self.reap(usize::MAX);
                }
            }
        }
        self.counts.submitted += 1;
        self.counts.split += u64::from(parts > 1);
    }

    /// Draws an operation, with the sectors that it covers and what they hold afterwards.
    fn draw(&mut self) -> Option<(Bio, Option<Area>, u64)> {
        let limits = self.load.q.limits();
        let random = &mut self.random;
        if random.one_in(24) {
            return Some((Bio::flush(), None, 0));
        }
        let area = self.content.claim(random, self.load.most_sectors)?;
        let (first, length) = (area.sectors.start, area.sectors.end - area.sectors.start);
        let stamp = content::stamp(self.thread, self.counts.submitted);
        let (bio, stamp) = match random.below(16) {
            0 if limits.max_discard_sectors > 0 => (Bio::discard(first, length), 0),
            1 if limits.max_write_zeroes_sectors > 0 => (Bio::write_zeroes(first, length), 0),
            0..=8 => {
                let mut buffers = content::buffers(random, length);
                content::fill(&mut buffers, first, stamp);
                (Bio::write(first, buffers), stamp)
            }
            _ => {
                let mut buffers = content::buffers(random, length);
                content::poison(&mut buffers);
                (Bio::read(first, buffers), 0)
            }
        };
        let is_write = bio.op == Op::Write;
        let flags = Flags {
            sync: random.one_in(4),
            preflush: is_write && random.one_in(16),
            fua: is_write && random.one_in(16),
            readahead: random.one_in(16),
            meta: random.one_in(16),
            nowait: random.one_in(12),
            polled: random.one_in(8),
            at_head: random.one_in(16),
            nomerge: random.one_in(16),
            nounmap: bio.op == Op::WriteZeroes && random.one_in(2),
        };
        let priority = random.one_in(6).then(|| IoPriority {
            class: random.pick(&[Class::RealTime, Class::BestEffort, Class::Idle]),
            level: random.below(8) as u8,
        });
        Some((Bio { priority, ..bio.with_flags(flags) }, Some(area), stamp))
    }

    /// The requests that an operation becomes, as far as the queue counts them.
    fn count_parts(&self, bio: &Bio) -> u64 {
        let limits = self.load.q.limits();
        let most = match bio.op {
            Op::Flush => return u64::from(limits.write_cache),
            Op::Discard => limits.max_discard_sectors,
            Op::WriteZeroes => limits.max_write_zeroes_sectors,
            _ => limits.max_sectors,
        };
        bio.nr_sectors.div_ceil(u64::from(most))
    }

    /// Passes the plug on, polls or sleeps, and takes some of the completions; or leaves all of them for later.
    fn look(&mut self) {
        if self.random.one_in(2) {
            return;
        }
        if self.random.below(100) < self.load.sleeps {
            self.wait();
        } else {
            match self.random.below(8) {
                0..=2 => self.submitter.flush_plug(),
                3..=5 => _ = self.submitter.poll(),
                6 => {
                    let deadline = self.load.q.clock().now().after(self.random.below(200_000));
                    self.submitter.wait(1, Some(deadline));
                }
                _ => std::thread::yield_now(),
            }
        }
        let most = self.random.below(40) as usize;
        self.reap(most);
        if self.random.one_in(64) {
            self.drain();
        }
    }

    /// Sleeps until an operation is over. If a thread sleeps here forever, a wake-up was lost.
    fn wait(&mut self) {
        self.progress.doing("wait");
        let has_some = self.submitter.wait(1, None).is_ready();
        assert!(has_some || self.submitter.nr_outstanding() == 0, "wait came back with nothing");
        self.progress.doing("");
    }

    fn drain(&mut self) {
        while self.submitter.nr_outstanding() > 0 {
            self.wait();
            self.reap(usize::MAX);
        }
        assert!(self.pending.is_empty(), "lost: {:?}", self.pending);
    }

    fn reap(&mut self, most: usize) {
        for _ in 0..most {
            let Some(completion) = self.submitter.reap() else { return };
            self.progress.note();
            self.check(&completion);
        }
    }

    /// Checks that an operation comes back once, to the thread that submitted it, with its own buffers and the right
    /// data.
    fn check(&mut self, completion: &Completion) {
        let Completion { id, status, bio, .. } = completion;
        let pending = self.pending.remove(&bio.user_data);
        let pending = pending.unwrap_or_else(|| panic!("{bio:?} came back twice, or to another thread"));
        assert_eq!((*id, bio.op), (pending.id, pending.op), "{bio:?}");
        assert_eq!(places(&bio.buffers), pending.places, "{bio:?} came back with other buffers");
        let allowed = status.is_ok()
            || (*status == Status::Again && pending.may_say_again)
            || self.load.failures.contains(status);
        assert!(allowed, "{bio:?} ended with {status:?}");
        *self.counts.by_status.entry(*status).or_default() += 1;
        self.counts.parts += pending.parts;
        let Some(area) = &pending.area else { return };
        assert_eq!(area.sectors, bio.sector..bio.sector + bio.nr_sectors);
        self.content.release(area);
        if pending.op != Op::Read {
            // An operation that had to wait although it must not wait was not done, unless other parts of it were.
            if *status != Status::Again || pending.parts > 1 {
                self.content.wrote(area, pending.stamp, status.is_ok());
            }
        } else if self.load.has_data && status.is_ok() {
            self.content.check_read(area, &bio.buffers);
        }
    }

    /// Leaves the queue and joins it again: after everything is done, or at once.
    fn leave(&mut self) {
        if self.random.one_in(2) {
            self.drain();
        }
        self.progress.doing("leave");
        let next = join(&self.load);
        let left = std::mem::replace(&mut self.submitter, next);
        if self.random.one_in(2) {
            for bio in left.leave() {
                self.take_back(&bio);
            }
        } else {
            drop(left);
        }
        self.progress.doing("");
        for (_, pending) in self.pending.drain() {
            self.counts.unsure_parts += pending.parts;
            if let Some(area) = &pending.area {
                self.content.release(area);
                if pending.op != Op::Read {
                    self.content.wrote(area, pending.stamp, false);
                }
            }
        }
    }

    /// Takes back an operation that was not done, or at most in part.
    fn take_back(&mut self, bio: &Bio) {
        let pending = self.pending.remove(&bio.user_data).expect("what comes back was submitted");
        assert_eq!(places(&bio.buffers), pending.places, "{bio:?} came back with other buffers");
        self.counts.gone += 1;
        let Some(area) = &pending.area else { return };
        self.content.release(area);
        if pending.parts > 1 {
            self.counts.unsure_parts += pending.parts;
            if pending.op != Op::Read {
                self.content.wrote(area, pending.stamp, false);
            }
        }
    }

    /// Changes the queue as a thread with outstanding operations of its own must: it goes on polling meanwhile.
    fn change(&mut self) {
        self.progress.doing("change");
        let q = self.load.q.clone();
        let mut change = control::begin(&q, &mut self.random);
        while change.poll().is_none() {
            self.submitter.poll();
            self.reap(usize::MAX);
            std::thread::yield_now();
        }
        drop(change);
        self.progress.doing("");
    }
}
