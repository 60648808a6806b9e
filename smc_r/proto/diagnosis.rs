// SPDX-License-Identifier: GPL-2.0

//! Diagnosis codes of the CLC Decline message.

use core::fmt;

/// Why a connection was declined.
///
/// RFC 7609 leaves the codes to the platform; these are the ones Linux uses. A code received is
/// for display only: older kernels used other numbers, other systems may mean other things.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Diagnosis(pub u32);

macro_rules! diagnoses {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        impl Diagnosis {
            $(
                #[doc = concat!("`", stringify!($code), "`: ", $text, ".")]
                pub const $name: Self = Self($code);
            )*

            /// All codes with a name, in ascending order.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Returns a short text for a known code.
            pub const fn text(self) -> Option<&'static str> {
                match self.0 {
                    $($code => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

diagnoses! {
    MEMORY = 0x0101_0000, "out of memory or buffers";
    TIMEOUT_CONFIRM_LINK = 0x0201_0000, "timeout in the CONFIRM LINK exchange";
    TIMEOUT_ADD_LINK = 0x0202_0000, "timeout in the ADD LINK exchange";
    CONFIGURATION = 0x0300_0000, "configuration problem";
    PEER_NOT_CAPABLE = 0x0301_0000, "the peer did not send the TCP option";
    REMEMBERED = 0x0301_0001, "SMC failed with this peer a short time ago";
    IPSEC = 0x0302_0000, "IPsec in use";
    NO_DEVICE = 0x0303_0000, "no usable SMC device";
    NO_SMC_D_DEVICE = 0x0303_0001, "no SMC-D device";
    NO_SMC_R_DEVICE = 0x0303_0002, "no SMC-R device";
    NO_SMC_D_V2_DEVICE = 0x0303_0003, "no SMC-Dv2 capable hardware";
    NO_V2_EXTENSION = 0x0303_0004, "version 2 extension missing in the Proposal";
    NO_D_V2_EXTENSION = 0x0303_0005, "SMC-Dv2 extension missing in the Proposal";
    NO_SYSTEM_EID = 0x0303_0006, "no system EID sent";
    NO_D_V2_MATCH = 0x0303_0007, "no SMC-Dv2 device matches";
    NO_USER_EID = 0x0303_0008, "no user EID matches";
    RELEASE = 0x0303_0009, "release negotiation failed";
    MAX_CONNECTIONS = 0x0303_000a, "negotiation of the maximum of connections failed";
    MAX_LINKS = 0x0303_000b, "negotiation of the maximum of links failed";
    MODE_NOT_OFFERED = 0x0304_0000, "path or version selected that was not offered";
    EYE_CATCHER = 0x0305_0000, "the peer keeps eye catchers in its buffers";
    SOCKET_OPTION = 0x0306_0000, "unsupported socket option";
    SUBNET_MISMATCH = 0x0307_0000, "IP subnet or prefix mismatch";
    VLAN = 0x0308_0000, "VLAN of the IP interface not found";
    VLAN_REGISTRATION = 0x0309_0000, "VLAN registration on ISM failed";
    NO_ACTIVE_LINK = 0x030a_0000, "the link group has no active link";
    UNKNOWN_LINK = 0x030b_0000, "link named by the server is unknown";
    VERSION = 0x030c_0000, "version mismatch";
    D_BUFFERS = 0x030d_0000, "SMC-D buffer limit reached";
    NO_ROUTE = 0x030e_0000, "no IP route to the peer's GID";
    INDIRECT = 0x030f_0000, "direct or indirect attachment disagreement";
    OUT_OF_SYNC = 0x0400_0000, "out of sync";
    PEER_DECLINED = 0x0500_0000, "the peer declined";
    INTERNAL = 0x0999_0000, "internal error";
    RTOKEN = 0x0999_0001, "the RToken could not be stored";
    READY_LINK = 0x0999_0002, "the queue pair could not be brought up";
    REGISTER_RMB = 0x0999_0003, "registration or announcement of the RMB failed";
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text() {
            Some(text) => write!(f, "{:#010x} ({text})", self.0),
            None => write!(f, "{:#010x}", self.0),
        }
    }
}

impl fmt::Debug for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Diagnosis({self})")
    }
}
