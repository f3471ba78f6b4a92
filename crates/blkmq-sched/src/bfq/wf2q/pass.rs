//! Service of a queue that does not wait: its requests bypassed the scheduler.

use super::{Entity, Forest};
use crate::slab::Index;

impl Forest {
    /// A queue that does not wait was served `sectors` all the same, and may come back from where it finished. This is
    /// [`activate`](Self::activate), [`serve`](Self::serve) and [`deactivate`](Self::deactivate) in one.
    pub(in crate::bfq) fn pass(&mut self, leaf: Entity, sectors: u64) {
        debug_assert!(!self.is_active(leaf), "a queue that waits or is in service is served");
        let within = self.within(leaf.0);
        if within == self.members(self.root) && self.groups.get(within).is_quiet() {
            self.pass_alone(leaf.0, within, sectors);
        } else {
            self.activate(leaf, sectors, true);
            self.serve(leaf, sectors);
            self.deactivate(leaf, true);
        }
    }

    /// As [`pass`](Self::pass), while nothing waits or is in service. The queue would be put into an empty active tree,
    /// be the next one, and leave again.
    fn pass_alone(&mut self, leaf: Index, within: Index, sectors: u64) {
        let state = self.states.get_mut(leaf);
        (state.budget, state.service) = (sectors, sectors);
        let starts_in_past = self.set_start(leaf, true);
        self.set_finish(leaf, starts_in_past);
        self.states.get_mut(self.root.0).budget = sectors;
        let class = self.states.get(leaf).class.index();
        let group = self.groups.get_mut(within);
        let tree = &mut group.trees[class];
        tree.serve_one(&mut self.states, sectors);
        tree.leave(&mut self.states, leaf, true);
        group.next = group.look_up(&mut self.states, *self.now, self.decides_early);
        debug_assert!(group.next.is_none(), "nothing waits");
    }
}
