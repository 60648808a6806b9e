// SPDX-License-Identifier: GPL-2.0

//! What a group's links report: messages, completions, slots, the end.

use kernel::sync::{atomic::Relaxed, Arc};
use smc_proto::{
    cdc::Cdc,
    group::LinkIx,
    llc_flow::Note,
    timer::Time, //
};

use super::{service::PORT_GRACE, ConnToken, Group};
use crate::{conn, link::Link};

impl Group {
    /// A CDC message came in over a link. Softirq.
    pub(crate) fn cdc_received(&self, link: LinkIx, cdc: &Cdc) {
        let found = ConnToken::new(cdc.token.0)
            .ok_or(false)
            .and_then(|token| Ok((token, self.table.lock().find_or_keep(token, link, cdc)?)));
        match found {
            Ok((token, sk)) => conn::received(&sk, self, token, link, cdc),
            // What was on its way when the group ended is no fault.
            Err(kept) => {
                if !kept && !self.is_over() {
                    self.ns.stats.cdc_dropped();
                }
            }
        }
    }

    /// An LLC message came in. Softirq.
    pub(crate) fn llc_received(self: &Arc<Self>, link: LinkIx, message: &[u8]) {
        let (before, after) = self.with_flow(|flow, peers, now| {
            let before = flow.counters();
            if let Some(link) = self.link(link) {
                let last = Time::from_millis(link.last_received());
                flow.note_activity(link.place, last);
            }
            flow.handle_received(link, message, peers, now);
            (before, flow.counters())
        });
        self.ns.stats.llc_faults(
            after.dropped.saturating_sub(before.dropped),
            after.refused.saturating_sub(before.refused),
            after.violations.saturating_sub(before.violations),
        );
    }

    /// An LLC message was completed. Softirq.
    pub(crate) fn llc_sent(self: &Arc<Self>, link: LinkIx, note: Note, ok: bool) {
        self.with_flow(|flow, _, now| flow.handle_sent(link, note, ok, now));
    }

    /// A slot is free: for LLC messages first.
    pub(crate) fn llc_room(self: &Arc<Self>) {
        if self.backlog.load(Relaxed) != 0 {
            self.with_flow(|_, _, _| ());
        }
    }

    /// A link failed. Any context.
    pub(crate) fn link_failed(self: &Arc<Self>, link: LinkIx) {
        self.with_flow(|flow, _, now| flow.handle_link_failed(link, now));
    }

    /// What becomes of first contacts from now on may be due to our own end.
    pub(super) fn note_disturbance(&self) {
        self.disturbed.store(1, Relaxed);
    }

    /// Our own end of a link is gone. Any context.
    pub(crate) fn link_lost(self: &Arc<Self>, link: LinkIx) {
        self.note_disturbance();
        self.link_failed(link);
    }

    /// A link turned out not to take anything. Any context.
    pub(crate) fn link_broke(self: &Arc<Self>, link: &Arc<Link>) {
        let there = self.link(link.place);
        if there.is_some_and(|there| Arc::ptr_eq(&there, link)) {
            self.link_failed(link.place);
        }
    }

    /// The port of a link went down. Where there is another link, that carries on. Else a short
    /// interruption is ridden out, as TCP does; a longer one ends the link.
    pub(crate) fn port_down(self: &Arc<Self>, link: &Link) {
        self.note_disturbance();
        let has_other = {
            let guard = self.flow.lock();
            LinkIx::all().any(|other| other != link.place && guard.flow.is_link_up(other))
        };
        if has_other {
            self.link_failed(link.place);
        } else {
            // Each interruption has its time.
            self.port_check
                .rearm(self.ns.queue(), self.clone(), PORT_GRACE);
        }
    }

    /// There may be another port for a link.
    pub(crate) fn look_out(self: &Arc<Self>) {
        self.look_out.store(1, Relaxed);
        self.service.rearm(self.ns.queue(), self.clone(), 0);
    }

    /// A connection that is to move waits until all that it has posted is known to have arrived. Any context.
    pub(crate) fn connection_quiet(self: &Arc<Self>) {
        self.quiet.store(1, Relaxed);
        self.service.rearm(self.ns.queue(), self.clone(), 0);
    }

    /// The addresses of a link's port changed. They cannot be asked for here.
    pub(crate) fn addresses_changed(self: &Arc<Self>) {
        self.recheck.store(1, Relaxed);
        self.service.rearm(self.ns.queue(), self.clone(), 0);
    }

    /// Send slots are free: those that wait for one go on, in turn. Softirq.
    pub(crate) fn room(self: &Arc<Self>) {
        self.llc_room();
        let count = self.table.lock().waiting();
        for _ in 0..count {
            // The lock is not held while the connection posts.
            let Some(next) = self.table.lock().next_waiting() else {
                return;
            };
            if let Some(sk) = next {
                conn::resume(&sk);
            }
        }
    }

    /// Puts a connection in the queue for a send slot.
    pub(crate) fn wait_for_room(&self, token: ConnToken) {
        self.table.lock().wait(token);
    }
}
