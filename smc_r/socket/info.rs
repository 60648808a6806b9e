// SPDX-License-Identifier: GPL-2.0

//! What a socket tells about itself: `TCP_INFO` and `SMC_INFO`.
//!
//! The value of `SMC_INFO` (option 1000 of level 286) are numbers in host order, each where it is
//! aligned. Readers take as much as they know; later versions may append.
//!
//! | Offset | Size | Meaning |
//! |---|---|---|
//! | 0 | 4 | mode as in `diag_mode`: 0 SMC-R, 1 plain TCP; 0xffffffff before it is known |
//! | 4 | 4 | our reason for plain TCP; 0 without |
//! | 8 | 4 | the code of the peer's Decline; 0 without |
//! | 12 | 4 | version of SMC that the connection speaks; 0 for plain TCP, and so for all below |
//! | 16 | 4 | number of the link group |
//! | 20 | 4 | number of the link in the group; 0 if there is none any more |
//! | 24 | 4 | size of the send buffer in bytes |
//! | 28 | 4 | size of our RMB element |
//! | 32 | 4 | size of the peer's RMB element |
//! | 36 | 4 | zero |
//! | 40 | 8 | bytes written to the peer |
//! | 48 | 8 | bytes that the peer has written |

use kapi::{
    sock::{state as tcp_state, Sk},
    tcp::{self, Figures}, //
};
use kernel::prelude::*;

use super::{Phase, SmcSocket};
use crate::conn;

const MODE_SMC_R: u32 = 0;
const MODE_FALLBACK: u32 = 1;
const MODE_UNDECIDED: u32 = u32::MAX;

/// Length of the value of `SMC_INFO`.
const SMC_INFO_LEN: usize = 56;

/// The value of `SMC_INFO`.
pub(super) fn smc(sk: &Sk<SmcSocket>) -> [u8; SMC_INFO_LEN] {
    let mode = match sk.phase() {
        Phase::Accelerated => MODE_SMC_R,
        Phase::Fallback => MODE_FALLBACK,
        Phase::Idle | Phase::Connecting | Phase::Listening | Phase::Dead => MODE_UNDECIDED,
    };
    let (reason, peer) = sk.fallback();
    let mut numbers = [mode, reason.0, peer.0, 0, 0, 0, 0, 0, 0, 0];
    let mut bytes = [0; 2];
    if let Some(summary) = conn::summary(sk) {
        let [_, _, _, rest @ ..] = &mut numbers;
        let [send, own, peers] = summary.sizes;
        let link = summary.link.into();
        let version = summary.version.into();
        *rest = [version, summary.group, link, send, own, peers, 0];
        bytes = summary.bytes;
    }
    let mut info = [0; SMC_INFO_LEN];
    let (head, tail) = info.split_at_mut(40);
    for (to, from) in head.chunks_exact_mut(4).zip(numbers) {
        to.copy_from_slice(&u32::to_ne_bytes(from));
    }
    for (to, from) in tail.chunks_exact_mut(8).zip(bytes) {
        to.copy_from_slice(&u64::to_ne_bytes(from));
    }
    info
}

/// The value of `TCP_INFO` of an accelerated connection: state and traffic are those of its data,
/// what TCP has measured of the way to the peer stays.
pub(super) fn tcp(sk: &Sk<SmcSocket>) -> Result<tcp::Info> {
    let mut info = sk.tcp()?.info();
    // What was accelerated and is over has no figures any more.
    let ended = Figures {
        state: tcp_state::CLOSE,
        ..Figures::default()
    };
    info.replace(&conn::figures(sk).unwrap_or(ended));
    Ok(info)
}
