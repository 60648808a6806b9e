// SPDX-License-Identifier: GPL-2.0

//! The CLC rendezvous of one connection (RFC 7609 section 3.5, appendix C).
//!
//! [`Client`] and [`Server`] are the two ends of the exchange Proposal, Accept, Confirm on a TCP
//! connection whose SYNs both carried the option, and of what follows it on a first contact: the
//! wait for the LLC exchange of the new link group, during which a Decline on TCP still turns the
//! connection into plain TCP. Both do no I/O and have no clock. Their methods come in four kinds:
//!
//! * *getters*: [`want`](Rendezvous::want), [`next_deadline`](Rendezvous::next_deadline) and so on;
//! * *`handle_*`*: something happened; the machine changes, and nothing else does;
//! * *commands*: [`Client::propose`], [`Client::decline`];
//! * [`poll`](Rendezvous::poll): what to do next. After every `handle_*` and every command, poll
//!   until it says `None`, and carry out each [`Action`] in turn.
//!
//! An answer that comes too late, because the machine has gone on in the meantime (a Decline came
//! in, a deadline passed), changes nothing and is reported as [`Late`]: the driver then takes back
//! what it had set up for the answer.

mod client;
mod io;
mod server;
mod trouble;
mod v2;

use core::fmt;

use crate::{
    clc::{
        AcceptConfirm,
        AcceptV2,
        Kind, //
    },
    group::{
        Element,
        LinkEnd, //
    },
    timer::Time,
    wire::{
        Diagnosis,
        MtuCode,
        ParseError,
        PeerId, //
    },
};

pub use client::{
    Client,
    Offer, //
};
pub use io::{
    crossed_decline,
    Crossed,
    OUTGOING_MAX, //
};
pub use server::Server;
pub use trouble::Trouble;
pub use v2::{
    accept_subsequent,
    OwnV2,
    MAX_EIDS,
    RELEASE, //
};

/// What the driver has to do next.
#[allow(
    clippy::large_enum_variant,
    reason = "a few per handshake, carried out at once"
)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Find or make the link group, the link and our element, then answer with
    /// [`Client::handle_contact`] or [`Server::handle_contact`]. The facts to go by are in
    /// [`Client::offer`] or [`Server::proposal`] until the answer is given.
    Contact,
    /// Write all of [`Rendezvous::outgoing`] to the TCP connection.
    Send,
    /// Server, first contact: bring our queue pair up to RTS towards this one, with this MTU, which
    /// is the smaller one of both, and register our RMB. Answer with
    /// [`Server::handle_link_connected`] or [`Server::handle_link_refused`].
    ConnectLink(LinkEnd),
    /// Server, first contact: start the link group's LLC exchange with this peer, and report how it
    /// ends with [`Rendezvous::handle_link`].
    StartLink(Peer),
    /// The connection runs over RDMA now. TCP carries no further data.
    Established(Peer),
    /// The connection goes on over TCP. The stream is right behind the last CLC message.
    Fallback(Fallback),
    /// The connection is over: reset TCP, fail the socket.
    Fail(Failure),
}

/// The far end of an established connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Who it is.
    pub id: PeerId,
    /// True if the link group is new.
    pub first_contact: bool,
    /// Its end of the link that it uses. The driver finds that link in the group
    /// ([`Flow::find_place`](crate::llc_flow::Flow::find_place)), and aborts the connection if nothing is
    /// known of it, or not any more.
    pub link: LinkEnd,
    /// Its buffer: where our data goes.
    pub element: Element,
    /// What it says about version 2, if that was chosen.
    pub v2: Option<AcceptV2>,
}

/// Why and how a connection became plain TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fallback {
    /// Our reason; [`Diagnosis::PEER_DECLINED`] if it was the peer's decision.
    pub reason: Diagnosis,
    /// The code in the peer's Decline, if there was one.
    pub peer_diagnosis: Option<Diagnosis>,
    /// The peer says that it does not know the link group: terminate the group that this
    /// connection was about to use, if one was chosen.
    pub out_of_sync: bool,
    /// A Decline of the peer may have crossed ours, and would then be the first thing on the
    /// stream: see [`crossed_decline`].
    pub may_cross: bool,
}

/// Why a connection failed for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// What came is not a CLC message, or a damaged one. The stream cannot be trusted.
    Damaged(ParseError),
    /// A valid CLC message at the wrong time.
    Unexpected(Kind),
    /// The Confirm came from somebody else than the Proposal.
    PeerChanged,
    /// The peer closed the TCP connection.
    Closed,
    /// The TCP connection was reset.
    Reset,
    /// The peer said nothing in time.
    TimedOut(Waiting),
    /// The new link failed when it was too late to decline.
    LinkFailed(Diagnosis),
    /// All was agreed on, and this host could not set the connection up.
    SetUp,
    /// The peer's buffer is not one that it has announced, or not any more: it takes its buffer back when its end of
    /// the connection goes, and may say so over the link before its TCP does.
    NoRmb,
}

/// What a machine was waiting for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// The Proposal.
    Proposal,
    /// The Accept.
    Accept,
    /// The Confirm.
    Confirm,
    /// The end of the LLC exchange.
    Link,
}

/// What a failure means for the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Errno {
    /// `EPROTO`
    Protocol,
    /// `ECONNRESET`
    ConnectionReset,
    /// `ECONNABORTED`
    ConnectionAborted,
    /// `ETIMEDOUT`
    TimedOut,
}

impl Failure {
    /// The error number that the socket reports.
    pub const fn errno(self) -> Errno {
        match self {
            Self::Damaged(_) | Self::Unexpected(_) | Self::PeerChanged => Errno::Protocol,
            Self::Closed | Self::Reset | Self::NoRmb => Errno::ConnectionReset,
            Self::TimedOut(_) => Errno::TimedOut,
            Self::LinkFailed(_) | Self::SetUp => Errno::ConnectionAborted,
        }
    }

    /// Which kind of failure it is, as a number that counters keep apart and monitors know.
    pub const fn number(self) -> u8 {
        match self {
            Self::Damaged(_) => 1,
            Self::Unexpected(_) => 2,
            Self::PeerChanged => 3,
            Self::Closed => 4,
            Self::Reset => 5,
            Self::TimedOut(Waiting::Proposal) => 6,
            Self::TimedOut(Waiting::Accept) => 7,
            Self::TimedOut(Waiting::Confirm) => 8,
            Self::TimedOut(Waiting::Link) => 9,
            Self::LinkFailed(_) => 10,
            Self::SetUp => 11,
            Self::NoRmb => 12,
        }
    }

    /// The reason of a link that failed.
    pub const fn link_diagnosis(self) -> Option<Diagnosis> {
        match self {
            Self::LinkFailed(diagnosis) => Some(diagnosis),
            _ => None,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged(error) => write!(f, "damaged CLC message: {error}"),
            Self::Unexpected(kind) => write!(f, "unexpected CLC message: {kind}"),
            Self::PeerChanged => f.write_str("Confirm and Proposal name different peers"),
            Self::Closed => f.write_str("peer closed the connection"),
            Self::Reset => f.write_str("connection reset"),
            Self::TimedOut(waiting) => write!(f, "timed out waiting for the {waiting}"),
            Self::LinkFailed(diagnosis) => write!(f, "link failed: {diagnosis}"),
            Self::SetUp => f.write_str("could not be set up"),
            Self::NoRmb => {
                f.write_str("the buffer that the peer names is not known, or not any more")
            }
        }
    }
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Proposal => "Proposal",
            Self::Accept => "Accept",
            Self::Confirm => "Confirm",
            Self::Link => "link",
        })
    }
}

/// The driver's answer to [`Action::Contact`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contact {
    /// A new link group with a new link. Client: the queue pair is in RTS towards the server's,
    /// receive buffers are posted, and the group's flow has been started.
    First(Local),
    /// A link of an existing group. The RMB is known to the peer already, or its CONFIRM RKEY
    /// exchange has succeeded.
    Subsequent(Local),
    /// SMC is not possible: decline with this reason.
    Refuse(Diagnosis),
    /// Client: no link group with this peer is known.
    OutOfSync,
    /// Server: another first contact of this peer is under way. The answer follows later.
    Wait,
}

/// Our end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Local {
    /// Our end of the link.
    pub link: LinkEnd,
    /// Our buffer: where the peer's data goes.
    pub element: Element,
    /// What we say about version 2, if that is chosen.
    pub v2: Option<AcceptV2>,
}

/// How the LLC exchange of a first contact ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkResult {
    /// The link is up: data may flow.
    Up,
    /// There is no link. The group is over.
    Failed(LinkRefusal),
}

/// Why a first contact has no link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkRefusal {
    /// The reason to name in a Decline.
    pub diagnosis: Diagnosis,
    /// Whether we may still decline (RFC 7609 appendix C.3). If not, only a reset is left.
    pub may_decline: bool,
    /// The peer can be expected to have noticed as well. Its Decline is awaited for a moment.
    pub peer_knows: bool,
}

/// An answer that nobody waits for any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Late;

/// What drivers of both ends do alike.
pub trait Rendezvous {
    /// How many bytes to read from TCP now, at most. Zero: leave the stream alone.
    fn want(&self) -> usize;

    /// Bytes came in: at most [`want`](Self::want) of them.
    fn handle_bytes(&mut self, bytes: &[u8], now: Time);

    /// The peer closed its half of the TCP connection.
    fn handle_eof(&mut self);

    /// TCP was reset, or failed in another way.
    fn handle_reset(&mut self);

    /// The LLC exchange of the first contact ended.
    fn handle_link(&mut self, result: LinkResult, now: Time) -> Result<(), Late>;

    /// Time passed. Harmless if it is too early.
    fn handle_timeout(&mut self, now: Time);

    /// When to call [`handle_timeout`](Self::handle_timeout). Ask again after each change.
    fn next_deadline(&self) -> Option<Time>;

    /// What to do next.
    fn poll(&mut self) -> Option<Action>;

    /// The CLC message to send on [`Action::Send`].
    fn outgoing(&self) -> &[u8];

    /// True once the peer has sent a valid CLC message.
    fn heard(&self) -> bool;

    /// True once the outcome (established, fallback or failure) has been decided.
    fn is_over(&self) -> bool;
}

/// Splits what an Accept or Confirm says into its two halves.
fn far_end(message: &AcceptConfirm) -> (LinkEnd, Element) {
    (
        LinkEnd {
            mac: message.mac,
            gid: message.gid,
            qp: message.qp,
            // Means something on first contact only, where it has been looked at before.
            mtu: message.mtu.unwrap_or(MtuCode::MIN),
            psn: message.psn,
        },
        Element {
            token: message.rmb,
            index: message.index,
            size: message.size,
            alert: message.token,
        },
    )
}

/// The Accept or Confirm that describes our end.
fn near_end(own: PeerId, first_contact: bool, local: &Local) -> AcceptConfirm {
    let Local { link, element, v2 } = local;
    AcceptConfirm {
        first_contact,
        peer_id: own,
        gid: link.gid,
        mac: link.mac,
        qp: link.qp,
        rmb: element.token,
        index: element.index,
        token: element.alert,
        size: element.size,
        mtu: Some(link.mtu),
        psn: link.psn,
        v2: *v2,
    }
}
