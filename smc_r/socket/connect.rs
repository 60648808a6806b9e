// SPDX-License-Identifier: GPL-2.0

//! `bind(2)` and `connect(2)`.
//!
//! Connecting is driven by events (see [`Handshake`]); the system call only starts it and waits for
//! the outcome. So a blocking connect, a non-blocking one, and one that was interrupted by a signal
//! are the same thing seen from different places.

use kapi::{
    errno::{
        EALREADY,
        ECONNABORTED,
        EINPROGRESS,
        EINVAL,
        EISCONN, //
    },
    sock::{state as tcp_state, OpFlags, Sk, SockAddr, SockLock},
    tcp::{Connect, Stage, TcpSocket}, //
};
use kernel::{
    prelude::*,
    sync::{atomic::Relaxed, Arc}, //
};
use smc_proto::wire::Diagnosis;

use super::{close, falls_back, with_error_of, InnerEvents, News, Phase, SmcSocket};
use crate::{handshake::Handshake, peers::Key, stats::Side};

/// `bind(2)`.
pub(super) fn bind(sk: &Sk<SmcSocket>, addr: &SockAddr) -> Result {
    let _lock = sk.lock();
    if sk.phase() != Phase::Idle {
        return Err(EINVAL);
    }
    let tcp = sk.tcp()?;
    tcp.inherit_from(sk, Stage::Bind);
    let result = tcp.bind(addr);
    tcp.inherit_back(sk);
    result
}

/// `connect(2)`.
pub(super) fn connect(sk: &Sk<SmcSocket>, addr: &SockAddr, flags: OpFlags) -> Result {
    let mut lock = sk.lock();
    let mut unfinished = EINPROGRESS;
    if addr.is_unspec() {
        return close::dissolve(lock);
    }
    match sk.phase() {
        Phase::Idle => {
            if sk.has_failed() {
                // What the last attempt came to has to be told before the next one.
                sk.forget_news();
                sk.take_err()?;
                return Err(ECONNABORTED);
            }
            // As TCP does, which tells an error of something else no more.
            let _ = sk.take_err();
            if sk.never_smc.load(Relaxed) != 0 {
                return connect_plain(&mut lock, addr, flags);
            }
            start(sk, addr)?;
        }
        Phase::Connecting if flags.nonblock => return Err(EALREADY),
        Phase::Connecting => unfinished = EALREADY,
        // As TCP does: the first call after the end of an attempt tells how it ended.
        Phase::Accelerated | Phase::Fallback if sk.take_news() == News::Connected => {
            sk.tcp()?.inherit_back(sk);
            return Ok(());
        }
        // The inner socket's own connect, which no rendezvous has seen: TCP tells once that it is over, too.
        Phase::Fallback if sk.fallback().0 == Diagnosis::SOCKET_OPTION => {
            return connect_plain(&mut lock, addr, flags)
        }
        Phase::Listening | Phase::Accelerated | Phase::Fallback => return Err(EISCONN),
        Phase::Dead => return Err(EINVAL),
    }
    if flags.nonblock {
        return Err(EINPROGRESS);
    }
    let mut timeo = sk.sndtimeo(false);
    lock.wait_until(&mut timeo, |sk| {
        (sk.phase() != Phase::Connecting).then_some(())
    })
    .map_err(|error| if error == EAGAIN { unfinished } else { error })?;
    sk.take_news();
    match sk.phase() {
        // What has become of it since is for the next call to tell.
        Phase::Accelerated | Phase::Fallback => {
            sk.tcp()?.inherit_back(sk);
            Ok(())
        }
        _ => Err(sk.take_err().err().unwrap_or(ECONNABORTED)),
    }
}

/// Has the inner socket connect. The device of a link-local address, and what programs of a control group set, the outer one
/// has as well. Socket lock held.
fn connect_inner(sk: &Sk<SmcSocket>, tcp: &TcpSocket, addr: &SockAddr) -> Result<Connect> {
    let result = tcp.connect(addr);
    tcp.inherit_back(sk);
    result
}

/// Connects a socket that is not to use SMC.
fn connect_plain(lock: &mut SockLock<'_, SmcSocket>, addr: &SockAddr, flags: OpFlags) -> Result {
    let sk = lock.sk();
    let tcp = if sk.phase() == Phase::Fallback {
        sk.tcp()?
    } else {
        plain(sk, Diagnosis::SOCKET_OPTION)?
    };
    match with_error_of(sk, &tcp, || connect_inner(sk, &tcp, addr)) {
        Ok(Connect::Done) => return Ok(()),
        Ok(Connect::InProgress) if flags.nonblock => return Err(EINPROGRESS),
        Ok(Connect::InProgress) => {}
        Err(error) if error == EALREADY && !flags.nonblock => {}
        Err(error) => {
            // One that was connected has ended otherwise.
            if error != EISCONN && tcp.state() == tcp_state::CLOSE {
                unplain(sk, &tcp);
            }
            return Err(error);
        }
    }
    let mut timeo = sk.sndtimeo(false);
    lock.wait_until(&mut timeo, |sk| {
        let connects = matches!(tcp.state(), tcp_state::SYN_SENT | tcp_state::SYN_RECV);
        (!connects || sk.phase() != Phase::Fallback).then_some(())
    })
    .map_err(|error| if error == EAGAIN { EINPROGRESS } else { error })?;
    // Another call has dissolved it.
    if sk.phase() != Phase::Fallback {
        sk.take_err()?;
        return Err(ECONNABORTED);
    }
    // TCP tells how it ended, and knows that it has.
    if let Err(error) = with_error_of(sk, &tcp, || connect_inner(sk, &tcp, addr)) {
        if tcp.state() == tcp_state::CLOSE {
            // The program may connect again, or do something else.
            unplain(sk, &tcp);
        }
        return Err(error);
    }
    Ok(())
}

/// Starts the TCP connection, with the option if this host may have a use for it.
fn start(sk: &Sk<SmcSocket>, addr: &SockAddr) -> Result {
    let tcp = sk.tcp()?;
    tcp.inherit_from(sk, Stage::Traffic);
    let avoids = |address| {
        sk.ns.avoids(&Key {
            side: Side::Client,
            address,
            port: Some(addr.port()),
        })
    };
    let mut refusal = if !sk.ns.rules.allow(sk, Side::Client, addr.ip(), addr.port()) {
        Some(Diagnosis::CONFIGURATION)
    } else if addr.ip().is_some_and(avoids) {
        Some(Diagnosis::REMEMBERED)
    } else {
        None
    };
    let mut offered = refusal.is_none() && sk.ns.offers_smc();
    if tcp.offer_option(offered).is_err() {
        // Packets of this namespace cannot be looked at, for want of memory, say: TCP needs nothing of that.
        refusal = Some(Diagnosis::MEMORY);
        offered = false;
        tcp.offer_option(false)?;
    }
    sk.forget_news();
    // From here on the rendezvous sees what happens to the TCP connection, its failure included.
    let handshake = Handshake::client(sk.into(), tcp.clone(), offered, refusal)?;
    *sk.handshake.lock() = Some(handshake.clone());
    sk.set_phase(Phase::Connecting);
    tcp.attach::<_, InnerEvents>(sk.into());
    if let Err(error) = connect_inner(sk, &tcp, addr) {
        tcp.detach();
        // An event may have queued it.
        handshake.cancel();
        sk.handshake.lock().take();
        let _ = sk.take_err();
        sk.forget_news();
        sk.set_phase(Phase::Idle);
        return Err(error);
    }
    // What follows is up to the events, which have been told of since before the SYN. But a host
    // that is this one has said no by now, and the next call is to know.
    if tcp.state() == tcp_state::CLOSE {
        handshake.run();
    }
    Ok(())
}

/// An attempt to connect by plain TCP has come to nothing: the socket is an idle one, for more of that. Socket lock held.
pub(super) fn unplain(sk: &Sk<SmcSocket>, tcp: &TcpSocket) {
    if sk.phase() == Phase::Fallback {
        tcp.detach();
        close::leave_fallback(sk);
        let _ = tcp.disconnect();
    }
}

/// Makes a socket that has not been connected plain TCP for good. Socket lock held.
pub(super) fn plain(sk: &Sk<SmcSocket>, reason: Diagnosis) -> Result<Arc<TcpSocket>> {
    let tcp = sk.tcp()?;
    tcp.offer_option(false)?;
    tcp.inherit_from(sk, Stage::All);
    falls_back(sk, reason, None);
    sk.ns.fell_back(Side::Client, reason, None, None);
    sk.set_phase(Phase::Fallback);
    tcp.attach::<_, InnerEvents>(sk.into());
    Ok(tcp)
}
