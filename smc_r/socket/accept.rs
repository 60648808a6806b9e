// SPDX-License-Identifier: GPL-2.0

//! `listen(2)` and `accept(2)`.
//!
//! The inner socket listens. Each TCP connection that it accepts becomes a child socket with a
//! rendezvous of its own, and enters the queue of the listener once that has decided. Nothing is
//! held while a child waits for its peer, so a client that stays silent delays nobody. Without the
//! option there is nothing to wait for: such a child is plain TCP as soon as it is accepted.
//!
//! # The backlog
//!
//! Children that wait for the program count as TCP's own queue does: TCP is told how much room is
//! left ([`Queue::tell`]), and drops SYNs when there is none, as for any listener. Those in their
//! rendezvous do not count there, or silent clients would keep others away; but while the room for
//! them is spoken for, clients are not answered the option ([`Listener::has_place`]), as one who
//! waits for a message of ours would give up before it gets its turn.

use core::sync::atomic::{AtomicBool, Ordering};

use kapi::{
    errno::{
        ECONNABORTED,
        EINVAL,
        EOPNOTSUPP, //
    },
    grow::Grow,
    new_delayed_work,
    new_spinlock_bh,
    new_work,
    sock::{state as tcp_state, OpFlags, Sk},
    spinlock_bh::SpinLockBh,
    tcp::{Stage, TcpSock, TcpSocket},
    util::now_ms,
    workqueue::{self, DelayedWork, Work}, //
};
use kernel::{
    alloc::kvec::KVVec,
    prelude::*,
    sync::{atomic::Relaxed, Arc}, //
};
use smc_proto::wire::Diagnosis;

use super::{
    falls_back, recv, show_error_once, sk_state, InnerEvents, Phase, SmcSocket, SocketRef,
};
use crate::{
    clock::now,
    conn,
    handshake::{Handshake, LAST_WORD},
    peers::Key,
    stats::Side, //
};

/// Most children of one listener that wait here for the program, whatever the backlog; the rest of it waits with TCP. Not
/// more of them are in their rendezvous at once: where there are so many of both, no further client is answered the option,
/// and those that are plain TCP go on. A flood of clients that say nothing is held in check by that and by the deadline of
/// each.
const MAX_WAITING: usize = 4096;

/// How many children in their rendezvous mean congestion, for listeners that are to limit it
/// (`SMC_LIMIT_HS`): new clients are not answered the option then, and are plain TCP, until the
/// number is down to half of it.
const CONGESTION: usize = 64;

/// After how many milliseconds accepting is tried again when it failed for want of something.
const RETRY: u32 = 100;

/// The same where somebody had the socket locked.
const SOON: u32 = 5;

/// The listening side of a socket.
#[pin_data]
pub(crate) struct Listener {
    /// Clients are not answered the option for the time being: there are too many of them, or their packets cannot be
    /// looked at.
    congested: AtomicBool,
    #[pin]
    queue: SpinLockBh<Queue>,
    #[pin]
    work: Work<Arc<Listener>, AcceptWork>,
    #[pin]
    retry: DelayedWork<Arc<Listener>, RetryWork>,
    #[pin]
    owner: SpinLockBh<Option<SocketRef>>,
}

/// Children on their way to the program.
struct Queue {
    /// The socket that listens, until the listener ends.
    tcp: Option<Arc<TcpSocket>>,
    /// How many may wait for the program, and one more, as `listen(2)` was told.
    backlog: usize,
    children: Children,
    /// One is being taken from TCP and is not among the others yet.
    taking: bool,
    closed: bool,
}

/// Children that no program has seen yet.
#[derive(Default)]
struct Children {
    /// Decided, in the order of their decision; next one at the front.
    ready: KVVec<SocketRef>,
    /// Connected, and held back until they have data (`TCP_DEFER_ACCEPT`), or for so long
    /// (milliseconds since boot). In the order of their decision.
    deferred: KVVec<(SocketRef, u64)>,
    /// In their rendezvous.
    pending: KVVec<SocketRef>,
}

impl Children {
    /// Lists with room for so many each.
    fn with_room(count: usize) -> Result<Self> {
        Ok(Self {
            ready: KVVec::with_capacity(count, GFP_KERNEL)?,
            deferred: KVVec::with_capacity(count, GFP_KERNEL)?,
            pending: KVVec::with_capacity(count, GFP_KERNEL)?,
        })
    }

    /// How many there are.
    fn count(&self) -> usize {
        self.waiting().saturating_add(self.pending.len())
    }

    /// How many wait for the program.
    fn waiting(&self) -> usize {
        self.ready.len().saturating_add(self.deferred.len())
    }

    /// Whether there is room for one more, wherever it goes, so that moving on cannot fail.
    fn has_room(&self) -> bool {
        let capacity = self.ready.capacity().min(self.deferred.capacity());
        capacity > self.count() && self.pending.capacity() > self.pending.len()
    }

    /// Moves to lists without entries, as far as these have more room. Does not allocate.
    fn move_to(&mut self, lists: &mut Self) {
        fn longer<T>(list: &mut KVVec<T>, longer: &mut KVVec<T>) {
            if longer.capacity() <= list.capacity() {
                return;
            }
            for value in list.drain_all() {
                // There is room for more than that.
                let _ = longer.push_within_capacity(value);
            }
            core::mem::swap(list, longer);
        }
        longer(&mut self.ready, &mut lists.ready);
        longer(&mut self.deferred, &mut lists.deferred);
        longer(&mut self.pending, &mut lists.pending);
    }
}

impl Queue {
    /// How many may wait for the program here; one more may with TCP. Without a backlog it would be
    /// none, and nobody could ever use SMC.
    fn limit(&self) -> usize {
        self.backlog.clamp(1, MAX_WAITING)
    }

    /// Tells TCP how much room there is left. After each change of the number that waits. It has no more half-open
    /// connections than that either.
    fn tell(&self) {
        if let Some(tcp) = &self.tcp {
            let left = self.backlog.saturating_sub(self.children.waiting());
            tcp.set_backlog(u32::try_from(left).unwrap_or(u32::MAX));
        }
    }
}

struct AcceptWork;

impl workqueue::Handler<Arc<Listener>> for AcceptWork {
    fn run(listener: Arc<Listener>) {
        listener.take_in();
    }
}

/// Leaves that to the other one: there is never more than one who takes in.
struct RetryWork;

impl workqueue::Handler<Arc<Listener>> for RetryWork {
    fn run(listener: Arc<Listener>) {
        listener.kick();
    }
}

impl Listener {
    fn new(sk: SocketRef, tcp: Arc<TcpSocket>, backlog: usize) -> Result<Arc<Self>> {
        Arc::pin_init(
            try_pin_init!(Self {
                congested: AtomicBool::new(false),
                queue <- new_spinlock_bh!(
                    Queue {
                        tcp: Some(tcp),
                        backlog,
                        children: Children::default(),
                        taking: false,
                        closed: false,
                    },
                    "smc_accept_queue"
                ),
                work <- new_work!("smc_accept"),
                retry <- new_delayed_work!("smc_accept_retry"),
                owner <- new_spinlock_bh!(Some(sk), "smc_listener_owner"),
            }),
            GFP_KERNEL,
        )
    }

    /// The socket that listens, until it is closed.
    pub(crate) fn owner(&self) -> Option<SocketRef> {
        self.owner.lock().clone()
    }

    /// The inner socket has a connection, or there is room for one again. Up to softirq.
    pub(crate) fn kick(self: &Arc<Self>) {
        if let Some(owner) = self.owner.lock().as_ref() {
            self.work.enqueue(owner.ns.socket_queue(), self.clone());
        }
    }

    /// True if a program can accept now.
    pub(super) fn has_ready(&self) -> bool {
        !self.queue.lock().children.ready.is_empty()
    }

    /// Whether there is one to take from TCP, and room for it. It counts as taken from now on: rather
    /// twice for a moment than not at all, or its place would be given away once more.
    fn begins_to_take(&self, tcp: &TcpSocket) -> bool {
        let waits = tcp.backlog().0 != 0;
        let mut queue = self.queue.lock();
        let children = &queue.children;
        let room = children.waiting() < queue.limit();
        queue.taking = waits && room && !queue.closed;
        queue.taking
    }

    /// Whether there is a place in the queue for whoever is to be answered the option now, besides
    /// all those who have come before. `tcp` is the socket that listens; whether the client is among its requests is
    /// `counted`: where it is not, two that ask on two processors at once may get the same place. Softirq.
    pub(super) fn has_place(&self, tcp: &TcpSock, counted: bool) -> bool {
        let (queued, requests) = tcp.backlog();
        let before = (queued as usize)
            .saturating_add(requests as usize)
            .saturating_add((!counted).into());
        let queue = self.queue.lock();
        let here = queue.children.count().saturating_add(queue.taking.into());
        before.saturating_add(here) <= queue.limit()
    }

    /// Accepts what the inner socket has, as far as there is room. Only the work item for it does.
    fn take_in(self: &Arc<Self>) {
        let Some(owner) = self.owner.lock().clone() else {
            return;
        };
        let Ok(tcp) = owner.tcp() else {
            return;
        };
        self.release_deferred(&owner);
        while self.begins_to_take(&tcp) {
            match tcp.accept() {
                Ok(Some(inner)) => {
                    if let Err(error) = self.start_child(&owner, inner) {
                        pr_debug!("smc_r: no room for a connection: {:?}\n", error);
                    }
                }
                Ok(None) => break,
                // That one is gone: it has ended, or belongs to somebody else, who had it from a listener of his.
                Err(error) if error == ECONNABORTED || error == EOPNOTSUPP => {}
                Err(error) if error == EBUSY => {
                    // A call has the socket, for a moment as a rule.
                    self.look_again(&owner, SOON);
                    break;
                }
                Err(_) => {
                    // Short of memory, perhaps: nobody else would call us for what is waiting.
                    self.look_again(&owner, RETRY);
                    break;
                }
            }
        }
        self.queue.lock().taking = false;
        self.weigh(&owner, &tcp);
    }

    /// Turns new clients away from SMC while there are too many handshakes, if the program wants
    /// that.
    fn weigh(&self, owner: &Sk<SmcSocket>, tcp: &TcpSocket) {
        let was = self.congested.load(Ordering::Relaxed);
        let wanted = owner.limit_hs.load(Relaxed) != 0;
        let most = if was { CONGESTION / 2 } else { CONGESTION };
        let is = wanted && self.queue.lock().children.pending.len() > most;
        // Without room for the option's bookkeeping, the next look tries again.
        if is != was && owner.never_smc.load(Relaxed) == 0 && tcp.answer_option(!is).is_ok() {
            self.congested.store(is, Ordering::Relaxed);
        }
    }

    /// Has children accepted that were held back for want of data, and have some or have waited
    /// long enough. Arranges for a look at the next one's time.
    fn release_deferred(self: &Arc<Self>, owner: &SocketRef) {
        let (mut released, mut next, mut place) = (false, None, 0);
        // The lock of a child's connection comes before that of the queue: looked at in between.
        while let Some((child, until)) = self.deferred(place) {
            let left = until.saturating_sub(now_ms());
            if left != 0 && !has_news(&child) {
                next = next.or(Some(left));
                place = place.saturating_add(1);
                continue;
            }
            let mut queue = self.queue.lock();
            let same = queue.children.deferred.get(place);
            if !same.is_some_and(|(other, _)| core::ptr::eq(&**other, &*child)) {
                // Somebody else was faster.
                continue;
            }
            if let Ok((child, _)) = queue.children.deferred.remove(place) {
                released |= queue.children.ready.push_within_capacity(child).is_ok();
                queue.tell();
            }
            drop(queue);
            let teller = child.deferred_by.lock().take();
            drop(teller);
        }
        if released {
            owner.wake_readable();
        }
        if let Some(left) = next {
            let left = u32::try_from(left).unwrap_or(u32::MAX);
            self.look_again(owner, left);
        }
    }

    /// Has `take_in` run in `ms` milliseconds, unless the listener is being given up: nothing may be
    /// left of it then.
    fn look_again(self: &Arc<Self>, owner: &SocketRef, ms: u32) {
        let queue = self.queue.lock();
        if !queue.closed {
            self.retry.rearm(owner.ns.socket_queue(), self.clone(), ms);
        }
    }

    /// The child at a place among those that are held back, and until when it is.
    fn deferred(&self, place: usize) -> Option<(SocketRef, u64)> {
        self.queue.lock().children.deferred.get(place).cloned()
    }

    /// Until when a child that was decided is to be held back, if it is. TCP has only waited for the
    /// messages of the rendezvous, plain TCP or not.
    fn defers(&self) -> Option<u64> {
        let owner = self.owner.lock().clone()?;
        let seconds = owner.tcp().ok()?.defer_accept();
        (seconds != 0).then(|| now_ms().saturating_add(u64::from(seconds).saturating_mul(1000)))
    }

    /// Makes the child socket for `inner` and starts its rendezvous.
    fn start_child(self: &Arc<Self>, owner: &SocketRef, inner: TcpSocket) -> Result {
        let negotiated = inner.option_negotiated();
        let offered = negotiated || inner.option_refused();
        let port = Some(inner.own_port());
        let avoids = |address| {
            offered
                && owner.ns.avoids(&Key {
                    side: Side::Server,
                    address,
                    port,
                })
        };
        let refusal = match (inner.peer_addr(), inner.local_addr()) {
            (Ok(peer), Ok(own))
                if !owner
                    .ns
                    .rules
                    .allow(owner, Side::Server, peer.ip(), own.port()) =>
            {
                Some(Diagnosis::CONFIGURATION)
            }
            (Ok(peer), _) if peer.ip().is_some_and(avoids) => Some(Diagnosis::REMEMBERED),
            // Or it is gone already.
            _ => None,
        };
        let tcp = Arc::new(inner, GFP_KERNEL)?;
        let child = owner.child(SmcSocket::with_tcp(
            owner.ns.clone(),
            tcp.clone(),
            Phase::Connecting,
        ))?;
        child.set_state(sk_state::INIT);
        tcp.inherit_to(&child);
        child.store_rcvlowat(i32::try_from(owner.rcvlowat()).unwrap_or(i32::MAX));
        child
            .never_smc
            .store(owner.never_smc.load(Relaxed), Relaxed);
        let peek_off = owner.peek_off().map(i32::try_from);
        child.store_peek_off(peek_off.map_or(-1, |off| off.unwrap_or(i32::MAX)));
        child
            .tells_left
            .store(owner.tells_left.load(Relaxed), Relaxed);
        if !negotiated {
            return self.add_plain(owner, child, &tcp, refusal);
        }
        let handshake = Handshake::server(child.clone(), tcp.clone(), self.clone(), refusal)?;
        *child.handshake.lock() = Some(handshake.clone());
        let result = self.enlist(&child);
        if result.is_err() {
            // Child and rendezvous hold each other.
            child.handshake.lock().take();
            // Nobody will ever read what the peer sends.
            tcp.abort(ECONNABORTED);
            return result;
        }
        tcp.attach::<_, InnerEvents>(child);
        handshake.kick();
        Ok(())
    }

    /// Puts a child that has been taken from TCP somewhere. Only who takes it does.
    ///
    /// Lists grow without the lock: the memory of long ones may come from vmalloc, whose own locks softirqs interrupt, and
    /// these take ours.
    fn add(&self, put: impl FnOnce(&mut Queue)) -> Result {
        let mut lists = Children::default();
        loop {
            let mut queue = self.queue.lock();
            if queue.closed {
                return Err(ECONNABORTED);
            }
            queue.children.move_to(&mut lists);
            if queue.children.has_room() {
                put(&mut queue);
                queue.taking = false;
                return Ok(());
            }
            let more = queue.children.count().saturating_add(1);
            drop(queue);
            lists = Children::with_room(more.saturating_mul(2))?;
        }
    }

    /// Puts a child among those that are in their rendezvous.
    fn enlist(&self, child: &SocketRef) -> Result {
        let child = child.clone();
        self.add(|queue| {
            let _ = queue.children.pending.push_within_capacity(child);
        })
    }

    /// Hands out a child that is plain TCP from the start. TCP has waited for its data, if it was to
    /// (`TCP_DEFER_ACCEPT`); one that is reset already is handed out with what it has received and
    /// its error, as TCP does.
    fn add_plain(
        &self,
        owner: &SocketRef,
        child: SocketRef,
        tcp: &TcpSocket,
        refusal: Option<Diagnosis>,
    ) -> Result {
        let reason = if let Some(reason) = refusal {
            reason
        } else if owner.never_smc.load(Relaxed) != 0 {
            Diagnosis::SOCKET_OPTION
        } else if tcp.option_refused() && !owner.ns.offers_smc() {
            Diagnosis::NO_SMC_R_DEVICE
        } else {
            Diagnosis::PEER_NOT_CAPABLE
        };
        falls_back(&child, reason, None);
        owner
            .ns
            .fell_back(Side::Server, reason, None, Some(tcp.peer()));
        tcp.locked(|| tcp.inherit_marks(&child));
        child.set_state(sk_state::ACTIVE);
        child.set_phase(Phase::Fallback);
        // Before others get at it, who may close it. An event has nobody to wake so far.
        tcp.attach::<_, InnerEvents>(child.clone());
        show_error_once(&child, tcp);
        let result = self.hand_out(child);
        match result {
            Ok(()) => owner.wake_readable(),
            Err(_) => {
                // It and its inner socket hold each other.
                tcp.detach();
                // Nobody will ever read what the peer sends.
                tcp.abort(ECONNABORTED);
            }
        }
        result
    }

    /// The next child for the program, if there is one.
    fn next(&self) -> Option<Result<SocketRef>> {
        let mut queue = self.queue.lock();
        if queue.closed {
            return Some(Err(EINVAL));
        }
        let child = queue.children.ready.remove(0).ok()?;
        queue.tell();
        Some(Ok(child))
    }

    /// Puts a child among those for the program.
    fn hand_out(&self, child: SocketRef) -> Result {
        self.add(|queue| {
            let _ = queue.children.ready.push_within_capacity(child);
            queue.tell();
        })
    }

    /// A child's rendezvous ended: `ok` children become acceptable, others vanish. Process context,
    /// without the child's socket lock while there is a listener.
    pub(crate) fn decided(self: &Arc<Self>, child: &SocketRef, ok: bool) {
        let deferred = if ok { self.defers() } else { None };
        if deferred.is_some() {
            // From now on it tells us of data; what is there already is seen below.
            *child.deferred_by.lock() = Some(self.clone());
        }
        let gone = {
            let mut queue = self.queue.lock();
            let children = &mut queue.children;
            let place = children
                .pending
                .iter()
                .position(|other| core::ptr::eq(&**other, &**child));
            let taken = place.and_then(|place| children.pending.remove(place).ok());
            let gone = match taken {
                // There is room: it was reserved when the child came.
                Some(child) if ok => match deferred {
                    Some(until) => {
                        let full = children.deferred.push_within_capacity((child, until));
                        full.err().map(|e| e.0 .0)
                    }
                    None => children
                        .ready
                        .push_within_capacity(child)
                        .err()
                        .map(|e| e.0),
                },
                other => other,
            };
            queue.tell();
            gone
        };
        drop(gone);
        if deferred.is_none() {
            if let Some(owner) = self.owner.lock().as_ref() {
                owner.wake_readable();
            }
        }
        // Others may have waited for its place.
        if deferred.is_some() || self.congested.load(Ordering::Relaxed) {
            self.kick();
        }
    }
}

/// Whether a child has what one that was held back waits for: data, an end or an error.
fn has_news(child: &Sk<SmcSocket>) -> bool {
    if child.phase() == Phase::Fallback {
        return child
            .tcp()
            .is_ok_and(|tcp| recv::plain_has_news(child, &tcp));
    }
    let status = conn::status(child);
    status.readable != 0 || status.urgent || status.eof || status.over
}

/// Something came in for a socket: tells the listener that holds it back. Softirq.
pub(crate) fn tell_listener(sk: &Sk<SmcSocket>) {
    let listener = sk.deferred_by.lock().clone();
    if let Some(listener) = listener {
        listener.kick();
    }
}

/// `listen(2)`.
pub(super) fn listen(sk: &Sk<SmcSocket>, backlog: i32) -> Result {
    let _lock = sk.lock();
    let tcp = sk.tcp()?;
    // As the system call gives it, net.core.somaxconn at most.
    let limit = u32::try_from(backlog).unwrap_or(u32::MAX) as usize;
    match sk.phase() {
        Phase::Listening => {
            tcp.listen(backlog)?;
            if let Some(listener) = sk.listener.lock().as_ref() {
                let mut queue = listener.queue.lock();
                queue.backlog = limit;
                queue.tell();
                drop(queue);
                listener.kick();
            }
            return Ok(());
        }
        Phase::Idle => {}
        _ => return Err(EINVAL),
    }
    let listener = Listener::new(sk.into(), tcp.clone(), limit)?;
    tcp.inherit_from(sk, Stage::Traffic);
    if tcp.answer_option(sk.never_smc.load(Relaxed) == 0).is_err() {
        // Packets of this namespace cannot be looked at, for want of memory, say. TCP needs nothing of that, and the next
        // look tries again.
        listener.congested.store(true, Ordering::Relaxed);
        tcp.answer_option(false)?;
    }
    *sk.listener.lock() = Some(listener.clone());
    sk.set_phase(Phase::Listening);
    tcp.attach::<_, InnerEvents>(sk.into());
    if let Err(error) = tcp.listen(backlog) {
        tcp.detach();
        sk.set_phase(Phase::Idle);
        sk.listener.lock().take();
        listener.owner.lock().take();
        listener.queue.lock().tcp.take();
        return Err(error);
    }
    sk.set_state(sk_state::LISTEN);
    listener.kick();
    Ok(())
}

/// `accept(2)`.
pub(super) fn accept(sk: &Sk<SmcSocket>, flags: OpFlags) -> Result<SocketRef> {
    let mut lock = sk.lock();
    let mut timeo = sk.rcvtimeo(flags.nonblock);
    let listener = sk.listener.lock().clone().ok_or(EINVAL)?;
    let child = lock.wait_until(&mut timeo, |sk| {
        if sk.phase() != Phase::Listening {
            return Some(Err(EINVAL));
        }
        if let Some(result) = listener.next() {
            return Some(result);
        }
        // Somebody else may have ended it.
        let ended = sk.tcp().is_ok_and(|tcp| tcp.state() != tcp_state::LISTEN);
        ended.then_some(Err(EINVAL))
    })??;
    if let Ok(tcp) = child.tcp() {
        child.keep(tcp);
    }
    // It may wait for the place that was just left.
    if sk.tcp().is_ok_and(|tcp| tcp.backlog().0 != 0) {
        listener.kick();
    }
    Ok(child)
}

/// Ends the listening side. Children that no program has seen are for the caller to close, once it
/// has given up the socket lock.
pub(super) fn stop(sk: &Sk<SmcSocket>) -> Orphans {
    let Some(listener) = sk.listener.lock().take() else {
        return Orphans::default();
    };
    let (_tcp, children) = {
        let mut queue = listener.queue.lock();
        queue.closed = true;
        (queue.tcp.take(), core::mem::take(&mut queue.children))
    };
    let owner = listener.owner.lock().take();
    drop(owner);
    // Whom it takes from TCP now would be nobody's. Neither takes a lock that is held here.
    listener.work.cancel_sync();
    listener.retry.cancel_sync();
    Orphans(children)
}

/// Children of a listener that is no more.
#[derive(Default)]
#[must_use]
pub(super) struct Orphans(Children);

impl Orphans {
    /// Closes them. Without any socket lock. Sleeps, up to [`LAST_WORD`]: clients decide of that, see
    /// [`Handshake::hear_out`].
    pub(super) fn close(self) {
        let Children {
            ready,
            deferred,
            mut pending,
        } = self.0;
        let rendezvous = |child: &SocketRef| child.handshake.lock().clone();
        pending.keep(|child| {
            let waits = rendezvous(child).is_some_and(|handshake| handshake.dismiss());
            if !waits {
                super::close::abandon(child);
            }
            waits
        });
        let until = now().after(LAST_WORD);
        for child in ready.iter() {
            super::close::abandon(child);
        }
        for (child, _) in deferred.iter() {
            // It and the listener hold each other.
            child.deferred_by.lock().take();
            super::close::abandon(child);
        }
        for child in pending.iter() {
            if let Some(handshake) = rendezvous(child) {
                handshake.hear_out(until);
            }
            super::close::abandon(child);
        }
    }
}
