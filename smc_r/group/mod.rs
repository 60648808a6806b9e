// SPDX-License-Identifier: GPL-2.0

//! Link groups: what all connections to one peer share.
//!
//! A group is driven by its LLC engine ([`Flow`]). Messages of the peer are handed to it where they
//! come in (softirq), under the `flow` spin lock, and what it wants to send is posted at once. What
//! else it has to say is dealt with by the group's service work item, in process context.
//!
//! * This file: the group, its links and its LLC engine.
//! * [`groups`]: all groups, and the choice between them.
//! * [`members`], [`table`], [`pools`], [`rings`]: connections and their buffers.
//! * [`making`]: links. [`moving`]: connections that go from one link to another.
//! * [`upcalls`]: what links report. [`service`]: the work item.

mod groups;
mod making;
mod members;
mod moving;
mod pools;
mod rings;
mod service;
mod table;
mod upcalls;

use core::net::IpAddr;

use kapi::{
    errno::EHOSTUNREACH,
    grow::Grow,
    new_delayed_work,
    new_spinlock_bh,
    spinlock_bh::{SpinLockBh, SpinLockBhGuard},
    util::now_ms,
    workqueue::DelayedWork, //
};
use kernel::{
    alloc::kvec::KVVec,
    new_mutex,
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc,
        Mutex,
        SetOnce, //
    },
};
use smc_proto::{
    clc::AcceptV2,
    group::{
        LinkEnd,
        LinkIx,
        OwnRmb,
        OwnTable,
        PeerElement,
        PeerRmb,
        PeerTable,
        Role,
        MAX_LINKS,
        MAX_PEER_RMBS, //
    },
    handshake,
    llc::v2::RTokenPairWire,
    llc_flow::{Flow, FlowParams, Outgoing, Redundancy, RmbId, Version},
    timer::{FlowTiming, Time},
    wire::{Diagnosis, Eid, Gid, LinkNum, PeerId}, //
};

use crate::{
    clock::now,
    device::Path,
    handshake::{Handshake, LastWords},
    link::{Cookie, Link},
    netns::{Netns, Setting, LINKS_V2},
    path,
    transport::{
        rc::Messages,
        Chain,
        Peer,
        PostError,
        LONG_MESSAGE, //
    },
};

pub(crate) use self::{
    groups::{FirstContact, Groups, ServerChoice},
    members::Buffers,
    moving::{KeyedLink, LinkSet, Standing},
    pools::{GroupRmb, Known, OwnElement, Taken},
    rings::PooledRing,
    table::{ConnToken, MAX_CONNECTIONS}, //
};
use self::{
    making::{Breaker, Maker, Task},
    members::Announcer,
    moving::Abandoned,
    pools::Pools,
    rings::{RingWatch, Rings},
    service::{PortCheck, Service},
    table::Table, //
};

/// How many elements of a peer may be shared at a time without memory being asked for: it might be short when the peer uses
/// its connection already, and could not be declined any more.
const SHARED: usize = 8;

/// What the LLC engine and its surroundings need.
struct FlowState {
    flow: KBox<Flow>,
    peers: KVVec<PeerRmb>,
    /// Elements of the peer that a further connection has got while the one that had them before is not through.
    shared: KVec<PeerElement>,
    /// Our buffers, with their keys on all links.
    own: KVVec<Option<OwnRmb>>,
    /// Where a message is put together that is longer than most; empty if there are none.
    long: KVVec<u8>,
    /// Of the links that came to nothing, as the LLC engine counts them, those that the namespace was told of.
    told: u64,
    abandoned: Abandoned,
}

impl FlowState {
    /// A connection does not use its element of the peer any more, which may have gone to another one meanwhile.
    fn release(&mut self, element: PeerElement) {
        match self.shared.iter().position(|shared| *shared == element) {
            Some(place) => {
                let _ = self.shared.remove(place);
            }
            None => {
                PeerTable::new(&mut self.peers).release(element);
            }
        }
    }

    /// A link is gone, and the keys of our buffers on it.
    fn forget_keys(&mut self, link: LinkIx) {
        for rmb in self.own.iter_mut().flatten() {
            rmb.tokens.forget(link);
        }
    }
}

/// The queue pairs of a group.
struct Links {
    places: [Option<Arc<Link>>; MAX_LINKS],
    /// What the LLC engine wants made or connected. What it asks for next makes that void.
    task: Option<Task>,
    /// Those that are gone, and have yet to be shut down.
    gone: [Option<Arc<Link>>; MAX_LINKS],
}

/// A link group.
#[pin_data]
pub(crate) struct Group {
    pub(crate) ns: Arc<Netns>,
    /// Above the numbers of all groups made before.
    pub(crate) number: u64,
    /// For display: the upper three bytes of our link user IDs, and zero. Existing tools take no ID with
    /// anything in its last byte, which is that of links to them.
    pub(crate) id: u32,
    pub(crate) role: Role,
    /// Who the peer is; zero if it did not say.
    pub(crate) peer_id: PeerId,
    /// The peer's port on the first contact.
    peer_gid: Gid,
    pub(crate) vlan: Option<u16>,
    /// Where its first link was.
    pub(crate) first_path: Path,
    /// What was agreed on in version 2; none in version 1.
    pub(crate) terms: Option<Terms>,
    /// What the peer said about itself in version 2.
    peer_host: SetOnce<PeerHost>,
    #[pin]
    flow: SpinLockBh<FlowState>,
    #[pin]
    links: SpinLockBh<Links>,
    #[pin]
    table: SpinLockBh<Table>,
    #[pin]
    pools: Mutex<Pools>,
    #[pin]
    rings: Mutex<Rings>,
    /// The rendezvous of the first contact, and those that wait for it or for an RMB.
    #[pin]
    waiters: SpinLockBh<Waiters>,
    #[pin]
    service: DelayedWork<Arc<Group>, Service>,
    #[pin]
    port_check: DelayedWork<Arc<Group>, PortCheck>,
    #[pin]
    maker: DelayedWork<Arc<Group>, Maker>,
    #[pin]
    announcer: DelayedWork<Arc<Group>, Announcer>,
    #[pin]
    breaker: DelayedWork<Arc<Group>, Breaker>,
    #[pin]
    ring_watch: DelayedWork<Arc<Group>, RingWatch>,
    /// LLC messages wait for a send slot.
    backlog: Atomic<u32>,
    /// Addresses of our ports changed: the service has to look whether the links' still exist.
    recheck: Atomic<u32>,
    /// A port of ours was down for a while, or gone.
    disturbed: Atomic<u32>,
    /// Whether its clients send Confirms that are waited for.
    pub(crate) last_words: LastWords,
    /// There may be other ports: the service has to look for one that the group can use.
    look_out: Atomic<u32>,
    /// The maker of links has to do that: devices are asked.
    offer: Atomic<u32>,
    /// Connections wait until all that they have posted is known to have arrived.
    quiet: Atomic<u32>,
    /// The links of which the group is finding that out, a [`LinkSet`]. The work item's alone.
    asked: Atomic<u32>,
    /// Its links are taken apart, not 0.
    released: Atomic<u32>,
    /// There was no memory for the first link, not 0.
    no_link: Atomic<u32>,
    /// How often a port was chosen for a further link.
    choices: Atomic<u32>,
    /// The peer's address in the connection of the first contact, if it is known.
    first_from: SetOnce<IpAddr>,
    /// Why no new connections are wanted, one bit for each [`Drain`]. Changed under the lock of `flow`.
    drained: Atomic<u32>,
    /// What listeners have been told of the group, an [`Announced`].
    announced: Atomic<u32>,
    /// It has, or had, more than one link: one may fail, and its connections go on.
    several: Atomic<u32>,
    _counted: Counted,
}

/// What listeners have been told of a group. Its first contact and its end may be told by two at a time.
#[derive(Clone, Copy)]
enum Announced {
    /// Nothing yet.
    Not,
    /// That it is there, just now: who tells that looks afterwards whether it is still so.
    Telling,
    /// That it is there.
    There,
    /// Nothing more, or are about to be told that it is no more.
    Over,
}

/// Who has no new connections wanted. Each takes back only what is its own.
#[derive(Clone, Copy)]
pub(crate) enum Drain {
    /// An operator, who has named the group.
    Group = 1,
    /// The port of its only link is drained.
    Port = 2,
}

/// What a link group of version 2 has agreed on by CLC.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// The enterprise ID that both ends have.
    pub(crate) eid: Eid,
    /// The release of version 2 that both know.
    pub(crate) release: u8,
    /// There is no gateway between the two ends.
    pub(crate) direct: bool,
    /// Most connections of the group, 16 to 255.
    pub(crate) max_connections: u8,
    /// Most links of the group, 1 or 2.
    pub(crate) max_links: u8,
}

impl Terms {
    /// The terms that our message of a first contact names. Without limits, our own.
    pub(crate) fn new(own: &AcceptV2, ns: &Netns) -> Self {
        let first = own.first.as_ref();
        let limits = first.and_then(|first| first.limits);
        Self {
            eid: own.eid,
            release: first.map_or(0, |first| first.release),
            direct: first.is_none_or(|first| first.direct),
            max_connections: limits.map_or_else(
                || ns.setting_u8(Setting::MaxConns),
                |limits| limits.max_connections,
            ),
            max_links: limits.map_or_else(
                || ns.setting_u8(Setting::MaxLinks).min(LINKS_V2),
                |limits| limits.max_links,
            ),
        }
    }
}

fn max_connections(terms: Option<&Terms>) -> u16 {
    terms.map_or(MAX_CONNECTIONS, |terms| {
        MAX_CONNECTIONS.min(terms.max_connections.into())
    })
}

/// What a peer of version 2 says about itself.
#[derive(Clone, Copy)]
pub(crate) struct PeerHost {
    /// Its operating system, as a number.
    pub(crate) os: u8,
    /// Its name, padded with blanks.
    pub(crate) name: [u8; 32],
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
    others: KVec<Arc<Handshake>>,
}

impl Group {
    /// A group without links; the first one will be on `path`. Sleeps, but no device is asked for anything.
    pub(crate) fn new(
        ns: Arc<Netns>,
        role: Role,
        (peer_id, peer_gid): (PeerId, Gid),
        path: &Path,
        terms: Option<Terms>,
    ) -> Result<Arc<Self>> {
        let number = ns.shared.groups.next_number();
        let id = (number as u32) << 8;
        let flow = Self::new_flow(&ns, role, id, terms.as_ref())?;
        let mut peers = KVVec::with_capacity(MAX_PEER_RMBS, GFP_KERNEL)?;
        for _ in 0..MAX_PEER_RMBS {
            peers.append(PeerRmb::EMPTY, GFP_KERNEL)?;
        }
        let mut own = KVVec::with_capacity(MAX_PEER_RMBS, GFP_KERNEL)?;
        for _ in 0..MAX_PEER_RMBS {
            own.append(None, GFP_KERNEL)?;
        }
        let long = if terms.is_some() { LONG_MESSAGE } else { 0 };
        let long = KVVec::from_elem(0, long, GFP_KERNEL)?;
        let shared = KVec::with_capacity(SHARED, GFP_KERNEL)?;
        let table = Table::new(role)?;
        let counted = Counted::new(ns.clone());
        Arc::pin_init(
            try_pin_init!(Self {
                ns,
                number,
                id,
                role,
                peer_id,
                peer_gid,
                vlan: path.vlan,
                first_path: path.clone(),
                terms,
                peer_host: SetOnce::new(),
                flow <- new_spinlock_bh!(
                    FlowState { flow, peers, shared, own, long, told: 0, abandoned: Abandoned::default() },
                    "smc_flow"
                ),
                links <- new_spinlock_bh!(
                    Links {
                        places: [const { None }; MAX_LINKS],
                        task: None,
                        gone: [const { None }; MAX_LINKS],
                    },
                    "smc_links"
                ),
                table <- new_spinlock_bh!(table, "smc_connections"),
                pools <- new_mutex!(Pools::new(), "smc_pools"),
                rings <- new_mutex!(Rings::new(), "smc_rings"),
                waiters <- new_spinlock_bh!(
                    Waiters { first: None, others: KVec::new() },
                    "smc_waiters"
                ),
                service <- new_delayed_work!("smc_group"),
                port_check <- new_delayed_work!("smc_port_check"),
                maker <- new_delayed_work!("smc_link_maker"),
                announcer <- new_delayed_work!("smc_rmb_announcer"),
                breaker <- new_delayed_work!("smc_link_breaker"),
                ring_watch <- new_delayed_work!("smc_ring_watch"),
                backlog: Atomic::new(0),
                recheck: Atomic::new(0),
                disturbed: Atomic::new(0),
                last_words: LastWords::new(),
                look_out: Atomic::new(0),
                offer: Atomic::new(0),
                quiet: Atomic::new(0),
                asked: Atomic::new(0),
                released: Atomic::new(0),
                no_link: Atomic::new(0),
                choices: Atomic::new(0),
                first_from: SetOnce::new(),
                drained: Atomic::new(0),
                announced: Atomic::new(Announced::Not as u32),
                several: Atomic::new(0),
                _counted: counted,
            }),
            GFP_KERNEL,
        )
    }

    /// The LLC engine of a new group. Apart from [`Self::new`], so that the stack holds no room for it
    /// while other memory is asked for, which goes deep.
    #[inline(never)]
    fn new_flow(ns: &Netns, role: Role, id: u32, terms: Option<&Terms>) -> Result<KBox<Flow>> {
        let idle = ns.setting(Setting::IdleTime).saturating_mul(1000);
        let timing = FlowTiming::DEFAULT;
        let max_links = match terms {
            Some(terms) => terms.max_links,
            None => ns.setting_u8(Setting::MaxLinks),
        };
        let room = KBox::new_uninit(GFP_KERNEL)?;
        let params = FlowParams {
            role,
            version: match terms {
                None => Version::One,
                Some(terms) => Version::Two {
                    direct: terms.direct,
                },
            },
            // Version 1 and the first release of version 2 know no groups of one link.
            max_links: if terms.is_none_or(|terms| terms.release == 0) {
                max_links.max(2)
            } else {
                max_links
            },
            max_connections: max_connections(terms),
            user_id: id | 1,
            seed: now_ms() ^ u64::from(id).rotate_right(16),
            timing: FlowTiming {
                test_link: ns.setting(Setting::TestlinkTime).saturating_mul(1000),
                idle_server: idle,
                idle_client: idle
                    .saturating_add(timing.idle_client.saturating_sub(timing.idle_server)),
                ..timing
            },
        };
        // In its place: it is too large to be moved about on the stack.
        let mut flow = KBox::write(room, Flow::new(params));
        if max_links > 1 {
            flow.allow_further_links();
        }
        Ok(flow)
    }

    /// Which messages go over the links.
    pub(crate) fn messages(&self) -> Messages {
        match self.terms {
            None => Messages::V1,
            Some(_) => Messages::V2,
        }
    }

    /// Notes the peer's address in the connection of the first contact.
    fn begin_with(&self, from: Option<IpAddr>) {
        if let Some(from) = from {
            self.first_from.populate(from);
        }
    }

    /// Whether the first contact was made with this address.
    pub(crate) fn began_with(&self, from: Option<IpAddr>) -> bool {
        self.first_from.as_ref() == from.as_ref()
    }

    /// Remembers what the peer says about itself on a first contact of version 2.
    pub(crate) fn note_peer(&self, said: Option<&AcceptV2>) {
        if let Some(first) = said.and_then(|said| said.first.as_ref()) {
            self.peer_host.populate(PeerHost {
                os: first.os,
                // It is shown on terminals.
                name: first.host.map(|byte| match byte {
                    b'!'..=b'~' => byte,
                    _ => b' ',
                }),
            });
        }
    }

    /// What the peer of a group of version 2 has said about itself, once it is known.
    pub(crate) fn peer_host(&self) -> Option<&PeerHost> {
        self.peer_host.as_ref()
    }

    /// The link at a place.
    pub(crate) fn link(&self, place: LinkIx) -> Option<Arc<Link>> {
        self.links.lock().places.get(place.get())?.clone()
    }

    /// All links, as they are at the moment.
    pub(crate) fn links(&self) -> impl Iterator<Item = Arc<Link>> + '_ {
        (0..MAX_LINKS).filter_map(|place| self.link(LinkIx::new(place)?))
    }

    /// Whether all its links are on one port of ours: without that, the group would end.
    fn depends_on_a_port(&self) -> bool {
        matches!(
            self.flow.lock().flow.redundancy(),
            Redundancy::Single | Redundancy::OwnPort
        )
    }

    /// The link of the first contact.
    pub(crate) fn first_link(&self) -> Option<Arc<Link>> {
        self.link(LinkIx::FIRST)
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

    /// Posts what the LLC engine wants to send, and tells the namespace of links that came to nothing.
    fn flush(&self, guard: &mut SpinLockBhGuard<'_, FlowState>) {
        let state = &mut **guard;
        let mut waits = false;
        // What is for a link without room waits, and all that comes after it does: none is lost. The
        // slots that are kept for these messages come free soon, or the link fails.
        while !waits {
            let Some(send) = state.flow.poll_send_with(&OwnTable::new(&state.own)) else {
                break;
            };
            let posted = if send.pairs == 0 {
                self.post(&send, &send.message)
            } else {
                self.post_pairs(&send, state)
            };
            match posted {
                Err(PostError::Busy) => {
                    waits = true;
                    state.flow.put_back();
                }
                // What the device refuses has no completion that would tell. Each link fails once, so
                // this comes to an end.
                Err(PostError::Down) => state.flow.handle_link_failed(send.link, now()),
                _ => {}
            }
        }
        self.backlog.store(u32::from(waits), Relaxed);
        let unmade = state.flow.counters().unmade;
        (state.told..unmade).for_each(|_| self.ns.stats.link_lost());
        state.told = unmade;
    }

    /// Posts an LLC message.
    fn post(&self, send: &Outgoing, message: &[u8]) -> Result<(), PostError> {
        let Some(link) = self.link(send.link) else {
            return Ok(());
        };
        let chain = Chain::control(message, Cookie::llc(send.note).into());
        let posted = link.post(&chain);
        if posted == Err(PostError::Busy) && self.backlog.xchg(1, Relaxed) == 0 {
            // A slot may have come free just before we said that we wait for one.
            return link.post(&chain);
        }
        posted
    }

    /// Posts an LLC message that brings the keys of our buffers.
    fn post_pairs(&self, send: &Outgoing, state: &mut FlowState) -> Result<(), PostError> {
        let FlowState {
            flow, own, long, ..
        } = state;
        let head = send.message.len();
        let pairs = usize::from(send.pairs).saturating_mul(size_of::<RTokenPairWire>());
        let message = long.get_mut(..head.saturating_add(pairs));
        let message = message.ok_or(PostError::Invalid)?;
        let (first, rest) = message
            .split_at_mut_checked(head)
            .ok_or(PostError::Invalid)?;
        first.copy_from_slice(&send.message);
        flow.write_pairs(&OwnTable::new(own), rest);
        self.post(send, message)
    }

    /// Enters one of our buffers into the table from which the peer is told of it.
    fn enter_rmb(&self, rmb: &GroupRmb) {
        let tokens = rmb.tokens();
        let mut guard = self.flow.lock();
        // There is room: a group has no more buffers than places.
        if let Some(place) = guard.own.iter_mut().find(|place| place.is_none()) {
            *place = Some(OwnRmb { id: rmb.id, tokens });
        }
    }

    /// The peer is not told of one of our buffers any more.
    fn strike_rmb(&self, id: RmbId) {
        let mut guard = self.flow.lock();
        for place in guard.own.iter_mut() {
            if place.is_some_and(|rmb| rmb.id == id) {
                *place = None;
            }
        }
    }

    /// True while connections may be added and data may flow.
    pub(crate) fn is_usable(&self) -> bool {
        self.flow.lock().flow.is_usable()
    }

    /// See [`Flow::may_be_in_use`].
    pub(crate) fn may_be_in_use(&self) -> bool {
        self.flow.lock().flow.may_be_in_use()
    }

    /// True once the group has ended or is about to.
    pub(crate) fn is_over(&self) -> bool {
        self.flow.lock().flow.is_over()
    }

    /// Whether our own end of its links has worked all the time: if they carry nothing, it is for
    /// another reason. May sleep.
    pub(crate) fn is_sound(&self) -> bool {
        self.disturbed.load(Relaxed) == 0 && self.links().all(|link| link.path.works())
    }

    /// Listeners have been told of it.
    fn is_announced(&self) -> bool {
        self.announced.load(Relaxed) == Announced::There as u32
    }

    /// There is, or was, more than one link.
    #[inline]
    pub(crate) fn has_several_links(&self) -> bool {
        self.several.load(Relaxed) != 0
    }

    /// True while it could be used, and nobody does.
    pub(crate) fn is_idle(&self) -> bool {
        let guard = self.flow.lock();
        guard.flow.is_usable() && guard.flow.connections() == 0
    }

    /// The active link with this far end, for a new contact.
    pub(crate) fn find_link(&self, peer: &LinkEnd) -> Option<LinkIx> {
        self.flow.lock().flow.find_link(peer)
    }

    /// Starts the LLC exchange of the first contact, whose end `handshake` is told.
    pub(crate) fn start(
        self: &Arc<Self>,
        handshake: Arc<Handshake>,
        local: LinkEnd,
        peer: &handshake::Peer,
    ) {
        self.waiters.lock().first = Some(handshake);
        self.with_flow(|flow, peers, now| {
            // A second link, which may be there before the connection is, brings its key there. There
            // is room: it is the first one.
            let _ = peers.add(LinkIx::FIRST, peer.element.token);
            flow.start(local, peer.link, None, now);
        });
        // A flow that was not started has no links, and took no notice if this one failed.
        if !self.first_link().is_some_and(|link| link.is_up()) {
            self.link_failed(LinkIx::FIRST);
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
            waiters.others.append(handshake, GFP_ATOMIC)?;
        }
        Ok(())
    }

    /// There was no memory for the first link, and there is hardly more for that of another group on `path`.
    pub(crate) fn no_link(&self, path: &Path) -> bool {
        self.no_link.load(Relaxed) != 0 && self.first_path.is_of(&path.device)
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
        let waiters = core::mem::take(&mut self.waiters.lock().others);
        for handshake in &waiters {
            handshake.group_news();
        }
    }

    /// Connects the queue pair of the first link, or says why not. Sleeps.
    pub(crate) fn connect(&self, peer: &LinkEnd) -> Result<(), Diagnosis> {
        let link = self.first_link().ok_or(Diagnosis::NO_ACTIVE_LINK)?;
        // In version 2, the way to the port was found when it was offered.
        if self.terms.is_some() && peer.gid != self.peer_gid {
            return Err(Diagnosis::READY_LINK);
        }
        self.connect_link(&link, peer).map_err(|error| match error {
            ENOMEM => self.note_no_memory(),
            _ if !self.is_sound() => Diagnosis::NO_ACTIVE_LINK,
            _ => Diagnosis::READY_LINK,
        })
    }

    /// Connects the queue pair of a link. Sleeps.
    fn connect_link(&self, link: &Link, peer: &LinkEnd) -> Result {
        if !peer.mac.is_unicast() || !path::is_one_port(&link.path, peer.gid) {
            return Err(EHOSTUNREACH);
        }
        let mut end = Peer::from(peer);
        if !self.is_direct() {
            end.mac = path::gateway_mac(&link.path, peer.gid)?;
        }
        link.connect(&end)
    }

    /// Connections at most, 16 to 255: as agreed on, or as the format of its messages allows.
    fn max_connections(&self) -> u16 {
        max_connections(self.terms.as_ref())
    }

    /// Whether there is no gateway between the two ends.
    fn is_direct(&self) -> bool {
        self.terms.is_none_or(|terms| terms.direct)
    }

    /// What is shown of the link at a place.
    pub(crate) fn link_ends(&self, place: LinkIx) -> LinkEnds {
        let guard = self.flow.lock();
        let number = guard.flow.link_number(place).map_or(0, LinkNum::get);
        let [a, b, c, d] = guard.flow.user_id();
        LinkEnds {
            number,
            up: guard.flow.is_link_up(place),
            user_id: [a, b, c, d.wrapping_add(number.saturating_sub(1))],
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
        let rmb_bytes = self.pools.lock().bytes();
        let ring_bytes = self.rings.lock().bytes();
        let guard = self.flow.lock();
        Summary {
            connections: guard.flow.connections(),
            over: guard.flow.is_over(),
            redundancy: guard.flow.redundancy(),
            rmb_bytes,
            ring_bytes,
        }
    }
}

/// What is shown of a group.
pub(crate) struct Summary {
    pub(crate) connections: u16,
    pub(crate) over: bool,
    pub(crate) redundancy: Redundancy,
    pub(crate) rmb_bytes: usize,
    pub(crate) ring_bytes: usize,
}

/// What CLC and LLC messages said about a link. Zeroes stand for what is not known yet.
#[derive(Default)]
pub(crate) struct LinkEnds {
    pub(crate) number: u8,
    /// It may carry connections.
    pub(crate) up: bool,
    /// The link's names in CONFIRM LINK, as they are on the wire.
    pub(crate) user_id: [u8; 4],
    pub(crate) peer_user_id: [u8; 4],
    pub(crate) peer_gid: Gid,
}
