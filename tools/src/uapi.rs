// SPDX-License-Identifier: GPL-2.0

//! Numbers of the kernel's interface and their names.

use serde::{Serialize, Serializer};
use std::fmt;

/// Generic netlink family for reading state and for EIDs.
pub const GEN_FAMILY: &str = "SMC_GEN_NETLINK";
/// Generic netlink family for the table of pnet ids.
pub const PNET_FAMILY: &str = "SMC_PNETID";
/// Generic netlink family of the module smc_r alone.
pub const OWN_FAMILY: &str = "smc-rs";
/// Its multicast group.
pub const OWN_EVENTS: &str = "events";
/// Message type of sock_diag requests and answers.
pub const SOCK_DIAG_BY_FAMILY: u16 = 20;

/// Commands of [`GEN_FAMILY`].
pub mod command {
    #![allow(missing_docs)]
    pub const GET_SYS_INFO: u8 = 1;
    pub const GET_LGR_SMCR: u8 = 2;
    pub const GET_LINK_SMCR: u8 = 3;
    pub const GET_DEV_SMCR: u8 = 6;
    pub const GET_STATS: u8 = 7;
    pub const GET_FBACK_STATS: u8 = 8;
    pub const DUMP_UEID: u8 = 9;
    pub const ADD_UEID: u8 = 10;
    pub const REMOVE_UEID: u8 = 11;
    pub const FLUSH_UEID: u8 = 12;
    pub const DUMP_SEID: u8 = 13;
    pub const DUMP_HS_LIMITATION: u8 = 16;
    pub const ENABLE_HS_LIMITATION: u8 = 17;
    pub const DISABLE_HS_LIMITATION: u8 = 18;
}

/// Top-level nests of [`GEN_FAMILY`].
pub mod nest {
    #![allow(missing_docs)]
    pub const SYS_INFO: u16 = 1;
    pub const LGR_SMCR: u16 = 2;
    pub const LINK_SMCR: u16 = 3;
    pub const DEV_SMCR: u16 = 6;
    pub const STATS: u16 = 7;
    pub const FBACK_STATS: u16 = 8;
}

/// Commands of [`PNET_FAMILY`].
pub mod pnet {
    #![allow(missing_docs)]
    pub const GET: u8 = 1;
    pub const ADD: u8 = 2;
    pub const DEL: u8 = 3;
    pub const FLUSH: u8 = 4;
    pub const NAME: u16 = 1;
    pub const ETHNAME: u16 = 2;
    pub const IBNAME: u16 = 3;
    pub const IBPORT: u16 = 4;
}

/// Commands and attributes of [`OWN_FAMILY`], as its description in Documentation/netlink/specs has
/// them.
pub mod own {
    #![allow(missing_docs)]
    pub const INFO_GET: u8 = 1;
    pub const RULE_GET: u8 = 3;
    pub const RULE_ADD: u8 = 4;
    pub const RULE_DELETE: u8 = 5;
    pub const RULE_FLUSH: u8 = 6;
    pub const FALLBACK_GET: u8 = 7;
    pub const DRAIN: u8 = 10;
    pub const DRAIN_GET: u8 = 11;
    pub const PEER_GET: u8 = 12;
    pub const PEER_FLUSH: u8 = 13;
    pub const FAILURE_GET: u8 = 14;
    pub const FAULT_GET: u8 = 15;
    pub const REASON_GET: u8 = 16;
    pub const LINK_UP: u8 = 32;
    pub const LINK_DOWN: u8 = 33;
    pub const GROUP_ADDED: u8 = 34;
    pub const GROUP_REMOVED: u8 = 35;
    pub const FALLBACK: u8 = 36;

    pub mod attr {
        pub const VERSION: u16 = 1;
        pub const NET_COOKIE: u16 = 3;
        pub const RULE: u16 = 5;
        pub const ALLOW: u16 = 6;
        pub const SIDE: u16 = 7;
        pub const ADDRESS: u16 = 8;
        pub const PREFIX_LEN: u16 = 9;
        pub const PORT_FIRST: u16 = 10;
        pub const PORT_LAST: u16 = 11;
        pub const CGROUP: u16 = 12;
        pub const REASON: u16 = 13;
        pub const PEER_REASON: u16 = 14;
        pub const COUNT: u16 = 15;
        pub const GROUP: u16 = 16;
        pub const LINK: u16 = 17;
        pub const DEVICE: u16 = 18;
        pub const DEVICE_PORT: u16 = 19;
        pub const UNDO: u16 = 20;
        pub const CONNECTIONS: u16 = 21;
        pub const AGE: u16 = 22;
        pub const LEFT: u16 = 23;
        pub const FAILURE: u16 = 24;
        pub const CONNECTIONS_ABORTED: u16 = 25;
        pub const LINKS_BROKEN: u16 = 26;
        pub const CDC_DROPPED: u16 = 27;
        pub const LLC_DROPPED: u16 = 28;
        pub const GROUPS_LOST: u16 = 29;
        pub const HANDSHAKES_FAILED: u16 = 30;
        pub const LINKS_WITHOUT_ROUTE: u16 = 31;
        pub const LLC_REFUSED: u16 = 32;
        pub const LINKS_LOST: u16 = 33;
    }
}

/// A number that has a name if it is one of those known.
macro_rules! named {
    ($(#[$doc:meta])* $type:ident($repr:ty) { $($number:literal => $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
        pub struct $type(pub $repr);

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.0 {
                    $($number => f.pad($text),)*
                    other => f.pad(&format!("unknown({other})")),
                }
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    };
}

named! {
    /// State of a socket.
    State(u8) {
        1 => "ACTIVE",
        2 => "INIT",
        7 => "CLOSED",
        10 => "LISTEN",
        20 => "PEERCLOSEWAIT1",
        21 => "PEERCLOSEWAIT2",
        22 => "APPCLOSEWAIT1",
        23 => "APPCLOSEWAIT2",
        24 => "APPFINCLOSEWAIT",
        25 => "PEERFINCLOSEWAIT",
        26 => "PEERABORTWAIT",
        27 => "PROCESSABORT",
    }
}

named! {
    /// What carries a socket's data.
    Mode(u8) {
        0 => "SMC-R",
        1 => "TCP",
        2 => "SMC-D",
    }
}

named! {
    /// Side of a link group or of a fallback.
    Role(u8) {
        0 => "client",
        1 => "server",
    }
}

named! {
    /// Side of a connection in [`OWN_FAMILY`], where 0 stands for both.
    Side(u8) {
        0 => "both",
        1 => "client",
        2 => "server",
    }
}

named! {
    /// How a handshake ended without a connection.
    Failure(u8) {
        1 => "no CLC message, or a damaged one",
        2 => "CLC message at the wrong time",
        3 => "Confirm and Proposal name different peers",
        4 => "the peer closed the TCP connection",
        5 => "the TCP connection was reset",
        6 => "no Proposal in time",
        7 => "no Accept in time",
        8 => "no Confirm in time",
        9 => "no link in time",
        10 => "the link failed when it was too late for TCP",
        11 => "could not be set up on this host",
        12 => "the peer's buffer was taken back, or never announced",
    }
}

named! {
    /// How the links of a group are connected.
    GroupType(u8) {
        0 => "none",
        1 => "single",
        2 => "symmetric",
        3 => "asymmetric-peer",
        4 => "asymmetric-local",
    }
}

named! {
    /// State of a link.
    LinkState(u32) {
        0 => "unused",
        1 => "inactive",
        2 => "activating",
        3 => "active",
    }
}

named! {
    /// How buffers are allocated.
    BufferType(u8) {
        0 => "physical",
        1 => "virtual",
        2 => "mixed",
    }
}

named! {
    /// Operating system of a peer.
    Os(u8) {
        1 => "z/OS",
        2 => "Linux",
        3 => "AIX",
    }
}

/// Why a connection does not use SMC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Reason(pub u32);

impl Reason {
    /// The reason in words.
    pub fn text(self) -> &'static str {
        match self.0 {
            0 => "none",
            0x0101_0000 => "out of memory for SMC resources",
            0x0201_0000 => "timeout in the CONFIRM LINK exchange",
            0x0202_0000 => "timeout in the ADD LINK exchange",
            0x0300_0000 => "configuration error",
            0x0301_0000 => "peer did not send the SMC option",
            0x0301_0001 => "SMC failed with this peer a short time ago",
            0x0302_0000 => "connection uses IPsec",
            0x0303_0000 => "no SMC device",
            0x0303_0001 => "no SMC-D device",
            0x0303_0002 => "no SMC-R device",
            0x0303_0003 => "no ISMv2 support in hardware",
            0x0303_0004 => "peer sent no v2 extension",
            0x0303_0005 => "peer sent no SMC-Dv2 extension",
            0x0303_0006 => "peer sent no SEID",
            0x0303_0007 => "no SMC-Dv2 device",
            0x0303_0008 => "no common UEID",
            0x0303_0009 => "release negotiation failed",
            0x0303_000a => "negotiation of the connections limit failed",
            0x0303_000b => "negotiation of the links limit failed",
            0x0304_0000 => "SMC modes do not match",
            0x0305_0000 => "peer uses eye catchers in its buffers",
            0x0306_0000 => "socket option that SMC cannot serve",
            0x0307_0000 => "IP subnet or prefix differs",
            0x0308_0000 => "VLAN of the interface not found",
            0x0309_0000 => "VLAN registration failed",
            0x030a_0000 => "link group has no active link",
            0x030b_0000 => "link named by the server not found",
            0x030c_0000 => "SMC version mismatch",
            0x030d_0000 => "SMC-D buffer limit reached",
            0x030e_0000 => "no route to the peer",
            0x030f_0000 => "direct and indirect attachment disagree",
            0x0400_0000 => "out of sync",
            0x0500_0000 => "peer declined",
            0x0999_0000 => "internal error",
            0x0999_0001 => "remote token handling failed",
            0x0999_0002 => "queue pair did not get ready",
            0x0999_0003 => "buffer registration failed",
            _ => "unknown reason",
        }
    }
}

impl Reason {
    /// What can be done about it, as far as there is something.
    pub fn advice(self) -> Option<&'static str> {
        Some(match self.0 {
            0x0101_0000 => "free memory, or lower net.smc.rmem and net.smc.wmem",
            0x0201_0000 | 0x0202_0000 | 0x0999_0002 => {
                "let RDMA packets (UDP port 4791) pass on both hosts; `smcctl check` looks at this one"
            }
            0x0300_0000 => "see whether a rule denies it (`smcctl rules`), and the addresses of the interface",
            0x0301_0000 => {
                "load the module on the peer and use SMC sockets there (`smc_run PROGRAM`); \
                 a firewall in between may remove TCP option 254"
            }
            0x0301_0001 => "`smcctl peers` shows why and for how long, `smcctl peers --flush` forgets it",
            0x0302_0000 => "exempt the connection from IPsec",
            0x0303_0000 | 0x0303_0002 => {
                "give the interface an RDMA port of its network: see `smcctl devices`, \
                 `smcctl pnet add`, or for software RDMA `rdma link add NAME type rxe netdev IFACE`"
            }
            0x0303_0008 => "give both hosts a common EID with `smcctl ueid add`",
            0x0304_0000 => "use SMC-R, or SMC-D, on both hosts",
            0x0306_0000 => {
                "do not use TCP Fast Open in the program, \
                 nor a socket once more that was plain TCP before"
            }
            0x0307_0000 => "put both hosts into one IP subnet, or use SMC-R version 2 on both",
            0x0308_0000 | 0x0309_0000 => "see the VLAN of the interface",
            0x030a_0000 | 0x0400_0000 => "try again: a link group had just ended",
            0x030e_0000 => "give the RDMA port a route to the peer",
            0x0500_0000 => "look at the peer, with `smcctl why` there: it gave the reason",
            _ => return None,
        })
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x} {}", self.0, self.text())
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Parts {
            code: String,
            text: &'static str,
        }
        Parts {
            code: format!("{:#010x}", self.0),
            text: self.text(),
        }
        .serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!(State(10).to_string(), "LISTEN");
        assert_eq!(State(99).to_string(), "unknown(99)");
        assert_eq!(format!("{:<8}|", Mode(1)), "TCP     |");
        assert_eq!(Reason(0x0303_0008).to_string(), "0x03030008 no common UEID");
        assert_eq!(Reason(0xdead).to_string(), "0x0000dead unknown reason");
    }

    #[test]
    fn json_forms() {
        assert_eq!(serde_json::to_string(&LinkState(3)).unwrap(), r#""active""#);
        let reason = serde_json::to_string(&Reason(0x0306_0000)).unwrap();
        assert!(
            reason.starts_with(r#"{"code":"0x03060000","text":"socket"#),
            "{reason}"
        );
    }
}
