//! Which hardware queue a request goes to.

use blkmq_sched::Op;

use crate::driver::Topology;
use crate::request::Request;

/// What kind of requests a hardware queue takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum HctxType {
    Default = 0,
    Read = 1,
    Poll = 2,
}

impl HctxType {
    pub(super) const COUNT: usize = Self::ALL.len();
    const ALL: [Self; 3] = [Self::Default, Self::Read, Self::Poll];
}

/// How many hardware queues of each type there are, and so to which hardware queue a submitter's request goes. Queues
/// of the default type come first, then those for reads, then polled ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    nr: [u16; HctxType::COUNT],
}

impl Layout {
    pub(in crate::queue) const fn of(topology: &Topology) -> Self {
        Self { nr: [topology.default_queues, topology.read_queues, topology.poll_queues] }
    }

    pub(super) const fn pack(self) -> u64 {
        self.nr[0] as u64 | (self.nr[1] as u64) << 16 | (self.nr[2] as u64) << 32
    }

    pub(super) const fn unpack(word: u64) -> Self {
        Self { nr: [word as u16, (word >> 16) as u16, (word >> 32) as u16] }
    }

    /// How many hardware queues there are in all.
    pub(crate) const fn len(self) -> u16 {
        self.nr[0] + self.nr[1] + self.nr[2]
    }

    /// The hardware queue of a type that a thread's requests go to.
    const fn hctx(self, kind: HctxType, thread: u16) -> u16 {
        std::debug_assert!(thread > 0, "the queue itself, number 0, has no hardware queue");
        std::debug_assert!(self.nr[kind as usize] > 0, "there are hardware queues of the type");
        let place = thread - 1;
        match kind {
            HctxType::Default => place % self.nr[0],
            HctxType::Read => self.nr[0] + place % self.nr[1],
            HctxType::Poll => self.nr[0] + self.nr[1] + place % self.nr[2],
        }
    }

    /// Whether all threads' requests go to the same hardware queues.
    pub(in crate::queue) fn is_one_for_all(self) -> bool {
        self.nr.into_iter().all(|nr| nr <= 1)
    }

    /// How many submitters there can be if each is to have its own hardware queues, one of each type.
    pub(in crate::queue) fn nr_owners(self) -> u16 {
        self.nr.into_iter().filter(|nr| *nr > 0).min().unwrap_or(0)
    }

    /// The thread whose requests go to this hardware queue, if each thread has its own.
    pub(crate) const fn owner(self, hctx: u16) -> u16 {
        let place = match self.kind_of(hctx) {
            HctxType::Default => hctx,
            HctxType::Read => hctx - self.nr[0],
            HctxType::Poll => hctx - self.nr[0] - self.nr[1],
        };
        place + 1
    }

    /// The hardware queues that a thread's requests go to. What is to go to a type without queues goes to the default
    /// type.
    #[inline]
    pub(crate) const fn mapping(self, thread: u16) -> Mapping {
        let default = self.hctx(HctxType::Default, thread);
        let mut hctxs = [default; HctxType::COUNT];
        if self.nr[HctxType::Read as usize] > 0 {
            hctxs[HctxType::Read as usize] = self.hctx(HctxType::Read, thread);
        }
        if self.nr[HctxType::Poll as usize] > 0 {
            hctxs[HctxType::Poll as usize] = self.hctx(HctxType::Poll, thread);
        }
        Mapping(hctxs)
    }

    /// The type of a hardware queue.
    pub(super) const fn kind_of(self, hctx: u16) -> HctxType {
        std::debug_assert!(hctx < self.len(), "the hardware queue is one of the layout");
        if hctx < self.nr[0] {
            HctxType::Default
        } else if hctx < self.nr[0] + self.nr[1] {
            HctxType::Read
        } else {
            HctxType::Poll
        }
    }

    /// The hardware queues that a thread's requests may go to.
    pub(crate) fn mapped(self, thread: u16) -> impl Iterator<Item = u16> + Clone {
        HctxType::ALL
            .into_iter()
            .filter(move |kind| self.nr[*kind as usize] > 0)
            .map(move |kind| self.hctx(kind, thread))
    }
}

/// The hardware queues that one thread's requests go to, by the type that is best for the request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mapping([u16; HctxType::COUNT]);

impl Mapping {
    /// The thread's hardware queue, if all its requests go to one.
    #[inline]
    pub(crate) fn only(&self) -> Option<u16> {
        let [default, reads, polled] = self.0;
        (reads == default && polled == default).then_some(default)
    }

    /// The hardware queue that a request of the thread goes to.
    #[inline]
    fn hctx_of(&self, rq: &Request<'_>) -> u16 {
        let kind = match rq.op() {
            _ if rq.flags().polled => HctxType::Poll,
            Op::Read => HctxType::Read,
            _ => HctxType::Default,
        };
        self.0[kind as usize]
    }

    /// Gives a request of the thread its hardware queue, and returns that hardware queue.
    #[inline]
    pub(crate) fn assign(&self, rq: &mut Request<'_>) -> u16 {
        let hctx = self.hctx_of(rq);
        rq.body_mut().hctx = hctx;
        hctx
    }
}
