// SPDX-License-Identifier: GPL-2.0

//! States of a connection and how they follow each other (RFC 7609, 4.8, figures 22 and 23).

use core::fmt;

/// State of a connection. The numbers are those which user space knows from `AF_SMC` sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum State {
    /// Open both ways.
    Active = 1,
    /// Not connected yet, or handshake running.
    Init = 2,
    /// Over; the element is not used by the peer any more.
    Closed = 7,
    /// Waiting for connections.
    Listen = 10,
    /// We said "done" or "closed", the peer nothing yet.
    PeerCloseWait1 = 20,
    /// We said "done" or "closed", then the peer said "done".
    PeerCloseWait2 = 21,
    /// The peer said "done" or "closed", our application has not reacted.
    AppCloseWait1 = 22,
    /// The peer said "done" or "closed", then we said "done".
    AppCloseWait2 = 23,
    /// We said "done", the peer "closed", our application has yet to close.
    AppFinCloseWait = 24,
    /// We said "closed", the peer only "done".
    PeerFinCloseWait = 25,
    /// We aborted and wait for the peer to do the same.
    PeerAbortWait = 26,
    /// The peer aborted, our application has yet to close.
    ProcessAbort = 27,
}

impl State {
    /// The number that user space knows.
    pub const fn number(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Active => "ACTIVE",
            State::Init => "INIT",
            State::Closed => "CLOSED",
            State::Listen => "LISTEN",
            State::PeerCloseWait1 => "PEERCLOSEWAIT1",
            State::PeerCloseWait2 => "PEERCLOSEWAIT2",
            State::AppCloseWait1 => "APPCLOSEWAIT1",
            State::AppCloseWait2 => "APPCLOSEWAIT2",
            State::AppFinCloseWait => "APPFINCLOSEWAIT",
            State::PeerFinCloseWait => "PEERFINCLOSEWAIT",
            State::PeerAbortWait => "PEERABORTWAIT",
            State::ProcessAbort => "PROCESSABORT",
        })
    }
}

/// How far one side has gone towards the end of its direction. Later values imply earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fin {
    /// Still open.
    None,
    /// Nothing more will be sent (D).
    Done,
    /// Nothing more will be sent or read (C).
    Closed,
    /// Ended abnormally (A).
    Abort,
}

/// What may move a connection to another state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A message with D, and neither C nor A, was sent.
    SentDone,
    /// A message with C was sent, or one with A because the application closed.
    SentFin,
    /// A message with D, and neither C nor A, came in.
    PeerDone,
    /// A message with C, and not A, came in.
    PeerClosed,
    /// A message with A came in.
    PeerAbort,
    /// The application closed the socket.
    AppClosed,
    /// We gave up the connection: TCP reset, link group lost, protocol error, timeout.
    LocalAbort,
    /// The peer did not answer our C or A in time.
    Expired,
}

/// What besides the state decides about the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// C has come from the peer.
    pub peer_closed: bool,
    /// C or A has been sent.
    pub fin_sent: bool,
    /// The application has closed the socket.
    pub app_closed: bool,
}

impl State {
    /// The state after `event`. `facts` are those from before the event, except that
    /// `app_closed` holds already at [`Event::AppClosed`].
    pub const fn next(self, event: Event, facts: Facts) -> State {
        use State::*;

        match (self, event) {
            (Active, Event::SentDone | Event::SentFin) => PeerCloseWait1,
            (AppCloseWait1, Event::SentDone) => AppCloseWait2,
            (AppCloseWait1 | AppCloseWait2, Event::SentFin) => {
                if facts.peer_closed {
                    Closed
                } else {
                    PeerFinCloseWait
                }
            }
            (AppFinCloseWait, Event::SentFin) => Closed,

            (Init | Active, Event::PeerDone | Event::PeerClosed) => AppCloseWait1,
            (PeerCloseWait1, Event::PeerDone) => PeerCloseWait2,
            (PeerCloseWait1 | PeerCloseWait2, Event::PeerClosed) => {
                if facts.fin_sent && facts.app_closed {
                    Closed
                } else {
                    AppFinCloseWait
                }
            }
            (PeerFinCloseWait, Event::PeerClosed) => Closed,

            (Init | Active | AppCloseWait1 | AppFinCloseWait, Event::PeerAbort) => ProcessAbort,
            (PeerCloseWait1 | PeerCloseWait2, Event::PeerAbort) => {
                if facts.fin_sent {
                    Closed
                } else {
                    ProcessAbort
                }
            }
            (AppCloseWait2 | PeerFinCloseWait | PeerAbortWait, Event::PeerAbort) => Closed,

            (Init | Listen | ProcessAbort, Event::AppClosed) => Closed,
            (AppFinCloseWait, Event::AppClosed) if facts.fin_sent => Closed,

            (Init | Listen, Event::LocalAbort) => Closed,
            (
                Active | PeerCloseWait1 | PeerCloseWait2 | AppCloseWait1 | AppCloseWait2
                | AppFinCloseWait | PeerFinCloseWait,
                Event::LocalAbort,
            ) => {
                // A peer that sent C sends no A any more: nothing to wait for.
                if facts.peer_closed {
                    Closed
                } else {
                    PeerAbortWait
                }
            }

            (
                PeerCloseWait1 | PeerCloseWait2 | PeerFinCloseWait | PeerAbortWait,
                Event::Expired,
            ) => Closed,

            (state, _) => state,
        }
    }
}
