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

use kapi::{
    errno::{ENOTCONN, EOPNOTSUPP},
    net::Net,
    new_delayed_work,
    new_spinlock_bh,
    sock::{
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
        UserArg, //
    },
    spinlock_bh::SpinLockBh,
    tcp::TcpSocket,
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
pub(crate) use events::InnerEvents;

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
    /// An option rules SMC out: the option is not offered.
    pub(crate) never_smc: Atomic<u32>,
    /// A reader has been told that the stream was cut off.
    pub(crate) cut_told: Atomic<u32>,
    /// A connect has succeeded, and no call has told the program.
    news: Atomic<u32>,
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
            cut_told: Atomic::new(0),
            news: Atomic::new(0),
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
        self.news.store(1, Relaxed);
    }

    /// Whether a connect has succeeded since this was last asked.
    fn take_news(&self) -> bool {
        self.news.xchg(0, Relaxed) != 0
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

impl Socket for SmcSocket {
    const NAMES: Names = Names {
        native: c"SMC",
        native6: c"SMC6",
        inet: c"INET_SMC",
        inet6: c"INET6_SMC",
        spin: c"slock-AF_SMC",
        lock: c"sk_lock-AF_SMC",
    };

    fn init(net: &Net, kind: Kind) -> impl PinInit<Self, Error> {
        pin_init::pin_init_scope(move || {
            let ns = crate::netns::of(net)?;
            let tcp = Arc::new(TcpSocket::create(net, kind.family)?, GFP_KERNEL)?;
            Ok(Self::with_tcp(ns, tcp, Phase::Idle))
        })
    }

    fn created(sk: &Sk<Self>) {
        let doubled = |size: u32| i32::try_from(size.saturating_mul(2)).unwrap_or(i32::MAX);
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

    fn getname(sk: &Sk<Self>, peer: bool) -> Result<SockAddr> {
        let tcp = sk.tcp()?;
        if peer {
            tcp.peer_addr()
        } else {
            tcp.local_addr()
        }
    }

    fn poll(sk: &Sk<Self>) -> u32 {
        poll::poll(sk)
    }

    fn ioctl(sk: &Sk<Self>, cmd: u32, arg: UserArg) -> Result<c_int> {
        options::control(sk, cmd, arg)
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

    fn sendmsg(sk: &Sk<Self>, message: &mut SendMsg<'_>) -> Result<usize> {
        send::sendmsg(sk, message)
    }

    fn recvmsg(sk: &Sk<Self>, message: &mut RecvMsg<'_>) -> Result<usize> {
        recv::recvmsg(sk, message)
    }

    fn set_peek_off(sk: &Sk<Self>, value: i32) -> Result {
        match sk.phase() {
            Phase::Fallback => sk.tcp()?.set_peek_off(value),
            _ => Err(EOPNOTSUPP),
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

    fn options_changed(sk: &Sk<Self>, name: i32, val: &OptVal<'_>) {
        options::changed(sk, name, val);
    }

    fn set_rcvlowat(sk: &Sk<Self>, value: i32) -> Result {
        let limit = TcpSocket::rcvlowat_limit(sk);
        sk.store_rcvlowat(if value < 0 { limit } else { value.min(limit) });
        Ok(())
    }
}
