// SPDX-License-Identifier: GPL-2.0

//! Peers with whom SMC was tried a short time ago and cost a connection, or seconds of it, for
//! nothing: see [`Trouble`](smc_proto::handshake::Trouble). For a while connections with them are
//! plain TCP from the first packet on, with the reason [`Diagnosis::REMEMBERED`].
//!
//! As client we do not offer the option then, and as server do not answer it. A connection that is
//! accelerated has its peer forgotten.
//!
//! Who does not speak CLC is a program or what stands before it: this is remembered of one port, so
//! that a single service, or somebody who makes it look so, costs no other one SMC. That RDMA packets
//! get lost is remembered of the address.

use core::net::IpAddr;

use kapi::{genl::Changes, grow::Grow, new_spinlock_bh, spinlock_bh::SpinLockBh};
use kernel::{
    prelude::*,
    sync::atomic::{Atomic, Relaxed}, //
};
use smc_proto::{
    backoff::Backoff,
    timer::{Millis, Time},
    wire::Diagnosis, //
};

use crate::{clock::now, stats::Side};

/// Peers that are remembered at most; of more, one is forgotten that is not left alone any more, or
/// else the one that failed longest ago.
const MAX_PEERS: usize = 128;

/// A peer that is remembered.
#[derive(Clone, Copy)]
pub(crate) struct Peer {
    pub(crate) key: Key,
    /// Why the last one did.
    pub(crate) reason: Diagnosis,
    pub(crate) backoff: Backoff,
    /// Above those of all that failed before.
    pub(crate) number: u64,
}

/// With whom, and of what.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    /// Our side of the connections that failed.
    pub(crate) side: Side,
    /// The peer's address.
    pub(crate) address: IpAddr,
    /// The port of the service, on the server's side; None for all of them.
    pub(crate) port: Option<u16>,
}

impl Key {
    /// Whether a connection that belongs to `self` is affected by what is remembered of `other`.
    fn is_hit_by(&self, other: &Self) -> bool {
        let same_port = other.port.is_none() || other.port == self.port;
        same_port && (self.side, self.address) == (other.side, other.address)
    }

    /// The same address on another interface is another host.
    fn is_ambiguous(&self) -> bool {
        matches!(self.address, IpAddr::V6(v6) if v6.is_unicast_link_local())
    }
}

#[derive(Default)]
struct List {
    /// In the order of their numbers.
    peers: KVec<Peer>,
    last_number: u64,
}

impl List {
    fn take(&mut self, key: &Key) -> Option<Peer> {
        let place = self.peers.iter().position(|peer| peer.key == *key)?;
        self.peers.remove(place).ok()
    }

    /// Forgets what means nothing any more, and one more if the list is full. There is memory for another one then.
    fn forget_some(&mut self, now: Time) {
        self.peers.keep(|peer| !peer.backoff.is_stale(now));
        if self.peers.len() >= MAX_PEERS {
            let idle = self.peers.iter().position(|peer| !peer.backoff.is_on(now));
            let _forgotten = self.peers.remove(idle.unwrap_or(0));
        }
    }
}

/// What a namespace remembers. Any context up to softirq.
#[pin_data]
pub(crate) struct Peers {
    #[pin]
    list: SpinLockBh<List>,
    /// How many there are: mostly none.
    count: Atomic<u32>,
    changes: Changes,
}

impl Peers {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            list <- new_spinlock_bh!(List::default(), "smc_peers"),
            count: Atomic::new(0),
            changes: Changes::new(),
        })
    }

    /// Whether connections with a peer are to be plain TCP for the time being.
    pub(crate) fn avoids(&self, key: &Key) -> bool {
        if self.count.load(Relaxed) == 0 {
            return false;
        }
        let now = now();
        let hits = |peer: &Peer| peer.backoff.is_on(now) && key.is_hit_by(&peer.key);
        self.list.lock().peers.iter().any(hits)
    }

    /// A connection with a peer failed. It is left alone for `base` at first.
    pub(crate) fn failed(&self, key: Key, reason: Diagnosis, base: Millis) {
        if key.is_ambiguous() {
            return;
        }
        let now = now();
        let mut list = self.list.lock();
        // Without memory what is known stays.
        if list.peers.make_room(1, GFP_ATOMIC).is_err() {
            return;
        }
        let old = list.take(&key);
        list.forget_some(now);
        list.last_number = list.last_number.saturating_add(1);
        let peer = Peer {
            key,
            reason,
            backoff: match old {
                Some(old) => old.backoff.again(base, now),
                None => Backoff::first(base, now),
            },
            number: list.last_number,
        };
        let _ = list.peers.append(peer, GFP_ATOMIC);
        self.changed(list.peers.len());
    }

    /// A connection with a peer is accelerated.
    pub(crate) fn succeeded(&self, key: &Key) {
        if self.count.load(Relaxed) == 0 {
            return;
        }
        let mut list = self.list.lock();
        list.peers.keep(|peer| !key.is_hit_by(&peer.key));
        self.changed(list.peers.len());
    }

    /// Forgets all.
    pub(crate) fn flush(&self) {
        let mut list = self.list.lock();
        let peers = core::mem::take(&mut list.peers);
        self.changed(0);
        drop(list);
        drop(peers);
    }

    /// The list, whose lock is held, has so many peers now.
    fn changed(&self, count: usize) {
        self.count.store(count as u32, Relaxed);
        self.changes.note();
    }

    /// How often the list has changed.
    pub(crate) fn changes(&self) -> u32 {
        self.changes.count()
    }

    /// The peer that failed next after number `number`, of those that still mean something.
    pub(crate) fn after(&self, number: u64) -> Option<Peer> {
        let now = now();
        let list = self.list.lock();
        let next = |peer: &&Peer| peer.number > number && !peer.backoff.is_stale(now);
        list.peers.iter().find(next).copied()
    }
}
