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
    sock::{msg, Call, RecvMsg, Sk, SockLock, Timeo, RCV_SHUTDOWN},
    tcp::TcpSocket,
    trace,
    util::spin_until, //
};
use kernel::{prelude::*, sync::atomic::Relaxed};
use smc_proto::{
    conn::UrgentError,
    handshake::{crossed_decline, Crossed}, //
};

use super::{send, with_error_of, Phase, SmcSocket};
use crate::conn;

/// `recvmsg(2)`.
pub(super) fn recvmsg(call: Call<'_, SmcSocket>, message: &mut RecvMsg<'_>) -> Result<usize> {
    let sk = call.sk();
    if message.flags() & msg::ERRQUEUE != 0 {
        return notice(sk, message);
    }
    match sk.phase() {
        Phase::Accelerated if message.flags() & msg::OOB != 0 => urgent(sk, message),
        Phase::Accelerated => accelerated(sk, message),
        Phase::Fallback => plain(call, message),
        Phase::Connecting | Phase::Idle if message.flags() & msg::OOB != 0 => Err(EINVAL),
        Phase::Connecting => {
            send::connected(sk, sk.rcvtimeo(message.nonblock()))?;
            recvmsg(call, message)
        }
        // After a connect that came to nothing, the stream has ended.
        Phase::Idle if sk.has_failed() => sk.take_err().map(|()| 0),
        Phase::Idle | Phase::Listening | Phase::Dead => {
            Err(sk.take_err().err().unwrap_or(ENOTCONN))
        }
    }
}

/// `MSG_ERRQUEUE`.
fn notice(sk: &Sk<SmcSocket>, message: &mut RecvMsg<'_>) -> Result<usize> {
    match sk.recv_notice(message) {
        // News of the way to the peer are the inner socket's.
        Err(error) if error == EAGAIN => sk.tcp()?.forward_recv(message),
        result => result,
    }
}

/// Receives from the inner socket.
fn plain(call: Call<'_, SmcSocket>, message: &mut RecvMsg<'_>) -> Result<usize> {
    let sk = call.sk();
    let tcp = call.kept().ok_or(ENOTCONN)?;
    // Urgent data is not waited for.
    let waits = message.flags() & msg::OOB == 0;
    match skip_crossed_decline(sk, tcp, message.nonblock() || !waits) {
        Err(error) if error == EAGAIN && !waits => {}
        result => result?,
    }
    // An error that was taken with a Decline that crossed ours comes behind the data.
    if sk.err() != 0 && sk.shown_error.load(Relaxed) == 0 && tcp.err() == 0 && tcp.inq() == 0 {
        sk.take_err()?;
    }
    let result = with_error_of(sk, tcp, || tcp.forward_recv(message));
    if sk.peek_off().is_some() {
        sk.store_peek_off(tcp.peek_off());
    }
    result
}

/// Whether there is anything but the messages of the rendezvous: data, an end or an error. For a
/// socket that no program has. Process context.
pub(super) fn plain_has_news(sk: &Sk<SmcSocket>, tcp: &TcpSocket) -> bool {
    if tcp.err() != 0 || tcp.shutdown_mask() & RCV_SHUTDOWN != 0 {
        return true;
    }
    let queued = tcp.inq() as usize;
    if queued == 0 || sk.may_cross.load(Relaxed) == 0 {
        return queued != 0;
    }
    let mut start = [0; 64];
    let Ok(seen) = peek_start(sk, tcp, &mut start) else {
        return true;
    };
    match crossed_decline(start.get(..seen).unwrap_or(&[])) {
        // Urgent data is in the way, as none of a Decline is.
        Crossed::NeedMore => seen < queued,
        Crossed::Decline(len) => queued > len,
        Crossed::No => true,
    }
}

/// Looks at the start of the stream, whatever the program's own place for looking.
fn peek_start(sk: &Sk<SmcSocket>, tcp: &TcpSocket, start: &mut [u8]) -> Result<usize> {
    if sk.peek_off().is_none() {
        return tcp.peek(start);
    }
    tcp.set_peek_off(-1)?;
    let seen = tcp.peek(start);
    restore_peek(sk, tcp)?;
    seen
}

/// Whether what a socket that fell back has received, if anything, is data of the program, its end or an error. Not
/// for long calls: looks, and does not wait. Process context.
pub(super) fn is_settled(sk: &Sk<SmcSocket>) -> bool {
    if sk.may_cross.load(Relaxed) == 0 {
        return true;
    }
    let Ok(tcp) = sk.tcp() else {
        return true;
    };
    match skip_crossed_decline(sk, &tcp, true) {
        Ok(()) => tcp.inq() > 0 || tcp.shutdown_mask() & RCV_SHUTDOWN != 0,
        Err(error) if error == EAGAIN => false,
        // It is for the next call to tell.
        Err(error) => {
            sk.set_err(error);
            true
        }
    }
}

/// A Decline of the peer may have crossed ours: it is no data of the application.
fn skip_crossed_decline(sk: &Sk<SmcSocket>, tcp: &TcpSocket, nonblock: bool) -> Result {
    if sk.may_cross.load(Relaxed) == 0 {
        return Ok(());
    }
    let mut lock = sk.lock();
    let mut timeo = sk.rcvtimeo(nonblock);
    let mut queued = 0;
    if sk.peek_off().is_some() {
        // What is looked at here is nothing that the program peeks at.
        tcp.set_peek_off(-1)?;
    }
    while sk.may_cross.load(Relaxed) != 0 {
        // Nothing has come, or not enough to tell.
        let waited = lock.wait_until(&mut timeo, |sk| {
            let ended = tcp.err() != 0 || tcp.shutdown_mask() & RCV_SHUTDOWN != 0;
            let dissolved = sk.may_cross.load(Relaxed) == 0;
            (ended || dissolved || tcp.inq() as usize > queued).then_some(())
        });
        if sk.may_cross.load(Relaxed) == 0 {
            break;
        }
        queued = tcp.inq() as usize;
        let ended = tcp.shutdown_mask() & RCV_SHUTDOWN != 0;
        // An error is for the call that reads: TCP tells it once.
        let failed = waited.is_ok() && queued == 0 && tcp.err() != 0;
        if waited.is_err() || failed {
            if failed && ended {
                sk.may_cross.store(0, Relaxed);
            }
            restore_peek(sk, tcp)?;
            return waited;
        }
        let mut start = [0; 64];
        let seen = match tcp.peek(&mut start) {
            Ok(seen) => seen,
            Err(error) if error == EAGAIN => 0,
            // It came just now, and this was the only call to which TCP tells it.
            Err(error) => {
                sk.may_cross.store(0, Relaxed);
                restore_peek(sk, tcp)?;
                return Err(error);
            }
        };
        match crossed_decline(start.get(..seen).unwrap_or(&[])) {
            // Where not all can be looked at, the next byte is urgent, as none of a Decline is.
            Crossed::NeedMore if seen >= queued && !ended => continue,
            Crossed::Decline(len) => {
                if let Some(sink) = start.get_mut(..len) {
                    tcp.recv(sink)?;
                }
            }
            Crossed::NeedMore | Crossed::No => {}
        }
        sk.may_cross.store(0, Relaxed);
    }
    restore_peek(sk, tcp)
}

/// The program's own place for looking.
fn restore_peek(sk: &Sk<SmcSocket>, tcp: &TcpSocket) -> Result {
    sk.peek_off().map_or(Ok(()), |off| {
        tcp.set_peek_off(i32::try_from(off).unwrap_or(i32::MAX))
    })
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
        spin_until(spin, || !matches!(look(sk, 0), News::None));
    }
    let mut lock = sk.lock();
    let len = message.len();
    let flags = message.flags();
    let mut timeo = sk.rcvtimeo(message.nonblock());
    let all = flags & msg::WAITALL != 0;
    let mut target = sk.rcv_target(all, len);
    conn::note_recv(sk, len);
    let peek = flags & msg::PEEK != 0;
    // Where peeking begins.
    let skip = sk.peek_off().filter(|_| peek).unwrap_or(0);
    if peek && !all {
        // More may never be there, as peeking makes no room.
        let most = conn::status(sk).awaitable.saturating_sub(skip);
        target = target.min(most.max(1));
    }
    let mut done = 0usize;
    if len == 0 {
        await_any(&mut lock, &mut timeo, skip)?;
    }
    while done < len {
        let (n, ends) = match piece(sk, message, len, skip, done) {
            Ok(piece) => piece,
            // The program gave memory that cannot be written to: what came before that counts.
            Err(_) if done != 0 => break,
            Err(error) => return Err(error),
        };
        done = done.wrapping_add(n);
        // A peek has no more than these, even if there is something behind the mark to wait for.
        let seen = if peek { skip.saturating_add(done) } else { 0 };
        if done != 0 && ends {
            break;
        }
        if n != 0 {
            continue;
        }
        // Nothing more is there.
        if done >= target {
            break;
        }
        let news = lock.wait_until(&mut timeo, |sk| {
            let news = look(sk, seen);
            let ends = done != 0 && conn::ends_at(sk, seen);
            (ends || !matches!(news, News::None)).then_some(news)
        });
        match news {
            Ok(News::Data | News::None) => {}
            // An error that cannot be returned now stays for the next call.
            Ok(News::Failed) if done == 0 => return Err(take_failure(sk)),
            Ok(News::Failed | News::End) => break,
            Err(_) if done != 0 => break,
            Err(error) => return Err(error),
        }
    }
    sk.ns.stats.recv_call(done);
    tell(sk, message, done);
    Ok(done)
}

/// Who wants no bytes waits for some, as with TCP.
fn await_any(lock: &mut SockLock<'_, SmcSocket>, timeo: &mut Timeo, skip: usize) -> Result {
    let news = lock.wait_until(timeo, |sk| match look(sk, skip) {
        News::None => None,
        news => Some(news),
    })?;
    match news {
        News::Failed => Err(take_failure(lock.sk())),
        _ => Ok(()),
    }
}

/// The control messages that the program has asked for.
fn tell(sk: &Sk<SmcSocket>, message: &mut RecvMsg<'_>, done: usize) {
    let told = sk.tells_left.load(Relaxed) != 0;
    let left = told || message.wants_left();
    let stamp = done != 0 && sk.wants_stamps();
    if !left && !stamp {
        return;
    }
    let status = conn::status(sk);
    if stamp && status.arrival != 0 {
        sk.put_stamp(message, status.arrival);
    }
    if left {
        // The end of the stream counts as a byte, so that the program looks for it.
        let end = usize::from(status.read_shut);
        message.put_left(status.readable.saturating_add(end), told);
    }
}

/// Copies what is there, up to `len` bytes with those that were `done` before; a peek begins `skip`
/// bytes in. 0 if there is nothing. EFAULT if no byte of what is there could be copied. Also tells
/// whether a read that has some bytes ends here.
fn piece(
    sk: &Sk<SmcSocket>,
    message: &mut RecvMsg<'_>,
    len: usize,
    skip: usize,
    done: usize,
) -> Result<(usize, bool)> {
    let peek = message.flags() & msg::PEEK != 0;
    let skip = if peek { skip.saturating_add(done) } else { 0 };
    let Some((rmb, start, spans)) = conn::begin_recv(sk, skip, len.saturating_sub(done)) else {
        return Ok((0, done != 0 && conn::ends_at(sk, skip)));
    };
    let mut copied = 0usize;
    let mut fault = false;
    for span in spans.iter() {
        let (offset, len) = (start.wrapping_add(span.offset as usize), span.len as usize);
        let n = if message.flags() & msg::TRUNC != 0 {
            len
        } else {
            // In bounds: the span is part of the element.
            let copy = |iter| rmb.pages().copy_to_iter(offset, len, iter).ok();
            message.iter().and_then(copy).unwrap_or(0)
        };
        copied = copied.wrapping_add(n);
        if n < len {
            fault = true;
            break;
        }
    }
    let ends = if peek {
        conn::commit_recv(sk, 0);
        sk.peeked(copied);
        conn::ends_at(sk, skip.saturating_add(copied))
    } else {
        sk.unpeeked(copied);
        conn::commit_recv(sk, copied)
    };
    if fault && copied == 0 {
        return Err(EFAULT);
    }
    trace::received(sk, sk.ns.cookie, copied, || conn::device_name(sk));
    Ok((copied, ends))
}

/// What a reader finds.
enum News {
    /// Nothing yet.
    None,
    /// More than what has been seen.
    Data,
    /// The peer has sent everything, or the program has shut this direction.
    End,
    /// The socket has an error.
    Failed,
}

/// Whether there is more than the `seen` bytes, or it is in vain to wait for that, and why.
///
/// A stream that was cut off does not end: readers are told of that once, even if a writer has been
/// given the socket's error before.
fn look(sk: &Sk<SmcSocket>, seen: usize) -> News {
    // First of all: whatever shows an end has noted before whether the stream was cut off.
    let shut = sk.shutdown_mask() & RCV_SHUTDOWN != 0;
    // What came before a failure is there when that is noted, and so is what it is told by.
    let (more, read_shut, failed) = conn::has_behind(sk, seen, || {
        let cut = sk.cut_told.load(Relaxed) == 0 && sk.failure().is_some();
        sk.err() != 0 || cut
    });
    if more {
        // It has just come, and stands before whatever came with it.
        return News::Data;
    }
    // As with TCP, who reads finds the end of a stream that has one, whatever happened after it.
    if failed && !sk.is_whole() {
        News::Failed
    } else if shut || read_shut {
        News::End
    } else {
        News::None
    }
}

/// The error for a reader: the socket's, or why the stream was cut off.
fn take_failure(sk: &Sk<SmcSocket>) -> Error {
    // In this order: the socket's error need not be the one that ended the stream.
    let failure = sk.failure();
    if failure.is_some() {
        sk.cut_told.store(1, Relaxed);
    }
    sk.take_err().err().or(failure).unwrap_or(ECONNRESET)
}
