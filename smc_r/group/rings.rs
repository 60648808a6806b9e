// SPDX-License-Identifier: GPL-2.0

//! Send rings of a group's connections. Most connections are idle most of the time, and half of their memory is
//! the ring: one that sends nothing for a while gives it back, and gets another one when it sends again. Some are
//! kept for that, and for new connections.

use core::iter;

use kapi::{
    grow::{self, Grow},
    workqueue, //
};
use kernel::{prelude::*, sync::Arc};
use smc_proto::wire::RmbeSize;

use super::Group;
use crate::{
    buffers::{RingMap, SendRing},
    conn,
    link::Link,
};

/// How often the group looks at the rings, in milliseconds. One that was not used from one time to the next is
/// given back.
const LOOK_MS: u32 = 250;

/// Rings that are kept for whoever needs one next.
const MAX_IDLE: usize = 64;

/// As many bytes of these stay, although nobody has needed them for a while.
const MIN_IDLE_BYTES: usize = 512 * 1024;

/// A send ring, mapped for one of the group's links.
pub(crate) struct PooledRing {
    pub(crate) ring: Arc<SendRing>,
    /// `None` if it is not mapped yet, or the link was on its way out.
    pub(crate) map: Option<RingMap>,
}

impl PooledRing {
    /// Makes it usable on a link. On an error it is usable on none. Sleeps.
    pub(crate) fn map_for(&mut self, link: &Link) -> Result {
        if !self.is_for(link) {
            self.map = None;
            self.map = Some(link.map_ring(&self.ring)?);
        }
        Ok(())
    }

    fn is_for(&self, link: &Link) -> bool {
        self.map.as_ref().is_some_and(|map| link.owns(map))
    }
}

/// The rings of one link group. Process context: under a mutex that is not held while anything is waited for, since
/// whoever sends may need it.
pub(crate) struct Rings {
    idle: KVec<PooledRing>,
    /// The fewest that there were since [`Self::take_spare`].
    fewest: usize,
    /// Bytes of all rings of the group, idle or not.
    bytes: usize,
}

impl Rings {
    pub(super) fn new() -> Self {
        Self {
            idle: KVec::new(),
            fewest: 0,
            bytes: 0,
        }
    }

    /// Bytes of all rings of the group, idle or not.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of those that no connection has.
    pub(super) fn idle_bytes(&self) -> usize {
        bytes(&self.idle)
    }

    /// An idle ring of that size, one that is mapped for this link if there is one.
    fn take(&mut self, size: RmbeSize, link: &Link) -> Option<PooledRing> {
        let len = size.bytes() as usize;
        let of_size = |idle: &PooledRing| idle.ring.len() == len;
        let place = self
            .idle
            .iter()
            .position(|idle| of_size(idle) && idle.is_for(link))
            .or_else(|| self.idle.iter().position(of_size))?;
        let ring = self.idle.remove(place).ok()?;
        self.fewest = self.fewest.min(self.idle.len());
        Some(ring)
    }

    /// Takes a ring back: for later, if the device does not read from it any more, or for good; then its mapping
    /// outlives what is on its way.
    fn give_back(&mut self, ring: PooledRing, quiet: bool) {
        let len = ring.ring.len();
        if quiet && self.idle.len() < MAX_IDLE {
            // Without memory for the list, the ring is freed.
            if self.idle.append(ring, GFP_KERNEL).is_ok() {
                return;
            }
        }
        self.bytes = self.bytes.saturating_sub(len);
    }

    /// Takes out all that are idle.
    pub(super) fn take_idle(&mut self) -> KVec<PooledRing> {
        self.fewest = 0;
        let idle = core::mem::take(&mut self.idle);
        self.bytes = self.bytes.saturating_sub(bytes(&idle));
        idle
    }

    /// Takes out those that nobody has needed since the last time, but for a few.
    fn take_spare(&mut self) -> KVec<PooledRing> {
        let mut spare = KVec::new();
        for _ in 0..self.fewest {
            // Without memory for the list, the others stay.
            if !self.has_spare() || spare.make_room(1, GFP_KERNEL).is_err() {
                break;
            }
            if let Some(ring) = self.idle.pop() {
                let _ = spare.push_within_capacity(ring);
            }
        }
        self.fewest = self.idle.len();
        self.bytes = self.bytes.saturating_sub(bytes(&spare));
        spare
    }

    /// Whether there are idle ones that may go with time.
    fn has_spare(&self) -> bool {
        self.idle_bytes() > MIN_IDLE_BYTES
    }
}

fn bytes(rings: &[PooledRing]) -> usize {
    grow::sum(rings.iter().map(|idle| idle.ring.len()))
}

/// Tag type: looks for rings that are not used.
pub(super) struct RingWatch;

impl workqueue::Handler<Arc<Group>> for RingWatch {
    fn run(group: Arc<Group>) {
        group.look_at_rings();
    }
}

impl Group {
    /// A send ring for a new connection over a link, if the namespace may have it. Process context.
    pub(crate) fn take_ring(self: &Arc<Self>, link: &Link, size: RmbeSize) -> Result<PooledRing> {
        let len = size.bytes() as usize;
        let make = || SendRing::new(self.ns.charge(len)?, len);
        let mut ring = self.ring(link, size, make)?;
        if let Err(error) = ring.map_for(link) {
            self.give_back_ring(ring, true);
            return Err(error);
        }
        Ok(ring)
    }

    /// A send ring for a connection over a link that has given back its own: it gets one whatever the limit is,
    /// a smaller one if memory is short. Not mapped if the link is on its way out. Process context.
    pub(crate) fn take_ring_again(
        self: &Arc<Self>,
        link: &Link,
        size: RmbeSize,
    ) -> Result<PooledRing> {
        let mut sizes = iter::successors(Some(size), |size| size.smaller());
        let some = sizes.find_map(|size| {
            let len = size.bytes() as usize;
            let make = || SendRing::new(self.ns.count(len), len);
            self.ring(link, size, make).ok()
        });
        let mut ring = match some {
            Some(ring) => ring,
            None => {
                let len = RmbeSize::MIN.bytes() as usize;
                let make = || SendRing::new_urgently(self.ns.count(len), len);
                self.ring(link, RmbeSize::MIN, make)?
            }
        };
        match ring.map_for(link) {
            Err(error) if !link.is_broken() => {
                self.give_back_ring(ring, true);
                Err(error)
            }
            _ => Ok(ring),
        }
    }

    /// An idle ring, or else a new one, which is not mapped.
    fn ring(
        &self,
        link: &Link,
        size: RmbeSize,
        make: impl FnOnce() -> Result<Arc<SendRing>>,
    ) -> Result<PooledRing> {
        if let Some(ring) = self.rings.lock().take(size, link) {
            self.ns.stats.tx().reused();
            return Ok(ring);
        }
        let ring = make()?;
        self.ns.stats.tx().allocated();
        let mut rings = self.rings.lock();
        rings.bytes = rings.bytes.saturating_add(ring.len());
        drop(rings);
        Ok(PooledRing { ring, map: None })
    }

    /// Takes a send ring back; `quiet` if the device does not read from it any more. Process context.
    pub(crate) fn give_back_ring(self: &Arc<Self>, ring: PooledRing, quiet: bool) {
        self.rings.lock().give_back(ring, quiet);
        self.watch_rings();
    }

    /// Has the group look at the rings before long. Any context.
    pub(crate) fn watch_rings(self: &Arc<Self>) {
        if self.ring_watch.is_pending() || self.is_over() {
            return;
        }
        self.ring_watch
            .enqueue_after(self.ns.queue(), self.clone(), LOOK_MS);
    }

    fn look_at_rings(self: &Arc<Self>) {
        let mut in_use = false;
        self.for_each_connection(|member| match member.rest_ring() {
            conn::Held::Nothing => {}
            conn::Held::InUse => in_use = true,
            conn::Held::Released(ring) => self.give_back_ring(ring, true),
        });
        let (spare, more) = {
            let mut rings = self.rings.lock();
            (rings.take_spare(), rings.has_spare())
        };
        drop(spare);
        if in_use || more {
            self.watch_rings();
        }
    }
}
