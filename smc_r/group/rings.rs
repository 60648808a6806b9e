// SPDX-License-Identifier: GPL-2.0

//! Send rings of a group's connections. Most connections are idle most of the time, and half of their memory is
//! the ring: one that sends nothing for a while gives it back, and gets another one when it sends again.

use kapi::workqueue;
use kernel::{prelude::*, sync::Arc};

use super::{Group, PooledRing};
use crate::{conn, link::Link};

/// How often the group looks at the rings, in milliseconds. One that was not used from one time to the next is
/// given back.
const LOOK_MS: u32 = 250;

/// Tag type: looks for rings that are not used.
pub(super) struct RingWatch;

impl workqueue::Handler<Arc<Group>> for RingWatch {
    fn run(group: Arc<Group>) {
        group.look_at_rings();
    }
}

impl Group {
    /// A send ring for a new connection over a link, if the namespace may have it. Process context.
    pub(crate) fn take_ring(self: &Arc<Self>, link: &Link, len: u32) -> Result<PooledRing> {
        let len = usize::try_from(len)?;
        let charge = || self.ns.charge(len);
        let mut ring = self.pools.lock().ring(&self.ns, len, charge)?;
        if let Err(error) = ring.map_for(link) {
            self.give_back_ring(ring, true);
            return Err(error);
        }
        Ok(ring)
    }

    /// A send ring for a connection over a link that has given back its own: it may have one whatever the limit
    /// is. Not mapped if the link is on its way out. Process context.
    pub(crate) fn take_ring_again(self: &Arc<Self>, link: &Link, len: u32) -> Result<PooledRing> {
        let len = usize::try_from(len)?;
        let charge = || Ok(self.ns.count(len));
        let mut ring = self.pools.lock().ring(&self.ns, len, charge)?;
        match ring.map_for(link) {
            Err(error) if !link.is_broken() => {
                self.give_back_ring(ring, true);
                Err(error)
            }
            _ => Ok(ring),
        }
    }

    /// Takes a send ring back; `quiet` if the device does not read from it any more. Process context.
    pub(crate) fn give_back_ring(self: &Arc<Self>, ring: PooledRing, quiet: bool) {
        self.pools.lock().give_back_ring(ring, quiet);
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
        self.for_each_connection(|sk| match conn::rest_ring(sk) {
            conn::Held::Nothing => {}
            conn::Held::InUse => in_use = true,
            conn::Held::Released(ring) => self.give_back_ring(ring, true),
        });
        let (spare, more) = {
            let mut pools = self.pools.lock();
            (pools.spare_rings(), pools.has_spare_rings())
        };
        drop(spare);
        if in_use || more {
            self.watch_rings();
        }
    }
}
