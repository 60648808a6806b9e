// SPDX-License-Identifier: GPL-2.0

//! What system calls do with a connection: look, send, receive, end it.

use kapi::{sock::Sk, tcp::Settings};
use kernel::{
    prelude::*,
    sync::{
        atomic::{Relaxed, Release},
        Arc, //
    },
};
use smc_proto::{
    conn::{
        Diag,
        Events,
        SendFlags,
        State,
        UrgentError, //
    },
    ring::Spans,
    wire::RmbeSize, //
};

use super::{close_tcp, merge, ring::take_ring, with, Connection};
use crate::{
    buffers::{Rmb, SendRing},
    netns::Setting,
    socket::SmcSocket, //
};

/// What the socket calls want to know at a glance.
#[derive(Default)]
pub(crate) struct Status {
    /// Bytes that can be read.
    pub(crate) readable: usize,
    /// Bytes accepted and not written to the peer.
    pub(crate) unsent: usize,
    /// Bytes that a program can wait for without reading: more than half of the buffer may never be there at once.
    pub(crate) awaitable: usize,
    /// Enough room to be worth a wake-up.
    pub(crate) writable: bool,
    /// The peer will send nothing more.
    pub(crate) read_shut: bool,
    /// All data of the peer has been read, and no more will come.
    pub(crate) eof: bool,
    /// Nothing can be sent any more.
    pub(crate) write_shut: bool,
    /// The connection has ended altogether.
    pub(crate) over: bool,
    /// Urgent data waits to be read.
    pub(crate) urgent: bool,
    /// The next byte is behind the urgent mark.
    pub(crate) at_mark: bool,
    /// The peer sends nothing more before what there is has been read.
    pub(crate) held_up: bool,
    /// When data has come last, by the clock of the day in nanoseconds; zero if it is not known.
    pub(crate) arrival: i64,
}

/// What poll, ioctl and waiting calls look at.
pub(crate) fn status(sk: &Sk<SmcSocket>) -> Status {
    let guard = sk.conn.lock();
    let Some(connection) = guard.as_ref() else {
        return Status {
            read_shut: true,
            eof: true,
            write_shut: true,
            over: true,
            ..Status::default()
        };
    };
    let core = &connection.core;
    let over = core.error().is_some() || connection.is_past();
    Status {
        readable: core.readable() as usize,
        awaitable: core.receive_limit() as usize / 2,
        unsent: core.send_unsent() as usize,
        writable: core.is_writable(),
        read_shut: core.read_shut(),
        eof: core.eof(),
        write_shut: core.write_shut(),
        over,
        urgent: core.urgent_ready(),
        at_mark: core.at_mark(),
        held_up: core.is_held_up(),
        arrival: connection.arrival,
    }
}

/// Whether a reader who has seen so many bytes gets more, whether no more will come, and what `also` says meanwhile.
pub(crate) fn has_behind<R>(
    sk: &Sk<SmcSocket>,
    seen: usize,
    also: impl FnOnce() -> R,
) -> (bool, bool, R) {
    let seen = u32::try_from(seen).unwrap_or(u32::MAX);
    let guard = sk.conn.lock();
    let (more, read_shut) = match guard.as_ref() {
        Some(connection) => {
            let core = &connection.core;
            (core.has_behind(seen), core.read_shut())
        }
        None => (false, true),
    };
    (more, read_shut, also())
}

/// Whether a program can send now, or would be told that it cannot any more.
pub(crate) fn may_send(sk: &Sk<SmcSocket>) -> bool {
    match sk.conn.lock().as_ref() {
        Some(connection) => connection.core.send_space() > 0 || connection.core.write_shut(),
        None => true,
    }
}

/// Bytes accepted and not known to have reached the peer.
pub(crate) fn queued(sk: &Sk<SmcSocket>) -> usize {
    with(sk, |connection| {
        // Who asks again is to see it come down to 0.
        connection.core.sync_sent();
        (connection.core.send_queued() as usize, Events::default())
    })
    .unwrap_or(0)
}

/// A send call is for `len` bytes: counts those for more than a buffer holds.
pub(crate) fn note_send(sk: &Sk<SmcSocket>, len: usize) {
    if let Some(diag) = diag_if_large(sk, len) {
        let (ring, peer_element) = (diag.send_ring as usize, diag.peer_element as usize);
        sk.ns.stats.large_send(len, ring, peer_element);
    }
}

/// A receive call is for `len` bytes: counts those for more than the element holds.
pub(crate) fn note_recv(sk: &Sk<SmcSocket>, len: usize) {
    if let Some(diag) = diag_if_large(sk, len) {
        sk.ns.stats.large_recv(len, diag.element as usize);
    }
}

/// Spares small calls the lock: no buffer is as small.
#[inline]
fn diag_if_large(sk: &Sk<SmcSocket>, len: usize) -> Option<Diag> {
    if len <= RmbeSize::MIN.bytes() as usize {
        return None;
    }
    Some(sk.conn.lock().as_ref()?.core.diag())
}

/// Free places in the send ring for at most `max` bytes; empty if it is full. The copy happens
/// without the lock; [`commit_send`] has to follow if there are any. Sleeps if the connection has given back its
/// ring: [`ENOMEM`] if there is no memory for one of any size.
pub(crate) fn begin_send(sk: &Sk<SmcSocket>, max: usize) -> Result<(Arc<SendRing>, Spans)> {
    let max = u32::try_from(max).unwrap_or(u32::MAX);
    loop {
        if let Some(begun) = try_begin_send(sk, max)? {
            return Ok(begun);
        }
        take_ring(sk)?;
    }
}

/// The same; `None` if the connection has no ring.
fn try_begin_send(sk: &Sk<SmcSocket>, max: u32) -> Result<Option<(Arc<SendRing>, Spans)>> {
    let mut guard = sk.conn.lock();
    let connection = (*guard).as_mut().ok_or(EPIPE)?;
    if connection.core.write_shut() {
        return Err(EPIPE);
    }
    let Some(ring) = connection.ring_memory() else {
        return Ok(None);
    };
    connection.ring_used = true;
    Ok(Some((ring, connection.core.send_spans(max))))
}

/// The RDMA device which carries the connection, padded with zeroes; empty if none does any more. May
/// sleep.
pub(crate) fn device_name(sk: &Sk<SmcSocket>) -> [u8; 64] {
    let link = sk.conn.lock().as_ref().map(|conn| conn.link.clone());
    link.map_or([0; 64], |link| link.path.device.name().padded())
}

/// Whether the peer has closed, so that nobody hears what the program sends, which has not shut
/// anything.
pub(crate) fn is_unheard(sk: &Sk<SmcSocket>) -> bool {
    let guard = sk.conn.lock();
    guard.as_ref().is_some_and(|conn| conn.core.is_unheard())
}

/// Hands over `n` bytes that were copied to where [`begin_send`] said. Gives how many were taken.
pub(crate) fn commit_send(sk: &Sk<SmcSocket>, n: usize, flags: SendFlags) -> usize {
    let n = u32::try_from(n).unwrap_or(u32::MAX);
    let gather = sk.ns.setting(Setting::AutocorkingSize);
    with(sk, |connection| {
        connection.core.set_gather(gather);
        (connection.core.send_commit(n, flags), Events::default())
    })
    .unwrap_or(0) as usize
}

/// A call that was not through with its bytes ends.
pub(crate) fn give_up_send(sk: &Sk<SmcSocket>) {
    with(sk, |connection| {
        connection.core.send_given_up();
        ((), Events::default())
    });
}

/// The next unread bytes, from `skip` on, `max` at most, and where they are in the RMB; `None` if there
/// are none. Else [`commit_recv`] has to follow, with 0 if they were only looked at.
pub(crate) fn begin_recv(
    sk: &Sk<SmcSocket>,
    skip: usize,
    max: usize,
) -> Option<(Arc<Rmb>, usize, Spans)> {
    let mut guard = sk.conn.lock();
    let connection = (*guard).as_mut()?;
    let max = u32::try_from(max).unwrap_or(u32::MAX);
    let skip = u32::try_from(skip).unwrap_or(u32::MAX);
    let spans = connection.core.recv_spans(skip, max);
    if spans.is_empty() {
        return None;
    }
    Some((
        connection.element.rmb().clone(),
        connection.element.offset(),
        spans,
    ))
}

/// Whether a read that has some bytes ends here; `skip` as for [`begin_recv`].
pub(crate) fn ends_at(sk: &Sk<SmcSocket>, skip: usize) -> bool {
    let skip = u32::try_from(skip).unwrap_or(u32::MAX);
    let guard = sk.conn.lock();
    guard
        .as_ref()
        .is_some_and(|connection| connection.core.ends_at(skip))
}

/// `n` bytes have been read. Gives whether a read ends here, as [`ends_at`] does.
pub(crate) fn commit_recv(sk: &Sk<SmcSocket>, n: usize) -> bool {
    let n = u32::try_from(n).unwrap_or(u32::MAX);
    with(sk, |connection| {
        connection.core.recv_commit(n);
        (connection.core.ends_at(0), Events::default())
    })
    .unwrap_or(false)
}

/// Pushes out what waits for more.
pub(crate) fn push(sk: &Sk<SmcSocket>) {
    with(sk, |connection| {
        connection.core.push_pending();
        ((), Events::default())
    });
}

/// Takes over options of TCP. Pushes out what waits for more if they no longer hold it back.
pub(super) fn adopt(connection: &mut Connection, settings: Settings) {
    connection.core.set_nodelay(settings.nodelay);
    connection.core.set_cork(settings.cork);
    connection.core.set_timed(settings.user_timeout != 0);
    connection.core.set_unsent_limit(settings.unsent_limit);
    connection.watch.set_limit(settings.user_timeout);
}

/// Options of TCP have changed.
pub(crate) fn apply(sk: &Sk<SmcSocket>, settings: Settings) {
    let group = with(sk, |connection| {
        let was_full = connection.core.send_space() == 0;
        adopt(connection, settings);
        let events = Events {
            writable: was_full && connection.core.send_space() > 0,
            ..Events::default()
        };
        (connection.group.clone(), events)
    });
    let span = keepalive(sk, settings);
    if let Some(group) = group.filter(|_| sk.keepalive.xchg(span, Relaxed) != span) {
        group.review_keepalive();
    }
}

/// After how much silence links are to be tested on behalf of a connection, in milliseconds.
pub(super) fn keepalive(sk: &Sk<SmcSocket>, settings: Settings) -> u32 {
    if sk.keepalive() {
        settings.keepalive
    } else {
        0
    }
}

/// `SO_SNDBUF` was set: no more than that is queued from now on.
pub(crate) fn limit_send(sk: &Sk<SmcSocket>, bytes: u32) {
    with(sk, |connection| ((), connection.core.set_send_limit(bytes)));
}

/// `SO_RCVBUF` was set: the peer is to fill no more than that, as bytes are read from now on.
pub(crate) fn limit_receive(sk: &Sk<SmcSocket>, bytes: u32) {
    with(sk, |connection| {
        connection.core.set_receive_limit(bytes);
        ((), Events::default())
    });
}

/// Has `SO_SNDBUF` and `SO_RCVBUF` tell the sizes of the buffers, unless the program has set them.
pub(super) fn show_sizes(sk: &Sk<SmcSocket>, connection: &Connection) {
    let diag = connection.diag();
    // As everywhere, what is read is twice what is there for data.
    let doubled = |size: u32| i32::try_from(size.saturating_mul(2)).unwrap_or(i32::MAX);
    if !sk.sndbuf_locked() {
        sk.set_sndbuf(doubled(diag.send_ring));
    }
    if !sk.rcvbuf_locked() {
        sk.set_rcvbuf(doubled(diag.element));
    }
}

/// `SO_SNDBUF` and `SO_RCVBUF` as they are now: the program may have wanted less since the buffers were chosen.
pub(super) fn adopt_sizes(sk: &Sk<SmcSocket>, connection: &mut Connection) -> Events {
    let mut events = Events::default();
    let diag = connection.diag();
    let is_less = |wanted: u32, size: u32| RmbeSize::for_buffer(wanted).bytes() < size;
    let (send, receive) = (
        sk.sndbuf().unsigned_abs() / 2,
        sk.rcvbuf().unsigned_abs() / 2,
    );
    if sk.sndbuf_locked() && is_less(send, diag.send_ring) {
        merge(&mut events, connection.core.set_send_limit(send));
    }
    if sk.rcvbuf_locked() && is_less(receive, diag.element) {
        connection.core.set_receive_limit(receive);
    }
    events
}

/// `SO_OOBINLINE` has changed.
pub(crate) fn set_oob_inline(sk: &Sk<SmcSocket>, on: bool) {
    with(sk, |connection| {
        (connection.core.set_oob_inline(on), Events::default())
    });
}

/// `shutdown(SHUT_WR)`.
pub(crate) fn shutdown_write(sk: &Sk<SmcSocket>) {
    with(sk, |connection| ((), connection.core.shutdown_write()));
}

/// `shutdown(SHUT_RDWR)`.
pub(crate) fn shutdown_both(sk: &Sk<SmcSocket>) {
    with(sk, |connection| ((), connection.core.shutdown_both()));
}

/// `close(2)`, or the abort of a socket that lingers not at all. Process context.
pub(crate) fn close(sk: &Sk<SmcSocket>, abort: bool) {
    sk.released.store(1, Release);
    let there = with(sk, |connection| {
        let events = if abort {
            connection.core.abort()
        } else {
            connection.core.close()
        };
        ((), events)
    });
    if there.is_none() {
        close_tcp(sk);
    }
}

/// Aborts the connection; the program keeps its socket.
pub(crate) fn abort(sk: &Sk<SmcSocket>) {
    with(sk, |connection| ((), connection.core.abort()));
}

/// True once everything sent is known to have reached the peer, or never will.
pub(crate) fn is_drained(sk: &Sk<SmcSocket>) -> bool {
    with(sk, |connection| {
        let core = &mut connection.core;
        core.sync_sent();
        let drained = core.is_drained() || core.state() == State::Closed;
        (drained, Events::default())
    })
    .unwrap_or(true)
}

/// The urgent byte (`MSG_OOB`), taken or only looked at.
pub(crate) fn recv_urgent(sk: &Sk<SmcSocket>, peek: bool) -> Result<u8, UrgentError> {
    with(sk, |connection| {
        (connection.core.recv_urgent(peek), Events::default())
    })
    // It was read before the connection went, or there was none.
    .unwrap_or(Err(UrgentError::Invalid))
}
