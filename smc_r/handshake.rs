// SPDX-License-Identifier: GPL-2.0

//! Driver of the rendezvous of one connection.
//!
//! A [`Handshake`] runs in a work item that is queued whenever something happens: the TCP
//! connection comes up, has bytes or ends; the link group has news; the deadline passes. Each run
//! does what can be done now and returns. Nothing is held while the peer thinks, and each
//! rendezvous has its own deadline.

use core::ops::ControlFlow;

use kapi::{
    errno::{
        ECONNABORTED,
        ECONNRESET,
        ENOTCONN,
        EPROTO, //
    },
    new_delayed_work,
    new_spinlock_bh,
    sock::state as tcp_state,
    spinlock_bh::SpinLockBh,
    tcp::{Stage, TcpSocket},
    util::now_ms,
    workqueue::{self, DelayedWork}, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::Relaxed,
        Arc,
        Mutex, //
    },
};
use smc_proto::{
    conn::{Conn, Params},
    group::{Element, LinkEnd, Role},
    handshake::{
        Action,
        Client,
        Contact,
        Errno,
        Failure,
        Fallback,
        LinkResult,
        Local,
        Peer,
        Rendezvous,
        Server, //
    },
    llc_flow::ShutDown,
    timer::{HandshakeTiming, Time},
    wire::{Diagnosis, RmbeSize}, //
};

use crate::{
    conn::{self, Connection, Parts, PeerBuffer},
    device::Path,
    group::{
        Buffers,
        ConnToken,
        FirstContact,
        Group,
        GroupRmb,
        Known,
        OwnElement,
        PooledRing,
        ServerChoice,
        Taken, //
    },
    link::Link,
    path,
    shown::Shown,
    socket::{sk_state, Listener, Phase, SocketRef},
    stats::Side,
};

/// Bytes read from TCP at a time.
const READ_LEN: usize = 256;

/// A connection on its way.
#[pin_data]
pub(crate) struct Handshake {
    sk: SocketRef,
    tcp: Arc<TcpSocket>,
    /// Who waits for the outcome on the server's side.
    listener: Option<Arc<Listener>>,
    #[pin]
    state: Mutex<State>,
    /// How the LLC exchange of a first contact ended.
    #[pin]
    link_result: SpinLockBh<Option<LinkResult>>,
    #[pin]
    work: DelayedWork<Arc<Handshake>, Run>,
}

/// Tag type: the work item of a rendezvous.
struct Run;

impl workqueue::Handler<Arc<Handshake>> for Run {
    fn run(handshake: Arc<Handshake>) {
        handshake.run();
    }
}

/// Where the rendezvous is.
enum Machine {
    /// TCP is not connected yet, or it is not decided what follows.
    Tcp {
        smc: bool,
    },
    Client(KBox<Client>),
    Server(KBox<Server>),
    Over,
}

struct State {
    machine: Machine,
    /// Everything set up so far for the connection.
    draft: Draft,
    /// The answer to [`Action::Contact`] is due.
    choosing: bool,
    /// Bytes of the outgoing message that TCP has taken; `None` if there is none.
    outgoing: Option<usize>,
}

/// What has been set up for a connection that is not decided yet. Owned by the rendezvous until it
/// becomes a [`Connection`] or is given back.
#[derive(Default)]
struct Draft {
    path: Option<Path>,
    /// The group, and whether it is this connection's first contact.
    group: Option<(Arc<Group>, bool)>,
    link: Option<Arc<Link>>,
    token: Option<ConnToken>,
    element: Option<OwnElement>,
    ring: Option<PooledRing>,
    /// Counts this first contact among those that are under way.
    first_contact: Option<FirstContact>,
    /// The peer's end of a link that was made for this connection.
    peer_link: Option<LinkEnd>,
    /// The group that wakes us when it has news.
    waits: Option<Arc<Group>>,
    /// The RMB whose announcement we wait for.
    pending: Option<Arc<GroupRmb>>,
}

impl Handshake {
    /// The client's rendezvous, to be started by [`Handshake::kick`]. `offered`: our SYN carries
    /// the option.
    pub(crate) fn client(sk: SocketRef, tcp: Arc<TcpSocket>, offered: bool) -> Result<Arc<Self>> {
        Self::new(sk, tcp, None, offered)
    }

    /// The server's rendezvous on a connection that was just accepted. `negotiated`: both sides
    /// sent the option.
    pub(crate) fn server(
        sk: SocketRef,
        tcp: Arc<TcpSocket>,
        listener: Arc<Listener>,
        negotiated: bool,
    ) -> Result<Arc<Self>> {
        Self::new(sk, tcp, Some(listener), negotiated)
    }

    fn new(
        sk: SocketRef,
        tcp: Arc<TcpSocket>,
        listener: Option<Arc<Listener>>,
        smc: bool,
    ) -> Result<Arc<Self>> {
        Arc::pin_init(
            try_pin_init!(Self {
                sk,
                tcp,
                listener,
                state <- new_mutex!(
                    State {
                        machine: Machine::Tcp { smc },
                        draft: Draft::default(),
                        choosing: false,
                        outgoing: None,
                    },
                    "smc_handshake_state"
                ),
                link_result <- new_spinlock_bh!(None, "smc_link_result"),
                work <- new_delayed_work!("smc_handshake"),
            }),
            GFP_KERNEL,
        )
    }

    fn side(&self) -> Side {
        match self.listener {
            Some(_) => Side::Server,
            None => Side::Client,
        }
    }

    /// Something happened. Any context up to softirq.
    pub(crate) fn kick(self: &Arc<Self>) {
        self.work.rearm(self.sk.ns.queue(), self.clone(), 0);
    }

    /// The LLC exchange of our first contact ended.
    pub(crate) fn link_decided(self: &Arc<Self>, result: LinkResult) {
        *self.link_result.lock() = Some(result);
        self.kick();
    }

    /// The program has closed the socket: nothing is installed in it after this. The socket lock
    /// is held.
    pub(crate) fn cancel(self: &Arc<Self>) {
        let mut state = self.state.lock();
        if !matches!(state.machine, Machine::Over) {
            state.machine = Machine::Over;
            self.give_up(&mut state.draft, false);
        }
    }

    fn run(self: &Arc<Self>) {
        let mut state = self.state.lock();
        let deadline = loop {
            if let Machine::Tcp { smc } = state.machine {
                if self.tcp_decided(&mut state, smc).is_break() {
                    return;
                }
            }
            if self.feed(&mut state).is_break() {
                break state
                    .machine
                    .rendezvous()
                    .and_then(|machine| machine.next_deadline());
            }
        };
        if let Some(deadline) = deadline {
            let ms = u32::try_from(deadline.since(now())).unwrap_or(u32::MAX);
            self.work
                .enqueue_after(self.sk.ns.queue(), self.clone(), ms);
        }
    }

    /// Looks at TCP: is it connected, and does SMC follow? Breaks if there is nothing more to do.
    fn tcp_decided(self: &Arc<Self>, state: &mut State, smc: bool) -> ControlFlow<()> {
        match self.tcp.state() {
            tcp_state::SYN_SENT | tcp_state::SYN_RECV => return ControlFlow::Break(()),
            // TCP hands out such a connection, with what it has received and its error.
            tcp_state::CLOSE if self.listener.is_some() && !smc => {}
            tcp_state::CLOSE => {
                let error = self.tcp.take_err().err().unwrap_or(ECONNABORTED);
                self.failed(state, error);
                return ControlFlow::Break(());
            }
            _ => {}
        }
        if !smc || !self.negotiated() {
            let reason = if smc || self.listener.is_some() || self.sk.ns.offers_smc() {
                Diagnosis::PEER_NOT_CAPABLE
            } else {
                Diagnosis::NO_SMC_R_DEVICE
            };
            self.fell_back(state, reason, None);
            return ControlFlow::Break(());
        }
        let own = self.sk.ns.peer_id();
        let timing = HandshakeTiming::DEFAULT;
        if self.listener.is_some() {
            match KBox::new(Server::new(own, timing, now()), GFP_KERNEL) {
                Ok(server) => state.machine = Machine::Server(server),
                Err(_) => {
                    self.failed(state, ENOMEM);
                    return ControlFlow::Break(());
                }
            }
        } else {
            let Ok(mut client) = KBox::new(Client::new(own, timing), GFP_KERNEL) else {
                self.failed(state, ENOMEM);
                return ControlFlow::Break(());
            };
            // Neither can be late: the machine is new.
            let _ = match path::proposal(&self.sk, &self.tcp, own) {
                Ok((proposal, path)) => {
                    state.draft.path = Some(path);
                    client.propose(&proposal, now())
                }
                Err(reason) => client.decline(reason),
            };
            state.machine = Machine::Client(client);
        }
        ControlFlow::Continue(())
    }

    fn negotiated(&self) -> bool {
        // A child was asked when it was accepted.
        self.listener.is_some() || self.tcp.option_negotiated()
    }

    /// Gives the machine everything there is and does what it wants. Breaks when there is nothing
    /// more to do now.
    fn feed(self: &Arc<Self>, state: &mut State) -> ControlFlow<()> {
        let Some(machine) = state.machine.rendezvous() else {
            return ControlFlow::Break(());
        };
        if self.tcp.err() != 0 || self.tcp.state() == tcp_state::CLOSE {
            machine.handle_reset();
        }
        let result = self.link_result.lock().take();
        if let Some(result) = result {
            // Late: the machine has given the link up, and so has the draft.
            let _ = machine.handle_link(result, now());
        }
        if state.choosing && !machine.is_over() {
            self.contact(state);
        }
        if self.act(state).is_continue() && self.read(state).is_continue() {
            return self.act(state);
        }
        // Last: what has come in time counts, however late we are.
        if let Some(machine) = state.machine.rendezvous() {
            let was_over = machine.is_over();
            machine.handle_timeout(now());
            if !was_over && machine.is_over() {
                // It took too long to get a message off. Nothing can follow a part of one.
                if state.outgoing.take().is_some_and(|done| done != 0) {
                    machine.handle_reset();
                }
            }
        }
        let _ = self.act(state);
        ControlFlow::Break(())
    }

    /// Reads what has come, if the machine wants any. Breaks if there is nothing.
    fn read(&self, state: &mut State) -> ControlFlow<()> {
        let Some(machine) = state.machine.rendezvous() else {
            return ControlFlow::Break(());
        };
        let mut buffer = [0; READ_LEN];
        let want = machine.want().min(READ_LEN);
        let Some(buffer) = buffer.get_mut(..want).filter(|buffer| !buffer.is_empty()) else {
            return ControlFlow::Break(());
        };
        match self.tcp.recv(buffer) {
            Ok(0) => machine.handle_eof(),
            Ok(n) => machine.handle_bytes(buffer.get(..n).unwrap_or(&[]), now()),
            Err(error) if error == EAGAIN => return ControlFlow::Break(()),
            Err(_) => machine.handle_reset(),
        }
        ControlFlow::Continue(())
    }

    /// Carries out what the machine wants. Breaks when it is over, or has to wait.
    fn act(self: &Arc<Self>, state: &mut State) -> ControlFlow<()> {
        loop {
            self.write(state)?;
            let Some(machine) = state.machine.rendezvous() else {
                return ControlFlow::Break(());
            };
            let Some(action) = machine.poll() else {
                return ControlFlow::Continue(());
            };
            match action {
                Action::Contact => {
                    state.choosing = true;
                    self.contact(state);
                }
                Action::Send => state.outgoing = Some(0),
                Action::ConnectLink(peer) => self.connect_link(state, &peer),
                Action::StartLink => self.start_link(state),
                Action::Established(peer) => {
                    self.established(state, &peer);
                    return ControlFlow::Break(());
                }
                Action::Fallback(fallback) => {
                    self.decided_tcp(state, &fallback);
                    return ControlFlow::Break(());
                }
                Action::Fail(failure) => {
                    self.decided_failure(state, failure);
                    return ControlFlow::Break(());
                }
            }
        }
    }

    /// Sends the outgoing message, or the rest of it. Breaks if TCP takes no more now.
    fn write(&self, state: &mut State) -> ControlFlow<()> {
        let (Some(done), Some(machine)) = (state.outgoing, state.machine.rendezvous()) else {
            return ControlFlow::Continue(());
        };
        let rest = machine.outgoing().get(done..).unwrap_or(&[]);
        if rest.is_empty() {
            state.outgoing = None;
            return ControlFlow::Continue(());
        }
        match self.tcp.send(rest) {
            Ok(n) if n == rest.len() => state.outgoing = None,
            Ok(n) => {
                state.outgoing = Some(done + n);
                return ControlFlow::Break(());
            }
            Err(error) if error == EAGAIN => return ControlFlow::Break(()),
            Err(_) => {
                state.outgoing = None;
                machine.handle_reset();
            }
        }
        ControlFlow::Continue(())
    }

    /// Finds or makes the link group, and everything else that the CLC message names, unless
    /// somebody else has to do something first.
    fn contact(self: &Arc<Self>, state: &mut State) {
        let answer = match &state.machine {
            Machine::Client(client) => match client.offer().copied() {
                Some(offer) => self.choose_client(&mut state.draft, &offer),
                None => Some(Contact::Wait),
            },
            Machine::Server(server) => {
                if state.draft.group.is_none() {
                    self.choose_server(&mut state.draft, server)
                } else {
                    self.equip(&mut state.draft)
                }
            }
            Machine::Tcp { .. } | Machine::Over => None,
        };
        // Without an answer we are woken when there may be one.
        let Some(answer) = answer else {
            return;
        };
        state.choosing = false;
        let late = match &mut state.machine {
            Machine::Client(client) => client.handle_contact(answer, now()).is_err(),
            Machine::Server(server) => server.handle_contact(answer, now()).is_err(),
            Machine::Tcp { .. } | Machine::Over => true,
        };
        if late || !matches!(answer, Contact::First(_) | Contact::Subsequent(_)) {
            self.give_up(&mut state.draft, true);
        }
    }

    fn choose_client(self: &Arc<Self>, draft: &mut Draft, offer: &Peer) -> Option<Contact> {
        if draft.group.is_some() {
            return self.equip(draft);
        }
        let groups = &self.sk.ns.shared.groups;
        let Some(path) = draft.path.clone() else {
            return Some(Contact::Refuse(Diagnosis::NO_SMC_R_DEVICE));
        };
        if offer.first_contact {
            let Ok((group, token)) = groups.create_client(&self.sk.ns, offer.id, &path) else {
                return Some(Contact::Refuse(Diagnosis::MEMORY));
            };
            draft.link = group.first_link();
            draft.token = Some(token);
            draft.group = Some((group.clone(), true));
            if group.connect(&offer.link).is_err() {
                return Some(Contact::Refuse(Diagnosis::READY_LINK));
            }
            let answer = self.equip(draft);
            if let Some(Contact::First(local)) = &answer {
                group.start(self.clone(), local.link, offer.link, None);
            }
            return answer;
        }
        let Some(found) = groups.find_client(&self.sk.ns, offer.id, &offer.link) else {
            return Some(Contact::OutOfSync);
        };
        let Some((group, place)) = found else {
            return Some(Contact::Refuse(Diagnosis::UNKNOWN_LINK));
        };
        let Some(token) = group.add_connection() else {
            return Some(Contact::Refuse(Diagnosis::NO_ACTIVE_LINK));
        };
        draft.link = group.link(place);
        draft.token = Some(token);
        draft.group = Some((group, false));
        self.equip(draft)
    }

    fn choose_server(self: &Arc<Self>, draft: &mut Draft, server: &Server) -> Option<Contact> {
        let Some(proposal) = server.proposal() else {
            return Some(Contact::Refuse(Diagnosis::INTERNAL));
        };
        let (peer, path) = match path::matching(&self.sk, &self.tcp, proposal) {
            Ok(found) => found,
            Err(reason) => return Some(Contact::Refuse(reason)),
        };
        self.stop_waiting(draft);
        let groups = &self.sk.ns.shared.groups;
        match groups.choose_server(&self.sk.ns, proposal.peer_id, peer, &path) {
            Ok(ServerChoice::Subsequent(group, place, token)) => {
                draft.link = group.link(place);
                draft.token = Some(token);
                draft.group = Some((group, false));
            }
            Ok(ServerChoice::First(group, token, first_contact)) => {
                draft.first_contact = Some(first_contact);
                draft.link = group.first_link();
                draft.token = Some(token);
                draft.group = Some((group, true));
            }
            Ok(ServerChoice::Wait(group)) => {
                if self.wait(draft, &group).is_err() {
                    return Some(Contact::Refuse(Diagnosis::MEMORY));
                }
                // It may have been decided in between.
                if group.is_usable() || group.is_over() {
                    self.kick();
                }
                return None;
            }
            Err(_) => return Some(Contact::Refuse(Diagnosis::MEMORY)),
        }
        self.equip(draft)
    }

    /// Gets element and send ring. `None`: wait for the peer's word on a new RMB.
    fn equip(self: &Arc<Self>, draft: &mut Draft) -> Option<Contact> {
        let (Some((group, first)), Some(link), Some(token)) =
            (draft.group.clone(), draft.link.clone(), draft.token)
        else {
            return Some(Contact::Refuse(Diagnosis::NO_ACTIVE_LINK));
        };
        if draft.ring.is_none() {
            match self.ring(&group, &link) {
                Ok(ring) => draft.ring = Some(ring),
                Err(_) => return Some(Contact::Refuse(Diagnosis::MEMORY)),
            }
        }
        if draft.element.is_none() {
            match self.element(&group, first, &link, draft) {
                Ok(Some(element)) => draft.element = Some(element),
                Ok(None) => return None,
                Err(reason) => return Some(Contact::Refuse(reason)),
            }
        }
        let (Some(element), Some(end)) = (&draft.element, link.local()) else {
            return Some(Contact::Refuse(Diagnosis::NO_ACTIVE_LINK));
        };
        // The server's queue pair cannot register before the Confirm has come.
        if first && group.role == Role::Client && element.group_rmb().register().is_err() {
            return Some(Contact::Refuse(Diagnosis::REGISTER_RMB));
        }
        let local = Local {
            link: end.into(),
            element: Element {
                token: element.group_rmb().token(),
                index: element.index(),
                size: element.size(),
                alert: token.into(),
            },
        };
        Some(if first {
            Contact::First(local)
        } else {
            Contact::Subsequent(local)
        })
    }

    fn ring(&self, group: &Group, link: &Link) -> Result<PooledRing> {
        let wanted = if self.sk.sndbuf_locked() {
            self.sk.sndbuf() as u32 / 2
        } else {
            self.sk.ns.wmem()
        };
        let mut size = RmbeSize::for_bytes(wanted).min(RmbeSize::MAX_SEND);
        loop {
            match (group.take_ring(link, size.bytes()), size.smaller()) {
                (Err(_), Some(smaller)) => {
                    self.sk.ns.stats.tx.downgraded();
                    size = smaller;
                }
                (result, _) => return result,
            }
        }
    }

    fn element(
        self: &Arc<Self>,
        group: &Arc<Group>,
        first: bool,
        link: &Link,
        draft: &mut Draft,
    ) -> Result<Option<OwnElement>, Diagnosis> {
        let wanted = if self.sk.rcvbuf_locked() {
            self.sk.rcvbuf() as u32 / 2
        } else {
            self.sk.ns.rmem()
        };
        let size = RmbeSize::for_bytes(wanted).min(RmbeSize::MAX_SEND);
        if first {
            return group
                .first_element(link, size)
                .map(Some)
                .map_err(|_| Diagnosis::MEMORY);
        }
        if draft
            .pending
            .take()
            .is_some_and(|rmb| rmb.known() == Known::Refused)
        {
            return Err(Diagnosis::REGISTER_RMB);
        }
        // Wait first, look then: the news may come in between.
        self.wait(draft, group).map_err(|_| Diagnosis::MEMORY)?;
        let taken = group.take_element(link, size);
        if let Ok(Taken::Pending(rmb)) = taken {
            draft.pending = Some(rmb);
            return Ok(None);
        }
        self.stop_waiting(draft);
        match taken {
            Ok(Taken::Element(element)) => Ok(Some(element)),
            _ => Err(Diagnosis::REGISTER_RMB),
        }
    }

    /// Has the group wake us.
    fn wait(self: &Arc<Self>, draft: &mut Draft, group: &Arc<Group>) -> Result {
        group.wait(self.clone())?;
        draft.waits = Some(group.clone());
        Ok(())
    }

    fn stop_waiting(self: &Arc<Self>, draft: &mut Draft) {
        if let Some(group) = draft.waits.take() {
            group.stop_waiting(self);
        }
    }

    /// Server, first contact: the queue pair goes up, the peer may write to our RMB.
    fn connect_link(&self, state: &mut State, peer: &LinkEnd) {
        state.draft.peer_link = Some(*peer);
        let result = match &state.draft {
            Draft {
                group: Some((group, _)),
                element: Some(element),
                ..
            } => group
                .connect(peer)
                .map_err(|_| Diagnosis::READY_LINK)
                .and_then(|()| {
                    element
                        .group_rmb()
                        .register()
                        .map_err(|_| Diagnosis::REGISTER_RMB)
                }),
            _ => Err(Diagnosis::INTERNAL),
        };
        let Machine::Server(server) = &mut state.machine else {
            return;
        };
        // Late: a Decline has come, and its action follows.
        let _ = match result {
            Ok(()) => server.handle_link_connected(now()),
            Err(reason) => server.handle_link_refused(reason),
        };
    }

    /// Server, first contact: CONFIRM LINK and what follows.
    fn start_link(self: &Arc<Self>, state: &mut State) {
        let (Some((group, _)), Some(local)) = (
            state.draft.group.clone(),
            state.draft.link.as_ref().and_then(|link| link.local()),
        ) else {
            return;
        };
        let Some(peer) = state.draft.peer_link else {
            return;
        };
        // Without a spare queue pair, the offer names the link's own.
        let spare = group.add_spare().ok();
        group.start(self.clone(), local.into(), peer, spare);
    }

    /// The connection is accelerated from here on.
    fn established(self: &Arc<Self>, state: &mut State, peer: &Peer) {
        let was_server = matches!(state.machine, Machine::Server(_));
        state.machine = Machine::Over;
        let connection = match self.build(&mut state.draft, peer, was_server) {
            Ok(connection) => connection,
            Err(error) => {
                self.tcp.abort(error);
                self.failed(state, error);
                return;
            }
        };
        self.sk
            .ns
            .stats
            .established(self.side(), peer.first_contact);
        conn::install(&self.sk, connection);
        self.finished(true);
    }

    fn build(&self, draft: &mut Draft, peer: &Peer, was_server: bool) -> Result<KBox<Connection>> {
        let (group, _) = draft.group.clone().ok_or(EPROTO)?;
        if was_server && !peer.first_contact {
            // The client may have chosen another link than ours (RFC 7609 section 3.5.2.3).
            let place = group.find_link(&peer.link).ok_or(EPROTO)?;
            draft.link = group.link(place);
        }
        let link = draft.link.clone().ok_or(ENOTCONN)?;
        let address = peer.element.address().ok_or(EPROTO)?;
        let (Some(element), Some(ring)) = (&draft.element, &draft.ring) else {
            return Err(ENOTCONN);
        };
        let core = Conn::new(&Params {
            send_ring: u32::try_from(ring.ring.len())?,
            element: element.size().bytes(),
            peer_element: peer.element.size.bytes(),
            base: 0,
            peer_token: peer.element.alert,
            max_transmit: 0,
        })
        .ok_or(EPROTO)?;
        let room = Connection::room()?;
        let place = group.claim(link.place, &peer.element).map_err(|_| EPROTO)?;
        let (Some(token), Some(element), Some(ring)) =
            (draft.token.take(), draft.element.take(), draft.ring.take())
        else {
            group.release_claim(place);
            return Err(ENOTCONN);
        };
        draft.group = None;
        draft.link = None;
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
                    address,
                    rkey: peer.element.token.rkey,
                },
            },
        ))
    }

    fn decided_tcp(self: &Arc<Self>, state: &mut State, fallback: &Fallback) {
        if fallback.out_of_sync {
            if let Some((group, false)) = &state.draft.group {
                group.shut_down(ShutDown::OutOfSync);
            }
        }
        if fallback.may_cross {
            self.sk.may_cross.store(1, Relaxed);
        }
        self.fell_back(state, fallback.reason, fallback.peer_diagnosis);
    }

    /// The connection is plain TCP from here on.
    fn fell_back(self: &Arc<Self>, state: &mut State, reason: Diagnosis, peer: Option<Diagnosis>) {
        state.machine = Machine::Over;
        self.give_up(&mut state.draft, true);
        self.sk.set_fallback(reason, peer);
        self.sk.ns.stats.fallback(self.side(), reason);
        // Options may have been set since the connect began.
        self.tcp.inherit_from(&self.sk, Stage::Traffic);
        self.sk.set_state(sk_state::ACTIVE);
        self.sk.set_phase(Phase::Fallback);
        self.finished(true);
    }

    fn decided_failure(self: &Arc<Self>, state: &mut State, failure: Failure) {
        pr_debug!("smc_r: rendezvous failed: {}\n", Shown(failure));
        let error = match failure.errno() {
            Errno::Protocol => EPROTO,
            Errno::ConnectionReset => ECONNRESET,
            Errno::ConnectionAborted => ECONNABORTED,
            Errno::TimedOut => ETIMEDOUT,
        };
        self.tcp.abort(error);
        self.sk.ns.stats.handshake_failed(self.side());
        self.failed(state, error);
    }

    /// The connection is over before it began.
    fn failed(self: &Arc<Self>, state: &mut State, error: Error) {
        state.machine = Machine::Over;
        self.give_up(&mut state.draft, false);
        self.tcp.detach();
        if self.listener.is_none() {
            // The program may connect again.
            let _ = self.tcp.disconnect();
        }
        self.sk.set_err(error);
        self.sk.set_state(sk_state::INIT);
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
                    self.sk.connected();
                }
                self.sk.wake_state_change();
                if ok {
                    self.sk.wake_writable();
                } else {
                    self.sk.wake_error();
                }
            }
            Some(listener) => listener.decided(&self.sk, ok),
        }
    }

    /// Gives back what was set up; `agreed` if the peer knows that it must not write to the element.
    fn give_up(self: &Arc<Self>, draft: &mut Draft, agreed: bool) {
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
            group.abandon();
        }
    }
}

impl Machine {
    fn rendezvous(&mut self) -> Option<&mut dyn Rendezvous> {
        match self {
            Self::Client(client) => Some(&mut **client),
            Self::Server(server) => Some(&mut **server),
            Self::Tcp { .. } | Self::Over => None,
        }
    }
}

fn now() -> Time {
    Time::from_millis(now_ms())
}
