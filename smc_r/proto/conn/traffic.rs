// SPDX-License-Identifier: GPL-2.0

//! What a connection has done so far, in figures.

use super::{
    Conn,
    Fin, //
};

/// Figures of one connection. Bytes are counted from its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes that the application has handed over.
    pub accepted: u64,
    /// Bytes written to the peer's element.
    pub written: u64,
    /// Bytes known to have reached the peer.
    pub reached: u64,
    /// Bytes that the peer wrote to our element.
    pub received: u64,
    /// Bytes of these that the application has taken.
    pub read: u64,
    /// Transmits that are not confirmed.
    pub in_flight: u32,
    /// Bytes that the peer's element has room for.
    pub window: u32,
    /// Bytes that our element has room for, within the limit.
    pub room: u32,
    /// What our direction is to end with.
    pub own_end: Fin,
    /// What of this is known to have reached the peer.
    pub own_end_reached: Fin,
    /// How the peer's direction has ended.
    pub peer_end: Fin,
    /// Nothing is sent and nothing comes in any more.
    pub over: bool,
}

impl Conn {
    /// Bytes that the peer wrote to our element: [`Traffic::received`] alone.
    #[inline]
    pub fn received(&self) -> u64 {
        self.received.total
    }

    /// Figures as of now.
    ///
    /// Completions are not asked for each time: call [`Conn::sync_sent`] first if it matters soon
    /// what has reached the peer.
    pub fn traffic(&self) -> Traffic {
        Traffic {
            accepted: self.committed.total,
            written: self.tx.furthest,
            reached: self.confirmed.total.max(self.peer_consumed.total),
            received: self.received.total,
            read: self.consumed.total,
            in_flight: u32::try_from(self.flight.len()).unwrap_or(u32::MAX),
            window: self.window(),
            room: self.recv_limit.saturating_sub(self.unread()),
            own_end: self.want,
            own_end_reached: self.confirmed_fin,
            peer_end: self.rx_fin,
            over: self.is_over(),
        }
    }
}
