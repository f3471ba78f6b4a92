//! Following the choices of another kyber.

use super::{BATCHES, ByAge, Kyber};
use crate::list::List;
use crate::merge::forced;
use crate::slab::Index;
use crate::{DispatchContext, Info, Join, MergeHow, Replay, RqId, SchedDomain, Time};

/// The list in which a request waits.
#[derive(Debug, Clone, Copy)]
enum WaitList {
    AtHead,
    Ready,
    /// That of a software queue.
    Outside(u8),
}

impl Replay for Kyber {
    fn peek(&mut self, context: &mut dyn DispatchContext, _now: Time) -> Option<RqId> {
        if self.requests.len() == 0 {
            return None;
        }
        if let Some(item) = self.at_head.head() {
            let request = self.requests.get(item);
            return context.take_token(request.domain()).then_some(request.id);
        }
        let goes_on = (*self.batching < BATCHES[self.current.index()]).then_some(*self.current);
        let others = (1..=SchedDomain::ALL.len()).map(|step| self.current.plus(step));
        let item = goes_on.into_iter().chain(others).find_map(|of| {
            let item = self.oldest(of)?;
            context.take_token(of).then_some(item)
        })?;
        Some(self.requests.get(item).id)
    }

    fn force(&mut self, rq: RqId, _now: Time) -> bool {
        let Some((item, place)) = self.find(rq) else { return false };
        if let WaitList::AtHead = place {
            self.at_head.remove(&mut self.requests, item);
            self.start(item);
            return true;
        }
        let of = self.requests.get(item).domain();
        if of == *self.current && *self.batching < BATCHES[of.index()] {
            *self.batching += 1;
        } else {
            (*self.current, *self.batching) = (of, 1);
        }
        // The other one has let it in. If our own list has something left, the other one's had not.
        if let WaitList::Outside(_) = place {
            self.let_in(of);
        }
        self.queues[of.index()].ready.remove(&mut self.requests, item);
        self.start(item);
        true
    }

    fn force_merge(&mut self, into: RqId, newcomer: &Info, how: MergeHow) -> bool {
        let Some((host, WaitList::Ready | WaitList::Outside(_))) = self.find(into) else { return false };
        let request = self.requests.get_mut(host);
        request.info = forced(&request.info, newcomer, how);
        true
    }

    fn force_join(&mut self, join: Join) -> bool {
        let [survivor, absorbed] = [join.survivor, join.absorbed].map(|id| self.find(id));
        let (Some((survivor, WaitList::Ready | WaitList::Outside(_))), Some((absorbed, place))) = (survivor, absorbed)
        else {
            return false;
        };
        let [host, guest] = [survivor, absorbed].map(|item| self.requests.get(item));
        let of = host.domain();
        if survivor == absorbed || of != guest.domain() {
            return false;
        }
        let grown = forced(&host.info, &guest.info, MergeHow::Back);
        match place {
            WaitList::AtHead => return false,
            WaitList::Ready => self.queues[of.index()].ready.remove(&mut self.requests, absorbed),
            WaitList::Outside(ctx) => {
                let list = &mut self.ctxs[usize::from(ctx)][of.index()];
                list.remove(&mut self.requests, absorbed);
                if list.is_empty() {
                    self.queues[of.index()].busy.remove(ctx);
                }
            }
        }
        self.start(absorbed);
        self.requests.get_mut(survivor).info = grown;
        true
    }
}

impl Kyber {
    /// The request of a kind that goes first.
    fn oldest(&self, of: SchedDomain) -> Option<Index> {
        let queue = &self.queues[of.index()];
        let outside = |ctx: u8| self.ctxs[usize::from(ctx)][of.index()].head();
        queue.ready.head().or_else(|| outside(queue.busy.first()?))
    }

    /// The waiting request of this id, and where it waits.
    fn find(&self, rq: RqId) -> Option<(Index, WaitList)> {
        let within = |list: &List<ByAge>, place| {
            let found = list.iter(&self.requests).find(|(_, request)| request.id == rq);
            found.map(|(item, _)| (item, place))
        };
        let at_head = within(&self.at_head, WaitList::AtHead);
        let ready = || self.queues.iter().find_map(|queue| within(&queue.ready, WaitList::Ready));
        let outside = || {
            let mut ctxs = (0..=u8::MAX).zip(self.ctxs.iter());
            ctxs.find_map(|(ctx, lists)| lists.iter().find_map(|list| within(list, WaitList::Outside(ctx))))
        };
        at_head.or_else(ready).or_else(outside)
    }
}
