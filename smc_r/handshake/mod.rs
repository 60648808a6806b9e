// SPDX-License-Identifier: GPL-2.0

//! Driver of the rendezvous of one connection.
//!
//! A [`Handshake`] runs in a work item that is queued whenever something happens: the TCP
//! connection comes up, has bytes or ends; the link group has news; the deadline passes. Each run
//! does what can be done now and returns. Nothing is held while the peer thinks, and each
//! rendezvous has its own deadline.
//!
//! * This file: the work item, and the traffic of the core's machine over TCP.
//! * [`contact`]: link group, queue pair and buffers for the connection.
//! * [`outcome`]: what becomes of the socket in the end.

mod contact;
mod last_words;
mod outcome;

pub(crate) use last_words::LastWords;

use core::ops::ControlFlow;

use kapi::{
    completion::Completion,
    errno::ECONNABORTED,
    new_delayed_work,
    new_spinlock_bh,
    sock::state as tcp_state,
    spinlock_bh::SpinLockBh,
    tcp::{TcpSock, TcpSocket},
    workqueue::{self, DelayedWork}, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::{Acquire, Atomic, Full, Release},
        Arc,
        Mutex, //
    },
};
use smc_proto::{
    clc::AcceptV2,
    handshake::{
        Action,
        Client,
        Failure,
        LinkRefusal,
        LinkResult,
        Rendezvous,
        Server,
        Waiting, //
    },
    timer::{HandshakeTiming, Millis, Time},
    wire::Diagnosis, //
};

use crate::{
    clock::{ms_until, now},
    conn::Room,
    group::{
        ConnToken,
        FirstContact,
        Group,
        GroupRmb,
        OwnElement,
        PooledRing, //
    },
    link::{Link, Seat},
    path::{self, Offered},
    peers::Key,
    socket::{Listener, Phase, SocketRef},
    stats::Side,
};

/// Bytes read from TCP at a time.
const READ_LEN: usize = 256;

/// How often TCP may tell an error during a rendezvous, and go on.
const MAX_NEWS: u8 = 16;

/// How long whoever closes a listener waits for the Confirm of a client that may have sent it, or the end of its first contact:
/// long enough for a message that is lost on the way more than once and sent again, or a host that has much to do.
pub(crate) const LAST_WORD: Millis = 2_000;

/// A connection on its way.
#[pin_data]
pub(crate) struct Handshake {
    sk: SocketRef,
    tcp: Arc<TcpSocket>,
    /// Who waits for the outcome on the server's side.
    listener: Option<Arc<Listener>>,
    /// Why the connection may not use SMC, if it was decided beforehand.
    refusal: Option<Diagnosis>,
    /// Our SYN carries the option; always true of a server, whose client has sent it as well.
    smc: bool,
    /// Somebody decides what follows TCP's own handshake: the work item, who cancels, or the event.
    /// See [`Handshake::claim`].
    claimed: Atomic<u32>,
    /// TCP has told that its state has changed. A client knows what is negotiated only then: the sock is established some
    /// moments before it has looked at the answer.
    told: Atomic<u32>,
    /// A group that we wait for has something new, which nobody has looked at yet.
    news: Atomic<u32>,
    #[pin]
    state: Mutex<State>,
    /// How the LLC exchange of a first contact ended.
    #[pin]
    link_result: SpinLockBh<Option<LinkResult>>,
    /// What [`Handshake::dismiss`] has asked for is here, or cannot be expected.
    #[pin]
    heard_out: Completion,
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
    Tcp,
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
    /// TCP has told us an error, which it does once: its end, or news of the way to the peer, which a program may have asked
    /// for (`IP_RECVERR`).
    error: Option<Error>,
    /// How many of these there were.
    errors: u8,
    /// When the rendezvous began.
    since: Time,
    /// With whom: TCP does not tell any more once it is reset.
    peer: Option<Key>,
    /// Nobody will ever have the connection, and somebody waits to end it until the peer has said this.
    last_word: Option<LastWord>,
}

/// What whoever closes a listener waits for: the Confirm of a client in this group, or the end of the group's first contact.
struct LastWord {
    group: Arc<Group>,
    waiting: Waiting,
}

impl State {
    /// Whether the peer may use the connection already, though it is not decided here.
    fn may_be_in_use(&self) -> bool {
        self.unsaid().is_some()
    }

    /// What the peer has yet to say if it may use the connection already.
    fn unsaid(&self) -> Option<Waiting> {
        if matches!(&self.draft.group, Some((group, true)) if group.may_be_in_use()) {
            return Some(Waiting::Link);
        }
        self.machine.may_be_in_use().then_some(Waiting::Confirm)
    }

    /// The same, and of whom.
    fn last_word_to_come(&self) -> Option<LastWord> {
        let (group, _) = self.draft.group.as_ref()?;
        Some(LastWord {
            waiting: self.unsaid()?,
            group: group.clone(),
        })
    }

    /// Whether the link of our first contact is up, which may not have been told here yet.
    fn is_link_up(&self) -> bool {
        matches!(&self.draft.group, Some((group, true)) if group.is_usable())
    }

    /// Whether TCP has taken a part of a message and no more: nothing else can follow that.
    fn is_stuck(&self) -> bool {
        self.outgoing.is_some_and(|done| done != 0)
    }

    /// Whether our own port works, and has all the time, if a link group was chosen.
    fn is_sound(&self) -> bool {
        let group = self.draft.group.as_ref();
        group.is_none_or(|(group, _)| group.is_sound())
    }
}

/// What has been set up for a connection that is not decided yet. Owned by the rendezvous until it
/// becomes a [`Connection`] or is given back.
#[derive(Default)]
struct Draft {
    /// Client: the ports that were offered.
    offered: Offered,
    /// What we say of version 2, if that was chosen.
    v2: Option<AcceptV2>,
    /// The group, and whether it is this connection's first contact.
    group: Option<(Arc<Group>, bool)>,
    link: Option<Arc<Link>>,
    /// Server: counts the connection among those of the link that was chosen for it.
    seat: Option<Seat>,
    token: Option<ConnToken>,
    element: Option<OwnElement>,
    ring: Option<PooledRing>,
    /// Where the connection will be: once the peer uses it, it is too late to be short of memory.
    room: Option<Room>,
    /// Counts this first contact among those that are under way.
    first_contact: Option<FirstContact>,
    /// The group that wakes us when it has news.
    waits: Option<Arc<Group>>,
    /// The RMB whose announcement we wait for.
    pending: Option<Arc<GroupRmb>>,
}

impl Handshake {
    /// The client's rendezvous, to be started by [`Handshake::kick`]. `offered`: our SYN carries
    /// the option. `refusal`: see [`crate::rules`] and [`crate::peers`].
    pub(crate) fn client(
        sk: SocketRef,
        tcp: Arc<TcpSocket>,
        offered: bool,
        refusal: Option<Diagnosis>,
    ) -> Result<Arc<Self>> {
        Self::new(sk, tcp, None, offered, refusal)
    }

    /// The server's rendezvous on a connection that was just accepted, and on which both sides have
    /// sent the option. `refusal`: as for a client.
    pub(crate) fn server(
        sk: SocketRef,
        tcp: Arc<TcpSocket>,
        listener: Arc<Listener>,
        refusal: Option<Diagnosis>,
    ) -> Result<Arc<Self>> {
        Self::new(sk, tcp, Some(listener), true, refusal)
    }

    fn new(
        sk: SocketRef,
        tcp: Arc<TcpSocket>,
        listener: Option<Arc<Listener>>,
        smc: bool,
        refusal: Option<Diagnosis>,
    ) -> Result<Arc<Self>> {
        let is_client = listener.is_none();
        Arc::pin_init(
            try_pin_init!(Self {
                sk,
                tcp,
                listener,
                refusal,
                smc,
                claimed: Atomic::new(0),
                // A child was established before it was accepted.
                told: Atomic::new(u32::from(!is_client)),
                news: Atomic::new(0),
                state <- new_mutex!(
                    State {
                        machine: Machine::Tcp,
                        draft: Draft::default(),
                        choosing: false,
                        outgoing: None,
                        error: None,
                        errors: 0,
                        since: now(),
                        peer: None,
                        last_word: None,
                    },
                    "smc_handshake_state"
                ),
                link_result <- new_spinlock_bh!(None, "smc_link_result"),
                heard_out <- Completion::new(),
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
        self.work.rearm(self.sk.ns.socket_queue(), self.clone(), 0);
    }

    /// A group that we wait for has something new. Any context up to softirq.
    pub(crate) fn group_news(self: &Arc<Self>) {
        self.news.store(1, Release);
        self.kick();
    }

    /// The LLC exchange of our first contact ended.
    pub(crate) fn link_decided(self: &Arc<Self>, result: LinkResult) {
        *self.link_result.lock() = Some(result);
        self.kick();
    }

    /// The program has closed the socket: nothing is installed in it after this, but perhaps by this, as the phase tells
    /// then. The socket lock is held; the work item takes none of these.
    pub(crate) fn cancel(self: &Arc<Self>) {
        self.end(&mut self.state.lock());
        // Nothing is left that would keep the inner socket, and its port, beyond the outer one.
        self.work.cancel_sync();
    }

    /// Goes no further, if nothing is decided yet.
    fn end(self: &Arc<Self>, state: &mut State) {
        if matches!(state.machine, Machine::Tcp) && !self.claim() {
            // Decided by an event, which may be at it still: with the lock of its socket held.
            self.tcp.locked(|| state.machine = Machine::Over);
        }
        let last_word = state.last_word.take();
        self.settle_first_contact(state);
        if !matches!(state.machine, Machine::Over) {
            if let Some(word) = last_word {
                self.last_words(&word).missed();
                let stats = &self.sk.ns.stats;
                stats.handshake_failed(self.side(), Failure::TimedOut(word.waiting));
            }
            self.note_impatience(state);
            state.machine = Machine::Over;
            self.give_up(&mut state.draft, false);
        }
    }

    /// A first contact is given up, unless its link is confirmed, which may not have been told here yet: the peer may use the
    /// connection by then, and has to be told of its end over the link. So there is one.
    fn settle_first_contact(self: &Arc<Self>, state: &mut State) {
        let Some((group, first @ true)) = &mut state.draft.group else {
            return;
        };
        if group.settle() {
            *first = false;
            return;
        }
        let Some(machine) = state.machine.rendezvous() else {
            return;
        };
        if machine.handle_link(LinkResult::Up, now()).is_ok() {
            // Whether data would have gone over it, nobody knows.
            state.peer = None;
            let _ = self.act(state);
        }
    }

    /// Server: the listener is closed, and nobody will ever have the connection. Goes no further, unless the client may use
    /// it already: that one has to be told over the link, once we know what it calls the connection and that the link is
    /// up. True then, and [`Handshake::hear_out`] waits for that. Process context.
    pub(crate) fn dismiss(self: &Arc<Self>) -> bool {
        let mut state = self.state.lock();
        state.last_word = state
            .last_word_to_come()
            .filter(|word| self.last_words(word).come());
        let waits = state.last_word.is_some();
        if !waits {
            self.end(&mut state);
            // If it was settled, nobody will find it any more to do so.
            self.work.cancel();
        }
        waits
    }

    /// Waits for what [`Handshake::dismiss`] has asked for, until then at the latest. Sleeps, and takes no notice of signals:
    /// a program whose listener is closed has been killed, as a rule. No lock may be held.
    pub(crate) fn hear_out(&self, until: Time) {
        self.heard_out.wait(ms_until(until));
        let state = self.state.lock();
        let failed =
            matches!(state.machine, Machine::Over) && self.sk.phase() != Phase::Accelerated;
        // A client may go just before it is given up.
        if failed && now().after(LAST_WORD / 2) >= until {
            if let Some(word) = &state.last_word {
                self.last_words(word).missed();
            }
        }
    }

    /// Those of clients like this one. Once one is missed is enough: whoever ends has other listeners, perhaps.
    fn last_words<'a>(&'a self, word: &'a LastWord) -> &'a LastWords {
        match word.waiting {
            Waiting::Link => &self.sk.ns.last_words,
            _ => &word.group.last_words,
        }
    }

    /// The state of TCP has changed. The inner socket is locked; softirq.
    pub(crate) fn tcp_changed(self: &Arc<Self>, tcp: &TcpSock) {
        self.told.store(1, Release);
        if !self.fell_back_at_once(tcp) {
            self.kick();
        }
    }

    /// Whether the caller is the one to decide what follows TCP's own handshake. Once yes, for one.
    fn claim(&self) -> bool {
        self.claimed.cmpxchg(0, 1, Full).is_ok()
    }

    /// Looks at what has happened. Process context; the socket lock may be held, and the work item takes
    /// its turn.
    pub(crate) fn run(self: &Arc<Self>) {
        let mut state = self.state.lock();
        let deadline = loop {
            if matches!(state.machine, Machine::Tcp) {
                if self.tcp_decided(&mut state).is_break() {
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
        if state.last_word.is_some() && !state.may_be_in_use() {
            self.heard_out.complete();
        }
        if let Some(deadline) = deadline {
            self.work
                .enqueue_after(self.sk.ns.socket_queue(), self.clone(), ms_until(deadline));
        }
    }

    /// Looks at TCP: is it connected, and does SMC follow? Breaks if there is nothing more to do.
    fn tcp_decided(self: &Arc<Self>, state: &mut State) -> ControlFlow<()> {
        let tcp = self.tcp.state();
        if matches!(tcp, tcp_state::SYN_SENT | tcp_state::SYN_RECV) {
            return ControlFlow::Break(());
        }
        // An event is about to say more. (The end of an attempt is told in other ways as well.)
        if tcp != tcp_state::CLOSE && self.told.load(Acquire) == 0 {
            return ControlFlow::Break(());
        }
        if !self.claim() {
            // An event was faster, and does the rest.
            state.machine = Machine::Over;
            return ControlFlow::Break(());
        }
        if tcp == tcp_state::CLOSE {
            let error = self.tcp.take_err().err().unwrap_or(ECONNABORTED);
            self.failed(state, error);
            return ControlFlow::Break(());
        }
        if !self.is_negotiated() {
            self.fell_back(state, self.no_smc_reason(), None);
            return ControlFlow::Break(());
        }
        match self.start(state) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                self.failed(state, error);
                ControlFlow::Break(())
            }
        }
    }

    /// Starts the rendezvous.
    fn start(&self, state: &mut State) -> Result {
        state.since = now();
        state.peer = self.key();
        if self.listener.is_some() {
            state.machine = Machine::Server(self.new_server()?);
            return Ok(());
        }
        let mut client = self.new_client()?;
        self.propose(&mut client, &mut state.draft.offered);
        state.machine = Machine::Client(client);
        Ok(())
    }

    // The following are apart from the rest, so that the stack holds no room for machines and messages
    // while queue pairs are made, which goes deep.

    #[inline(never)]
    fn new_server(&self) -> Result<KBox<Server>> {
        let room = KBox::new_uninit(GFP_KERNEL)?;
        let own = self.sk.ns.peer_id();
        Ok(KBox::write(
            room,
            Server::new(own, HandshakeTiming::DEFAULT, now()),
        ))
    }

    #[inline(never)]
    fn new_client(&self) -> Result<KBox<Client>> {
        let room = KBox::new_uninit(GFP_KERNEL)?;
        let own = self.sk.ns.peer_id();
        Ok(KBox::write(
            room,
            Client::new(own, HandshakeTiming::DEFAULT),
        ))
    }

    /// Client: what it offers, or that it cannot.
    #[inline(never)]
    fn propose(&self, client: &mut Client, offered: &mut Offered) {
        let proposal = if self.is_denied() {
            Err(Diagnosis::CONFIGURATION)
        } else {
            path::proposal(&self.sk, &self.tcp, client.own(), offered)
        };
        // Neither can be late: the machine is new.
        let _ = match proposal {
            Ok(proposal) => client.propose(&proposal, now()),
            Err(reason) => client.decline(reason),
        };
    }

    /// Client: whether a rule denies SMC with this peer. The address that the program gave was looked at before; a BPF program of
    /// its control group may have chosen another one. Sleeps.
    fn is_denied(&self) -> bool {
        let (peer, port) = self.tcp.peer();
        let rules = &self.sk.ns.rules;
        !rules.allow(&self.sk, Side::Client, Some(peer), port)
    }

    /// Whether both sides have sent the option. Any context, once TCP has told that it is connected.
    fn is_negotiated(&self) -> bool {
        // A child was asked when it was accepted.
        self.smc && (self.listener.is_some() || self.tcp.option_negotiated())
    }

    /// Client: why a connection without the option on both sides is plain TCP. Any context.
    fn no_smc_reason(&self) -> Diagnosis {
        if let Some(reason) = self.refusal {
            reason
        } else if self.smc || self.sk.ns.offers_smc() {
            Diagnosis::PEER_NOT_CAPABLE
        } else {
            Diagnosis::NO_SMC_R_DEVICE
        }
    }

    /// Gives the machine everything there is and does what it wants. Breaks when there is nothing
    /// more to do now.
    fn feed(self: &Arc<Self>, state: &mut State) -> ControlFlow<()> {
        let result = self.link_result.lock().take();
        let result = result.map(|result| self.seen_from_here(state, result));
        // Before the end of TCP is looked at, and the time: the peer may use the connection.
        let result = result.or(state.is_link_up().then_some(LinkResult::Up));
        if let Some(result) = result {
            Self::link_over(state, result);
        }
        let Some(machine) = state.machine.rendezvous() else {
            return ControlFlow::Break(());
        };
        // Not for what comes over TCP: a peer may send that byte by byte.
        if state.choosing && !machine.is_over() && self.news.xchg(0, Acquire) != 0 {
            self.contact(state);
        }
        if self.act(state).is_continue() && self.read(state).is_continue() {
            return self.act(state);
        }
        // Last: what has come in time counts, however late we are, and whatever came behind it.
        let (is_cut, is_stuck) = (self.is_cut(), state.is_stuck());
        if let Some(machine) = state.machine.rendezvous() {
            let is_late = machine.next_deadline().is_some_and(|at| at <= now());
            if is_cut || is_late && is_stuck {
                machine.handle_reset();
            }
            machine.handle_timeout(now());
            if is_late {
                // TCP has taken nothing of it, and it is of no use any more.
                state.outgoing = None;
            }
        }
        let _ = self.act(state);
        ControlFlow::Break(())
    }

    /// The LLC exchange of our first contact has ended.
    fn link_over(state: &mut State, result: LinkResult) {
        let (failed, is_stuck) = (matches!(result, LinkResult::Failed(_)), state.is_stuck());
        let Some(machine) = state.machine.rendezvous() else {
            return;
        };
        if failed && is_stuck {
            // A Decline would follow.
            machine.handle_reset();
        } else if machine.handle_link(result, now()).is_ok() && failed {
            // A Confirm that TCP has taken nothing of is of no use any more. (Late, the machine has given the link up, and
            // so has the draft.)
            state.outgoing = None;
        }
    }

    /// A link that carried nothing because of our own port says nothing about the peer, and neither
    /// side is to hold it against the other.
    fn seen_from_here(&self, state: &State, result: LinkResult) -> LinkResult {
        match result {
            LinkResult::Failed(refusal)
                if refusal.diagnosis == Diagnosis::TIMEOUT_CONFIRM_LINK && !state.is_sound() =>
            {
                LinkResult::Failed(LinkRefusal {
                    diagnosis: Diagnosis::NO_ACTIVE_LINK,
                    ..refusal
                })
            }
            other => other,
        }
    }

    /// Whether TCP was reset, or failed. What it has received before that stays readable.
    fn is_cut(&self) -> bool {
        self.tcp.state() == tcp_state::CLOSE
    }

    /// TCP has told an error. Breaks if that is its end.
    fn note_error(&self, state: &mut State, error: Error) -> ControlFlow<()> {
        state.error = Some(error);
        state.errors = state.errors.saturating_add(1);
        if state.errors > MAX_NEWS {
            self.tcp.abort(error);
        }
        if self.is_cut() {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    /// Reads what has come, if the machine wants any. Breaks if there is nothing.
    #[inline(never)]
    fn read(&self, state: &mut State) -> ControlFlow<()> {
        // What ended TCP is told once: if the connection goes on as TCP, the program is to get it.
        if self.is_cut() && self.tcp.inq() == 0 {
            return ControlFlow::Break(());
        }
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
            Err(error) => return self.note_error(state, error),
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
                Action::StartLink(peer) => self.start_link(state, &peer),
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
        while let (Some(done), Some(machine)) = (state.outgoing, state.machine.rendezvous()) {
            let rest = machine.outgoing().get(done..).unwrap_or(&[]);
            // The peer may have said why before it went.
            if rest.is_empty() || self.is_cut() {
                state.outgoing = None;
                break;
            }
            match self.tcp.send(rest) {
                Ok(n) if n == rest.len() => state.outgoing = None,
                Ok(n) => {
                    state.outgoing = Some(done.saturating_add(n));
                    return ControlFlow::Break(());
                }
                Err(error) if error == EAGAIN => return ControlFlow::Break(()),
                Err(error) => {
                    let _ = self.note_error(state, error);
                }
            }
        }
        ControlFlow::Continue(())
    }
}

impl Machine {
    /// See [`Server::may_be_in_use`].
    fn may_be_in_use(&self) -> bool {
        matches!(self, Self::Server(server) if server.may_be_in_use())
    }

    fn rendezvous(&mut self) -> Option<&mut dyn Rendezvous> {
        match self {
            Self::Client(client) => Some(&mut **client),
            Self::Server(server) => Some(&mut **server),
            Self::Tcp | Self::Over => None,
        }
    }
}
