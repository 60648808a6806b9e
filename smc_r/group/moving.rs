// SPDX-License-Identifier: GPL-2.0

//! Connections that go from one link to another: because theirs has failed (RFC 7609 section 4.6), or
//! to spread the load. Process context: the group's work item.

use kernel::{
    prelude::*,
    sync::{atomic::Relaxed, Arc}, //
};
use smc_proto::{
    group::{LinkIx, PeerElement, PeerTable, MAX_LINKS},
    llc_flow::{DownReason, Flow},
    wire::{Gid, Mac, RToken}, //
};

use super::Group;
use crate::{
    conn::Member,
    device::Path,
    link::{Link, Seat},
};

/// A link, and the key of a buffer of the peer there.
pub(crate) type KeyedLink = (Arc<Link>, RToken);

/// A set of links.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LinkSet(u16);

impl LinkSet {
    /// Whether it is one of them.
    pub(crate) fn has(self, link: LinkIx) -> bool {
        self.0 & link.bit() != 0
    }

    /// Adds one.
    pub(crate) fn add(&mut self, link: LinkIx) {
        self.0 |= link.bit();
    }

    /// Takes one out.
    fn remove(&mut self, link: LinkIx) {
        self.0 &= !link.bit();
    }
}

/// Buffers that the peer takes back, whose users are aborted: it has its answer when all is there that these had posted.
#[derive(Default)]
pub(super) struct Abandoned {
    buffers: u16,
    /// Where that is not known yet.
    links: LinkSet,
    /// Those of them of which it is being found out.
    asked: LinkSet,
}

impl Abandoned {
    fn add(&mut self, links: LinkSet) {
        self.buffers = self.buffers.saturating_add(1);
        self.links.0 |= links.0;
        // What was asked before says nothing of what was posted since.
        self.asked.0 &= !links.0;
    }

    /// A link of which it is to be found out, if there is one besides these.
    fn next(&mut self, busy: LinkSet) -> Option<LinkIx> {
        let wanted = LinkSet(self.links.0 & !self.asked.0 & !busy.0);
        let link = LinkIx::all().find(|link| wanted.has(*link))?;
        self.asked.add(link);
        Some(link)
    }

    fn arrived(&mut self, link: LinkIx) {
        if self.asked.has(link) {
            self.lost(link);
        }
    }

    /// Nothing comes over that link any more.
    fn lost(&mut self, link: LinkIx) {
        self.asked.remove(link);
        self.links.remove(link);
    }

    /// How many buffers nothing is written to any more.
    fn take(&mut self) -> u16 {
        match self.links == LinkSet::default() {
            true => core::mem::take(&mut self.buffers),
            false => 0,
        }
    }
}

/// Which ports of a new connection one link of a group has to be at.
#[derive(Clone, Copy)]
pub(super) enum Fit {
    /// That of the client's Proposal, and the one that the server would use. Then all links of the group will do.
    BothPorts,
    /// That of the client's Proposal; or the server's, if this stands in for the port of the group's first contact.
    /// Otherwise it is the client that may have changed its port, without having been able to say what it has lost.
    OnePort,
}

/// What becomes of a link, for connections on it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// They may use it.
    Up,
    /// The group goes on without it. It can be stopped: its device repeats nothing of what was written there.
    Lost,
    /// The group has ended, and its last words are to get out.
    Over,
}

impl Group {
    /// What becomes of a link.
    pub(crate) fn standing(&self, link: &Arc<Link>) -> Standing {
        let (is_up, is_over) = {
            let guard = self.flow.lock();
            (guard.flow.is_link_up(link.place), guard.flow.is_over())
        };
        let there = || self.link(link.place);
        match is_up && there().is_some_and(|there| Arc::ptr_eq(&there, link)) {
            true => Standing::Up,
            false if is_over => Standing::Over,
            false => Standing::Lost,
        }
    }

    /// Whether connections may use this link.
    pub(crate) fn is_link_up(&self, link: &Arc<Link>) -> bool {
        self.standing(link) == Standing::Up
    }

    /// Whether there is a link at this place that connections may use.
    pub(crate) fn is_place_up(&self, place: LinkIx) -> bool {
        self.flow.lock().flow.is_link_up(place)
    }

    /// Server: a seat on a link for a new connection of a client, whose Proposal names a port, if the group has a
    /// link that lies as it has to. Who asks next finds the seat counted.
    pub(super) fn fitting_seat(
        &self,
        (mac, gid): (Mac, Gid),
        path: &Path,
        fit: Fit,
    ) -> Option<Seat> {
        let stands_in = path.want.gid.ifindex != Some(path.netdev.ifindex)
            && !self.first_path.is_on(&path.device, path.port);
        let guard = self.flow.lock();
        let flow = &guard.flow;
        let is_at_peer = |link: &Link| {
            flow.peer_end(link.place)
                .is_some_and(|end| match self.terms {
                    None => end.same_port(mac, gid),
                    Some(_) => end.gid == gid,
                })
        };
        let fits = |link: &Link| {
            let is_at_ours = link.path.is_on(&path.device, path.port);
            link.is_up()
                && flow.is_link_up(link.place)
                && match fit {
                    Fit::BothPorts => is_at_ours && is_at_peer(link),
                    Fit::OnePort => is_at_peer(link) || (is_at_ours && stands_in),
                }
        };
        if !self.links().any(|link| fits(&link)) {
            return None;
        }
        // What else the group has may be lost on the other side already.
        let may_have = |link: &Link| matches!(fit, Fit::BothPorts) || fits(link);
        self.least_loaded(flow, may_have)
    }

    /// Server: a seat on another link for a new connection, whose own has gone before Accept could name it.
    pub(crate) fn other_seat(&self) -> Option<Seat> {
        self.least_loaded(&self.flow.lock().flow, Link::is_up)
    }

    /// A seat on that of some links that has the least load.
    fn least_loaded(&self, flow: &Flow, may_have: impl Fn(&Link) -> bool) -> Option<Seat> {
        let load = |place| {
            self.link(place)
                .filter(|link| may_have(link))
                .map(|link| link.load())
        };
        let link = self.link(flow.choose_link(load)?)?;
        Some(Seat::new(link))
    }

    /// The link with the least load on which the peer's buffer can be written, and its key there.
    pub(crate) fn refuge(&self, peer: &PeerElement, tried: LinkSet) -> Option<KeyedLink> {
        let mut guard = self.flow.lock();
        let state = &mut *guard;
        let peers = PeerTable::new(&mut state.peers);
        let flow = &state.flow;
        self.links()
            .filter(|link| flow.is_link_up(link.place) && !tried.has(link.place))
            .filter_map(|link| Some((peers.token(peer.slot, link.place)?, link)))
            .min_by_key(|(_, link)| (flow.is_doomed(link.place), link.load()))
            .map(|(token, link)| (link, token))
    }

    /// The key of the peer's buffer on a link.
    pub(crate) fn key_on(&self, link: &Link, peer: &PeerElement) -> Option<RToken> {
        PeerTable::new(&mut self.flow.lock().peers).token(peer.slot, link.place)
    }

    /// A link may carry connections.
    pub(super) fn link_up(self: &Arc<Self>, place: LinkIx) {
        let Some(link) = self.link(place) else {
            return;
        };
        // Before the first contact is complete, its end tells of all links.
        if self.is_announced() {
            self.announce_up(&link);
        }
        if self.links().nth(1).is_some() {
            self.several.store(1, Relaxed);
        }
        self.leave_drained_ports();
        self.spread();
    }

    /// A link carries nothing any more: its connections go on on others.
    pub(super) fn link_down(self: &Arc<Self>, place: LinkIx, reason: DownReason) {
        let Some(link) = self.link(place) else {
            return;
        };
        pr_debug!(
            "smc_r: link group {:08x}: a link is down: {:?}\n",
            self.id,
            reason
        );
        if matches!(
            reason,
            DownReason::LinkFailed(_) | DownReason::PeerDeleted(_)
        ) {
            self.ns.stats.link_lost();
        }
        self.announce_down(&link);
        link.fail();
        self.note_asked(|links| links.remove(place));
        // One that was to go as well, and now stays, is where the peer's connections go.
        self.seal_links();
        // Whatever was posted has completed then, and what came in was handed on.
        link.stop();
        self.nothing_comes_over(place);
        self.for_each_connection(|member| member.leave(&link));
        // It may have been what one on a drained port was to be left for.
        self.leave_drained_ports();
    }

    /// Keeps the connections quiet that have to do with links that are at rest, or come to it.
    pub(super) fn hold_connections(self: &Arc<Self>) {
        let links = self.resting_links();
        self.seal_links();
        self.for_each_connection(|member| member.hold(|link| links.has(link)));
        self.with_flow(|flow, _, now| flow.connections_held(now));
    }

    /// The links that are at rest, or come to it.
    pub(crate) fn resting_links(&self) -> LinkSet {
        let guard = self.flow.lock();
        let mut links = LinkSet::default();
        LinkIx::all()
            .filter(|link| guard.flow.is_resting(*link))
            .for_each(|link| links.add(link));
        links
    }

    /// Seals the links that are to be sealed, and no others.
    pub(super) fn seal_links(&self) {
        for link in self.links() {
            let sealed = self.flow.lock().flow.is_sealed(link.place);
            link.seal(sealed);
        }
    }

    /// Spreads connections over the links.
    fn spread(self: &Arc<Self>) {
        while self.spread_once() {}
    }

    /// Looks at each connection once. True if one was moved: then another link may be the fullest, and those of it that
    /// were looked at before may be in their right place no more.
    fn spread_once(self: &Arc<Self>) -> bool {
        let mut has_moved = false;
        let mut loads = [0; MAX_LINKS];
        for (load, place) in loads.iter_mut().zip(LinkIx::all()) {
            *load = self.link(place).map_or(0, |link| link.load());
        }
        let load = |loads: &[u32; MAX_LINKS], link: LinkIx| {
            loads.get(link.get()).copied().unwrap_or(u32::MAX)
        };
        self.for_each_connection(|member| {
            let wish = self.flow.lock().flow.rebalance(|link| load(&loads, link));
            let Some((from, to)) = wish else {
                return;
            };
            if self.move_over(member, from, to) {
                if let Some(load) = loads.get_mut(from.get()) {
                    *load = load.saturating_sub(1);
                }
                if let Some(load) = loads.get_mut(to.get()) {
                    *load = load.saturating_add(1);
                }
                has_moved = true;
            }
        });
        has_moved
    }

    /// Has a connection move as soon as all that it has posted has arrived. False if it is on another link.
    fn move_over(&self, member: &Member<'_>, from: LinkIx, to: LinkIx) -> bool {
        match (self.link(from), self.link(to)) {
            (Some(from), Some(to)) => member.move_over(&from, &to),
            _ => false,
        }
    }

    /// Finds out, link by link, whether all has arrived that connections have posted which are to move.
    pub(super) fn confirm_writes(self: &Arc<Self>) {
        let before = self.asked();
        let mut links = LinkSet::default();
        self.for_each_connection(|member| {
            if let Some(link) = member.ask_arrived(|link| !before.has(link)) {
                links.add(link);
            }
        });
        for link in LinkIx::all().filter(|link| links.has(*link)) {
            if self.with_flow(|flow, _, now| flow.confirm_writes(link, now)) {
                self.note_asked(|links| links.add(link));
            }
        }
    }

    /// All has arrived that was posted on a link when the group began to find that out.
    pub(super) fn writes_arrived(self: &Arc<Self>, place: LinkIx) {
        self.note_asked(|links| links.remove(place));
        self.flow.lock().abandoned.arrived(place);
        self.answer_abandoned();
        self.for_each_connection(|member| member.has_arrived(place));
        // Others may have come to wait meanwhile.
        self.confirm_writes();
    }

    /// The users of a buffer that the peer takes back are aborted. What they had posted goes out before the answer does if
    /// it takes the same link; over others, it has to be known to have arrived: the peer may use the memory for another
    /// connection then.
    pub(super) fn rmb_abandoned(self: &Arc<Self>, mut over: LinkSet) {
        {
            let mut guard = self.flow.lock();
            // Where the link of the request has failed, the peer may repeat it over another one.
            if let Some(link) = guard.flow.answering() {
                over.remove(link);
            }
            guard.abandoned.add(over);
        }
        self.answer_abandoned();
    }

    /// What was posted over this link has arrived, or never will.
    pub(super) fn nothing_comes_over(self: &Arc<Self>, place: LinkIx) {
        self.flow.lock().abandoned.lost(place);
        self.answer_abandoned();
    }

    /// Asks for what is to be known, and has the peer answered if there is nothing more.
    fn answer_abandoned(self: &Arc<Self>) {
        let next = || self.flow.lock().abandoned.next(self.asked());
        while let Some(place) = next() {
            if self.with_flow(|flow, _, now| flow.confirm_writes(place, now)) {
                self.note_asked(|links| links.add(place));
                continue;
            }
            // It is down, and whoever is told of that may have been told already.
            if let Some(link) = self.link(place).filter(|_| !self.is_over()) {
                link.stop();
            }
            self.flow.lock().abandoned.lost(place);
        }
        let count = self.flow.lock().abandoned.take();
        for _ in 0..count {
            self.with_flow(|flow, _, _| flow.rmb_abandoned());
        }
    }

    /// The links of which the group is finding out whether all has arrived. Work item.
    fn asked(&self) -> LinkSet {
        LinkSet(self.asked.load(Relaxed) as u16)
    }

    fn note_asked(&self, change: impl FnOnce(&mut LinkSet)) {
        let mut links = self.asked();
        change(&mut links);
        self.asked.store(links.0.into(), Relaxed);
    }
}
