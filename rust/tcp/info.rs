// SPDX-License-Identifier: GPL-2.0

//! What a TCP socket tells about itself.

use super::TcpSocket;
use crate::bindings;
use crate::sock::{
    Sk,
    Socket, //
};
use core::mem::size_of;

/// Options of a TCP socket that also say how data of another path is to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Settings {
    /// `TCP_NODELAY`.
    pub nodelay: bool,
    /// `TCP_CORK`.
    pub cork: bool,
    /// `TCP_USER_TIMEOUT` in milliseconds; 0 for none.
    pub user_timeout: u32,
    /// `TCP_NOTSENT_LOWAT`, by the option or for the namespace: `u32::MAX` for none.
    pub unsent_limit: u32,
    /// `TCP_KEEPIDLE` in milliseconds.
    pub keepalive: u32,
}

/// What takes the place of TCP's own figures for data of another path, for [`Info::replace`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Figures {
    /// State, one of [`state`](crate::sock::state).
    pub state: u8,
    /// Messages that are not confirmed.
    pub unacked: u32,
    /// Bytes that wait to be sent.
    pub notsent: u32,
    /// Bytes sent, of these known to have arrived, and received.
    pub bytes_sent: u64,
    /// See `bytes_sent`.
    pub bytes_acked: u64,
    /// See `bytes_sent`.
    pub bytes_received: u64,
    /// Messages sent, and those of them with data.
    pub segs_out: u32,
    /// See `segs_out`.
    pub data_segs_out: u32,
    /// Messages received, and those of them with data.
    pub segs_in: u32,
    /// See `segs_in`.
    pub data_segs_in: u32,
    /// Milliseconds since data was last sent, and received.
    pub since_sent: u32,
    /// See `since_sent`.
    pub since_received: u32,
    /// Bytes that the peer has room for, and that we have room for.
    pub send_window: u32,
    /// See `send_window`.
    pub receive_window: u32,
}

/// The value of `TCP_INFO`: a `tcp_info` as bytes, since programs get its padding as well.
#[repr(C, align(8))]
pub struct Info([u8; size_of::<bindings::tcp_info>()]);

impl Info {
    /// Puts figures of another path in the places of TCP's own. What TCP has measured of the way to
    /// the peer stays.
    pub fn replace(&mut self, figures: &Figures) {
        // SAFETY: As large as a `tcp_info` and aligned for it; any bytes are valid for its numbers.
        let info = unsafe { &mut *self.0.as_mut_ptr().cast::<bindings::tcp_info>() };
        info.tcpi_state = figures.state;
        info.tcpi_unacked = figures.unacked;
        info.tcpi_notsent_bytes = figures.notsent;
        info.tcpi_bytes_sent = figures.bytes_sent;
        info.tcpi_bytes_acked = figures.bytes_acked;
        info.tcpi_bytes_received = figures.bytes_received;
        info.tcpi_segs_out = figures.segs_out;
        info.tcpi_data_segs_out = figures.data_segs_out;
        info.tcpi_segs_in = figures.segs_in;
        info.tcpi_data_segs_in = figures.data_segs_in;
        info.tcpi_delivered = figures.data_segs_out.saturating_sub(figures.unacked);
        info.tcpi_last_data_sent = figures.since_sent;
        info.tcpi_last_data_recv = figures.since_received;
        info.tcpi_last_ack_recv = info.tcpi_last_ack_recv.min(figures.since_received);
        info.tcpi_snd_wnd = figures.send_window;
        info.tcpi_rcv_wnd = figures.receive_window;
    }

    /// The value as programs get it.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl TcpSocket {
    /// `TCP_INFO`. Process context.
    pub fn info(&self) -> Info {
        let mut info = Info([0; size_of::<bindings::tcp_info>()]);
        // SAFETY: The sock exists; `info` is as large as a `tcp_info`, and aligned for it.
        unsafe { bindings::tcp_get_info(self.sk().cast(), info.0.as_mut_ptr().cast()) };
        info
    }

    /// Options that matter for another path. May be called in events.
    pub fn settings(&self) -> Settings {
        // SAFETY: The sock exists.
        let (nagle, user_timeout, unsent_limit, keepalive) = unsafe {
            (
                bindings::tcp_nonagle(self.sk()),
                bindings::tcp_user_timeout(self.sk()),
                bindings::tcp_unsent_limit(self.sk()),
                bindings::tcp_keepalive_time(self.sk()),
            )
        };
        Settings {
            nodelay: nagle & bindings::TCP_NAGLE_OFF != 0,
            cork: nagle & bindings::TCP_NAGLE_CORK != 0,
            user_timeout,
            unsent_limit,
            keepalive,
        }
    }

    /// `SO_PRIORITY`, which `IP_TOS` sets as well.
    pub fn priority(&self) -> u32 {
        // SAFETY: The sock exists.
        unsafe { bindings::sk_priority(self.sk()) }
    }

    /// The traffic class byte of its packets: `IP_TOS`, or `IPV6_TCLASS` where they are IPv6. May
    /// be called in events.
    pub fn traffic_class(&self) -> u8 {
        // SAFETY: The sock exists.
        unsafe { bindings::tcp_traffic_class(self.sk()) }
    }

    /// The most that `SO_RCVLOWAT` can be for a socket above.
    pub fn rcvlowat_limit<T: Socket>(outer: &Sk<T>) -> i32 {
        // SAFETY: The sock exists.
        unsafe { bindings::tcp_rcvlowat_limit(outer.as_ptr()) }
    }

    /// `TCP_DEFER_ACCEPT` in seconds; 0 for none. TCP keeps it as the number of SYN-ACKs that are
    /// sent at intervals of 1, 2, 4, ... seconds until then.
    pub fn defer_accept(&self) -> u32 {
        // SAFETY: The sock exists.
        let count = unsafe { bindings::tcp_defer_accept(self.sk()) };
        !(u32::MAX << u32::from(count).min(16))
    }
}
