//! Clients and groups as programs and schedulers see them.
//!
//! The table has a lock of its own. A thread that changes it holds that lock until the scheduler has been told, under
//! its own lock. So every scheduler hears the same changes in the same order, and one that is installed later hears
//! first what there is.

mod clients;
pub(super) mod groups;
mod id_table;
pub(super) mod service;
pub(super) mod usage;

use std::fmt::{self, Write};

use blkmq_sched::{ClientId, ClientSettings, GroupId, GroupSettings, IoPriority, MAX_WEIGHT, MIN_WEIGHT, Scheduler};

use self::clients::{ClientEntry, Clients};
use self::groups::{Group, Groups};
use self::service::Served;
use super::error::{QueueError, TenantError};
use super::{CONTROL, Queue};
use crate::request::client::Client;
use crate::request::limits::MAX_THREADS;
use crate::request::{SlotIndex, is_hidden};
use blkmq_sync::MutexGuard;

/// The table of the clients and groups of a queue.
#[derive(Debug, Default)]
pub(super) struct TenantTable {
    clients: Clients,
    groups: Groups,
}

/// The clients and groups of a queue: see [`RequestQueue::tenants`](crate::RequestQueue::tenants).
#[derive(Debug, Clone, Copy)]
pub struct Tenants<'q>(&'q Queue);

/// What was done for a client: its operations that are over and were reaped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Service {
    /// Operations.
    pub operations: u64,
    /// Sectors of 512 bytes that were read or written. An operation that moves no data, as a discard, counts none.
    pub sectors: u64,
}

/// A client of a queue, as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientInfo {
    /// The client's id as long as a submitter serves the client. A client that comes later has another id.
    pub id: ClientId,
    /// The name.
    pub name: String,
    /// The share beside the other clients and groups of its group, 1 to 1000.
    pub weight: u16,
    /// The priority of operations that carry none of their own, as the client's first submitter was given it.
    pub priority: IoPriority,
    /// The group that the client belongs to.
    pub group: GroupId,
    /// Submitters that serve the client.
    pub submitters: u32,
    /// Operations, after splitting, that the client's submitters took and have not handed out yet: as of each
    /// submitter's last call of the queue.
    pub outstanding: u64,
    /// Requests of the client that the device has now.
    pub with_driver: u64,
    /// Requests of the client that wait for the device, in the scheduler or beside it. A request that is just being
    /// moved is not counted.
    pub waiting: u64,
    /// Reads since the client came.
    pub reads: Service,
    /// All other operations since the client came.
    pub others: Service,
}

/// A group of clients, as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupInfo {
    /// The group's id until the group is removed. A group that is added later has another id.
    pub id: GroupId,
    /// The name.
    pub name: String,
    /// The share beside the other clients and groups of its parent, 1 to 1000.
    pub weight: u16,
    /// The group that this group belongs to.
    pub parent: GroupId,
    /// How many clients are in the group itself, and not in groups within it.
    pub clients: u32,
}

fn check_weight(name: &str, weight: u16) -> Result<(), TenantError> {
    if (MIN_WEIGHT..=MAX_WEIGHT).contains(&weight) {
        Ok(())
    } else {
        Err(TenantError::Weight { name: name.to_owned(), weight })
    }
}

impl TenantTable {
    /// Tells a scheduler that is about to be installed what there is.
    pub(super) fn add_all_to(&self, scheduler: &mut dyn Scheduler) {
        for (id, group) in self.groups.in_order() {
            scheduler.join_group(id, &group.settings);
        }
        for (id, client) in self.clients.places.iter() {
            scheduler.join(id, &client.settings);
        }
    }
}

/// What membership, dumps and the installation of a scheduler call.
impl<'q> Tenants<'q> {
    pub(super) fn of(q: &'q Queue) -> Self {
        Self(q)
    }

    pub(super) fn table(self) -> MutexGuard<'q, TenantTable> {
        self.0.tenants.lock()
    }

    /// A submitter begins to serve a client.
    pub(super) fn join(self, thread: u16, client: &Client) -> Result<ClientId, TenantError> {
        if client.name.contains(is_hidden) {
            return Err(TenantError::BadClientName(client.name.chars().take(64).collect()));
        }
        check_weight(&client.name, client.weight)?;
        let mut tenants = self.table();
        tenants.groups.check(client.group)?;
        let (id, is_new) = tenants.clients.join(client);
        let settings = tenants.clients.places.get(id).expect("it has just come").settings;
        if is_new {
            self.update_schedulers(|scheduler| scheduler.join(id, &settings));
        }
        self.0.threads.get(thread).serve(id, settings.group);
        Ok(id)
    }

    /// A submitter that served a client leaves. Nothing that it asked for is outstanding. Returns whether the client is
    /// gone, of which the caller tells other threads ([`note_shares`](Self::note_shares)).
    pub(super) fn leave(self, thread: u16, id: ClientId) -> bool {
        let mut tenants = self.table();
        let served = self.0.domains.end_service(self.0, thread);
        let is_gone = tenants.clients.leave(id, served);
        if is_gone {
            self.0.domains.made().for_each(|domain| domain.control().remove_client(self.0, id));
        }
        is_gone
    }

    /// Calls `update` with every scheduler in use.
    fn update_schedulers(self, update: impl Fn(&mut dyn Scheduler)) {
        for domain in self.0.domains.made() {
            domain.control().update_scheduler(self.0, |scheduler| update(scheduler));
        }
    }

    /// For dumps. The lock is not waited for: a dump must also show a change that does not come to its end.
    pub(crate) fn show(self, out: &mut dyn Write) -> fmt::Result {
        match self.0.tenants.try_lock() {
            Some(tenants) => {
                tenants.groups.show(out)?;
                tenants.clients.show(out)
            }
            None => writeln!(out, "clients: not shown, for they are being changed"),
        }
    }
}

impl Tenants<'_> {
    /// Adds a group of clients to the group `parent`, which may be [`GroupId::ROOT`].
    ///
    /// # Errors
    /// There is a group of this name already; the name is empty, longer than 4096 bytes, or has a character in it that
    /// [`is_hidden`](crate::is_hidden); the weight is not within 1 to 1000; the parent was removed, or lies
    /// [`MAX_GROUP_DEPTH`](crate::MAX_GROUP_DEPTH) deep; or there are as many groups as there can be
    /// ([`GroupId::PLACES`] - 1).
    pub fn add_group(self, name: &str, parent: GroupId, weight: u16) -> Result<GroupId, QueueError> {
        check_weight(name, weight)?;
        let mut tenants = self.table();
        let settings = GroupSettings { weight, parent };
        let id = tenants.groups.add(name, settings)?;
        self.update_schedulers(|scheduler| scheduler.join_group(id, &settings));
        Ok(id)
    }

    /// Gives a group another weight while I/O runs. The scheduler is told at once, and goes by the weight from the
    /// group's next turn on.
    ///
    /// # Errors
    /// The weight is not within 1 to 1000, or the group was removed, or is the root.
    pub fn set_group_weight(self, group: GroupId, weight: u16) -> Result<(), QueueError> {
        self.change(|table| {
            let known = table.groups.get_mut(group)?;
            check_weight(&known.name, weight)?;
            known.settings.weight = weight;
            self.update_schedulers(|scheduler| scheduler.join_group(group, &known.settings));
            Ok(())
        })
    }

    /// Removes a group. The clients and groups in it move to its parent first.
    ///
    /// # Errors
    /// The group was removed before, or is the root.
    pub fn remove_group(self, group: GroupId) -> Result<(), QueueError> {
        self.change(|table| {
            let parent = table.groups.get(group)?.settings.parent;
            for child in table.groups.children(group) {
                let known = table.groups.get_mut(child)?;
                known.settings.parent = parent;
                self.update_schedulers(|scheduler| scheduler.join_group(child, &known.settings));
            }
            for (id, client) in table.clients.places.iter_mut().filter(|(_, client)| client.settings.group == group) {
                self.move_known(id, &mut client.settings, parent);
            }
            table.groups.remove(group);
            self.update_schedulers(|scheduler| scheduler.leave_group(group));
            Ok(())
        })
    }

    /// The group of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn group_of(self, name: &str) -> Result<GroupId, QueueError> {
        let found = self.table().groups.of_name(name);
        Ok(found.ok_or_else(|| TenantError::UnknownGroup(name.to_owned()))?)
    }

    /// The client of this name, as long as a submitter serves it.
    ///
    /// # Errors
    /// There is none.
    pub fn client_of(self, name: &str) -> Result<ClientId, QueueError> {
        let found = self.table().clients.of_name(name);
        Ok(found.ok_or_else(|| TenantError::UnknownClient(name.to_owned()))?)
    }

    /// Gives a client another weight while I/O runs. The scheduler is told at once, and goes by the weight from the
    /// client's next turn on. A client that shares a queue of `bfq` with others leaves it with its next request.
    ///
    /// # Errors
    /// The weight is not within 1 to 1000, or the client has left.
    pub fn set_client_weight(self, client: ClientId, weight: u16) -> Result<(), QueueError> {
        self.change(|table| {
            let known = table.clients.places.get_mut(client).ok_or(TenantError::NoClient(client))?;
            check_weight(&known.name, weight)?;
            known.settings.weight = weight;
            self.update_schedulers(|scheduler| scheduler.join(client, &known.settings));
            Ok(())
        })
    }

    /// Moves a client to another group while its I/O goes on. Operations that its submitters have already put into
    /// their plugs still merge as in the old group.
    ///
    /// # Errors
    /// The group was removed, or the client has left.
    pub fn move_client(self, client: ClientId, group: GroupId) -> Result<(), QueueError> {
        self.change(|table| {
            table.groups.check(group)?;
            let known = table.clients.places.get_mut(client).ok_or(TenantError::NoClient(client))?;
            self.move_known(client, &mut known.settings, group);
            Ok(())
        })
    }

    /// Makes a change, and tells threads that wait of it, once the table is free.
    fn change(self, change: impl FnOnce(&mut TenantTable) -> Result<(), TenantError>) -> Result<(), QueueError> {
        change(&mut self.table())?;
        self.note_shares();
        Ok(())
    }

    fn move_known(self, client: ClientId, settings: &mut ClientSettings, group: GroupId) {
        settings.group = group;
        self.update_schedulers(|scheduler| scheduler.join(client, settings));
        let threads = self.0.threads.iter().map(|(_, thread)| thread);
        threads.filter(|thread| thread.client() == client).for_each(|thread| thread.serve(client, group));
    }

    /// The clients that submitters serve now, in no particular order.
    #[must_use]
    pub fn clients(self) -> Vec<ClientInfo> {
        let tenants = self.table();
        let mut with_driver = [0; MAX_THREADS];
        self.0.hctxs.for_each_with_driver(&self.0.slots, |rq, _| {
            let client = self.0.threads.get(SlotIndex::of(rq).pool()).client();
            // The queue's own flushes are of no client.
            with_driver[client.place()] += u64::from(client != ClientId::default());
        });
        let info = |(id, known): (ClientId, &ClientEntry)| self.client_info(id, known, with_driver[id.place()]);
        tenants.clients.places.iter().map(info).collect()
    }

    fn client_info(self, id: ClientId, known: &ClientEntry, with_driver: u64) -> ClientInfo {
        let (mut served, mut outstanding, mut waiting): (Served, u64, u64) = (known.past, 0, 0);
        for (number, thread) in self.0.threads.iter().filter(|(_, thread)| thread.client() == id) {
            served += thread.service.served();
            let of_thread = thread.service.outstanding();
            outstanding += u64::from(of_thread);
            // The slots of a submitter that has nothing outstanding are left alone.
            waiting += if of_thread > 0 { self.0.slots.nr_waiting(number).into() } else { 0 };
        }
        let ([reads, writes, bare], [read, written]) = (served.operations, served.sectors);
        let ClientSettings { weight, priority, group, .. } = known.settings;
        ClientInfo {
            id,
            name: known.name.clone(),
            weight,
            priority,
            group,
            submitters: known.nr_submitters,
            outstanding,
            with_driver,
            waiting,
            reads: Service { operations: reads, sectors: read },
            others: Service { operations: writes + bare, sectors: written },
        }
    }

    /// The groups, each behind the group that it belongs to. The root is not among them.
    #[must_use]
    pub fn groups(self) -> Vec<GroupInfo> {
        let tenants = self.table();
        let info = |(id, group): (GroupId, &Group)| {
            let GroupSettings { weight, parent } = group.settings;
            let clients =
                tenants.clients.places.iter().filter(|(_, client)| client.settings.group == id).count() as u32;
            GroupInfo { id, name: group.name.clone(), weight, parent, clients }
        };
        tenants.groups.in_order().into_iter().map(info).collect()
    }

    /// Weights or groups have changed, or a client is gone. The scheduler may let go now what it held back, or take
    /// what it refused.
    pub(super) fn note_shares(self) {
        self.0.live.fence_before_notify();
        self.0.notify_others(CONTROL);
    }
}
