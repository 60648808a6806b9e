// SPDX-License-Identifier: GPL-2.0

//! `shutdown(2)` and `close(2)`.
//!
//! Closing returns at once unless `SO_LINGER` says otherwise. What is still to be sent is sent in
//! the background, bounded in time by the connection's timers; the connection keeps the socket
//! object alive until then.

use kapi::{
    errno::{
        ECONNABORTED,
        ENOTCONN, //
    },
    sock::{Shutdown, Sk, Timeo, RCV_SHUTDOWN, SEND_SHUTDOWN}, //
};
use kernel::prelude::*;

use super::{accept, sk_state, Phase, SmcSocket, SocketRef};
use crate::conn;

/// `shutdown(2)`.
pub(super) fn shutdown(sk: &Sk<SmcSocket>, how: Shutdown) -> Result {
    let _lock = sk.lock();
    cancel_connect(sk);
    match sk.phase() {
        Phase::Fallback => sk.tcp()?.shutdown(how),
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
        Phase::Listening if how != Shutdown::Write => stop_listening(sk),
        Phase::Listening => Ok(()),
        Phase::Connecting => {
            sk.set_err(ECONNABORTED);
            abandon_connect(sk)
        }
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
    sk.set_phase(Phase::Idle);
    sk.wake_state_change();
    tcp.disconnect()
}

/// Makes a listener an idle socket again. Socket lock held.
fn stop_listening(sk: &Sk<SmcSocket>) -> Result {
    accept::stop(sk);
    let tcp = sk.tcp()?;
    tcp.detach();
    sk.set_phase(Phase::Idle);
    sk.set_state(sk_state::INIT);
    sk.wake_state_change();
    tcp.disconnect()
}

/// `connect(2)` with `AF_UNSPEC`: dissolves whatever there is. Socket lock held.
pub(super) fn dissolve(sk: &Sk<SmcSocket>) -> Result {
    cancel_connect(sk);
    match sk.phase() {
        Phase::Idle => sk.tcp()?.disconnect(),
        Phase::Connecting => abandon_connect(sk),
        Phase::Listening => stop_listening(sk),
        Phase::Fallback => {
            let tcp = sk.tcp()?;
            tcp.detach();
            sk.set_phase(Phase::Idle);
            sk.set_state(sk_state::INIT);
            tcp.disconnect()
        }
        Phase::Accelerated => {
            conn::abort(sk);
            Ok(())
        }
        Phase::Dead => Err(EINVAL),
    }
}

/// `close(2)`.
pub(super) fn release(sk: &Sk<SmcSocket>) {
    let mut lock = sk.lock();
    match sk.phase() {
        Phase::Accelerated => {
            sk.add_shutdown(RCV_SHUTDOWN | SEND_SHUTDOWN);
            let linger = sk.linger();
            conn::close(sk, linger.is_some_and(Timeo::is_zero));
            if let Some(mut timeo) = linger.filter(|timeo| !timeo.is_zero()) {
                // Running into the limit is what the program asked for: the rest goes on in the
                // background.
                let _ = lock.wait_until(&mut timeo, |sk| conn::is_drained(sk).then_some(()));
            }
        }
        _ => end(sk),
    }
}

/// Ends a socket that has no accelerated connection. Process context.
fn end(sk: &Sk<SmcSocket>) {
    accept::stop(sk);
    cancel_connect(sk);
    // A rendezvous that was faster than the cancellation has made this an accelerated socket.
    if sk.phase() == Phase::Accelerated {
        conn::close(sk, false);
        return;
    }
    sk.set_phase(Phase::Dead);
    sk.set_state(sk_state::CLOSED);
    if let Some(tcp) = sk.take_tcp() {
        tcp.detach();
    }
}

/// Closes a socket that no program has or will ever have. Process context.
pub(crate) fn abandon(sk: &SocketRef) {
    let _lock = sk.lock();
    if sk.phase() == Phase::Accelerated {
        conn::close(sk, true);
    } else {
        end(sk);
    }
}
