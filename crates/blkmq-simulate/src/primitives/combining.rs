//! A lock whose waiters stand in a chain, each at a line of its own. The holder that lets go hands the lock to the
//! next one, or does for the waiters what they came for.
//!
//! After what folly's documentation says of its `DistributedMutex`: a thread exchanges the lock's word for itself,
//! and what it finds there is the thread that came before it. So the word leads to the latest waiter, and from there
//! to the earlier ones. A holder that lets go takes that chain out of the word, and the waiters of a chain get the
//! lock from the latest to the earliest.

use blkmq_vcpu::cache::Picoseconds;
use blkmq_vcpu::sync::Arc;
use blkmq_vcpu::sync::atomic::{AtomicU64, Ordering};
use blkmq_vcpu::{place_at, work};

use super::OnLine;

/// The word of a lock that is free. Of a node: it does not say yet which thread came before.
const FREE: u64 = 0;
/// The word of a lock that is held, and for which no thread has come since.
const HELD: u64 = 1;
/// The number of thread 0 in the word.
const FIRST: u64 = 2;

/// What the holder tells a waiter: nothing yet, or that its section is done. A greater number is [`YOURS`] and the
/// end of the chain that the waiter gets the lock with.
const WAIT: u64 = 0;
const DONE: u64 = 1;
const YOURS: u64 = 2;

/// Where a waiter waits.
#[derive(Debug, Default)]
struct Node {
    /// What was in the word when the waiter came.
    before: AtomicU64,
    told: AtomicU64,
}

/// The lock.
#[derive(Debug)]
pub(super) struct Chained {
    word: OnLine<AtomicU64>,
    nodes: Vec<OnLine<Node>>,
    combines: bool,
}

/// The waiters that a holder has taken out of the word: the latest of them, and what the earliest found in the word.
#[derive(Debug, Clone, Copy)]
struct Chain {
    latest: u64,
    end: u64,
}

impl Chained {
    /// A free lock for threads with numbers below `threads`. `combines`: the holder works for the waiters.
    pub(super) fn new(threads: usize, combines: bool) -> Arc<Self> {
        let nodes = OnLine::vec("lock.node", threads);
        let lock = Arc::new(Self { word: OnLine::default(), nodes, combines });
        place_at("lock.word", &lock.word);
        lock
    }

    /// Thread `me` has its section done, by itself or by the holder. `section` does the section of the thread with
    /// that number. To do it for another thread takes `other` more.
    pub(super) fn run(&self, me: usize, mut section: impl FnMut(usize), other: Picoseconds) {
        let (node, name) = (&self.nodes[me].0, me as u64 + FIRST);
        node.before.store(FREE, Ordering::Relaxed);
        node.told.store(WAIT, Ordering::Relaxed);
        let before = self.word.0.swap(name, Ordering::Relaxed);
        if before == FREE {
            section(me);
            return self.let_go(name, Chain { latest: HELD, end: HELD }, section, other);
        }
        node.before.store(before, Ordering::Relaxed);
        let told = node.told.spin_while(Ordering::Relaxed, |told| told == WAIT);
        if told != DONE {
            section(me);
            self.let_go(HELD, Chain { latest: before, end: told - YOURS }, section, other);
        }
    }

    /// `chain`: the waiters that the holder got the lock with. `word`: what the word holds if no thread has come since.
    fn let_go(&self, mut word: u64, mut chain: Chain, mut section: impl FnMut(usize), other: Picoseconds) {
        loop {
            while chain.latest != chain.end {
                let waiter = (chain.latest - FIRST) as usize;
                let node = &self.nodes[waiter].0;
                // A thread that has put itself into the word says a moment later what it found there.
                let before = node.before.spin_while(Ordering::Relaxed, |before| before == FREE);
                if !self.combines {
                    return node.told.store(YOURS + chain.end, Ordering::Relaxed);
                }
                work(other);
                section(waiter);
                node.told.store(DONE, Ordering::Relaxed);
                chain.latest = before;
            }
            if self.word.0.compare_exchange(word, FREE, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return;
            }
            chain = Chain { latest: self.word.0.swap(HELD, Ordering::Relaxed), end: word };
            word = HELD;
        }
    }
}
