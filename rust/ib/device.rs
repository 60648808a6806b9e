// SPDX-License-Identifier: GPL-2.0

//! Devices, their ports and GID tables.

use crate::bindings;
use crate::net::Net;
use crate::netdev::{
    NetDev,
    NetDevice, //
};
use core::ptr::NonNull;
use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    prelude::*,
    sync::{
        aref::{
            ARef,
            AlwaysRefCounted, //
        },
        rcu, //
    },
    types::Opaque, //
};

/// A registered RDMA device.
///
/// # Invariants
///
/// While a `&Device` exists, somebody holds a registration reference (`ib_device_try_get`), so
/// the device stays registered and its resources may be used.
#[repr(transparent)]
pub struct Device(Opaque<bindings::ib_device>);

// SAFETY: `struct ib_device` is made for use from several threads; its verbs lock by themselves.
unsafe impl Send for Device {}
// SAFETY: As above.
unsafe impl Sync for Device {}

// SAFETY: `ib_device_try_get` and `ib_device_put` count registration references; the device stays
// registered, and so valid, while the count is not zero.
unsafe impl AlwaysRefCounted for Device {
    fn inc_ref(&self) {
        // SAFETY: By the invariant the count is not zero, so this always succeeds.
        unsafe { bindings::ib_device_try_get(self.as_raw()) };
    }

    unsafe fn dec_ref(obj: NonNull<Self>) {
        // SAFETY: The caller gives up a reference that it holds.
        unsafe { bindings::ib_device_put(obj.as_ptr().cast()) };
    }
}

/// Which encapsulation packets with a GID get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand's or RoCE version 1: an own EtherType.
    V1,
    /// RoCE version 2: UDP.
    V2,
}

/// The network device behind a GID or a port, as it was when asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Netdev {
    /// The interface index, unique in its namespace only.
    pub ifindex: u32,
    /// The cookie of the namespace the interface is in.
    pub namespace: u64,
    /// The name, padded with zeroes.
    pub name: [u8; 16],
}

impl Netdev {
    /// # Safety
    ///
    /// `ndev` must be valid during the call.
    unsafe fn from_raw(ndev: *mut bindings::net_device) -> Self {
        let mut name = [0; 16];
        // SAFETY: The caller keeps `ndev` valid. A concurrent rename may tear the copy, which is
        // harmless bytes.
        let raw = unsafe { &raw const (*ndev).name }.cast::<u8>();
        for (i, byte) in name.iter_mut().enumerate().take(15) {
            // SAFETY: `name` of `struct net_device` has 16 bytes, `i` is below 15.
            *byte = unsafe { raw.add(i).read_volatile() };
        }
        Self {
            // SAFETY: The caller keeps `ndev` valid.
            ifindex: unsafe { (*ndev).ifindex } as u32,
            // SAFETY: The caller keeps `ndev` valid, and a network device is always in a
            // namespace.
            namespace: unsafe { bindings::ib_netdev_net_cookie(ndev) },
            name,
        }
    }
}

/// One entry of a port's GID table.
#[derive(Clone, Copy, Debug)]
pub struct GidEntry {
    /// The index, as an address vector names it.
    pub index: u8,
    /// The GID.
    pub gid: [u8; 16],
    /// The encapsulation.
    pub kind: GidKind,
    /// The network device that has the address this GID stands for.
    pub netdev: Netdev,
    /// The VLAN tag that packets with this GID carry.
    pub vlan: Option<u16>,
    /// The Ethernet address that they come from.
    pub mac: [u8; 6],
}

/// What a port is able to at the moment.
#[derive(Clone, Copy, Debug)]
pub struct PortAttr {
    /// Packets go through.
    pub active: bool,
    /// The largest path MTU as the code 1 (256 bytes) to 5 (4096 bytes).
    pub mtu: u8,
    /// Length of the GID table.
    pub gids: u32,
}

impl Device {
    /// # Safety
    ///
    /// A registration reference to `raw` must be held for all of `'a`.
    pub(super) unsafe fn from_raw<'a>(raw: *mut bindings::ib_device) -> &'a Self {
        // SAFETY: The type is transparent, the caller keeps the device.
        // INVARIANT: The caller guarantees the reference.
        unsafe { &*raw.cast() }
    }

    pub(super) fn as_raw(&self) -> *mut bindings::ib_device {
        self.0.get()
    }

    /// Takes a reference of its own.
    pub fn hold(&self) -> ARef<Self> {
        self.into()
    }

    /// The device's name, padded with zeroes.
    pub fn name(&self) -> [u8; 64] {
        let mut name = [0; 64];
        // SAFETY: The device is valid; a concurrent rename may tear the copy, which is harmless.
        let raw = unsafe { &raw const (*self.as_raw()).name }.cast::<u8>();
        for (i, byte) in name.iter_mut().enumerate().take(63) {
            // SAFETY: `name` of `struct ib_device` has 64 bytes, `i` is below 63.
            *byte = unsafe { raw.add(i).read_volatile() };
        }
        name
    }

    /// The name of the device it is part of, on that one's bus, padded with zeroes. Software devices
    /// have none.
    pub fn parent_name(&self) -> Option<[u8; 64]> {
        let mut name = [0; 64];
        let len = name.len();
        // SAFETY: The device is valid, there is room for that many bytes.
        unsafe { bindings::ib_parent_name(self.as_raw(), name.as_mut_ptr().cast(), len) }
            .then_some(name)
    }

    /// Vendor and device number, if it is part of a PCI device.
    pub fn pci(&self) -> Option<(u16, u16)> {
        let mut pci = bindings::kapi_pci::default();
        // SAFETY: The device is valid, `pci` is ours.
        unsafe { bindings::ib_pci(self.as_raw(), &mut pci) }.then_some((pci.vendor, pci.device))
    }

    /// May it be used from the namespace? Devices are shared by all, unless the administrator has
    /// bound them to one each.
    pub fn is_in(&self, net: &Net) -> bool {
        // SAFETY: The device is valid, the namespace exists.
        unsafe { bindings::rdma_dev_access_netns(self.as_raw(), net.as_ptr().cast()) }
    }

    /// The network device that a port is bound to, as such.
    pub fn netdev(&self, port: u32) -> Option<NetDev> {
        // SAFETY: The device is valid; the port number is checked by the callee, and the reference
        // that it returns is taken over.
        unsafe { NetDevice::take(bindings::ib_device_get_netdev(self.as_raw(), port).cast()) }
    }

    /// The numbers of the ports.
    pub fn ports(&self) -> core::ops::RangeInclusive<u32> {
        // SAFETY: The device is valid.
        let first = unsafe { bindings::rdma_start_port(self.as_raw()) };
        // SAFETY: As above.
        let last = unsafe { bindings::rdma_end_port(self.as_raw()) };
        first..=last
    }

    /// Whether the port speaks RoCE, of either version.
    pub fn is_roce(&self, port: u32) -> bool {
        // SAFETY: The device is valid and the port exists.
        self.ports().contains(&port) && unsafe { bindings::rdma_protocol_roce(self.as_raw(), port) }
    }

    /// Whether one message can be received into two pieces of memory.
    pub fn receives_in_two(&self) -> bool {
        // SAFETY: The device is valid, the attributes were filled in at registration.
        unsafe { (*self.as_raw()).attrs.max_recv_sge >= 2 }
    }

    /// The largest number of pages one memory region takes.
    pub fn max_region_pages(&self) -> u32 {
        // SAFETY: The device is valid, the attributes were filled in at registration.
        unsafe { (*self.as_raw()).attrs.max_fast_reg_page_list_len }
    }

    /// The largest number of work requests a queue takes.
    pub fn max_work_requests(&self) -> u32 {
        // SAFETY: The device is valid, the attributes were filled in at registration.
        let max = unsafe { (*self.as_raw()).attrs.max_qp_wr };
        // Signed in some kernels, unsigned in others.
        u32::try_from(i64::from(max)).unwrap_or(0)
    }

    /// Asks for the state of a port. May sleep.
    pub fn port(&self, port: u32) -> Result<PortAttr> {
        let mut attr = pin_init::zeroed::<bindings::ib_port_attr>();
        // SAFETY: The device is valid, `attr` is ours; the port number is checked by the callee.
        to_result(unsafe { bindings::ib_query_port(self.as_raw(), port, &mut attr) })?;
        Ok(PortAttr {
            active: attr.state == bindings::ib_port_state_IB_PORT_ACTIVE,
            mtu: attr.active_mtu.clamp(1, 5) as u8,
            gids: attr.gid_tbl_len.max(0) as u32,
        })
    }

    /// The network device a port is bound to.
    pub fn port_netdev(&self, port: u32) -> Option<Netdev> {
        // SAFETY: The device is valid; the port number is checked by the callee.
        let ndev = unsafe { bindings::ib_device_get_netdev(self.as_raw(), port) };
        if ndev.is_null() {
            return None;
        }
        // SAFETY: A reference was returned with `ndev`.
        let netdev = unsafe { Netdev::from_raw(ndev) };
        // SAFETY: Gives up that reference; `ndev` is not used any more.
        unsafe { bindings::ib_gid_netdev_put(ndev) };
        Some(netdev)
    }

    /// Reads an entry of the GID table, if it is in use.
    pub fn gid(&self, port: u32, index: u8) -> Option<GidEntry> {
        // SAFETY: The device is valid; port and index are checked by the callee.
        let attr = unsafe { bindings::rdma_get_gid_attr(self.as_raw(), port, index.into()) };
        let attr = from_err_ptr(attr.cast_mut()).ok()?;
        // SAFETY: A reference was returned with `attr`.
        let entry = unsafe { Self::read_gid(attr) };
        // SAFETY: Gives up that reference; `attr` is not used any more.
        unsafe { bindings::rdma_put_gid_attr(attr) };
        entry
    }

    /// # Safety
    ///
    /// A reference to `attr` must be held.
    unsafe fn read_gid(attr: *const bindings::ib_gid_attr) -> Option<GidEntry> {
        let mut vlan = 0xffff;
        let mut mac = [0; 6];
        // SAFETY: The caller keeps `attr`; both places have the size the callee expects.
        to_result(unsafe { bindings::rdma_read_gid_l2_fields(attr, &mut vlan, mac.as_mut_ptr()) })
            .ok()?;
        let netdev = {
            let _guard = rcu::read_lock();
            // SAFETY: The caller keeps `attr`, and the RCU read lock is held.
            let ndev = unsafe { bindings::rdma_read_gid_attr_ndev_rcu(attr) };
            from_err_ptr(ndev)
                .ok()
                .filter(|ndev| !ndev.is_null())
                // SAFETY: The RCU read lock keeps the device.
                .map(|ndev| unsafe { Netdev::from_raw(ndev) })?
        };
        // SAFETY: The caller keeps `attr`; entries do not change once they are published.
        let attr = unsafe { &*attr };
        Some(GidEntry {
            index: u8::try_from(attr.index).ok()?,
            // SAFETY: Any bytes are a GID.
            gid: unsafe { attr.gid.raw },
            kind: match attr.gid_type {
                bindings::ib_gid_type_IB_GID_TYPE_ROCE_UDP_ENCAP => GidKind::V2,
                bindings::ib_gid_type_IB_GID_TYPE_ROCE => GidKind::V1,
                _ => return None,
            },
            netdev,
            vlan: (vlan < 0x1000).then_some(vlan),
            mac,
        })
    }
}
