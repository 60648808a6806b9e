// SPDX-License-Identifier: GPL-2.0

//! How a rendezvous ends: accelerated, as plain TCP, or not at all.

use core::net::IpAddr;

use kapi::{
    errno::{
        ECONNABORTED,
        ECONNRESET,
        ENOTCONN,
        EPROTO, //
    },
    sock::state as tcp_state,
    tcp::TcpSock, //
};
use kernel::{
    prelude::*,
    sync::{atomic::Relaxed, Arc}, //
};
use smc_proto::{
    cdc::{Cdc, StateFlags},
    conn::{Conn, Params},
    group::{Element, PeerElement, Role},
    handshake::{
        Errno,
        Failure,
        Fallback,
        Peer,
        Rendezvous,
        Trouble, //
    },
    llc_flow::ShutDown,
    timer::Millis,
    wire::{Diagnosis, RKey}, //
};

use super::{
    Draft,
    Handshake,
    Machine,
    State, //
};
use crate::{
    clock::now,
    conn::{self, Connection, Parts, PeerBuffer},
    group::{Buffers, Group, KeyedLink, LinkSet, PooledRing},
    link::{Cookie, Link},
    peers::Key,
    shown::Shown,
    socket::{falls_back, show_error_once, sk_state, urgent, Phase},
    stats::Side,
    transport::{Chain, Class}, //
};

/// How long a server may take for its first message before a program's end of waiting is its fault.
const PATIENCE: Millis = 2_000;

impl Handshake {
    /// The connection is accelerated from here on.
    #[inline(never)]
    pub(super) fn established(self: &Arc<Self>, state: &mut State, peer: &Peer) {
        state.machine = Machine::Over;
        let connection = match Self::build(&mut state.draft, peer) {
            Ok(connection) => connection,
            Err(error) => {
                tell_of_abort(&state.draft, peer);
                self.tcp.abort(error);
                let failure = match error {
                    ECONNRESET => Failure::NoRmb,
                    _ => Failure::SetUp,
                };
                self.sk.ns.stats.handshake_failed(self.side(), failure);
                self.failed(state, error);
                return;
            }
        };
        self.sk
            .ns
            .stats
            .established(self.side(), peer.first_contact, peer.v2.is_some());
        if let Some(peer) = &state.peer {
            self.sk.ns.peers.succeeded(peer);
        }
        self.tells_first();
        self.settle_errors(state);
        conn::install(&self.sk, connection);
        self.finished(true);
    }

    fn build(draft: &mut Draft, peer: &Peer) -> Result<KBox<Connection>> {
        let (group, _) = draft.group.clone().ok_or(EPROTO)?;
        group.note_peer(peer.v2.as_ref());
        let (Some(element), Some(ring)) = (&draft.element, &mut draft.ring) else {
            return Err(ENOTCONN);
        };
        let mut core = Conn::new(&Params {
            send_ring: u32::try_from(ring.ring.len())?,
            element: element.size().bytes(),
            peer_element: peer.element.size.bytes(),
            base: 0,
            peer_token: peer.element.alert,
            max_transmit: 0,
        })
        .ok_or(EPROTO)?;
        core.set_several_links(true);
        let room = draft.room.take().ok_or(ENOTCONN)?;
        // Else it could be written to on no link.
        let address = peer.element.address().ok_or(EPROTO)?;
        let chosen = draft.link.clone().ok_or(ENOTCONN)?;
        let (named, place) = group.claim(&peer.link, &peer.element, chosen.place)?;
        let way = way(&group, named, place, peer, ring);
        // The end of a group is that of its connections, which follows: what came before can be read.
        let last = || (chosen, address, peer.element.token.rkey);
        let way = way.or_else(|| group.is_over().then(last));
        let Some((link, address, rkey)) = way else {
            group.release_claim(place);
            return Err(ECONNABORTED);
        };
        let (Some(token), Some(element), Some(ring)) =
            (draft.token.take(), draft.element.take(), draft.ring.take())
        else {
            group.release_claim(place);
            return Err(ENOTCONN);
        };
        draft.group = None;
        draft.link = None;
        draft.seat = None;
        draft.first_contact = None;
        Ok(Connection::new(
            room,
            Parts {
                core,
                group,
                link,
                token,
                ring,
                element,
                peer: PeerBuffer {
                    place,
                    size: peer.element.size,
                    address,
                    rkey,
                },
                version: if peer.v2.is_some() { 2 } else { 1 },
            },
        ))
    }

    #[inline(never)]
    pub(super) fn decided_tcp(self: &Arc<Self>, state: &mut State, fallback: &Fallback) {
        // A server names the group, by what others can learn: only who has the address of its peer has it end.
        if fallback.out_of_sync {
            match &state.draft.group {
                Some((group, false)) if group.began_with(state.peer.map(|peer| peer.address)) => {
                    group.shut_down(ShutDown::OutOfSync);
                }
                _ => {}
            }
        }
        let first = matches!(&state.draft.group, Some((_, true)));
        if let Some(trouble) = fallback.trouble(first) {
            self.note(state, trouble, Diagnosis::TIMEOUT_CONFIRM_LINK);
        }
        if fallback.may_cross {
            self.sk.may_cross.store(1, Relaxed);
        }
        self.fell_back(state, fallback.reason, fallback.peer_diagnosis);
    }

    /// The connection is plain TCP from here on.
    pub(super) fn fell_back(
        self: &Arc<Self>,
        state: &mut State,
        reason: Diagnosis,
        peer: Option<Diagnosis>,
    ) {
        state.machine = Machine::Over;
        self.give_up(&mut state.draft, true);
        let address = self.tcp.peer_addr().ok();
        let address = address.and_then(|addr| Some((addr.ip()?, addr.port())));
        let sk = &self.sk;
        falls_back(sk, reason, peer);
        sk.ns.fell_back(self.side(), reason, peer, address);
        // They have been the outer socket's alone so far.
        self.tcp.locked(|| self.tcp.inherit_marks(sk));
        self.tells_first();
        // Before the program's calls get to TCP.
        self.settle_errors(state);
        sk.set_state(sk_state::ACTIVE);
        sk.set_phase(Phase::Fallback);
        // What came before that was told to the rendezvous.
        show_error_once(sk, &self.tcp);
        // Until just now as well; who sets one from here on finds that it goes to TCP, too.
        self.tcp.locked(|| {
            self.tcp.inherit_marks(sk);
            // It may have come right behind the messages.
            urgent(sk, &self.tcp);
        });
        self.finished(true);
    }

    /// The error that has ended TCP is for the program: if we were told it, TCP tells it again. News of the way are not, as
    /// little as those that come while TCP itself connects: who asks how `connect` went would take them for an answer.
    fn settle_errors(&self, state: &State) {
        let tcp = &self.tcp;
        tcp.locked(|| {
            if tcp.state() != tcp_state::CLOSE {
                let _ = tcp.take_err();
            } else if let (0, Some(error)) = (tcp.err(), state.error) {
                tcp.set_err(error);
            }
        });
    }

    /// Client: whoever finds the socket connected, and asks how the attempt has ended, is to be told that it is so.
    fn tells_first(&self) {
        if self.listener.is_none() {
            self.sk.connected();
        }
    }

    /// The same at once when TCP is connected, if nothing is left to be asked: no work item has to
    /// run, and nobody is woken twice. False if [`Handshake::run`] has to see to it.
    ///
    /// The inner socket is locked, so that no call of the program gets in between; softirq.
    pub(super) fn fell_back_at_once(self: &Arc<Self>, tcp: &TcpSock) -> bool {
        let sk = &self.sk;
        if tcp.state() != tcp_state::ESTABLISHED || self.is_negotiated() {
            return false;
        }
        if !self.claim() {
            return false;
        }
        let reason = self.no_smc_reason();
        falls_back(sk, reason, None);
        sk.ns.fell_back(self.side(), reason, None, Some(tcp.peer()));
        self.tells_first();
        sk.set_state(sk_state::ACTIVE);
        // In this order: who sets one after the copy finds plain TCP, and sets it there as well.
        sk.set_phase(Phase::Fallback);
        tcp.inherit_marks(sk);
        self.finished(true);
        true
    }

    /// The peer's address in the TCP connection.
    pub(super) fn peer_ip(&self) -> Option<IpAddr> {
        self.tcp.peer_addr().ok()?.ip()
    }

    /// The peer and the service's port.
    pub(super) fn key(&self) -> Option<Key> {
        let (peer, side) = (self.tcp.peer_addr().ok()?, self.side());
        Some(Key {
            side,
            address: peer.ip()?,
            port: Some(match side {
                Side::Client => peer.port(),
                Side::Server => self.tcp.own_port(),
            }),
        })
    }

    /// Has the peer remembered: the next connections with it are plain TCP.
    fn note(&self, state: &State, trouble: Trouble, reason: Diagnosis) {
        let Some(mut key) = state.peer else {
            return;
        };
        match trouble {
            // A filter of the program may have kept the peer's messages from us.
            Trouble::NotClc if self.tcp.has_filter() => return,
            Trouble::NotClc => {}
            // It cannot be told whose fault it is.
            Trouble::NoRdma if !state.is_sound() => return,
            Trouble::NoRdma => key.port = None,
        }
        self.sk.ns.peer_failed(key, reason);
    }

    /// The program closes the socket. If its patience is shorter than ours, it would never get
    /// anywhere with a server that shows the option and says nothing.
    pub(super) fn note_impatience(&self, state: &State) {
        let waited = now().since(state.since) >= u64::from(PATIENCE);
        if matches!(&state.machine, Machine::Client(client) if waited && !client.heard()) {
            self.note(state, Trouble::NotClc, Diagnosis::PEER_NOT_CAPABLE);
        }
    }

    pub(super) fn decided_failure(self: &Arc<Self>, state: &mut State, failure: Failure) {
        let heard = state.machine.rendezvous().is_some_and(|m| m.heard());
        let role = match self.side() {
            Side::Client => Role::Client,
            Side::Server => Role::Server,
        };
        if let Some(trouble) = failure.trouble(role, heard) {
            self.note(state, trouble, failure.diagnosis());
        }
        pr_debug!("smc_r: rendezvous failed: {}\n", Shown(failure));
        let error = match failure.errno() {
            Errno::Protocol => EPROTO,
            Errno::ConnectionReset => ECONNRESET,
            Errno::ConnectionAborted => ECONNABORTED,
            Errno::TimedOut => ETIMEDOUT,
        };
        self.tcp.abort(error);
        let stats = &self.sk.ns.stats;
        stats.handshake_failed(self.side(), failure);
        self.failed(state, error);
    }

    /// The connection is over before it began.
    pub(super) fn failed(self: &Arc<Self>, state: &mut State, error: Error) {
        state.machine = Machine::Over;
        self.give_up(&mut state.draft, false);
        self.tcp.detach();
        if self.listener.is_none() {
            // The program may connect again.
            let _ = self.tcp.disconnect();
        }
        self.sk.set_err(error);
        self.sk.set_state(sk_state::INIT);
        self.sk.not_connected();
        self.sk.set_phase(if self.listener.is_some() {
            Phase::Dead
        } else {
            Phase::Idle
        });
        self.finished(false);
    }

    /// Tells those who wait for the outcome.
    fn finished(self: &Arc<Self>, ok: bool) {
        // Only now: whoever closes the socket and finds no rendezvous relies on its phase.
        {
            let mut place = self.sk.handshake.lock();
            if place.as_ref().is_some_and(|other| Arc::ptr_eq(other, self)) {
                place.take();
            }
        }
        match &self.listener {
            None => {
                if ok {
                    self.sk.wake_connected();
                } else {
                    self.sk.wake_state_change();
                    self.sk.wake_error();
                }
            }
            Some(listener) => listener.decided(&self.sk, ok),
        }
    }

    /// Gives back what was set up; `agreed` if the peer knows that it must not write to the element.
    pub(super) fn give_up(self: &Arc<Self>, draft: &mut Draft, agreed: bool) {
        self.stop_waiting(draft);
        let draft = core::mem::take(draft);
        let Some((group, first)) = draft.group else {
            return;
        };
        group.give_back(Buffers {
            element: draft.element,
            element_is_quiet: agreed,
            ring: draft.ring,
            ring_is_quiet: true,
        });
        if let Some(token) = draft.token {
            group.cancel_connection(token);
        }
        if first {
            group.abandon(agreed);
        }
    }
}

/// The peer uses a connection that cannot be made here: it is told so over a link that has room for the one message that there
/// is of it, since the end of TCP may mean nothing to it. Process context.
fn tell_of_abort(draft: &Draft, peer: &Peer) {
    let (Some((group, _)), Some(token)) = (&draft.group, draft.token) else {
        return;
    };
    let abort = Cdc {
        seq: 1,
        token: peer.element.alert,
        state_flags: StateFlags {
            aborted: true,
            ..StateFlags::default()
        },
        ..Cdc::default()
    };
    let message = abort.emit();
    // Its completion finds no connection of that name.
    let chain = Chain {
        class: Class::Data,
        ..Chain::control(&message, Cookie::data(token, 0).into())
    };
    let sent = |link: &Arc<Link>| link.post(&chain).is_ok();
    // Nothing may come before CONFIRM LINK on one that is being added.
    let _sent = draft.link.as_ref().is_some_and(sent)
        || group
            .links()
            .any(|link| group.is_link_up(&link) && sent(&link));
}

/// The link of a new connection, and where the peer's buffer is on it: the link that CLC has `named`, as a rule (a
/// client may choose another one than its server, RFC 7609 section 3.5.2.3), or another one if that has gone
/// since. `None` if there is none left. Process context.
fn way(
    group: &Group,
    named: Option<KeyedLink>,
    place: PeerElement,
    peer: &Peer,
    ring: &mut PooledRing,
) -> Option<(Arc<Link>, u64, RKey)> {
    let mut tried = LinkSet::default();
    let mut next = named;
    loop {
        let (link, token) = match next.take() {
            Some(next) => next,
            None => group.refuge(&place, tried)?,
        };
        tried.add(link.place);
        let element = Element {
            token,
            ..peer.element
        };
        if let (Some(address), Ok(())) = (element.address(), ring.map_for(&link)) {
            return Some((link, address, token.rkey));
        }
    }
}
