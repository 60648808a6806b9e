// SPDX-License-Identifier: GPL-2.0

//! Counters of a namespace. 64 bits each; all but the bytes of buffers in use only ever go up.
//!
//! Each processor counts for itself: a number is the sum over all of them.

use core::net::IpAddr;

use kapi::{grow::Grow, new_spinlock_bh, percpu::PerCpu, spinlock_bh::SpinLockBh};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc,
        Mutex, //
    },
};
use smc_proto::{group::Role, handshake::Failure, wire::Diagnosis};

use crate::netns::Netns;

/// Whose decision or error is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    Client,
    Server,
}

impl From<Role> for Side {
    fn from(role: Role) -> Self {
        match role {
            Role::Client => Self::Client,
            Role::Server => Self::Server,
        }
    }
}

/// Different reasons that are kept apart for each side.
const MAX_REASONS: usize = 36;

/// How often plain TCP was chosen for one reason.
#[derive(Clone, Copy)]
pub(crate) struct Reason {
    pub(crate) code: Diagnosis,
    pub(crate) count: u64,
}

/// Why connections of one side became plain TCP.
#[derive(Default)]
pub(crate) struct Reasons {
    pub(crate) total: u64,
    pub(crate) each: KVec<Reason>,
}

impl Reasons {
    fn count(&mut self, code: Diagnosis) {
        self.total = self.total.saturating_add(1);
        if let Some(reason) = self.each.iter_mut().find(|reason| reason.code == code) {
            reason.count = reason.count.saturating_add(1);
        } else if self.each.len() < MAX_REASONS {
            // Without memory the reason is in the total alone.
            let _ = self.each.append(Reason { code, count: 1 }, GFP_ATOMIC);
        }
    }
}

/// Peers that are kept apart; of more the one that is longest ago gives way.
const MAX_PEERS: usize = 128;

/// How often connections with a peer became plain TCP.
#[derive(Clone, Copy)]
pub(crate) struct PeerFallbacks {
    pub(crate) peer: IpAddr,
    pub(crate) side: Side,
    /// The reason of the last time.
    pub(crate) reason: Diagnosis,
    pub(crate) count: u64,
    /// Above those of all that happened before.
    pub(crate) number: u64,
}

/// Fallbacks of both sides.
#[derive(Default)]
pub(crate) struct Fallbacks {
    pub(crate) client: Reasons,
    pub(crate) server: Reasons,
    /// In the order in which it last happened.
    peers: KVec<PeerFallbacks>,
    last_number: u64,
}

impl Fallbacks {
    fn count_peer(&mut self, side: Side, reason: Diagnosis, peer: IpAddr) {
        let same = |other: &PeerFallbacks| (other.peer, other.side) == (peer, side);
        let place = self.peers.iter().position(same);
        let old = match place {
            Some(place) => self.peers.remove(place).ok(),
            None if self.peers.len() >= MAX_PEERS => {
                let _oldest = self.peers.remove(0);
                None
            }
            None => None,
        };
        self.last_number = self.last_number.saturating_add(1);
        let entry = PeerFallbacks {
            peer,
            side,
            reason,
            count: old.map_or(0, |old| old.count).saturating_add(1),
            number: self.last_number,
        };
        // Without memory the peer is forgotten.
        let _ = self.peers.append(entry, GFP_ATOMIC);
    }

    /// The reasons of one side.
    pub(crate) fn of(&self, side: Side) -> &Reasons {
        match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        }
    }

    /// How many reasons there are; they are only ever added.
    pub(crate) fn reasons(&self) -> u32 {
        (self.server.each.len()).saturating_add(self.client.each.len()) as u32
    }

    /// How often the list of peers has changed.
    pub(crate) fn changes(&self) -> u32 {
        self.last_number as u32
    }

    /// The peer with whom it happened next after number `number`.
    pub(crate) fn peer_after(&self, number: u64) -> Option<PeerFallbacks> {
        self.peers.iter().find(|peer| peer.number > number).copied()
    }
}

/// How often a rendezvous ended without a connection, in one way.
#[derive(Clone, Copy)]
pub(crate) struct FailureCount {
    pub(crate) side: Side,
    /// See [`Failure::number`].
    pub(crate) kind: u8,
    /// Why the link failed, if it did.
    pub(crate) link: Option<Diagnosis>,
    pub(crate) count: u64,
}

/// Different failures that are kept apart.
const MAX_FAILURES: usize = 64;

/// Rendezvous that ended without a connection.
#[derive(Default)]
pub(crate) struct Failures(KVec<FailureCount>);

impl Failures {
    fn count(&mut self, side: Side, failure: Failure) {
        let (kind, link) = (failure.number(), failure.link_diagnosis());
        let same =
            |other: &&mut FailureCount| (other.side, other.kind, other.link) == (side, kind, link);
        if let Some(failure) = self.0.iter_mut().find(same) {
            failure.count = failure.count.saturating_add(1);
        } else if self.0.len() < MAX_FAILURES {
            let failure = FailureCount {
                side,
                kind,
                link,
                count: 1,
            };
            // Without memory it is in the total of its side alone.
            let _ = self.0.append(failure, GFP_KERNEL);
        }
    }

    /// How often the list has changed: ways are only ever added.
    pub(crate) fn changes(&self) -> u32 {
        self.0.len() as u32
    }

    /// The failure at a place, in the order in which they happened first.
    pub(crate) fn at(&self, place: usize) -> Option<FailureCount> {
        self.0.get(place).copied()
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The plain counters.
        pub(crate) struct Counters {
            $($(#[$doc])* pub(crate) $name: Atomic<u64>,)*
        }

        impl Counters {
            const fn new() -> Self {
                Self { $($name: Atomic::new(0),)* }
            }
        }
    };
}

counters! {
    /// Bytes that programs sent on accelerated connections.
    tx_bytes,
    /// Send calls that moved them.
    tx_calls,
    /// Bytes that programs received on accelerated connections.
    rx_bytes,
    /// Receive calls that moved them.
    rx_calls,
    /// Bytes written into peers' memory by RDMA.
    rdma_bytes,
    /// CDC messages sent.
    cdc_sent,
    /// CDC messages discarded: unknown token, or of the past. Not those that another link's have overtaken.
    cdc_dropped,
    /// LLC messages discarded.
    llc_dropped,
    /// LLC requests answered in the negative.
    llc_refused,
    /// LLC messages that broke the protocol, and ended their link.
    llc_violations,
    /// Connections accelerated as client, in version 1.
    client_connections,
    /// Connections accelerated as server, in version 1.
    server_connections,
    /// Connections accelerated as client, in version 2.
    client_connections_v2,
    /// Connections accelerated as server, in version 2.
    server_connections_v2,
    /// Of all, those that made a new link group.
    first_contacts,
    /// Rendezvous that failed as client, without fallback.
    client_errors,
    /// Rendezvous that failed as server, without fallback.
    server_errors,
    /// Connections aborted because the peer broke the protocol, or took away the element that they wrote to.
    violations,
    /// Link groups that ended by a failure or by the peer's wish.
    groups_lost,
    /// Links that did, of groups that had others, and further links that came to nothing when the peer knew them.
    links_lost,
    /// Further links that came to nothing: no port of ours had a way to the peer's, or its gateway did not answer.
    links_without_route,
    /// `splice(2)` and `sendfile(2)` from an accelerated connection.
    spliced,
    /// `TCP_CORK` was cleared on an accelerated connection.
    uncorked,
    /// `TCP_NODELAY` was set on an accelerated connection.
    undelayed,
    /// Send calls with urgent data.
    urgent,
}

/// Sizes that are told apart: up to 8 KiB, 16 KiB, and so on up to 1 MiB, and above.
pub(crate) const BUCKETS: usize = 9;

/// How often each size occurs.
pub(crate) struct Sizes([Atomic<u64>; BUCKETS]);

impl Sizes {
    const fn new() -> Self {
        Self([const { Atomic::new(0) }; BUCKETS])
    }

    fn bucket(&self, n: usize) -> Option<&Atomic<u64>> {
        let units = n.saturating_sub(1) >> 13;
        let bits = usize::BITS.saturating_sub(units.leading_zeros());
        self.0.get((bits as usize).min(BUCKETS - 1))
    }

    fn count(&self, n: usize) {
        if let Some(bucket) = self.bucket(n) {
            add(bucket, 1);
        }
    }

    /// The number of a size; of the largest, for places beyond.
    fn at(&self, place: usize) -> &Atomic<u64> {
        let [.., last] = &self.0;
        self.0.get(place).unwrap_or(last)
    }
}

/// What is counted for sending and for receiving alike. Buffers are send rings and elements of
/// RMBs.
pub(crate) struct Direction {
    /// Bytes that calls moved.
    pub(crate) calls: Sizes,
    /// Buffers that connections got.
    pub(crate) buffers: Sizes,
    /// The bytes of those that they have now: these go down again.
    pub(crate) bytes_in_use: Atomic<u64>,
    /// Calls for more than the peer's buffer holds.
    pub(crate) beyond_peer: Atomic<u64>,
    /// Calls for more than our buffer holds.
    pub(crate) beyond_own: Atomic<u64>,
    /// The peer's buffer was full.
    pub(crate) peer_full: Atomic<u64>,
    /// Our buffer was full.
    pub(crate) own_full: Atomic<u64>,
    /// A connection got a buffer that was there already.
    pub(crate) reused: Atomic<u64>,
    /// Memory was allocated.
    pub(crate) allocated: Atomic<u64>,
    /// There was too little memory, and less was asked for.
    pub(crate) downgraded: Atomic<u64>,
}

impl Direction {
    const fn new() -> Self {
        Self {
            calls: Sizes::new(),
            buffers: Sizes::new(),
            bytes_in_use: Atomic::new(0),
            beyond_peer: Atomic::new(0),
            beyond_own: Atomic::new(0),
            peer_full: Atomic::new(0),
            own_full: Atomic::new(0),
            reused: Atomic::new(0),
            allocated: Atomic::new(0),
            downgraded: Atomic::new(0),
        }
    }

    fn take(&self, len: usize) {
        self.buffers.count(len);
        add(&self.bytes_in_use, len as u64);
    }

    fn give_back(&self, len: usize) {
        self.bytes_in_use.fetch_sub(len as u64, Relaxed);
    }

    /// A connection got a buffer that was there already.
    pub(crate) fn reused(&self) {
        add(&self.reused, 1);
    }

    /// Memory was allocated.
    pub(crate) fn allocated(&self) {
        add(&self.allocated, 1);
    }

    /// There was too little memory: less is asked for.
    pub(crate) fn downgraded(&self) {
        add(&self.downgraded, 1);
    }

    /// The peer's buffer was full.
    pub(crate) fn peer_full(&self) {
        add(&self.peer_full, 1);
    }

    /// Our buffer was full.
    pub(crate) fn own_full(&self) {
        add(&self.own_full, 1);
    }
}

/// Counts a buffer of a connection as being in use, for as long as it has it.
pub(crate) struct InUse {
    ns: Arc<Netns>,
    bytes: usize,
    is_ring: bool,
}

impl InUse {
    /// Counts a send ring of so many bytes.
    pub(crate) fn ring(ns: Arc<Netns>, bytes: usize) -> Self {
        ns.stats.tx().take(bytes);
        Self {
            ns,
            bytes,
            is_ring: true,
        }
    }

    /// Counts an element of so many bytes.
    pub(crate) fn element(ns: Arc<Netns>, bytes: usize) -> Self {
        ns.stats.rx().take(bytes);
        Self {
            ns,
            bytes,
            is_ring: false,
        }
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        if self.is_ring {
            self.ns.stats.tx().give_back(self.bytes);
        } else {
            self.ns.stats.rx().give_back(self.bytes);
        }
    }
}

/// What a processor counts.
pub(crate) struct Block {
    pub(crate) counters: Counters,
    pub(crate) tx: Direction,
    pub(crate) rx: Direction,
}

impl Block {
    const fn new() -> Self {
        Self {
            counters: Counters::new(),
            tx: Direction::new(),
            rx: Direction::new(),
        }
    }
}

/// All counters of a namespace.
#[pin_data]
pub(crate) struct Stats {
    blocks: PerCpu<Block>,
    #[pin]
    pub(crate) fallbacks: SpinLockBh<Fallbacks>,
    #[pin]
    pub(crate) failures: Mutex<Failures>,
}

fn add(counter: &Atomic<u64>, n: u64) {
    counter.fetch_add(n, Relaxed);
}

impl Stats {
    pub(crate) fn new() -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            blocks: PerCpu::new(Block::new)?,
            fallbacks <- new_spinlock_bh!(Fallbacks::default(), "smc_fallbacks"),
            failures <- new_mutex!(Failures::default(), "smc_failures"),
        })
    }

    /// What this processor counts of plain numbers.
    fn here(&self) -> &Counters {
        &self.blocks.here().counters
    }

    /// What this processor counts about sending.
    pub(crate) fn tx(&self) -> &Direction {
        &self.blocks.here().tx
    }

    /// What this processor counts about receiving.
    pub(crate) fn rx(&self) -> &Direction {
        &self.blocks.here().rx
    }

    /// The sum over all processors.
    pub(crate) fn sum(&self, counter: impl Fn(&Block) -> &Atomic<u64>) -> u64 {
        let add = |sum: u64, block| sum.wrapping_add(counter(block).load(Relaxed));
        let sum = self.blocks.iter().fold(0, add);
        // What one processor has added and another one taken away may be seen half.
        if i64::try_from(sum).is_ok() {
            sum
        } else {
            0
        }
    }

    /// The sums of sizes over all processors, smallest size first.
    pub(crate) fn sizes(&self, sizes: impl Fn(&Block) -> &Sizes) -> [u64; BUCKETS] {
        let mut sums = [0; BUCKETS];
        for (place, sum) in sums.iter_mut().enumerate() {
            *sum = self.sum(|block| sizes(block).at(place));
        }
        sums
    }

    /// A send call accepted `n` bytes.
    pub(crate) fn send_call(&self, n: usize) {
        let here = self.blocks.here();
        add(&here.counters.tx_bytes, n as u64);
        add(&here.counters.tx_calls, 1);
        here.tx.calls.count(n);
    }

    /// A send call is for `n` bytes, more than the smallest buffer holds.
    pub(crate) fn large_send(&self, n: usize, ring: usize, peer_element: usize) {
        if n > ring {
            add(&self.tx().beyond_own, 1);
        }
        if n > peer_element {
            add(&self.tx().beyond_peer, 1);
        }
    }

    /// A receive call is for `n` bytes, more than the smallest buffer holds.
    pub(crate) fn large_recv(&self, n: usize, element: usize) {
        if n > element {
            add(&self.rx().beyond_own, 1);
        }
    }

    /// Bytes are asked for by `splice(2)`.
    pub(crate) fn spliced(&self) {
        add(&self.here().spliced, 1);
    }

    /// `TCP_CORK` was cleared.
    pub(crate) fn uncorked(&self) {
        add(&self.here().uncorked, 1);
    }

    /// `TCP_NODELAY` was set.
    pub(crate) fn undelayed(&self) {
        add(&self.here().undelayed, 1);
    }

    /// A send call has urgent data.
    pub(crate) fn urgent(&self) {
        add(&self.here().urgent, 1);
    }

    /// A receive call delivered `n` bytes.
    pub(crate) fn recv_call(&self, n: usize) {
        let here = self.blocks.here();
        add(&here.counters.rx_bytes, n as u64);
        add(&here.counters.rx_calls, 1);
        here.rx.calls.count(n);
    }

    /// A chain with `n` bytes of data was posted.
    pub(crate) fn transmitted(&self, n: u32) {
        let here = self.here();
        add(&here.rdma_bytes, n.into());
        add(&here.cdc_sent, 1);
    }

    /// LLC messages were discarded, or refused, or broke the protocol.
    pub(crate) fn llc_faults(&self, dropped: u64, refused: u64, violations: u64) {
        if dropped != 0 {
            add(&self.here().llc_dropped, dropped);
        }
        if refused != 0 {
            add(&self.here().llc_refused, refused);
        }
        if violations != 0 {
            add(&self.here().llc_violations, violations);
        }
    }

    /// A CDC message had no connection, or was older than the one before it.
    pub(crate) fn cdc_dropped(&self) {
        add(&self.here().cdc_dropped, 1);
    }

    /// A connection is accelerated.
    pub(crate) fn established(&self, side: Side, first_contact: bool, v2: bool) {
        match (side, v2) {
            (Side::Client, false) => add(&self.here().client_connections, 1),
            (Side::Server, false) => add(&self.here().server_connections, 1),
            (Side::Client, true) => add(&self.here().client_connections_v2, 1),
            (Side::Server, true) => add(&self.here().server_connections_v2, 1),
        }
        if first_contact {
            add(&self.here().first_contacts, 1);
        }
    }

    /// A rendezvous failed for good. Process context.
    pub(crate) fn handshake_failed(&self, side: Side, failure: Failure) {
        self.failures.lock().count(side, failure);
        match side {
            Side::Client => add(&self.here().client_errors, 1),
            Side::Server => add(&self.here().server_errors, 1),
        }
    }

    /// A peer broke the protocol.
    pub(crate) fn violation(&self) {
        add(&self.here().violations, 1);
    }

    /// No port of ours has a way to that of the peer for a further link.
    pub(crate) fn link_without_route(&self) {
        add(&self.here().links_without_route, 1);
    }

    /// A link group was lost.
    pub(crate) fn group_lost(&self) {
        add(&self.here().groups_lost, 1);
    }

    /// A link ended by a failure or by the peer's wish, or came to nothing, and its group goes on.
    pub(crate) fn link_lost(&self) {
        add(&self.here().links_lost, 1);
    }

    /// A connection became plain TCP; `peer` if it had one by then. Any context up to softirq.
    pub(crate) fn fallback(&self, side: Side, reason: Diagnosis, peer: Option<IpAddr>) {
        let mut fallbacks = self.fallbacks.lock();
        if let Some(peer) = peer {
            fallbacks.count_peer(side, reason, peer);
        }
        match side {
            Side::Client => fallbacks.client.count(reason),
            Side::Server => fallbacks.server.count(reason),
        }
    }
}
