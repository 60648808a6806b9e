// SPDX-License-Identifier: GPL-2.0

//! All link groups of this host, and the choice between them.

use core::net::IpAddr;

use kapi::{
    errno::ENOBUFS,
    genl::Changes,
    grow::{self, Grow},
    new_spinlock_bh,
    reboot,
    spinlock_bh::SpinLockBh, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc,
        Mutex, //
    },
    time::{delay::fsleep, Delta}, //
};
use smc_proto::{
    group::{LinkEnd, LinkIx, Role},
    llc_flow::ShutDown,
    timer::Millis,
    wire::{Gid, PeerId}, //
};

use super::{moving::Fit, ConnToken, Drain, Group, Terms};
use crate::{
    clock::now,
    device::{Device, DeviceUpcalls, Path},
    link::{Link, Seat},
    netns::Netns,
    path::Match, //
};

/// All link groups. Process context.
#[pin_data]
pub(crate) struct Groups {
    #[pin]
    list: Mutex<KVec<Arc<Group>>>,
    last_number: Atomic<u64>,
    /// Groups whose queue pairs have not been taken apart, in the list or not any more.
    unreleased: Atomic<usize>,
    #[pin]
    first_contacts: SpinLockBh<[Option<Begun>; MAX_FIRST_CONTACTS]>,
    changes: Changes,
    drains: Changes,
}

/// First contacts that a server has under way at most. What a Proposal says proves nothing, and each
/// takes a queue pair and an RMB.
const MAX_FIRST_CONTACTS: usize = 64;

/// With so many link groups in its role a namespace makes no new one unless an idle one ends for it. Each has
/// buffers and a queue pair, and stays for minutes when it is not used; a peer can claim to be as many hosts as it
/// likes.
const MAX_GROUPS: usize = 1024;

/// So many of either are those of one address at most, which may claim to be many hosts as well: a quarter, which are
/// 65,280 connections where a group has 255.
const MAX_FIRST_CONTACTS_OF_A_HOST: usize = 8;
const MAX_GROUPS_OF_A_HOST: usize = 256;

/// And with those whose first contacts are under way.
const MOST_GROUPS: usize = MAX_GROUPS + MAX_FIRST_CONTACTS;

/// How long the removal of a device, or a machine that is about to stop, waits for links to be deleted, in milliseconds: many
/// times what that takes, and little for who wants either while a peer is gone.
const FAREWELL: Millis = 1_000;

/// With whom a first contact is under way: the namespace, by its cookie, and the peer's address.
type Begun = (u64, Option<IpAddr>);

/// Counts a first contact for as long as it is under way, whatever has become of its group.
pub(crate) struct FirstContact {
    groups: Arc<Groups>,
    place: usize,
}

impl FirstContact {
    /// Fails where there are as many as there may be, in all or with that address.
    fn begin(groups: &Arc<Groups>, with: Begun) -> Result<Self> {
        let mut begun = groups.first_contacts.lock();
        let same = begun.iter().filter(|other| **other == Some(with));
        if grow::count(same) >= MAX_FIRST_CONTACTS_OF_A_HOST {
            return Err(EBUSY);
        }
        let place = begun.iter().position(Option::is_none).ok_or(EBUSY)?;
        if let Some(entry) = begun.get_mut(place) {
            *entry = Some(with);
        }
        Ok(Self {
            groups: groups.clone(),
            place,
        })
    }
}

impl Drop for FirstContact {
    fn drop(&mut self) {
        if let Some(entry) = self.groups.first_contacts.lock().get_mut(self.place) {
            *entry = None;
        }
    }
}

/// What uses a port.
#[derive(Default)]
pub(crate) struct PortUsers {
    /// So many links do.
    pub(crate) links: usize,
    /// A group would end without it.
    pub(crate) critical: bool,
}

/// What a server does about a Proposal.
pub(crate) enum ServerChoice {
    /// Use this link of this group; the connection is counted in.
    Subsequent(Arc<Group>, Seat, ConnToken),
    /// A first contact with this peer is under way: look again when it is over.
    Wait(Arc<Group>),
    /// This group is new, and in the list already, without a link; the connection is counted in.
    First(Arc<Group>, ConnToken, FirstContact),
}

impl Groups {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            list <- new_mutex!(KVec::new(), "smc_groups"),
            last_number: Atomic::new(0),
            unreleased: Atomic::new(0),
            first_contacts <- new_spinlock_bh!([None; MAX_FIRST_CONTACTS], "smc_first_contacts"),
            changes: Changes::new(),
            drains: Changes::new(),
        })
    }

    /// A number for a new group, above those of all others. The lock of the list is held.
    pub(super) fn next_number(&self) -> u64 {
        self.last_number.fetch_add(1, Relaxed).wrapping_add(1)
    }

    /// The server's choice. `from` is the peer's address in the TCP connection. Sleeps.
    #[inline(never)]
    pub(crate) fn choose_server(
        &self,
        ns: &Arc<Netns>,
        peer: PeerId,
        found: &Match,
        from: Option<IpAddr>,
    ) -> Result<ServerChoice> {
        let Match {
            peer: (_, gid),
            path,
            v2,
        } = found;
        let mut list = self.list.lock();
        if let Some(choice) = Self::existing(&list, ns, peer, found, from) {
            return Ok(choice);
        }
        let first_contact = FirstContact::begin(&ns.shared.groups, (ns.cookie, from))?;
        Self::make_room(&list, ns, Role::Server, from)?;
        let terms = v2.as_ref().map(|v2| Terms::new(v2, ns));
        let (group, token) = self.create(&mut list, ns, Role::Server, (peer, *gid), path, terms)?;
        group.begin_with(from);
        Ok(ServerChoice::First(group, token, first_contact))
    }

    /// A group that there is for a client, with a link that does for its connection.
    fn existing(
        list: &[Arc<Group>],
        ns: &Arc<Netns>,
        peer: PeerId,
        found: &Match,
        from: Option<IpAddr>,
    ) -> Option<ServerChoice> {
        let Match {
            peer: port,
            path,
            v2,
        } = found;
        let eid = v2.map(|v2| v2.eid);
        let candidates = || {
            list.iter().filter(|group| {
                group.role == Role::Server
                    && group.peer_id == peer
                    && group.vlan == path.vlan
                    && group.first_path.service == path.service
                    && group.terms.map(|terms| terms.eid) == eid
                    // Anybody can name another host and its port: only who has its address gets to its group, has it
                    // end by a Decline, or says where it is written to.
                    && group.began_with(from)
                    // Who does not say who it is, is known by its port.
                    && (!peer.is_zero() || group.peer_gid == port.1)
                    && Arc::ptr_eq(&group.ns, ns)
            })
        };
        let seat = |group: &Arc<Group>, fit| {
            let seat = group.fitting_seat(*port, path, fit)?;
            let token = group.add_connection()?;
            Some(ServerChoice::Subsequent(group.clone(), seat, token))
        };
        for group in candidates().filter(|group| !group.is_over()) {
            if !group.is_usable() {
                return Some(ServerChoice::Wait(group.clone()));
            }
            let choice = seat(group, Fit::BothPorts);
            if choice.is_some() {
                return choice;
            }
        }
        // When a device of one side has gone, so has the link between the two ports. What is left of the group leads
        // to this host; a new one, between ports of a network of several wires, may lead nowhere.
        let network = path.want.pnet?;
        candidates()
            .filter(|group| group.first_path.want.pnet == Some(network))
            .find_map(|group| seat(group, Fit::OnePort))
    }

    /// A new group, without a link, for a client whose server, at the address `from`, asks for one. Sleeps.
    pub(crate) fn create_client(
        &self,
        ns: &Arc<Netns>,
        peer: (PeerId, Gid),
        path: &Path,
        terms: Option<Terms>,
        from: Option<IpAddr>,
    ) -> Result<(Arc<Group>, ConnToken)> {
        let mut list = self.list.lock();
        Self::make_room(&list, ns, Role::Client, from)?;
        let (group, token) = self.create(&mut list, ns, Role::Client, peer, path, terms)?;
        group.begin_with(from);
        Ok((group, token))
    }

    /// Where a namespace has as many groups of a role as it may, in all or with one address, the one that was made
    /// first of those which nobody uses gives way to a new one.
    fn make_room(list: &[Arc<Group>], ns: &Arc<Netns>, role: Role, from: Option<IpAddr>) -> Result {
        let own = || {
            list.iter()
                .filter(|group| group.role == role && Arc::ptr_eq(&group.ns, ns))
        };
        // Those that are being taken down are not in the list any more, and take up memory still.
        if ns.groups() as usize >= 2 * MOST_GROUPS {
            return Err(EBUSY);
        }
        Self::keep_to(MAX_GROUPS_OF_A_HOST, || {
            own().filter(|group| group.began_with(from))
        })?;
        Self::keep_to(MAX_GROUPS, own)
    }

    /// One of these groups gives way if there are as many as there may be.
    fn keep_to<'a, I>(most: usize, groups: impl Fn() -> I) -> Result
    where
        I: Iterator<Item = &'a Arc<Group>>,
    {
        let count = grow::count(groups());
        if count < most {
            return Ok(());
        }
        match groups().find(|group| group.is_idle()) {
            // It takes a moment to go.
            Some(idle) if count < most.saturating_add(MAX_FIRST_CONTACTS) => {
                idle.shut_down(ShutDown::Program);
                Ok(())
            }
            _ => Err(EBUSY),
        }
    }

    #[inline(never)]
    fn create(
        &self,
        list: &mut KVec<Arc<Group>>,
        ns: &Arc<Netns>,
        role: Role,
        peer: (PeerId, Gid),
        path: &Path,
        terms: Option<Terms>,
    ) -> Result<(Arc<Group>, ConnToken)> {
        list.make_room(1, GFP_KERNEL)?;
        let group = Group::new(ns.clone(), role, peer, path, terms)?;
        let token = group.add_connection().ok_or(ENOBUFS)?;
        list.append(group.clone(), GFP_KERNEL)?;
        self.unreleased.fetch_add(1, Relaxed);
        self.changes.note();
        Ok((group, token))
    }

    /// The queue pairs of a group have been taken apart.
    pub(super) fn note_released(&self) {
        self.unreleased.fetch_sub(1, Relaxed);
    }

    /// The client's group and link that an Accept names, in the VLAN of the TCP connection: what goes in one VLAN
    /// by TCP goes in no other one by RDMA, whatever the peer says. `None` if the peer has no group here, and
    /// `Some(None)` if it has, but no such link.
    pub(crate) fn find_client(
        &self,
        ns: &Arc<Netns>,
        peer: PeerId,
        end: &LinkEnd,
        vlan: Option<u16>,
        is_v2: bool,
    ) -> Option<Option<(Arc<Group>, LinkIx)>> {
        let list = self.list.lock();
        let mut known = false;
        for group in list.iter().filter(|group| {
            group.role == Role::Client
                && group.peer_id == peer
                && group.terms.is_some() == is_v2
                && Arc::ptr_eq(&group.ns, ns)
        }) {
            known = true;
            if group.vlan != vlan {
                continue;
            }
            if let Some(link) = group.find_link(end) {
                return Some(Some((group.clone(), link)));
            }
        }
        known.then_some(None)
    }

    /// Takes a group off the list.
    pub(super) fn remove(&self, group: &Arc<Group>) {
        let removed = {
            let mut list = self.list.lock();
            let place = list.iter().position(|other| Arc::ptr_eq(other, group));
            self.changes.note();
            place.and_then(|place| list.remove(place).ok())
        };
        drop(removed);
    }

    /// How often the list of groups, or of the links of one, has changed.
    pub(crate) fn changes(&self) -> u32 {
        self.changes.count()
    }

    /// A group has a link more, or less.
    pub(super) fn note_link(&self) {
        self.changes.note();
    }

    /// How often something was drained, or is not any more.
    pub(crate) fn drains(&self) -> u32 {
        self.drains.count()
    }

    /// A group or a port is drained, or not any more.
    pub(super) fn note_drain(&self) {
        self.drains.note();
    }

    /// The group that comes after number `number`, in the order of their making.
    pub(crate) fn after(&self, number: u64) -> Option<Arc<Group>> {
        let list = self.list.lock();
        let place = grow::place_behind(&list, |group| group.number <= number);
        list.get(place).cloned()
    }

    /// The oldest group that `which` is true of.
    pub(crate) fn find(&self, which: impl Fn(&Group) -> bool) -> Option<Arc<Group>> {
        let list = self.list.lock();
        list.iter().find(|group| which(group)).cloned()
    }

    /// A port is drained, or not any more: takes what uses it out of use, or back.
    pub(crate) fn drain_port(&self, device: &Arc<Device>, port: u8, on: bool) {
        self.note_drain();
        let mut from = 0;
        while let Some(group) = self.after(from) {
            from = group.number;
            if on {
                let links = group.links().filter(|link| link.path.is_on(device, port));
                links.for_each(|link| group.drain_link(Drain::Port, &link));
            } else {
                group.review_port_drain();
                group.look_out();
            }
        }
    }

    /// What uses a port, of groups that `which` is true of.
    pub(crate) fn users_of(
        &self,
        device: &Arc<Device>,
        port: u8,
        which: impl Fn(&Group) -> bool,
    ) -> PortUsers {
        let mut users = PortUsers::default();
        let list = self.list.lock();
        for group in list.iter().filter(|group| which(group)) {
            let on_it = |link: &Arc<Link>| link.path.is_on(device, port);
            let links = grow::count(group.links().filter(on_it));
            users.links = users.links.saturating_add(links);
            users.critical |= links != 0 && group.depends_on_a_port();
        }
        users
    }

    /// Has all groups end that `which` is true of: their peers are told first.
    pub(crate) fn shut_down(&self, why: ShutDown, which: impl Fn(&Group) -> bool) {
        let mut from = 0;
        while let Some(group) = self.after(from) {
            from = group.number;
            if which(&group) {
                group.shut_down(why);
            }
        }
    }

    /// Has all groups that `which` is true of give back the buffers that no connection uses.
    pub(crate) fn trim(&self, which: impl Fn(&Group) -> bool) {
        let mut from = 0;
        while let Some(group) = self.after(from) {
            from = group.number;
            if which(&group) {
                group.trim();
            }
        }
    }

    /// Bytes of buffers that no connection uses, as far as it can be seen without waiting.
    pub(crate) fn idle_bytes(&self) -> usize {
        let list = self.list.try_lock();
        list.map_or(0, |list| {
            grow::sum(list.iter().map(|group| group.idle_bytes()))
        })
    }

    /// Looks at every group and its links.
    fn for_each(&self, mut action: impl FnMut(&Arc<Group>, &Link)) {
        let mut from = 0;
        while let Some(group) = self.after(from) {
            from = group.number;
            group.links().for_each(|link| action(&group, &link));
        }
    }

    /// Has groups with links elsewhere leave a device while it still works, as if it were drained, so that as
    /// little as can be is under way on its links when they go. Waits until that is done, for `FAREWELL` at most.
    ///
    /// Where all links are on the device, its peer finds that out by itself: Linux waits for the completion
    /// of what it has sent when it is told, and over `rdma_rxe`, which repeats for ever, that never comes.
    fn leave(&self, device: &Arc<Device>) {
        let end = now().after(FAREWELL);
        let (mut from, mut asked) = (0, false);
        while let Some(group) = self.after(from) {
            from = group.number;
            asked |= group.leave(device);
        }
        while asked && now() < end && self.find(|group| group.is_leaving(device)).is_some() {
            fsleep(Delta::from_millis(2));
        }
    }

    /// Ends the links on a device that does not work any more. First none of them carries anything, so that
    /// no peer is told by one of them of the end of another.
    fn fail_links(&self, device: &Arc<Device>) {
        self.for_each(|group, link| {
            if link.path.is_of(device) {
                group.note_disturbance();
                link.fail();
            }
        });
        self.for_each(|group, link| {
            if link.path.is_of(device) {
                group.link_lost(link.place);
            }
        });
    }
}

/// A machine that stops takes all link groups with it: their peers need not wait until it has been silent for a while.
impl reboot::Listener for Groups {
    fn machine_stops(&self) {
        let end = now().after(FAREWELL);
        // What they say last has to get to their peers. Programs may still be running, and connect again.
        while self.unreleased.load(Relaxed) != 0 && now() < end {
            self.shut_down(ShutDown::Operator, |_| true);
            fsleep(Delta::from_millis(5));
        }
    }
}

impl DeviceUpcalls for Groups {
    fn removed(&self, device: &Arc<Device>) {
        self.leave(device);
        self.fail_links(device);
        // Links that were deleted in order would be replaced after a pause only.
        self.ready();
    }

    fn ready(&self) {
        let mut from = 0;
        while let Some(group) = self.after(from) {
            from = group.number;
            group.look_out();
        }
    }

    fn port_error(&self, device: &Arc<Device>, port: u8) {
        self.for_each(|group, link| {
            if link.path.is_on(device, port) {
                group.port_down(link);
            }
        });
    }

    fn gids_changed(&self, device: &Arc<Device>, port: u8) {
        self.for_each(|group, link| {
            if link.path.is_on(device, port) {
                group.addresses_changed();
            }
        });
        // A new one may lead to a peer.
        self.ready();
    }

    fn fatal(&self, device: &Arc<Device>) {
        self.fail_links(device);
    }
}
