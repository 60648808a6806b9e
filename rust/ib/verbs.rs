// SPDX-License-Identifier: GPL-2.0

//! Completion queues and queue pairs as owned values, and the state changes of the latter.

use super::{
    device::{
        Device,
        GidKind, //
    },
    pd::Pd,
};
use crate::{
    bindings,
    grow::Grow, //
};
use core::{
    ffi::c_void,
    mem,
    ptr::{
        self,
        NonNull, //
    },
};
use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    prelude::*,
    sync::Arc, //
};

/// How long to wait for an acknowledgement, 4.096 µs shifted left by this: 0.54 s.
const ACK_TIMEOUT: u8 = 17;

/// How often to send again then. 7, the largest value, is for ever in the software RoCE of Linux,
/// which with it never finds out that the peer is gone.
const RETRIES: u8 = 6;

/// How often to send again when the peer has no receive posted: for ever.
const RNR_RETRIES: u8 = 7;

/// How long the peer is to wait before that, as a code: 0.06 ms.
const RNR_TIMER: u8 = 5;

/// A completion queue, polled in softirq.
///
/// # Invariants
///
/// `raw` is a completion queue, freed by the drop, which waits for its callbacks, or left to the device by [`Self::stay`].
pub(super) struct Cq {
    raw: NonNull<bindings::ib_cq>,
}

// SAFETY: Completion queues may be used from any thread.
unsafe impl Send for Cq {}

impl Cq {
    /// Makes a completion queue; `context` is what its callbacks find as `cq_context`.
    pub(super) fn new(
        device: &Device,
        entries: u32,
        context: *mut c_void,
        owner: &'static CStr,
    ) -> Result<Self> {
        // SAFETY: The device is valid, `owner` is static, `context` is not looked at.
        let raw = unsafe {
            bindings::__ib_alloc_cq_any(
                device.as_raw(),
                context,
                i32::try_from(entries)?,
                bindings::ib_poll_context_IB_POLL_SOFTIRQ,
                owner.as_char_ptr(),
            )
        };
        // INVARIANT: Just made, and ours.
        Ok(Self {
            raw: NonNull::new(from_err_ptr(raw)?).ok_or(ENOMEM)?,
        })
    }

    /// Waits for the end of a poll in softirq, and has none begin. Gives what is polled.
    fn silence(&self) -> *mut bindings::irq_poll {
        // SAFETY: By the invariant. Of the union's members, a queue polled in softirq has this one.
        let poll = unsafe { &raw mut (*self.raw.as_ptr()).__bindgen_anon_1 }.cast();
        // SAFETY: The poll is initialised, and not disabled. None starts from here.
        unsafe { bindings::irq_poll_disable(poll) };
        // SAFETY: May sleep. Softirqs that are running end before this returns.
        unsafe { bindings::synchronize_rcu() };
        poll
    }

    /// Leaves it to the device, which has refused to give back a queue pair of it. No callback comes any more.
    pub(super) fn stay(self) {
        self.silence();
        mem::forget(self);
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // `ib_free_cq` only waits until a poll says that it is complete. After that the poll still asks for the next event,
        // for which it needs the queue (seen: a read of freed memory in `ib_poll_handler`).
        let poll = self.silence();
        // SAFETY: Disabled above. Without a queue pair there is no event that could start one.
        unsafe { bindings::irq_poll_enable(poll) };
        // SAFETY: By the invariant; queue pairs are gone before their queue, see `Qp::new`.
        unsafe { bindings::ib_free_cq(self.raw.as_ptr()) };
    }
}

/// A number for a first packet. Whoever does not know it can hardly forge one that is taken.
pub(super) fn random_psn() -> u32 {
    // SAFETY: May be called from anywhere.
    unsafe { bindings::get_random_u32() & 0xff_ffff }
}

/// The far end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct PeerAddress {
    /// Its GID.
    pub gid: [u8; 16],
    /// The Ethernet address packets to it go to.
    pub mac: [u8; 6],
    /// The number of its queue pair.
    pub qp: u32,
    /// The number of its first packet.
    pub psn: u32,
    /// Path MTU to use, as the code 1 (256 bytes) to 5 (4096 bytes).
    pub mtu: u8,
}

/// The near end of a connection.
#[derive(Clone, Copy)]
pub struct LocalAddress {
    /// A port of the device, from 1.
    pub port: u32,
    /// One of its GIDs.
    pub gid: [u8; 16],
    /// The place of that in the port's table.
    pub gid_index: u8,
    /// Its kind.
    pub gid_kind: GidKind,
    /// The Ethernet address that goes with the GID.
    pub mac: [u8; 6],
    /// How packets are to be treated on their way.
    pub service: Service,
}

/// How packets are to be treated on their way. Priorities of VLANs follow the level.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Service {
    /// The traffic class byte of IP: that of `IP_TOS` and `IPV6_TCLASS`. Without effect for RoCE
    /// version 1, which has no IP.
    pub traffic_class: u8,
    /// Service level, 0 to 7: that of `SO_PRIORITY`.
    pub level: u8,
}

/// The state a queue pair was put in by us; a device may have moved it to the error state.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum QpState {
    Reset,
    Init,
    Receiving,
    Sending,
}

/// How large a queue pair is.
pub(super) struct QpSize {
    pub(super) sends: u32,
    pub(super) receives: u32,
    /// Pieces of memory that a receive fills, 1 or 2.
    pub(super) receive_pieces: u32,
    pub(super) inline: u32,
}

/// What is allowed to do at a queue pair: ourselves, and the peer.
fn access(remote_write: bool) -> c_int {
    let remote = match remote_write {
        true => bindings::ib_access_flags_IB_ACCESS_REMOTE_WRITE,
        false => 0,
    };
    (bindings::ib_access_flags_IB_ACCESS_LOCAL_WRITE | remote) as c_int
}

/// A reliable connected queue pair.
///
/// # Invariants
///
/// `raw` is a queue pair of `pd`, which [`Self::destroy`] ends.
pub(super) struct Qp {
    raw: NonNull<bindings::ib_qp>,
    state: QpState,
    inline: u32,
    /// Keeps the protection domain.
    pd: Arc<Pd>,
}

// SAFETY: Queue pairs may be used from any thread.
unsafe impl Send for Qp {}

impl Qp {
    /// Makes a queue pair.
    ///
    /// # Safety
    ///
    /// It must be [destroyed](Self::destroy) before `cq` is dropped, which has to [stay](Cq::stay) if the device refuses.
    pub(super) unsafe fn new(pd: &Arc<Pd>, cq: &Cq, size: &QpSize) -> Result<Self> {
        let mut attr = pin_init::zeroed::<bindings::ib_qp_init_attr>();
        attr.send_cq = cq.raw.as_ptr();
        attr.recv_cq = cq.raw.as_ptr();
        attr.cap.max_send_wr = size.sends;
        attr.cap.max_recv_wr = size.receives;
        attr.cap.max_send_sge = 1;
        attr.cap.max_recv_sge = size.receive_pieces;
        attr.cap.max_inline_data = size.inline;
        attr.sq_sig_type = bindings::ib_sig_type_IB_SIGNAL_REQ_WR;
        attr.qp_type = bindings::ib_qp_type_IB_QPT_RC;
        // SAFETY: The protection domain and the completion queue are valid and of one device.
        let raw = unsafe { bindings::ib_create_qp(pd.as_raw(), &mut attr) };
        let raw = NonNull::new(from_err_ptr(raw)?).ok_or(ENOMEM)?;
        // INVARIANT: Just made, and ours.
        Ok(Self {
            raw,
            state: QpState::Reset,
            inline: attr.cap.max_inline_data,
            pd: pd.clone(),
        })
    }

    pub(super) fn as_raw(&self) -> NonNull<bindings::ib_qp> {
        self.raw
    }

    /// The bytes that may be given in the work request itself.
    pub(super) fn inline(&self) -> u32 {
        self.inline
    }

    pub(super) fn number(&self) -> u32 {
        // SAFETY: By the invariant; the number never changes.
        unsafe { (*self.raw.as_ptr()).qp_num }
    }

    fn modify(&self, attr: &mut bindings::ib_qp_attr, mask: u32) -> Result {
        // SAFETY: By the invariant the queue pair is valid; the callee checks the attributes.
        to_result(unsafe { bindings::ib_modify_qp(self.raw.as_ptr(), attr, mask as c_int) })
    }

    /// From the reset state to where receives can be posted. `remote_write`: the peer may write to regions.
    pub(super) fn init(&mut self, local: &LocalAddress, remote_write: bool) -> Result {
        if self.state != QpState::Reset {
            return Err(EINVAL);
        }
        let mut attr = pin_init::zeroed::<bindings::ib_qp_attr>();
        attr.qp_state = bindings::ib_qp_state_IB_QPS_INIT;
        attr.pkey_index = 0;
        attr.port_num = local.port;
        attr.qp_access_flags = access(remote_write);
        self.modify(
            &mut attr,
            bindings::ib_qp_attr_mask_IB_QP_STATE
                | bindings::ib_qp_attr_mask_IB_QP_PKEY_INDEX
                | bindings::ib_qp_attr_mask_IB_QP_PORT
                | bindings::ib_qp_attr_mask_IB_QP_ACCESS_FLAGS,
        )?;
        self.state = QpState::Init;
        Ok(())
    }

    /// From there to where the peer's packets are taken.
    pub(super) fn ready_to_receive(&mut self, local: &LocalAddress, peer: &PeerAddress) -> Result {
        if self.state != QpState::Init {
            return Err(EINVAL);
        }
        let device = self.pd.device().as_raw();
        let mut attr = pin_init::zeroed::<bindings::ib_qp_attr>();
        attr.qp_state = bindings::ib_qp_state_IB_QPS_RTR;
        attr.path_mtu = peer.mtu.into();
        attr.dest_qp_num = peer.qp;
        attr.rq_psn = peer.psn & 0xff_ffff;
        attr.max_dest_rd_atomic = 1;
        attr.min_rnr_timer = RNR_TIMER;
        // SAFETY: The device is valid.
        attr.ah_attr.type_ = unsafe { bindings::rdma_ah_find_type(device, local.port) };
        attr.ah_attr.port_num = local.port;
        let mut gid = bindings::ib_gid { raw: peer.gid };
        // One hop is enough for RoCE version 1, which is not routed.
        let hops = match local.gid_kind {
            GidKind::V1 => 1,
            GidKind::V2 => 64,
        };
        attr.ah_attr.sl = local.service.level;
        let class = local.service.traffic_class;
        // SAFETY: Both are ours; the GID is copied.
        unsafe {
            bindings::rdma_ah_set_grh(&mut attr.ah_attr, &mut gid, 0, local.gid_index, hops, class)
        };
        attr.ah_attr.__bindgen_anon_1.roce.dmac = peer.mac;
        self.modify(
            &mut attr,
            bindings::ib_qp_attr_mask_IB_QP_STATE
                | bindings::ib_qp_attr_mask_IB_QP_AV
                | bindings::ib_qp_attr_mask_IB_QP_PATH_MTU
                | bindings::ib_qp_attr_mask_IB_QP_DEST_QPN
                | bindings::ib_qp_attr_mask_IB_QP_RQ_PSN
                | bindings::ib_qp_attr_mask_IB_QP_MAX_DEST_RD_ATOMIC
                | bindings::ib_qp_attr_mask_IB_QP_MIN_RNR_TIMER,
        )?;
        self.state = QpState::Receiving;
        Ok(())
    }

    /// From there to where sends go out, of which the first packet has the number `psn`.
    pub(super) fn ready_to_send(&mut self, psn: u32) -> Result {
        if self.state != QpState::Receiving {
            return Err(EINVAL);
        }
        let mut attr = pin_init::zeroed::<bindings::ib_qp_attr>();
        attr.qp_state = bindings::ib_qp_state_IB_QPS_RTS;
        attr.timeout = ACK_TIMEOUT;
        attr.retry_cnt = RETRIES;
        attr.rnr_retry = RNR_RETRIES;
        attr.sq_psn = psn & 0xff_ffff;
        attr.max_rd_atomic = 1;
        self.modify(
            &mut attr,
            bindings::ib_qp_attr_mask_IB_QP_STATE
                | bindings::ib_qp_attr_mask_IB_QP_TIMEOUT
                | bindings::ib_qp_attr_mask_IB_QP_RETRY_CNT
                | bindings::ib_qp_attr_mask_IB_QP_RNR_RETRY
                | bindings::ib_qp_attr_mask_IB_QP_SQ_PSN
                | bindings::ib_qp_attr_mask_IB_QP_MAX_QP_RD_ATOMIC,
        )?;
        self.state = QpState::Sending;
        Ok(())
    }

    /// From the reset state to where work requests can be posted that send nothing. The queue pair is its own peer, which
    /// may not write to regions; one number serves for the packets of both.
    pub(super) fn ready_alone(&mut self, local: &LocalAddress) -> Result {
        let itself = PeerAddress {
            gid: local.gid,
            mac: local.mac,
            qp: self.number(),
            psn: random_psn(),
            mtu: 1,
        };
        self.init(local, false)?;
        self.ready_to_receive(local, &itself)?;
        self.ready_to_send(itself.psn)
    }

    /// Whether the peer may write to regions, once packets go both ways.
    pub(super) fn take_writes(&self, on: bool) -> Result {
        if self.state != QpState::Sending {
            return Err(EINVAL);
        }
        let mut attr = pin_init::zeroed::<bindings::ib_qp_attr>();
        attr.qp_state = bindings::ib_qp_state_IB_QPS_RTS;
        attr.qp_access_flags = access(on);
        self.modify(
            &mut attr,
            bindings::ib_qp_attr_mask_IB_QP_STATE | bindings::ib_qp_attr_mask_IB_QP_ACCESS_FLAGS,
        )
    }

    /// To the error state, in which nothing is sent or taken; waits until everything that was posted has completed, unless
    /// the device takes nothing more to wait for (of which the kernel warns). An error if the device refuses that state.
    /// Nothing may be posted at the same time or later.
    pub(super) fn drain(&self) -> Result {
        if self.state == QpState::Reset {
            // Nothing was ever posted, and the error state cannot be reached.
            return Ok(());
        }
        // The call below says nothing of that.
        let mut attr = pin_init::zeroed::<bindings::ib_qp_attr>();
        attr.qp_state = bindings::ib_qp_state_IB_QPS_ERR;
        self.modify(&mut attr, bindings::ib_qp_attr_mask_IB_QP_STATE)?;
        // SAFETY: By the invariant; queues were made with room for one more work request.
        unsafe { bindings::ib_drain_qp(self.raw.as_ptr()) };
        Ok(())
    }
}

impl Qp {
    /// Has the device drop what still comes for these queue pairs, and waits for the end of what it
    /// is doing with packets that came before.
    ///
    /// rxe hands a packet, and with it its reference of the queue pair, to a task, and only then
    /// has that run. A processor that does both steps may find the queue pair gone in between (seen:
    /// a panic in `rxe_sched_task`). It does so in softirq, and no longer in the reset state.
    fn silence(all: &[Self]) {
        let mut used = all
            .iter()
            .filter(|qp| qp.state != QpState::Reset)
            .peekable();
        if used.peek().is_none() {
            return;
        }
        for qp in used {
            let mut attr = pin_init::zeroed::<bindings::ib_qp_attr>();
            attr.qp_state = bindings::ib_qp_state_IB_QPS_RESET;
            // Where a device refuses, waiting alone has to do.
            let _ = qp.modify(&mut attr, bindings::ib_qp_attr_mask_IB_QP_STATE);
        }
        // SAFETY: May sleep. Softirqs that are running end before this returns.
        unsafe { bindings::synchronize_rcu() };
    }

    /// Gives all of them back to the device; says whether the device took them. Otherwise that may use all that was
    /// posted still, and their completion queue has to [stay](Cq::stay). May sleep.
    pub(super) fn destroy<const N: usize>(all: [Self; N]) -> bool {
        Self::silence(&all);
        all.map(Self::give_back) == [true; N]
    }

    fn give_back(self) -> bool {
        // SAFETY: By the invariant it is ours.
        let gone = super::give_back(|| unsafe { bindings::ib_destroy_qp(self.raw.as_ptr()) });
        if !gone {
            let (qp, device) = (self.raw.as_ptr(), self.pd.device());
            // SAFETY: The queue pair is of this device, and still there, and so is its completion queue, which is both.
            unsafe {
                super::name_what_stays(&raw mut (*qp).res, device);
                super::name_what_stays(&raw mut (*(*qp).send_cq).res, device);
            }
            self.pd.stay();
        }
        gone
    }
}

/// What a completion refers to: the C structure that its work request pointed to.
///
/// Its address is the identity of the work request, so it must not move while one is posted.
#[repr(transparent)]
pub(super) struct Cqe(kernel::types::Opaque<bindings::ib_cqe>);

// SAFETY: Never changes once made.
unsafe impl Send for Cqe {}
// SAFETY: As above.
unsafe impl Sync for Cqe {}

/// The C callback of a completion.
pub(super) type Done = unsafe extern "C" fn(*mut bindings::ib_cq, *mut bindings::ib_wc);

impl Cqe {
    pub(super) fn new(done: Done) -> Self {
        Self(kernel::types::Opaque::new(bindings::ib_cqe {
            done: Some(done),
        }))
    }

    pub(super) fn as_raw(&self) -> *mut bindings::ib_cqe {
        self.0.get()
    }

    /// A list of `len`, which never moves.
    pub(super) fn list(len: usize, done: Done) -> Result<KVec<Self>> {
        let mut list = KVec::with_capacity(len, GFP_KERNEL)?;
        for _ in 0..len {
            list.append(Self::new(done), GFP_KERNEL)?;
        }
        Ok(list)
    }

    /// The place in `list` that `raw` points to.
    pub(super) fn index(list: &[Self], raw: *const bindings::ib_cqe) -> Option<usize> {
        let offset = raw.addr().checked_sub(list.as_ptr().addr())?;
        let index = offset.checked_div(size_of::<Self>())?;
        (index < list.len()).then_some(index)
    }
}

/// The most receives that are posted at once.
pub(super) const MAX_RECEIVES: usize = 8;

/// One receive: what does not fit into the first piece of memory, a DMA address and a length, goes
/// into the second.
pub(super) struct Receive<'a> {
    pub(super) cqe: &'a Cqe,
    pub(super) first: (u64, u32),
    pub(super) second: Option<(u64, u32)>,
}

/// Posts receives in this order, the first [`MAX_RECEIVES`] of them. If that fails, some may have been.
///
/// # Safety
///
/// `qp` must be valid and have been made for as many pieces, and the bytes at the DMA addresses
/// writable by the device, until the receives complete; their `cqe` must not move until then.
pub(super) unsafe fn post_recv<'a>(
    qp: NonNull<bindings::ib_qp>,
    lkey: u32,
    receives: impl Iterator<Item = Result<Receive<'a>>>,
) -> Result {
    let mut sges = pin_init::zeroed::<[[bindings::ib_sge; 2]; MAX_RECEIVES]>();
    let mut requests = pin_init::zeroed::<[bindings::ib_recv_wr; MAX_RECEIVES]>();
    let mut count = 0usize;
    for ((wr, sges), receive) in requests.iter_mut().zip(&mut sges).zip(receives) {
        let Receive { cqe, first, second } = receive?;
        for (sge, (addr, length)) in sges.iter_mut().zip([first, second.unwrap_or((0, 0))]) {
            *sge = bindings::ib_sge { addr, length, lkey };
        }
        wr.__bindgen_anon_1.wr_cqe = cqe.as_raw();
        wr.sg_list = sges.as_mut_ptr();
        wr.num_sge = if second.is_some() { 2 } else { 1 };
        count = count.saturating_add(1);
    }
    let mut head = ptr::null_mut();
    // From the last to the first, since each points to the next.
    for wr in requests.iter_mut().take(count).rev() {
        wr.next = head;
        head = wr;
    }
    if head.is_null() {
        return Ok(());
    }
    // SAFETY: The work requests are complete and are copied by the callee; the caller keeps what they
    // refer to.
    to_result(unsafe { bindings::ib_post_recv(qp.as_ptr(), head) })
}
