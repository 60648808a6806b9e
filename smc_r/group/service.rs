// SPDX-License-Identifier: GPL-2.0

//! The group's work item: timers and events of the LLC engine, and the group's end.

use kapi::workqueue;
use kernel::{
    prelude::*,
    sync::{atomic::Relaxed, Arc}, //
};
use smc_proto::{
    group::MAX_LINKS,
    handshake::LinkResult,
    llc_flow::{
        DownReason,
        Event,
        ShutDown, //
    },
    timer::Time, //
};

use super::{making::Task, Announced, Drain, Group, Known};
use crate::{
    clock::{ms_until, now},
    device::{Device, Path},
    events,
    link::{Link, STUCK}, //
};

/// Tag type: the group's work item.
pub(super) struct Service;

impl workqueue::Handler<Arc<Group>> for Service {
    fn run(group: Arc<Group>) {
        group.serve();
    }
}

/// How long a port may be down before the links on it are given up, in milliseconds: about as long
/// as a queue pair repeats what is not acknowledged.
pub(super) const PORT_GRACE: u32 = 4_000;

/// Tag type: looks whether a port that went down has come back.
pub(super) struct PortCheck;

impl workqueue::Handler<Arc<Group>> for PortCheck {
    fn run(group: Arc<Group>) {
        for link in group.links() {
            let path = &link.path;
            if !path.device.port(path.port).is_ok_and(|port| port.active) {
                // Another one may be in its place by now.
                group.link_broke(&link);
            }
        }
    }
}

impl Group {
    /// Ends the group: the peer is told, connections are aborted. Any context.
    pub(crate) fn shut_down(self: &Arc<Self>, why: ShutDown) {
        self.with_flow(|flow, _, now| flow.shut_down(why, now));
    }

    /// Wants no new connections from now on, or wants them again as far as `who` is concerned. The group
    /// ends when it has none.
    pub(crate) fn drain(self: &Arc<Self>, who: Drain, on: bool) {
        self.drain_if(who, || on);
    }

    /// The same if the port of this link is drained, on which all depends.
    pub(super) fn drain_with_port(self: &Arc<Self>, path: &Path) {
        self.drain_if(Drain::Port, || path.device.is_drained(path.port));
    }

    /// What is asked for is looked at with the lock held under which [`Group::review_port_drain`] looks for the answer.
    fn drain_if(self: &Arc<Self>, who: Drain, on: impl FnOnce() -> bool) {
        {
            let _flow = self.flow.lock();
            let others = self.drained.load(Relaxed) & !(who as u32);
            let own = if on() { who as u32 } else { 0 };
            self.drained.store(others | own, Relaxed);
        }
        self.ns.shared.groups.note_drain();
        self.end_if_drained();
    }

    /// Takes a link out of use: its connections go on on another one. If there is none, the whole
    /// group is drained.
    pub(crate) fn drain_link(self: &Arc<Self>, who: Drain, link: &Link) {
        let stays = self.with_flow(|flow, _, now| {
            let up = flow.is_link_up(link.place) || !flow.is_usable();
            up && !flow.delete_link(link.place, now)
        });
        match who {
            _ if !stays => {}
            Drain::Port => self.drain_with_port(&link.path),
            Drain::Group => self.drain(who, true),
        }
    }

    /// Takes its links on a device out of use, which still works for now, if it has any elsewhere. True if there
    /// is something to wait for.
    pub(super) fn leave(self: &Arc<Self>, device: &Arc<Device>) -> bool {
        let on_it = |link: &Arc<Link>| link.path.is_of(device);
        if self.links().all(|link| on_it(&link)) {
            return false;
        }
        let mut asked = false;
        for link in self.links().filter(on_it) {
            asked |= self.with_flow(|flow, _, now| flow.delete_link(link.place, now));
        }
        asked
    }

    /// True until connections have left a device for another one's links.
    pub(super) fn is_leaving(&self, device: &Arc<Device>) -> bool {
        let on_it = |link: Arc<Link>| link.path.is_of(device);
        self.is_usable() && self.links().any(on_it) && !self.links().all(on_it)
    }

    /// A port is drained no more: the group is in use again if all depended on that, and what it still has on drained ports
    /// is not.
    pub(crate) fn review_port_drain(self: &Arc<Self>) {
        if self.depends_on_drained() {
            self.leave_drained_ports();
        }
    }

    fn depends_on_drained(&self) -> bool {
        let _flow = self.flow.lock();
        self.drained.load(Relaxed) & Drain::Port as u32 != 0
    }

    /// Takes what is on drained ports out of use; the whole group if it has no other link. Asked whenever there is one link more or
    /// less, the first one included: what was to go stays if the one fails that was to be there instead.
    pub(super) fn leave_drained_ports(self: &Arc<Self>) {
        if !self.is_usable() {
            return;
        }
        let is_drained = |link: &Arc<Link>| link.path.device.is_drained(link.path.port);
        let has_other = self.links().any(|link| !is_drained(&link));
        if has_other && self.depends_on_drained() {
            self.drain(Drain::Port, false);
        }
        self.links()
            .filter(is_drained)
            .for_each(|link| self.drain_link(Drain::Port, &link));
    }

    /// Are no new connections wanted?
    pub(crate) fn is_drained(&self) -> bool {
        self.drained.load(Relaxed) != 0
    }

    /// Ends the group if it is drained and nothing is left.
    pub(super) fn end_if_drained(self: &Arc<Self>) {
        let ends = {
            let guard = self.flow.lock();
            self.is_drained() && guard.flow.connections() == 0
        };
        if ends {
            self.shut_down(ShutDown::Operator);
        }
    }

    /// Gives up a group whose first contact fell back, which both sides know, or failed. A connection that
    /// fails when the first contact is over leaves the group alone: false then. Process context.
    pub(crate) fn abandon(self: &Arc<Self>, agreed: bool) -> bool {
        let is_over = self.with_flow(|flow, _, _| flow.abandon(agreed));
        self.abandoned(is_over)
    }

    /// The same for a first contact whose connection nobody wants any more: false as well where its peer may use that
    /// already.
    pub(crate) fn settle(self: &Arc<Self>) -> bool {
        let is_over = self.with_flow(|flow, _, _| flow.settle());
        self.abandoned(is_over)
    }

    fn abandoned(self: &Arc<Self>, is_over: bool) -> bool {
        if is_over {
            self.retire();
            self.release();
        } else {
            // Nobody waits for the outcome any more.
            let _first = self.waiters.lock().first.take();
        }
        is_over
    }

    /// A link whose address is gone carries nothing any more, not even new connections.
    fn check_addresses(self: &Arc<Self>) {
        for link in self.links().filter(|link| !link.path.exists()) {
            self.link_lost(link.place);
        }
    }

    /// A link that does not get rid of its messages is of no use; and while it has them, neither their
    /// connections nor the group can end.
    fn fail_stuck_links(self: &Arc<Self>) {
        for link in self.links().filter(|link| link.is_stuck()) {
            pr_debug!(
                "smc_r: link group {:08x}: a peer takes no messages\n",
                self.id
            );
            self.link_broke(&link);
        }
    }

    /// Timers and events of the LLC engine. Work item.
    fn serve(self: &Arc<Self>) {
        self.fail_stuck_links();
        if self.recheck.xchg(0, Relaxed) != 0 {
            self.check_addresses();
        }
        loop {
            let (event, wait) = {
                let mut guard = self.flow.lock();
                for link in self.links() {
                    let last = Time::from_millis(link.last_received());
                    guard.flow.note_activity(link.place, last);
                }
                guard.flow.handle_timeout(now());
                self.flush(&mut guard);
                let deadline = guard.flow.next_deadline().map(ms_until);
                let look = (!guard.flow.is_over()).then_some(STUCK);
                (
                    guard.flow.poll_event(),
                    deadline.min(look).or(deadline).or(look),
                )
            };
            match event {
                Some(event) => self.handle_event(event),
                None if self.quiet.xchg(0, Relaxed) != 0 => self.confirm_writes(),
                None if self.look_out.xchg(0, Relaxed) != 0 => self.offer_later(),
                None => {
                    if let Some(ms) = wait {
                        self.service
                            .enqueue_after(self.ns.queue(), self.clone(), ms);
                    }
                    return;
                }
            }
        }
    }

    fn handle_event(self: &Arc<Self>, event: Event) {
        match event {
            Event::FirstContact(result) => self.first_contact_over(result),
            Event::RkeyConfirmed(id) => {
                self.pools.lock().set_known(id, Known::Yes);
                self.wake_waiters();
            }
            Event::RkeyRefused(id) => {
                // First: the pools have no place for another one before the table has.
                self.strike_rmb(id);
                self.pools.lock().set_known(id, Known::Refused);
                self.wake_waiters();
            }
            Event::RkeyDeleted(id) => {
                self.strike_rmb(id);
                self.pools.lock().forget(id);
                self.trim_next(Some(id));
            }
            Event::PeerRmbGone(slot) => {
                let over = self.abort_users_of(slot);
                self.rmb_abandoned(over);
            }
            // Nothing is reserved.
            Event::SpareFree => {}
            Event::MakeLink {
                attempt,
                spare_only,
            } => self.make_later(Task::Make {
                attempt,
                spare_only,
            }),
            Event::AcceptLink {
                attempt,
                spare_only,
            } => self.make_later(Task::Accept {
                attempt,
                spare_only,
            }),
            Event::ConnectLink(attempt) => self.make_later(Task::Connect(attempt)),
            Event::LinkUp(link) => self.link_up(link),
            Event::LinkDown(link, reason) => self.link_down(link, reason),
            Event::LinkGone(link) => self.link_gone(link),
            Event::Hold => self.hold_connections(),
            Event::Seal => {
                let which = self.flow.lock().flow.sealing();
                self.seal_links();
                self.with_flow(|flow, _, now| flow.links_sealed(which, now));
            }
            Event::Resume => {
                self.seal_links();
                self.for_each_connection(|member| member.hold(|_| false));
            }
            Event::WritesArrived(link) => self.writes_arrived(link),
            Event::LinkWanted => self.offer_later(),
            Event::Down(reason) => {
                self.log_down(reason);
                if matches!(reason, DownReason::LinkFailed(_)) {
                    self.links().for_each(|link| link.fail());
                }
                self.retire();
            }
            Event::Release => self.release(),
        }
    }

    fn first_contact_over(self: &Arc<Self>, result: LinkResult) {
        // It may have been given up in the meantime.
        if matches!(result, LinkResult::Up) && self.is_usable() {
            self.tell_of_first_contact();
            // It may be that no more, and nobody has looked as long as there was no link.
            self.leave_drained_ports();
        }
        let first = self.waiters.lock().first.take();
        if let Some(handshake) = first {
            handshake.link_decided(result);
        }
        self.wake_waiters();
    }

    fn tell_of_first_contact(&self) {
        if !self.announce(Announced::Not, Announced::Telling) {
            return;
        }
        events::group_added(self);
        // They may have left it when they are told to be down.
        let mut links = self.links();
        let links: [_; MAX_LINKS] = core::array::from_fn(|_| links.next());
        links
            .iter()
            .flatten()
            .for_each(|link| self.announce_up(link));
        // Or its end has come meanwhile, and has left the rest to us.
        if !self.announce(Announced::Telling, Announced::There) {
            self.tell_of_end(links.into_iter().flatten());
        }
    }

    /// Notes what listeners are told; false if it is not `from` any more.
    fn announce(&self, from: Announced, to: Announced) -> bool {
        let (from, to) = (from as u32, to as u32);
        self.announced.cmpxchg(from, to, Relaxed).is_ok()
    }

    fn tell_of_end(&self, links: impl Iterator<Item = Arc<Link>>) {
        links.for_each(|link| self.announce_down(&link));
        events::group_removed(self);
    }

    /// Tells listeners of a link, unless they know it or it is down by now.
    pub(super) fn announce_up(&self, link: &Link) {
        let number = {
            let guard = self.flow.lock();
            let up = guard.flow.is_link_up(link.place);
            guard.flow.link_number(link.place).filter(|_| up)
        };
        if let Some(number) = number.filter(|number| link.announce_up(*number)) {
            events::link_up(self, link, number);
        }
    }

    /// Tells listeners that a link is down, if they know it.
    pub(super) fn announce_down(&self, link: &Link) {
        if let Some(number) = link.announce_down() {
            events::link_down(self, link, number);
        }
    }

    fn log_down(&self, reason: DownReason) {
        match reason {
            DownReason::Idle | DownReason::Local => {}
            DownReason::LinkFailed(_) | DownReason::PeerDeleted(_) => {
                self.ns.stats.group_lost();
            }
        }
        pr_debug!("smc_r: link group {:08x} down: {:?}\n", self.id, reason);
    }

    /// Nobody finds the group any more, and its connections end. Process context.
    fn retire(self: &Arc<Self>) {
        self.ns.shared.groups.remove(self);
        if self.announced.xchg(Announced::Over as u32, Relaxed) == Announced::There as u32 {
            self.tell_of_end(self.links());
        }
        self.pools.lock().refuse_pending();
        self.for_each_connection(|member| member.link_failed());
        self.wake_waiters();
    }

    /// Takes the queue pairs apart: the end of the group. Process context.
    pub(super) fn release(self: &Arc<Self>) {
        self.port_check.cancel();
        self.ring_watch.cancel();
        for place in 0..MAX_LINKS {
            let link = self
                .links
                .lock()
                .places
                .get_mut(place)
                .and_then(Option::take);
            if let Some(link) = link {
                link.shutdown();
            }
        }
        self.shut_down_gone();
        if self.released.xchg(1, Relaxed) == 0 {
            self.ns.shared.groups.note_released();
        }
        self.free_idle();
        self.ns.shared.groups.note_link();
        self.first_contact_lost();
        self.wake_waiters();
    }

    /// A rendezvous that still waits for its link waits in vain.
    fn first_contact_lost(&self) {
        let first = self.waiters.lock().first.take();
        if let Some(handshake) = first {
            handshake.group_news();
        }
    }
}
