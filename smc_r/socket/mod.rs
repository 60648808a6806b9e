// SPDX-License-Identifier: GPL-2.0

//! The socket that programs see: one system call family per file.
//!
//! An [`SmcSocket`] owns an inner TCP socket. Until the rendezvous has decided, programs wait; from
//! then on the socket is either *accelerated* (its data moves through a [`Connection`]) or *fallen
//! back* (every call is passed on to the inner socket). Programs only ever wait on the outer
//! socket: events of the inner one are forwarded to it, so a fallback swaps neither files nor wait
//! queues.

mod accept;
mod close;
mod connect;
mod events;
mod info;
mod options;
mod poll;
mod recv;
mod send;

use core::ptr::NonNull;

use kapi::{
    errno::{
        from_number,
        number,
        ENOTCONN, //
    },
    net::Net,
    new_delayed_work,
    new_spinlock_bh,
    sock::{
        Call,
        Kind,
        Names,
        OpFlags,
        OptOut,
        OptVal,
        RecvMsg,
        SendMsg,
        Shutdown,
        Sk,
        SockAddr,
        Socket,
        UserArg,
        Whose,
        SEND_SHUTDOWN, //
    },
    spinlock_bh::SpinLockBh,
    tcp::TcpSocket,
    trace,
    workqueue::DelayedWork, //
};
use kernel::{
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{Acquire, Atomic, Relaxed, Release},
        Arc, //
    },
};
use smc_proto::wire::Diagnosis;

use crate::{
    conn::{self, ConnTimer, Connection},
    handshake::Handshake,
    netns::{Netns, Setting}, //
};

pub(crate) use accept::{tell_listener, Listener};
pub(crate) use close::no_linger;
pub(crate) use events::{urgent, InnerEvents};

/// Reference to an SMC socket; what keeps the C object alive.
pub(crate) type SocketRef = ARef<Sk<SmcSocket>>;

/// Values of `sk_state` and `diag_state` (`uapi.md` section 4) beyond those of a connection.
pub(crate) mod sk_state {
    pub(crate) const ACTIVE: u8 = 1;
    pub(crate) const INIT: u8 = 2;
    pub(crate) const CLOSED: u8 = 7;
    pub(crate) const LISTEN: u8 = 10;
}

/// What a socket is at present.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Phase {
    /// Neither listening nor connected.
    Idle = 0,
    /// TCP connects, or the rendezvous is under way.
    Connecting = 1,
    /// Accepts connections.
    Listening = 2,
    /// Data moves by RDMA.
    Accelerated = 3,
    /// Plain TCP.
    Fallback = 4,
    /// Closed by the program, or failed for good.
    Dead = 5,
}

/// What became of a connect, for the next call of `connect(2)`.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum News {
    /// There is none, or it goes on.
    None = 0,
    /// It has succeeded.
    Connected = 1,
    /// The program knows.
    Told = 2,
    /// It has failed.
    Failed = 3,
}

/// Our part of the socket object.
#[pin_data]
pub(crate) struct SmcSocket {
    /// The namespace's state.
    pub(crate) ns: Arc<Netns>,
    phase: Atomic<u32>,
    /// Why the connection is plain TCP: our reason, and the code of the peer's Decline.
    fallback_reason: Atomic<u32>,
    peer_diagnosis: Atomic<u32>,
    /// `SMC_LIMIT_HS` as the program set it.
    pub(crate) limit_hs: Atomic<u32>,
    /// An option, or a plain connection that the socket has had, rules SMC out: the option is not offered.
    pub(crate) never_smc: Atomic<u32>,
    /// The error that ended the accelerated connection before its time; 0 without. It stays when the
    /// connection is gone.
    failure: Atomic<i32>,
    /// All that the peer wanted to send has come: readers find its end, whatever happens after that.
    whole: Atomic<u32>,
    /// A reader has been told that the stream was cut off.
    pub(crate) cut_told: Atomic<u32>,
    /// How the connect under way has ended, and whether a call has told the program: [`News`].
    news: Atomic<u32>,
    /// After how many milliseconds of silence the links of the accelerated connection are to be tested
    /// (`SO_KEEPALIVE`); 0 if it does not matter to the program.
    pub(crate) keepalive: Atomic<u32>,
    /// `TCP_INQ`: readers are told how much is left.
    pub(crate) tells_left: Atomic<u32>,
    /// Plain TCP: the error of the inner socket that the outer one shows as well.
    shown_error: Atomic<i32>,
    /// No program has the socket any more.
    pub(crate) released: Atomic<u32>,
    /// The stream may begin with a Decline that crossed ours.
    pub(crate) may_cross: Atomic<u32>,
    /// Plain TCP: the urgent byte that the program was told of last, see [`TcpSocket::urgent`].
    urgent_told: Atomic<u64>,
    /// The inner socket; gone once the socket is closed.
    #[pin]
    tcp: SpinLockBh<Option<Arc<TcpSocket>>>,
    /// The accelerated connection. Softirq.
    #[pin]
    pub(crate) conn: SpinLockBh<Option<KBox<Connection>>>,
    /// The listening side. Softirq (TCP's callbacks).
    #[pin]
    pub(crate) listener: SpinLockBh<Option<Arc<Listener>>>,
    /// The rendezvous under way. Softirq (TCP's callbacks).
    #[pin]
    pub(crate) handshake: SpinLockBh<Option<Arc<Handshake>>>,
    /// The listener that holds the socket back until there is data. Softirq.
    #[pin]
    pub(crate) deferred_by: SpinLockBh<Option<Arc<Listener>>>,
    /// Close and abort timers of the connection.
    #[pin]
    pub(crate) conn_timer: DelayedWork<SocketRef, ConnTimer>,
}

impl SmcSocket {
    /// Socket state with `tcp` as its inner socket.
    pub(crate) fn with_tcp(
        ns: Arc<Netns>,
        tcp: Arc<TcpSocket>,
        phase: Phase,
    ) -> impl PinInit<Self, Error> {
        let limit_hs = ns.setting(Setting::LimitHs);
        try_pin_init!(Self {
            ns,
            phase: Atomic::new(phase as u32),
            fallback_reason: Atomic::new(0),
            peer_diagnosis: Atomic::new(0),
            limit_hs: Atomic::new(limit_hs),
            never_smc: Atomic::new(0),
            failure: Atomic::new(0),
            whole: Atomic::new(0),
            cut_told: Atomic::new(0),
            news: Atomic::new(News::None as u32),
            keepalive: Atomic::new(0),
            tells_left: Atomic::new(0),
            shown_error: Atomic::new(0),
            released: Atomic::new(0),
            may_cross: Atomic::new(0),
            urgent_told: Atomic::new(0),
            tcp <- new_spinlock_bh!(Some(tcp), "smc_tcp"),
            conn <- new_spinlock_bh!(None, "smc_conn"),
            listener <- new_spinlock_bh!(None, "smc_listener"),
            handshake <- new_spinlock_bh!(None, "smc_handshake"),
            deferred_by <- new_spinlock_bh!(None, "smc_deferred_by"),
            conn_timer <- new_delayed_work!("smc_conn_timer"),
        })
    }

    /// What the socket is. May change at any time unless the socket lock is held.
    pub(crate) fn phase(&self) -> Phase {
        match self.phase.load(Acquire) {
            1 => Phase::Connecting,
            2 => Phase::Listening,
            3 => Phase::Accelerated,
            4 => Phase::Fallback,
            5 => Phase::Dead,
            _ => Phase::Idle,
        }
    }

    /// Makes the socket something else. The caller wakes waiters.
    pub(crate) fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u32, Release);
    }

    /// Notes that a connect has succeeded.
    pub(crate) fn connected(&self) {
        self.note_news(News::Connected);
    }

    /// Notes that a connect has failed.
    pub(crate) fn not_connected(&self) {
        self.note_news(News::Failed);
    }

    fn note_news(&self, news: News) {
        // Who has waited for the end of the attempt may have seen it before.
        let _ = self.news.cmpxchg(News::None as u32, news as u32, Relaxed);
    }

    /// What became of a connect, if the program has not been told; now it has.
    fn take_news(&self) -> News {
        match self.news.xchg(News::Told as u32, Relaxed) {
            news if news == News::Connected as u32 => News::Connected,
            news if news == News::Failed as u32 => News::Failed,
            _ => News::Told,
        }
    }

    /// Whether a connect has failed, and no other one has told the program.
    fn has_failed(&self) -> bool {
        self.news.load(Relaxed) == News::Failed as u32
    }

    /// Forgets what became of a connect: another begins, or the socket is as new.
    fn forget_news(&self) {
        self.news.store(News::None as u32, Relaxed);
    }

    /// Why the accelerated connection ended before its time, if it did.
    pub(crate) fn failure(&self) -> Option<Error> {
        match self.failure.load(Relaxed) {
            0 => None,
            number => Some(from_number(number)),
        }
    }

    /// Forgets it: the socket is as new.
    fn forget_failure(&self) {
        self.failure.store(0, Relaxed);
        self.whole.store(0, Relaxed);
        self.cut_told.store(0, Relaxed);
    }

    /// Whether the peer's stream has an end, and did not merely stop.
    pub(crate) fn is_whole(&self) -> bool {
        self.whole.load(Relaxed) != 0
    }

    /// Notes that the peer's stream has its end.
    pub(crate) fn set_whole(&self) {
        self.whole.store(1, Relaxed);
    }

    /// Notes why the accelerated connection ended before its time.
    pub(crate) fn set_failure(&self, error: Error) {
        self.failure.store(number(error), Relaxed);
    }

    /// The inner socket, or [`ENOTCONN`] after close.
    pub(crate) fn tcp(&self) -> Result<Arc<TcpSocket>> {
        self.tcp.lock().clone().ok_or(ENOTCONN)
    }

    /// Takes the inner socket away. Dropping it closes the TCP connection.
    pub(crate) fn take_tcp(&self) -> Option<Arc<TcpSocket>> {
        self.tcp.lock().take()
    }

    /// Our reason for plain TCP and the peer's code, both zero if there was no fallback.
    pub(crate) fn fallback(&self) -> (Diagnosis, Diagnosis) {
        (
            Diagnosis(self.fallback_reason.load(Relaxed)),
            Diagnosis(self.peer_diagnosis.load(Relaxed)),
        )
    }

    /// Notes why the connection is plain TCP.
    pub(crate) fn set_fallback(&self, reason: Diagnosis, peer: Option<Diagnosis>) {
        self.fallback_reason.store(reason.0, Relaxed);
        self.peer_diagnosis
            .store(peer.map_or(0, |code| code.0), Relaxed);
    }
}

/// The connection becomes plain TCP, for a reason of ours and perhaps one of the peer. Any context up to
/// softirq.
pub(crate) fn falls_back(sk: &Sk<SmcSocket>, reason: Diagnosis, peer: Option<Diagnosis>) {
    sk.set_fallback(reason, peer);
    trace::fell_back(sk, sk.ns.cookie, reason.0, || {
        // Its sock.
        sk.tcp().ok().map(|tcp| NonNull::from(&**tcp))
    });
}

/// Whether an accelerated connection is one no more, as programs see it: both directions have ended.
fn has_ended(sk: &Sk<SmcSocket>) -> bool {
    let status = conn::status(sk);
    status.over || (status.read_shut && sk.shutdown_mask() & SEND_SHUTDOWN != 0)
}

/// Has the outer socket tell the error of the inner one, which is plain TCP: the core looks there. The inner socket is locked.
pub(crate) fn show_error(sk: &Sk<SmcSocket>, error: i32) {
    if error != 0 {
        sk.set_err(from_number(error));
        sk.shown_error.store(error, Relaxed);
    }
}

/// The same for one that TCP may have told of, or is about to. Process context.
pub(crate) fn show_error_once(sk: &Sk<SmcSocket>, tcp: &TcpSocket) {
    tcp.locked(|| {
        if sk.err() == 0 && sk.shown_error.load(Relaxed) == 0 {
            show_error(sk, tcp.err());
        }
    });
}

/// Takes the error of the inner socket of plain TCP if the program has asked for it by `SO_ERROR`, which
/// takes it from the outer one. Any context that may take spin locks.
fn settle_error(sk: &Sk<SmcSocket>, tcp: &TcpSocket) {
    if sk.shown_error.load(Relaxed) != 0 && sk.err() == 0 {
        sk.shown_error.store(0, Relaxed);
        let _ = tcp.take_err();
    }
}

/// Makes a call on the inner socket of plain TCP. An error is told once, by whichever of the sockets.
fn with_error_of<R>(sk: &Sk<SmcSocket>, tcp: &TcpSocket, call: impl FnOnce() -> R) -> R {
    settle_error(sk, tcp);
    let result = call();
    if sk.shown_error.load(Relaxed) != 0 && tcp.err() == 0 {
        sk.shown_error.store(0, Relaxed);
        let _ = sk.take_err();
    }
    result
}

impl Socket for SmcSocket {
    const NAMES: Names = Names {
        native: c"SMC",
        native6: c"SMC6",
        inet: c"INET_SMC",
        inet6: c"INET6_SMC",
        spin: c"slock-AF_SMC",
        lock: c"sk_lock-AF_SMC",
    };

    /// The inner socket, for the calls that move data of plain TCP: they need no lock and count no
    /// reference for it. A socket has the same one all its life, and is not closed during a call.
    type Kept = Arc<TcpSocket>;

    fn init(net: &Net, kind: Kind) -> impl PinInit<Self, Error> {
        pin_init::pin_init_scope(move || {
            let ns = crate::netns::of(net)?;
            let tcp = Arc::new(TcpSocket::create(net, kind.family)?, GFP_KERNEL)?;
            Ok(Self::with_tcp(ns, tcp, Phase::Idle))
        })
    }

    fn created(sk: &Sk<Self>) {
        let doubled = |size: u32| i32::try_from(size.saturating_mul(2)).unwrap_or(i32::MAX);
        if let Ok(tcp) = sk.tcp() {
            tcp.inherit_back(sk);
            // A child gets a file when it is accepted, or is closed without.
            if sk.has_file() {
                sk.keep(tcp);
            }
        }
        sk.set_sndbuf(doubled(sk.ns.wmem()));
        sk.set_rcvbuf(doubled(sk.ns.rmem()));
    }

    fn release(sk: &Sk<Self>) {
        close::release(sk);
    }

    fn bind(sk: &Sk<Self>, addr: &SockAddr) -> Result {
        connect::bind(sk, addr)
    }

    fn connect(sk: &Sk<Self>, addr: &SockAddr, flags: OpFlags) -> Result {
        connect::connect(sk, addr, flags)
    }

    fn accept(sk: &Sk<Self>, flags: OpFlags) -> Result<SocketRef> {
        accept::accept(sk, flags)
    }

    fn getname(sk: &Sk<Self>, whose: Whose) -> Result<SockAddr> {
        let tcp = sk.tcp()?;
        // TCP may live on for a while, but there is no peer any more.
        if whose == Whose::Peer && sk.phase() == Phase::Accelerated && has_ended(sk) {
            return Err(ENOTCONN);
        }
        tcp.name(whose)
    }

    fn poll(call: Call<'_, Self>) -> u32 {
        poll::poll(call)
    }

    fn ioctl(sk: &Sk<Self>, cmd: u32, arg: UserArg) -> Result<c_int> {
        options::control(sk, cmd, arg)
    }

    fn count(sk: &Sk<Self>, cmd: u32) -> Result<c_int> {
        options::count(sk, cmd)
    }

    fn listen(sk: &Sk<Self>, backlog: i32) -> Result {
        accept::listen(sk, backlog)
    }

    fn shutdown(sk: &Sk<Self>, how: Shutdown) -> Result {
        close::shutdown(sk, how)
    }

    fn setsockopt(sk: &Sk<Self>, level: i32, name: i32, val: &OptVal<'_>) -> Result {
        options::set(sk, level, name, val)
    }

    fn getsockopt(sk: &Sk<Self>, level: i32, name: i32, out: &mut OptOut<'_>) -> Result {
        options::get(sk, level, name, out)
    }

    fn sendmsg(call: Call<'_, Self>, message: &mut SendMsg<'_>) -> Result<usize> {
        send::sendmsg(call, message)
    }

    fn recvmsg(call: Call<'_, Self>, message: &mut RecvMsg<'_>) -> Result<usize> {
        recv::recvmsg(call, message)
    }

    fn set_peek_off(sk: &Sk<Self>, value: i32) -> Result {
        // First: who makes plain TCP of it meanwhile copies it to the inner socket.
        sk.store_peek_off(value);
        // Until the rendezvous has decided, it is we who look at what the inner socket has received.
        if sk.phase() == Phase::Fallback && sk.may_cross.load(Relaxed) == 0 {
            sk.tcp()?.set_peek_off(value)?;
        }
        Ok(())
    }

    fn splice_read(sk: &Sk<Self>) {
        if sk.phase() == Phase::Accelerated {
            sk.ns.stats.spliced();
        }
    }

    fn splice_eof(sk: &Sk<Self>) {
        match sk.phase() {
            Phase::Accelerated => conn::push(sk),
            Phase::Fallback => {
                if let Ok(tcp) = sk.tcp() {
                    tcp.splice_eof();
                }
            }
            _ => {}
        }
    }

    fn takes_option(sk: &Sk<Self>, name: i32, val: &OptVal<'_>) -> Result<bool> {
        options::takes(sk, name, val)
    }

    fn options_changed(sk: &Sk<Self>, name: i32, val: &OptVal<'_>) {
        options::changed(sk, name, val);
    }

    fn set_rcvlowat(sk: &Sk<Self>, value: i32) -> Result {
        let limit = TcpSocket::rcvlowat_limit(sk);
        sk.store_rcvlowat(if value < 0 { limit } else { value.min(limit) });
        // What is there may be enough now. Who waits looks again.
        if sk.phase() == Phase::Accelerated {
            sk.wake_readable();
        }
        Ok(())
    }
}
