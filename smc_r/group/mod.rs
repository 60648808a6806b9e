// SPDX-License-Identifier: GPL-2.0

//! Link groups: what all connections to one peer share.
//!
//! A group is driven by its LLC engine ([`Flow`]). Messages of the peer are handed to it where they
//! come in (softirq), under the `flow` spin lock, and what it wants to send is posted at once. What
//! else it has to say is dealt with by the group's service work item, in process context.

mod groups;
mod pools;
mod table;

use kapi::{
    errno::{
        ENOBUFS,
        ENOTCONN, //
    },
    new_delayed_work,
    new_spinlock_bh,
    spinlock_bh::{SpinLockBh, SpinLockBhGuard},
    util::now_ms,
    workqueue::{self, DelayedWork}, //
};
use kernel::{
    alloc::kvec::KVVec,
    new_mutex,
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc,
        Mutex, //
    },
};
use smc_proto::{
    cdc::Cdc,
    group::{
        Claim,
        Element,
        LinkEnd,
        LinkIx,
        PeerElement,
        PeerRmb,
        PeerSlot,
        PeerTable,
        Role,
        TableError,
        MAX_LINKS,
        MAX_PEER_RMBS, //
    },
    handshake::LinkResult,
    llc_flow::{
        DownReason,
        Event,
        Flow,
        FlowParams,
        Note,
        Outgoing,
        ShutDown,
        Unavailable, //
    },
    timer::{FlowTiming, Time},
    wire::{Gid, LinkNum, PeerId, RmbeSize}, //
};

use crate::{
    conn,
    device::Path,
    handshake::Handshake,
    link::{Cookie, Link},
    netns::Netns,
    socket::SocketRef,
    transport::{
        rc::Rc,
        Chain,
        Peer,
        PostError,
        Transport, //
    },
};

pub(crate) use self::{
    groups::{FirstContact, Groups, ServerChoice},
    pools::{GroupRmb, Known, OwnElement, PooledRing, Taken},
    table::{ConnToken, MAX_CONNECTIONS}, //
};
use self::{
    pools::Pools,
    table::Table, //
};

/// What the LLC engine and its surroundings need.
struct FlowState {
    flow: Flow,
    peers: KVVec<PeerRmb>,
    /// A message that found no send slot.
    held: Option<Outgoing>,
}

/// The queue pairs of a group.
struct Links {
    places: [Option<Arc<Link>>; MAX_LINKS],
    /// The queue pair that the server's ADD LINK names.
    spare: Option<Arc<Rc>>,
}

/// A link group.
#[pin_data]
pub(crate) struct Group {
    pub(crate) ns: Arc<Netns>,
    /// Above the numbers of all groups made before.
    pub(crate) number: u64,
    /// For display: the upper three bytes of our link user IDs.
    pub(crate) id: u32,
    pub(crate) role: Role,
    pub(crate) peer_id: PeerId,
    pub(crate) vlan: Option<u16>,
    #[pin]
    flow: SpinLockBh<FlowState>,
    #[pin]
    links: SpinLockBh<Links>,
    #[pin]
    table: SpinLockBh<Table>,
    #[pin]
    pools: Mutex<Pools>,
    /// The rendezvous of the first contact, and those that wait for it or for an RMB.
    #[pin]
    waiters: SpinLockBh<Waiters>,
    #[pin]
    service: DelayedWork<Arc<Group>, Service>,
    #[pin]
    port_check: DelayedWork<Arc<Group>, PortCheck>,
    /// LLC messages wait for a send slot.
    backlog: Atomic<u32>,
    _counted: Counted,
}

/// Counts a group of its namespace for as long as it exists.
struct Counted(Arc<Netns>);

impl Counted {
    fn new(ns: Arc<Netns>) -> Self {
        ns.group_made();
        Self(ns)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.group_gone();
    }
}

struct Waiters {
    first: Option<Arc<Handshake>>,
    others: KVVec<Arc<Handshake>>,
}

/// Tag type: the group's work item.
struct Service;

impl workqueue::Handler<Arc<Group>> for Service {
    fn run(group: Arc<Group>) {
        group.serve();
    }
}

/// How long a port may be down before the links on it are given up, in milliseconds: about as long
/// as a queue pair repeats what is not acknowledged.
const PORT_GRACE: u32 = 4_000;

/// Tag type: looks whether a port that went down has come back.
struct PortCheck;

impl workqueue::Handler<Arc<Group>> for PortCheck {
    fn run(group: Arc<Group>) {
        if let Some(link) = group.first_link() {
            let path = &link.path;
            if !path.device.port(path.port).is_ok_and(|port| port.active) {
                group.link_failed(link.place);
            }
        }
    }
}

fn now() -> Time {
    Time::from_millis(now_ms())
}

impl Group {
    /// A group with one link on `path` that is not connected yet. Sleeps.
    pub(crate) fn new(
        ns: Arc<Netns>,
        role: Role,
        peer_id: PeerId,
        path: &Path,
    ) -> Result<Arc<Self>> {
        let number = ns.shared.groups.next_number();
        let id = number as u32 & 0xff_ffff;
        let flow = Flow::new(FlowParams {
            role,
            max_links: 2,
            max_connections: MAX_CONNECTIONS,
            user_id: id << 8 | 1,
            seed: now_ms() ^ u64::from(id).rotate_right(16),
            timing: FlowTiming::DEFAULT,
        });
        let mut peers = KVVec::with_capacity(MAX_PEER_RMBS, GFP_KERNEL)?;
        for _ in 0..MAX_PEER_RMBS {
            peers.push(PeerRmb::EMPTY, GFP_KERNEL)?;
        }
        let table = Table::new()?;
        let counted = Counted::new(ns.clone());
        let group = Arc::pin_init(
            try_pin_init!(Self {
                ns,
                number,
                id,
                role,
                peer_id,
                vlan: path.vlan,
                flow <- new_spinlock_bh!(FlowState { flow, peers, held: None }, "smc_flow"),
                links <- new_spinlock_bh!(
                    Links { places: [const { None }; MAX_LINKS], spare: None },
                    "smc_links"
                ),
                table <- new_spinlock_bh!(table, "smc_connections"),
                pools <- new_mutex!(Pools::new(), "smc_pools"),
                waiters <- new_spinlock_bh!(
                    Waiters { first: None, others: KVVec::new() },
                    "smc_waiters"
                ),
                service <- new_delayed_work!("smc_group"),
                port_check <- new_delayed_work!("smc_port_check"),
                backlog: Atomic::new(0),
                _counted: counted,
            }),
            GFP_KERNEL,
        )?;
        let link = Link::new(group.clone(), LinkIx::FIRST, path.clone())?;
        if let Some(place) = group.links.lock().places.first_mut() {
            *place = Some(link);
        }
        Ok(group)
    }

    /// The link at a place.
    pub(crate) fn link(&self, place: LinkIx) -> Option<Arc<Link>> {
        self.links.lock().places.get(place.get())?.clone()
    }

    /// All links, as they are at the moment.
    pub(crate) fn links(&self) -> impl Iterator<Item = Arc<Link>> + '_ {
        (0..MAX_LINKS).filter_map(|place| self.link(LinkIx::new(place)?))
    }

    /// The link of the first contact.
    pub(crate) fn first_link(&self) -> Option<Arc<Link>> {
        self.link(LinkIx::FIRST)
    }

    /// Server: gets a second queue pair to name in ADD LINK. Sleeps.
    pub(crate) fn add_spare(self: &Arc<Self>) -> Result<LinkEnd> {
        let link = self.first_link().ok_or(ENOTCONN)?;
        let spare = Rc::new(&link.path, link.clone())?;
        let end = spare.local().into();
        self.links.lock().spare = Some(spare);
        Ok(end)
    }

    /// Lets `action` loose on the LLC engine, posts what it wants to send, and has the service look
    /// at the rest. Any context up to softirq.
    fn with_flow<R>(
        self: &Arc<Self>,
        action: impl FnOnce(&mut Flow, &mut PeerTable<'_>, Time) -> R,
    ) -> R {
        let mut guard = self.flow.lock();
        let state = &mut *guard;
        let result = action(
            &mut state.flow,
            &mut PeerTable::new(&mut state.peers),
            now(),
        );
        self.flush(&mut guard);
        drop(guard);
        self.service.rearm(self.ns.queue(), self.clone(), 0);
        result
    }

    /// Posts what the LLC engine wants to send.
    fn flush(&self, state: &mut SpinLockBhGuard<'_, FlowState>) {
        while let Some(send) = state.held.take().or_else(|| state.flow.poll_send()) {
            let posted = self.link(send.link).map(|link| {
                link.post(&Chain::control(
                    &send.message,
                    Cookie::llc(send.note).into(),
                ))
            });
            match posted {
                Some(Err(PostError::Busy)) if self.backlog.load(Relaxed) == 0 => {
                    // A slot may have come free just before we said that we wait for one.
                    self.backlog.store(1, Relaxed);
                    state.held = Some(send);
                    continue;
                }
                Some(Err(PostError::Busy)) => {
                    state.held = Some(send);
                    break;
                }
                Some(Ok(())) => {}
                // The link's failure is reported on its own.
                _ => {}
            }
        }
        self.backlog.store(u32::from(state.held.is_some()), Relaxed);
    }

    /// True while connections may be added and data may flow.
    pub(crate) fn is_usable(&self) -> bool {
        self.flow.lock().flow.is_usable()
    }

    /// True once the group has ended or is about to.
    pub(crate) fn is_over(&self) -> bool {
        self.flow.lock().flow.is_over()
    }

    /// The active link with this far end.
    pub(crate) fn find_link(&self, peer: &LinkEnd) -> Option<LinkIx> {
        self.flow.lock().flow.find_link(peer)
    }

    /// Starts the LLC exchange of the first contact, whose end `handshake` is told.
    pub(crate) fn start(
        self: &Arc<Self>,
        handshake: Arc<Handshake>,
        local: LinkEnd,
        peer: LinkEnd,
        spare: Option<LinkEnd>,
    ) {
        self.waiters.lock().first = Some(handshake);
        self.with_flow(|flow, _, now| flow.start(local, peer, spare, now));
    }

    /// Counts a connection in and gives it a token. `None` if the group takes no more.
    pub(crate) fn add_connection(&self) -> Option<ConnToken> {
        if !self.flow.lock().flow.add_connection() {
            return None;
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
    }

    /// The connection is set up. Gives the message that came early.
    pub(crate) fn connection_live(&self, token: ConnToken, sk: SocketRef) -> Option<Cdc> {
        self.table.lock().go_live(token, sk)
    }

    /// The connection is over. Process context.
    pub(crate) fn connection_gone(
        self: &Arc<Self>,
        token: ConnToken,
        buffers: Buffers,
        peer: Option<PeerElement>,
    ) {
        let reference = self.table.lock().release(token);
        self.give_back(buffers);
        self.with_flow(|flow, peers, now| {
            if let Some(peer) = peer {
                peers.release(peer);
            }
            flow.remove_connection(now);
        });
        drop(reference);
    }

    /// The connection of a token.
    pub(crate) fn connection(&self, token: ConnToken) -> Option<SocketRef> {
        self.table.lock().find(token)
    }

    /// Claims the peer's element for a connection, and aborts the one that had it before: the peer
    /// has forgotten that one (RFC 7609 section 4.4.2). Process context.
    pub(crate) fn claim(&self, link: LinkIx, element: &Element) -> Result<PeerElement, TableError> {
        let claim = {
            let mut guard = self.flow.lock();
            PeerTable::new(&mut guard.peers).claim(link, element)?
        };
        if let Claim::TakenOver(place) = claim {
            self.for_each_connection(|sk| {
                let same = (*sk.conn.lock())
                    .as_mut()
                    .is_some_and(|connection| connection.supersede(place));
                if same {
                    conn::link_failed(sk);
                }
            });
        }
        Ok(claim.element())
    }

    /// Gives a claim back.
    pub(crate) fn release_claim(&self, place: PeerElement) {
        PeerTable::new(&mut self.flow.lock().peers).release(place);
    }

    fn for_each_connection(&self, mut action: impl FnMut(&SocketRef)) {
        let mut from = 0;
        loop {
            // The lock is not held while the connection is dealt with.
            let Some((place, _, sk)) = self.table.lock().nth(from) else {
                return;
            };
            action(&sk);
            from = place + 1;
        }
    }

    /// An element of one of our RMBs for a new connection. Process context.
    pub(crate) fn take_element(self: &Arc<Self>, link: &Link, size: RmbeSize) -> Result<Taken> {
        let mut pools = self.pools.lock();
        let taken = pools.take(size);
        if let Taken::Element(element) = &taken {
            if !element.group_rmb().first_use() {
                self.ns.stats.rx.reused();
            }
        }
        if !matches!(taken, Taken::NeedRmb) {
            return Ok(taken);
        }
        let rmb = pools.add(link, size, Known::Announced)?;
        let announced = rmb.register().and_then(|()| {
            self.with_flow(|flow, _, now| flow.announce(rmb.id, rmb.token(), now))
                .map_err(|unavailable| match unavailable {
                    Unavailable::Full => EBUSY,
                    Unavailable::Down => ENOTCONN,
                })
        });
        if let Err(error) = announced {
            rmb.set_known(Known::Refused);
            return Err(error);
        }
        Ok(Taken::Pending(rmb))
    }

    /// The element of the first connection: CLC itself makes its RMB known.
    pub(crate) fn first_element(&self, link: &Link, size: RmbeSize) -> Result<OwnElement> {
        let mut pools = self.pools.lock();
        let rmb = pools.add(link, size, Known::Yes)?;
        // Its first element is no reuse.
        rmb.first_use();
        pools.take_from(&rmb).ok_or(ENOBUFS)
    }

    /// A send ring. Process context.
    pub(crate) fn take_ring(&self, link: &Link, len: u32) -> Result<PooledRing> {
        self.pools.lock().ring(link, len)
    }

    /// Gives buffers back that no connection uses any more. Process context.
    pub(crate) fn give_back(self: &Arc<Self>, buffers: Buffers) {
        let spent = {
            let mut pools = self.pools.lock();
            if let Some(ring) = buffers.ring {
                pools.give_back_ring(ring, buffers.ring_is_quiet);
            }
            buffers
                .element
                .and_then(|element| pools.give_back(&element, buffers.element_is_quiet))
        };
        if let Some(rmb) = spent {
            // If the exchange cannot be had now, the RMB stays until the group ends.
            let _ = self.with_flow(|flow, _, now| flow.withdraw(rmb.id, rmb.token().rkey, now));
        }
    }

    /// Has `handshake` woken when the first contact, or something about RMBs, is decided.
    pub(crate) fn wait(&self, handshake: Arc<Handshake>) -> Result {
        let mut waiters = self.waiters.lock();
        if !waiters
            .others
            .iter()
            .any(|other| Arc::ptr_eq(other, &handshake))
        {
            waiters.others.push(handshake, GFP_ATOMIC)?;
        }
        Ok(())
    }

    /// Takes back [`Group::wait`].
    pub(crate) fn stop_waiting(&self, handshake: &Arc<Handshake>) {
        let gone = {
            let mut waiters = self.waiters.lock();
            let place = waiters
                .others
                .iter()
                .position(|other| Arc::ptr_eq(other, handshake));
            place.and_then(|place| waiters.others.remove(place).ok())
        };
        drop(gone);
    }

    fn wake_waiters(&self) {
        let waiters = core::mem::replace(&mut self.waiters.lock().others, KVVec::new());
        for handshake in &waiters {
            handshake.kick();
        }
    }

    /// A CDC message came in. Softirq.
    pub(crate) fn cdc_received(&self, cdc: &Cdc) {
        let found = ConnToken::new(cdc.token.0)
            .ok_or(false)
            .and_then(|token| Ok((token, self.table.lock().find_or_keep(token, cdc)?)));
        match found {
            Ok((token, sk)) => conn::received(&sk, token, cdc),
            Err(kept) => {
                if !kept {
                    self.ns.stats.cdc_dropped();
                }
            }
        }
    }

    /// An LLC message came in. Softirq.
    pub(crate) fn llc_received(self: &Arc<Self>, link: LinkIx, message: &[u8]) {
        self.with_flow(|flow, peers, now| flow.handle_received(link, message, peers, now));
    }

    /// An LLC message was completed. Softirq.
    pub(crate) fn llc_sent(self: &Arc<Self>, note: Note, ok: bool) {
        self.with_flow(|flow, _, now| flow.handle_sent(note, ok, now));
    }

    /// A slot is free: for LLC messages first.
    pub(crate) fn llc_room(self: &Arc<Self>) {
        if self.backlog.load(Relaxed) != 0 {
            self.with_flow(|_, _, _| ());
        }
    }

    /// A link failed. Any context.
    pub(crate) fn link_failed(self: &Arc<Self>, link: LinkIx) {
        self.with_flow(|flow, _, now| flow.handle_link_failed(link, now));
    }

    /// The port of the link went down. A short interruption is ridden out, as TCP does; a longer one
    /// ends the link.
    pub(crate) fn port_down(self: &Arc<Self>) {
        self.port_check
            .enqueue_after(self.ns.queue(), self.clone(), PORT_GRACE);
    }

    /// Send slots are free: those that wait for one go on, in turn. Softirq.
    pub(crate) fn room(self: &Arc<Self>) {
        self.llc_room();
        let count = self.table.lock().waiting();
        for _ in 0..count {
            // The lock is not held while the connection posts.
            let Some(next) = self.table.lock().next_waiting() else {
                return;
            };
            if let Some(sk) = next {
                conn::resume(&sk);
            }
        }
    }

    /// Puts a connection in the queue for a send slot.
    pub(crate) fn wait_for_room(&self, token: ConnToken) {
        self.table.lock().wait(token);
    }

    /// Ends the group: the peer is told, connections are aborted. Any context.
    pub(crate) fn shut_down(self: &Arc<Self>, why: ShutDown) {
        self.with_flow(|flow, _, now| flow.shut_down(why, now));
    }

    /// Gives up a group whose first contact fell back or failed. Process context.
    pub(crate) fn abandon(self: &Arc<Self>) {
        self.with_flow(|flow, _, _| flow.abandon());
        self.retire();
        self.release();
    }

    /// Timers and events of the LLC engine. Work item.
    fn serve(self: &Arc<Self>) {
        loop {
            let (event, deadline) = {
                let mut guard = self.flow.lock();
                if let Some(link) = self.first_link() {
                    let last = Time::from_millis(link.last_received());
                    guard.flow.note_activity(link.place, last);
                }
                guard.flow.handle_timeout(now());
                self.flush(&mut guard);
                (guard.flow.poll_event(), guard.flow.next_deadline())
            };
            match event {
                Some(event) => self.handle_event(event),
                None => {
                    if let Some(deadline) = deadline {
                        let ms = u32::try_from(deadline.since(now())).unwrap_or(u32::MAX);
                        self.service
                            .enqueue_after(self.ns.queue(), self.clone(), ms);
                    }
                    return;
                }
            }
        }
    }

    fn handle_event(self: &Arc<Self>, event: Event) {
        match event {
            Event::FirstContact(result) => self.first_contact_over(result),
            Event::SpareFree => self.drop_spare(),
            Event::RkeyConfirmed(id) => {
                self.pools.lock().set_known(id, Known::Yes);
                self.wake_waiters();
            }
            Event::RkeyRefused(id) => {
                self.pools.lock().set_known(id, Known::Refused);
                self.wake_waiters();
            }
            Event::RkeyDeleted(id) => {
                let mut pools = self.pools.lock();
                pools.set_known(id, Known::Refused);
                pools.forget(id);
            }
            Event::PeerRmbGone(slot) => self.abort_users_of(slot),
            Event::Down(reason) => {
                self.log_down(reason);
                if matches!(reason, DownReason::LinkFailed(_)) {
                    self.links().for_each(|link| link.fail());
                }
                self.retire();
            }
            Event::Release => self.release(),
        }
    }

    fn first_contact_over(self: &Arc<Self>, result: LinkResult) {
        let first = self.waiters.lock().first.take();
        if let Some(handshake) = first {
            handshake.link_decided(result);
        }
        self.wake_waiters();
    }

    fn abort_users_of(&self, slot: PeerSlot) {
        self.for_each_connection(|sk| {
            let uses = sk
                .conn
                .lock()
                .as_ref()
                .is_some_and(|connection| connection.peer_place().slot == slot);
            if uses {
                conn::link_failed(sk);
            }
        });
    }

    fn log_down(&self, reason: DownReason) {
        match reason {
            DownReason::Idle | DownReason::Local => {}
            DownReason::LinkFailed(_) | DownReason::PeerDeleted(_) => {
                self.ns.stats.group_lost();
            }
        }
        pr_debug!("smc_r: link group {:08x} down: {:?}\n", self.id, reason);
    }

    /// Nobody finds the group any more, and its connections end. Process context.
    fn retire(self: &Arc<Self>) {
        self.ns.shared.groups.remove(self);
        self.pools.lock().refuse_pending();
        self.for_each_connection(|sk| conn::link_failed(sk));
        self.wake_waiters();
    }

    fn drop_spare(&self) {
        let spare = self.links.lock().spare.take();
        if let Some(spare) = spare {
            spare.shutdown();
        }
    }

    /// Takes the queue pairs apart: the end of the group. Process context.
    fn release(self: &Arc<Self>) {
        self.port_check.cancel();
        self.drop_spare();
        for place in 0..MAX_LINKS {
            let link = self
                .links
                .lock()
                .places
                .get_mut(place)
                .and_then(Option::take);
            if let Some(link) = link {
                link.shutdown();
            }
        }
        self.first_contact_lost();
        self.wake_waiters();
    }

    /// A rendezvous that still waits for its link waits in vain.
    fn first_contact_lost(&self) {
        let first = self.waiters.lock().first.take();
        if let Some(handshake) = first {
            handshake.kick();
        }
    }

    /// Connects the queue pair of the first link. Sleeps.
    pub(crate) fn connect(&self, peer: &LinkEnd) -> Result {
        let link = self.first_link().ok_or(ENOTCONN)?;
        link.connect(&Peer::from(peer))
    }

    /// What is shown of the link at a place.
    pub(crate) fn link_ends(&self, place: LinkIx) -> LinkEnds {
        let guard = self.flow.lock();
        LinkEnds {
            number: guard.flow.link_number(place).map_or(0, LinkNum::get),
            user_id: guard.flow.user_id(),
            peer_user_id: guard.flow.peer_user_id(place).unwrap_or_default(),
            peer_gid: guard
                .flow
                .peer_end(place)
                .map(|end| end.gid)
                .unwrap_or_default(),
        }
    }

    /// Numbers for display.
    pub(crate) fn summary(&self) -> Summary {
        let (rmb_bytes, ring_bytes) = self.pools.lock().bytes();
        let guard = self.flow.lock();
        Summary {
            connections: guard.flow.connections(),
            usable: guard.flow.is_usable(),
            over: guard.flow.is_over(),
            rmb_bytes,
            ring_bytes,
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

/// What is shown of a group.
pub(crate) struct Summary {
    pub(crate) connections: u16,
    pub(crate) usable: bool,
    pub(crate) over: bool,
    pub(crate) rmb_bytes: usize,
    pub(crate) ring_bytes: usize,
}

/// What CLC and LLC messages said about a link. Zeroes stand for what is not known yet.
#[derive(Default)]
pub(crate) struct LinkEnds {
    pub(crate) number: u8,
    /// The link's names in CONFIRM LINK, as they are on the wire.
    pub(crate) user_id: [u8; 4],
    pub(crate) peer_user_id: [u8; 4],
    pub(crate) peer_gid: Gid,
}
