// SPDX-License-Identifier: GPL-2.0

//! The RoCE devices of the system, and which of their ports a TCP connection's path leads to.
//!
//! # Removal
//!
//! When a device goes, [`DeviceUpcalls::removed`] is called first; then every transport that is
//! still on it is shut down from here. Transports are the only ones that hold something of a
//! device for longer than a call, so its removal waits for nobody else, but for a moment in which links
//! are left in order ([`DeviceUpcalls::removed`]). A [`Device`] itself is only a name by then, and may
//! be kept.

use crate::{
    pnet::{self, PnetId, PORT_NAME},
    transport::{
        rc::Rc,
        Transport, //
    },
};
use core::{
    net::IpAddr,
    ops::Deref,
    ptr, //
};
use kapi::genl::Changes;
use kapi::grow::Grow;
use kapi::ib::{
    self,
    Client,
    ClientSlot,
    Event,
    GidEntry,
    GidKind, //
};
use kapi::net::Net;
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{Acquire, Atomic, Relaxed, Release},
        Arc,
        Mutex, //
    },
};
use smc_proto::{
    gid::{
        self,
        Allowed,
        Candidate,
        Rank,
        Roce,
        Wanted, //
    },
    wire::{
        Gid,
        Mac,
        MtuCode, //
    },
};

/// Entries of a GID table beyond this cannot be used for sending.
const GIDS: u32 = 256;

/// Who is told of what happens to devices. All methods may sleep.
///
/// The kernel holds the lock of the device's event handlers around all but `removed`. Drivers take
/// that lock and `rtnl_lock` in their own order, so that no method asks for the state of a port.
pub(crate) trait DeviceUpcalls: Send + Sync {
    /// No new transport can be made on the device, and those there are will be shut down when
    /// this returns. It may take a second; the RDMA core waits, with what locks its caller holds.
    fn removed(&self, device: &Arc<Device>);

    /// There is another device, or packets go through a port again.
    fn ready(&self);

    /// Packets do not go through the port any more.
    fn port_error(&self, device: &Arc<Device>, port: u8);

    /// Addresses came or went.
    fn gids_changed(&self, device: &Arc<Device>, port: u8);

    /// The device is broken, its transports with it.
    fn fatal(&self, device: &Arc<Device>);
}

/// What a port's GID table held. The table of a device may have hundreds of entries, of which a few are
/// in use, and each connection looks through it.
struct GidTable {
    port: u8,
    /// As many changes to the tables had been told when the table was looked through.
    as_of: u64,
    entries: KVec<GidEntry>,
}

impl GidTable {
    fn read(ib: &ib::Device, port: u8, as_of: u64) -> Result<Self> {
        let len = ib.port(port.into())?.gids.min(GIDS);
        let mut entries = KVec::new();
        for entry in (0..len).filter_map(|i| ib.gid(port.into(), u8::try_from(i).ok()?)) {
            entries.append(entry, GFP_KERNEL)?;
        }
        Ok(Self {
            port,
            as_of,
            entries,
        })
    }

    fn best<R: Ord>(&self, rank: impl Fn(&GidEntry) -> Option<R>) -> Option<(R, GidEntry)> {
        gid::best(self.entries.iter().copied(), rank)
    }
}

/// A device with at least one RoCE port.
#[pin_data]
pub(crate) struct Device {
    /// Above the numbers of all devices that came before.
    pub(crate) number: u64,
    /// Changes to the GID tables that were told.
    gid_changes: Atomic<u64>,
    /// The ports that are to get no new links, one bit each.
    drained: Atomic<u64>,
    #[pin]
    inner: Mutex<Inner>,
}

struct Inner {
    /// The last name that is known.
    name: DeviceName,
    /// None once the device is removed.
    ib: Option<ARef<ib::Device>>,
    /// Not yet shut down.
    transports: KVec<Arc<Rc>>,
    /// What is known of the GID tables, one for each port that was asked for.
    gids: KVec<GidTable>,
}

/// Name of a device. Administrators may change it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeviceName([u8; PORT_NAME]);

impl DeviceName {
    /// The name with zeroes behind it.
    pub(crate) fn padded(&self) -> [u8; PORT_NAME] {
        self.0
    }
}

impl Deref for DeviceName {
    type Target = [u8];

    /// The name without padding.
    fn deref(&self) -> &[u8] {
        let len = self.0.iter().take_while(|byte| **byte != 0).count();
        self.0.get(..len).unwrap_or_default()
    }
}

/// A port, as it is at the moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PortInfo {
    pub(crate) active: bool,
    pub(crate) mtu: MtuCode,
    pub(crate) netdev: Option<ib::Netdev>,
}

impl Device {
    /// The name that it has, or had when it was removed. May sleep.
    pub(crate) fn name(&self) -> DeviceName {
        let inner = self.inner.lock();
        match &inner.ib {
            Some(ib) => DeviceName(ib.name()),
            None => inner.name,
        }
    }

    /// Whether a namespace may use it: the administrator can bind devices to one namespace each, whatever their cards are
    /// in. May sleep.
    fn is_open_to(&self, net: &Net) -> bool {
        self.ib().is_ok_and(|ib| ib.is_in(net))
    }

    /// Wants no new links on a port from now on, or wants them again.
    pub(crate) fn set_drained(&self, port: u8, on: bool) {
        let bit = 1_u64.checked_shl(port.into()).unwrap_or(0);
        let mut old = self.drained.load(Relaxed);
        loop {
            let new = if on { old | bit } else { old & !bit };
            match self.drained.cmpxchg(old, new, Relaxed) {
                Ok(_) => return,
                Err(now) => old = now,
            }
        }
    }

    /// Are no new links wanted on a port?
    pub(crate) fn is_drained(&self, port: u8) -> bool {
        let bit = 1_u64.checked_shl(port.into()).unwrap_or(0);
        self.drained.load(Relaxed) & bit != 0
    }

    /// The verbs device, unless it is removed. Must be given up soon: it keeps the device from
    /// being removed.
    pub(crate) fn ib(&self) -> Result<ARef<ib::Device>> {
        self.inner.lock().ib.clone().ok_or(ENODEV)
    }

    /// The numbers of the RoCE ports.
    pub(crate) fn ports(&self) -> impl Iterator<Item = u8> {
        let ib = self.ib().ok();
        let ports = ib.as_ref().map(|ib| ib.ports());
        ports
            .into_iter()
            .flatten()
            .filter(move |port| ib.as_ref().is_some_and(|ib| ib.is_roce(*port)))
            .filter_map(|port| u8::try_from(port).ok())
    }

    /// Asks for the state of a port. May sleep.
    pub(crate) fn port(&self, port: u8) -> Result<PortInfo> {
        let ib = self.ib()?;
        let attr = ib.port(port.into())?;
        Ok(PortInfo {
            active: attr.active,
            mtu: MtuCode::new(attr.mtu).ok_or(EINVAL)?,
            netdev: ib.port_netdev(port.into()),
        })
    }

    /// Whether a message can be received into two pieces of memory. Not if the device is gone.
    pub(crate) fn receives_in_two(&self) -> bool {
        self.ib().is_ok_and(|ib| ib.receives_in_two())
    }

    /// The best entry of a port's GID table by `rank`, as it is now. May sleep.
    fn best_gid<R: Ord + Copy>(
        &self,
        port: u8,
        rank: impl Fn(&GidEntry) -> Option<R>,
    ) -> Option<(R, GidEntry)> {
        let ib = self.ib().ok()?;
        let (order, known) = self.best_known_gid(&ib, port, &rank)?;
        let now = ib.gid(port.into(), known.index);
        if let Some(entry) = now.filter(|now| now.gid == known.gid && rank(now) == Some(order)) {
            return Some((order, entry));
        }
        // It has changed, and nobody has been told yet.
        GidTable::read(&ib, port, 0).ok()?.best(rank)
    }

    /// The best entry by what is known of the table: changes that have not been told may be missing.
    fn best_known_gid<R: Ord>(
        &self,
        ib: &ib::Device,
        port: u8,
        rank: impl Fn(&GidEntry) -> Option<R>,
    ) -> Option<(R, GidEntry)> {
        // Before the table is read: what comes meanwhile is told afterwards.
        let as_of = self.gid_changes.load(Acquire);
        let place = |gids: &KVec<GidTable>| gids.iter().position(|gids| gids.port == port);
        {
            let inner = self.inner.lock();
            let gids = place(&inner.gids).and_then(|place| inner.gids.get(place));
            if let Some(gids) = gids.filter(|gids| gids.as_of == as_of) {
                return gids.best(rank);
            }
        }
        let found = GidTable::read(ib, port, as_of).ok()?;
        let best = found.best(rank);
        let mut inner = self.inner.lock();
        match place(&inner.gids).and_then(|place| inner.gids.get_mut(place)) {
            Some(gids) => *gids = found,
            // Without memory it is found again the next time.
            None => drop(inner.gids.append(found, GFP_KERNEL)),
        }
        best
    }

    /// The GID table of a port has changed.
    fn note_gids_changed(&self) {
        self.gid_changes.fetch_add(1, Release);
    }

    /// Takes in a transport, to be shut down with the device.
    pub(crate) fn add_transport(&self, transport: Arc<Rc>) -> Result {
        let mut inner = self.inner.lock();
        if inner.ib.is_none() {
            return Err(ENODEV);
        }
        inner.transports.append(transport, GFP_KERNEL)?;
        Ok(())
    }

    /// A transport has been shut down.
    pub(crate) fn remove_transport(&self, transport: &Rc) {
        let gone = {
            let mut inner = self.inner.lock();
            let place = inner
                .transports
                .iter()
                .position(|t| ptr::eq(Arc::as_ptr(t), transport));
            place.and_then(|place| inner.transports.remove(place).ok())
        };
        drop(gone);
    }

    /// Ends all that holds the device.
    fn remove(self: &Arc<Self>, upcalls: &dyn DeviceUpcalls) {
        let ib = {
            let mut inner = self.inner.lock();
            if let Some(ib) = &inner.ib {
                inner.name = DeviceName(ib.name());
            }
            inner.ib.take()
        };
        upcalls.removed(self);
        loop {
            // One at a time: each takes itself off the list.
            let transport = self.inner.lock().transports.first().cloned();
            match transport {
                Some(transport) => transport.shutdown(),
                None => break,
            }
        }
        drop(ib);
    }
}

/// How a transport can be made.
#[derive(Clone)]
pub(crate) struct Path {
    pub(crate) device: Arc<Device>,
    pub(crate) port: u8,
    pub(crate) gid_index: u8,
    pub(crate) gid: Gid,
    pub(crate) gid_kind: GidKind,
    pub(crate) vlan: Option<u16>,
    pub(crate) mac: Mac,
    pub(crate) mtu: MtuCode,
    pub(crate) netdev: ib::Netdev,
    /// The physical network by whose name the port was found, if it was.
    pub(crate) pnet: Option<PnetId>,
    /// How packets are to be treated on it, as the socket that asks for it says.
    pub(crate) service: ib::Service,
    /// What was looked for when it was found.
    pub(crate) want: Want,
}

impl Path {
    /// Whether the port still has the address at its place. May sleep.
    pub(crate) fn exists(&self) -> bool {
        let entry = |ib: ARef<ib::Device>| ib.gid(self.port.into(), self.gid_index);
        let entry = self.device.ib().ok().and_then(entry);
        entry.is_some_and(|entry| Gid(entry.gid) == self.gid)
    }

    /// Whether the port is there, with its address, and packets go through it. May sleep.
    pub(crate) fn works(&self) -> bool {
        self.exists() && self.device.port(self.port).is_ok_and(|port| port.active)
    }

    /// Whether it leads over a port of this device.
    pub(crate) fn is_of(&self, device: &Arc<Device>) -> bool {
        Arc::ptr_eq(&self.device, device)
    }

    /// Whether it leads over this port.
    pub(crate) fn is_on(&self, device: &Arc<Device>, port: u8) -> bool {
        self.is_of(device) && self.port == port
    }
}

/// What a path must be like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Want {
    /// The physical network that the interface is in: ports of the same network will do as well as
    /// the interface's own. None: only its own ports will.
    pub(crate) pnet: Option<PnetId>,
    /// Which GID of a port. Namespaces are told by their cookies.
    pub(crate) gid: Wanted,
}

impl Want {
    /// How well a GID of a port that [suits](DeviceTable::suits) does.
    fn rank(&self, entry: &GidEntry) -> Option<Rank> {
        self.gid.rank(&Candidate {
            gid: Gid(entry.gid),
            roce: match entry.kind {
                GidKind::V1 => Roce::V1,
                GidKind::V2 => Roce::V2,
            },
            namespace: entry.netdev.namespace,
            ifindex: entry.netdev.ifindex,
            vlan: entry.vlan,
            named: self.pnet.is_some(),
        })
    }
}

/// All devices.
#[pin_data]
pub(crate) struct DeviceTable {
    /// The physical networks of ports, where an administrator says so.
    #[pin]
    pub(crate) pnet: pnet::Table,
    #[pin]
    list: Mutex<KVec<Arc<Device>>>,
    /// How many devices there are, for those who must not sleep.
    count: Atomic<usize>,
    last_number: Atomic<u64>,
    changes: Changes,
    upcalls: Arc<dyn DeviceUpcalls>,
}

impl DeviceTable {
    /// The devices at the moment, in the order they came.
    pub(crate) fn list(&self) -> Result<KVec<Arc<Device>>> {
        let list = self.list.lock();
        let mut copy = KVec::with_capacity(list.len(), GFP_KERNEL)?;
        copy.extend_from_slice(&list, GFP_KERNEL)?;
        Ok(copy)
    }

    /// How often the list of devices has changed.
    pub(crate) fn changes(&self) -> u32 {
        self.changes.count()
    }

    /// The device that came next after number `number`.
    pub(crate) fn after(&self, number: u64) -> Option<Arc<Device>> {
        let list = self.list.lock();
        let later = list.iter().filter(|device| device.number > number);
        later.min_by_key(|device| device.number).cloned()
    }

    /// The best path on each active port that has any, the best of all first. May sleep.
    pub(crate) fn paths(&self, want: &Want) -> Result<KVec<Path>> {
        let mut paths: KVec<(Rank, Path)> = KVec::new();
        // Once for all devices: there may be many namespaces to look through.
        let net = Net::by_id(want.gid.namespace).ok_or(ENODEV)?;
        let devices = self.list()?;
        for device in devices.iter().filter(|device| device.is_open_to(&net)) {
            for port in device.ports() {
                if device.is_drained(port) || !self.suits(want, device, port) {
                    continue;
                }
                let best = device.best_gid(port, |entry| want.rank(entry));
                let (Some((rank, entry)), Ok(info)) = (best, device.port(port)) else {
                    continue;
                };
                if !info.active {
                    continue;
                }
                let path = Path {
                    device: device.clone(),
                    port,
                    gid_index: entry.index,
                    gid: Gid(entry.gid),
                    gid_kind: entry.kind,
                    vlan: entry.vlan,
                    mac: Mac(entry.mac),
                    mtu: info.mtu,
                    netdev: entry.netdev,
                    pnet: want.pnet,
                    service: ib::Service::default(),
                    want: *want,
                };
                let place = paths.iter().position(|(other, _)| *other < rank);
                let place = place.unwrap_or(paths.len());
                paths.make_room(1, GFP_KERNEL)?;
                paths
                    .insert_within_capacity(place, (rank, path))
                    .map_err(|_| ENOMEM)?;
            }
        }
        let mut sorted = KVec::with_capacity(paths.len(), GFP_KERNEL)?;
        for (_, path) in paths {
            sorted.append(path, GFP_KERNEL)?;
        }
        Ok(sorted)
    }

    /// The paths in the network of another one, its own included, for links of the same group: of
    /// ports in the same physical network, if it has a name, or else in the same subnet; of the
    /// addresses of a port, one in the subnet of `near` if there is any. May sleep.
    pub(crate) fn beside(&self, path: &Path, near: IpAddr) -> Result<KVec<Path>> {
        let allowed = match path.gid_kind {
            GidKind::V1 => Allowed::V1,
            GidKind::V2 => Allowed::V2,
        };
        let mut paths = self.paths(&Want {
            gid: Wanted {
                ifindex: None,
                source: near,
                vlan: path.vlan,
                allowed,
                ..path.want.gid
            },
            ..path.want
        })?;
        for other in paths.iter_mut() {
            other.service = path.service;
            other.want = path.want;
        }
        Ok(paths)
    }

    /// Whether a port is in the physical network that is wanted, if one is.
    fn suits(&self, want: &Want, device: &Device, port: u8) -> bool {
        let named = |id| pnet::of_port(self, device, port).is_some_and(|port| port.id == id);
        want.pnet.is_none_or(named)
    }

    /// Whether there is any device. Any context.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Relaxed) != 0
    }

    /// The address of some port that a namespace may use, always of the same one as long as no device goes. May sleep.
    pub(crate) fn first_mac(&self, namespace: u64) -> Option<Mac> {
        let (devices, net) = (self.list().ok()?, Net::by_id(namespace)?);
        let mut open = devices.iter().filter(|device| device.is_open_to(&net));
        open.find_map(|device| {
            let mut ports = device.ports();
            let ((), first) = ports.find_map(|port| device.best_gid(port, |_| Some(())))?;
            Some(Mac(first.mac))
        })
    }

    /// The best path. May sleep.
    pub(crate) fn find(&self, want: &Want) -> Option<Path> {
        self.paths(want).ok()?.first().cloned()
    }
}

/// Keeps the table in step with the system. Dropping it is as the removal of all devices.
pub(crate) struct Devices {
    /// Before the table, which its callbacks use.
    _registration: ib::Registration<Clients>,
    table: Arc<DeviceTable>,
}

impl Devices {
    /// Finds the devices, and those that come later. Upcalls may come before this returns.
    pub(crate) fn register(upcalls: Arc<dyn DeviceUpcalls>) -> Result<Self> {
        let table = Arc::pin_init(
            pin_init!(DeviceTable {
                pnet <- pnet::Table::new(),
                list <- new_mutex!(KVec::new(), "smc_r::DeviceTable::list"),
                count: Atomic::new(0),
                last_number: Atomic::new(0),
                changes: Changes::new(),
                upcalls,
            }),
            GFP_KERNEL,
        )?;
        Ok(Self {
            _registration: ib::Registration::new(Clients(table.clone()))?,
            table,
        })
    }

    /// The table.
    pub(crate) fn table(&self) -> &Arc<DeviceTable> {
        &self.table
    }
}

/// Where kapi notes the client: C's callback does not say whose it is.
static SLOT: ClientSlot<Clients> = ClientSlot::new();

struct Clients(Arc<DeviceTable>);

impl Client for Clients {
    type Data = Arc<Device>;

    const NAME: &'static CStr = c"smc_r";

    fn slot() -> &'static ClientSlot<Self> {
        &SLOT
    }

    fn add(&self, device: &ib::Device) -> Result<Arc<Self::Data>> {
        if !device.ports().any(|port| device.is_roce(port)) {
            return Err(ENODEV);
        }
        let inner = Inner {
            name: DeviceName(device.name()),
            ib: Some(device.hold()),
            transports: KVec::new(),
            gids: KVec::new(),
        };
        let this = Arc::pin_init(
            pin_init!(Device {
                number: self.0.last_number.fetch_add(1, Relaxed).wrapping_add(1),
                gid_changes: Atomic::new(0),
                drained: Atomic::new(0),
                inner <- new_mutex!(inner, "smc_r::Device::inner"),
            }),
            GFP_KERNEL,
        )?;
        let data = Arc::new(this.clone(), GFP_KERNEL)?;
        let mut list = self.0.list.lock();
        list.append(this, GFP_KERNEL)?;
        self.0.count.store(list.len(), Relaxed);
        self.0.changes.note();
        drop(list);
        self.0.upcalls.ready();
        Ok(data)
    }

    fn watched(&self, data: &Self::Data) {
        // Somebody may have looked through a table already.
        data.note_gids_changed();
    }

    fn remove(&self, _device: &ib::Device, data: Arc<Self::Data>) {
        let gone = {
            let mut list = self.0.list.lock();
            self.0.changes.note();
            let place = list.iter().position(|d| Arc::ptr_eq(d, &data));
            let gone = place.and_then(|place| list.remove(place).ok());
            self.0.count.store(list.len(), Relaxed);
            gone
        };
        drop(gone);
        data.remove(&*self.0.upcalls);
    }

    fn event(&self, data: &Self::Data, event: Event) {
        let upcalls = &self.0.upcalls;
        let port = |port| u8::try_from(port).unwrap_or(0);
        match event {
            Event::PortActive(_) => upcalls.ready(),
            Event::PortError(p) => upcalls.port_error(data, port(p)),
            Event::GidChange(p) => {
                data.note_gids_changed();
                upcalls.gids_changed(data, port(p));
            }
            Event::DeviceFatal => upcalls.fatal(data),
            Event::Other(_) => {}
        }
    }
}
