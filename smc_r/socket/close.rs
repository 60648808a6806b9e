// SPDX-License-Identifier: GPL-2.0

//! `shutdown(2)` and `close(2)`.
//!
//! Closing returns at once unless `SO_LINGER` says otherwise; the end of a listener waits a moment for clients which may use
//! their connections already, and could not be told of the end. What is still to be sent is sent in
//! the background, bounded in time by the connection's timers; the connection keeps the socket
//! object alive until then.

use kapi::{
    errno::{
        ECONNABORTED,
        ECONNRESET,
        ENOTCONN, //
    },
    sock::{opt, Shutdown, Sk, SockLock, Timeo, RCV_SHUTDOWN, SEND_SHUTDOWN},
    tcp::TcpSocket,
    util::task_exiting, //
};
use kernel::{prelude::*, sync::atomic::Relaxed};
use smc_proto::wire::Diagnosis;

use super::{
    accept::{self, Orphans},
    has_ended,
    sk_state,
    Phase,
    SmcSocket,
    SocketRef, //
};
use crate::conn;

/// How many milliseconds `connect(2)` with `AF_UNSPEC` waits for the peer of an accelerated connection.
const DISSOLVE: u32 = 3000;

/// `shutdown(2)`.
pub(super) fn shutdown(sk: &Sk<SmcSocket>, how: Shutdown) -> Result {
    let lock = sk.lock();
    cancel_connect(sk);
    match sk.phase() {
        Phase::Fallback => sk.tcp()?.shutdown(how),
        // There is nothing left to be ended.
        Phase::Accelerated if has_ended(sk) => Err(ENOTCONN),
        Phase::Accelerated => {
            match how {
                Shutdown::Read => {
                    sk.add_shutdown(RCV_SHUTDOWN);
                }
                Shutdown::Write => {
                    sk.add_shutdown(SEND_SHUTDOWN);
                    conn::shutdown_write(sk);
                }
                Shutdown::Both => {
                    sk.add_shutdown(RCV_SHUTDOWN | SEND_SHUTDOWN);
                    conn::shutdown_both(sk);
                }
            }
            sk.wake_state_change();
            Ok(())
        }
        Phase::Listening if how != Shutdown::Write => stop_listening(lock),
        Phase::Listening => Ok(()),
        Phase::Connecting => abandon_connect(sk),
        Phase::Idle | Phase::Dead => Err(ENOTCONN),
    }
}

/// Ends the rendezvous if there is one. If it was decided in the meantime, the phase tells; if not,
/// it stays what it was. Socket lock held.
fn cancel_connect(sk: &Sk<SmcSocket>) {
    // Not in one expression with the call: that would keep the spin lock.
    let handshake = sk.handshake.lock().take();
    if let Some(handshake) = handshake {
        handshake.cancel();
    }
}

/// Makes a socket whose connect was cancelled an idle one again. Socket lock held.
fn abandon_connect(sk: &Sk<SmcSocket>) -> Result {
    let tcp = sk.tcp()?;
    tcp.detach();
    sk.forget_news();
    sk.set_phase(Phase::Idle);
    sk.set_err(ECONNRESET);
    sk.wake_state_change();
    tcp.disconnect()
}

/// Makes a listener an idle socket again.
fn stop_listening(lock: SockLock<'_, SmcSocket>) -> Result {
    let sk = lock.sk();
    let tcp = sk.tcp()?;
    let orphans = accept::stop(sk);
    tcp.detach();
    sk.shown_error.store(0, Relaxed);
    sk.set_phase(Phase::Idle);
    sk.set_state(sk_state::INIT);
    sk.wake_state_change();
    let result = tcp.disconnect();
    drop(lock);
    orphans.close();
    result
}

/// `connect(2)` with `AF_UNSPEC`: dissolves whatever there is.
pub(super) fn dissolve(lock: SockLock<'_, SmcSocket>) -> Result {
    let sk = lock.sk();
    cancel_connect(sk);
    match sk.phase() {
        Phase::Idle => {
            sk.forget_news();
            sk.tcp()?.disconnect()
        }
        Phase::Connecting => abandon_connect(sk),
        Phase::Listening => stop_listening(lock),
        Phase::Fallback => {
            let tcp = sk.tcp()?;
            tcp.detach();
            leave_fallback(sk);
            sk.store_peek_off(-1);
            let result = tcp.disconnect();
            // A connection that was cut off leaves that as an error.
            let _ = sk.take_err();
            if let Err(error) = tcp.take_err() {
                sk.set_err(error);
            }
            sk.wake_state_change();
            result
        }
        Phase::Accelerated => dissolve_accelerated(lock),
        Phase::Dead => Err(EINVAL),
    }
}

/// A socket that is to be plain TCP no more is an idle one. Socket lock held.
///
/// Never to use SMC: a call that moves data of plain TCP reads the phase without a lock, and a program can delay its threads as
/// it likes before they have that of the inner socket. It must not meet a rendezvous there, to send in the name of this
/// host, to the harm of all who use the link group, or to receive the keys of the peer.
pub(super) fn leave_fallback(sk: &Sk<SmcSocket>) {
    sk.never_smc.store(1, Relaxed);
    sk.may_cross.store(0, Relaxed);
    sk.set_fallback(Diagnosis(0), None);
    sk.forget_news();
    sk.shown_error.store(0, Relaxed);
    sk.set_phase(Phase::Idle);
    sk.set_state(sk_state::INIT);
}

/// Aborts the connection, and makes the socket an idle one again once the peer has agreed that nobody
/// writes to the other's buffer any more.
fn dissolve_accelerated(mut lock: SockLock<'_, SmcSocket>) -> Result {
    let sk = lock.sk();
    conn::abort(sk);
    let mut timeo = Timeo::from_ms(DISSOLVE);
    let gone = lock.wait_until(&mut timeo, |sk| sk.conn.lock().is_none().then_some(()));
    match gone {
        Ok(()) => {}
        // It ends in the background, as after close. Such a socket cannot connect before.
        Err(error) if error == EAGAIN => return Err(EBUSY),
        // Another call goes on waiting.
        Err(error) => return Err(error),
    }
    // Another call may have done the rest meanwhile, and another connection may have begun.
    if sk.phase() != Phase::Accelerated {
        return Ok(());
    }
    // Who has taken the connection apart may not be through with the socket.
    sk.conn_timer.cancel_sync();
    let tcp = sk.tcp()?;
    tcp.detach();
    sk.forget_news();
    sk.forget_failure();
    sk.clear_shutdown();
    sk.set_phase(Phase::Idle);
    sk.set_state(sk_state::INIT);
    sk.store_peek_off(-1);
    let result = tcp.disconnect();
    let _ = tcp.take_err();
    sk.set_err(ECONNRESET);
    sk.wake_state_change();
    result
}

/// `close(2)`.
pub(super) fn release(sk: &Sk<SmcSocket>) {
    let mut lock = sk.lock();
    match sk.phase() {
        Phase::Accelerated => {
            sk.add_shutdown(RCV_SHUTDOWN | SEND_SHUTDOWN);
            let linger = sk.linger();
            let aborts = linger.is_some_and(Timeo::is_zero);
            conn::close(sk, aborts);
            if let (true, Ok(tcp)) = (aborts, sk.tcp()) {
                // The same for TCP (RFC 7609 section 4.8.2), which leaves nothing that holds the port.
                tcp.abort(ECONNABORTED);
            }
            let waits = linger.filter(|timeo| !timeo.is_zero() && !task_exiting());
            if let Some(mut timeo) = waits {
                // Running into the limit is what the program asked for: the rest goes on in the
                // background.
                let _ = lock.wait_until(&mut timeo, |sk| conn::is_drained(sk).then_some(()));
            }
        }
        _ => {
            let orphans = end(sk);
            drop(lock);
            orphans.close();
        }
    }
}

/// Ends a socket that has no accelerated connection. Socket lock held.
fn end(sk: &Sk<SmcSocket>) -> Orphans {
    let orphans = accept::stop(sk);
    cancel_connect(sk);
    // A rendezvous that was faster than the cancellation, or has gone too far for it, has made this an accelerated socket.
    if sk.phase() == Phase::Accelerated {
        // TCP is not reset: a server that is not through with its part would take that for the end of the rendezvous.
        conn::close(sk, sk.linger().is_some_and(Timeo::is_zero));
        return orphans;
    }
    sk.set_phase(Phase::Dead);
    sk.set_state(sk_state::CLOSED);
    let tcp = sk.take_tcp();
    if let Some(tcp) = tcp {
        tcp.detach();
        // Others may look at it at this very moment.
        tcp.vacate();
        TcpSocket::close(tcp);
    }
    orphans
}

/// Has the inner socket vanish without waiting for anybody.
pub(crate) fn no_linger(tcp: &TcpSocket) {
    // At worst somebody waits as long as the program wanted it itself.
    let _ = tcp.setsockopt_bytes(opt::SOL_SOCKET, opt::SO_LINGER, &[0; 8]);
}

/// Closes a socket that no program has or will ever have. Process context.
pub(crate) fn abandon(sk: &SocketRef) {
    let lock = sk.lock();
    // First: it is no failure of the rendezvous that TCP ends now.
    cancel_connect(sk);
    let accelerated = sk.phase() == Phase::Accelerated;
    if accelerated {
        conn::close(sk, true);
    }
    if let Ok(tcp) = sk.tcp() {
        // As with TCP, the peer learns that nobody has ever read what it sent, and the port is free.
        tcp.abort(ECONNABORTED);
    }
    if accelerated {
        return;
    }
    let orphans = end(sk);
    drop(lock);
    orphans.close();
}
