// SPDX-License-Identifier: GPL-2.0

//! Memory of connections: send rings, remote memory buffers (RFC 7609 section 2.1, 4.4.2), and
//! what each link needs to know of them.
//!
//! The memory lives as long as somebody holds it, whatever happens to links; what links and
//! devices hold of it goes with the transport's shutdown at the latest.

use core::{
    ops::Deref,
    ptr, //
};
use kapi::ib::{
    MappingId,
    Pages,
    RegionId, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use smc_proto::wire::{
    RKey,
    RToken,
    RmbeSize, //
};

use crate::{memory::Charge, netns::Netns};

/// The most elements of one buffer; an element's index has 8 bits, and 0 is none.
const MAX_ELEMENTS: u32 = 255;

/// The largest buffer: what software RoCE registers as one region.
const MAX_RMB: u32 = 2 << 20;

/// Memory that a connection sends from.
pub(crate) struct SendRing {
    pages: Arc<Pages>,
    len: usize,
    _charge: Charge,
}

impl SendRing {
    /// Makes a ring of `len` zeroed bytes, if they can be had easily. May sleep.
    pub(crate) fn new(charge: Charge, len: usize) -> Result<Arc<Self>> {
        Self::of(Pages::new(len)?, charge, len)
    }

    /// The same for who cannot do without: waits for memory, whatever the memory group's limit is.
    pub(crate) fn new_urgently(charge: Charge, len: usize) -> Result<Arc<Self>> {
        Self::of(Pages::new_urgently(len)?, charge, len)
    }

    fn of(pages: Pages, charge: Charge, len: usize) -> Result<Arc<Self>> {
        let pages = Arc::new(pages, GFP_KERNEL)?;
        Ok(Arc::new(
            Self {
                pages,
                len,
                _charge: charge,
            },
            GFP_KERNEL,
        )?)
    }

    /// The number of bytes asked for.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn pages(&self) -> &Arc<Pages> {
        &self.pages
    }
}

impl Deref for SendRing {
    type Target = Pages;

    fn deref(&self) -> &Pages {
        &self.pages
    }
}

/// Memory that a peer writes to: elements of one size.
pub(crate) struct Rmb {
    pages: Arc<Pages>,
    size: RmbeSize,
    elements: u32,
    _charge: Charge,
}

impl Rmb {
    /// Makes a zeroed buffer of up to `elements` elements: of fewer if memory is short, or the namespace may
    /// have no more, or if they would be too large for one region. May sleep.
    pub(crate) fn new(ns: &Arc<Netns>, size: RmbeSize, elements: u32) -> Result<Arc<Self>> {
        let most = MAX_RMB.checked_div(size.bytes()).unwrap_or(1);
        let mut elements = elements.min(most).clamp(1, MAX_ELEMENTS);
        let (pages, charge) = loop {
            let len = (size.bytes() as usize).saturating_mul(elements as usize);
            let charge = ns.charge(len);
            match charge.and_then(|charge| Ok((Pages::new(len)?, charge))) {
                Ok((pages, charge)) => break (Arc::new(pages, GFP_KERNEL)?, charge),
                Err(e) if elements == 1 => return Err(e),
                Err(_) => elements /= 2,
            }
        };
        Ok(Arc::new(
            Self {
                pages,
                size,
                elements,
                _charge: charge,
            },
            GFP_KERNEL,
        )?)
    }

    /// The number of elements.
    pub(crate) fn elements(&self) -> u32 {
        self.elements
    }

    /// The bytes of all elements.
    pub(crate) fn len(&self) -> usize {
        (self.size.bytes() as usize).saturating_mul(self.elements as usize)
    }

    pub(crate) fn pages(&self) -> &Arc<Pages> {
        &self.pages
    }
}

impl Deref for Rmb {
    type Target = Pages;

    fn deref(&self) -> &Pages {
        &self.pages
    }
}

/// Who keeps maps and keys: what is behind a transport.
pub(crate) trait Owner: Send + Sync {
    fn unmap(&self, id: MappingId);
    fn register(&self, id: RegionId) -> Result;
    fn remove_region(&self, id: RegionId);
}

/// A send ring as a source of writes of one transport. The drop does not sleep; chains in flight
/// keep what they need.
pub(crate) struct RingMap {
    owner: Arc<dyn Owner>,
    id: MappingId,
}

impl RingMap {
    pub(crate) fn new(owner: Arc<dyn Owner>, id: MappingId) -> Self {
        Self { owner, id }
    }

    pub(crate) fn id(&self) -> MappingId {
        self.id
    }

    /// Whether it belongs to this owner.
    pub(crate) fn is_of<T: Owner>(&self, owner: &Arc<T>) -> bool {
        ptr::addr_eq(Arc::as_ptr(&self.owner), Arc::as_ptr(owner))
    }
}

impl Drop for RingMap {
    fn drop(&mut self) {
        self.owner.unmap(self.id);
    }
}

/// The key of a buffer for the peer of one transport. The drop may sleep; the peer cannot write
/// any more when it returns.
pub(crate) struct RmbMr {
    owner: Arc<dyn Owner>,
    id: RegionId,
    token: RToken,
}

impl RmbMr {
    pub(crate) fn new(owner: Arc<dyn Owner>, id: RegionId, key: u32, addr: u64) -> Self {
        Self {
            owner,
            id,
            token: RToken {
                rkey: RKey(key),
                addr,
            },
        }
    }

    /// The key, and the address of the first byte, to announce to the peer. The peer must not use
    /// them before [`Self::registration`] has run.
    pub(crate) fn token(&self) -> RToken {
        self.token
    }

    /// What makes the key work.
    pub(crate) fn registration(&self) -> Registration {
        Registration {
            owner: self.owner.clone(),
            id: self.id,
        }
    }
}

/// Makes a key work; apart from the key, so that this need not be locked meanwhile.
pub(crate) struct Registration {
    owner: Arc<dyn Owner>,
    id: RegionId,
}

impl Registration {
    /// Does it. The transport must be in the state `Sending`. May sleep, until the device has done it. Does nothing once
    /// it has succeeded.
    pub(crate) fn run(&self) -> Result {
        self.owner.register(self.id)
    }
}

impl Drop for RmbMr {
    fn drop(&mut self) {
        self.owner.remove_region(self.id);
    }
}
