// SPDX-License-Identifier: GPL-2.0

//! Which GIDs of the ports a link can use, and which one is best.
//!
//! RFC 7609 names no version of RoCE. Version 1 of SMC-R takes GIDs of RoCE version 1 as Linux does, and
//! those of version 2 where a port has no other, as software RoCE. Version 2 takes those of RoCE version 2.

use crate::wire::Gid;
use core::net::{
    IpAddr,
    Ipv6Addr, //
};

/// Versions of RoCE, by which packets with a GID are encapsulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Roce {
    /// An EtherType of its own. The GID does not say which network it is in.
    V1,
    /// UDP. The GID is an IP address.
    V2,
}

/// Which versions of RoCE will do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allowed {
    /// Version 1, or where there is none of it version 2.
    Any,
    /// Version 1.
    V1,
    /// Version 2.
    V2,
}

/// A GID that could be used.
#[derive(Debug, Clone, Copy)]
pub struct Candidate {
    /// The GID.
    pub gid: Gid,
    /// How its packets are encapsulated.
    pub roce: Roce,
    /// The namespace of the interface that has it.
    pub namespace: u64,
    /// The index of the interface, unique in its namespace only.
    pub ifindex: u32,
    /// The VLAN of its packets.
    pub vlan: Option<u16>,
    /// Whether its port is known to be in the physical network of the connection's interface, since
    /// both have the name of it.
    pub named: bool,
}

/// What a GID must be like.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// The namespace of the connection.
    pub namespace: u64,
    /// The interface of the connection; None for further links, for which any in its network will do.
    pub ifindex: Option<u32>,
    /// The VLAN of the connection's packets.
    pub vlan: Option<u16>,
    /// Our address in the connection, or another one in whose subnet GIDs are to be.
    pub source: IpAddr,
    /// The length of that subnet's prefix.
    pub prefix_len: u8,
    /// Which versions of RoCE will do.
    pub allowed: Allowed,
}

/// How well a GID does: more is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank(Place, Fit);

/// Where the interface of a GID is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    OtherNamespace,
    SameNamespace,
    /// It is one that is wanted.
    Wanted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    /// RoCE version 2, in the same network by its name alone, with an address of the other family. A peer
    /// chooses likewise, and no way leads from one family to the other.
    OtherFamily,
    /// RoCE version 2, in the same network by its name alone.
    Network,
    /// RoCE version 2, in the subnet.
    Subnet,
    /// RoCE version 2, the address itself.
    Address,
    /// RoCE version 1.
    V1,
}

impl Wanted {
    /// How well a GID does; None is not at all.
    pub fn rank(&self, candidate: &Candidate) -> Option<Rank> {
        let place = match self.ifindex {
            _ if candidate.namespace != self.namespace => Place::OtherNamespace,
            Some(ifindex) if candidate.ifindex != ifindex => Place::SameNamespace,
            _ => Place::Wanted,
        };
        let is_own = place == Place::Wanted && self.ifindex.is_some();
        // Another interface has to be in the same VLAN.
        if !is_own && candidate.vlan != self.vlan {
            return None;
        }
        if place != Place::Wanted && !candidate.named {
            return None;
        }
        let fit = match (candidate.roce, self.allowed) {
            (Roce::V1, Allowed::V2) | (Roce::V2, Allowed::V1) => None,
            (Roce::V1, _) => (is_own || candidate.named).then_some(Fit::V1),
            (Roce::V2, _) => self.fit_of_address(candidate),
        };
        Some(Rank(place, fit?))
    }

    fn fit_of_address(&self, candidate: &Candidate) -> Option<Fit> {
        let (source, before) = match self.source {
            // A GID writes an IPv4 address as IPv6 does.
            IpAddr::V4(addr) => (addr.to_ipv6_mapped(), 96),
            IpAddr::V6(addr) => (addr, 0),
        };
        let gid = Ipv6Addr::from(candidate.gid.0);
        let same = (source.to_bits() ^ gid.to_bits()).leading_zeros();
        // A subnet without a prefix would be the whole world.
        let subnet = Some(self.prefix_len).filter(|len| *len != 0);
        if gid == source {
            Some(Fit::Address)
        } else if subnet.is_some_and(|len| same >= u32::from(len).saturating_add(before)) {
            Some(Fit::Subnet)
        } else if !candidate.named || gid.is_unicast_link_local() || gid.is_unspecified() {
            None
        } else if gid.to_ipv4_mapped().is_some() == source.to_ipv4_mapped().is_some() {
            Some(Fit::Network)
        } else {
            Some(Fit::OtherFamily)
        }
    }
}

/// The item of the best rank, the first of equals. Those without a rank are none.
pub fn best<T, R: Ord>(
    items: impl Iterator<Item = T>,
    rank: impl Fn(&T) -> Option<R>,
) -> Option<(R, T)> {
    let ranked = items.filter_map(|item| Some((rank(&item)?, item)));
    ranked.reduce(|best, next| if next.0 > best.0 { next } else { best })
}
