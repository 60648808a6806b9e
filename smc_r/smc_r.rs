// SPDX-License-Identifier: GPL-2.0

//! SMC-R: stream sockets whose data moves by RDMA (RFC 7609).
//!
//! # Who is where
//!
//! * [`socket`]: what programs see; one system call family per file.
//! * [`handshake`]: the CLC rendezvous of one connection, over its TCP connection.
//! * [`group`], [`link`]: link groups, their buffers and LLC messages.
//! * [`conn`]: the data of one connection.
//! * [`transport`], [`device`], [`buffers`]: queue pairs, ports, registered memory; [`memory`]: how much of it.
//! * [`netlink`], [`diag`], [`events`], [`stats`], [`snapshot`]: what administrators see.
//! * [`pnet`], [`rules`], [`netns`]: what they say; [`peers`]: what experience says.
//! * The protocol itself is in the crate `smc_proto`, which knows no kernel.
//!
//! # Lock order
//!
//! A lock may be taken while those before it are held. What is in brackets is what lockdep calls it:
//!
//! 1. the socket lock (sleeping) of the outer socket (`sk_lock-AF_SMC`, `slock-AF_SMC`), of a listener before its child
//! 2. `Handshake::state` (`smc_handshake_state`)
//! 3. mutexes: `Groups::list` (`smc_groups`), then `Group::pools` (`smc_pools`), `Group::rings` (`smc_rings`) and
//!    `GroupRmb::keys` (`smc_keys`); the gate of a netlink family (`genl_registered`), with none of these held; then those of
//!    [`device`] (`smc_r::DeviceTable::list`, `smc_r::Device::inner`); then `pnet::Table` (`smc_pnet`), `Rules::list`
//!    (`smc_rules`), `Netns::eids` (`smc_eids`), `Stats::failures` (`smc_failures`), and whether a namespace has the hooks
//!    for the option (`tcp_option`); then those of a transport (`ib::Connection::registration`,
//!    `ib::Connection::objects`). Whoever needs memory may ask for it with any lock held: then the first two are tried only
//! 4. the lock of the inner TCP socket
//! 5. `SmcSocket::conn` (`smc_conn`; spin lock, like all below: bottom halves are off)
//! 6. `Group::flow` (`smc_flow`), then `Group::links` (`smc_links`)
//! 7. `Group::table` (`smc_connections`), `Group::waiters` (`smc_waiters`), `SmcSocket::{tcp, handshake, listener,
//!    deferred_by}` (`smc_tcp`, `smc_handshake`, `smc_listener`, `smc_deferred_by`), the accept queue
//!    (`smc_accept_queue`), `Listener::owner` (`smc_listener_owner`), `Handshake::link_result` (`smc_link_result`),
//!    `Peers::list` (`smc_peers`), `Stats::fallbacks` (`smc_fallbacks`), `Untold::list` (`smc_events`),
//!    `Groups::first_contacts` (`smc_first_contacts`)
//! 8. the spin locks of a transport (`ib::Connection::queue`, `ib::Connection::long`), of the list of sockets
//!    (`smc_sockets`), and of what TCP has for listeners (`kapi_listening_lock`); those of TCP's hash, where a SYN is looked
//!    at; those of the device's driver
//!
//! Nothing is held while a peer is waited for; but `Handshake::state` is while a gateway on the same link is
//! asked for its address, and the locks of whoever removes a device, or stops the machine, are while links are left in
//! order: a second at most.

#![forbid(unsafe_code)]
#![deny(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

mod buffers;
mod clock;
mod conn;
mod device;
mod diag;
mod events;
mod group;
mod handshake;
mod link;
mod memory;
mod netlink;
mod netns;
mod path;
mod peers;
mod pnet;
mod rules;
mod shown;
mod snapshot;
mod socket;
mod stats;
mod transport;

use kapi::{
    genl,
    memory::Shrinker,
    pernet,
    reboot,
    sock,
    tcp,
    tcp_option,
    util,
    workqueue::Queue, //
};
use kernel::{
    prelude::*,
    sync::{atomic::Atomic, Arc}, //
};

use crate::{
    device::{DeviceTable, DeviceUpcalls, Devices},
    events::Outlet,
    group::Groups,
    memory::Memory,
    netlink::{PnetFamily, SmcFamily},
    netns::{Netns, NETNS},
    socket::SmcSocket, //
};

/// What the module calls itself.
const VERSION: &str = "0.1.0";

/// `AF_SMC`, see `include/linux/socket.h`.
const AF_SMC: u16 = 43;

/// `IPPROTO_SMC`, see `include/uapi/linux/in.h`.
const IPPROTO_SMC: u16 = 256;

module! {
    type: SmcR,
    name: "smc_r",
    authors: ["The smc-rs developers"],
    description: "SMC-R: shared memory communications over RDMA (RFC 7609)",
    license: "GPL v2",
    alias: [
        "net-pf-43",
        "net-pf-2-proto-256-type-1",
        "net-pf-10-proto-256-type-1",
        "net-pf-16-proto-16-family-SMC_GEN_NETLINK",
        "net-pf-16-proto-16-family-SMC_PNETID",
        "net-pf-16-proto-16-family-smc-rs",
    ],
}

/// What all namespaces share.
pub(crate) struct Shared {
    pub(crate) queue: Queue,
    /// For what waits for locks of TCP sockets, which calls of programs have.
    pub(crate) socket_queue: Queue,
    /// For what waits for devices.
    pub(crate) device_queue: Queue,
    /// For what waits for listeners of events.
    pub(crate) event_queue: Queue,
    pub(crate) groups: Arc<Groups>,
    pub(crate) devices: Arc<DeviceTable>,
    memory: Arc<Memory>,
    /// Where events get out.
    pub(crate) outlet: Outlet,
    /// What the next namespace has in its peer ID, modulo 65536. Begins anywhere.
    instances: Atomic<u32>,
}

/// Waits at the end until no work item runs any more, so that none drops the last reference to the
/// queue it runs on.
struct Drained(Arc<Shared>);

impl Drop for Drained {
    fn drop(&mut self) {
        self.0.event_queue.drain();
        self.0.device_queue.drain();
        self.0.socket_queue.drain();
        self.0.queue.drain();
    }
}

/// Ends the family that all namespaces share with [`Shared`]. A command in progress may have a
/// share in that too, and must not be the one to unregister the family that it belongs to.
struct Ended(Arc<Shared>);

impl Drop for Ended {
    fn drop(&mut self) {
        // What the end of the namespaces' groups has left to tell.
        self.0.event_queue.drain();
        self.0.outlet.unregister();
    }
}

/// Everything that is registered, in the order in which it goes.
struct SmcR {
    _reboot: reboot::Registration<Groups>,
    _shrinker: Shrinker<Shared>,
    _netlink: genl::Registration<SmcFamily>,
    _pnet: genl::Registration<PnetFamily>,
    _sockets: sock::Registration<SmcSocket>,
    _option: tcp_option::Registration,
    _namespaces: pernet::Registration<Netns>,
    _own: Ended,
    _devices: Devices,
    _shared: Drained,
    _tcp: tcp::Subsystem,
}

impl kernel::Module for SmcR {
    fn init(module: &'static ThisModule) -> Result<Self> {
        let tcp = tcp::Subsystem::new(c"smc_r_tcp")?;
        let groups = Arc::pin_init(Groups::new(), GFP_KERNEL)?;
        let upcalls: Arc<dyn DeviceUpcalls> = groups.clone();
        let devices = Devices::register(upcalls)?;
        let mut instance = [0; 4];
        util::random_bytes(&mut instance);
        let shared = Arc::new(
            Shared {
                queue: Queue::new(c"smc_r", 0)?,
                socket_queue: Queue::new(c"smc_r_sockets", 0)?,
                device_queue: Queue::new(c"smc_r_devices", 0)?,
                event_queue: Queue::new(c"smc_r_events", events::TELLERS)?,
                memory: Memory::new(groups.clone())?,
                groups,
                devices: devices.table().clone(),
                outlet: genl::Registration::new(module)?,
                instances: Atomic::new(u32::from_ne_bytes(instance)),
            },
            GFP_KERNEL,
        )?;
        let drained = Drained(shared.clone());
        let own = Ended(shared.clone());
        let namespaces = NETNS.register(shared.clone())?;
        let option = tcp_option::Registration::new(smc_proto::tcp_option::OPTION)?;
        let reboot = reboot::Registration::new(shared.groups.clone())?;
        let shrinker = Shrinker::new(c"smc_r", shared)?;
        let netlink = genl::Registration::new(module)?;
        let pnet = genl::Registration::new(module)?;
        // Last: from here on there may be sockets, for which nothing must fail any more.
        let sockets = sock::Registration::new(module, AF_SMC, Some(IPPROTO_SMC))?;
        Ok(Self {
            _reboot: reboot,
            _shrinker: shrinker,
            _netlink: netlink,
            _pnet: pnet,
            _sockets: sockets,
            _option: option,
            _namespaces: namespaces,
            _own: own,
            _devices: devices,
            _tcp: tcp,
            _shared: drained,
        })
    }
}
