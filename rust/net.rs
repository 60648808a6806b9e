// SPDX-License-Identifier: GPL-2.0

//! Network namespaces.
//!
//! C header: [`include/net/net_namespace.h`](srctree/include/net/net_namespace.h)

use crate::bindings;
use core::net::{IpAddr, Ipv6Addr};
use core::ptr::NonNull;
use kernel::sync::aref::{
    ARef,
    AlwaysRefCounted, //
};
use kernel::types::Opaque;

/// The first step of a way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hop {
    /// The destination is on the same link.
    Direct,
    /// A gateway with that address.
    Gateway(IpAddr),
}

/// How packets to a destination leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// The first step.
    pub hop: Hop,
    /// The Ethernet address of the gateway, if there is one and it is known.
    pub mac: Option<[u8; 6]>,
}

/// A network namespace.
///
/// A counted reference keeps the namespace from being torn down, not just its memory: whatever
/// belongs to a namespace must not hold one, or it keeps the namespace, which keeps it.
///
/// # Invariants
///
/// The namespace exists as long as the reference does.
#[repr(transparent)]
pub struct Net(Opaque<bindings::net>);

// SAFETY: Namespaces are used and released on any CPU.
unsafe impl Send for Net {}
// SAFETY: The methods below are thread-safe.
unsafe impl Sync for Net {}

// SAFETY: `get_net` and `put_net` count references; all namespaces are counted.
unsafe impl AlwaysRefCounted for Net {
    fn inc_ref(&self) {
        // SAFETY: By the type invariant the namespace exists. Of one in its teardown, which some callbacks get, nobody makes
        // a reference but by `try_get`, which gives none: here the count would be found to be zero, and reported.
        unsafe { bindings::net_hold(self.as_ptr()) };
    }

    unsafe fn dec_ref(obj: NonNull<Self>) {
        // SAFETY: By the requirements of the function, a reference is owned.
        unsafe { bindings::net_put(obj.as_ptr().cast()) }
    }
}

impl Net {
    /// # Safety
    ///
    /// The namespace exists for the lifetime of the result.
    pub(crate) unsafe fn from_ptr<'a>(ptr: *mut bindings::net) -> &'a Self {
        // SAFETY: By the requirements of this function; the type is transparent.
        unsafe { &*ptr.cast() }
    }

    pub(crate) fn as_ptr(&self) -> *mut bindings::net {
        self.0.get()
    }

    /// The namespace that is there from the start.
    pub fn init() -> &'static Self {
        // SAFETY: It exists for ever.
        unsafe { Self::from_ptr(bindings::net_init()) }
    }

    /// A reference, unless the namespace is on its way out.
    pub fn try_get(&self) -> Option<ARef<Self>> {
        // SAFETY: By the type invariant the namespace exists.
        let ptr = NonNull::new(unsafe { bindings::net_hold_live(self.as_ptr()) })?;
        // SAFETY: The reference was just taken.
        Some(unsafe { ARef::from_raw(ptr.cast()) })
    }

    /// The namespace with the number [`Net::id`], unless it is on its way out.
    pub fn by_id(id: u64) -> Option<ARef<Self>> {
        // SAFETY: May be called from anywhere.
        let ptr = NonNull::new(unsafe { bindings::net_find(id) })?;
        // SAFETY: The reference was just taken.
        Some(unsafe { ARef::from_raw(ptr.cast()) })
    }

    /// A number that no other namespace has or had since boot.
    pub fn id(&self) -> u64 {
        // SAFETY: By the type invariant the namespace exists.
        unsafe { bindings::net_id(self.as_ptr()) }
    }

    /// How packets between two addresses of one family leave: through the interface with that index,
    /// or with none through whichever one the host takes. If the Ethernet address of a gateway is
    /// not known, it is asked for. None if there is no route; but an interface that no route of IPv4
    /// leads through is taken to lead to the destination itself. Process context.
    pub fn route(&self, source: IpAddr, destination: IpAddr, ifindex: Option<u32>) -> Option<Way> {
        let net = self.as_ptr();
        let ifindex = ifindex.unwrap_or(0);
        let mut hop = bindings::kapi_hop::default();
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let (source, destination) = (source.to_bits(), destination.to_bits());
                // SAFETY: By the type invariant the namespace exists; `hop` may be written.
                unsafe { bindings::route_hop4(net, source, destination, ifindex, &mut hop) };
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let (source, to) = (source.octets(), destination.octets());
                // SAFETY: As above; both arrays have the 16 bytes that are read.
                unsafe {
                    bindings::route_hop6(net, source.as_ptr(), to.as_ptr(), ifindex, &mut hop)
                };
            }
            _ => return None,
        };
        Some(Way {
            hop: match hop.kind {
                bindings::kapi_hop_kind_KAPI_HOP_DIRECT => Hop::Direct,
                bindings::kapi_hop_kind_KAPI_HOP_GATEWAY => {
                    Hop::Gateway(Ipv6Addr::from(hop.gateway).to_canonical())
                }
                _ => return None,
            },
            mac: hop.known.then_some(hop.mac),
        })
    }
}

impl PartialEq for Net {
    fn eq(&self, other: &Self) -> bool {
        core::ptr::eq(self, other)
    }
}

impl Eq for Net {}
