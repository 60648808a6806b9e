// SPDX-License-Identifier: GPL-2.0

//! Driver of one accelerated connection: carries out what [`Conn`] decides.
//!
//! A [`Connection`] lives in its socket, under the socket's `conn` spin lock (BH). The lock is held
//! while a chain is posted, so that messages leave in the order of their numbers; it is not held
//! while user data is copied, nor while anybody is woken.
//!
//! Three parties come here: system calls (process context, socket lock held), completions and
//! received messages (softirq), and the service work item of the socket (process context), which
//! runs the timers and takes a finished connection apart.
//!
//! * This file: the connection, what happens to it, and its work item.
//! * [`calls`]: what system calls do with it.
//! * [`member`]: what its group does to it.
//! * [`ring`]: its send ring, which comes and goes.
//! * [`figures`]: what they are told about it.

mod calls;
mod figures;
mod member;
mod ring;

use core::mem::MaybeUninit;

use kapi::{
    errno::{
        from_number,
        ECONNABORTED,
        ECONNRESET,
        EPIPE, //
    },
    sock::{state as tcp_state, Sk, RCV_SHUTDOWN, SEND_SHUTDOWN},
    tcp::Settings,
    util::{now_ms, now_real_ns},
    workqueue, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{Acquire, Relaxed},
        Arc, //
    }, //
};
use smc_proto::{
    cdc::Cdc,
    conn::{
        Conn,
        ConnError,
        Diag,
        Events,
        State,
        Ticket,
        Timer,
        Transmit,
        Watch, //
    },
    group::{Element, LinkIx, PeerElement},
    wire::{AlertToken, RKey, RToken, RmbeSize}, //
};

use crate::{
    buffers::{RingMap, SendRing},
    clock::now,
    group::{Buffers, ConnToken, Group, LinkSet, OwnElement, PooledRing, Standing},
    link::{Cookie, Link, Seat},
    shown::Shown,
    socket::{self, sk_state, Phase, SmcSocket, SocketRef},
    stats::InUse,
    transport::{
        Chain,
        Class,
        PostError,
        Target, //
    },
};

pub(crate) use self::calls::{
    abort,
    apply,
    begin_recv,
    begin_send,
    close,
    commit_recv,
    commit_send,
    device_name,
    ends_at,
    give_up_send,
    has_behind,
    is_drained,
    is_unheard,
    limit_receive,
    limit_send,
    may_send,
    note_recv,
    note_send,
    push,
    queued,
    recv_urgent,
    set_oob_inline,
    shutdown_both,
    shutdown_write,
    status, //
};
pub(crate) use self::figures::{figures, summary};
pub(crate) use self::member::Member;
pub(crate) use self::ring::Held;

/// Tag type: the service work item of a socket.
pub(crate) struct ConnTimer;

impl workqueue::Handler<SocketRef> for ConnTimer {
    fn run(sk: SocketRef) {
        service(&sk);
    }
}

/// The peer's buffer.
pub(crate) struct PeerBuffer {
    /// Its place in the group's table.
    pub(crate) place: PeerElement,
    /// Its size.
    pub(crate) size: RmbeSize,
    /// RDMA address of the element.
    pub(crate) address: u64,
    /// Key of its RMB on our link.
    pub(crate) rkey: RKey,
}

/// What a connection needs on the link that it moves to.
struct Route {
    seat: Seat,
    ring: Option<Arc<SendRing>>,
    /// Of that ring.
    map: Option<RingMap>,
    address: u64,
    rkey: RKey,
}

impl Route {
    /// `None` if the send ring cannot be mapped, or the key is of no use. Sleeps.
    fn new(
        link: &Arc<Link>,
        ring: Option<Arc<SendRing>>,
        peer: &Place,
        token: RToken,
    ) -> Option<Self> {
        let element = Element {
            token,
            index: peer.element.index,
            size: peer.size,
            alert: AlertToken(0),
        };
        Some(Self {
            seat: Seat::new(link.clone()),
            map: ring
                .as_ref()
                .map(|ring| link.map_ring(ring))
                .transpose()
                .ok()?,
            ring,
            address: element.address()?,
            rkey: token.rkey,
        })
    }
}

/// A connection is to go on on another link, although its own works.
struct Move {
    route: Route,
    stage: MoveStage,
}

/// How far it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MoveStage {
    /// Things are under way. One thing after the other is posted, until none is.
    Posting,
    /// Nothing is. The group is to find out whether all of it has arrived; until then the connection keeps silent.
    Quiet,
    /// The group is about it.
    Asked,
}

/// Where the peer's buffer is, whatever the link.
#[derive(Clone, Copy)]
struct Place {
    element: PeerElement,
    size: RmbeSize,
}

/// How long messages may take to be handled that the peer is sure to have got through before one that
/// has been, over another link.
const OVERTAKEN_MS: u64 = 2_000;

/// For so long, a reset by the peer waits for what was said before it.
const TCP_END_MS: u64 = 200;

/// An established connection and all that it uses.
pub(crate) struct Connection {
    core: Conn,
    pub(crate) group: Arc<Group>,
    pub(crate) link: Seat,
    /// Where it goes on as soon as all that was posted has arrived: see [`Connection::go_to`].
    next: Option<Move>,
    /// The link over which the peer's last message came.
    heard_on: Option<LinkIx>,
    /// When messages are lost that have been overtaken by others and not come yet.
    overtaken_until: Option<u64>,
    /// When the peer's reset of TCP counts: what was said before it comes over a link, and may be slower.
    tcp_end_at: Option<u64>,
    pub(crate) token: ConnToken,
    ring: Option<ring::Ring>,
    /// Of the ring that it began with, and would like to have.
    ring_size: RmbeSize,
    element: OwnElement,
    peer: PeerBuffer,
    version: u8,
    /// Time at which the armed timer is due.
    timer: Option<(Timer, u64)>,
    /// Limits beyond the core's own timers.
    watch: Watch,
    /// Time at which the service work item is going to look, if that was arranged.
    armed: Option<u64>,
    messages: figures::Messages,
    /// The state that others see.
    shown: Option<State>,
    /// What TCP says about its end.
    tcp_error: Option<Error>,
    /// The connection lost its link, or may not use it any more: chains may still be on their way.
    cut_off: bool,
    /// TCP has been reset on behalf of the core.
    tcp_reset: bool,
    _in_use: InUse,
    /// The ring was used since the group last looked.
    ring_used: bool,
    /// See [`Connection::note_arrival`].
    arrival: i64,
}

/// The parts of a new connection, in the order of their acquisition.
pub(crate) struct Parts {
    pub(crate) core: Conn,
    pub(crate) group: Arc<Group>,
    pub(crate) link: Arc<Link>,
    pub(crate) token: ConnToken,
    pub(crate) ring: PooledRing,
    pub(crate) element: OwnElement,
    pub(crate) peer: PeerBuffer,
    /// Version of SMC that was agreed on.
    pub(crate) version: u8,
}

/// Memory for a connection.
pub(crate) type Room = KBox<MaybeUninit<Connection>>;

impl Connection {
    /// Memory for a connection.
    pub(crate) fn room() -> Result<Room> {
        Ok(KBox::new_uninit(GFP_KERNEL)?)
    }

    /// A connection ready to be installed in its socket.
    pub(crate) fn new(room: Room, parts: Parts) -> KBox<Self> {
        let in_use = InUse::element(
            parts.group.ns.clone(),
            parts.element.size().bytes() as usize,
        );
        let ring_size = RmbeSize::for_buffer(parts.core.ring_size());
        let ring = ring::Ring::new(parts.ring, &parts.group.ns);
        let this = Self {
            core: parts.core,
            group: parts.group,
            link: Seat::new(parts.link),
            next: None,
            heard_on: None,
            overtaken_until: None,
            tcp_end_at: None,
            token: parts.token,
            ring: Some(ring),
            ring_size,
            element: parts.element,
            peer: parts.peer,
            version: parts.version,
            timer: None,
            watch: Watch::new(),
            armed: None,
            messages: figures::Messages::new(),
            shown: None,
            tcp_error: None,
            cut_off: false,
            tcp_reset: false,
            _in_use: in_use,
            // It is about to be.
            ring_used: true,
            arrival: 0,
        };
        KBox::write(room, this)
    }

    /// State for the diagnosis interface.
    pub(crate) fn diag(&self) -> Diag {
        self.core.diag()
    }

    /// When data has come last, by the clock of the day in nanoseconds; zero if readers did not want
    /// to know.
    fn note_arrival(&mut self, sk: &Sk<SmcSocket>, events: &Events) {
        if events.readable {
            self.arrival = if sk.wants_stamps() { now_real_ns() } else { 0 };
        }
    }

    /// Keeps quiet if it has to do with one of these links, and goes on if not. `conn` lock held.
    fn hold(&mut self, links: impl Fn(LinkIx) -> bool) {
        let to = self.next.as_ref().map(|next| next.route.seat.place);
        if to.is_some_and(&links) {
            self.stay();
        }
        let ours = self.link.place;
        let theirs = self.heard_on.unwrap_or(ours);
        self.core.set_held(links(theirs), links(ours));
    }

    /// Takes in a message of the peer, which came over a link. `conn` lock held.
    fn handle_cdc(&mut self, link: LinkIx, cdc: &Cdc) -> Events {
        if cdc.prod_flags.blocked {
            self.group.ns.stats.rx().own_full();
        }
        let before = self.core.received();
        let (rmb, start) = (self.element.rmb(), self.element.offset());
        let events = self.core.handle_cdc(link, cdc, |at| {
            let mut byte = [0];
            // The core names places inside the element only; 0 is what an unwritten one holds.
            let _ = rmb
                .pages()
                .read(start.saturating_add(at as usize), &mut byte);
            byte[0]
        });
        if !events.dropped {
            // One that was overtaken says nothing of where the peer sends now.
            self.heard_on = Some(link);
        }
        if events.awaits {
            // Each failure has its time.
            self.overtaken_until = None;
        }
        let with_data = self.core.received() != before;
        self.messages.received(with_data);
        events
    }

    /// Why the connection ended before its time, as programs are told. Behind the end of the peer's
    /// stream, a reset concerns those alone who send, as with TCP.
    fn failure(&self) -> Option<Error> {
        Some(match self.core.error()? {
            ConnError::TcpReset | ConnError::Reset if self.core.is_whole() => EPIPE,
            // That which TCP has behind a FIN is for a stream that has ended.
            ConnError::TcpReset => self
                .tcp_error
                .filter(|error| *error != EPIPE)
                .unwrap_or(ECONNRESET),
            ConnError::Aborted => ECONNABORTED,
            ConnError::TimedOut => ETIMEDOUT,
            ConnError::Reset | ConnError::ProtocolViolation(_) | ConnError::LinkFailed => {
                ECONNRESET
            }
        })
    }

    /// The link is gone, or may not be used any more. `conn` lock held.
    fn lose_link(&mut self) -> Events {
        self.stay();
        self.cut_off = true;
        self.core.handle_link_failed()
    }

    /// The same of the peer's element. `conn` lock held.
    fn lose_element(&mut self) -> Events {
        self.stay();
        self.cut_off = true;
        self.core.handle_element_gone()
    }

    /// Goes on on another link. What has not arrived over the old one is sent again. `conn` lock held.
    fn switch(&mut self, route: Route) -> Events {
        self.stay();
        self.take(route);
        self.core.handle_failover()
    }

    /// Goes on on another link when all has arrived, and so nothing is to be sent again. The peer is not told: there is
    /// nothing that it would have to know. `conn` lock held.
    fn take(&mut self, route: Route) {
        self.link = route.seat;
        if let Some(ring) = &mut self.ring {
            ring.set_map(route.map);
        }
        self.peer.address = route.address;
        self.peer.rkey = route.rkey;
    }

    /// Has it go on elsewhere as soon as all that was posted has arrived. `conn` lock held.
    fn go_to(&mut self, route: Route) {
        self.link.count(false);
        self.core.set_silent(false);
        self.next = Some(Move {
            route,
            stage: MoveStage::Posting,
        });
    }

    /// Has it stay where it is. `conn` lock held.
    fn stay(&mut self) {
        self.link.count(true);
        self.core.set_silent(false);
        self.next = None;
    }

    /// Keeps silent if it is to move, and nothing is under way any more. `conn` lock held.
    fn go_quiet(&mut self) {
        let Some(next) = &mut self.next else {
            return;
        };
        if next.stage == MoveStage::Posting && self.core.may_move() {
            next.stage = MoveStage::Quiet;
            self.core.set_silent(true);
            self.group.connection_quiet();
        }
    }

    /// Goes where it is to go, or finds out once more whether it may: an abort may be under way. `conn` lock held.
    fn finish_move(&mut self) {
        let Some(Move { route, .. }) = self.next.take() else {
            return;
        };
        if self.core.may_move() {
            self.take(route);
            self.core.handle_move();
        } else {
            self.go_to(route);
        }
    }

    /// Whether the connection is past both directions, however it came to that.
    fn is_past(&self) -> bool {
        matches!(
            self.core.state(),
            State::Closed | State::ProcessAbort | State::PeerAbortWait
        )
    }

    /// What is to be posted next.
    fn poll_transmit(&mut self) -> Option<Transmit> {
        if self.next.is_some() {
            self.core.poll_before_move()
        } else {
            self.core.poll_transmit()
        }
    }

    /// Posts whatever is due. `conn` lock held.
    fn pump(&mut self, events: &mut Events) {
        self.core.set_spare(self.group.has_several_links());
        let was_full = self.core.has_unsent_limit() && self.core.send_space() == 0;
        self.go_quiet();
        while let Some(transmit) = self.poll_transmit() {
            let chain = Chain {
                ring: self.ring.as_ref().and_then(ring::Ring::map),
                writes: transmit.writes(),
                target: Target {
                    address: self.peer.address,
                    rkey: self.peer.rkey,
                },
                message: &transmit.cdc.emit(),
                cookie: Cookie::data(self.token, transmit.ticket.number()).into(),
                class: Class::Data,
                quiet: !transmit.signal,
            };
            let mut posted = if chain.ring.is_none() && !chain.writes.is_empty() {
                // It was on its way out already when the connection got its ring.
                Err(PostError::Down)
            } else {
                self.link.post(&chain)
            };
            if posted == Err(PostError::Busy) {
                // Slots may have come free, and those who wait been called, just before we were in
                // the queue: now that we are, the second refusal is one that will be called back.
                self.group.wait_for_room(self.token);
                posted = self.link.post(&chain);
            }
            match posted {
                Ok(()) => {
                    self.group.ns.stats.transmitted(transmit.data_len());
                    self.messages.sent(transmit.data_len() != 0);
                    if transmit.cdc.prod_flags.blocked {
                        self.group.ns.stats.tx().peer_full();
                    }
                    // Spares the call that would say so.
                    if self.core.is_idle() {
                        break;
                    }
                }
                Err(PostError::Busy) => {
                    self.core.unpost(transmit.ticket);
                    break;
                }
                Err(PostError::Down) => {
                    // The group finds another link for it, or ends.
                    self.core.unpost(transmit.ticket);
                    self.group.link_broke(&self.link);
                    break;
                }
                Err(PostError::Invalid) => {
                    self.core.unpost(transmit.ticket);
                    merge(events, self.lose_link());
                    break;
                }
            }
        }
        events.writable |= was_full && self.core.send_space() > 0;
    }

    /// Whether data just flows, without any timer: so it is most of the time.
    #[inline]
    fn is_plain(&self) -> bool {
        self.core.is_flowing()
            && !self.core.is_awaiting()
            && self.timer.is_none()
            && self.overtaken_until.is_none()
            && self.tcp_end_at.is_none()
            && !self.watch.is_on()
    }

    /// When the socket's service work item has something to do, if ever.
    fn service_due(&mut self) -> Option<u64> {
        match self.core.timer() {
            None => self.timer = None,
            Some(timer) if self.timer.is_none_or(|(armed, _)| armed != timer) => {
                self.timer = Some((timer, now_ms().saturating_add(timer.millis().into())));
            }
            Some(_) => {}
        }
        if self.core.is_done() || (self.core.reset_tcp() && !self.tcp_reset) {
            return Some(now_ms());
        }
        if !self.core.is_awaiting() {
            self.overtaken_until = None;
        } else if self.overtaken_until.is_none() {
            self.overtaken_until = Some(now_ms().saturating_add(OVERTAKEN_MS));
        }
        let watch = self.watch.deadline(&self.core, now());
        let times = [
            self.timer.map(|(_, at)| at),
            self.overtaken_until,
            self.tcp_end_at,
            watch.map(|at| at.as_millis()),
        ];
        times.into_iter().flatten().min()
    }

    /// How many milliseconds from now the work item has to be arranged for; `None` if it need not
    /// be, or looks early enough already. Asked after everything that happens, unless the connection
    /// [is plain](Self::is_plain), for which no clock is looked at.
    #[inline(never)]
    fn arrange(&mut self) -> Option<u32> {
        let due = self.service_due()?;
        if self.armed.is_some_and(|armed| armed <= due) {
            return None;
        }
        self.armed = Some(due);
        Some(u32::try_from(due.saturating_sub(now_ms())).unwrap_or(u32::MAX))
    }
}

/// Puts two sets of events together.
fn merge(all: &mut Events, more: Events) {
    all.readable |= more.readable;
    all.writable |= more.writable;
    all.urgent |= more.urgent;
    all.changed |= more.changed;
    all.violation = all.violation.or(more.violation);
}

/// Does `action` on the connection, posts what follows from it, and wakes whom it concerns. Any
/// context up to softirq. `None` without a connection.
fn with<R>(sk: &Sk<SmcSocket>, action: impl FnOnce(&mut Connection) -> (R, Events)) -> Option<R> {
    let mut guard = sk.conn.lock();
    let connection = (*guard).as_mut()?;
    let (result, mut events) = action(connection);
    if connection.next.is_some() || !connection.core.is_idle() {
        connection.pump(&mut events);
    }
    let state = connection.core.state();
    let error = connection.failure();
    let due = if connection.is_plain() {
        None
    } else {
        connection.arrange()
    };
    if connection.shown != Some(state) {
        connection.shown = Some(state);
        sk.set_state(state.number());
    }
    // Before anything shows that the stream is over: readers have to find out why.
    if connection.core.is_whole() {
        sk.set_whole();
    }
    if let Some(error) = error.filter(|_| sk.failure().is_none()) {
        sk.set_failure(error);
        sk.set_err(error);
    }
    if events.changed {
        if connection.core.read_shut() {
            sk.add_shutdown(RCV_SHUTDOWN);
        }
        if connection.is_past() {
            sk.add_shutdown(RCV_SHUTDOWN | SEND_SHUTDOWN);
        }
    }
    if let Some(violation) = events.violation {
        connection.group.ns.stats.violation();
        pr_debug!("smc_r: connection aborted: {}\n", Shown(violation));
    }
    // Under the lock: a later time that was found earlier must not replace an earlier one.
    if let Some(ms) = due {
        sk.conn_timer.rearm(sk.ns.socket_queue(), sk.into(), ms);
    }
    drop(guard);
    if events.readable || events.writable || events.urgent || events.changed {
        wake(sk, &events, error.is_some());
    }
    Some(result)
}

fn wake(sk: &Sk<SmcSocket>, events: &Events, failed: bool) {
    if (events.readable || events.changed) && !sk.has_file() {
        socket::tell_listener(sk);
    }
    // First, as TCP does: who waits for the end as well as for data looks which of them it is, where the others say it.
    if events.changed {
        sk.wake_state_change();
        if failed {
            sk.wake_error();
        }
    }
    if events.readable {
        sk.wake_readable();
    }
    if events.writable {
        sk.wake_writable();
    }
    if events.urgent {
        sk.send_sigurg();
    }
}

/// Makes the socket an accelerated one. Messages that came early are processed now.
pub(crate) fn install(sk: &SocketRef, connection: KBox<Connection>) {
    let (group, link) = (connection.group.clone(), connection.link.clone());
    let (token, slot) = (connection.token, connection.peer.place.slot);
    let tcp = sk.tcp();
    calls::show_sizes(sk, &connection);
    // First: from then on it is set when it changes.
    sk.set_state(sk_state::ACTIVE);
    *sk.conn.lock() = Some(connection);
    let held = with(sk, |connection| {
        // Under the lock: what comes from now on is handled after what came early.
        let early = group.connection_live(token, sk.clone());
        // Not before: a completion of what somebody sends would not find its connection.
        sk.set_phase(Phase::Accelerated);
        // Now: who changes options from here on finds a connection to tell.
        connection.core.set_oob_inline(sk.oob_inline());
        let settings = tcp.map_or(Settings::default(), |tcp| tcp.settings());
        calls::adopt(connection, settings);
        sk.keepalive.store(calls::keepalive(sk, settings), Relaxed);
        let mut events = calls::adopt_sizes(sk, connection);
        for (link, cdc) in early.into_messages() {
            merge(&mut events, connection.handle_cdc(link, &cdc));
        }
        connection.note_arrival(sk, &events);
        // Who looked for those that use the buffer may have been here before this one went live; nothing is written after
        // the peer was told that nobody does.
        if group.is_usable() && group.is_gone(slot) {
            merge(&mut events, connection.lose_element());
        }
        // What comes next may come over another one.
        let is_up = |link: &LinkIx| group.is_place_up(*link);
        connection.heard_on = connection.heard_on.filter(is_up);
        // Who keeps the others quiet may have been here before this one went live.
        let resting = group.resting_links();
        connection.hold(|link| resting.has(link));
        (resting, events)
    });
    let member = Member {
        sk: sk.clone(),
        group: &group,
        token,
    };
    stay_quiet(&member, held.unwrap_or_default());
    group.watch_rings();
    group.add_keepalive(sk.keepalive.load(Relaxed));
    match group.standing(&link) {
        Standing::Up => {}
        Standing::Over => member.link_failed(),
        Standing::Lost => {
            // Whatever was posted has completed then.
            link.stop();
            member.leave(&link);
        }
    }
    // What happened to TCP in the meantime was told to the rendezvous, which is over. Not while a
    // FIN is being taken in: half of it looks like data.
    if let Ok(tcp) = sk.tcp() {
        tcp.locked(|| tcp_event(sk));
    }
}

/// Looks again whether links are at rest: whoever told all connections of it may have been here before this one was
/// held. What changes afterwards is told to this one as well.
fn stay_quiet(member: &Member<'_>, mut held: LinkSet) {
    loop {
        let resting = member.group.resting_links();
        if resting == held {
            return;
        }
        member.hold(|link| resting.has(link));
        held = resting;
    }
}

/// A CDC message for this connection came in over a link. Softirq.
pub(crate) fn received(sk: &SocketRef, group: &Group, token: ConnToken, link: LinkIx, cdc: &Cdc) {
    with(sk, |connection| {
        if !connection.is_named(group, token) {
            return ((), Events::default());
        }
        let events = connection.handle_cdc(link, cdc);
        connection.note_arrival(sk, &events);
        if events.dropped && !events.late {
            sk.ns.stats.cdc_dropped();
        }
        ((), events)
    });
}

/// A chain of this connection was completed. Softirq.
pub(crate) fn sent(sk: &SocketRef, group: &Group, token: ConnToken, ticket: u32, ok: bool) {
    with(sk, |connection| {
        if !connection.is_named(group, token) {
            return ((), Events::default());
        }
        (
            (),
            connection.core.handle_sent(Ticket::from_number(ticket), ok),
        )
    });
}

/// Slots of the link are free again. Softirq.
pub(crate) fn resume(sk: &SocketRef) {
    with(sk, |_| ((), Events::default()));
}

/// Something happened on the TCP connection: nothing should, but for its end. Softirq or process context; with the
/// inner socket locked, but for errors.
pub(crate) fn tcp_event(sk: &SocketRef) {
    let Ok(tcp) = sk.tcp() else {
        return;
    };
    let error = tcp.err();
    if tcp.state() == tcp_state::CLOSE {
        with(sk, |connection| {
            let error = (error != 0).then(|| from_number(error));
            connection.tcp_error = connection.tcp_error.or(error);
            if error.is_none_or(|error| error != ECONNRESET && error != EPIPE) {
                return ((), connection.core.handle_tcp_reset());
            }
            // The peer's program may have closed with SO_LINGER of 0 seconds, and have sent something just before.
            let at = now_ms().saturating_add(TCP_END_MS);
            connection.tcp_end_at.get_or_insert(at);
            ((), Events::default())
        });
        return;
    }
    if error != 0 {
        // News of the way to the peer, which the program has asked for (IP_RECVERR). TCP goes on,
        // and so does the connection.
        if let Err(error) = tcp.take_err() {
            sk.set_err(error);
            sk.wake_error();
        }
    }
    // First: a FIN that comes in between, where the socket is not locked, is not taken for data.
    let bytes = tcp.inq();
    let ended = tcp.shutdown_mask() & RCV_SHUTDOWN != 0;
    if bytes > u32::from(ended) {
        // No TCP payload may follow the rendezvous. A FIN may, and counts as a byte.
        with(sk, |connection| ((), connection.core.handle_tcp_data()));
    } else if ended {
        // It says nothing by itself, but the end of the stream should not be far.
        with(sk, |connection| {
            connection.watch.tcp_ended();
            ((), Events::default())
        });
    }
}

/// Timers, the reset of TCP, and the end. Work item.
fn service(sk: &SocketRef) {
    let reset = with(sk, |connection| {
        connection.armed = None;
        if connection.overtaken_until.is_some_and(|at| at <= now_ms()) {
            connection.overtaken_until = None;
            return (false, connection.core.handle_drained());
        }
        if connection.tcp_end_at.is_some_and(|at| at <= now_ms()) {
            connection.tcp_end_at = None;
            return (false, connection.core.handle_tcp_reset());
        }
        let due = connection.timer.filter(|(_, at)| *at <= now_ms());
        let events = match due {
            Some((timer, _)) => {
                connection.timer = None;
                connection.core.handle_timeout(timer)
            }
            None => match connection.watch.verdict(&connection.core, now()) {
                Some(error) => connection.core.handle_overdue(error),
                None => Events::default(),
            },
        };
        let reset = connection.core.reset_tcp() && !connection.tcp_reset;
        connection.tcp_reset |= reset;
        (reset, events)
    });
    if reset == Some(true) {
        if let Ok(tcp) = sk.tcp() {
            tcp.abort(ECONNABORTED);
        }
    }
    let finished = {
        let mut guard = sk.conn.lock();
        match guard.as_ref() {
            Some(connection) if connection.core.is_done() => guard.take(),
            _ => None,
        }
    };
    if let Some(connection) = finished {
        finish(sk, connection);
    }
}

/// Gives back what a connection used, now that nobody touches it any more. Process context.
fn finish(sk: &SocketRef, connection: KBox<Connection>) {
    // Nobody arms it any more; it would hold the socket until its time.
    sk.conn_timer.cancel();
    let diag = connection.core.diag();
    let (heard, is_blocked) = (diag.rx_state_flags, diag.rx_prod_flags.blocked);
    // A peer that never said that it is through may still write, or has closed with data left, as Linux does: its element is
    // not reused.
    let reusable = (heard.closed && !is_blocked) || heard.aborted;
    let Connection {
        group,
        token,
        ring,
        element,
        peer,
        cut_off,
        ..
    } = KBox::into_inner(connection);
    let buffers = Buffers {
        element: Some(element),
        element_is_quiet: reusable,
        ring: ring.map(ring::Ring::into_pooled),
        ring_is_quiet: !cut_off,
    };
    group.connection_gone(token, buffers, peer.place);
    sk.set_state(sk_state::CLOSED);
    sk.wake_state_change();
    // Set before `close` took the lock under which the connection was taken out.
    if sk.released.load(Acquire) != 0 {
        close_tcp(sk);
    }
}

/// Closes the inner socket of a connection that is over.
fn close_tcp(sk: &Sk<SmcSocket>) {
    sk.set_phase(Phase::Dead);
    sk.set_state(sk_state::CLOSED);
    let tcp = sk.take_tcp();
    if let Some(tcp) = tcp {
        tcp.detach();
        socket::no_linger(&tcp);
    }
}
