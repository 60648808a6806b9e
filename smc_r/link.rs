// SPDX-License-Identifier: GPL-2.0

//! One link of a link group: where its transport reports to.
//!
//! Everything here runs where the transport's completions do, in softirq: spin locks (BH) only, no
//! allocation that may sleep.

use core::ops::Deref;

use kapi::{errno::ENOTCONN, util::now_ms};
use kernel::{
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc,
        SetOnce, //
    },
};
use smc_proto::{
    cdc::{self, Cdc},
    group::{LinkEnd, LinkIx},
    llc_flow::Note,
    wire::LinkNum, //
};

use crate::{
    buffers::{RingMap, Rmb, RmbMr, SendRing},
    conn,
    device::Path,
    group::{ConnToken, Group},
    transport::{
        rc::Rc,
        Chain,
        Local,
        Peer,
        PostError,
        State,
        Transport,
        Upcalls, //
    },
};

/// What a completion is about, packed into the 64 bits that travel with a chain: token and ticket
/// of a connection, or token 0 and the note of an LLC message.
#[derive(Clone, Copy)]
pub(crate) struct Cookie(u64);

impl Cookie {
    const TOKEN_SHIFT: u32 = 32;

    /// A chain of a connection.
    pub(crate) fn data(token: ConnToken, ticket: u32) -> Self {
        Self(u64::from(token.get()) << Self::TOKEN_SHIFT | u64::from(ticket))
    }

    /// An LLC message.
    pub(crate) fn llc(note: Option<Note>) -> Self {
        Self(match note {
            None => 0,
            Some(Note::ConfirmLink) => 1,
            Some(Note::ConfirmLinkReply) => 2,
            Some(Note::Last) => 3,
        })
    }

    fn parts(self) -> (Option<ConnToken>, u32) {
        (
            ConnToken::new((self.0 >> Self::TOKEN_SHIFT) as u32),
            self.0 as u32,
        )
    }

    fn note(number: u32) -> Option<Note> {
        match number {
            1 => Some(Note::ConfirmLink),
            2 => Some(Note::ConfirmLinkReply),
            3 => Some(Note::Last),
            _ => None,
        }
    }
}

impl From<Cookie> for u64 {
    fn from(cookie: Cookie) -> Self {
        cookie.0
    }
}

/// A link.
///
/// The link holds its group and the transport holds the link: the cycle ends when the group shuts
/// the transport down, which every group does at its end.
pub(crate) struct Link {
    pub(crate) group: Arc<Group>,
    /// Its place in the group.
    pub(crate) place: LinkIx,
    /// The port it runs on.
    pub(crate) path: Path,
    transport: SetOnce<Arc<Rc>>,
    /// Connections that send over it.
    load: Atomic<u32>,
    /// The number by which listeners have been told that it is up; 0 if they have not.
    announced: Atomic<u32>,
    /// The peer's writes are not taken.
    sealed: Atomic<u32>,
    /// When a CDC message last came in, for the idle rule of TEST LINK and for links that come to rest.
    last_received: Atomic<u64>,
    /// What the transport waited for when this was looked at last, and since when, or [`NEVER`].
    awaited: Atomic<u32>,
    awaited_since: Atomic<u64>,
}

/// No time.
const NEVER: u64 = u64::MAX;

/// How long a link may be at the same message, in milliseconds. A queue pair gives up sooner where nothing comes
/// back; but a peer that takes no messages can say so for ever (receiver not ready, RNR), and it says nothing about
/// the peer's other messages that it does not take ours.
pub(crate) const STUCK: u32 = 20_000;

impl Link {
    /// A link with a queue pair on `path`, in its first state. Sleeps.
    pub(crate) fn new(group: Arc<Group>, place: LinkIx, path: Path) -> Result<Arc<Self>> {
        let link = Arc::new(
            Self {
                group,
                place,
                path: path.clone(),
                transport: SetOnce::new(),
                load: Atomic::new(0),
                announced: Atomic::new(0),
                sealed: Atomic::new(0),
                last_received: Atomic::new(now_ms()),
                awaited: Atomic::new(0),
                awaited_since: Atomic::new(NEVER),
            },
            GFP_KERNEL,
        )?;
        let upcalls: Arc<dyn Upcalls> = link.clone();
        let (queues, messages) = (link.group.ns.queues(), link.group.messages());
        link.transport
            .populate(Rc::new(&path, queues, messages, upcalls)?);
        Ok(link)
    }

    fn transport(&self) -> Result<&Arc<Rc>> {
        self.transport.as_ref().ok_or(ENOTCONN)
    }

    /// Our end, as CLC and LLC messages name it.
    pub(crate) fn local(&self) -> Option<&Local> {
        Some(self.transport.as_ref()?.local())
    }

    /// Brings the queue pair up to where it receives and sends. Sleeps.
    pub(crate) fn connect(&self, peer: &Peer) -> Result {
        let transport = self.transport()?;
        transport.ready_to_receive(peer)?;
        transport.ready_to_send()
    }

    /// Posts a chain. Any context up to softirq.
    pub(crate) fn post(&self, chain: &Chain<'_>) -> Result<(), PostError> {
        match self.transport.as_ref() {
            Some(transport) => transport.post(chain),
            None => Err(PostError::Down),
        }
    }

    /// Makes a send ring known to the device. Sleeps.
    pub(crate) fn map_ring(&self, ring: &Arc<SendRing>) -> Result<RingMap> {
        self.transport()?.map_ring(ring)
    }

    /// Whether a send ring is mapped for this link.
    pub(crate) fn owns(&self, map: &RingMap) -> bool {
        self.transport
            .as_ref()
            .is_some_and(|transport| transport.owns(map))
    }

    /// How many connections send over it, or are about to.
    pub(crate) fn load(&self) -> u32 {
        self.load.load(Relaxed)
    }

    /// Notes that listeners are told that it is up; false if they know.
    pub(crate) fn announce_up(&self, number: LinkNum) -> bool {
        self.announced.xchg(u32::from(number.get()), Relaxed) == 0
    }

    /// Notes that listeners are told that it is down; gives the number by which they know it, if they do. By now it
    /// may have none in its group.
    pub(crate) fn announce_down(&self) -> Option<LinkNum> {
        LinkNum::new(self.announced.xchg(0, Relaxed) as u8)
    }

    /// Gets a key for an RMB. Sleeps.
    pub(crate) fn alloc_key(&self, rmb: &Arc<Rmb>) -> Result<RmbMr> {
        self.transport()?.alloc_key(rmb)
    }

    /// Has the peer's writes break the link from now on, or be taken again. Where the device cannot do
    /// that, they are taken. Sleeps.
    pub(crate) fn seal(&self, on: bool) {
        if self.is_broken() || self.sealed.load(Relaxed) == u32::from(on) {
            return;
        }
        let done = match self.transport.as_ref() {
            Some(transport) => transport.take_writes(!on),
            None => return,
        };
        match done {
            Ok(()) => self.sealed.store(u32::from(on), Relaxed),
            Err(e) => pr_debug!("smc_r: a link cannot be sealed, or opened: {:?}\n", e),
        }
    }

    /// Lets nothing more be posted. [`Link::shutdown`] has to follow. Any context.
    pub(crate) fn fail(&self) {
        if let Some(transport) = self.transport.as_ref() {
            transport.fail();
        }
    }

    /// Nothing is posted or reported any more when this returns. [`Link::shutdown`] has to follow. Sleeps,
    /// but does not wait for the device to let go of the queue pair, which takes one of rxe up to 3 seconds
    /// when its carrier is gone, unless the device refuses to stop it.
    pub(crate) fn stop(&self) {
        if let Some(transport) = self.transport.as_ref() {
            transport.stop();
        }
    }

    /// Ends the link: nothing is posted or reported any more when this returns. Sleeps.
    pub(crate) fn shutdown(&self) {
        if let Some(transport) = self.transport.as_ref() {
            transport.shutdown();
        }
    }

    /// True while the queue pair works.
    pub(crate) fn is_up(&self) -> bool {
        self.transport
            .as_ref()
            .is_some_and(|transport| matches!(transport.state(), State::Receiving | State::Sending))
    }

    /// True once it is of no use any more, or if it never was.
    pub(crate) fn is_broken(&self) -> bool {
        self.transport
            .as_ref()
            .is_none_or(|transport| matches!(transport.state(), State::Failed | State::Gone))
    }

    /// True while it can send.
    pub(crate) fn is_sending(&self) -> bool {
        self.transport
            .as_ref()
            .is_some_and(|transport| transport.state() == State::Sending)
    }

    /// True if the group has it, at its place.
    fn is_there(&self) -> bool {
        let there = self.group.link(self.place);
        there.is_some_and(|there| core::ptr::eq(Arc::as_ptr(&there), self))
    }

    /// Whether it has been at the same message for [`STUCK`] since this was first asked about that; once each time. To
    /// be asked again after that time at the latest; by one at a time.
    pub(crate) fn is_stuck(&self) -> bool {
        let awaited = self.transport.as_ref().and_then(|rc| rc.awaited());
        let Some(awaited) = awaited else {
            self.awaited_since.store(NEVER, Relaxed);
            return false;
        };
        let since = self.awaited_since.load(Relaxed);
        if since == NEVER || self.awaited.load(Relaxed) != awaited {
            self.awaited.store(awaited, Relaxed);
            self.awaited_since.store(now_ms(), Relaxed);
            return false;
        }
        let is_stuck = now_ms().saturating_sub(since) >= u64::from(STUCK);
        if is_stuck {
            self.awaited_since.store(now_ms(), Relaxed);
        }
        is_stuck
    }

    /// When a CDC message last came in, in milliseconds.
    pub(crate) fn last_received(&self) -> u64 {
        self.last_received.load(Relaxed)
    }
}

/// A connection's place on a link.
pub(crate) struct Seat {
    link: Arc<Link>,
    is_counted: bool,
}

impl Seat {
    /// Counts a connection in.
    pub(crate) fn new(link: Arc<Link>) -> Self {
        link.load.fetch_add(1, Relaxed);
        Self {
            link,
            is_counted: true,
        }
    }

    /// A connection that is about to go elsewhere counts there alone, until it stays after all.
    pub(crate) fn count(&mut self, on: bool) {
        if self.is_counted != on {
            self.is_counted = on;
            if on {
                self.link.load.fetch_add(1, Relaxed);
            } else {
                self.link.load.fetch_sub(1, Relaxed);
            }
        }
    }
}

impl Deref for Seat {
    type Target = Arc<Link>;

    fn deref(&self) -> &Arc<Link> {
        &self.link
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.count(false);
    }
}

impl Upcalls for Link {
    fn received(&self, message: &[u8]) {
        if message.first() != Some(&cdc::TYPE) {
            self.group.llc_received(self.place, message);
            return;
        }
        self.last_received.store(now_ms(), Relaxed);
        match Cdc::parse(message) {
            Ok(cdc) => self.group.cdc_received(self.place, &cdc),
            // A damaged message is for the LLC engine, which ends the link.
            Err(_) => self.group.llc_received(self.place, message),
        }
    }

    fn sent(&self, cookie: u64, ok: bool) {
        match Cookie(cookie).parts() {
            (Some(token), ticket) => {
                if let Some(sk) = self.group.connection(token) {
                    conn::sent(&sk, &self.group, token, ticket, ok);
                }
            }
            (None, number) => {
                // What a link said that has left its place is not about who comes there; that the group ends
                // was said for all of them.
                let note =
                    Cookie::note(number).filter(|note| *note == Note::Last || self.is_there());
                if let Some(note) = note {
                    self.group.llc_sent(self.place, note, ok);
                }
            }
        }
        self.group.llc_room();
    }

    fn room(&self) {
        self.group.room();
    }

    fn failed(&self) {
        // One that the group does not have, or not any more, concerns nobody but its maker.
        if self.is_there() {
            self.group.link_failed(self.place);
        }
    }
}

impl From<&Local> for LinkEnd {
    fn from(local: &Local) -> Self {
        Self {
            mac: local.mac,
            gid: local.gid,
            qp: local.qpn,
            mtu: local.mtu,
            psn: local.psn,
        }
    }
}

impl From<&LinkEnd> for Peer {
    fn from(end: &LinkEnd) -> Self {
        Self {
            qpn: end.qp,
            psn: end.psn,
            gid: end.gid,
            mac: end.mac,
            mtu: end.mtu,
        }
    }
}
