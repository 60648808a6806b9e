// SPDX-License-Identifier: GPL-2.0

//! The send ring of a connection. The group takes it back where nothing was sent for a while, and all of it has
//! arrived; the next call that sends gets another one: rings are alike, and an empty one may be exchanged for any
//! other, a smaller one as well where memory is short.

use kapi::{errno::EPIPE, sock::Sk};
use kernel::{prelude::*, sync::Arc};
use smc_proto::conn::Events;

use super::{Connection, Member, Route};
use crate::{
    buffers::{RingMap, SendRing},
    group::PooledRing,
    link::Link,
    netns::Netns,
    socket::SmcSocket,
    stats::InUse,
};

/// A send ring in use.
pub(super) struct Ring {
    pooled: PooledRing,
    _in_use: InUse,
}

impl Ring {
    pub(super) fn new(pooled: PooledRing, ns: &Arc<Netns>) -> Self {
        let bytes = pooled.ring.len();
        Self {
            pooled,
            _in_use: InUse::ring(ns.clone(), bytes),
        }
    }

    /// What the connection's link knows of it; `None` if the link was on its way out already.
    pub(super) fn map(&self) -> Option<&RingMap> {
        self.pooled.map.as_ref()
    }

    /// It is mapped for another link.
    pub(super) fn set_map(&mut self, map: Option<RingMap>) {
        self.pooled.map = map;
    }

    pub(super) fn into_pooled(self) -> PooledRing {
        self.pooled
    }
}

impl Connection {
    /// The memory of its ring, if it has one.
    pub(super) fn ring_memory(&self) -> Option<Arc<SendRing>> {
        self.ring.as_ref().map(|ring| ring.pooled.ring.clone())
    }

    /// Whether that is its ring, or none if it has none.
    pub(super) fn has_ring(&self, ring: Option<&Arc<SendRing>>) -> bool {
        match (&self.ring, ring) {
            (Some(own), Some(other)) => Arc::ptr_eq(&own.pooled.ring, other),
            (None, None) => true,
            _ => false,
        }
    }

    /// Takes a ring that is mapped for the link it is on, and for the one that it goes to; gives it back if it is
    /// not on that way any more, or has a ring.
    fn accept(
        &mut self,
        ring: PooledRing,
        way: (&Arc<Link>, Option<&Arc<Link>>),
        next_map: Option<RingMap>,
    ) -> Option<PooledRing> {
        let same_way = Arc::ptr_eq(&self.link, way.0)
            && match (&self.next, way.1) {
                (Some(next), Some(link)) => Arc::ptr_eq(&next.route.seat, link),
                (None, None) => true,
                _ => false,
            };
        if self.ring.is_some() || !same_way {
            return Some(ring);
        }
        let len = u32::try_from(ring.ring.len()).unwrap_or(0);
        if !self.core.set_ring_size(len) {
            return Some(ring);
        }
        // Without a map for where it goes to, it stays where it is.
        match self.next.take().filter(|_| next_map.is_some()) {
            Some(next) => self.go_to(Route {
                ring: Some(ring.ring.clone()),
                map: next_map,
                ..next.route
            }),
            None => self.stay(),
        }
        self.ring = Some(Ring::new(ring, &self.group.ns));
        self.ring_used = true;
        None
    }
}

/// What [`rest_ring`] has found.
pub(crate) enum Held {
    /// The connection has no ring.
    Nothing,
    /// It needs its ring, or did a moment ago.
    InUse,
    /// It has given its ring back.
    Released(PooledRing),
}

impl Member<'_> {
    /// The group looks whether the connection needs its ring.
    pub(crate) fn rest_ring(&self) -> Held {
        self.with(|connection| (connection.rest_ring(), Events::default()))
            .unwrap_or(Held::Nothing)
    }
}

impl Connection {
    fn rest_ring(&mut self) -> Held {
        if self.ring.is_none() {
            return Held::Nothing;
        }
        let was_used = core::mem::replace(&mut self.ring_used, false);
        if self.cut_off || self.is_past() {
            // It goes with the connection.
            return Held::Nothing;
        }
        if was_used || self.next.is_some() {
            return Held::InUse;
        }
        if !self.core.is_ring_free() {
            // What was posted without a completion may be all that is missing.
            self.core.sync_sent();
            return Held::InUse;
        }
        match self.ring.take() {
            Some(ring) => Held::Released(ring.into_pooled()),
            None => Held::Nothing,
        }
    }
}

/// Gets a connection another ring. An error if there is no memory, or the connection is over. Process context;
/// sleeps.
pub(super) fn take_ring(sk: &Sk<SmcSocket>) -> Result {
    loop {
        let (group, link, next, size) = {
            let guard = sk.conn.lock();
            let connection = guard.as_ref().ok_or(EPIPE)?;
            if connection.ring.is_some() {
                return Ok(());
            }
            if !connection.core.is_ring_free() {
                // Never: there is nothing in a ring that is not there. Else no ring would ever do.
                return Err(EPIPE);
            }
            let next = connection.next.as_ref().map(|next| next.route.seat.clone());
            let size = connection.ring_size;
            (
                connection.group.clone(),
                connection.link.clone(),
                next,
                size,
            )
        };
        let ring = group.take_ring_again(&link, size)?;
        let map = match &next {
            Some(next) => next.map_ring(&ring.ring).ok(),
            None => None,
        };
        let refused = match (*sk.conn.lock()).as_mut() {
            Some(connection) => connection.accept(ring, (&link, next.as_ref()), map),
            None => Some(ring),
        };
        match refused {
            // It has gone to another link meanwhile, or is over.
            Some(ring) => group.give_back_ring(ring, true),
            None => {
                group.watch_rings();
                return Ok(());
            }
        }
    }
}
