// SPDX-License-Identifier: GPL-2.0

//! Whether a connection gets on, for those who want to know: an application that gave its data a
//! limit (`TCP_USER_TIMEOUT`), and one whose peer has ended the TCP connection and nothing else.

use super::{
    Conn,
    ConnError,
    Events,
    Fin, //
};
use crate::timer::{
    earlier,
    Millis,
    Time, //
};

/// How long after the peer's FIN the end of its direction may take, in milliseconds. Peers send
/// both at about the same time, in either order; as long as we keep the peer from sending, or
/// something comes in, it is not late.
const AFTER_FIN: Millis = 10_000;

/// Something that has to change, and since when it has not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Since {
    mark: u64,
    at: Time,
}

impl Since {
    /// Starts anew if `mark` is another one; ends if nothing is awaited.
    fn update(since: &mut Option<Since>, awaited: bool, mark: u64, now: Time) {
        *since = match *since {
            _ if !awaited => None,
            Some(old) if old.mark == mark => Some(old),
            _ => Some(Since { mark, at: now }),
        };
    }
}

/// Watches one connection. Ask for [`Watch::deadline`] whenever something has happened to it, and
/// for [`Watch::verdict`] at that time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Watch {
    limit: Millis,
    tcp_ended: bool,
    sending: Option<Since>,
    ending: Option<Since>,
}

impl Watch {
    /// Nothing is watched.
    pub const fn new() -> Watch {
        Watch {
            limit: 0,
            tcp_ended: false,
            sending: None,
            ending: None,
        }
    }

    /// How long data may wait without the peer's taking any of it; 0 for no limit.
    pub fn set_limit(&mut self, limit: Millis) {
        self.limit = limit;
    }

    /// The peer has sent a FIN on the TCP connection.
    pub fn tcp_ended(&mut self) {
        self.tcp_ended = true;
    }

    /// Whether anything is watched. If not, there is no [`Watch::deadline`].
    #[inline]
    pub fn is_on(&self) -> bool {
        self.limit != 0 || self.tcp_ended
    }

    /// When to look again, if ever.
    pub fn deadline(&mut self, conn: &Conn, now: Time) -> Option<Time> {
        if !self.is_on() {
            return None;
        }
        // What we hold back ourselves is not the peer's fault.
        let awaited = self.limit != 0 && conn.is_sending() && !conn.is_held();
        Since::update(&mut self.sending, awaited, conn.sent_mark(), now);
        let awaited = self.tcp_ended && conn.is_end_awaited();
        Since::update(&mut self.ending, awaited, conn.received.total, now);
        earlier(
            self.sending.map(|since| since.at.after(self.limit)),
            self.ending.map(|since| since.at.after(AFTER_FIN)),
        )
    }

    /// What the connection has to be ended for, if a limit has passed.
    pub fn verdict(&mut self, conn: &Conn, now: Time) -> Option<ConnError> {
        self.deadline(conn, now)?;
        let late = |since: Option<Since>, limit| since.is_some_and(|s| s.at.after(limit) <= now);
        if late(self.sending, self.limit) {
            Some(ConnError::TimedOut)
        } else if late(self.ending, AFTER_FIN) {
            Some(ConnError::Reset)
        } else {
            None
        }
    }
}

impl Conn {
    /// Something takes too long: the connection is given up.
    pub fn handle_overdue(&mut self, error: ConnError) -> Events {
        let mut events = Events::default();
        self.abort_for(error, &mut events);
        events
    }

    /// Whether data waits for the peer to take it, or for the link to confirm it.
    fn is_sending(&self) -> bool {
        !self.is_over() && (self.send_unsent() > 0 || self.flight.is_signalled())
    }

    /// Grows whenever some data got on.
    fn sent_mark(&self) -> u64 {
        self.progress().wrapping_add(self.confirmed.total)
    }

    /// Whether the peer could go on and has not ended its direction.
    fn is_end_awaited(&self) -> bool {
        !self.is_over() && self.rx_fin == Fin::None && !self.peer_blocked
    }
}
