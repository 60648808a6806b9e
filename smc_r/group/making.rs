// SPDX-License-Identifier: GPL-2.0

//! The links of a group. After the first one, what the LLC engine asks for is made and connected by a work item of its own, so
//! that timers and failures need not wait for it. Another one takes apart what is gone.

use kapi::{
    errno::{EHOSTUNREACH, ENOTCONN, ESTALE},
    grow,
    workqueue, //
};
use kernel::{
    prelude::*,
    sync::{atomic::Relaxed, Arc}, //
};
use smc_proto::{
    group::{LinkEnd, LinkIx},
    llc_flow::Attempt,
    wire::{Diagnosis, Gid}, //
};

use super::{pools::Pools, Group};
use crate::{clock::now, device::Path, link::Link, path};

/// What the LLC engine asks for.
#[derive(Clone, Copy)]
pub(super) enum Task {
    /// Server: a queue pair to be offered.
    Make { attempt: Attempt, spare_only: bool },
    /// Client: a queue pair that is connected to the one that was offered.
    Accept { attempt: Attempt, spare_only: bool },
    /// Server: connects the queue pair that the client has accepted.
    Connect(Attempt),
}

/// Tag type: the work item that makes links.
pub(super) struct Maker;

impl workqueue::Handler<Arc<Group>> for Maker {
    fn run(group: Arc<Group>) {
        loop {
            let task = group.links.lock().task.take();
            match task {
                Some(task) => group.carry_out(task),
                None if group.offer.xchg(0, Relaxed) != 0 => group.offer_port(),
                None => return,
            }
        }
    }
}

/// Tag type: the work item that shuts down links that are gone. A device may take seconds for that.
pub(super) struct Breaker;

impl workqueue::Handler<Arc<Group>> for Breaker {
    fn run(group: Arc<Group>) {
        group.shut_down_gone();
    }
}

impl Group {
    /// Makes the link of the first contact, which is not connected yet, or says why there is none. The group is in the list
    /// already: a device may take long over a queue pair, and nobody who looks for another group waits for that. Process
    /// context.
    pub(crate) fn make_first_link(self: &Arc<Self>) -> Result<Arc<Link>, Diagnosis> {
        self.first_link_made().map_err(|error| match error {
            ENOTCONN | ENODEV => Diagnosis::NO_ACTIVE_LINK,
            _ => self.note_no_memory(),
        })
    }

    /// There is no memory for the first link: whoever waits for this group need not try in vain, too.
    pub(super) fn note_no_memory(&self) -> Diagnosis {
        self.no_link.store(1, Relaxed);
        Diagnosis::MEMORY
    }

    fn first_link_made(self: &Arc<Self>) -> Result<Arc<Link>> {
        let link = Link::new(self.clone(), LinkIx::FIRST, self.first_path.clone())?;
        if !self.place_first(&link) {
            link.shutdown();
            return Err(ENOTCONN);
        }
        self.ns.shared.groups.note_link();
        // What has become of its port since that was chosen, nobody has told of a link that was not there. Whoever takes the
        // group apart finds this one.
        let path = &link.path;
        if !path.works() {
            return Err(ENODEV);
        }
        if path.device.is_drained(path.port) {
            self.drain_with_port(path);
        }
        Ok(link)
    }

    /// False if the end of the group has come before.
    fn place_first(&self, link: &Arc<Link>) -> bool {
        let guard = self.flow.lock();
        if guard.flow.is_over() {
            return false;
        }
        if let Some(place) = self.links.lock().places.first_mut() {
            *place = Some(link.clone());
        }
        true
    }

    /// Has the work item see to something, and forget what else it was to do.
    pub(super) fn make_later(self: &Arc<Self>, task: Task) {
        self.links.lock().task = Some(task);
        self.maker.rearm(self.ns.device_queue(), self.clone(), 0);
    }

    fn carry_out(self: &Arc<Self>, task: Task) {
        match task {
            Task::Make {
                attempt,
                spare_only,
            } => self.make(attempt, spare_only, None),
            Task::Accept {
                attempt,
                spare_only,
            } => {
                let peer = self.flow.lock().flow.peer_end(attempt.link());
                self.make(attempt, spare_only, peer);
            }
            Task::Connect(attempt) => {
                let connected = self.connect_further(attempt.link());
                let ok = self.count_reason(connected).is_ok();
                self.with_flow(|flow, _, now| flow.link_connected(attempt, ok, now));
            }
        }
    }

    /// Makes a link, connects it if the peer's end is known, and names it.
    fn make(self: &Arc<Self>, attempt: Attempt, spare_only: bool, peer: Option<LinkEnd>) {
        let made = self.new_link(attempt.link(), spare_only, peer);
        // Nobody minds if it is too late.
        let link = match self.count_reason(made) {
            Ok(link) => link,
            Err(ENODEV | EHOSTUNREACH) => {
                let _ = self.with_flow(|flow, _, now| flow.link_made(attempt, None, now));
                return;
            }
            Err(_) => {
                let _ = self.with_flow(|flow, _, now| flow.link_not_made(attempt, now));
                return;
            }
        };
        let wanted = {
            // Buffers made from now on have a key on this link, too.
            let pools = self.pools.lock();
            self.prepare(&pools, &link, peer.is_some())
                .is_ok_and(|()| self.name(&pools, attempt, &link))
        };
        if !wanted {
            let _ = self.with_flow(|flow, _, now| flow.link_not_made(attempt, now));
            link.shutdown();
            self.pools.lock().drop_link(attempt.link());
        }
    }

    /// Counts why there is no further link, where that is due to how the network is set up.
    fn count_reason<T>(&self, result: Result<T>) -> Result<T> {
        result.inspect_err(|error| {
            if *error == EHOSTUNREACH {
                self.ns.stats.link_without_route();
            }
        })
    }

    fn new_link(
        self: &Arc<Self>,
        place: LinkIx,
        spare_only: bool,
        peer: Option<LinkEnd>,
    ) -> Result<Arc<Link>> {
        let path = self
            .choose_path(spare_only, peer.map(|peer| peer.gid))
            .ok_or_else(|| self.why_no_path())?;
        let link = Link::new(self.clone(), place, path)?;
        if let Some(peer) = peer {
            if let Err(error) = self.connect_to(&link, &peer) {
                link.shutdown();
                return Err(error);
            }
        }
        Ok(link)
    }

    /// Gets keys for all buffers, and makes them work if the queue pair is connected.
    fn prepare(&self, pools: &Pools, link: &Link, connected: bool) -> Result {
        pools.add_link(link)?;
        if connected {
            pools.register(link.place)?;
        }
        Ok(())
    }

    /// Names a link to the LLC engine, with its keys. False if it is not wanted any more.
    fn name(self: &Arc<Self>, pools: &Pools, attempt: Attempt, link: &Arc<Link>) -> bool {
        let Some(end) = link.local().map(LinkEnd::from) else {
            return false;
        };
        let Ok(tokens) = pools.tokens_on(link.place) else {
            return false;
        };
        let wanted = {
            let mut guard = self.flow.lock();
            let state = &mut *guard;
            for rmb in state.own.iter_mut().flatten() {
                if let Some((_, token)) = tokens.iter().find(|(id, _)| *id == rmb.id) {
                    rmb.tokens.set(link.place, *token);
                }
            }
            let wanted = state.flow.link_made(attempt, Some(end), now());
            if wanted {
                if let Some(place) = self.links.lock().places.get_mut(link.place.get()) {
                    *place = Some(link.clone());
                }
                self.ns.shared.groups.note_link();
            } else {
                state.forget_keys(link.place);
            }
            self.flush(&mut guard);
            wanted
        };
        self.service.rearm(self.ns.queue(), self.clone(), 0);
        wanted
    }

    /// Server: connects the queue pair that the client has accepted.
    fn connect_further(&self, place: LinkIx) -> Result {
        let link = self.link(place).ok_or(ENOTCONN)?;
        let peer = self.flow.lock().flow.peer_end(place).ok_or(ESTALE)?;
        self.connect_to(&link, &peer)?;
        self.pools.lock().register(place)
    }

    /// Connects a further link. The peer's host may have a former Ethernet address of our port in mind.
    fn connect_to(&self, link: &Link, peer: &LinkEnd) -> Result {
        if self.is_direct() {
            path::ask_for(&link.path, peer.gid);
        }
        self.connect_link(link, peer)
    }

    /// A port for a further link: one that no link is on, or if need be another one.
    fn choose_path(&self, spare_only: bool, peer: Option<Gid>) -> Option<Path> {
        let paths = self.further_paths(peer);
        let free = |path: &Path| self.is_port_free(path);
        let spare = grow::count(paths.iter().filter(|path| free(path)));
        if spare != 0 {
            // Each in turn: the peer may have no way to some of them.
            let choice = match peer {
                None => (self.choices.fetch_add(1, Relaxed) as usize)
                    .checked_rem(spare)
                    .unwrap_or(0),
                Some(_) => 0,
            };
            return paths.iter().filter(|path| free(path)).nth(choice).cloned();
        }
        paths.first().cloned().filter(|_| !spare_only)
    }

    /// Without a path to a peer's port: there may be a port all the same.
    fn why_no_path(&self) -> Error {
        match self.free_path() {
            Some(_) => EHOSTUNREACH,
            None => ENODEV,
        }
    }

    /// A port that no link is on.
    fn free_path(&self) -> Option<Path> {
        let mut paths = self.further_paths(None).into_iter();
        paths.find(|path| self.is_port_free(path))
    }

    fn further_paths(&self, peer: Option<Gid>) -> KVec<Path> {
        let devices = &self.ns.shared.devices;
        path::further(devices, &self.first_path, peer, self.is_direct()).unwrap_or(KVec::new())
    }

    /// Whether no link is on a port, also not with another address of it.
    fn is_port_free(&self, path: &Path) -> bool {
        let guard = self.flow.lock();
        let is_taken = |path: &Path| guard.flow.is_port_taken(path.mac, path.gid);
        let is_on_it = |link: &Arc<Link>| link.path.is_on(&path.device, path.port);
        !is_taken(path)
            && !self
                .links()
                .any(|link| is_on_it(&link) && is_taken(&link.path))
    }

    /// Has the work item tell the LLC engine of a port that no link is on, if that has a use for one: devices are asked.
    pub(super) fn offer_later(self: &Arc<Self>) {
        if self.flow.lock().flow.could_use_port() {
            self.offer.store(1, Relaxed);
            self.maker.rearm(self.ns.device_queue(), self.clone(), 0);
        }
    }

    /// Tells the LLC engine of a port that no link is on, if there is one.
    fn offer_port(self: &Arc<Self>) {
        if let Some(path) = self.free_path() {
            self.with_flow(|flow, _, now| flow.hint(path.mac, path.gid, now));
        }
    }

    /// The queue pair of a link is not needed any more. Process context.
    pub(super) fn link_gone(self: &Arc<Self>, place: LinkIx) {
        let link = self
            .links
            .lock()
            .places
            .get_mut(place.get())
            .and_then(Option::take);
        if let Some(link) = &link {
            self.ns.shared.groups.note_link();
            link.stop();
        }
        self.nothing_comes_over(place);
        self.flow.lock().forget_keys(place);
        // Not later: to give up a key waits for a shutdown that is under way.
        self.pools.lock().drop_link(place);
        if let Some(link) = link {
            let place = place.get();
            let before = {
                let mut links = self.links.lock();
                links
                    .gone
                    .get_mut(place)
                    .and_then(|gone| gone.replace(link))
            };
            if let Some(before) = before {
                before.shutdown();
            }
            self.breaker.rearm(self.ns.device_queue(), self.clone(), 0);
        }
    }

    /// Shuts down links that are gone.
    pub(super) fn shut_down_gone(&self) {
        loop {
            let link = self.links.lock().gone.iter_mut().find_map(Option::take);
            match link {
                Some(link) => link.shutdown(),
                None => return,
            }
        }
    }
}
