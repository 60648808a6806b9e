// SPDX-License-Identifier: GPL-2.0

//! Events of the inner TCP socket, forwarded to whoever cares: the rendezvous while it runs, the
//! listener, the accelerated connection (for which TCP's end is its own), or the program.
//!
//! Called in softirq or process context with the inner socket's lock held: nothing here sleeps, and
//! nothing takes the outer socket's lock.

use core::net::IpAddr;

use kapi::{
    sock::{state as tcp_state, RCV_SHUTDOWN, SHUTDOWN_MASK},
    tcp::{self, TcpSock}, //
};
use kernel::sync::{atomic::Relaxed, Arc};

use super::{show_error, tell_listener, Phase, SmcSocket, SocketRef};
use crate::{conn, handshake::Handshake, peers::Key, stats::Side};

/// Tag type: the forwarder.
pub(crate) struct InnerEvents;

impl tcp::Events<SocketRef> for InnerEvents {
    fn data_ready(sk: &SocketRef, tcp: &TcpSock) {
        match sk.phase() {
            Phase::Connecting => kick(sk),
            Phase::Listening => {
                let listener = sk.listener.lock().clone();
                if let Some(listener) = listener {
                    listener.kick();
                }
            }
            Phase::Accelerated => conn::tcp_event(sk),
            Phase::Fallback => {
                urgent(sk, tcp);
                sk.wake_readable();
                tell_who_defers(sk);
            }
            Phase::Idle | Phase::Dead => {}
        }
    }

    fn state_change(sk: &SocketRef, tcp: &TcpSock) {
        match sk.phase() {
            Phase::Connecting => {
                if let Some(handshake) = handshake(sk) {
                    handshake.tcp_changed(tcp);
                }
            }
            Phase::Accelerated => conn::tcp_event(sk),
            Phase::Fallback => fallback_changed(sk, tcp),
            Phase::Listening => listener_ended(sk, tcp),
            Phase::Idle | Phase::Dead => {}
        }
    }

    fn write_space(sk: &SocketRef, tcp: &TcpSock) {
        match sk.phase() {
            Phase::Connecting => kick(sk),
            // TCP calls at each acknowledgement while somebody waits. Told too early, whoever asked
            // for a signal would have used up the one they get.
            Phase::Fallback if tcp.has_room() => sk.wake_writable(),
            _ => {}
        }
    }

    fn error(sk: &SocketRef, tcp: &TcpSock) {
        match sk.phase() {
            Phase::Connecting => kick(sk),
            Phase::Accelerated => conn::tcp_event(sk),
            Phase::Fallback => {
                show_error(sk, tcp.err());
                sk.wake_error();
                tell_who_defers(sk);
            }
            Phase::Listening => listener_ended(sk, tcp),
            Phase::Idle | Phase::Dead => {}
        }
    }

    fn answers(sk: &SocketRef, tcp: &TcpSock, peer: Option<IpAddr>) -> bool {
        let listener = sk.listener.lock().clone();
        // Who has nothing to speak SMC with would decline: a message there and one back for nothing.
        sk.ns.offers_smc()
            // Without one it is about to end: as with TCP, that resets who comes now, and nobody is told to do without SMC.
            && listener.is_none_or(|listener| listener.has_place(tcp, peer.is_some()))
            && !peer.is_some_and(|address| {
                sk.ns.avoids(&Key {
                    side: Side::Server,
                    address,
                    port: Some(tcp.own_port()),
                })
            })
    }
}

/// Somebody else than the program may end a listener (`SOCK_DESTROY`): whoever waits for connections is to know.
fn listener_ended(sk: &SocketRef, tcp: &TcpSock) {
    if tcp.state() == tcp_state::CLOSE {
        show_error(sk, tcp.err());
        sk.wake_hangup();
        sk.wake_error();
    }
}

/// TCP signals urgent data to the owner of its own socket's file, and there is none. The inner socket is locked.
pub(crate) fn urgent(sk: &SocketRef, tcp: &TcpSock) {
    let news = tcp.urgent();
    if news.is_some_and(|byte| sk.urgent_told.xchg(byte.get(), Relaxed) != byte.get()) {
        sk.send_sigurg();
    }
}

/// A listener may hold back what has become plain TCP, until something comes.
fn tell_who_defers(sk: &SocketRef) {
    if !sk.has_file() {
        tell_listener(sk);
    }
}

/// The same for the signals that go with a change of its state.
fn fallback_changed(sk: &SocketRef, tcp: &TcpSock) {
    tell_who_defers(sk);
    let shut = tcp.shutdown_mask();
    match tcp.state() {
        tcp_state::ESTABLISHED => sk.wake_connected(),
        tcp_state::CLOSE => sk.wake_hangup(),
        _ if shut == SHUTDOWN_MASK => sk.wake_hangup(),
        _ => {
            sk.wake_state_change();
            if shut & RCV_SHUTDOWN != 0 {
                sk.wake_readable();
            }
        }
    }
}

/// The rendezvous under way.
fn handshake(sk: &SmcSocket) -> Option<Arc<Handshake>> {
    sk.handshake.lock().clone()
}

/// Lets the rendezvous look at what happened.
fn kick(sk: &SmcSocket) {
    if let Some(handshake) = handshake(sk) {
        handshake.kick();
    }
}
