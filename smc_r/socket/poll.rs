// SPDX-License-Identifier: GPL-2.0

//! `poll(2)` and friends. The caller has already registered with the socket's wait queue.

use kapi::sock::{poll as bits, state as tcp_state, Call, Sk, RCV_SHUTDOWN, SEND_SHUTDOWN};

use super::{recv, settle_error, show_error_once, Phase, SmcSocket};
use crate::conn;

/// The events that are true now. Process context.
pub(super) fn poll(call: Call<'_, SmcSocket>) -> u32 {
    let sk = call.sk();
    match sk.phase() {
        Phase::Fallback => {
            let mask = call.kept().map_or(bits::HUP, |tcp| {
                settle_error(sk, tcp);
                let mask = tcp.poll();
                // TCP has an error a moment before it tells of that. Who sees it now may ask at once which one it is.
                if mask & bits::ERR != 0 {
                    show_error_once(sk, tcp);
                }
                // What is no data of the program is nothing to wake up for: reading would wait.
                let is_data = mask & bits::IN == 0 || recv::is_settled(sk);
                mask & if is_data {
                    !0
                } else {
                    !(bits::IN | bits::RDNORM)
                }
            });
            mask | error_bit(sk)
        }
        // One that somebody else has ended.
        Phase::Listening if sk.tcp().is_ok_and(|tcp| tcp.state() != tcp_state::LISTEN) => {
            let mask = sk.tcp().map_or(bits::HUP, |tcp| {
                settle_error(sk, &tcp);
                tcp.poll()
            });
            mask | error_bit(sk)
        }
        Phase::Listening => {
            let ready = sk.listener.lock().as_ref().is_some_and(|l| l.has_ready());
            let mask = if ready { bits::IN | bits::RDNORM } else { 0 };
            mask | error_bit(sk)
        }
        Phase::Connecting => error_bit(sk),
        Phase::Idle if sk.has_failed() => {
            let end = bits::IN | bits::RDNORM | bits::RDHUP;
            end | bits::OUT | bits::WRNORM | bits::HUP | error_bit(sk)
        }
        Phase::Idle | Phase::Dead => bits::OUT | bits::WRNORM | bits::HUP | error_bit(sk),
        Phase::Accelerated => accelerated(sk),
    }
}

fn error_bit(sk: &Sk<SmcSocket>) -> u32 {
    if sk.err() != 0 || sk.has_notices() {
        bits::ERR
    } else {
        0
    }
}

fn accelerated(sk: &Sk<SmcSocket>) -> u32 {
    let status = conn::status(sk);
    let shut = sk.shutdown_mask();
    let read_shut = shut & RCV_SHUTDOWN != 0 || status.eof;
    let write_shut = shut & SEND_SHUTDOWN != 0;
    let mut mask = error_bit(sk);
    if status.over || (read_shut && write_shut) {
        mask |= bits::HUP;
    }
    if read_shut {
        mask |= bits::IN | bits::RDNORM | bits::RDHUP;
    }
    // Nothing comes behind an urgent byte until it is read.
    let lowat = if status.held_up {
        1
    } else {
        sk.rcvlowat().min(status.awaitable)
    };
    if status.readable != 0 && status.readable >= lowat {
        mask |= bits::IN | bits::RDNORM;
    }
    if write_shut || status.write_shut || status.over || status.writable {
        mask |= bits::OUT | bits::WRNORM;
    }
    if status.urgent {
        mask |= bits::PRI;
    }
    mask
}
