// SPDX-License-Identifier: GPL-2.0

//! `setsockopt(2)`, `getsockopt(2)` and `ioctl(2)`.
//!
//! The inner TCP socket keeps all options of the TCP and IP levels; those that mean something for
//! accelerated data act here as well.

use kapi::{
    errno::{
        EINVAL,
        EOPNOTSUPP, //
    },
    sock::{ioctl, opt, OptOut, OptVal, Sk, UserArg},
    tcp::Stage, //
};
use kernel::{prelude::*, sync::atomic::Relaxed};
use smc_proto::wire::Diagnosis;

use super::{Phase, SmcSocket};
use crate::{conn, stats::Side};

/// Level of our own options, see `include/linux/socket.h`.
const SOL_SMC: i32 = 286;

/// Limits handshakes, see `include/uapi/linux/smc.h`.
const SMC_LIMIT_HS: i32 = 1;

/// Tells what became of a socket: three 32-bit numbers in host order. The first is the mode as in
/// `diag_mode`, with [`MODE_UNDECIDED`] before it is known; the others are our reason for plain TCP
/// and the code of the peer's Decline, both zero without. Later versions may append to it.
const SMC_INFO: i32 = 1000;

const MODE_SMC_R: u32 = 0;
const MODE_FALLBACK: u32 = 1;
const MODE_UNDECIDED: u32 = u32::MAX;

/// `setsockopt(2)` for every level but `SOL_SOCKET`.
pub(super) fn set(sk: &Sk<SmcSocket>, level: i32, name: i32, value: &OptVal<'_>) -> Result {
    let _lock = sk.lock();
    match (level, name) {
        (SOL_SMC, SMC_LIMIT_HS) => {
            let limit: i32 = value.get()?;
            sk.limit_hs.store(u32::from(limit != 0), Relaxed);
            return Ok(());
        }
        (SOL_SMC, _) => return Err(EOPNOTSUPP),
        (opt::SOL_TCP, opt::TCP_ULP | opt::TCP_REPAIR) => return Err(EOPNOTSUPP),
        (
            opt::SOL_TCP,
            opt::TCP_FASTOPEN
            | opt::TCP_FASTOPEN_CONNECT
            | opt::TCP_FASTOPEN_KEY
            | opt::TCP_FASTOPEN_NO_COOKIE,
        ) => plain_tcp_only(sk)?,
        _ => {}
    }
    sk.tcp()?.setsockopt(level, name, value)?;
    if level == opt::SOL_TCP && sk.phase() == Phase::Accelerated {
        let on = value.get::<i32>().is_ok_and(|value| value != 0);
        match name {
            opt::TCP_NODELAY if on => {
                sk.ns.stats.undelayed();
                conn::push(sk);
            }
            opt::TCP_CORK => {
                sk.corked.store(u32::from(on), Relaxed);
                if !on {
                    sk.ns.stats.uncorked();
                    conn::push(sk);
                }
            }
            _ => {}
        }
    } else if level == opt::SOL_TCP && name == opt::TCP_CORK {
        sk.corked.store(
            u32::from(value.get::<i32>().is_ok_and(|value| value != 0)),
            Relaxed,
        );
    }
    Ok(())
}

/// Data in a SYN cannot be followed by CLC messages: such a socket is plain TCP from the start.
fn plain_tcp_only(sk: &Sk<SmcSocket>) -> Result {
    match sk.phase() {
        Phase::Idle => {
            sk.ns
                .fell_back(Side::Client, Diagnosis::SOCKET_OPTION, None, None);
            sk.set_fallback(Diagnosis::SOCKET_OPTION, None);
            sk.never_smc.store(1, Relaxed);
            Ok(())
        }
        Phase::Fallback => Ok(()),
        _ => Err(EINVAL),
    }
}

/// An option of `SOL_SOCKET` was set on the outer socket. Process context.
pub(super) fn changed(sk: &Sk<SmcSocket>, name: i32) {
    match sk.phase() {
        // Lingering is our own business: the inner socket has nothing to send.
        Phase::Accelerated if name == opt::SO_LINGER => {}
        // TCP acts on the inner socket's own copy; keepalive probes are sent there in any case.
        Phase::Accelerated | Phase::Fallback => {
            if let Ok(tcp) = sk.tcp() {
                tcp.inherit_from(sk, Stage::Traffic);
            }
            if name == opt::SO_OOBINLINE {
                conn::set_oob_inline(sk, sk.oob_inline());
            }
        }
        // What is set before is taken over when the connection begins.
        _ => {}
    }
}

/// `getsockopt(2)` for every level but `SOL_SOCKET`.
pub(super) fn get(sk: &Sk<SmcSocket>, level: i32, name: i32, out: &mut OptOut<'_>) -> Result {
    match (level, name) {
        (SOL_SMC, SMC_LIMIT_HS) => out.int(sk.limit_hs.load(Relaxed) as i32),
        (SOL_SMC, SMC_INFO) => out.bytes(&info(sk)),
        (SOL_SMC, _) => Err(EOPNOTSUPP),
        _ => sk.tcp()?.getsockopt(level, name, out),
    }
}

fn info(sk: &Sk<SmcSocket>) -> [u8; 12] {
    let mode = match sk.phase() {
        Phase::Accelerated => MODE_SMC_R,
        Phase::Fallback => MODE_FALLBACK,
        Phase::Idle | Phase::Connecting | Phase::Listening | Phase::Dead => MODE_UNDECIDED,
    };
    let (reason, peer) = sk.fallback();
    let mut info = [0; 12];
    for (to, from) in info.chunks_exact_mut(4).zip([mode, reason.0, peer.0]) {
        to.copy_from_slice(&from.to_ne_bytes());
    }
    info
}

/// `ioctl(2)`.
pub(super) fn control(sk: &Sk<SmcSocket>, cmd: u32, arg: UserArg) -> Result<c_int> {
    let count = match (sk.phase(), cmd) {
        (Phase::Fallback, _) => return sk.tcp()?.ioctl(cmd, arg),
        (Phase::Listening, ioctl::INQ | ioctl::OUTQ | ioctl::OUTQNSD | ioctl::ATMARK) => {
            return Err(EINVAL)
        }
        (Phase::Accelerated, ioctl::INQ) => conn::status(sk).readable,
        (Phase::Accelerated, ioctl::OUTQ) => conn::status(sk).queued,
        (Phase::Accelerated, ioctl::OUTQNSD) => conn::status(sk).unsent,
        (Phase::Accelerated, ioctl::ATMARK) => usize::from(conn::status(sk).at_mark),
        (_, ioctl::INQ | ioctl::OUTQ | ioctl::OUTQNSD | ioctl::ATMARK) => 0,
        _ => return sk.tcp()?.ioctl(cmd, arg),
    };
    arg.put_int(i32::try_from(count).unwrap_or(i32::MAX))?;
    Ok(0)
}
