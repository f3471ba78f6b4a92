//! What the controller does to tenants and groups while their operations go on.

use std::time::Duration;

use blkmq_sched::GroupId;
use blkmq_vcpu::thread;
use blkmq_virtual::{ClientInfo, QueueError};

use super::Controller;
use crate::event::{Control, Phase};
use crate::tenancy::{Group, MOST_GROUPS, group_name, tenant_name, weight};

impl Controller {
    /// Changes a tenant or a group.
    pub(super) fn change_shares(&mut self) {
        match self.whims.random.below(8) {
            0 | 1 => self.reweigh_tenant(),
            2 | 3 => self.move_tenant(),
            4 => self.reweigh_group(),
            5 => self.add_group(),
            6 => self.remove_group(),
            _ => self.ask_for_what_cannot_be(),
        }
    }

    fn pick_tenant(&mut self) -> u16 {
        let nr_tenants = self.world.share(|share| share.tenancy.tenants.len() as u64);
        self.whims.random.below(nr_tenants) as u16
    }

    /// A group, or the root.
    fn pick_group(&mut self) -> GroupId {
        let ids: Vec<_> = self.world.share(|share| share.tenancy.groups.iter().map(|group| group.id).collect());
        let at = self.whims.random.below(ids.len() as u64 + 1) as usize;
        ids.get(at).copied().unwrap_or(GroupId::ROOT)
    }

    fn reweigh_tenant(&mut self) {
        let (number, weight) = (self.pick_tenant(), weight(&mut self.whims.random));
        let control = Control::TenantWeight(number, weight);
        self.tell(control, Phase::Begun);
        self.world.share(|share| share.tenancy.tenants[usize::from(number)].weight = weight);
        self.settle(number);
        self.tell(control, Phase::Done);
    }

    fn move_tenant(&mut self) {
        let (number, group) = (self.pick_tenant(), self.pick_group());
        let control = Control::Move(number, group.0);
        self.tell(control, Phase::Begun);
        self.world.share(|share| share.tenancy.tenants[usize::from(number)].group = group);
        self.settle(number);
        self.tell(control, Phase::Done);
    }

    /// Makes the queue agree with what the tenant shall be. The tenant may leave and come again meanwhile, and a
    /// submitter that is just joining may bring what the tenant was before.
    fn settle(&self, number: u16) {
        let name = tenant_name(number);
        Self::until(|| {
            let shall = self.world.share(|share| share.tenancy.tenants[usize::from(number)]);
            let Ok(id) = self.world.q.tenants().client_of(&name) else { return (shall.nr_joining == 0).then_some(()) };
            let is = self.world.q.tenants().clients().into_iter().find(|ClientInfo { id: other, .. }| *other == id)?;
            if (is.weight, is.group) == (shall.weight, shall.group) {
                return (shall.nr_joining == 0).then_some(());
            }
            // The tenant may have left by now.
            let _ = self.world.q.tenants().set_client_weight(id, shall.weight);
            let _ = self.world.q.tenants().move_client(id, shall.group);
            None
        });
    }

    fn reweigh_group(&mut self) {
        let (group, weight) = (self.pick_group(), weight(&mut self.whims.random));
        let control = Control::GroupWeight(group.0, weight);
        self.tell(control, Phase::Begun);
        let result = self.world.q.tenants().set_group_weight(group, weight);
        self.judge(control, group != GroupId::ROOT, result);
    }

    fn add_group(&mut self) {
        let (parent, weight) = (self.pick_group(), weight(&mut self.whims.random));
        let (number, is_full) =
            self.world.share(|share| (share.tenancy.nr_made, share.tenancy.groups.len() == MOST_GROUPS));
        if is_full {
            return;
        }
        let control = Control::AddGroup(parent.0, weight);
        self.tell(control, Phase::Begun);
        let made = self.world.q.tenants().add_group(&group_name(number), parent, weight);
        if let Ok(id) = made {
            self.world.share(|share| {
                share.tenancy.nr_made += 1;
                share.tenancy.groups.push(Group { id, parent });
            });
        }
        self.judge(control, true, made.map(|_| ()));
    }

    /// Removes a group, with its clients and groups in it, which belong to its parent then.
    fn remove_group(&mut self) {
        let group = self.pick_group();
        let control = Control::RemoveGroup(group.0);
        self.tell(control, Phase::Begun);
        // A submitter that joins from here on names the parent.
        let moved: Vec<u16> = self.world.share(|share| share.tenancy.forget(group));
        let result = self.world.q.tenants().remove_group(group);
        moved.into_iter().for_each(|number| self.settle(number));
        self.judge(control, group != GroupId::ROOT, result);
    }

    fn ask_for_what_cannot_be(&mut self) {
        let (number, group) = (self.pick_tenant(), self.pick_group());
        let q = &self.world.q;
        let weight = if self.whims.random.one_in(2) { 0 } else { 1001 };
        let results: [Result<(), QueueError>; 4] = [
            q.tenants().add_group(&group_name(0), GroupId::new(1000, 1), 100).map(|_| ()),
            q.tenants().add_group("", group, 100).map(|_| ()),
            q.tenants().set_group_weight(group, weight),
            q.tenants().client_of(&tenant_name(number)).and_then(|id| q.tenants().set_client_weight(id, weight)),
        ];
        if let Some(at) = results.iter().position(Result::is_ok) {
            self.accuse(format!("what cannot be was done to group {} or tenant {number}: {at}", group.0));
        }
        thread::sleep(Duration::ZERO);
    }
}
