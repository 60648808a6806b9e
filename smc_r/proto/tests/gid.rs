// SPDX-License-Identifier: GPL-2.0

//! Which GIDs are used: a row for each rule.

use core::net::IpAddr;
use smc_proto::{
    gid::{
        best,
        Allowed,
        Candidate,
        Roce,
        Wanted, //
    },
    wire::Gid, //
};

fn addr(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A GID of RoCE version 2 on the interface of the connection; IPv4 addresses are written as such.
fn v2(text: &str) -> Candidate {
    Candidate {
        gid: match addr(text) {
            IpAddr::V4(addr) => Gid::from_ipv4(addr.octets()),
            IpAddr::V6(addr) => Gid(addr.octets()),
        },
        roce: Roce::V2,
        namespace: 1,
        ifindex: 2,
        vlan: None,
        named: false,
    }
}

fn v1(text: &str) -> Candidate {
    Candidate {
        roce: Roce::V1,
        ..v2(text)
    }
}

/// Its port is in the network by name.
fn named(candidate: Candidate) -> Candidate {
    Candidate {
        named: true,
        ..candidate
    }
}

/// On another interface of the same namespace.
fn beside(candidate: Candidate) -> Candidate {
    Candidate {
        ifindex: 3,
        ..candidate
    }
}

/// In another namespace, where another interface has the same index.
fn outside(candidate: Candidate) -> Candidate {
    Candidate {
        namespace: 9,
        ..candidate
    }
}

fn tagged(vlan: u16, candidate: Candidate) -> Candidate {
    Candidate {
        vlan: Some(vlan),
        ..candidate
    }
}

/// For the first link of a connection from this address.
fn from(text: &str, prefix_len: u8) -> Wanted {
    Wanted {
        namespace: 1,
        ifindex: Some(2),
        vlan: None,
        source: addr(text),
        prefix_len,
        allowed: Allowed::Any,
    }
}

fn only(allowed: Allowed, wanted: Wanted) -> Wanted {
    Wanted { allowed, ..wanted }
}

fn in_vlan(vlan: u16, wanted: Wanted) -> Wanted {
    Wanted {
        vlan: Some(vlan),
        ..wanted
    }
}

/// For a further link.
fn further(wanted: Wanted) -> Wanted {
    Wanted {
        ifindex: None,
        ..wanted
    }
}

#[test]
fn what_is_used_and_what_is_not() {
    let v4 = from("192.0.2.1", 24);
    let v6 = from("2001:db8::1", 64);
    let (own, link_local) = (v2("192.0.2.1"), "fe80::1");
    let (yes, no) = (true, false);
    #[rustfmt::skip]
    let rows = [
        // The version of RoCE.
        ("version 1", yes, v4, v1(link_local)),
        ("version 2", yes, v4, own),
        ("1 if 1 is allowed", yes, only(Allowed::V1, v4), v1(link_local)),
        ("2 if 1 is allowed", no, only(Allowed::V1, v4), own),
        ("1 if 2 is allowed", no, only(Allowed::V2, v4), v1("192.0.2.1")),
        ("2 if 2 is allowed", yes, only(Allowed::V2, v4), own),
        // Version 1 of it has no subnets.
        ("another IPv4 address as version 1", yes, v4, v1("198.51.100.1")),
        ("an IPv6 address as version 1", yes, v4, v1("2001:db8:0:1::1")),
        // Version 2 has.
        ("the last of the subnet", yes, v4, v2("192.0.2.255")),
        ("the first behind it", no, v4, v2("192.0.3.0")),
        ("the last before it", no, v4, v2("192.0.1.255")),
        ("a longer prefix, inside", yes, from("192.0.2.1", 31), v2("192.0.2.0")),
        ("a longer prefix, outside", no, from("192.0.2.1", 31), v2("192.0.2.2")),
        ("a prefix of one address, itself", yes, from("192.0.2.1", 32), own),
        ("a prefix of one address, another", no, from("192.0.2.1", 32), v2("192.0.2.0")),
        ("no prefix, itself", yes, from("192.0.2.1", 0), own),
        ("no prefix, another", no, from("192.0.2.1", 0), v2("192.0.2.2")),
        ("IPv6, itself", yes, v6, v2("2001:db8::1")),
        ("IPv6, in the subnet", yes, v6, v2("2001:db8::ffff:0:0:2")),
        ("IPv6, behind it", no, v6, v2("2001:db8:0:1::")),
        ("IPv6, no prefix, itself", yes, from("2001:db8::1", 0), v2("2001:db8::1")),
        ("IPv6, no prefix, another", no, from("2001:db8::1", 0), v2("2001:db8::2")),
        ("IPv6, link-local", no, v6, v2(link_local)),
        ("IPv6, an IPv4 address", no, v6, own),
        ("IPv4, link-local", no, v4, v2(link_local)),
        ("IPv4, an IPv6 address", no, v4, v2("2001:db8::1")),
        ("IPv4, with zeroes in front", no, v4, v2("::192.0.2.1")),
        // A network by its name has several subnets.
        ("named, another subnet", yes, v4, named(v2("198.51.100.1"))),
        ("named, another family", yes, v4, named(v2("2001:db8::1"))),
        ("named, the first link-local", no, v4, named(v2("fe80::"))),
        ("named, the last link-local", no, v4, named(v2("febf::1"))),
        ("named, before link-local", yes, v4, named(v2("fe7f::1"))),
        ("named, behind link-local", yes, v4, named(v2("fec0::1"))),
        ("named, zero", no, v4, named(v2("::"))),
        // Other interfaces.
        ("another interface", no, v4, beside(own)),
        ("another interface, version 1", no, v4, beside(v1(link_local))),
        ("another interface, named", yes, v4, beside(named(own))),
        ("another interface, named, version 1", yes, v4, beside(named(v1(link_local)))),
        ("another namespace", no, v4, outside(own)),
        ("another namespace, version 1", no, v4, outside(v1(link_local))),
        ("another namespace, named", yes, v4, outside(named(own))),
        ("another namespace, named, version 1", yes, v4, outside(named(v1(link_local)))),
        // VLANs. What the interface itself says counts.
        ("its own VLAN", yes, in_vlan(5, v4), tagged(5, own)),
        ("its own, told otherwise", yes, v4, tagged(5, own)),
        ("its own, told otherwise, version 1", yes, v4, tagged(5, v1(link_local))),
        ("another interface, same VLAN", yes, in_vlan(5, v4), beside(named(tagged(5, own)))),
        ("another interface, another VLAN", no, in_vlan(5, v4), beside(named(tagged(6, own)))),
        ("another interface, no VLAN", no, in_vlan(5, v4), beside(named(own))),
        ("another interface, in a VLAN", no, v4, beside(named(tagged(5, own)))),
        ("another VLAN, version 1", no, v4, beside(named(tagged(5, v1(link_local))))),
        ("another namespace, another VLAN", no, v4, outside(named(tagged(5, own)))),
        // Further links.
        ("further, in the subnet", yes, further(v4), beside(v2("192.0.2.2"))),
        ("further, another subnet", no, further(v4), beside(v2("198.51.100.1"))),
        ("further, another subnet, named", yes, further(v4), beside(named(v2("198.51.100.1")))),
        ("further, version 1", no, further(v4), v1("192.0.2.1")),
        ("further, version 1, named", yes, further(v4), named(v1(link_local))),
        ("further, version 1, not allowed", no, further(only(Allowed::V2, v4)), named(v1(link_local))),
        ("further, another VLAN", no, further(v4), tagged(5, own)),
        ("further, another VLAN, named", no, further(in_vlan(5, v4)), named(own)),
        ("further, same VLAN", yes, further(in_vlan(5, v4)), tagged(5, own)),
        ("further, another namespace", no, further(v4), outside(own)),
        ("further, another namespace, named", yes, further(v4), outside(named(own))),
    ];
    let wrong = rows.map(|(rule, does, wanted, candidate)| {
        (wanted.rank(&candidate).is_some() != does).then_some(rule)
    });
    let wrong: Vec<_> = wrong.into_iter().flatten().collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// All that there may be for a connection, the best first.
fn ladder([address, near, far, other]: [&str; 4]) -> Vec<(&'static str, Candidate)> {
    let fits = [
        ("version 1", named(v1("fe80::1"))),
        ("its address", named(v2(address))),
        ("its subnet", named(v2(near))),
        ("its network", named(v2(far))),
        ("the other family", named(v2(other))),
    ];
    let places: [fn(Candidate) -> Candidate; 3] = [|own| own, beside, outside];
    let rungs = places.map(|place| fits.map(|(name, candidate)| (name, place(candidate))));
    rungs.into_iter().flatten().collect()
}

/// Of any two the one that is further up is taken, whichever comes first in the table.
fn is_in_order(wanted: Wanted, ladder: &[(&str, Candidate)]) {
    let mut wrong = vec![];
    for (i, upper) in ladder.iter().enumerate() {
        for lower in &ladder[i + 1..] {
            for pair in [[upper, lower], [lower, upper]] {
                let found = best(pair.into_iter(), |(_, candidate)| wanted.rank(candidate));
                if !found.is_some_and(|(_, found)| core::ptr::eq(found, upper)) {
                    wrong.push(pair);
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn what_is_preferred() {
    let v4 = ladder(["192.0.2.1", "192.0.2.2", "198.51.100.1", "2001:db8::1"]);
    let v6 = ladder(["2001:db8::1", "2001:db8::2", "2001:db8:0:1::1", "192.0.2.1"]);
    is_in_order(from("192.0.2.1", 24), &v4);
    is_in_order(from("2001:db8::1", 64), &v6);
    // For further links all interfaces of the namespace are alike.
    let further_v4 = [&v4[..5], &v4[10..]].concat();
    is_in_order(further(from("192.0.2.1", 24)), &further_v4);
    let ranks = [&v4[0], &v4[5]].map(|(_, it)| further(from("192.0.2.1", 24)).rank(it));
    assert_eq!(ranks[0], ranks[1]);
}

#[test]
fn the_first_of_equals_is_taken() {
    let table = [
        v2("198.51.100.1"),
        v2("192.0.2.3"),
        v2("192.0.2.2"),
        v1("fe80::1"),
        v1("fe80::2"),
    ];
    let wanted = from("192.0.2.1", 24);
    let found = |wanted: Wanted| {
        let found = best(table.iter().enumerate(), |(_, it)| wanted.rank(it));
        found.map(|(_, (place, _))| place)
    };
    assert_eq!(found(wanted), Some(3));
    assert_eq!(found(only(Allowed::V2, wanted)), Some(1));
    assert_eq!(found(only(Allowed::V1, wanted)), Some(3));
    assert_eq!(found(only(Allowed::V2, from("203.0.113.1", 24))), None);
}
