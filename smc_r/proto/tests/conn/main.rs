// SPDX-License-Identifier: GPL-2.0

//! One connection against a peer that says what the test wants it to say.

mod close;
mod flow;
mod input;
mod urgent;
mod watch;

use smc_proto::{
    cdc::{
        Cdc,
        ProdFlags,
        RawCursor,
        StateFlags, //
    },
    conn::{
        Conn,
        Events,
        Params,
        SendFlags,
        Transmit, //
    },
    group::LinkIx,
    wire::AlertToken, //
};

pub const TOKEN: AlertToken = AlertToken(0x1234);

/// The peer has more data than our element has room for.
pub const BLOCKED: ProdFlags = ProdFlags {
    blocked: true,
    urgent_pending: false,
    urgent_present: false,
    update_requested: false,
    failover: false,
};

/// A connection, and what its scripted peer has produced and consumed so far.
pub struct Rig {
    pub conn: Conn,
    pub size: u32,
    pub base: u32,
    pub seq: u16,
    pub produced: u64,
    pub consumed: u64,
    pub state: StateFlags,
}

impl Rig {
    /// All rings have `size` bytes.
    pub fn new(size: u32, base: u32) -> Rig {
        Rig::with(size, size, base)
    }

    /// A send ring of `ring` bytes and elements of `size` bytes.
    pub fn with(ring: u32, size: u32, base: u32) -> Rig {
        let params = Params {
            send_ring: ring,
            element: size,
            peer_element: size,
            base,
            peer_token: TOKEN,
            max_transmit: 0,
        };
        Rig {
            conn: Conn::new(&params).unwrap(),
            size,
            base,
            seq: 0,
            produced: 0,
            consumed: 0,
            state: StateFlags::default(),
        }
    }

    pub fn cursor(&self, total: u64) -> RawCursor {
        let capacity = u64::from(self.size - self.base);
        RawCursor {
            wrap: (total / capacity) as u16,
            count: self.base + (total % capacity) as u32,
        }
    }

    /// The peer's next message as things stand.
    pub fn message(&mut self) -> Cdc {
        self.seq = self.seq.wrapping_add(1);
        Cdc {
            seq: self.seq,
            token: AlertToken(1),
            prod: self.cursor(self.produced),
            cons: self.cursor(self.consumed),
            prod_flags: ProdFlags::default(),
            state_flags: self.state,
        }
    }

    pub fn handle(&mut self, cdc: &Cdc) -> Events {
        self.handle_over(0, cdc)
    }

    /// A message comes over the link at this place.
    pub fn handle_over(&mut self, place: usize, cdc: &Cdc) -> Events {
        let link = LinkIx::new(place).unwrap();
        self.conn.handle_cdc(link, cdc, |offset| offset as u8)
    }

    /// The peer wrote `n` bytes.
    pub fn data(&mut self, n: u32) -> Events {
        self.produced += u64::from(n);
        let cdc = self.message();
        self.handle(&cdc)
    }

    /// The peer consumed `n` bytes.
    pub fn took(&mut self, n: u32) -> Events {
        self.consumed += u64::from(n);
        let cdc = self.message();
        self.handle(&cdc)
    }

    /// The peer sends these flags of its producer.
    pub fn flags(&mut self, prod_flags: ProdFlags) -> Events {
        let cdc = Cdc {
            prod_flags,
            ..self.message()
        };
        self.handle(&cdc)
    }

    pub fn done(&mut self) -> Events {
        self.state.done = true;
        let cdc = self.message();
        self.handle(&cdc)
    }

    pub fn closed(&mut self) -> Events {
        self.state.closed = true;
        self.done()
    }

    pub fn aborted(&mut self) -> Events {
        self.state.aborted = true;
        let cdc = self.message();
        self.handle(&cdc)
    }

    /// The application sends up to `n` bytes; how many were taken.
    pub fn send(&mut self, n: u32) -> u32 {
        self.send_with(n, SendFlags::default())
    }

    pub fn send_with(&mut self, n: u32, flags: SendFlags) -> u32 {
        let spans = self.conn.send_spans(n);
        self.conn.send_commit(spans.len(), flags)
    }

    /// The application reads up to `n` bytes; how many there were.
    pub fn recv(&mut self, n: u32) -> u32 {
        let spans = self.conn.recv_spans(0, n);
        self.conn.recv_commit(spans.len());
        spans.len()
    }

    /// Everything that is due.
    pub fn posts(&mut self) -> Vec<Transmit> {
        std::iter::from_fn(|| self.conn.poll_transmit()).collect()
    }

    /// The one transmit that is due.
    pub fn post(&mut self) -> Transmit {
        let mut all = self.posts();
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }

    #[track_caller]
    pub fn nothing_due(&mut self) {
        assert_eq!(self.posts(), vec![]);
    }

    pub fn sent(&mut self, t: &Transmit) -> Events {
        self.conn.handle_sent(t.ticket, true)
    }
}
