// SPDX-License-Identifier: GPL-2.0

//! `recv(2)` and its relatives.
//!
//! Data is copied straight out of the RMB element that the peer wrote.

use kapi::{
    errno::{
        ECONNRESET,
        EINVAL,
        ENOTCONN, //
    },
    sock::{msg, RecvMsg, Sk, RCV_SHUTDOWN},
    tcp::TcpSocket,
    util::spin_until, //
};
use kernel::{prelude::*, sync::atomic::Relaxed};
use smc_proto::{
    conn::UrgentError,
    handshake::{crossed_decline, Crossed}, //
};

use super::{send, Phase, SmcSocket};
use crate::conn;

/// `recvmsg(2)`.
pub(super) fn recvmsg(sk: &Sk<SmcSocket>, message: &mut RecvMsg<'_>) -> Result<usize> {
    match sk.phase() {
        Phase::Accelerated if message.flags() & msg::OOB != 0 => urgent(sk, message),
        Phase::Accelerated if message.flags() & msg::ERRQUEUE != 0 => Err(EAGAIN),
        Phase::Accelerated => accelerated(sk, message),
        Phase::Fallback => {
            let tcp = sk.tcp()?;
            if sk.may_cross.load(Relaxed) != 0 {
                skip_crossed_decline(sk, &tcp, message.nonblock())?;
            }
            tcp.forward_recv(message)
        }
        Phase::Connecting => {
            send::connected(sk, message.nonblock())?;
            recvmsg(sk, message)
        }
        Phase::Idle | Phase::Listening | Phase::Dead => {
            Err(sk.take_err().err().unwrap_or(ENOTCONN))
        }
    }
}

/// A Decline of the peer may have crossed ours: it is no data of the application.
fn skip_crossed_decline(sk: &Sk<SmcSocket>, tcp: &TcpSocket, nonblock: bool) -> Result {
    let mut lock = sk.lock();
    let mut timeo = sk.rcvtimeo(nonblock);
    let mut seen = 0;
    while sk.may_cross.load(Relaxed) != 0 {
        // Nothing has come, or not enough to tell.
        lock.wait_until(&mut timeo, |_| {
            let ended = tcp.err() != 0 || tcp.shutdown_mask() & RCV_SHUTDOWN != 0;
            (ended || tcp.inq() as usize > seen).then_some(())
        })?;
        let mut start = [0; 64];
        seen = match tcp.peek(&mut start) {
            Ok(seen) => seen,
            Err(error) if error == EAGAIN => continue,
            // For the call that follows.
            Err(_) => 0,
        };
        let ended = tcp.shutdown_mask() & RCV_SHUTDOWN != 0;
        match crossed_decline(start.get(..seen).unwrap_or(&[])) {
            Crossed::NeedMore if seen != 0 && !ended => continue,
            Crossed::Decline(len) => {
                if let Some(sink) = start.get_mut(..len) {
                    tcp.recv(sink)?;
                }
            }
            Crossed::NeedMore | Crossed::No => {}
        }
        sk.may_cross.store(0, Relaxed);
    }
    Ok(())
}

fn urgent(sk: &Sk<SmcSocket>, message: &mut RecvMsg<'_>) -> Result<usize> {
    let _lock = sk.lock();
    match conn::recv_urgent(sk, message.flags() & msg::PEEK != 0) {
        Ok(byte) => {
            message.add_out_flags(msg::OOB);
            if message.is_empty() {
                message.add_out_flags(msg::TRUNC);
                return Ok(0);
            }
            if message.flags() & msg::TRUNC == 0 {
                message.copy_to(&[byte])?;
            }
            Ok(1)
        }
        Err(UrgentError::Invalid) => Err(EINVAL),
        Err(UrgentError::NotYet) => Err(EAGAIN),
        Err(UrgentError::End) => Ok(0),
    }
}

fn accelerated(sk: &Sk<SmcSocket>, message: &mut RecvMsg<'_>) -> Result<usize> {
    let spin = sk.busy_poll();
    if spin != 0 && !message.nonblock() {
        spin_until(spin, || {
            conn::status(sk).readable != 0 || no_data(sk).is_some()
        });
    }
    let mut lock = sk.lock();
    let len = message.len();
    let flags = message.flags();
    let mut timeo = sk.rcvtimeo(message.nonblock());
    let target = sk.rcv_target(flags & msg::WAITALL != 0, len);
    conn::note_recv(sk, len);
    let mut done = 0;
    while done < len {
        let n = piece(sk, message, len, done)?;
        done += n;
        // A peek has no more than these, even if there is something behind the mark to wait for.
        let seen = if flags & msg::PEEK != 0 { done } else { 0 };
        if done != 0 && conn::ends_at(sk, seen) {
            break;
        }
        if n != 0 {
            continue;
        }
        // Nothing more is there.
        if done >= target {
            break;
        }
        match no_data(sk) {
            // An error that cannot be returned now stays for the next call.
            Some(Why::Failed) if done == 0 => {
                sk.cut_told.store(1, Relaxed);
                let error = sk.take_err().err().or_else(|| conn::failure(sk));
                return Err(error.unwrap_or(ECONNRESET));
            }
            Some(Why::Failed | Why::End) => break,
            None => {}
        }
        let more = lock.wait_until(&mut timeo, |sk| {
            let more = conn::status(sk).readable > seen || (done != 0 && conn::ends_at(sk, seen));
            (more || no_data(sk).is_some()).then_some(())
        });
        match more {
            Ok(()) => {}
            Err(_) if done != 0 => break,
            Err(error) => return Err(error),
        }
    }
    sk.ns.stats.recv_call(done);
    Ok(done)
}

/// Copies what is there, up to `len` bytes with those that were `done` before. 0 if there is
/// nothing.
fn piece(sk: &Sk<SmcSocket>, message: &mut RecvMsg<'_>, len: usize, done: usize) -> Result<usize> {
    let peek = message.flags() & msg::PEEK != 0;
    let skip = if peek { done } else { 0 };
    let Some((rmb, start, spans)) = conn::begin_recv(sk, skip, len.saturating_sub(done)) else {
        return Ok(0);
    };
    if spans.is_empty() {
        return Ok(0);
    }
    let mut copied = 0;
    let mut fault = false;
    for span in spans.iter() {
        let (offset, len) = (start + span.offset as usize, span.len as usize);
        let n = if message.flags() & msg::TRUNC != 0 {
            len
        } else {
            // In bounds: the span is part of the element.
            rmb.pages()
                .copy_to_iter(offset, len, message.iter())
                .unwrap_or(0)
        };
        copied += n;
        if n < len {
            fault = true;
            break;
        }
    }
    conn::commit_recv(sk, if peek { 0 } else { copied });
    if fault && copied == 0 && done == 0 {
        return Err(EFAULT);
    }
    Ok(copied)
}

/// Why there is no data and will be none.
enum Why {
    /// The peer has sent everything, or the program has shut this direction.
    End,
    /// The socket has an error.
    Failed,
}

/// Whether it is in vain to wait for data, and why.
///
/// A stream that was cut off does not end: readers are told of that once, even if a writer has been
/// given the socket's error before.
fn no_data(sk: &Sk<SmcSocket>) -> Option<Why> {
    let cut = sk.cut_told.load(Relaxed) == 0 && conn::failure(sk).is_some();
    if sk.err() != 0 || cut {
        return Some(Why::Failed);
    }
    let ended = conn::status(sk).eof || sk.shutdown_mask() & RCV_SHUTDOWN != 0;
    ended.then_some(Why::End)
}
