// SPDX-License-Identifier: GPL-2.0

//! Reliable connected queue pairs, RFC 7609 section 2.2, over RoCE of either version.

use super::{
    Chain,
    Class,
    Local,
    Peer,
    PostError,
    State,
    Transport,
    Upcalls,
    LONG_MESSAGE,
    MAX_MESSAGE, //
};
use crate::{
    buffers::{
        Owner,
        RingMap,
        Rmb,
        RmbMr,
        SendRing, //
    },
    device::{
        Device,
        Path, //
    },
};
use core::sync::atomic::{
    AtomicU8,
    Ordering, //
};
use kapi::ib::{
    Config,
    Connection,
    Handler,
    LocalAddress,
    MappingId,
    PeerAddress,
    RegionId, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use smc_proto::{
    conn::MAX_WRITES,
    llc,
    llc_flow::FRAME_MAX,
    wire::{
        MtuCode,
        Psn,
        QpNum, //
    },
};

/// Slots that are for control messages only.
const RESERVED: u32 = 8;

/// How long the queues of a transport are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queues {
    /// Chains in flight.
    slots: u32,
    /// Messages the peer can send without waiting for us, up to an eighth less.
    receives: u32,
}

impl Queues {
    /// Longest and shortest queues.
    const MAX: u32 = 2048;
    const MIN: u32 = 2 * RESERVED;

    /// For the work requests that the administrator wants to have under way. He counts as others
    /// do, with one request for each; a chain is cheap, and many connections share the queue, so
    /// that there are four for each, and twice the receives. At 16 and 48, 64 chains and 96
    /// messages: a Linux peer has 48 in flight.
    pub(crate) fn new(sends: u32, receives: u32) -> Self {
        Self {
            slots: sends.saturating_mul(4).clamp(Self::MIN, Self::MAX),
            receives: receives.saturating_mul(2).clamp(Self::MIN, Self::MAX),
        }
    }
}

/// Room for a message of the peer.
const RECEIVE_LEN: u32 = 64;

/// Which messages go over a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Messages {
    /// Those of version 1, all of one length.
    V1,
    /// Those of version 2: now and then a long one.
    V2,
}

impl Messages {
    /// The longest that we send.
    fn send_len(self) -> usize {
        match self {
            Self::V1 => MAX_MESSAGE,
            Self::V2 => MAX_MESSAGE.max(FRAME_MAX),
        }
    }

    /// The longest that we send now and then: ADD LINK with the keys of all buffers.
    fn long_send_len(self) -> u32 {
        match self {
            Self::V1 => 0,
            Self::V2 => LONG_MESSAGE as u32,
        }
    }

    /// How much longer than usual one of the peer may be.
    fn receive_more(self) -> u32 {
        match self {
            Self::V1 => 0,
            Self::V2 => (llc::v2::MAX_LEN as u32).saturating_sub(RECEIVE_LEN),
        }
    }
}

/// Passes on what the connection reports.
struct Events(Arc<dyn Upcalls>);

impl Handler for Events {
    fn received(&self, message: &[u8]) {
        self.0.received(message);
    }

    fn sent(&self, cookie: u64, ok: bool) {
        self.0.sent(cookie, ok);
    }

    fn room(&self) {
        self.0.room();
    }

    fn failed(&self) {
        self.0.failed();
    }
}

/// A transport of this kind.
pub(crate) struct Rc {
    connection: Arc<Connection<Events>>,
    local: Local,
    device: Arc<Device>,
    /// The last of [`State::Reset`], [`State::Receiving`], [`State::Sending`] and
    /// [`State::Gone`], as a number in this order.
    progress: AtomicU8,
}

const RESET: u8 = 0;
const RECEIVING: u8 = 1;
const SENDING: u8 = 2;
const GONE: u8 = 3;

impl Rc {
    /// Makes a transport on `path`. May sleep. It must be shut down.
    pub(crate) fn new(
        path: &Path,
        queues: Queues,
        messages: Messages,
        upcalls: Arc<dyn Upcalls>,
    ) -> Result<Arc<Self>> {
        let config = Config {
            owner: c"smc_r",
            slots: queues.slots,
            reserved: RESERVED,
            message_len: messages.send_len() as u32,
            long_message_len: messages.long_send_len(),
            receives: queues.receives,
            receive_len: RECEIVE_LEN,
            receive_more: messages.receive_more(),
        };
        let device = path.device.ib()?;
        let connection = Connection::new(
            &device,
            LocalAddress {
                port: path.port.into(),
                gid: path.gid.0,
                gid_index: path.gid_index,
                gid_kind: path.gid_kind,
                mac: path.mac.0,
                service: path.service,
            },
            config,
            Events(upcalls),
        )?;
        let local = Local {
            qpn: QpNum::new(connection.number()).ok_or(EIO)?,
            psn: Psn::truncate(connection.psn()),
            gid: path.gid,
            mac: path.mac,
            mtu: path.mtu,
        };
        let this = Arc::new(
            Self {
                connection,
                local,
                device: path.device.clone(),
                progress: AtomicU8::new(RESET),
            },
            GFP_KERNEL,
        )?;
        // From here on a removal of the device finds it.
        if let Err(e) = path.device.add_transport(this.clone()) {
            this.shutdown();
            return Err(e);
        }
        Ok(this)
    }

    fn advance(&self, from: u8, to: u8) {
        // Not once it is gone.
        let _ = self
            .progress
            .compare_exchange(from, to, Ordering::Release, Ordering::Relaxed);
    }
}

impl Transport for Rc {
    fn local(&self) -> &Local {
        &self.local
    }

    fn state(&self) -> State {
        match self.progress.load(Ordering::Acquire) {
            GONE => State::Gone,
            _ if self.connection.is_failed() => State::Failed,
            RESET => State::Reset,
            RECEIVING => State::Receiving,
            _ => State::Sending,
        }
    }

    fn ready_to_receive(&self, peer: &Peer) -> Result {
        let mtu: MtuCode = self.local.mtu.agreed(peer.mtu);
        self.connection.ready_to_receive(&PeerAddress {
            gid: peer.gid.0,
            mac: peer.mac.0,
            qp: peer.qpn.get(),
            psn: peer.psn.get(),
            mtu: mtu.code(),
        })?;
        self.advance(RESET, RECEIVING);
        Ok(())
    }

    fn ready_to_send(&self) -> Result {
        self.connection.ready_to_send()?;
        self.advance(RECEIVING, SENDING);
        Ok(())
    }

    fn take_writes(&self, on: bool) -> Result {
        self.connection.take_writes(on)
    }

    fn post(&self, chain: &Chain<'_>) -> Result<(), PostError> {
        let mut list = [kapi::ib::Write {
            offset: 0,
            len: 0,
            remote_addr: 0,
            remote_key: 0,
        }; MAX_WRITES];
        let writes = list
            .get_mut(..chain.writes.len())
            .ok_or(PostError::Invalid)?;
        for (to, from) in writes.iter_mut().zip(chain.writes) {
            *to = kapi::ib::Write {
                offset: from.from,
                len: from.len,
                remote_addr: chain.target.address.wrapping_add(from.to.into()),
                remote_key: chain.target.rkey.0,
            };
        }
        let source = match chain.ring {
            Some(ring) if ring.is_of(&self.connection) => Some(ring.id()),
            Some(_) => return Err(PostError::Invalid),
            None => None,
        };
        self.connection
            .post(&kapi::ib::Chain {
                source,
                writes,
                message: chain.message,
                cookie: chain.cookie,
                spare: chain.class == Class::Data,
                quiet: chain.quiet,
            })
            .map_err(|e| match e {
                kapi::ib::PostError::Busy => PostError::Busy,
                kapi::ib::PostError::Down => PostError::Down,
                kapi::ib::PostError::Invalid => PostError::Invalid,
            })
    }

    fn awaited(&self) -> Option<u32> {
        self.connection.awaited()
    }

    fn map_ring(&self, ring: &Arc<SendRing>) -> Result<RingMap> {
        let id = self.connection.map(ring.pages().clone())?;
        Ok(RingMap::new(self.connection.clone(), id))
    }

    fn owns(&self, ring: &RingMap) -> bool {
        ring.is_of(&self.connection)
    }

    fn alloc_key(&self, rmb: &Arc<Rmb>) -> Result<RmbMr> {
        let (id, key, addr) = self.connection.add_region(rmb.pages())?;
        Ok(RmbMr::new(self.connection.clone(), id, key, addr))
    }

    fn fail(&self) {
        self.connection.fail();
    }

    fn stop(&self) {
        self.connection.fail();
        self.connection.stop();
    }

    fn shutdown(&self) {
        self.progress.store(GONE, Ordering::Release);
        self.connection.shutdown();
        self.device.remove_transport(self);
    }
}

impl Owner for Connection<Events> {
    fn unmap(&self, id: MappingId) {
        Connection::unmap(self, id);
    }

    fn register(&self, id: RegionId) -> Result {
        Connection::register(self, id)
    }

    fn remove_region(&self, id: RegionId) {
        Connection::remove_region(self, id);
    }
}
