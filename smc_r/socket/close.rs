// SPDX-License-Identifier: GPL-2.0

//! `shutdown(2)` and `close(2)`.
//!
//! Closing returns at once unless `SO_LINGER` says otherwise. What is still to be sent is sent in
//! the background, bounded in time by the connection's timers; the connection keeps the socket
//! object alive until then.

use kapi::{
    errno::*,
    sock::{Shutdown, Sk, Timeo, RCV_SHUTDOWN, SEND_SHUTDOWN}, //
};
use kernel::prelude::*;

use super::{accept, sk_state, Phase, SmcSocket, SocketRef};
use crate::conn;

/// `shutdown(2)`.
pub(super) fn shutdown(sk: &Sk<SmcSocket>, how: Shutdown) -> Result {
    let _lock = sk.lock();
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
        Phase::Listening if how != Shutdown::Write => {
            accept::stop(sk);
            let tcp = sk.tcp()?;
            tcp.detach();
            sk.set_phase(Phase::Idle);
            sk.set_state(sk_state::INIT);
            sk.wake_state_change();
            tcp.disconnect()
        }
        Phase::Listening => Ok(()),
        Phase::Connecting => {
            if let Some(handshake) = sk.handshake.lock().take() {
                handshake.cancel();
            }
            sk.set_err(ECONNABORTED);
            sk.set_phase(Phase::Idle);
            sk.wake_state_change();
            let tcp = sk.tcp()?;
            tcp.detach();
            tcp.disconnect()
        }
        Phase::Idle | Phase::Dead => Err(ENOTCONN),
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
    if let Some(handshake) = sk.handshake.lock().take() {
        handshake.cancel();
    }
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
