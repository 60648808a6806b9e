// SPDX-License-Identifier: GPL-2.0

//! What a network namespace has of its own: peer ID, counters, settings, PNET IDs, link groups.

use core::net::IpAddr;

use kapi::{
    net::Net,
    new_work,
    pernet::{Key, PerNet},
    sysctl::{self, Knob},
    util,
    workqueue::{Queue, Work}, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc,
        Mutex, //
    },
    time::{delay::fsleep, Delta},
};
use smc_proto::{
    handshake::{OwnV2, MAX_EIDS},
    list::List,
    llc_flow::ShutDown,
    wire::{Diagnosis, Eid, Mac, PeerId}, //
};

use crate::{
    events,
    group::Group,
    handshake::LastWords,
    memory::{Budget, Trim},
    peers::{self, Peers},
    pnet,
    rules::Rules,
    stats::{Side, Stats},
    transport::rc::Queues,
    Shared, //
};

/// Settings of a namespace: the files of `/proc/sys/net/smc`, see [`KNOBS`].
#[derive(Clone, Copy)]
pub(crate) enum Setting {
    /// Most bytes that are held back to be sent together; 0 for none.
    AutocorkingSize = 0,
    /// Kind of the buffers of new link groups: contiguous in memory, virtually so, or as can be had.
    BufType,
    /// Seconds without traffic after which a link is tested; 0 for never.
    TestlinkTime,
    /// Size of send rings where the program does not set it, in bytes.
    Wmem,
    /// Size of RMB elements where the program does not set it, in bytes.
    Rmem,
    /// Most links of a group, as is agreed with peers; of version 2, see [`LINKS_V2`].
    MaxLinks,
    /// Most connections of a group, as is agreed with peers of version 2.
    MaxConns,
    /// What `SMC_LIMIT_HS` of new sockets begins with.
    LimitHs,
    /// Send work requests of a link.
    MaxSendWr,
    /// Receive work requests of a link.
    MaxRecvWr,
    /// Versions of SMC-R that may be spoken: [`VERSION_1`] and [`VERSION_2`], added up.
    Versions,
    /// Kinds of GIDs that version 1 may use: [`VERSION_1`] of RoCE and [`VERSION_2`], added up.
    V1Gids,
    /// Seconds for which a peer with whom SMC failed is left alone at first; 0 for not at all.
    PeerBackoff,
    /// Seconds that a link group without connections is kept; clients wait a little longer, so that
    /// the server goes first.
    IdleTime,
    /// Most MiB of buffers, in the initial namespace for all namespaces; 0 for a part of the system's memory.
    MemMax,
    /// Name of a policy for handshakes. There are none: the kernel has no place for a module's.
    HsCtrl,
}

/// How many settings there are.
const SETTINGS: usize = 16;

/// Version 1, in settings that are sums.
pub(crate) const VERSION_1: u32 = 1;

/// Version 2, in settings that are sums.
pub(crate) const VERSION_2: u32 = 2;

/// Sizes are doubled in places.
const MAX_SIZE: u32 = i32::MAX as u32 / 2;

/// Most seconds: as milliseconds they have to fit timers.
const MAX_SECONDS: u32 = i32::MAX as u32 / 1000;

/// Most links of a group of version 2: what all peers agree to.
pub(crate) const LINKS_V2: u8 = 2;

/// For how many seconds at most clients keep idle link groups longer than servers.
const IDLE_LONGER: u32 = 60;

/// The file of each setting, in the order of their numbers.
const KNOBS: [(Setting, Knob); SETTINGS] = [
    (
        Setting::AutocorkingSize,
        Knob::number(c"autocorking_size", 64 * 1024, 0, u32::MAX),
    ),
    (Setting::BufType, Knob::number(c"smcr_buf_type", 0, 0, 2)),
    (
        Setting::TestlinkTime,
        Knob::number(c"smcr_testlink_time", 30, 0, MAX_SECONDS),
    ),
    (
        Setting::Wmem,
        Knob::number(c"wmem", 64 * 1024, 16 * 1024, MAX_SIZE),
    ),
    (
        Setting::Rmem,
        Knob::number(c"rmem", 64 * 1024, 16 * 1024, MAX_SIZE),
    ),
    (
        Setting::MaxLinks,
        Knob::number(c"smcr_max_links_per_lgr", 2, 1, 8),
    ),
    (
        Setting::MaxConns,
        Knob::number(c"smcr_max_conns_per_lgr", 255, 16, 255),
    ),
    (Setting::LimitHs, Knob::number(c"limit_smc_hs", 0, 0, 1)),
    (
        Setting::MaxSendWr,
        Knob::number(c"smcr_max_send_wr", 16, 2, 2048),
    ),
    (
        Setting::MaxRecvWr,
        Knob::number(c"smcr_max_recv_wr", 48, 2, 2048),
    ),
    (Setting::Versions, Knob::number(c"smcr_versions", 3, 1, 3)),
    (Setting::V1Gids, Knob::number(c"smcr_v1_gids", 3, 1, 3)),
    (
        Setting::PeerBackoff,
        Knob::number(c"smcr_peer_backoff", 30, 0, MAX_SECONDS),
    ),
    (
        Setting::IdleTime,
        Knob::number(c"smcr_idle_time", 600, 1, MAX_SECONDS - IDLE_LONGER),
    ),
    (
        Setting::MemMax,
        Knob::number(c"smcr_mem_max", 0, 0, MAX_SIZE),
    ),
    (Setting::HsCtrl, Knob::no_name(c"hs_ctrl")),
];

/// Where namespaces keep their [`Netns`].
pub(crate) static NETNS: Key<Netns> = Key::new();

/// Enterprise IDs of a namespace.
type Eids = List<Eid, MAX_EIDS>;

/// State of a namespace.
#[pin_data]
pub(crate) struct Netns {
    pub(crate) shared: Arc<Shared>,
    /// The namespace's cookie, which tells namespaces apart for as long as the host runs.
    pub(crate) cookie: u64,
    #[pin]
    pub(crate) stats: Stats,
    /// The physical networks of interfaces, where an administrator says so.
    #[pin]
    pub(crate) interfaces: pnet::Table,
    /// Which connections may use SMC.
    #[pin]
    pub(crate) rules: Rules,
    /// With whom it failed a short time ago.
    #[pin]
    pub(crate) peers: Peers,
    /// Enterprise IDs for version 2.
    #[pin]
    eids: Mutex<Eids>,
    /// How many of them there are, for who cannot sleep.
    eid_count: Atomic<u32>,
    settings: sysctl::Table<SETTINGS>,
    /// Tells restarts of this host apart in the peer ID, and the namespaces that have the same port in it.
    instance: [u8; 2],
    /// Address of a port, for the peer ID; 0 as long as there is none.
    mac: Atomic<u64>,
    /// Whether clients of its servers end first contacts that are waited for.
    pub(crate) last_words: LastWords,
    /// Link groups that exist, dying ones included.
    groups: Atomic<u32>,
    /// Bytes of their buffers.
    pub(crate) memory: Arc<Budget>,
    /// Has idle ones given back.
    #[pin]
    pub(crate) trim: Work<Arc<Netns>, Trim>,
    /// What listeners are still to be told.
    #[pin]
    pub(crate) untold: events::Untold,
}

impl PerNet for Netns {
    type Context = Shared;

    fn key() -> &'static Key<Self> {
        &NETNS
    }

    fn new(net: &Net, shared: &Arc<Shared>) -> Result<Arc<Self>> {
        let instance = shared.instances.fetch_add(1, Relaxed) as u16;
        let (shared, cookie) = (shared.clone(), net.id());
        let settings = sysctl::Table::new(net, c"net/smc", &KNOBS.map(|(_, knob)| knob))?;
        Arc::pin_init(
            try_pin_init!(Self {
                shared,
                cookie,
                stats <- Stats::new(),
                interfaces <- pnet::Table::new(),
                rules <- Rules::new(),
                peers <- Peers::new(),
                eids <- new_mutex!(List::new(), "smc_eids"),
                eid_count: Atomic::new(0),
                settings,
                instance: instance.to_be_bytes(),
                mac: Atomic::new(0),
                last_words: LastWords::new(),
                groups: Atomic::new(0),
                memory: Budget::new()?,
                trim <- new_work!("smc_trim_netns"),
                untold <- events::Untold::new(),
            }),
            GFP_KERNEL,
        )
    }

    fn pre_exit(this: &Arc<Self>) {
        this.end_groups();
    }

    fn exit(this: &Arc<Self>, _net: &Net) {
        this.settings.unregister();
        // No socket is left, so that no group is added any more; one may have been since the others were told to end.
        // Each tells its peer, which takes a moment, bounded by the timers of the LLC engine.
        while this.groups.load(Relaxed) != 0 {
            this.end_groups();
            fsleep(Delta::from_millis(5));
        }
    }
}

/// The state of a namespace, or [`ENODEV`] if it is about to go.
pub(crate) fn of(net: &Net) -> Result<Arc<Netns>> {
    NETNS.get(net).ok_or(ENODEV)
}

impl Netns {
    /// The queue of all work items but those of the others.
    pub(crate) fn queue(&self) -> &Queue {
        &self.shared.queue
    }

    /// The queue of work items of sockets. They take locks of TCP sockets, which a call may have for as long as a program
    /// likes whose memory it reads: those of link groups never stand behind them.
    pub(crate) fn socket_queue(&self) -> &Queue {
        &self.shared.socket_queue
    }

    /// The queue of work items that wait for a device, which may wait for a peer: those of the other one never stand behind
    /// them.
    pub(crate) fn device_queue(&self) -> &Queue {
        &self.shared.device_queue
    }

    /// True if a SYN should carry the option: there is a device that could be used.
    ///
    /// Version 2 by itself needs an enterprise ID too. Any context.
    pub(crate) fn offers_smc(&self) -> bool {
        self.shared.devices.any()
            && (self.may_speak(VERSION_1) || self.eid_count.load(Relaxed) != 0)
    }

    /// Our peer ID: the same for all link groups of the namespace. May sleep.
    pub(crate) fn peer_id(&self) -> PeerId {
        PeerId::new(self.instance, self.mac().unwrap_or(Mac([0; 6])))
    }

    /// The address in our peer ID, which stays what it is once there is one.
    fn mac(&self) -> Option<Mac> {
        let known = self.mac.load(Relaxed);
        let known = if known == 0 {
            let Mac([a, b, c, d, e, f]) = self.shared.devices.first_mac(self.cookie)?;
            let new = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]);
            // Several connections may be the first.
            self.mac
                .cmpxchg(0, new, Relaxed)
                .map_or_else(|set| set, |_| new)
        } else {
            known
        };
        let [a, b, c, d, e, f, _, _] = known.to_le_bytes();
        Some(Mac([a, b, c, d, e, f]))
    }

    /// The value of a setting at the moment.
    pub(crate) fn setting(&self, setting: Setting) -> u32 {
        self.settings.get(setting as usize)
    }

    /// A setting that goes into a byte.
    pub(crate) fn setting_u8(&self, setting: Setting) -> u8 {
        u8::try_from(self.setting(setting)).unwrap_or(u8::MAX)
    }

    /// Whether a version, [`VERSION_1`] or [`VERSION_2`], may be spoken.
    pub(crate) fn may_speak(&self, version: u32) -> bool {
        self.setting(Setting::Versions) & version != 0
    }

    /// What the namespace brings into negotiations of version 2. None if it does not speak that:
    /// it may not, or has no enterprise ID. Process context.
    pub(crate) fn own_v2(&self) -> Option<OwnV2> {
        let eids = self.eids();
        if eids.is_empty() || !self.may_speak(VERSION_2) {
            return None;
        }
        let mut host = [b' '; 32];
        util::host_name(&mut host);
        Some(OwnV2 {
            eids,
            max_connections: self.setting_u8(Setting::MaxConns),
            max_links: self.setting_u8(Setting::MaxLinks).min(LINKS_V2),
            host,
        })
    }

    /// The enterprise IDs at the moment. Process context.
    pub(crate) fn eids(&self) -> Eids {
        *self.eids.lock()
    }

    /// Adds an enterprise ID. [`EEXIST`] if it is there, [`ERANGE`] if there are too many. Process
    /// context.
    pub(crate) fn add_eid(&self, eid: Eid) -> Result {
        let mut eids = self.eids.lock();
        if eids.iter().any(|other| *other == eid) {
            return Err(EEXIST);
        }
        eids.push(eid).map_err(|_| ERANGE)?;
        self.eid_count.store(eids.len() as u32, Relaxed);
        Ok(())
    }

    /// Removes an enterprise ID. [`ENOENT`] if it is not there. Link groups that agreed on it stay,
    /// but get no new connections. Process context.
    pub(crate) fn remove_eid(&self, eid: Eid) -> Result {
        let mut eids = self.eids.lock();
        let rest = Eids::take_from(eids.iter().copied().filter(|other| *other != eid));
        if rest.len() == eids.len() {
            return Err(ENOENT);
        }
        *eids = rest;
        self.eid_count.store(eids.len() as u32, Relaxed);
        Ok(())
    }

    /// Removes all enterprise IDs. Process context.
    pub(crate) fn flush_eids(&self) {
        let mut eids = self.eids.lock();
        *eids = Eids::new();
        self.eid_count.store(0, Relaxed);
    }

    /// Changes a setting; the caller keeps the bounds.
    pub(crate) fn set(&self, setting: Setting, value: u32) {
        self.settings.set(setting as usize, value);
    }

    /// Size of send rings where the program does not set it, in bytes.
    pub(crate) fn wmem(&self) -> u32 {
        self.setting(Setting::Wmem)
    }

    /// Size of RMB elements where the program does not set it, in bytes.
    pub(crate) fn rmem(&self) -> u32 {
        self.setting(Setting::Rmem)
    }

    /// How long the queues of a new transport are.
    pub(crate) fn queues(&self) -> Queues {
        Queues::new(
            self.setting(Setting::MaxSendWr),
            self.setting(Setting::MaxRecvWr),
        )
    }

    /// A connection became plain TCP; `peer` if it had one by then. Any context up to softirq.
    pub(crate) fn fell_back(
        self: &Arc<Self>,
        side: Side,
        reason: Diagnosis,
        peer_reason: Option<Diagnosis>,
        peer: Option<(IpAddr, u16)>,
    ) {
        self.stats
            .fallback(side, reason, peer.map(|(addr, _)| addr));
        events::fallback(self, side, reason, peer_reason, peer);
    }

    /// Whether connections with a peer are to be plain TCP, since SMC failed a short time ago. Any
    /// context up to softirq.
    pub(crate) fn avoids(&self, peer: &peers::Key) -> bool {
        self.setting(Setting::PeerBackoff) != 0 && self.peers.avoids(peer)
    }

    /// SMC failed with a peer in a way that it is likely to do again.
    pub(crate) fn peer_failed(&self, peer: peers::Key, reason: Diagnosis) {
        let base = self.setting(Setting::PeerBackoff).saturating_mul(1000);
        if base != 0 {
            self.peers.failed(peer, reason, base);
        }
    }

    /// Has all link groups end that there are. Process context.
    fn end_groups(self: &Arc<Self>) {
        let ours = |group: &Group| Arc::ptr_eq(&group.ns, self);
        self.shared.groups.shut_down(ShutDown::Operator, ours);
    }

    /// A link group was made.
    pub(crate) fn group_made(&self) {
        self.groups.fetch_add(1, Relaxed);
    }

    /// How many link groups there are.
    pub(crate) fn groups(&self) -> u32 {
        self.groups.load(Relaxed)
    }

    /// A link group is gone.
    pub(crate) fn group_gone(&self) {
        self.groups.fetch_sub(1, kernel::sync::atomic::Release);
    }
}
