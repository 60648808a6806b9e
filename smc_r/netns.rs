// SPDX-License-Identifier: GPL-2.0

//! What a network namespace has of its own: peer ID, counters, link groups.

use kapi::{
    net::Net,
    pernet::{Key, PerNet},
    util,
    workqueue::Queue, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc,
        SetOnce, //
    },
    time::{delay::fsleep, Delta},
};
use smc_proto::{
    llc_flow::ShutDown,
    wire::{Mac, PeerId}, //
};

use crate::{group::Group, stats::Stats, Shared};

/// Default size of send rings and of RMB elements, in bytes.
const DEFAULT_BUFFER: u32 = 64 * 1024;

/// Longest accept queue that `listen(2)` gets.
const SOMAXCONN: u32 = 4096;

/// Where namespaces keep their [`Netns`].
pub(crate) static NETNS: Key<Netns> = Key::new();

/// State of a namespace.
#[pin_data]
pub(crate) struct Netns {
    pub(crate) shared: Arc<Shared>,
    /// The namespace's cookie, which tells namespaces apart for as long as the host runs.
    pub(crate) cookie: u64,
    #[pin]
    pub(crate) stats: Stats,
    /// Tells restarts of this host apart in the peer ID.
    instance: [u8; 2],
    /// Address of the port that first took part, for the peer ID.
    mac: SetOnce<Mac>,
    /// Link groups that exist, dying ones included.
    groups: Atomic<u32>,
}

impl PerNet for Netns {
    type Context = Shared;

    fn key() -> &'static Key<Self> {
        &NETNS
    }

    fn new(net: &Net, shared: &Arc<Shared>) -> Result<Arc<Self>> {
        let mut instance = [0; 2];
        util::random_bytes(&mut instance);
        let (shared, cookie) = (shared.clone(), net.id());
        Arc::pin_init(
            try_pin_init!(Self {
                shared,
                cookie,
                stats <- Stats::new(),
                instance,
                mac: SetOnce::new(),
                groups: Atomic::new(0),
            }),
            GFP_KERNEL,
        )
    }

    fn exit(this: &Arc<Self>, _net: &Net) {
        // No socket is left, so that no group is added any more. Each tells its peer, which takes
        // a moment, bounded by the timers of the LLC engine.
        while this.groups.load(Relaxed) != 0 {
            let ours = |group: &Group| Arc::ptr_eq(&group.ns, this);
            this.shared.groups.shut_down(ShutDown::Operator, ours);
            fsleep(Delta::from_millis(5));
        }
    }
}

/// The state of a namespace, or [`ENODEV`] if it is about to go.
pub(crate) fn of(net: &Net) -> Result<Arc<Netns>> {
    NETNS.get(net).ok_or(ENODEV)
}

impl Netns {
    /// The queue of all work items.
    pub(crate) fn queue(&self) -> &Queue {
        &self.shared.queue
    }

    /// True if a SYN should carry the option: there is a device that could be used.
    pub(crate) fn offers_smc(&self) -> bool {
        self.shared.devices.any()
    }

    /// Our peer ID: the same for all link groups of the namespace.
    pub(crate) fn peer_id(&self) -> PeerId {
        if self.mac.as_ref().is_none() {
            if let Some(mac) = self.shared.devices.first_mac() {
                self.mac.populate(mac);
            }
        }
        let mac = self.mac.as_ref().copied().unwrap_or(Mac([0; 6]));
        PeerId::new(self.instance, mac)
    }

    /// Size of send rings where the program does not set it, in bytes.
    pub(crate) fn wmem(&self) -> u32 {
        DEFAULT_BUFFER
    }

    /// Size of RMB elements where the program does not set it, in bytes.
    pub(crate) fn rmem(&self) -> u32 {
        DEFAULT_BUFFER
    }

    /// Longest accept queue.
    pub(crate) fn somaxconn(&self) -> u32 {
        SOMAXCONN
    }

    /// A link group was made.
    pub(crate) fn group_made(&self) {
        self.groups.fetch_add(1, Relaxed);
    }

    /// A link group is gone.
    pub(crate) fn group_gone(&self) {
        self.groups.fetch_sub(1, kernel::sync::atomic::Release);
    }
}
