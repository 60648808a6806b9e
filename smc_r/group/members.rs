// SPDX-License-Identifier: GPL-2.0

//! The connections of a group, and the buffers they take and give back.

use kapi::{
    errno::{
        ECONNRESET,
        ENOBUFS,
        ENOTCONN, //
    },
    grow::Grow,
    workqueue, //
};
use kernel::{
    prelude::*,
    sync::{atomic::Relaxed, Arc}, //
};
use smc_proto::{
    conn::Early,
    group::{
        Claim,
        Element,
        LinkEnd,
        LinkIx,
        PeerElement,
        PeerSlot,
        PeerTable,
        Role, //
    },
    llc_flow::{RmbId, ShutDown, Unavailable},
    wire::RmbeSize, //
};

use super::{
    pools::{Memory, Pools},
    ConnToken,
    FlowState,
    Group,
    GroupRmb,
    KeyedLink,
    Known,
    LinkSet,
    OwnElement,
    PooledRing,
    Standing,
    Taken, //
};
use crate::{
    clock::now,
    conn::Member,
    link::Link,
    socket::SocketRef, //
};

/// Tag type: the work item that has the peer told of new RMBs.
pub(super) struct Announcer;

impl workqueue::Handler<Arc<Group>> for Announcer {
    fn run(group: Arc<Group>) {
        loop {
            let next = group.pools.lock().next_new();
            match next {
                Some(rmb) => group.announce_rmb(&rmb),
                None => return,
            }
        }
    }
}

/// Buffers on their way back.
pub(crate) struct Buffers {
    pub(crate) element: Option<OwnElement>,
    /// The peer knows that it must not write to the element any more.
    pub(crate) element_is_quiet: bool,
    pub(crate) ring: Option<PooledRing>,
    /// The device does not read from the ring any more.
    pub(crate) ring_is_quiet: bool,
}

/// Whether links are tested on behalf of a connection.
fn wants_tests(sk: &SocketRef) -> bool {
    sk.keepalive.load(Relaxed) != 0
}

impl Group {
    /// Counts a connection in and gives it a token. `None` if the group takes no more.
    pub(crate) fn add_connection(&self) -> Option<ConnToken> {
        {
            let mut guard = self.flow.lock();
            if self.is_drained() || !guard.flow.add_connection() {
                return None;
            }
        }
        let token = self.table.lock().reserve();
        if token.is_none() {
            self.flow.lock().flow.remove_connection(now());
        }
        token
    }

    /// Takes back what [`Group::add_connection`] gave, for a connection that came to nothing.
    pub(crate) fn cancel_connection(self: &Arc<Self>, token: ConnToken) {
        let _none = self.table.lock().release(token);
        self.with_flow(|flow, _, now| flow.remove_connection(now));
        self.end_if_drained();
        self.free_idle();
    }

    /// The connection is set up. Gives the messages that came early.
    pub(crate) fn connection_live(&self, token: ConnToken, sk: SocketRef) -> Early {
        self.table.lock().go_live(token, sk)
    }

    /// The connection is over. Process context.
    pub(crate) fn connection_gone(
        self: &Arc<Self>,
        token: ConnToken,
        buffers: Buffers,
        peer: PeerElement,
    ) {
        let reference = self.table.lock().release(token);
        self.give_back(buffers);
        self.release_claim(peer);
        self.with_flow(|flow, _, now| {
            flow.remove_connection(now);
            if reference.as_ref().is_some_and(wants_tests) {
                flow.set_keepalive(self.table.lock().keepalive());
            }
        });
        self.end_if_drained();
        self.free_idle();
        drop(reference);
    }

    /// A connection wants links to be tested after so many milliseconds of silence; 0 if it does not.
    pub(crate) fn add_keepalive(self: &Arc<Self>, span: u32) {
        // Most do not, and cost nothing then.
        if span == 0 {
            return;
        }
        let now = self.flow.lock().flow.keepalive();
        if now == 0 || span < now {
            self.review_keepalive();
        }
    }

    /// Has links tested as the most impatient of the connections wants, one of which has changed its
    /// mind.
    pub(crate) fn review_keepalive(self: &Arc<Self>) {
        self.with_flow(|flow, _, _| flow.set_keepalive(self.table.lock().keepalive()));
    }

    /// The connection of a token.
    pub(crate) fn connection(&self, token: ConnToken) -> Option<SocketRef> {
        self.table.lock().find(token)
    }

    /// Claims the peer's element for a connection, and aborts the one that had it before: the peer
    /// has forgotten that one (RFC 7609 section 4.4.2). Its key is the one on the link with this far
    /// end: gives that link too, if it is still up, or that of the one before, so that what that one has written is
    /// overwritten and not the other way around; and the key there. `chosen` is the place that counts where the group is
    /// over, and no link can be found any more. `ECONNRESET` if no such element is known, or not any more. Process context.
    pub(crate) fn claim(
        &self,
        end: &LinkEnd,
        element: &Element,
        chosen: LinkIx,
    ) -> Result<(Option<KeyedLink>, PeerElement)> {
        let (link, claim) = {
            let mut guard = self.flow.lock();
            let FlowState {
                flow,
                peers,
                shared,
                ..
            } = &mut *guard;
            shared.make_room(1, GFP_ATOMIC)?;
            let mut peers = PeerTable::new(peers);
            let place = if flow.is_over() {
                chosen
            } else {
                let is_known = |link| peers.has(link, element.token);
                flow.find_place(end, is_known).ok_or(ECONNRESET)?
            };
            let claim = peers.claim(place, element).map_err(|_| ECONNRESET)?;
            if let Claim::TakenOver(element) = claim {
                // Whoever had it may be on its way out already, and not be found below.
                shared.append(element, GFP_ATOMIC)?;
            }
            // Now: another link may come to the place.
            let link = flow.is_link_up(place).then(|| self.link(place)).flatten();
            (link, claim)
        };
        let mut before = None;
        if let Claim::TakenOver(place) = claim {
            self.for_each_connection(|member| {
                before = member.element_gone(|used| used == place).or(before.take());
            });
        }
        let place = claim.element();
        // What was written for the one before comes first there.
        let same = before.and_then(|link| self.usable(link, &place));
        let link = link.map(|link| (link, element.token));
        Ok((same.or(link), place))
    }

    /// A link on which the peer's element can be written to, and its key there.
    fn usable(&self, link: Arc<Link>, peer: &PeerElement) -> Option<KeyedLink> {
        if !self.is_ours(&link) {
            return None;
        }
        match self.standing(&link) {
            Standing::Up => {}
            Standing::Lost => {
                link.stop();
                return None;
            }
            Standing::Over => return None,
        }
        let token = self.key_on(&link, peer)?;
        Some((link, token))
    }

    /// Gives a claim back.
    pub(crate) fn release_claim(&self, place: PeerElement) {
        self.flow.lock().release(place);
    }

    pub(super) fn for_each_connection(&self, mut action: impl FnMut(&Member<'_>)) {
        let mut from = 0;
        loop {
            // The lock is not held while the connection is dealt with.
            let Some((place, token, sk)) = self.table.lock().nth(from) else {
                return;
            };
            action(&Member {
                sk,
                group: self,
                token,
            });
            from = place.saturating_add(1);
        }
    }

    /// An element of one of our RMBs for a new connection. Process context.
    pub(crate) fn take_element(self: &Arc<Self>, size: RmbeSize) -> Result<Taken> {
        let count = {
            let mut pools = self.pools.lock();
            let taken = pools.take(size);
            if !matches!(taken, Taken::NeedRmb) {
                return Ok(self.noted(taken));
            }
            self.elements_to_add(&pools, size)
        };
        let taken = self.add_rmb(size, count);
        if self.pools.lock().make_room(size) {
            self.trim_next(None);
        }
        taken
    }

    /// Makes an RMB of `count` elements, unless there is a free one by now, and has the peer told of it. Sleeps.
    fn add_rmb(self: &Arc<Self>, size: RmbeSize, count: u32) -> Result<Taken> {
        let memory = Memory::new(&self.ns, size, count)?;
        let rmb = {
            let mut pools = self.pools.lock();
            // Somebody may have been faster.
            let taken = pools.take(size);
            if !matches!(taken, Taken::NeedRmb) {
                return Ok(self.noted(taken));
            }
            pools.add(self, size, memory, Known::Announced)?
        };
        // From here on others find it, and wait. A rendezvous does not wait for the device, or whoever closes its socket
        // would have to.
        self.announcer
            .rearm(self.ns.device_queue(), self.clone(), 0);
        Ok(Taken::Pending(rmb))
    }

    /// Has the peer told of an RMB, once it may write to it. Sleeps.
    fn announce_rmb(self: &Arc<Self>, rmb: &GroupRmb) {
        let announced = self
            .register_rmb(rmb)
            .and_then(|()| self.enter_and_announce(rmb));
        if announced.is_err() {
            // First: the pools have no place for another one before the table has.
            self.strike_rmb(rmb.id);
            rmb.set_known(Known::Refused);
            self.wake_waiters();
            // Whoever has waited may be gone, and the group over.
            self.free_idle();
        }
    }

    /// Has the peer's writes to an RMB taken on all links; one that is still to be connected does that itself. Sleeps
    /// until the device has done it; no lock is held that anybody else needs.
    fn register_rmb(self: &Arc<Self>, rmb: &GroupRmb) -> Result {
        for link in self.links().filter(|link| link.is_sending()) {
            match rmb.register(link.place) {
                Err(error) if link.is_up() => return Err(error),
                Err(_) => self.link_broke(&link),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// Tells the peer of an RMB.
    fn enter_and_announce(self: &Arc<Self>, rmb: &GroupRmb) -> Result {
        // A link that comes now adds its key before, or afterwards.
        let _pools = self.pools.lock();
        self.enter_rmb(rmb);
        // On other links, the table of our RMBs has it.
        let token = rmb.token(LinkIx::FIRST).unwrap_or_default();
        self.with_flow(|flow, _, now| flow.announce(rmb.id, token, now))
            .map_err(|unavailable| match unavailable {
                Unavailable::Full => EBUSY,
                Unavailable::Down => ENOTCONN,
            })
    }

    /// Counts an element that was used before.
    fn noted(&self, taken: Taken) -> Taken {
        if let Taken::Element(element) = &taken {
            if !element.group_rmb().first_use() {
                self.ns.stats.rx().reused();
            }
        }
        taken
    }

    fn elements_to_add(&self, pools: &Pools, size: RmbeSize) -> u32 {
        pools.elements_to_add(size, self.max_connections())
    }

    /// The element of the first connection: CLC itself makes its RMB known.
    pub(crate) fn first_element(&self, size: RmbeSize) -> Result<OwnElement> {
        let count = self.elements_to_add(&self.pools.lock(), size);
        let memory = Memory::new(&self.ns, size, count)?;
        let mut pools = self.pools.lock();
        let rmb = pools.add(self, size, memory, Known::Yes)?;
        self.enter_rmb(&rmb);
        // Its first element is no reuse.
        rmb.first_use();
        pools.take_from(&rmb).ok_or(ENOBUFS)
    }

    /// Gives buffers back that no connection uses any more. Process context.
    pub(crate) fn give_back(self: &Arc<Self>, buffers: Buffers) {
        if let Some(ring) = buffers.ring {
            self.give_back_ring(ring, buffers.ring_is_quiet);
        }
        let spent = buffers.element.and_then(|element| {
            let mut pools = self.pools.lock();
            pools.give_back(&element, buffers.element_is_quiet)
        });
        if let Some(rmb) = spent {
            self.withdraw(&rmb);
        }
    }

    /// Gives back the buffers that no connection uses. A server's group that has none at all ends; else the peer
    /// is asked to forget those that it may write to, one after the other, so that connections that need an
    /// exchange themselves do not wait for long. Process context.
    pub(super) fn trim(self: &Arc<Self>) {
        let ended = self.with_flow(|flow, _, now| {
            let ends = self.role == Role::Server && flow.is_usable() && flow.connections() == 0;
            if ends {
                flow.shut_down(ShutDown::Program, now);
            }
            ends
        });
        if ended {
            return;
        }
        let rings = self.rings.lock().take_idle();
        drop(rings);
        self.pools.lock().begin_trim();
        self.trim_next(None);
    }

    /// Frees all buffers that no connection uses, if the links are taken apart: a program that leaves something unread keeps
    /// the group, which nobody finds any more who is short of memory. Process context.
    pub(super) fn free_idle(&self) {
        if self.released.load(Relaxed) == 0 {
            return;
        }
        let rings = self.rings.lock().take_idle();
        drop(rings);
        self.pools.lock().forget_idle();
    }

    /// Goes on with that, where the peer has forgotten an RMB.
    pub(super) fn trim_next(self: &Arc<Self>, forgotten: Option<RmbId>) {
        let next = self.pools.lock().next_trim(forgotten);
        if next.is_some_and(|rmb| !self.withdraw(&rmb)) {
            self.pools.lock().stop_trim();
        }
    }

    /// Has the peer forget an RMB that no connection uses. False if that cannot be had now: then it stays.
    fn withdraw(self: &Arc<Self>, rmb: &GroupRmb) -> bool {
        let token = rmb.token(LinkIx::FIRST).unwrap_or_default();
        let asked = self.with_flow(|flow, _, now| flow.withdraw(rmb.id, token.rkey, now));
        if asked.is_err() {
            rmb.set_known(Known::Yes);
        }
        asked.is_ok()
    }

    /// Bytes of buffers that no connection uses; 0 if somebody looks at them at the moment. Does not sleep.
    pub(super) fn idle_bytes(&self) -> usize {
        let rmbs = self.pools.try_lock().map_or(0, |pools| pools.idle_bytes());
        let rings = self.rings.try_lock().map_or(0, |rings| rings.idle_bytes());
        rmbs.saturating_add(rings)
    }

    /// Aborts the connections to a buffer that the peer has deleted. By then they may be over, and others have another
    /// buffer at its place. Gives the links over which they have written.
    pub(super) fn abort_users_of(&self, slot: PeerSlot) -> LinkSet {
        let mut over = LinkSet::default();
        self.for_each_connection(|member| {
            // Looked up after the connection: what came to the place since then is not what that one uses.
            let link = member.element_gone(|place| place.slot == slot && self.is_gone(slot));
            if let Some(link) = link.filter(|link| self.is_ours(link)) {
                over.add(link.place);
            }
        });
        over
    }

    /// Whether it is a link that has not ended.
    fn is_ours(&self, link: &Arc<Link>) -> bool {
        self.link(link.place)
            .is_some_and(|other| Arc::ptr_eq(&other, link))
    }

    /// Whether the peer has deleted the buffer at this place.
    pub(crate) fn is_gone(&self, slot: PeerSlot) -> bool {
        PeerTable::new(&mut self.flow.lock().peers).is_gone(slot)
    }
}
