// SPDX-License-Identifier: GPL-2.0

//! What programs are told about a connection: `TCP_INFO`, and what `SMC_INFO` tells of it.

use kapi::{
    sock::{state as tcp_state, Sk},
    tcp::Figures,
    util::now_ms, //
};
use smc_proto::conn::{Events, Fin, State, Traffic};

use super::{with, Connection};
use crate::socket::SmcSocket;

/// Messages of a connection, and when data last moved (milliseconds since boot).
#[derive(Clone, Copy, Default)]
pub(super) struct Messages {
    sent: u32,
    sent_with_data: u32,
    received: u32,
    received_with_data: u32,
    last_sent: u64,
    last_received: u64,
}

impl Messages {
    /// None yet; data counts as having moved now.
    pub(super) fn new() -> Self {
        let now = now_ms();
        Self {
            last_sent: now,
            last_received: now,
            ..Self::default()
        }
    }

    /// A message left.
    pub(super) fn sent(&mut self, with_data: bool) {
        self.sent = self.sent.wrapping_add(1);
        if with_data {
            self.sent_with_data = self.sent_with_data.wrapping_add(1);
            self.last_sent = now_ms();
        }
    }

    /// A message came in.
    pub(super) fn received(&mut self, with_data: bool) {
        self.received = self.received.wrapping_add(1);
        if with_data {
            self.received_with_data = self.received_with_data.wrapping_add(1);
            self.last_received = now_ms();
        }
    }
}

/// What `SMC_INFO` tells of an accelerated connection.
pub(crate) struct Summary {
    /// Version of SMC.
    pub(crate) version: u8,
    /// Number of the link group, as listings show it.
    pub(crate) group: u32,
    /// Number of the link in the group; 0 if the group is over.
    pub(crate) link: u8,
    /// Sizes in bytes: send buffer, our RMB element, the peer's.
    pub(crate) sizes: [u32; 3],
    /// Bytes written to the peer, and by the peer.
    pub(crate) bytes: [u64; 2],
}

/// What TCP calls a connection that has come so far.
fn state_of(traffic: &Traffic, state: State) -> u8 {
    let shut = traffic.own_end != Fin::None;
    let told = traffic.own_end_reached != Fin::None;
    match (shut, traffic.peer_end != Fin::None) {
        _ if traffic.over => tcp_state::CLOSE,
        (false, false) => tcp_state::ESTABLISHED,
        (false, true) => tcp_state::CLOSE_WAIT,
        (true, false) if told => tcp_state::FIN_WAIT2,
        (true, false) => tcp_state::FIN_WAIT1,
        (true, true) if told => tcp_state::CLOSE,
        (true, true) if state == State::AppCloseWait2 => tcp_state::LAST_ACK,
        (true, true) => tcp_state::CLOSING,
    }
}

/// Milliseconds that have passed since `then`.
fn since(then: u64) -> u32 {
    u32::try_from(now_ms().saturating_sub(then)).unwrap_or(u32::MAX)
}

impl Connection {
    fn figures(&self) -> Figures {
        let traffic = self.core.traffic();
        Figures {
            state: state_of(&traffic, self.core.state()),
            unacked: traffic.in_flight,
            notsent: self.core.send_unsent(),
            bytes_sent: traffic.written,
            bytes_acked: traffic.reached,
            bytes_received: traffic.received,
            segs_out: self.messages.sent,
            data_segs_out: self.messages.sent_with_data,
            segs_in: self.messages.received,
            data_segs_in: self.messages.received_with_data,
            since_sent: since(self.messages.last_sent),
            since_received: since(self.messages.last_received),
            send_window: traffic.window,
            receive_window: traffic.room,
        }
    }
}

/// Figures for `TCP_INFO`; `None` if the connection is over and gone.
pub(crate) fn figures(sk: &Sk<SmcSocket>) -> Option<Figures> {
    with(sk, |connection| {
        // What has arrived by now should soon be known as such: programs ask again.
        connection.core.sync_sent();
        (connection.figures(), Events::default())
    })
}

/// For `SMC_INFO`; `None` without a connection.
pub(crate) fn summary(sk: &Sk<SmcSocket>) -> Option<Summary> {
    let (version, diag, traffic, group, link) = {
        let guard = sk.conn.lock();
        let connection = guard.as_ref()?;
        let (group, link) = (connection.group.clone(), connection.link.clone());
        (
            connection.version,
            connection.core.diag(),
            connection.core.traffic(),
            group,
            link,
        )
    };
    let over = group.is_over();
    Some(Summary {
        version,
        group: group.id,
        link: if over {
            0
        } else {
            group.link_ends(link.place).number
        },
        sizes: [diag.send_ring, diag.element, diag.peer_element],
        bytes: [traffic.written, traffic.received],
    })
}
