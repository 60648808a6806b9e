// SPDX-License-Identifier: GPL-2.0

//! Each command's output for people.

use super::own::Peer;
use super::table::{address, bytes, gid, pairs, table};
use super::Status;
use crate::model::device::Device;
use crate::model::group::{Group, Link};
use crate::model::own::FailedPeer;
use crate::model::own::{Drained, Faults, Rule};
use crate::model::socket::{Cursor, SocketInfo};
use crate::model::stats::{Buckets, Buffers, Stats, Technology, SIZES};
use crate::model::system::PnetEntry;

/// What is shown where there is nothing.
const NONE: &str = "-";

fn or_none<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| NONE.to_string(), |value| value.to_string())
}

fn yes(value: bool) -> &'static str {
    if value {
        "yes"
    } else {
        "no"
    }
}

pub(super) fn switch(value: Option<bool>) -> &'static str {
    match value {
        Some(true) => "on",
        Some(false) => "off",
        None => NONE,
    }
}

/// Counters of what peers did wrong, and of what is in their way.
pub(super) fn faults(faults: &Faults) -> String {
    pairs(&[
        (
            "Connections aborted",
            faults.connections_aborted.to_string(),
        ),
        ("Links broken", faults.links_broken.to_string()),
        ("CDC messages dropped", faults.cdc_dropped.to_string()),
        ("LLC messages dropped", faults.llc_dropped.to_string()),
        ("LLC requests refused", faults.llc_refused.to_string()),
        ("Links lost", faults.links_lost.to_string()),
        ("Link groups lost", faults.groups_lost.to_string()),
        ("Handshakes failed", faults.handshakes_failed.to_string()),
        (
            "Links without a route",
            faults.links_without_route.to_string(),
        ),
    ])
}

pub(super) fn status(status: &Status) -> String {
    let system = &status.system;
    let ueids = if status.ueids.is_empty() {
        NONE.into()
    } else {
        status.ueids.join(", ")
    };
    pairs(&[
        (
            "Module",
            match (&status.module, &status.module_version) {
                (Some(module), Some(version)) => format!("{module} {version}"),
                (module, _) => or_none(module.as_ref()),
            },
        ),
        ("Version", format!("{}.{}", system.version, system.release)),
        ("Host name", or_none(system.host.as_ref())),
        ("SMC-Rv2", yes(system.smcr_v2).into()),
        ("User EIDs", ueids),
        ("Handshake limit", switch(status.handshake_limit).into()),
        (
            "RDMA devices",
            format!("{}, active ports {}", status.devices, status.active_ports),
        ),
        ("Link groups", status.groups.to_string()),
        (
            "Links",
            format!("{}, active {}", status.links, status.active_links),
        ),
        ("Connections", status.connections.to_string()),
        (
            "Handshakes",
            format!(
                "{} SMC-R, {} fallback to TCP, {} failed",
                status.handshakes, status.fallbacks, status.handshake_errors
            ),
        ),
    ])
}

pub(super) fn groups(groups: &[Group], width: Option<u16>) -> String {
    let rows = groups
        .iter()
        .map(|group| {
            let v2 = group.v2.as_ref();
            vec![
                group.id.clone(),
                group.role.to_string(),
                format!("v{}", group.version()),
                group.kind.to_string(),
                group.connections.to_string(),
                or_none(group.sndbuf_bytes.map(bytes)),
                or_none(group.rmb_bytes.map(bytes)),
                or_none(group.pnet_id.as_ref()),
                or_none((group.vlan_id != 0).then_some(group.vlan_id)),
                or_none(v2.and_then(|v2| v2.eid.as_ref())),
                or_none(v2.and_then(|v2| v2.peer_host.as_ref())),
            ]
        })
        .collect();
    let titles = [
        "GROUP", "ROLE", "VER", "TYPE", ">CONNS", ">SNDBUF", ">RMB", "PNETID", "VLAN", "EID",
        "PEER",
    ];
    table(&titles, rows, width)
}

pub(super) fn links(links: &[Link], width: Option<u16>) -> String {
    let rows = links
        .iter()
        .map(|link| {
            vec![
                link.group.clone(),
                link.id.to_string(),
                link.state.to_string(),
                format!("{}/{}", link.device, link.port),
                or_none(link.interface.as_ref()),
                link.connections.to_string(),
                link.uid.clone(),
                link.peer_uid.clone(),
                gid(&link.gid),
                gid(&link.peer_gid),
            ]
        })
        .collect();
    let titles = [
        "GROUP", "LINK", "STATE", "DEVICE", "IFACE", ">CONNS", "UID", "PEER UID", "GID", "PEER GID",
    ];
    table(&titles, rows, width)
}

pub(super) fn devices(devices: &[Device], width: Option<u16>) -> String {
    let mut rows = Vec::new();
    for device in devices {
        let head = [device.name.clone()];
        let tail = [
            yes(device.critical).into(),
            or_none(device.pci.as_ref().map(|pci| &pci.id)),
        ];
        if device.ports.is_empty() {
            let ports = std::iter::repeat_n(NONE.to_string(), 5);
            rows.push(
                head.iter()
                    .cloned()
                    .chain(ports)
                    .chain(tail.iter().cloned())
                    .collect(),
            );
        }
        for port in &device.ports {
            let id = port.pnet_id.as_ref();
            let by_user = if port.pnet_id_by_user { " (user)" } else { "" };
            let ports = [
                port.port.to_string(),
                if port.active { "active" } else { "inactive" }.into(),
                or_none(port.interface.as_ref()),
                port.links.to_string(),
                or_none(id.map(|id| format!("{id}{by_user}"))),
            ];
            rows.push(
                head.iter()
                    .cloned()
                    .chain(ports)
                    .chain(tail.iter().cloned())
                    .collect(),
            );
        }
    }
    let titles = [
        "DEVICE", ">PORT", "STATE", "IFACE", ">LINKS", "PNETID", "CRITICAL", "PCI",
    ];
    table(&titles, rows, width)
}

fn buckets(name: &str, buckets: &Buckets) -> Vec<String> {
    std::iter::once(name.to_string())
        .chain(buckets.0.iter().map(u64::to_string))
        .collect()
}

fn buffers(name: &str, buffers: &Buffers) -> Vec<String> {
    let counts = [
        buffers.allocated,
        buffers.reused,
        buffers.downgraded,
        buffers.own_too_small,
        buffers.own_full,
        buffers.peer_too_small,
        buffers.peer_full,
    ];
    std::iter::once(name.to_string())
        .chain(counts.iter().map(u64::to_string))
        .collect()
}

fn technology(name: &str, data: &Technology, width: Option<u16>) -> String {
    let direction = |name: &str, direction: &crate::model::stats::Direction| {
        vec![
            name.to_string(),
            bytes(direction.bytes),
            direction.calls.to_string(),
            bytes(direction.buffer_bytes),
        ]
    };
    let mut sizes = vec![""];
    let titles: Vec<_> = SIZES.iter().map(|size| format!(">{size}")).collect();
    sizes.extend(titles.iter().map(String::as_str));
    [
        format!("{name}\n"),
        pairs(&[
            (
                "Handshakes as client",
                format!("{} v1, {} v2", data.client_v1, data.client_v2),
            ),
            (
                "Handshakes as server",
                format!("{} v1, {} v2", data.server_v1, data.server_v2),
            ),
            (
                "Calls",
                format!(
                    "{} splice, {} cork, {} nodelay, {} urgent",
                    data.splice_calls, data.cork_calls, data.nodelay_calls, data.urgent
                ),
            ),
        ]),
        "\n".into(),
        table(
            &["DATA", ">BYTES", ">CALLS", ">BUFFERS"],
            vec![direction("sent", &data.tx), direction("received", &data.rx)],
            width,
        ),
        "\n".into(),
        table(
            &[
                "BUFFERS",
                ">ALLOCATED",
                ">REUSED",
                ">REDUCED",
                ">TOO SMALL",
                ">FULL",
                ">PEER TOO SMALL",
                ">PEER FULL",
            ],
            vec![
                buffers("send", &data.tx.buffers),
                buffers("RMB", &data.rx.buffers),
            ],
            width,
        ),
        "\n".into(),
        table(
            &[&["SIZES"], &sizes[1..]].concat(),
            vec![
                buckets("bytes per send", &data.tx.payload_sizes),
                buckets("bytes per receive", &data.rx.payload_sizes),
                buckets("send buffers", &data.tx.buffer_sizes),
                buckets("RMBs", &data.rx.buffer_sizes),
            ],
            width,
        ),
    ]
    .concat()
}

pub(crate) fn stats(stats: &Stats, width: Option<u16>) -> String {
    let fallbacks = &stats.fallbacks;
    let mut text = pairs(&[
        (
            "Failed handshakes as client",
            stats.client_handshake_errors.to_string(),
        ),
        (
            "Failed handshakes as server",
            stats.server_handshake_errors.to_string(),
        ),
        ("Fallbacks to TCP as client", fallbacks.client.to_string()),
        ("Fallbacks to TCP as server", fallbacks.server.to_string()),
    ]);
    if !stats.handshake_errors.is_empty() {
        let rows = stats.handshake_errors.iter().map(|entry| {
            let reason = entry.reason.map(|reason| format!(": {reason}"));
            vec![
                entry.side.to_string(),
                entry.count.to_string(),
                format!("{}{}", entry.failure, reason.unwrap_or_default()),
            ]
        });
        text += &table(&["SIDE", ">COUNT", "FAILURE"], rows.collect(), width);
    }
    if !fallbacks.reasons.is_empty() {
        let rows = fallbacks
            .reasons
            .iter()
            .map(|entry| {
                vec![
                    entry.side.to_string(),
                    entry.count.to_string(),
                    format!("{:#010x}", entry.reason.0),
                    entry.reason.text().to_string(),
                ]
            })
            .collect();
        text += &table(&["SIDE", ">COUNT", "CODE", "REASON"], rows, width);
    }
    text += "\n";
    text += &technology("SMC-R", &stats.smcr, width);
    if let Some(smcd) = &stats.smcd {
        text += "\n";
        text += &technology("SMC-D", smcd, width);
    }
    text
}

/// Where a connection goes, or why it does not use SMC.
fn detail(socket: &SocketInfo) -> String {
    if let Some(fallback) = &socket.fallback {
        let reason = fallback.reason.to_string();
        if fallback.peer_diagnosis.0 == 0 {
            return reason;
        }
        return format!("{reason}; peer says {}", fallback.peer_diagnosis);
    }
    match &socket.link {
        Some(link) => format!(
            "{}/{} link {} ({})",
            link.device, link.port, link.link, link.role
        ),
        None => NONE.to_string(),
    }
}

pub(super) fn sockets(sockets: &[SocketInfo], extended: bool, width: Option<u16>) -> String {
    if extended {
        return sockets
            .iter()
            .map(socket_block)
            .collect::<Vec<_>>()
            .join("\n");
    }
    let rows = sockets
        .iter()
        .map(|socket| {
            let info = socket.connection.as_ref();
            vec![
                socket.state.to_string(),
                socket.mode.to_string(),
                or_none(info.map(|info| info.unread())),
                or_none(info.map(|info| info.unsent())),
                address(&socket.local),
                address(&socket.peer),
                detail(socket),
            ]
        })
        .collect();
    let titles = [
        "STATE",
        "MODE",
        ">RECV-Q",
        ">SEND-Q",
        "LOCAL",
        "PEER",
        "LINK OR REASON",
    ];
    table(&titles, rows, width)
}

fn socket_block(socket: &SocketInfo) -> String {
    let shut = match (socket.shut_receive, socket.shut_send) {
        (false, false) => NONE,
        (true, false) => "receive",
        (false, true) => "send",
        (true, true) => "both",
    };
    let mut rows = vec![
        ("State", format!("{}, {}", socket.state, socket.mode)),
        ("Local", address(&socket.local)),
        ("Peer", address(&socket.peer)),
        ("Family", socket.family.to_string()),
        (
            "Owner",
            format!("uid {}, inode {}", socket.uid, socket.inode),
        ),
        ("Shut", shut.to_string()),
    ];
    if let Some(fallback) = &socket.fallback {
        rows.push(("Reason", fallback.reason.to_string()));
        rows.push(("Peer's reason", fallback.peer_diagnosis.to_string()));
    }
    if let Some(link) = &socket.link {
        rows.push((
            "Link",
            format!("{} of {}/{}", link.link, link.device, link.port),
        ));
        rows.push((
            "GIDs",
            format!("{}, peer {}", gid(&link.gid), gid(&link.peer_gid)),
        ));
        rows.push(("Role", link.role.to_string()));
    }
    if let Some(dmb) = &socket.dmb {
        rows.push(("Group", format!("{:08x}", dmb.group)));
        rows.push((
            "GIDs",
            format!("{:016x}, peer {:016x}", dmb.gid, dmb.peer_gid),
        ));
        rows.push((
            "Tokens",
            format!("{:016x}, peer {:016x}", dmb.token, dmb.peer_token),
        ));
    }
    if let Some(info) = &socket.connection {
        let size = |size: u32| bytes(u64::from(size));
        let sizes = [info.sndbuf, info.rmbe, info.peer_rmbe].map(size);
        let [sndbuf, rmbe, peer_rmbe] = sizes;
        rows.push((
            "Buffers",
            format!("send {sndbuf}, RMB {rmbe}, peer's RMB {peer_rmbe}"),
        ));
        rows.push((
            "Queues",
            format!("{} unread, {} unsent", info.unread(), info.unsent()),
        ));
        let cursor = |cursor: Cursor| format!("{}:{}", cursor.wrap, cursor.count);
        let pair = |producer, consumer, flags: [u8; 2]| {
            let (producer, consumer) = (cursor(producer), cursor(consumer));
            format!(
                "producer {producer}, consumer {consumer}, flags {:02x} {:02x}",
                flags[0], flags[1]
            )
        };
        let flags = [info.rx_producer_flags, info.rx_state_flags];
        rows.push(("Received", pair(info.rx_producer, info.rx_consumer, flags)));
        let flags = [info.tx_producer_flags, info.tx_state_flags];
        rows.push(("Sent", pair(info.tx_producer, info.tx_consumer, flags)));
        let [prepared, sent, confirmed] = [info.prepared, info.sent, info.confirmed].map(cursor);
        rows.push((
            "Send buffer",
            format!("prepared {prepared}, sent {sent}, confirmed {confirmed}"),
        ));
        rows.push(("Token", format!("{:#010x}", info.token)));
    }
    pairs(&rows)
}

pub(super) fn pnet(entries: &[PnetEntry], width: Option<u16>) -> String {
    let rows = entries
        .iter()
        .map(|entry| {
            vec![
                entry.id.clone(),
                or_none(entry.interface.as_ref()),
                or_none(entry.device.as_ref()),
                or_none(entry.port),
            ]
        })
        .collect();
    table(&["PNETID", "IFACE", "DEVICE", "PORT"], rows, width)
}

pub(super) fn rules(rules: &[Rule], width: Option<u16>) -> String {
    let rows = rules
        .iter()
        .map(|rule| {
            vec![
                rule.number.to_string(),
                if rule.allow { "allow" } else { "deny" }.into(),
                rule.side.to_string(),
                rule.peer.map_or("any".into(), |peer| peer.to_string()),
                rule.ports.map_or("any".into(), |ports| ports.to_string()),
                rule.cgroup.map_or("any".into(), |id| id.to_string()),
            ]
        })
        .collect();
    let titles = [">RULE", "ACTION", "SIDE", "PEER", "PORT", "CGROUP"];
    table(&titles, rows, width)
}

pub(super) fn drained(items: &[Drained], width: Option<u16>) -> String {
    let rows = items
        .iter()
        .map(|item| match item {
            Drained::Port { device, port } => {
                vec!["port".into(), format!("{device}/{port}"), NONE.into()]
            }
            Drained::Group { group, connections } => {
                vec!["group".into(), group.clone(), connections.to_string()]
            }
        })
        .collect();
    table(&["DRAINED", "NAME", ">CONNS"], rows, width)
}

pub(super) fn peers(peers: &[Peer], width: Option<u16>) -> String {
    let mut rows = Vec::new();
    for peer in peers {
        let head = [
            peer.address.to_string(),
            peer.smcr.to_string(),
            peer.tcp.to_string(),
        ];
        let mut row = |rest: [String; 4]| rows.push(head.iter().cloned().chain(rest).collect());
        let avoided = |failure: &FailedPeer| match (failure.seconds_left(), failure.port) {
            (Some(seconds), Some(port)) => format!("port {port}: {seconds} s"),
            (Some(seconds), None) => format!("{seconds} s"),
            (None, _) => NONE.into(),
        };
        if peer.fallbacks.is_empty() && peer.failures.is_empty() {
            row(["0".into(), NONE.into(), NONE.into(), NONE.into()]);
        }
        let mut failures: Vec<_> = peer.failures.iter().collect();
        for fallback in &peer.fallbacks {
            let same = |failure: &&FailedPeer| failure.side == fallback.side;
            let failure = failures.iter().position(same);
            let failure = failure.map(|place| failures.remove(place));
            row([
                fallback.count.to_string(),
                fallback.side.to_string(),
                failure.map_or(NONE.into(), avoided),
                fallback.reason.to_string(),
            ]);
        }
        // A failure ends some connections without a fallback, and a host may have several services.
        for failure in failures {
            let (side, reason) = (failure.side.to_string(), failure.reason.to_string());
            row(["0".into(), side, avoided(failure), reason]);
        }
    }
    let titles = [
        "PEER",
        ">SMC-R",
        ">TCP",
        ">FALLBACKS",
        "SIDE",
        ">AVOIDED",
        "LAST REASON",
    ];
    table(&titles, rows, width)
}
