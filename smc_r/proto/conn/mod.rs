// SPDX-License-Identifier: GPL-2.0

//! One established connection: data, flow control, urgent data and close, both directions.
//!
//! RFC 7609, 4.3 to 4.8. [`Conn`] is a plain value without I/O, lock or clock. Its owner keeps it
//! under a lock, moves the bytes and carries out what the methods return. The methods fall into
//! four kinds:
//!
//! * *Getters* answer questions of `poll`, `ioctl` and the diagnosis interface.
//! * *Commands* are what the application wants: [`send_spans`](Conn::send_spans) and
//!   [`send_commit`](Conn::send_commit), [`recv_spans`](Conn::recv_spans) and
//!   [`recv_commit`](Conn::recv_commit), [`recv_urgent`](Conn::recv_urgent),
//!   [`shutdown_write`](Conn::shutdown_write), [`close`](Conn::close), [`abort`](Conn::abort).
//! * *`handle_*`* is told what happened: a CDC message, a completion, a lost link, a TCP reset, a
//!   timeout. They return [`Events`]: whom to wake.
//! * *[`poll_transmit`](Conn::poll_transmit)* says what to post next. Call it until it returns
//!   `None` after every command and every `handle_*`, and post each [`Transmit`] as one chain
//!   before the lock is dropped, so that messages go out in the order of their numbers.
//!
//! [`timer`](Conn::timer) names the one timer the connection needs at the moment.
//!
//! # Between two calls
//!
//! What `send_spans` and `recv_spans` return stays valid until the matching commit, whatever is
//! handled in between, so that the bytes can be copied without the lock. Each call that returned
//! bytes must be followed by its commit, of 0 bytes if need be. There is one writer and one
//! reader at a time.
//!
//! # Rules of the transmit side
//!
//! A write never goes beyond what the peer reported as consumed. Data goes out at once if nothing
//! is in flight, else when a quarter of the smaller ring is there; what is smaller waits for the
//! completion and leaves together with all that came meanwhile. At most [`MAX_IN_FLIGHT`]
//! transmits are outstanding. A transmit that is small and answers the peer asks for no
//! completion, but never so that bytes of the send ring or the limit would wait for one that does
//! not come. D and C ride on the last data, since the order of the queue pair makes the data
//! arrive first.
//!
//! # The end
//!
//! A connection that ends before its time sends nothing more, but for its A. What the peer had
//! announced by then stays readable, whatever the reason was, and nothing is added to it; then
//! [`error`](Conn::error) says why there is no more. Only [`abort`](Conn::abort) drops it. Once
//! the peer has sent C, neither its TCP connection nor the link has anything to add to that.

mod close;
mod early;
mod flight;
mod input;
mod overtaken;
mod receive;
mod send;
mod state;
mod traffic;
mod watch;

use core::fmt;

use crate::{
    cdc::{
        Cdc,
        ProdFlags,
        StateFlags, //
    },
    cursor::{
        Cursor,
        CursorError,
        Geometry,
        Position, //
    },
    group::MAX_LINKS,
    wire::AlertToken, //
};

pub use self::{
    close::Timer,
    early::Early,
    flight::{
        Ticket,
        MAX_IN_FLIGHT, //
    },
    receive::UrgentError,
    send::{
        SendFlags,
        Transmit,
        Write,
        MAX_WRITES, //
    },
    state::{
        Event,
        Facts,
        Fin,
        State, //
    },
    traffic::Traffic,
    watch::Watch,
};

/// What is agreed about a connection when it is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Params {
    /// Size of the local send ring, any number above 0.
    pub send_ring: u32,
    /// Size of our element, which the peer writes.
    pub element: u32,
    /// Size of the peer's element, which we write.
    pub peer_element: u32,
    /// Base of the cursors in both elements: 0 or 4.
    pub base: u32,
    /// Token that the peer gave out for this connection.
    pub peer_token: AlertToken,
    /// Most bytes of one transmit, but for what is repeated after a failover; 0 for no limit beyond the one derived
    /// from the rings.
    pub max_transmit: u32,
}

/// How a peer broke the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Violation {
    /// The producer cursor is no place in our element, or leaps.
    Producer(CursorError),
    /// The producer cursor claims more unread data than our element holds.
    ProducerOverrun,
    /// The consumer cursor is no place in the peer's element, or leaps.
    Consumer(CursorError),
    /// The consumer cursor is ahead of what we have written.
    ConsumerAhead,
    /// The failover validation names messages which never arrived: data is lost.
    DataLost,
    /// Bytes came over TCP, where nothing follows the rendezvous.
    TcpData,
    /// The peer took back the element that we write to, or gave it to another connection.
    ElementGone,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Producer(e) => write!(f, "producer: {e}"),
            Violation::ProducerOverrun => f.write_str("producer overran unread data"),
            Violation::Consumer(e) => write!(f, "consumer: {e}"),
            Violation::ConsumerAhead => f.write_str("consumer ahead of what was written"),
            Violation::DataLost => f.write_str("data lost at failover"),
            Violation::TcpData => f.write_str("data over TCP"),
            Violation::ElementGone => f.write_str("element taken away"),
        }
    }
}

/// Why a connection ended before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnError {
    /// The peer aborted it, or closed it while data for it was still unsent.
    Reset,
    /// The TCP connection was reset.
    TcpReset,
    /// Our application aborted it.
    Aborted,
    /// The peer broke the protocol.
    ProtocolViolation(Violation),
    /// The last link of the group is gone.
    LinkFailed,
    /// The peer did not take our data, or did not close, in time.
    TimedOut,
}

impl fmt::Display for ConnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnError::Reset => f.write_str("reset by peer"),
            ConnError::TcpReset => f.write_str("TCP connection reset"),
            ConnError::Aborted => f.write_str("aborted"),
            ConnError::ProtocolViolation(v) => write!(f, "protocol violation: {v}"),
            ConnError::LinkFailed => f.write_str("link failed"),
            ConnError::TimedOut => f.write_str("timed out"),
        }
    }
}

/// What a call changed that somebody may wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[must_use]
pub struct Events {
    /// Wake readers: data, end of stream or urgent data arrived.
    pub readable: bool,
    /// Wake writers: enough of the send ring is free.
    pub writable: bool,
    /// Raise `SIGURG`: urgent data arrived or was announced.
    pub urgent: bool,
    /// Wake everybody: a direction was shut, the state changed, or there is an error.
    pub changed: bool,
    /// The message was old or for a connection that is over, and had no effect.
    pub dropped: bool,
    /// It was dropped, and is no fault of the peer's: those of its link came in order. One of another link was faster, or
    /// the connection was over here before the peer knew.
    pub late: bool,
    /// The message has no effect yet: some that were sent before it are still to come.
    pub held: bool,
    /// A further message is awaited which the peer sent over a link that is gone.
    pub awaits: bool,
    /// The peer broke the protocol; the connection is being aborted, or has been. For the log and counters.
    pub violation: Option<Violation>,
}

impl Events {
    /// Adds what a second call changed.
    fn merge(&mut self, other: Self) {
        self.readable |= other.readable;
        self.writable |= other.writable;
        self.urgent |= other.urgent;
        self.changed |= other.changed;
        self.violation = self.violation.or(other.violation);
    }
}

/// Everything that the diagnosis interface shows of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Diag {
    /// State.
    pub state: State,
    /// Size of the send ring.
    pub send_ring: u32,
    /// Size of our element.
    pub element: u32,
    /// Size of the peer's element.
    pub peer_element: u32,
    /// Producer cursor as received.
    pub rx_producer: Cursor,
    /// Consumer cursor as received.
    pub rx_consumer: Cursor,
    /// Producer cursor as sent.
    pub tx_producer: Cursor,
    /// Consumer cursor as sent.
    pub tx_consumer: Cursor,
    /// Producer flags as received.
    pub rx_prod_flags: ProdFlags,
    /// State flags as received.
    pub rx_state_flags: StateFlags,
    /// Producer flags as sent.
    pub tx_prod_flags: ProdFlags,
    /// State flags as sent.
    pub tx_state_flags: StateFlags,
    /// Place in the send ring up to which data is there.
    pub prepared: Cursor,
    /// Place in the send ring up to which data was written to the peer.
    pub sent: Cursor,
    /// Place in the send ring up to which writes were confirmed.
    pub confirmed: Cursor,
}

/// All that a transmit changes, so that one can be taken back.
#[derive(Debug, Clone, Copy)]
struct Tx {
    state: State,
    /// Sequence number of the last message.
    seq: u16,
    /// Place in the send ring up to which data was written.
    written: Position,
    /// The same place as a cursor of the peer's element.
    produced: Cursor,
    /// The most that was ever written; larger than `written` only after a failover.
    furthest: u64,
    /// Consumer cursor as last sent.
    told: Position,
    /// End of our direction as last sent.
    sent: Fin,
    /// End of urgent data which is not written yet.
    urgent: Option<u64>,
    /// End of urgent data which was written over a link that failed, and may not have arrived.
    repeat: Option<u64>,
    /// End of urgent data which the peer has to consume before anything more is written.
    stall: Option<u64>,
    /// Waiting urgent data has been announced.
    announced: bool,
    /// A consumer update is due although the window is wide: asked for, or urgent data was read.
    owe_update: bool,
    /// A message is due in any case.
    owe_message: bool,
    /// The next message is the validation that opens a new link.
    validate: bool,
    /// The peer has sent something since our last data: they talk, so that what is known of the next
    /// transmit need not be known soon. Not so before the peer has: it may be the start of a lot of
    /// data, which wants its room in the ring back.
    interactive: bool,
    prod_flags: ProdFlags,
    state_flags: StateFlags,
}

/// Urgent data that came in.
#[derive(Debug, Clone, Copy)]
struct UrgentIn {
    /// Place of the urgent byte in the stream.
    at: u64,
    byte: u8,
    /// The application has read the byte out of line.
    read: bool,
    /// The byte has been taken out of the stream; the mark is behind it then.
    skipped: bool,
}

/// One established connection. See the [module documentation](self).
#[derive(Debug, Clone)]
pub struct Conn {
    /// Send ring.
    ring: Geometry,
    /// The peer's element.
    peer: Geometry,
    /// Our element.
    own: Geometry,
    peer_token: AlertToken,
    /// How much of the send ring may be used.
    send_limit: u32,
    /// With so much of it not written to the peer, the application is to wait.
    unsent_limit: u32,
    /// How much of our element the peer is to fill.
    recv_limit: u32,
    /// Most bytes of one transmit: all of the smaller ring up to [`WHOLE`]; of a larger one half, so that
    /// the peer's application reads one half while we write the other.
    chunk: u32,
    /// What is worth a transmit while another is in flight.
    worth: u32,
    max_transmit: u32,

    tx: Tx,
    /// The transmit that can still be taken back.
    undo: Option<Ticket>,
    /// How things were before it.
    before: Tx,
    ticket: Ticket,
    flight: flight::Flight,
    /// Posting is pointless until the connection has moved to another link.
    down: bool,
    /// There is no link to move to, nor will there be.
    gone: bool,

    /// Place in the send ring up to which the application filled it.
    committed: Position,
    /// Place in the send ring up to which completions came: everything before it is free.
    confirmed: Position,
    /// Sequence number of the last message whose completion came.
    confirmed_seq: u16,
    /// End of our direction as of the last message whose completion came.
    confirmed_fin: Fin,
    /// What the peer reported as consumed.
    peer_consumed: Position,
    /// Bytes handed out by `send_spans`.
    writing: u32,
    cork: bool,
    more: bool,
    /// A call that has given some of its bytes waits for room for more.
    partial: bool,
    nodelay: bool,
    /// Each transmit has a completion: somebody looks at how long they take.
    timed: bool,
    /// So many bytes do not wait for a completion either.
    gather: u32,
    /// Data up to here goes out in spite of a cork.
    push: u64,

    received: Position,
    consumed: Position,
    rx_seq: u16,
    /// The highest number that came over each link.
    heard: [Option<u16>; MAX_LINKS],
    /// Messages that the peer is sure to have got through over another link, and that are to come.
    awaited: overtaken::Awaited,
    /// What came meanwhile: the latest.
    held: Option<Cdc>,
    several_links: bool,
    /// See [`Conn::set_spare`].
    has_spare: bool,
    /// How many of the spare bytes may be used now.
    spare_used: u32,
    /// What the peer has said of what it consumed, up to here in our stream, may be lost.
    doubt: Option<u64>,
    /// See [`Conn::set_held`].
    held_for_peer: bool,
    held_for_us: bool,
    /// See [`Conn::set_silent`].
    silent: bool,
    rx_fin: Fin,
    /// The peer has said, before anything failed, that it had sent everything. Linux says so as well where
    /// it gives up the rest, as at the end of a process; then, as a rule, it says that it is blocked, too.
    whole: bool,
    peer_blocked: bool,
    /// What the peer has said that its direction ended with, and is not taken for the end yet.
    put_off: Fin,
    rx_prod_flags: ProdFlags,
    rx_state_flags: StateFlags,
    /// Bytes handed out by `recv_spans` are being read.
    reading: bool,
    inline: bool,
    urgent_in: Option<UrgentIn>,
    /// Urgent data was announced and has not arrived.
    urgent_coming: bool,
    /// End of the last urgent data, to tell repetitions.
    urgent_end: u64,

    /// What our direction has to end with.
    want: Fin,
    app_closed: bool,
    error: Option<ConnError>,
    /// It ended before its time: nothing is sent any more.
    failed: bool,
    /// Our application gave up what was received and not read.
    void: bool,
    /// TCP has to be reset instead of closed.
    reset_tcp: bool,
    drain_mark: u64,
}

/// No transmit is larger, however large the rings.
const MAX_CHUNK: u32 = 256 * 1024;

/// So many bytes of the peer's element stay free where a link may fail, see [`Conn::set_spare`]. They do for four
/// failures in a row: one byte when we move, and one when the peer does, whose answer to the first may be lost. And
/// writes stay aligned.
const SPARE: u32 = 8;

/// Up to here a transmit may be as large as the rings. Larger rings are filled in halves, so that one end
/// reads or writes one of them while the other is on its way.
const WHOLE: u32 = 64 * 1024;

/// Most bytes of one transmit, and what is worth one while another is in flight.
fn amounts(ring: Geometry, peer: Geometry, max_transmit: u32) -> (u32, u32) {
    let capacity = ring.capacity().min(peer.capacity());
    let mut chunk = capacity.min(WHOLE.max(capacity / 2).min(MAX_CHUNK));
    if max_transmit > 0 {
        chunk = chunk.min(max_transmit);
    }
    (chunk, (capacity / 4).max(1).min(chunk))
}

impl Conn {
    /// A connection just established. `None` if an element has no room for data.
    pub fn new(params: &Params) -> Option<Conn> {
        let ring = Geometry::new(params.send_ring, 0)?;
        let peer = Geometry::new(params.peer_element, params.base)?;
        let own = Geometry::new(params.element, params.base)?;
        let (chunk, worth) = amounts(ring, peer, params.max_transmit);
        let tx = Tx {
            state: State::Active,
            seq: 0,
            written: Position::start(ring),
            produced: peer.start(),
            furthest: 0,
            told: Position::start(own),
            sent: Fin::None,
            urgent: None,
            repeat: None,
            stall: None,
            announced: false,
            owe_update: false,
            owe_message: false,
            validate: false,
            interactive: false,
            prod_flags: ProdFlags::default(),
            state_flags: StateFlags::default(),
        };
        Some(Conn {
            ring,
            peer,
            own,
            peer_token: params.peer_token,
            send_limit: ring.capacity(),
            unsent_limit: u32::MAX,
            recv_limit: own.capacity(),
            chunk,
            worth,
            max_transmit: params.max_transmit,
            tx,
            before: tx,
            undo: None,
            ticket: Ticket(0),
            flight: flight::Flight::new(),
            down: false,
            gone: false,
            committed: Position::start(ring),
            confirmed: Position::start(ring),
            confirmed_seq: 0,
            confirmed_fin: Fin::None,
            peer_consumed: Position::start(peer),
            writing: 0,
            cork: false,
            more: false,
            partial: false,
            nodelay: false,
            timed: false,
            gather: u32::MAX,
            push: 0,
            received: Position::start(own),
            consumed: Position::start(own),
            rx_seq: 0,
            heard: [None; MAX_LINKS],
            awaited: overtaken::Awaited::NONE,
            held: None,
            several_links: false,
            has_spare: false,
            spare_used: 0,
            doubt: None,
            held_for_peer: false,
            held_for_us: false,
            silent: false,
            rx_fin: Fin::None,
            whole: false,
            peer_blocked: false,
            put_off: Fin::None,
            rx_prod_flags: ProdFlags::default(),
            rx_state_flags: StateFlags::default(),
            reading: false,
            inline: false,
            urgent_in: None,
            urgent_coming: false,
            urgent_end: 0,
            want: Fin::None,
            app_closed: false,
            error: None,
            failed: false,
            void: false,
            reset_tcp: false,
            drain_mark: 0,
        })
    }

    /// State.
    #[inline]
    pub fn state(&self) -> State {
        self.tx.state
    }

    /// Why the connection ended before its time, if it did.
    ///
    /// What had arrived before can still be read, as with TCP: report the error after it.
    /// A close by the application ends its interest: what happens later is not recorded.
    #[inline]
    pub fn error(&self) -> Option<ConnError> {
        self.error
    }

    /// Whether the TCP connection is to be reset now, rather than closed with a FIN.
    ///
    /// If it is the application that gives up the connection, the reset follows the A: it must not
    /// overtake data that was sent before, which the peer may still read, as with TCP.
    pub fn reset_tcp(&self) -> bool {
        let told = self.gone || self.confirmed_fin == Fin::Abort;
        self.reset_tcp || (told && self.tx.sent == Fin::Abort)
    }

    /// Whether everything is over: nothing is in flight or owed, nothing can be read, and the
    /// peer has no more business with our element. Both buffers may be given back.
    pub fn is_done(&self) -> bool {
        self.tx.state == State::Closed
            && self.flight.is_empty()
            && (self.gone || self.want <= self.tx.sent)
            && self.writing == 0
            && !self.reading
            && (self.app_closed || (self.readable() == 0 && !self.urgent_ready()))
    }

    /// Token that the peer gave out for this connection.
    pub fn peer_token(&self) -> AlertToken {
        self.peer_token
    }

    /// Everything for the diagnosis interface.
    pub fn diag(&self) -> Diag {
        Diag {
            state: self.tx.state,
            send_ring: self.ring.size(),
            element: self.own.size(),
            peer_element: self.peer.size(),
            rx_producer: self.received.cursor,
            rx_consumer: self.peer_consumed.cursor,
            tx_producer: self.tx.produced,
            tx_consumer: self.tx.told.cursor,
            rx_prod_flags: self.rx_prod_flags,
            rx_state_flags: self.rx_state_flags,
            tx_prod_flags: self.tx.prod_flags,
            tx_state_flags: self.tx.state_flags,
            prepared: self.committed.cursor,
            sent: self.tx.written.cursor,
            confirmed: self.confirmed.cursor,
        }
    }

    /// Moves to the state after `event`; whether it is another one.
    fn step(&mut self, event: Event) -> bool {
        let facts = Facts {
            peer_closed: self.rx_fin == Fin::Closed,
            fin_sent: self.tx.sent >= Fin::Closed,
            app_closed: self.app_closed,
        };
        let old = self.tx.state;
        self.tx.state = old.next(event, facts);
        self.tx.state != old
    }
}
