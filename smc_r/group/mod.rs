// SPDX-License-Identifier: GPL-2.0

//! Link groups: what all connections to one peer share.
//!
//! A group is driven by its LLC engine ([`Flow`]). Messages of the peer are handed to it where they
//! come in (softirq), under the `flow` spin lock, and what it wants to send is posted at once. What
//! else it has to say is dealt with by the group's service work item, in process context.
//!
//! * This file: the group, its links and its LLC engine.
//! * [`groups`]: all groups, and the choice between them.
//! * [`members`], [`table`], [`pools`]: connections and their buffers.
//! * [`upcalls`]: what links report. [`service`]: the work item.

mod groups;
mod members;
mod pools;
mod service;
mod table;
mod upcalls;

use core::net::IpAddr;

use kapi::{
    errno::{ENOTCONN, EPROTO},
    ib,
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
        PeerRmb,
        PeerTable,
        Role,
        MAX_LINKS,
        MAX_PEER_RMBS, //
    },
    llc_flow::{Flow, FlowParams, Outgoing, Version},
    timer::{FlowTiming, Time},
    wire::{Eid, Gid, LinkNum, PeerId}, //
};

use crate::{
    clock::now,
    device::Path,
    handshake::Handshake,
    link::{Cookie, Link},
    netns::{Netns, Setting},
    path,
    pnet::PnetId,
    transport::{
        rc::{Messages, Rc},
        Chain,
        Peer,
        PostError,
        Transport, //
    },
};

pub(crate) use self::{
    groups::{FirstContact, Groups, ServerChoice},
    members::Buffers,
    pools::{GroupRmb, Known, OwnElement, PooledRing, Taken},
    table::{ConnToken, MAX_CONNECTIONS}, //
};
use self::{
    pools::Pools,
    service::{PortCheck, Service},
    table::Table, //
};

/// What the LLC engine and its surroundings need.
struct FlowState {
    flow: KBox<Flow>,
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
    /// Who the peer is; zero if it did not say.
    pub(crate) peer_id: PeerId,
    /// The peer's port on the first contact.
    peer_gid: Gid,
    pub(crate) vlan: Option<u16>,
    /// The physical network by whose name its first port was found, if it was.
    pub(crate) pnet: Option<PnetId>,
    /// How packets of its links are treated; the same for all connections.
    pub(crate) treatment: ib::Service,
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
    /// The rendezvous of the first contact, and those that wait for it or for an RMB.
    #[pin]
    waiters: SpinLockBh<Waiters>,
    #[pin]
    service: DelayedWork<Arc<Group>, Service>,
    #[pin]
    port_check: DelayedWork<Arc<Group>, PortCheck>,
    /// LLC messages wait for a send slot.
    backlog: Atomic<u32>,
    /// Addresses of our ports changed: the service has to look whether the links' still exist.
    recheck: Atomic<u32>,
    /// A port of ours was down for a while, or gone.
    disturbed: Atomic<u32>,
    /// Server: the address whose connection the first contact is, if it is known.
    first_from: SetOnce<IpAddr>,
    /// No new connections are wanted. Changed under the lock of `flow`.
    drained: Atomic<u32>,
    /// Listeners have been told that the group is there.
    announced: Atomic<u32>,
    _counted: Counted,
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
                || ns.setting_u8(Setting::MaxLinks),
                |limits| limits.max_links,
            ),
        }
    }
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
    others: KVVec<Arc<Handshake>>,
}

impl Group {
    /// A group with one link on `path` that is not connected yet. Sleeps.
    pub(crate) fn new(
        ns: Arc<Netns>,
        role: Role,
        (peer_id, peer_gid): (PeerId, Gid),
        path: &Path,
        terms: Option<Terms>,
    ) -> Result<Arc<Self>> {
        let number = ns.shared.groups.next_number();
        let id = number as u32 & 0xff_ffff;
        let flow = Self::new_flow(&ns, role, id, terms.as_ref())?;
        let mut peers = KVVec::with_capacity(MAX_PEER_RMBS, GFP_KERNEL)?;
        for _ in 0..MAX_PEER_RMBS {
            peers.push(PeerRmb::EMPTY, GFP_KERNEL)?;
        }
        let table = Table::new(role)?;
        let counted = Counted::new(ns.clone());
        let group = Arc::pin_init(
            try_pin_init!(Self {
                ns,
                number,
                id,
                role,
                peer_id,
                peer_gid,
                vlan: path.vlan,
                pnet: path.pnet,
                treatment: path.service,
                terms,
                peer_host: SetOnce::new(),
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
                recheck: Atomic::new(0),
                disturbed: Atomic::new(0),
                first_from: SetOnce::new(),
                drained: Atomic::new(0),
                announced: Atomic::new(0),
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

    /// The LLC engine of a new group. Apart from [`Self::new`], so that the stack holds no room for it
    /// while queue pairs are made, which goes deep.
    #[inline(never)]
    fn new_flow(ns: &Netns, role: Role, id: u32, terms: Option<&Terms>) -> Result<KBox<Flow>> {
        let idle = ns.setting(Setting::IdleTime).saturating_mul(1000);
        let timing = FlowTiming::DEFAULT;
        let flow = Flow::new(FlowParams {
            role,
            version: match terms {
                None => Version::One,
                Some(terms) => Version::Two {
                    direct: terms.direct,
                },
            },
            max_links: terms.map_or(2, |terms| terms.max_links),
            max_connections: terms.map_or(MAX_CONNECTIONS, |terms| {
                MAX_CONNECTIONS.min(terms.max_connections.into())
            }),
            user_id: id << 8 | 1,
            seed: now_ms() ^ u64::from(id).rotate_right(16),
            timing: FlowTiming {
                test_link: ns.setting(Setting::TestlinkTime).saturating_mul(1000),
                idle_server: idle,
                idle_client: idle.saturating_add(timing.idle_client - timing.idle_server),
                ..timing
            },
        });
        Ok(KBox::new(flow, GFP_KERNEL)?)
    }

    /// Which messages go over the links.
    pub(crate) fn messages(&self) -> Messages {
        match self.terms {
            None => Messages::V1,
            Some(_) => Messages::V2,
        }
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

    /// The link of the first contact.
    pub(crate) fn first_link(&self) -> Option<Arc<Link>> {
        self.link(LinkIx::FIRST)
    }

    /// Whether there is room for a second link by what was agreed on.
    pub(crate) fn may_have_two_links(&self) -> bool {
        self.terms.is_none_or(|terms| terms.max_links > 1)
    }

    /// Server: gets a second queue pair to name in ADD LINK. Sleeps.
    pub(crate) fn add_spare(self: &Arc<Self>) -> Result<LinkEnd> {
        let link = self.first_link().ok_or(ENOTCONN)?;
        let spare = Rc::new(&link.path, self.ns.queues(), self.messages(), link.clone())?;
        let end = spare.local().into();
        {
            let mut links = self.links.lock();
            // The group may have been released in the meantime, and nobody comes for it again.
            if links.places.iter().any(Option::is_some) {
                links.spare = Some(spare);
                return Ok(end);
            }
        }
        spare.shutdown();
        Err(ENOTCONN)
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

    /// Whether our own end of its links has worked all the time: if they carry nothing, it is for
    /// another reason. May sleep.
    pub(crate) fn is_sound(&self) -> bool {
        self.disturbed.load(Relaxed) == 0 && self.links().all(|link| link.path.works())
    }

    /// True while it could be used, and nobody does.
    pub(crate) fn is_idle(&self) -> bool {
        let guard = self.flow.lock();
        guard.flow.is_usable() && guard.flow.connections() == 0
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

    /// Connects the queue pair of the first link. Sleeps.
    pub(crate) fn connect(&self, peer: &LinkEnd) -> Result {
        let link = self.first_link().ok_or(ENOTCONN)?;
        let mut end = Peer::from(peer);
        if let Some(terms) = &self.terms {
            // The way to the port was found when it was offered.
            if peer.gid != self.peer_gid {
                return Err(EPROTO);
            }
            if !terms.direct {
                end.mac = path::gateway_mac(&link.path, peer.gid)?;
            }
        }
        link.connect(&end)
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
