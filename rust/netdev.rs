// SPDX-License-Identifier: GPL-2.0

//! Network devices: finding them, and what they are like.
//!
//! C header: [`include/linux/netdevice.h`](srctree/include/linux/netdevice.h)

use crate::bindings;
use crate::net::Net;
use core::net::IpAddr;
use core::ptr::NonNull;
use kernel::prelude::*;
use kernel::sync::aref::{
    ARef,
    AlwaysRefCounted, //
};
use kernel::types::Opaque;

/// A network device that exists as long as the reference to it: [`ARef`].
///
/// References must be short-lived: unregistering a device waits for them.
///
/// # Invariants
///
/// The device exists as long as the reference does.
#[repr(transparent)]
pub struct NetDevice(Opaque<bindings::net_device>);

/// A counted reference to a network device.
pub type NetDev = ARef<NetDevice>;

// SAFETY: Devices are used and released on any CPU.
unsafe impl Send for NetDevice {}
// SAFETY: The methods below are thread-safe.
unsafe impl Sync for NetDevice {}

// SAFETY: `dev_hold` and `dev_put` count references; all devices are counted.
unsafe impl AlwaysRefCounted for NetDevice {
    fn inc_ref(&self) {
        // SAFETY: By the type invariant the device exists.
        unsafe { bindings::dev_hold_one(self.as_ptr()) }
    }

    unsafe fn dec_ref(obj: NonNull<Self>) {
        // SAFETY: By the requirements of the function, a reference is owned.
        unsafe { bindings::dev_put_one(obj.as_ptr().cast()) }
    }
}

/// The name of a network device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Name([u8; Name::LEN]);

impl Name {
    /// Room for a name, with a NUL at its end.
    pub const LEN: usize = 16;

    /// Reads a name: `None` if no interface can be called so.
    pub fn new(text: &[u8]) -> Option<Self> {
        let wrong =
            |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, 0 | 0x0b | b'/' | b':');
        if matches!(text, b"" | b"." | b"..") || text.iter().any(wrong) {
            return None;
        }
        let mut name = [0; Self::LEN];
        name.get_mut(..Self::LEN - 1)?
            .get_mut(..text.len())?
            .copy_from_slice(text);
        Some(Self(name))
    }

    /// The name without what follows it.
    pub fn as_bytes(&self) -> &[u8] {
        let len = self.0.iter().take_while(|b| **b != 0).count();
        self.0.get(..len).unwrap_or_default()
    }

    /// The name, padded by NULs.
    pub fn padded(&self) -> &[u8; Name::LEN] {
        &self.0
    }
}

impl NetDevice {
    /// # Safety
    ///
    /// `ptr` is null, or a device with a reference that the result takes over.
    pub(crate) unsafe fn take(ptr: *mut bindings::net_device) -> Option<NetDev> {
        // SAFETY: By the requirements of this function.
        NonNull::new(ptr).map(|dev| unsafe { ARef::from_raw(dev.cast()) })
    }

    pub(crate) fn as_ptr(&self) -> *mut bindings::net_device {
        self.0.get()
    }

    /// Asks on the device's wire who has `destination`, in the name of `source`, an address of ours: who is asked learns
    /// our Ethernet address. Of two families, nothing is asked. Does not wait. Process context or softirq.
    pub fn ask_for(&self, source: IpAddr, destination: IpAddr) {
        let dev = self.as_ptr();
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(to)) => {
                // SAFETY: By the type invariant the device exists.
                unsafe { bindings::ask_for4(dev, source.to_bits(), to.to_bits()) }
            }
            (IpAddr::V6(source), IpAddr::V6(to)) => {
                let (source, to) = (source.octets(), to.octets());
                // SAFETY: As above; both arrays have the 16 bytes that are read.
                unsafe { bindings::ask_for6(dev, source.as_ptr(), to.as_ptr()) }
            }
            _ => {}
        }
    }

    /// The device with an interface index.
    pub fn by_index(net: &Net, ifindex: i32) -> Option<NetDev> {
        // SAFETY: The namespace exists; the reference returned is taken over.
        unsafe { Self::take(bindings::dev_get_by_index(net.as_ptr().cast(), ifindex).cast()) }
    }

    /// The device of a name.
    pub fn by_name(net: &Net, name: &[u8]) -> Option<NetDev> {
        let mut buf = [0_u8; Name::LEN];
        // The last byte stays zero.
        if name.len() >= buf.len() || name.contains(&0) {
            return None;
        }
        buf.get_mut(..name.len())?.copy_from_slice(name);
        // SAFETY: The namespace exists; the reference returned is taken over.
        unsafe {
            Self::take(bindings::dev_get_by_name(net.as_ptr().cast(), buf.as_ptr().cast()).cast())
        }
    }

    /// The interface index.
    pub fn ifindex(&self) -> i32 {
        // SAFETY: By the type invariant the device exists.
        unsafe { bindings::dev_ifindex(self.as_ptr()) }
    }

    /// The name it has now.
    pub fn name(&self) -> Name {
        let mut name = Name([0; Name::LEN]);
        // SAFETY: By the type invariant the device exists; there is room for a name.
        unsafe { bindings::dev_copy_name(self.as_ptr(), name.0.as_mut_ptr().cast()) };
        name
    }

    /// The Ethernet address, if it is that kind of device.
    pub fn mac(&self) -> Option<[u8; 6]> {
        let mut mac = [0; 6];
        // SAFETY: By the type invariant the device exists; there is room for an address.
        unsafe { bindings::dev_mac(self.as_ptr(), mac.as_mut_ptr()) }.then_some(mac)
    }

    /// The VLAN, if it is a device for one.
    pub fn vlan(&self) -> Option<u16> {
        let mut id = 0;
        // SAFETY: By the type invariant the device exists; `id` is valid for writes.
        unsafe { bindings::dev_vlan(self.as_ptr(), &mut id) }.then_some(id)
    }

    /// One of the devices directly below, which are in the order in which they were put there, the first at place 0: of
    /// a VLAN its carrier, of a bond or bridge its ports. Those before it are gone through.
    pub fn lower(&self, place: u32) -> Option<NetDev> {
        // SAFETY: By the type invariant the device exists; what comes is null, or a device with a reference, which is
        // taken over.
        unsafe { Self::take(bindings::dev_lower(self.as_ptr(), place)) }
    }

    /// The namespace it is in. A device may move.
    pub fn net(&self) -> Option<ARef<Net>> {
        let _rcu = kernel::sync::rcu::read_lock();
        // SAFETY: By the type invariant the device exists, and under RCU the namespace it is in.
        unsafe { Net::from_ptr(bindings::dev_net(self.as_ptr())) }.try_get()
    }

    /// The first of its IPv4 addresses that will do, with the length of its prefix. Any context.
    pub fn find_ipv4(&self, will_do: impl FnMut([u8; 4], u8) -> bool) -> Option<([u8; 4], u8)> {
        let fill = |skip, addrs: *mut [u8; 4], lens, max| {
            // SAFETY: By the type invariant the device exists; there is room for `max`.
            unsafe { bindings::dev_ipv4(self.as_ptr(), skip, addrs.cast(), lens, max) }
        };
        find_address(fill, will_do)
    }

    /// The same for IPv6 addresses that are not link-local.
    pub fn find_ipv6(&self, will_do: impl FnMut([u8; 16], u8) -> bool) -> Option<([u8; 16], u8)> {
        let fill = |skip, addrs: *mut [u8; 16], lens, max| {
            // SAFETY: By the type invariant the device exists; there is room for `max`.
            unsafe { bindings::dev_ipv6(self.as_ptr(), skip, addrs.cast(), lens, max) }
        };
        find_address(fill, will_do)
    }
}

/// Goes through a list of addresses, which may change meanwhile, a few at a time. `fill` writes as many of them as there is
/// room for, and their prefix lengths, behind those that it skips, and gives their number.
fn find_address<const N: usize>(
    fill: impl Fn(c_uint, *mut [u8; N], *mut u8, c_uint) -> c_uint,
    mut will_do: impl FnMut([u8; N], u8) -> bool,
) -> Option<([u8; N], u8)> {
    const AT_ONCE: usize = 16;
    let mut seen: c_uint = 0;
    loop {
        let mut addrs = [[0; N]; AT_ONCE];
        let mut lens = [0; AT_ONCE];
        let n = fill(
            seen,
            addrs.as_mut_ptr(),
            lens.as_mut_ptr(),
            AT_ONCE as c_uint,
        );
        for (addr, len) in addrs.iter().zip(&lens).take(n as usize) {
            if will_do(*addr, *len) {
                return Some((*addr, *len));
            }
        }
        if (n as usize) < AT_ONCE {
            return None;
        }
        seen = seen.saturating_add(n);
    }
}
