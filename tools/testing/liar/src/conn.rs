// SPDX-License-Identifier: GPL-2.0

//! One connection: its TCP connection, and the cursors of both directions.

use smc_proto::cdc::{Cdc, ProdFlags, RawCursor, StateFlags};
use smc_proto::cursor::{Geometry, Position, Step as Advance};
use smc_proto::wire::AlertToken;
use smc_testing::peer::engine::{Ending, Host, Outcome};
use smc_testing::peer::script::Step;
use smc_testing::peer::Wire;
use std::time::{Duration, Instant};

/// The other side's element and token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Theirs {
    /// By which token it knows the connection.
    pub(crate) token: u32,
    /// The key of its RMB.
    pub(crate) rkey: u32,
    /// Where the RMB begins.
    pub(crate) rmb: u64,
    /// Where the element begins in the RMB.
    pub(crate) offset: u64,
    /// Length of the element.
    pub(crate) len: u32,
}

/// Where both directions stand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursors {
    /// Our element, and how far it was filled and read.
    own: Geometry,
    received: Position,
    consumed: Position,
    /// Their element, and how far it was filled and read.
    peer: Geometry,
    pub(crate) produced: Position,
    peer_consumed: Position,
}

impl Cursors {
    /// Two empty elements.
    pub(crate) fn new(own_len: u32, peer_len: u32) -> Option<Self> {
        let (own, peer) = (Geometry::new(own_len, 0)?, Geometry::new(peer_len, 0)?);
        Some(Self {
            own,
            received: Position::start(own),
            consumed: Position::start(own),
            peer,
            produced: Position::start(peer),
            peer_consumed: Position::start(peer),
        })
    }

    /// Takes in what a CDC message says; an error in it is the module's fault.
    fn take(&mut self, cdc: &Cdc) -> Result<(), String> {
        let told = |error| format!("impossible cursor: {error}: {cdc}");
        if let Advance::Forward(n) = self
            .own
            .check(self.received.cursor, cdc.prod)
            .map_err(told)?
        {
            self.received = self.received.advance(self.own, n);
        }
        let consumer = self.peer.check(self.peer_consumed.cursor, cdc.cons);
        if let Advance::Forward(n) = consumer.map_err(told)? {
            self.peer_consumed = self.peer_consumed.advance(self.peer, n);
        }
        Ok(())
    }

    /// Length of our element.
    pub(crate) fn own_len(&self) -> u32 {
        self.own.size()
    }

    /// Bytes that came and were not read.
    pub(crate) fn readable(&self) -> u32 {
        self.received.since(self.consumed)
    }

    /// Bytes that may be written.
    pub(crate) fn room(&self) -> u32 {
        let full = self.produced.since(self.peer_consumed);
        self.peer.capacity().saturating_sub(full)
    }

    /// The parts of their element, as offset and length, that the next bytes go to.
    pub(crate) fn parts(&self, len: u32) -> [(u32, u32); 2] {
        let at = self.produced.cursor;
        let first = len.min(self.peer.to_end(at));
        [(at.offset(), first), (0, len - first)]
    }

    /// So many bytes were written.
    pub(crate) fn produce(&mut self, len: u32) {
        self.produced = self.produced.advance(self.peer, len);
    }

    /// The parts of our element that the next bytes are in.
    pub(crate) fn own_parts(&self, len: u32) -> [(u32, u32); 2] {
        let at = self.consumed.cursor;
        let first = len.min(self.own.to_end(at));
        [(at.offset(), first), (0, len - first)]
    }

    /// So many bytes were read.
    pub(crate) fn consume(&mut self, len: u32) {
        self.consumed = self.consumed.advance(self.own, len);
    }

    /// A producer cursor so many bytes further, whether it fits or not.
    pub(crate) fn forged_producer(&self, ahead: i64) -> RawCursor {
        forged(self.produced, self.peer.size(), ahead)
    }

    /// A consumer cursor so many bytes further.
    pub(crate) fn forged_consumer(&self, ahead: i64) -> RawCursor {
        forged(self.consumed, self.own.size(), ahead)
    }
}

fn forged(at: Position, size: u32, ahead: i64) -> RawCursor {
    let total = at.total as i64 + ahead;
    RawCursor {
        wrap: total.div_euclid(size.into()) as u16,
        count: total.rem_euclid(size.into()) as u32,
    }
}

/// A connection.
pub(crate) struct Conn {
    wire: Wire,
    host: Host,
    /// The name of its link.
    pub(crate) link: String,
    /// Our token and element.
    pub(crate) token: u32,
    /// 0 until it has one.
    pub(crate) element: u8,
    /// CLC messages that were waited for.
    pub(crate) taken: usize,
    /// Theirs, once it is known.
    pub(crate) theirs: Option<Theirs>,
    /// Cursors, from then on.
    pub(crate) cursors: Option<Cursors>,
    /// The last CDC message that came before: Confirm comes by TCP, and may be slower.
    early: Option<Cdc>,
    /// Number of the last CDC message that we sent.
    pub(crate) seq: u16,
    /// What the last message that came says.
    pub(crate) state: StateFlags,
    /// All producer flags that came.
    pub(crate) last_flags: ProdFlags,
    /// Fault of the module, if there was one.
    pub(crate) fault: Option<String>,
    /// Pause between the bytes of what is sent over TCP.
    pub(crate) drip: Option<Duration>,
}

impl Conn {
    /// A connection whose TCP connection is just being made.
    pub(crate) fn new(wire: Wire, host: Host, link: &str, token: u32) -> Self {
        Self {
            wire,
            host,
            link: link.into(),
            token,
            element: 0,
            taken: 0,
            theirs: None,
            cursors: None,
            early: None,
            seq: 0,
            state: StateFlags::default(),
            last_flags: ProdFlags::default(),
            fault: None,
            drip: None,
        }
    }

    /// Lets TCP do what is due.
    pub(crate) fn poll(&mut self) {
        self.wire.step(&mut self.host);
    }

    /// What became of the TCP connection so far.
    pub(crate) fn tcp(&self) -> Option<Outcome> {
        self.host.outcome(0, Instant::now())
    }

    /// The other side reset the TCP connection.
    pub(crate) fn is_reset(&self) -> bool {
        self.tcp()
            .is_some_and(|tcp| matches!(tcp.end, Ending::Rst | Ending::Refused))
    }

    /// The other side ended its TCP stream.
    pub(crate) fn is_ended(&self) -> bool {
        self.host.is_peer_done(0)
    }

    /// The next CLC message, if one has come.
    pub(crate) fn next_clc(&mut self) -> Option<Vec<u8>> {
        let message = self.host.raw_messages(0).get(self.taken)?.clone();
        self.taken += 1;
        Some(message)
    }

    /// Sends bytes over TCP.
    pub(crate) fn send_tcp(&mut self, bytes: Vec<u8>) {
        self.host.add_step(0, Step::Send(bytes, self.drip));
        self.poll();
    }

    /// Ends the TCP stream.
    pub(crate) fn fin(&mut self) {
        self.host.add_step(0, Step::Fin);
        self.poll();
    }

    /// Resets the TCP connection.
    pub(crate) fn reset(&mut self) {
        self.host.add_step(0, Step::Rst);
        self.poll();
    }

    /// Resets it if it is open.
    pub(crate) fn abandon(&mut self) {
        self.host.abandon(Instant::now());
        self.wire.step(&mut self.host);
    }

    /// A CDC message with our token came.
    pub(crate) fn received(&mut self, cdc: &Cdc) {
        self.state = StateFlags {
            done: self.state.done || cdc.state_flags.done,
            closed: self.state.closed || cdc.state_flags.closed,
            aborted: self.state.aborted || cdc.state_flags.aborted,
        };
        self.last_flags = cdc.prod_flags;
        match &mut self.cursors {
            Some(cursors) => {
                if let Err(fault) = cursors.take(cdc) {
                    self.fault.get_or_insert(fault);
                }
            }
            // Each says all that those before it did.
            None => self.early = Some(*cdc),
        }
    }

    /// The sizes of both elements are known now.
    pub(crate) fn begin(&mut self, cursors: Option<Cursors>) {
        self.cursors = cursors;
        if let Some(early) = self.early.take() {
            self.received(&early);
        }
    }

    /// The next CDC message, with everything as it should be.
    pub(crate) fn cdc(&self) -> Option<Cdc> {
        let (theirs, cursors) = (self.theirs?, self.cursors?);
        Some(Cdc {
            seq: self.seq.wrapping_add(1),
            token: AlertToken(theirs.token),
            prod: cursors.produced.cursor.raw(),
            cons: cursors.consumed.cursor.raw(),
            ..Cdc::default()
        })
    }
}
