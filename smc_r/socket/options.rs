// SPDX-License-Identifier: GPL-2.0

//! `setsockopt(2)`, `getsockopt(2)` and `ioctl(2)`.
//!
//! The inner TCP socket keeps all options of the TCP and IP levels; those that mean something for
//! accelerated data act here as well. Options of `SOL_SOCKET` are kept by the outer socket, and
//! set on the inner one, too.

use kapi::{
    errno::{
        EINVAL,
        EOPNOTSUPP, //
    },
    sock::{ioctl, opt, OptOut, OptVal, Sk, UserArg},
    tcp::{Stage, TcpSocket}, //
};
use kernel::{prelude::*, sync::atomic::Relaxed};
use smc_proto::wire::Diagnosis;

use super::{info, recv, Phase, SmcSocket};
use crate::conn;

/// Level of our own options, see `include/linux/socket.h`.
const SOL_SMC: i32 = 286;

/// Limits handshakes, see `include/uapi/linux/smc.h`.
const SMC_LIMIT_HS: i32 = 1;

/// Tells what became of a socket, see [`info`].
const SMC_INFO: i32 = 1000;

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
        _ => {}
    }
    let tcp = sk.tcp()?;
    tcp.setsockopt(level, name, value)?;
    if (level, name) == (opt::SOL_IP, opt::IP_TOS) {
        // It sets this as well.
        sk.store_priority(tcp.priority());
    }
    if level == opt::SOL_TCP {
        let on = value.get::<i32>().is_ok_and(|value| value != 0);
        set_tcp(sk, &tcp, name, on)?;
    }
    Ok(())
}

/// An option of TCP was set on the inner socket. Socket lock held.
fn set_tcp(sk: &Sk<SmcSocket>, tcp: &TcpSocket, name: i32, on: bool) -> Result {
    match (name, sk.phase()) {
        (
            opt::TCP_NODELAY
            | opt::TCP_CORK
            | opt::TCP_USER_TIMEOUT
            | opt::TCP_KEEPIDLE
            | opt::TCP_NOTSENT_LOWAT,
            Phase::Accelerated,
        ) => {
            if name == opt::TCP_NODELAY && on {
                sk.ns.stats.undelayed();
            } else if name == opt::TCP_CORK && !on {
                sk.ns.stats.uncorked();
            }
            conn::apply(sk, tcp.settings());
        }
        (opt::TCP_INQ, _) => sk.tells_left.store(u32::from(on), Relaxed),
        (
            opt::TCP_FASTOPEN
            | opt::TCP_FASTOPEN_CONNECT
            | opt::TCP_FASTOPEN_KEY
            | opt::TCP_FASTOPEN_NO_COOKIE,
            phase,
        ) if on => return plain_tcp_only(sk, tcp, phase),
        _ => {}
    }
    Ok(())
}

/// Data in a SYN cannot be followed by CLC messages: the connections of such a socket are plain TCP
/// from the start. Each counts as a fallback when it begins.
fn plain_tcp_only(sk: &Sk<SmcSocket>, tcp: &TcpSocket, phase: Phase) -> Result {
    match phase {
        Phase::Idle => sk.set_fallback(Diagnosis::SOCKET_OPTION, None),
        // Those that have the answer already keep it.
        Phase::Listening => tcp.answer_option(false)?,
        // TCP has some of the options for when it connects anew.
        Phase::Connecting | Phase::Accelerated | Phase::Fallback | Phase::Dead => {}
    }
    sk.never_smc.store(1, Relaxed);
    Ok(())
}

/// An option of `SOL_SOCKET` that goes to the inner socket before the outer one, or instead of it. True in the second
/// case. Process context.
pub(super) fn takes(sk: &Sk<SmcSocket>, name: i32, value: &OptVal<'_>) -> Result<bool> {
    match name {
        // The group whose sockets share a port is one of inner sockets. They join it here where a program comes
        // before the address.
        opt::SO_ATTACH_REUSEPORT_CBPF
        | opt::SO_ATTACH_REUSEPORT_EBPF
        | opt::SO_DETACH_REUSEPORT_BPF => {
            let tcp = sk.tcp()?;
            if sk.phase() == Phase::Idle {
                tcp.inherit_from(sk, Stage::Bind);
            }
            tcp.setsockopt(opt::SOL_SOCKET, name, value)?;
            Ok(true)
        }
        // TCP has rules of its own about who may.
        opt::SO_ATTACH_FILTER | opt::SO_ATTACH_BPF => {
            sk.tcp()?.setsockopt(opt::SOL_SOCKET, name, value)?;
            Ok(false)
        }
        _ => Ok(false),
    }
}

/// An option of `SOL_SOCKET` was set on the outer socket. Process context.
pub(super) fn changed(sk: &Sk<SmcSocket>, name: i32, value: &OptVal<'_>) {
    let Ok(tcp) = sk.tcp() else {
        return;
    };
    if name == opt::SO_OOBINLINE {
        conn::set_oob_inline(sk, sk.oob_inline());
    }
    if matches!(name, opt::SO_SNDBUF | opt::SO_SNDBUFFORCE) {
        // As everywhere, half of it is for data.
        conn::limit_send(sk, sk.sndbuf().unsigned_abs() / 2);
    }
    if matches!(name, opt::SO_RCVBUF | opt::SO_RCVBUFFORCE) {
        conn::limit_receive(sk, sk.rcvbuf().unsigned_abs() / 2);
    }
    if inner_acts(name, sk.phase()) {
        // The outer socket has accepted it. What TCP cannot have is then only kept.
        let _ = tcp.setsockopt(opt::SOL_SOCKET, name, value);
    }
    if is_taken_back(name) {
        // Somebody may have done so in between.
        let _lock = sk.lock();
        tcp.inherit_back(sk);
    }
    if name == opt::SO_KEEPALIVE && sk.phase() == Phase::Accelerated {
        conn::apply(sk, tcp.settings());
    }
}

/// Whether bind() and connect() give an option of the inner socket to the outer one.
fn is_taken_back(name: i32) -> bool {
    matches!(
        name,
        opt::SO_BINDTODEVICE
            | opt::SO_BINDTOIFINDEX
            | opt::SO_KEEPALIVE
            | opt::SO_MARK
            | opt::SO_PRIORITY
    )
}

/// Whether the inner socket gets an option as well, which for most is at once. That one alone: of others, TCP or a program of
/// a control group may have set what the outer socket does not know.
fn inner_acts(name: i32, phase: Phase) -> bool {
    match name {
        // It has got them before, see `takes`.
        opt::SO_ATTACH_FILTER | opt::SO_ATTACH_BPF => false,
        // See `SmcSocket::set_peek_off`.
        opt::SO_PEEK_OFF => false,
        // No byte of the rendezvous is to wait for others; a connection that becomes plain TCP takes it over.
        opt::SO_RCVLOWAT => phase == Phase::Fallback,
        // Lingering is our own business: the inner socket has nothing to send.
        opt::SO_LINGER => phase != Phase::Accelerated,
        _ => true,
    }
}

/// `getsockopt(2)` for every level but `SOL_SOCKET`.
pub(super) fn get(sk: &Sk<SmcSocket>, level: i32, name: i32, out: &mut OptOut<'_>) -> Result {
    match (level, name, sk.phase()) {
        (SOL_SMC, SMC_LIMIT_HS, _) => out.int(sk.limit_hs.load(Relaxed) as i32),
        (SOL_SMC, SMC_INFO, _) => out.bytes(&info::smc(sk)),
        (SOL_SMC, _, _) => Err(EOPNOTSUPP),
        // It takes bytes out of the inner socket, which may be those of the rendezvous. Of what it maps
        // there is nothing: mmap() does not know our sockets.
        (opt::SOL_TCP, opt::TCP_ZEROCOPY_RECEIVE, _) => Err(EOPNOTSUPP),
        (opt::SOL_TCP, opt::TCP_INFO, Phase::Accelerated) => out.bytes(info::tcp(sk)?.bytes()),
        _ => sk.tcp()?.getsockopt(level, name, out),
    }
}

/// `ioctl(2)`.
pub(super) fn control(sk: &Sk<SmcSocket>, cmd: u32, arg: UserArg) -> Result<c_int> {
    match cmd {
        ioctl::INQ | ioctl::OUTQ | ioctl::OUTQNSD | ioctl::ATMARK => {
            arg.put_int(count(sk, cmd)?)?;
            Ok(0)
        }
        _ => sk.tcp()?.ioctl(cmd, arg),
    }
}

/// What an `ioctl(2)` counts.
pub(super) fn count(sk: &Sk<SmcSocket>, cmd: u32) -> Result<c_int> {
    let count = match (sk.phase(), cmd) {
        // As poll() has it.
        (Phase::Fallback, ioctl::INQ) if !recv::is_settled(sk) => 0,
        (Phase::Fallback, _) => return sk.tcp()?.count(cmd),
        (Phase::Listening, ioctl::INQ | ioctl::OUTQ | ioctl::OUTQNSD) => return Err(EINVAL),
        (Phase::Accelerated, ioctl::INQ) => conn::status(sk).readable,
        (Phase::Accelerated, ioctl::OUTQ) => conn::queued(sk),
        (Phase::Accelerated, ioctl::OUTQNSD) => conn::status(sk).unsent,
        (Phase::Accelerated, ioctl::ATMARK) => usize::from(conn::status(sk).at_mark),
        (_, ioctl::INQ | ioctl::OUTQ | ioctl::OUTQNSD | ioctl::ATMARK) => 0,
        _ => return Err(ENOIOCTLCMD),
    };
    Ok(i32::try_from(count).unwrap_or(i32::MAX))
}
