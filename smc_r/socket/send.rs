// SPDX-License-Identifier: GPL-2.0

//! `send(2)` and its relatives.
//!
//! User data is copied straight into the registered send ring; nothing else holds it in between. A
//! blocking call returns when all of it is there, as TCP's does.

use kapi::{
    errno::{
        EINVAL,
        EISCONN,
        ENOTCONN, //
    },
    sock::{
        msg,
        state as tcp_state,
        Call,
        Completion,
        SendMsg,
        Sk,
        Timeo,
        RCV_SHUTDOWN,
        SEND_SHUTDOWN, //
    },
    tcp::TcpSocket,
    trace,
    util::send_sigpipe, //
};
use kernel::prelude::*;
use smc_proto::{conn::SendFlags, wire::Diagnosis};

use super::{connect, with_error_of, Phase, SmcSocket};
use crate::conn;

/// `sendmsg(2)`.
pub(super) fn sendmsg(call: Call<'_, SmcSocket>, message: &mut SendMsg<'_>) -> Result<usize> {
    let sk = call.sk();
    match sk.phase() {
        Phase::Accelerated if message.flags() & msg::FASTOPEN != 0 => Err(EISCONN),
        Phase::Accelerated => accelerated(sk, message),
        Phase::Fallback => {
            let tcp = call.kept().ok_or(ENOTCONN)?;
            forward(sk, tcp, message)
        }
        Phase::Idle if message.flags() & msg::FASTOPEN != 0 => fast_open(sk, message),
        Phase::Connecting => {
            connected(sk, sk.sndtimeo(message.nonblock()))?;
            sendmsg(call, message)
        }
        Phase::Idle | Phase::Listening | Phase::Dead => {
            let error = sk.take_err().err().unwrap_or(EPIPE);
            broken(message, error)
        }
    }
}

/// Sends by the inner socket. What was dissolved meanwhile is not connected by that.
fn forward(sk: &Sk<SmcSocket>, tcp: &TcpSocket, message: &mut SendMsg<'_>) -> Result<usize> {
    let is_plain = || sk.phase() == Phase::Fallback;
    with_error_of(sk, tcp, || tcp.forward_send(message, is_plain))
}

/// Waits for the end of a connect that is under way, as TCP does, for as long as the call that needs it.
pub(super) fn connected(sk: &Sk<SmcSocket>, mut timeo: Timeo) -> Result {
    let mut lock = sk.lock();
    lock.wait_until(&mut timeo, |sk| {
        (sk.phase() != Phase::Connecting).then_some(())
    })?;
    match sk.phase() {
        // What has become of it since comes behind its data.
        Phase::Accelerated | Phase::Fallback => Ok(()),
        _ => sk.take_err(),
    }
}

/// Data in the SYN leaves no place for CLC messages: plain TCP.
fn fast_open(sk: &Sk<SmcSocket>, message: &mut SendMsg<'_>) -> Result<usize> {
    let tcp = {
        let _lock = sk.lock();
        if sk.phase() != Phase::Idle {
            return Err(EINVAL);
        }
        connect::plain(sk, Diagnosis::SOCKET_OPTION)?
    };
    let result = forward(sk, &tcp, message);
    let _lock = sk.lock();
    // As for connect().
    tcp.inherit_back(sk);
    if result.is_err() && tcp.state() == tcp_state::CLOSE {
        connect::unplain(sk, &tcp);
    }
    result
}

/// The error of a send that cannot be, with the signal that goes with it.
fn broken(message: &SendMsg<'_>, error: Error) -> Result<usize> {
    if error == EPIPE && message.flags() & msg::NOSIGNAL == 0 {
        send_sigpipe();
    }
    Err(error)
}

fn accelerated(sk: &Sk<SmcSocket>, message: &mut SendMsg<'_>) -> Result<usize> {
    let mut lock = sk.lock();
    let mut timeo = sk.sndtimeo(message.nonblock());
    let urgent = message.flags() & msg::OOB != 0;
    if urgent {
        sk.ns.stats.urgent();
    }
    conn::note_send(sk, message.len());
    sk.check_control(message)?;
    if message.is_empty() {
        return match open(sk) {
            Ok(()) => Ok(0),
            Err(error) => broken(message, error),
        };
    }
    let completion = completion(sk, message)?;
    let asked = message.len();
    let mut done = 0usize;
    while !message.is_empty() {
        if done != 0 && sk.err() != 0 {
            // The error stays for the next call.
            break;
        }
        match piece(sk, message, urgent) {
            // The direction was shut while the data was copied.
            Ok(Some(0)) | Err(_) if done != 0 => break,
            Ok(Some(0)) => return nothing_sent(sk, message, asked, completion, EPIPE),
            Err(error) => return nothing_sent(sk, message, asked, completion, error),
            Ok(Some(n)) => done = done.wrapping_add(n),
            // The ring is full.
            Ok(None) => {
                sk.ns.stats.tx().own_full();
                let room = lock.wait_until(&mut timeo, |sk| {
                    (conn::may_send(sk) || sk.err() != 0).then_some(())
                });
                match room {
                    Ok(()) => {}
                    Err(_) if done != 0 => break,
                    Err(error) => return Err(error),
                }
            }
        }
    }
    sk.ns.stats.send_call(done);
    if done != 0 && !message.is_empty() {
        conn::give_up_send(sk);
    }
    // The data is in the ring, and the program's memory free again.
    if let Some(completion) = completion.filter(|_| done != 0) {
        completion.copied();
    }
    Ok(done)
}

/// How a call ends of whose data, so many bytes, nothing was taken.
#[cold]
fn nothing_sent(
    sk: &Sk<SmcSocket>,
    message: &SendMsg<'_>,
    asked: usize,
    completion: Option<Completion>,
    error: Error,
) -> Result<usize> {
    if error != EPIPE {
        return Err(error);
    }
    // What came while the call looked, or copied, says why.
    if let Err(error) = sk.take_err() {
        return broken(message, error);
    }
    if !is_first_unheard(sk) {
        return broken(message, EPIPE);
    }
    refused(sk);
    if let Some(completion) = completion {
        completion.copied();
    }
    Ok(asked)
}

/// Whether this is the first data for a peer that has closed.
fn is_first_unheard(sk: &Sk<SmcSocket>) -> bool {
    sk.shutdown_mask() & SEND_SHUTDOWN == 0 && conn::is_unheard(sk)
}

/// TCP learns that nobody reads at the other end from the answer to data. Programs know it so: what
/// they send first is taken, and the error meets them at the next call.
fn refused(sk: &Sk<SmcSocket>) {
    if !conn::status(sk).read_shut {
        // What the peer had left when it closed is still to come, and readers are to see the end behind that.
        sk.add_shutdown(SEND_SHUTDOWN);
        sk.wake_state_change();
        return;
    }
    sk.add_shutdown(RCV_SHUTDOWN | SEND_SHUTDOWN);
    sk.set_err(EPIPE);
    sk.wake_state_change();
    sk.wake_error();
}

/// Whether data may be sent.
fn open(sk: &Sk<SmcSocket>) -> Result {
    sk.take_err()?;
    let shut = sk.shutdown_mask() & SEND_SHUTDOWN != 0 || conn::status(sk).write_shut;
    if shut && !is_first_unheard(sk) {
        return Err(EPIPE);
    }
    Ok(())
}

/// What the program is told if it has asked for that, and for sending without a copy. There is one all
/// the same.
fn completion(sk: &Sk<SmcSocket>, message: &SendMsg<'_>) -> Result<Option<Completion>> {
    let asked = message.flags() & msg::ZEROCOPY != 0 && !message.notifies_itself();
    if !asked || !sk.wants_completions() {
        return Ok(None);
    }
    Completion::new(sk, message.len()).map(Some)
}

/// Copies as much as fits now, and sends it off. `None` if nothing fits.
fn piece(sk: &Sk<SmcSocket>, message: &mut SendMsg<'_>, urgent: bool) -> Result<Option<usize>> {
    sk.take_err()?;
    if sk.shutdown_mask() & SEND_SHUTDOWN != 0 {
        return Err(EPIPE);
    }
    let (ring, spans) = conn::begin_send(sk, message.len())?;
    if spans.is_empty() {
        return Ok(None);
    }
    let mut copied = 0usize;
    for span in spans.iter() {
        let len = span.len as usize;
        // In bounds: the span is part of the ring.
        let copy = |iter| {
            ring.pages()
                .copy_from_iter(span.offset as usize, len, iter)
                .ok()
        };
        let n = message.iter().and_then(copy).unwrap_or(0);
        copied = copied.wrapping_add(n);
        if n < len {
            break;
        }
    }
    let flags = SendFlags {
        urgent: urgent && message.is_empty(),
        more: message.more(),
        partial: !message.is_empty(),
    };
    let taken = conn::commit_send(sk, copied, flags);
    match (copied, taken) {
        (0, _) => Err(EFAULT),
        _ => {
            trace::sent(sk, sk.ns.cookie, taken, || conn::device_name(sk));
            Ok(Some(taken))
        }
    }
}
