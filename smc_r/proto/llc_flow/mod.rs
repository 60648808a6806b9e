// SPDX-License-Identifier: GPL-2.0

//! The LLC exchanges of one link group (RFC 7609 sections 3.5.1.6 and 3.5.5, appendix C.7).
//!
//! A [`Flow`] is told what the group's links receive and what became of its own messages, and says
//! what to send and what has happened. It lives under a lock that may be taken in softirq context:
//! no call blocks, allocates, or takes more than a few microseconds. After every call that takes
//! `&mut self`, and before the lock is given up,
//!
//! * take all events with [`Flow::poll_event`], and remember what they ask for;
//! * as long as the links have free send slots, post what [`Flow::poll_send`] yields, and hand what
//!   finds none back with [`Flow::put_back`];
//! * set the group's one timer to [`Flow::next_deadline`].
//!
//! # Exchanges
//!
//! Two kinds never run at the same time: those that change the links (first contact, DELETE LINK
//! of one link) and our own RKEY exchanges, of which one at a time is under way and a few more wait
//! in line. The peer's requests are answered at once, from its message alone; while one of its RKEY
//! exchanges takes several messages, the links stay as they are, for as long as a reply may take. All queues are small
//! arrays: a peer that sends without end finds that what does not fit is dropped.
//!
//! # Links
//!
//! A group has one link, [`LinkIx::FIRST`], unless its driver can make more
//! ([`Flow::with_further_links`]). A server that cannot offers a second link all the same, because
//! RFC 7609 (and Linux) clients wait for that; should the client accept, it is deleted at once. A
//! client that cannot refuses every offer. In version 2 the two sides may agree on one link, and
//! then nothing is offered.
//!
//! With a driver that can, links come and go like this:
//!
//! * Server: [`Event::MakeLink`] asks for a queue pair on some port, [`Flow::link_made`] names it,
//!   ADD LINK offers it. When the client has accepted, [`Event::ConnectLink`] asks to connect it,
//!   and [`Flow::link_connected`] tells when that is done.
//! * Client: [`Event::AcceptLink`] asks for a queue pair that is connected to the offered one;
//!   [`Flow::link_made`] names it.
//! * Either side enters its buffers' RTokens on the new link into the [`OwnTable`] before it calls
//!   [`Flow::link_made`], and lets the peer use them before [`Flow::link_connected`], a client
//!   before [`Flow::link_made`]. Buffers announced later need a token on every link.
//! * [`Event::LinkUp`]: the link may carry connections. [`Event::LinkDown`]: it may not any more,
//!   and its connections go on on other links. [`Event::LinkGone`]: its queue pair is not needed
//!   any more, and what the [`OwnTable`] says of it is history.
//!
//! The server leads. It adds a link whenever the group lacks one, after the first contact at once,
//! and again and again while there is no redundancy; further ones up to the agreed maximum as long
//! as there are ports on both sides. A link that shares a port with another one is asymmetric: it
//! does not count, there is one at most, and it is deleted when a better one is there.

mod change;
mod first;
mod links;
mod queue;
mod receive;
mod rest;
mod rkey;
mod v2;

use crate::{
    group::{
        LinkEnd,
        LinkIx,
        LinkNums,
        OwnTable,
        PeerSlot,
        Role,
        MAX_LINKS, //
    },
    handshake::LinkResult,
    llc::{
        DeleteLink,
        DeleteReason,
        Llc, //
    },
    timer::{
        earlier,
        FlowTiming,
        Millis,
        Time, //
    },
    wire::{
        ByteOrder,
        Gid,
        LinkNum,
        Mac, //
    },
};
use core::fmt;

pub use crate::group::RmbId;
use change::Change;
use first::Offered;
pub use first::{
    AddLinkAnswer,
    AddLinkView, //
};
use links::{
    Ask,
    Link,
    Stage,
    Wish, //
};
use queue::Queue;
use rest::Rest;
pub use rest::Sealing;
use rkey::{
    Incoming,
    OwnExchange,
    Withheld, //
};
pub use v2::{
    Frame,
    FRAME_MAX, //
};

/// Sends that wait to be posted.
const SENDS_MAX: usize = 24;

/// How many of them may be replies: what a peer may ask at a time is TEST LINK on all links, an RKEY
/// exchange, and a change of the links. The rest is kept for our own requests, of which there are never
/// more at a time.
const REPLIES_MAX: usize = MAX_LINKS + 2;

/// Events that wait to be taken.
const EVENTS_MAX: usize = 48;

/// Places for those that end the group, which nothing makes up for.
const LAST_EVENTS: usize = 2;

/// Most events that one call leads to: all links but one may fail, each with two events.
const EVENTS_PER_CALL: usize = 24;

/// Most buffers in use that a peer may take away at a time.
const RMBS_GONE_MAX: usize = 12;

/// Links that wait to be deleted: all there are, and one that never was complete.
const WISHES_MAX: usize = MAX_LINKS + 1;

/// Most links of a group of version 2, whose CONFIRM RKEY has no continuation.
const LINKS_V2: usize = 3;

/// Most RKEY exchanges of our own that wait in line, the one under way included.
pub const OWN_EXCHANGES_MAX: usize = 16;

/// Most often that a CONFIRM RKEY is sent for one buffer.
pub const CONFIRM_RKEY_TRIES: u8 = 3;

/// Version of SMC-R that a link group speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// Version 1, that of RFC 7609.
    One,
    /// Version 2.
    Two {
        /// There is no gateway between the two ends.
        direct: bool,
    },
}

/// What a link group is made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowParams {
    /// Our role.
    pub role: Role,
    /// The version that CLC has chosen.
    pub version: Version,
    /// Most links that we can handle, 2 to 8, and in version 2 also 1; goes into CONFIRM LINK.
    pub max_links: u8,
    /// Most connections that the group takes; in version 2 as CLC has agreed, at most 255.
    pub max_connections: u16,
    /// Shown to the peer in CONFIRM LINK, for display only.
    pub user_id: u32,
    /// Number that makes our TEST LINK data differ from that of other groups.
    pub seed: u64,
    /// The timers.
    pub timing: FlowTiming,
}

/// A message to post.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outgoing {
    /// The link to post it on.
    pub link: LinkIx,
    /// The message: a SEND of exactly these bytes, with the solicited bit.
    pub message: Frame,
    /// How many pairs of keys follow the message: see [`Flow::write_pairs`]. Not zero only in
    /// version 2, in groups with further links.
    pub pairs: u8,
    /// If present, the driver has to report the completion with [`Flow::handle_sent`].
    pub note: Option<Note>,
}

/// A message that waits to be posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Queued {
    link: LinkIx,
    text: Text,
    note: Option<Note>,
}

/// What a message says, of which some is put in only when it is posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Text {
    Ready(Frame),
    /// What a client says of an unused port. At most one waits, the latest.
    Hint(Frame),
    /// ADD LINK of version 2, with the keys of all our buffers. It belongs to this attempt.
    AddLink(Frame, u32),
    /// ADD LINK CONTINUATION, likewise.
    Pairs,
    /// The request of our own RKEY exchange.
    Own,
    /// Its next continuation.
    OwnCont,
}

/// Which message a completion is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Note {
    /// The CONFIRM LINK request.
    ConfirmLink,
    /// The CONFIRM LINK reply.
    ConfirmLinkReply,
    /// The last message of the group.
    Last,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The first contact is decided. The driver passes it on to
    /// [`Rendezvous::handle_link`](crate::handshake::Rendezvous::handle_link). If it failed, the
    /// group is over; no further event follows.
    FirstContact(LinkResult),
    /// The queue pair reserved for the ADD LINK offer is not needed any more.
    SpareFree,
    /// Server: make a queue pair for a link to be offered, and name it with [`Flow::link_made`].
    MakeLink {
        /// To be named in the answer.
        attempt: Attempt,
        /// It has to be on a port for which [`Flow::is_port_taken`] is false. Otherwise such a port
        /// is preferred.
        spare_only: bool,
    },
    /// Client: make a queue pair, connect it to [`Flow::peer_end`], and name it with
    /// [`Flow::link_made`].
    AcceptLink {
        /// To be named in the answer.
        attempt: Attempt,
        /// As in [`Event::MakeLink`].
        spare_only: bool,
    },
    /// Server: connect the queue pair to [`Flow::peer_end`], and call [`Flow::link_connected`].
    ConnectLink(Attempt),
    /// The link may carry connections.
    LinkUp(LinkIx),
    /// The link carries nothing any more: its connections move to other links.
    LinkDown(LinkIx, DownReason),
    /// The driver destroys the queue pair of this link.
    LinkGone(LinkIx),
    /// Connections for which either side sends over a link that [is at rest or comes to it](Flow::is_resting) are
    /// held ([`Conn::set_held`](crate::conn::Conn::set_held)), and others go on; links that need not be
    /// [sealed](Event::Seal) are no more. The answer is [`Flow::connections_held`].
    Hold,
    /// The device takes no write any more over links that [are to be sealed](Flow::is_sealed): one that comes
    /// breaks the link. Before it asks which these are, the driver asks for [`Flow::sealing`]; the answer is
    /// [`Flow::links_sealed`]. Links that need not be sealed any more are looked for after [`Event::LinkDown`],
    /// [`Event::Hold`] and [`Event::Resume`].
    Seal,
    /// All connections go on, and no link is sealed any more.
    Resume,
    /// The answer to [`Flow::confirm_writes`].
    WritesArrived(LinkIx),
    /// Client: the group has fewer links than it should. If there is an unused port, name it with
    /// [`Flow::hint`].
    LinkWanted,
    /// The peer knows this buffer of ours: CLC may name it.
    RkeyConfirmed(RmbId),
    /// The peer does not take this buffer of ours: CLC must not name it.
    RkeyRefused(RmbId),
    /// The peer has forgotten this buffer of ours: its memory may be freed or reused.
    RkeyDeleted(RmbId),
    /// The peer has deleted this buffer while connections use it. The driver aborts them before
    /// anything more is written to it, and calls [`Flow::rmb_abandoned`] when what they had posted has arrived over all
    /// links but that of the [answer](Flow::answering), for which the peer waits.
    PeerRmbGone(PeerSlot),
    /// The group is over. The driver aborts its connections, and opens no new ones. The links stay
    /// until [`Event::Release`].
    Down(DownReason),
    /// Nothing of the group is on its way any more: the driver destroys its links.
    Release,
}

/// One attempt to add a link. What the driver answers late is known by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    link: LinkIx,
    number: u32,
}

impl Attempt {
    /// The place of the link.
    pub const fn link(self) -> LinkIx {
        self.link
    }
}

/// Why a link group ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DownReason {
    /// Its last link failed.
    LinkFailed(LinkFailure),
    /// The peer deleted it, or its last link, with this reason code.
    PeerDeleted(DeleteReason),
    /// It had no connections for a long time.
    Idle,
    /// [`Flow::shut_down`] was called.
    Local,
}

/// Why a link failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkFailure {
    /// The driver said so: a completion with an error, an event of the queue pair or the port.
    Transport,
    /// A reply did not come in time.
    Timeout(Exchange),
    /// The peer broke the protocol.
    Violation,
    /// The peer announced a buffer without a key for this link.
    NoRkey,
}

impl fmt::Display for DownReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LinkFailed(failure) => write!(f, "the last link failed: {failure}"),
            Self::PeerDeleted(reason) => write!(f, "deleted by the peer: {reason}"),
            Self::Idle => f.write_str("idle"),
            Self::Local => f.write_str("shut down"),
        }
    }
}

impl fmt::Display for LinkFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Transport => f.write_str("transport error"),
            Self::Timeout(exchange) => write!(f, "no answer to {exchange}"),
            Self::Violation => f.write_str("protocol violation of the peer"),
            Self::NoRkey => f.write_str("no key for a buffer of the peer"),
        }
    }
}

impl fmt::Display for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TestLink => "TEST LINK",
            Self::ConfirmRkey => "CONFIRM RKEY",
            Self::DeleteRkey => "DELETE RKEY",
            Self::AddLink => "ADD LINK",
            Self::ConfirmLink => "CONFIRM LINK",
            Self::DeleteLink => "DELETE LINK",
        })
    }
}

/// The exchanges that a peer must not leave unanswered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exchange {
    /// TEST LINK
    TestLink,
    /// CONFIRM RKEY
    ConfirmRkey,
    /// DELETE RKEY
    DeleteRkey,
    /// ADD LINK, or the continuations that follow it
    AddLink,
    /// CONFIRM LINK on a further link
    ConfirmLink,
    /// DELETE LINK
    DeleteLink,
}

/// Why a link group is shut down, for the DELETE LINK message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShutDown {
    /// The path is lost.
    LostPath,
    /// An operator wants it: device removal, module removal.
    Operator,
    /// The group is not needed any more.
    Program,
    /// The two sides disagree about the state of the group.
    OutOfSync,
}

/// Why an RKEY exchange cannot be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unavailable {
    /// Too many wait in line.
    Full,
    /// The group is not up, or not any more.
    Down,
}

/// Numbers for whoever looks at a link group from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// LLC messages taken in.
    pub received: u64,
    /// Of these, discarded without effect, but for those that came after the end.
    pub dropped: u64,
    /// Negative replies sent.
    pub refused: u64,
    /// TEST LINK requests sent.
    pub probes: u64,
    /// Breaches of the protocol by the peer.
    pub violations: u64,
    /// Further links that came to nothing when the peer knew them: a failure, silence, or its wish.
    pub unmade: u64,
}

/// How much of a group may fail before it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redundancy {
    /// It has no link.
    None,
    /// It has one link.
    Single,
    /// Either side has two ports in use.
    Full,
    /// All links end at one port of the peer.
    PeerPort,
    /// All links end at one port of ours.
    OwnPort,
}

/// Where the group is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Made, not started.
    New,
    /// First contact: CONFIRM LINK on the first link.
    Confirming { until: Time, delivered: bool },
    /// First contact: ADD LINK.
    Adding { until: Time, delivered: bool },
    /// First contact: a second link is being set up.
    Joining,
    /// Data may flow.
    Active,
    /// Over but for the last message, and where that is repeated if its link fails.
    Ending {
        until: Time,
        via: LinkIx,
        words: Option<DeleteLink>,
    },
    /// Over.
    Down,
}

/// The LLC engine of one link group.
pub struct Flow {
    params: FlowParams,
    phase: Phase,
    links: [Option<Link>; MAX_LINKS],
    /// The peer's ends of the links that were at places which are free: of the last one that was in use.
    past: [Option<LinkEnd>; MAX_LINKS],
    /// The place of the link that has come into use last.
    newest: LinkIx,
    numbers: LinkNums,
    max_links: u8,
    /// The byte order of lengths of version 2.
    order: ByteOrder,
    /// Server: what ADD LINK offers.
    offered: Option<Offered>,
    /// The driver can make more than one link.
    several: bool,
    /// The exchange under way that changes the links.
    change: Option<Change>,
    /// Server: links that have to be deleted, one after the other.
    wishes: Queue<Wish, WISHES_MAX>,
    /// Client: deletions that the server has been asked for.
    asks: [Option<Ask>; WISHES_MAX],
    /// Server: try to add a link as soon as nothing else is going on.
    add_wanted: bool,
    /// But only on a port of ours that no link is on.
    add_on_spare: bool,
    /// But not before then.
    add_after: Option<Time>,
    /// When as many queue pairs are due as the peer has had us make.
    paced: Option<Time>,
    /// Server: when the link is added that the peer has asked for beyond that.
    put_off: Option<Time>,
    retry_at: Option<Time>,
    /// A link for which both sides have a port could not be made by us, or, as server, not be used.
    unfinished: bool,
    /// How many did so in a row.
    failures: u8,
    /// A port appeared during the first contact, or while a link was being added, which may not have found it, or deleted,
    /// whose end would put the next one off.
    port_came: bool,
    /// Client of version 2: the server has been asked for another link, and may say that it has none.
    hinted: bool,
    /// Server of version 2: the client asked for a link on this one, and starts nothing of its own before it has
    /// an ADD LINK or an answer.
    requested: Option<LinkIx>,
    /// Server: the link that the client has accepted last.
    accepted: Option<LinkNum>,
    /// Attempts to add a link so far.
    attempts: u32,
    /// Links that somebody here wants deleted, as soon as another one has shown that it works.
    drains: u16,
    /// And those of which one has: they come to rest, then they go.
    rest: Option<Rest>,
    /// Places of links that are gone, whose keys [`PeerTable`](crate::group::PeerTable) has yet to forget:
    /// when there is another link.
    forget: u16,
    /// The latest time that we were told.
    clock: Time,
    /// The peer's RKEY exchange that needs more than one message.
    incoming: Option<Incoming>,
    /// The answer to the peer's DELETE RKEY that is not due yet.
    withheld: Option<Withheld>,
    /// So many [`Event::PeerRmbGone`] are due to be followed by [`Flow::rmb_abandoned`].
    abandoning: u16,
    own: Queue<OwnExchange, OWN_EXCHANGES_MAX>,
    connections: u16,
    idle_since: Option<Time>,
    /// See [`Flow::set_keepalive`].
    keepalive: Millis,
    counters: Counters,
    sends: Queue<Queued, SENDS_MAX>,
    /// What [`Flow::poll_send`] yielded last, as it would have to be queued again.
    yielded: Option<Queued>,
    events: Queue<Event, EVENTS_MAX>,
}

impl Flow {
    /// A link group without links.
    // Inlined, and with its parts made by the compiler, so that it comes about where it stays: it is too large for stacks.
    #[inline]
    pub const fn new(params: FlowParams) -> Self {
        Self {
            params,
            phase: Phase::New,
            links: const { [const { None }; MAX_LINKS] },
            past: const { [const { None }; MAX_LINKS] },
            newest: LinkIx::FIRST,
            numbers: LinkNums::new(),
            max_links: params.max_links,
            order: v2::FIRST_ORDER,
            offered: None,
            several: false,
            change: None,
            wishes: const { Queue::new() },
            asks: const { [const { None }; WISHES_MAX] },
            add_wanted: false,
            add_on_spare: false,
            add_after: None,
            paced: None,
            put_off: None,
            retry_at: None,
            unfinished: false,
            failures: 0,
            port_came: false,
            hinted: false,
            requested: None,
            accepted: None,
            attempts: 0,
            drains: 0,
            rest: None,
            forget: 0,
            clock: Time::from_millis(0),
            incoming: None,
            withheld: None,
            abandoning: 0,
            own: const { Queue::new() },
            connections: 0,
            idle_since: None,
            keepalive: 0,
            counters: Counters {
                received: 0,
                dropped: 0,
                refused: 0,
                probes: 0,
                violations: 0,
                unmade: 0,
            },
            sends: const { Queue::new() },
            yielded: None,
            events: const { Queue::new() },
        }
    }

    /// Tells that the driver can make further links. To be called before the group is started.
    #[must_use]
    pub const fn with_further_links(mut self) -> Self {
        self.allow_further_links();
        self
    }

    /// As [`Flow::with_further_links`].
    pub const fn allow_further_links(&mut self) {
        self.several = true;
    }

    /// Our role.
    pub const fn role(&self) -> Role {
        self.params.role
    }

    /// True while connections may be added: the first contact is complete, the end has not begun.
    pub fn is_usable(&self) -> bool {
        self.phase == Phase::Active
    }

    /// Server: whether the client may be through with the first contact. It does not learn whether its answer to ADD LINK has
    /// arrived, nor that to CONFIRM LINK, after which nothing follows in a group of one link, which version 2 has.
    pub fn may_be_in_use(&self) -> bool {
        match self.phase {
            Phase::Confirming { .. } => self.max_links < 2,
            Phase::Adding { .. } | Phase::Joining | Phase::Active => true,
            Phase::New | Phase::Ending { .. } | Phase::Down => false,
        }
    }

    /// True once the group has ended, or is about to.
    pub fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Ending { .. } | Phase::Down)
    }

    /// The version that the group speaks.
    pub const fn version(&self) -> Version {
        self.params.version
    }

    /// Most links that the group may have, as far as it is known now.
    pub const fn max_links(&self) -> u8 {
        self.max_links
    }

    /// The active link whose far end is this queue pair: the one which CLC names on a subsequent
    /// contact.
    ///
    /// In version 2 the GID alone names the port.
    pub fn find_link(&self, peer: &LinkEnd) -> Option<LinkIx> {
        self.find(|link| link.peer.is_some_and(|end| self.is_same_end(&end, peer)))
    }

    /// The place of the link whose far end is this queue pair, or was, as long as no other link is there: CLC names
    /// a buffer by its key on the link that was chosen when the contact began, and keys are remembered as long.
    ///
    /// A device that has come back may give its queue pairs the same numbers again. What was meant is where
    /// `is_known` says that the buffer has this key. A new one is announced over the link before CLC names it (RFC 7609
    /// section 3.5.5.2): one that nobody knows is not this peer's, whoever names it.
    pub fn find_place(&self, peer: &LinkEnd, is_known: impl Fn(LinkIx) -> bool) -> Option<LinkIx> {
        let end = |link: LinkIx| match self.link(link) {
            Some(link) => link.peer,
            None => self.past.get(link.get()).copied().flatten(),
        };
        let is_it = |link: &LinkIx| {
            end(*link).is_some_and(|end| self.is_same_end(&end, peer)) && is_known(*link)
        };
        let active = self.active().find(is_it);
        active.or_else(|| LinkIx::all().find(is_it))
    }

    fn is_same_end(&self, one: &LinkEnd, other: &LinkEnd) -> bool {
        match self.params.version {
            Version::One => one.same_queue_pair(other),
            Version::Two { .. } => one.gid == other.gid && one.qp == other.qp,
        }
    }

    /// An active link whose far end is on this port: one that fits a Proposal.
    pub fn find_port(&self, mac: Mac, gid: Gid) -> Option<LinkIx> {
        self.find(|link| match self.params.version {
            Version::One => link.peer.is_some_and(|end| end.same_port(mac, gid)),
            Version::Two { .. } => link.peer.is_some_and(|end| end.gid == gid),
        })
    }

    fn find(&self, matches: impl Fn(&Link) -> bool) -> Option<LinkIx> {
        if !self.is_usable() {
            return None;
        }
        self.active()
            .find(|link| self.link(*link).is_some_and(&matches))
    }

    /// The links that carry messages now.
    fn active(&self) -> impl Iterator<Item = LinkIx> + '_ {
        LinkIx::all().filter(|link| self.is_active(*link))
    }

    fn is_active(&self, link: LinkIx) -> bool {
        self.link(link)
            .is_some_and(|link| link.stage == Stage::Active)
    }

    /// The link for a connection's next writes: of those that connections may use, the one with the
    /// least load; one without a load is out of the question. The asymmetric link is as good as any.
    pub fn choose_link(&self, load: impl Fn(LinkIx) -> Option<u32>) -> Option<LinkIx> {
        if !self.is_usable() {
            return None;
        }
        // Those that are about to go are better than none.
        self.active()
            .filter_map(|link| Some((self.is_doomed(link), load(link)?, link)))
            .min_by_key(|(is_doomed, load, _)| (*is_doomed, *load))
            .map(|(.., link)| link)
    }

    /// From which link to which a connection should move, so that the load is spread evenly: none
    /// if it is. A link that has come back is filled by asking again and again.
    pub fn rebalance(&self, load: impl Fn(LinkIx) -> u32) -> Option<(LinkIx, LinkIx)> {
        if !self.is_usable() {
            return None;
        }
        let staying = || self.active().filter(|link| !self.is_doomed(*link));
        let least = staying().min_by_key(|link| load(*link))?;
        let most = staying().max_by_key(|link| load(*link))?;
        (load(most) > load(least).saturating_add(1)).then_some((most, least))
    }

    /// Whether connections may use this link.
    pub fn is_link_up(&self, link: LinkIx) -> bool {
        self.is_usable() && self.is_active(link)
    }

    fn link(&self, link: LinkIx) -> Option<&Link> {
        self.links.get(link.get())?.as_ref()
    }

    fn link_mut(&mut self, link: LinkIx) -> Option<&mut Link> {
        self.links.get_mut(link.get())?.as_mut()
    }

    /// The link on which our own requests travel.
    fn carrier(&self) -> Option<LinkIx> {
        self.active().next()
    }

    /// Another link than this one to send on.
    fn other_carrier(&self, link: LinkIx) -> Option<LinkIx> {
        self.active().find(|other| *other != link)
    }

    /// Our end of a link.
    pub fn local_end(&self, link: LinkIx) -> Option<LinkEnd> {
        self.link(link)?.local
    }

    /// The peer's end of a link.
    pub fn peer_end(&self, link: LinkIx) -> Option<LinkEnd> {
        self.link(link)?.peer
    }

    /// The number of a link on the wire, once it is known.
    pub fn link_number(&self, link: LinkIx) -> Option<LinkNum> {
        self.link(link)?.number
    }

    /// Our own name for the links of the group, for display.
    pub const fn user_id(&self) -> [u8; 4] {
        self.params.user_id.to_be_bytes()
    }

    /// The peer's own name for a link, once it is known, for display.
    pub fn peer_user_id(&self, link: LinkIx) -> Option<[u8; 4]> {
        self.link(link)?.peer_user_id
    }

    /// Numbers for display.
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// Number of connections.
    pub const fn connections(&self) -> u16 {
        self.connections
    }

    /// Counts a connection in, before the driver does anything else about it. False if the group
    /// takes no more. A group that is not up yet takes the one connection of its first contact.
    ///
    /// The limit is the server's to keep, which chooses the group. It counts a connection out when it
    /// has seen both ends close, which may be before the client has: a client takes twice as many.
    #[must_use]
    pub fn add_connection(&mut self) -> bool {
        let agreed = self.params.max_connections;
        let limit = match self.phase {
            Phase::Active => match self.params.role {
                Role::Server => agreed,
                Role::Client => agreed.saturating_mul(2),
            },
            Phase::New | Phase::Confirming { .. } | Phase::Adding { .. } | Phase::Joining => 1,
            Phase::Ending { .. } | Phase::Down => 0,
        };
        if self.connections >= limit {
            return false;
        }
        self.connections = self.connections.saturating_add(1);
        self.idle_since = None;
        true
    }

    /// Counts a connection out. After the last one, the group ends when it has been idle for long.
    pub fn remove_connection(&mut self, now: Time) {
        self.connections = self.connections.saturating_sub(1);
        if self.connections == 0 {
            self.idle_since = Some(now);
        }
    }

    /// Has links tested after so much silence at the latest, because connections want that (RFC 7609
    /// section 4.5.3); zero if none does.
    pub fn set_keepalive(&mut self, span: Millis) {
        self.keepalive = span;
    }

    /// What [`set_keepalive`](Self::set_keepalive) was told last.
    pub fn keepalive(&self) -> Millis {
        self.keepalive
    }

    /// The driver saw something arrive on the link that the flow was not told of: CDC messages.
    /// Call it with the time of the last one before [`handle_timeout`](Self::handle_timeout), and before
    /// [`handle_received`](Self::handle_received).
    pub fn note_activity(&mut self, link: LinkIx, when: Time) {
        if let Some(link) = self.link_mut(link) {
            link.last_received = link.last_received.max(when);
            link.last_data = link.last_data.max(when);
        }
    }

    /// A message with a [`Note`] was completed on this link, successfully or not.
    pub fn handle_sent(&mut self, link: LinkIx, note: Note, ok: bool, now: Time) {
        self.clock = now;
        match (note, &mut self.phase) {
            (Note::Last, Phase::Ending { .. }) if ok => self.last_words_arrived(now),
            (Note::Last, Phase::Ending { via, .. }) if *via == link => {
                self.repeat_last_words(link, now);
            }
            // Its link is known to have failed: the message is on its way on another one.
            (Note::Last, _) => {}
            (Note::ConfirmLink, Phase::Confirming { delivered, .. })
            | (Note::ConfirmLinkReply, Phase::Adding { delivered, .. })
                if ok =>
            {
                *delivered = true;
            }
            _ if !ok => self.handle_link_failed(link, now),
            _ => {}
        }
    }

    /// Time passed. Harmless if it is too early.
    pub fn handle_timeout(&mut self, now: Time) {
        self.clock = now;
        match self.phase {
            Phase::Confirming { until, delivered } if until <= now => {
                self.confirm_link_timed_out(delivered);
            }
            Phase::Adding { until, delivered } if until <= now => {
                self.add_link_timed_out(delivered, now);
            }
            Phase::Ending { until, .. } if until <= now => self.release(),
            Phase::Joining => {
                self.check_change(now);
                self.check_asks(now);
            }
            Phase::Active => {
                self.check_change(now);
                self.check_asks(now);
                self.check_retry(now);
                self.check_own(now);
                self.check_incoming(now);
                self.check_links(now);
                self.check_rest(now);
                self.check_idle(now);
            }
            _ => {}
        }
    }

    /// When to call [`handle_timeout`](Self::handle_timeout).
    pub fn next_deadline(&self) -> Option<Time> {
        match self.phase {
            Phase::New | Phase::Down => None,
            Phase::Confirming { until, .. }
            | Phase::Adding { until, .. }
            | Phase::Ending { until, .. } => Some(until),
            Phase::Joining => earlier(self.change_deadline(), self.asks_deadline()),
            Phase::Active => {
                let deadline = earlier(self.change_deadline(), self.own_deadline());
                let deadline = earlier(deadline, self.incoming_deadline());
                let deadline = earlier(deadline, earlier(self.asks_deadline(), self.retry_at));
                let deadline =
                    earlier(deadline, earlier(self.idle_deadline(), self.add_deadline()));
                earlier(
                    deadline,
                    earlier(self.links_deadline(), self.rest_deadline()),
                )
            }
        }
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop()
    }

    /// The next message to post. Ask only if it can be posted now.
    ///
    /// For groups that never have more than one link.
    pub fn poll_send(&mut self) -> Option<Outgoing> {
        self.poll_send_with(&OwnTable::EMPTY)
    }

    /// The next message to post, for groups with further links. Ask only if it can be posted now.
    pub fn poll_send_with(&mut self, own: &OwnTable<'_>) -> Option<Outgoing> {
        while let Some(queued) = self.sends.pop() {
            // What was meant for a link that has failed meanwhile is done otherwise by now.
            let leaving = self
                .link(queued.link)
                .is_none_or(|link| link.stage == Stage::Leaving);
            if leaving {
                continue;
            }
            let built = match queued.text {
                Text::Ready(frame) | Text::Hint(frame) => Some((frame, 0)),
                Text::AddLink(frame, attempt) => self
                    .change
                    .is_some_and(|change| change.attempt == attempt)
                    .then(|| self.with_pairs(frame, own)),
                Text::Pairs => self.next_pairs(own).map(|frame| (frame, 0)),
                Text::Own => self.own_request(queued.link, own).map(|frame| (frame, 0)),
                Text::OwnCont => self.own_continuation(own).map(|frame| (frame, 0)),
            };
            if let Some((message, pairs)) = built {
                let text = match queued.text {
                    Text::Pairs => Text::Ready(message),
                    text => text,
                };
                self.yielded = Some(Queued { text, ..queued });
                return Some(Outgoing {
                    link: queued.link,
                    message,
                    pairs,
                    note: queued.note,
                });
            }
        }
        None
    }

    /// Takes back what [`poll_send`](Self::poll_send) yielded last: its link has no room. It comes first
    /// when asked for again, with the keys as they are then. To be called before anything else happens.
    pub fn put_back(&mut self) {
        if let Some(queued) = self.yielded.take() {
            // Its place is free.
            self.sends.push_first(queued);
        }
    }

    /// True if [`poll_send`](Self::poll_send) has something.
    pub fn has_sends(&self) -> bool {
        self.sends.len() != 0
    }

    fn event(&mut self, event: Event) {
        // There is room: `handle_received` asks for it, and nothing else makes more than a few.
        let is_last = matches!(event, Event::Down(_) | Event::Release);
        if is_last || self.events.room() > LAST_EVENTS {
            self.events.push(event);
        }
    }

    fn send(&mut self, link: LinkIx, message: &Llc, note: Option<Note>) {
        let message = self.frame(link, message);
        self.send_text(link, Text::Ready(message), note);
    }

    fn send_text(&mut self, link: LinkIx, text: Text, note: Option<Note>) {
        let queued = self.sends.push(Queued { link, text, note });
        debug_assert!(queued, "there is room: see `REPLIES_MAX`");
    }

    /// Replies that wait to be posted.
    fn replies(&self) -> usize {
        let waiting = self.sends.iter().filter(|queued| match queued.text {
            Text::Ready(frame) | Text::AddLink(frame, _) => frame.is_reply(),
            _ => false,
        });
        // See `Queue::len`.
        waiting.fold(0, |n, _| n.saturating_add(1))
    }

    /// The link carries nothing any more: what waits to be posted there does not keep anything else waiting.
    fn drop_sends(&mut self, link: LinkIx) {
        self.sends.retain(|queued| queued.link != link);
    }
}
