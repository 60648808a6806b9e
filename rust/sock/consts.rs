// SPDX-License-Identifier: GPL-2.0

//! Numbers of the socket interface.

use crate::bindings;

/// Flags of `sendmsg` and `recvmsg`.
pub mod msg {
    use super::bindings;

    macro_rules! flags {
        ($($name:ident = $c:ident;)*) => { $(
            #[doc = concat!("`", stringify!($c), "`.")]
            pub const $name: u32 = bindings::$c as u32;
        )* };
    }

    flags! {
        OOB = MSG_OOB;
        PEEK = MSG_PEEK;
        DONTROUTE = MSG_DONTROUTE;
        CTRUNC = MSG_CTRUNC;
        TRUNC = MSG_TRUNC;
        DONTWAIT = MSG_DONTWAIT;
        EOR = MSG_EOR;
        WAITALL = MSG_WAITALL;
        NOSIGNAL = MSG_NOSIGNAL;
        MORE = MSG_MORE;
        ERRQUEUE = MSG_ERRQUEUE;
        FASTOPEN = MSG_FASTOPEN;
        ZEROCOPY = MSG_ZEROCOPY;
        SPLICE_PAGES = MSG_SPLICE_PAGES;
    }
}

/// Bits of what `poll` returns.
pub mod poll {
    use super::bindings;

    macro_rules! bits {
        ($($name:ident = $c:ident;)*) => { $(
            #[doc = concat!("`", stringify!($c), "`.")]
            pub const $name: u32 = bindings::$c;
        )* };
    }

    bits! {
        IN = EPOLLIN;
        PRI = EPOLLPRI;
        OUT = EPOLLOUT;
        ERR = EPOLLERR;
        HUP = EPOLLHUP;
        RDHUP = EPOLLRDHUP;
        RDNORM = EPOLLRDNORM;
        RDBAND = EPOLLRDBAND;
        WRNORM = EPOLLWRNORM;
        WRBAND = EPOLLWRBAND;
    }
}

/// States of `sk_state`, which are those of TCP.
pub mod state {
    use super::bindings;

    macro_rules! states {
        ($($name:ident = $c:ident;)*) => { $(
            #[doc = concat!("`", stringify!($c), "`.")]
            pub const $name: u8 = bindings::$c as u8;
        )* };
    }

    states! {
        ESTABLISHED = TCP_ESTABLISHED;
        SYN_SENT = TCP_SYN_SENT;
        SYN_RECV = TCP_SYN_RECV;
        FIN_WAIT1 = TCP_FIN_WAIT1;
        FIN_WAIT2 = TCP_FIN_WAIT2;
        TIME_WAIT = TCP_TIME_WAIT;
        CLOSE = TCP_CLOSE;
        CLOSE_WAIT = TCP_CLOSE_WAIT;
        LAST_ACK = TCP_LAST_ACK;
        LISTEN = TCP_LISTEN;
        CLOSING = TCP_CLOSING;
    }
}

/// Levels and names of socket options.
pub mod opt {
    use super::bindings;

    macro_rules! options {
        ($($name:ident)*) => { $(
            #[doc = concat!("`", stringify!($name), "`.")]
            pub const $name: i32 = bindings::$name as i32;
        )* };
    }

    options! {
        SOL_SOCKET SOL_TCP SOL_IP SOL_IPV6
        SO_REUSEADDR SO_REUSEPORT SO_KEEPALIVE SO_LINGER SO_OOBINLINE SO_SNDBUF SO_RCVBUF
        SO_SNDBUFFORCE SO_RCVBUFFORCE SO_RCVLOWAT SO_MARK SO_PRIORITY SO_BINDTODEVICE
        SO_BINDTOIFINDEX SO_ERROR SO_BROADCAST SO_ZEROCOPY
        SO_TIMESTAMP_OLD SO_TIMESTAMP_NEW SO_TIMESTAMPNS_OLD SO_TIMESTAMPNS_NEW
        SO_TIMESTAMPING_OLD SO_TIMESTAMPING_NEW SO_BUSY_POLL SO_PREFER_BUSY_POLL
        SO_BUSY_POLL_BUDGET SO_INCOMING_CPU SO_ATTACH_FILTER SO_ATTACH_BPF
        SO_ATTACH_REUSEPORT_CBPF SO_ATTACH_REUSEPORT_EBPF SO_DETACH_FILTER
        SO_DETACH_REUSEPORT_BPF SO_LOCK_FILTER SO_MAX_PACING_RATE SO_RXQ_OVFL
        SO_SELECT_ERR_QUEUE SO_BUF_LOCK SO_CNX_ADVICE SO_PEEK_OFF
        TCP_NODELAY TCP_MAXSEG TCP_CORK TCP_KEEPIDLE TCP_KEEPINTVL TCP_KEEPCNT TCP_SYNCNT
        TCP_LINGER2 TCP_DEFER_ACCEPT TCP_WINDOW_CLAMP TCP_INFO TCP_QUICKACK TCP_CONGESTION
        TCP_MD5SIG TCP_USER_TIMEOUT TCP_FASTOPEN TCP_FASTOPEN_CONNECT TCP_FASTOPEN_KEY
        TCP_FASTOPEN_NO_COOKIE TCP_SAVE_SYN TCP_SAVED_SYN TCP_REPAIR TCP_ULP TCP_INQ
        TCP_ZEROCOPY_RECEIVE TCP_NOTSENT_LOWAT TCP_AO_ADD_KEY
        IP_TOS IPV6_V6ONLY IPV6_TCLASS IPV6_ADDRFORM IPV6_FLOWLABEL_MGR
    }
}

/// Numbers of `ioctl` which stream sockets know.
pub mod ioctl {
    use super::bindings;

    /// `SIOCINQ`, also `FIONREAD`: bytes to be read.
    pub const INQ: u32 = bindings::SIOCINQ_CMD;
    /// `SIOCOUTQ`: bytes which are not acknowledged.
    pub const OUTQ: u32 = bindings::SIOCOUTQ_CMD;
    /// `SIOCOUTQNSD`: bytes which are not sent.
    pub const OUTQNSD: u32 = bindings::SIOCOUTQNSD_CMD;
    /// `SIOCATMARK`: is the next byte to be read the urgent one?
    pub const ATMARK: u32 = bindings::SIOCATMARK_CMD;
}

/// Bit of the shutdown mask: nothing more is received.
pub const RCV_SHUTDOWN: u8 = bindings::RCV_SHUTDOWN as u8;
/// Bit of the shutdown mask: nothing more is sent.
pub const SEND_SHUTDOWN: u8 = bindings::SEND_SHUTDOWN as u8;
/// Both bits of the shutdown mask.
pub const SHUTDOWN_MASK: u8 = bindings::SHUTDOWN_MASK as u8;
