// SPDX-License-Identifier: GPL-2.0

//! `bind(2)` and `connect(2)`.
//!
//! Connecting is driven by events (see [`Handshake`]); the system call only starts it and waits for
//! the outcome. So a blocking connect, a non-blocking one, and one that was interrupted by a signal
//! are the same thing seen from different places.

use kapi::{
    errno::*,
    sock::{OpFlags, Sk, SockAddr},
    tcp::{Stage, TcpSocket}, //
};
use kernel::{
    prelude::*,
    sync::{atomic::Relaxed, Arc}, //
};
use smc_proto::wire::Diagnosis;

use super::{sk_state, InnerEvents, Phase, SmcSocket};
use crate::{handshake::Handshake, stats::Side};

/// `bind(2)`.
pub(super) fn bind(sk: &Sk<SmcSocket>, addr: &SockAddr) -> Result {
    let _lock = sk.lock();
    if sk.phase() != Phase::Idle {
        return Err(EINVAL);
    }
    let tcp = sk.tcp()?;
    tcp.inherit_from(sk, Stage::Bind);
    tcp.bind(addr)
}

/// `connect(2)`.
pub(super) fn connect(sk: &Sk<SmcSocket>, addr: &SockAddr, flags: OpFlags) -> Result {
    let mut lock = sk.lock();
    match sk.phase() {
        Phase::Idle if *addr == SockAddr::Unspec => return sk.tcp()?.disconnect(),
        Phase::Idle => start(sk, addr)?,
        Phase::Connecting if flags.nonblock => return Err(EALREADY),
        Phase::Connecting => {}
        Phase::Fallback if *addr == SockAddr::Unspec => {
            sk.tcp()?.disconnect()?;
            sk.set_phase(Phase::Idle);
            sk.set_state(sk_state::INIT);
            return Ok(());
        }
        Phase::Listening | Phase::Accelerated | Phase::Fallback => return Err(EISCONN),
        Phase::Dead => return Err(EINVAL),
    }
    if flags.nonblock {
        return Err(EINPROGRESS);
    }
    let mut timeo = sk.sndtimeo(false);
    lock.wait_until(&mut timeo, |sk| (sk.phase() != Phase::Connecting).then_some(()))
        .map_err(|error| if error == EAGAIN { EINPROGRESS } else { error })?;
    sk.take_err()?;
    match sk.phase() {
        Phase::Accelerated | Phase::Fallback => Ok(()),
        _ => Err(ECONNABORTED),
    }
}

/// Starts the TCP connection, with the option if this host may have a use for it.
fn start(sk: &Sk<SmcSocket>, addr: &SockAddr) -> Result {
    let tcp = sk.tcp()?;
    tcp.inherit_from(sk, Stage::Traffic);
    let offered = sk.ns.offers_smc() && sk.never_smc.load(Relaxed) == 0;
    if offered {
        tcp.offer_option()?;
    }
    // From here on the rendezvous sees what happens to the TCP connection, its failure included.
    let handshake = Handshake::client(sk.into(), tcp.clone(), offered)?;
    *sk.handshake.lock() = Some(handshake.clone());
    sk.set_phase(Phase::Connecting);
    tcp.attach::<_, InnerEvents>(sk.into());
    if let Err(error) = tcp.connect(addr) {
        tcp.detach();
        sk.handshake.lock().take();
        sk.set_phase(Phase::Idle);
        return Err(error);
    }
    handshake.kick();
    Ok(())
}

/// Makes a socket that has not been connected plain TCP for good. Socket lock held.
pub(super) fn plain(sk: &Sk<SmcSocket>, reason: Diagnosis) -> Result<Arc<TcpSocket>> {
    let tcp = sk.tcp()?;
    tcp.inherit_from(sk, Stage::Traffic);
    sk.set_fallback(reason, None);
    sk.ns.stats.fallback(Side::Client, reason);
    sk.set_phase(Phase::Fallback);
    tcp.attach::<_, InnerEvents>(sk.into());
    Ok(tcp)
}
