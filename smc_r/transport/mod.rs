// SPDX-License-Identifier: GPL-2.0

//! What a link runs on: messages in order, and writes to the peer's memory before them.
//!
//! RFC 7609 section 2.2 has reliable connected queue pairs in mind, [`rc`]; the shape leaves room
//! for others.
//!
//! # Life
//!
//! A transport is made in the state [`State::Reset`], where its numbers are known. It then goes to
//! [`State::Receiving`], once the peer's numbers are known too, and to [`State::Sending`].
//!
//! It holds its [`Upcalls`], usually the link, and the link holds it: a cycle on purpose, which
//! [`Transport::shutdown`] breaks. Whoever made a transport shuts it down; the removal of its
//! device does so too, see [`Devices`](crate::device::Devices).

pub(crate) mod rc;

use crate::buffers::{
    RingMap,
    Rmb,
    RmbMr,
    SendRing, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use smc_proto::{
    conn::Write,
    group::MAX_PEER_RMBS,
    llc::v2::RTokenPairWire,
    llc_flow::FRAME_MAX,
    wire::{
        Gid,
        Mac,
        MtuCode,
        Psn,
        QpNum,
        RKey, //
    },
};

/// The longest message a version 1 peer takes.
pub(crate) const MAX_MESSAGE: usize = 48;

/// The longest message of version 2 that we send: ADD LINK with the keys of as many buffers as a group
/// has at most.
pub(crate) const LONG_MESSAGE: usize = FRAME_MAX + MAX_PEER_RMBS * size_of::<RTokenPairWire>();

/// Our numbers, for the peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Local {
    pub(crate) qpn: QpNum,
    pub(crate) psn: Psn,
    pub(crate) gid: Gid,
    pub(crate) mac: Mac,
    pub(crate) mtu: MtuCode,
}

/// The peer's numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) qpn: QpNum,
    pub(crate) psn: Psn,
    pub(crate) gid: Gid,
    pub(crate) mac: Mac,
    pub(crate) mtu: MtuCode,
}

/// Where writes of a chain go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    /// The address that their offsets count from.
    pub(crate) address: u64,
    pub(crate) rkey: RKey,
}

/// Who posts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// A connection. Never gets the slots that are kept for control messages.
    Data,
    /// The link itself.
    Control,
}

/// Posted at once: writes from one ring, then a message. The peer sees the message after the
/// data. At most one completion for all of it.
#[derive(Clone, Copy)]
pub(crate) struct Chain<'a> {
    /// The source of the writes; must be a map of this transport.
    pub(crate) ring: Option<&'a RingMap>,
    /// From offsets in the ring to offsets at the target; at most
    /// [`MAX_WRITES`](smc_proto::conn::MAX_WRITES).
    pub(crate) writes: &'a [Write],
    pub(crate) target: Target,
    /// At most [`MAX_MESSAGE`] bytes, or what a transport for version 2 takes; copied.
    pub(crate) message: &'a [u8],
    /// Comes back in [`Upcalls::sent`].
    pub(crate) cookie: u64,
    pub(crate) class: Class,
    /// Nobody waits for its end: [`Upcalls::sent`] need not be called for it.
    pub(crate) quiet: bool,
}

impl<'a> Chain<'a> {
    /// A control message without data.
    pub(crate) fn control(message: &'a [u8], cookie: u64) -> Self {
        Self {
            ring: None,
            writes: &[],
            target: Target {
                address: 0,
                rkey: RKey(0),
            },
            message,
            cookie,
            class: Class::Control,
            quiet: false,
        }
    }
}

/// Why nothing was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PostError {
    /// No slot is free. For [`Class::Data`], [`Upcalls::room`] follows.
    Busy,
    /// Not in the state [`State::Sending`]. If it was, the transport is broken, or was told to
    /// fail; [`Upcalls::failed`] may or may not follow.
    Down,
    /// Against the rules of [`Chain`].
    Invalid,
}

/// Where a transport is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Reset,
    Receiving,
    Sending,
    /// Broken, or told to fail; needs [`Transport::shutdown`].
    Failed,
    /// After [`Transport::shutdown`].
    Gone,
}

/// Who is told of what a transport does.
///
/// All methods may run in softirq: spin locks with bottom halves off only, no sleep, no
/// `GFP_KERNEL`. They run one at a time for a transport, without any lock of it held, so posting
/// from within is allowed; [`Transport::shutdown`] is not.
pub(crate) trait Upcalls: Send + Sync {
    /// A message came. An empty one is a bare wake-up.
    fn received(&self, message: &[u8]);

    /// A chain is done, or given up. Exactly once for each one that was posted, in that order, but
    /// that some of those that are [`quiet`](Chain::quiet) are left out. `ok` means that the peer's
    /// adapter has acknowledged it.
    fn sent(&self, cookie: u64, ok: bool);

    /// After [`PostError::Busy`] for [`Class::Data`]: slots are free again. Once for any number
    /// of refusals.
    fn room(&self);

    /// The transport broke. At most once, before the first chain is given up; not after
    /// [`Transport::fail`].
    fn failed(&self);
}

/// A transport.
pub(crate) trait Transport: Send + Sync {
    /// Our numbers.
    fn local(&self) -> &Local;

    /// The state.
    fn state(&self) -> State;

    /// Takes what the peer sends from now on. May sleep. After an error only `shutdown` helps.
    fn ready_to_receive(&self, peer: &Peer) -> Result;

    /// May send from now on. May sleep. After an error only `shutdown` helps.
    fn ready_to_send(&self) -> Result;

    /// Whether the peer's writes are taken, as they are at first. One that is not breaks the transport on both
    /// sides, and none of it is acknowledged. May sleep.
    fn take_writes(&self, on: bool) -> Result;

    /// Posts a chain. Never sleeps.
    fn post(&self, chain: &Chain<'_>) -> Result<(), PostError>;

    /// While the end of a posted chain is to come: a number that is another one once more have ended. Never sleeps.
    fn awaited(&self) -> Option<u32>;

    /// Lets writes of this transport take data from a ring. May sleep.
    fn map_ring(&self, ring: &Arc<SendRing>) -> Result<RingMap>;

    /// Whether a map is one of this transport.
    fn owns(&self, ring: &RingMap) -> bool;

    /// Makes a key of this transport for a buffer; see [`RmbMr::registration`]. May sleep.
    fn alloc_key(&self, rmb: &Arc<Rmb>) -> Result<RmbMr>;

    /// No chain is posted any more, from any context but hardirq. Chains in flight complete, at
    /// the latest by `shutdown`, which must follow.
    fn fail(&self);

    /// The same, and chains in flight have completed when it returns: no upcall follows, but for chains that
    /// are [`quiet`](Chain::quiet) and are given up by `shutdown`. May sleep, though not for as long as that,
    /// which waits for the device to let go of what it has, unless the device refuses to stop: then it does what
    /// `shutdown` does.
    fn stop(&self);

    /// Ends the transport and gives up all that it holds of its device: queues, maps and keys of
    /// buffers, and its `Upcalls`. Chains in flight are given up before it returns, and no upcall
    /// follows. May sleep. Any number of calls is fine; the first does it, and others wait until the device has
    /// nothing to do any more.
    fn shutdown(&self);
}
