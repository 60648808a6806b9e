// SPDX-License-Identifier: GPL-2.0

//! The little of libibverbs that a peer needs: one port, queue pairs, memory. All unsafe code of this
//! program is here.
//!
//! Memory is read and written through raw pointers only, since the device writes to it whenever the
//! other side wishes. Whoever has been given a `&Port`, `&Memory` or `&QueuePair` runs in the one thread
//! of this program: raw pointers keep these types from being sent to another.

#![allow(unsafe_code)]

use std::alloc::{alloc_zeroed, dealloc, handle_alloc_error, Layout};
use std::ffi::CStr;
use std::io;
use std::ptr::{self, NonNull};
use std::rc::Rc;

#[allow(
    dead_code,
    missing_docs,
    non_camel_case_types,
    non_upper_case_globals,
    unreachable_pub,
    clippy::all,
    clippy::undocumented_unsafe_blocks
)]
mod ffi {
    include!(concat!(env!("OUT_DIR"), "/ibverbs.rs"));
}

fn failed(what: &str) -> io::Error {
    let error = io::Error::last_os_error();
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// What functions of libibverbs return: 0, or a number of errno.
fn check(what: &str, code: i32) -> io::Result<()> {
    if code == 0 {
        return Ok(());
    }
    let error = io::Error::from_raw_os_error(code.abs());
    Err(io::Error::new(error.kind(), format!("{what}: {error}")))
}

/// A device that is open. The first port is used.
pub(crate) struct Port {
    context: NonNull<ffi::ibv_context>,
    gid_index: u8,
    gid: [u8; 16],
}

impl Port {
    /// Opens a device by its name, to be used with the GID at this place of its table.
    pub(crate) fn open(name: &str, gid_index: u8, gid: [u8; 16]) -> io::Result<Rc<Self>> {
        let mut count = 0;
        // SAFETY: `count` is a number that may be written.
        let list = unsafe { ffi::ibv_get_device_list(&mut count) };
        if list.is_null() {
            return Err(failed("list of devices"));
        }
        let mut context = ptr::null_mut();
        for place in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: The list has `count` devices, none of them null.
            let device = unsafe { *list.add(place) };
            // SAFETY: The device is of the list, which has not been freed; the name ends with a zero.
            let known = unsafe { CStr::from_ptr(ffi::ibv_get_device_name(device)) };
            if known.to_bytes() == name.as_bytes() {
                // SAFETY: As above.
                context = unsafe { ffi::ibv_open_device(device) };
                break;
            }
        }
        let opened = NonNull::new(context).ok_or_else(|| failed(name));
        // SAFETY: From `ibv_get_device_list`, and not used behind this.
        unsafe { ffi::ibv_free_device_list(list) };
        Ok(Rc::new(Self {
            context: opened?,
            gid_index,
            gid,
        }))
    }

    /// The GID in use.
    pub(crate) fn gid(&self) -> [u8; 16] {
        self.gid
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        // SAFETY: All domains of the context hold an `Rc` of it, and are gone.
        unsafe { ffi::ibv_close_device(self.context.as_ptr()) };
    }
}

/// A protection domain: queue pairs reach memory of their own domain only.
pub(crate) struct Domain {
    pd: NonNull<ffi::ibv_pd>,
    port: Rc<Port>,
}

impl Domain {
    /// A new one.
    pub(crate) fn new(port: &Rc<Port>) -> io::Result<Rc<Self>> {
        // SAFETY: The context is open.
        let pd = unsafe { ffi::ibv_alloc_pd(port.context.as_ptr()) };
        Ok(Rc::new(Self {
            pd: NonNull::new(pd).ok_or_else(|| failed("protection domain"))?,
            port: port.clone(),
        }))
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: What belongs to the domain holds an `Rc` of it, and is gone.
        unsafe { ffi::ibv_dealloc_pd(self.pd.as_ptr()) };
    }
}

const PAGE: usize = 4096;

/// Zeroed memory that begins with a page.
struct Pages {
    start: NonNull<u8>,
    layout: Layout,
}

impl Pages {
    fn new(len: usize) -> io::Result<Self> {
        let layout = Layout::from_size_align(len.max(PAGE), PAGE).map_err(io::Error::other)?;
        // SAFETY: The size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else {
            handle_alloc_error(layout)
        };
        Ok(Self { start, layout })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: Of `alloc_zeroed` with this layout; each region holds an `Rc` of it, so no device knows it any more.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// Memory that a device can reach.
pub(crate) struct Memory {
    mr: NonNull<ffi::ibv_mr>,
    pages: Rc<Pages>,
    _domain: Rc<Domain>,
}

impl Memory {
    /// Zeroed memory of so many bytes, which the other side may write to.
    pub(crate) fn new(domain: &Rc<Domain>, len: usize) -> io::Result<Self> {
        Self::register(domain, Rc::new(Pages::new(len)?))
    }

    /// The same memory, for another domain.
    pub(crate) fn again(&self, domain: &Rc<Domain>) -> io::Result<Self> {
        Self::register(domain, self.pages.clone())
    }

    fn register(domain: &Rc<Domain>, pages: Rc<Pages>) -> io::Result<Self> {
        let access = ffi::IBV_ACCESS_LOCAL_WRITE | ffi::IBV_ACCESS_REMOTE_WRITE;
        // SAFETY: The memory is there until the region is given back, in `drop`.
        let mr = unsafe {
            ffi::ibv_reg_mr(
                domain.pd.as_ptr(),
                pages.start.as_ptr().cast(),
                pages.layout.size(),
                access as i32,
            )
        };
        Ok(Self {
            mr: NonNull::new(mr).ok_or_else(|| failed("memory region"))?,
            pages,
            _domain: domain.clone(),
        })
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.pages.layout.size()
    }

    /// Where it begins.
    pub(crate) fn address(&self) -> u64 {
        self.pages.start.as_ptr() as u64
    }

    /// By which key the other side reaches it.
    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: The region exists until `drop`.
        unsafe { (*self.mr.as_ptr()).rkey }
    }

    fn lkey(&self) -> u32 {
        // SAFETY: As in `rkey`.
        unsafe { (*self.mr.as_ptr()).lkey }
    }

    /// What stands there now. Must lie within the memory.
    pub(crate) fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset <= self.len() && len <= self.len() - offset);
        (offset..offset + len)
            // SAFETY: Within the allocation, as just checked; a volatile read, since the device writes.
            .map(|at| unsafe { self.pages.start.as_ptr().add(at).read_volatile() })
            .collect()
    }

    /// Writes. Must lie within the memory.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset <= self.len() && bytes.len() <= self.len() - offset);
        for (at, byte) in (offset..).zip(bytes) {
            // SAFETY: As in `read`.
            unsafe { self.pages.start.as_ptr().add(at).write_volatile(*byte) };
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: Of `ibv_reg_mr`; queue pairs that use it are dropped before, see `QueuePair`.
        unsafe { ffi::ibv_dereg_mr(self.mr.as_ptr()) };
    }
}

/// Far end of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FarEnd {
    /// Its GID.
    pub(crate) gid: [u8; 16],
    /// Its number.
    pub(crate) qpn: u32,
    /// The number of its first packet.
    pub(crate) psn: u32,
    /// Code of the MTU, 1 to 5.
    pub(crate) mtu: u8,
}

/// States to bring a queue pair to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// As it was made.
    Reset,
    /// Everything is flushed.
    Error,
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Sends a message.
    Message,
    /// Writes to this address of the far end, by this key.
    Write(u64, u32),
    /// Reads from there.
    Read(u64, u32),
}

/// What was completed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    /// As the request was numbered.
    pub(crate) id: u64,
    /// 0 is success; numbers of `ibv_wc_status`.
    pub(crate) status: u32,
    /// Bytes received.
    pub(crate) len: u32,
}

/// A reliable connected queue pair, with a completion queue of its own.
pub(crate) struct QueuePair {
    qp: Option<NonNull<ffi::ibv_qp>>,
    cq: NonNull<ffi::ibv_cq>,
    number: u32,
    domain: Rc<Domain>,
}

impl QueuePair {
    /// In the state INIT, with room for so many requests each way.
    pub(crate) fn new(domain: &Rc<Domain>, depth: u32) -> io::Result<Self> {
        let context = domain.port.context.as_ptr();
        // SAFETY: The context is open; no channel, no vector.
        let cq = unsafe {
            ffi::ibv_create_cq(
                context,
                2 * depth as i32,
                ptr::null_mut(),
                ptr::null_mut(),
                0,
            )
        };
        let cq = NonNull::new(cq).ok_or_else(|| failed("completion queue"))?;
        let mut init = ffi::ibv_qp_init_attr {
            send_cq: cq.as_ptr(),
            recv_cq: cq.as_ptr(),
            cap: ffi::ibv_qp_cap {
                max_send_wr: depth,
                max_recv_wr: depth,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: ffi::IBV_QPT_RC,
            ..Default::default()
        };
        // SAFETY: Domain and queue exist; libibverbs reads the attributes and writes sizes back.
        let qp = unsafe { ffi::ibv_create_qp(domain.pd.as_ptr(), &mut init) };
        let Some(qp) = NonNull::new(qp) else {
            let error = failed("queue pair");
            // SAFETY: Just made, not used.
            unsafe { ffi::ibv_destroy_cq(cq.as_ptr()) };
            return Err(error);
        };
        // SAFETY: Just made; the number does not change.
        let number = unsafe { (*qp.as_ptr()).qp_num };
        let this = Self {
            qp: Some(qp),
            cq,
            number,
            domain: domain.clone(),
        };
        this.modify(
            ffi::ibv_qp_attr {
                qp_state: ffi::IBV_QPS_INIT,
                qp_access_flags: ffi::IBV_ACCESS_LOCAL_WRITE | ffi::IBV_ACCESS_REMOTE_WRITE,
                port_num: 1,
                ..Default::default()
            },
            ffi::IBV_QP_STATE
                | ffi::IBV_QP_PKEY_INDEX
                | ffi::IBV_QP_PORT
                | ffi::IBV_QP_ACCESS_FLAGS,
        )?;
        Ok(this)
    }

    /// Its number.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    fn modify(&self, mut attr: ffi::ibv_qp_attr, mask: ffi::ibv_qp_attr_mask) -> io::Result<()> {
        let Some(qp) = self.qp else {
            return Err(io::Error::other("the queue pair is gone"));
        };
        // SAFETY: The queue pair exists; the attributes that the mask names are set.
        let code = unsafe { ffi::ibv_modify_qp(qp.as_ptr(), &mut attr, mask as i32) };
        check("state of the queue pair", code)
    }

    /// Connects it: receives, and sends with packets from this number on.
    pub(crate) fn connect(&self, far: &FarEnd, psn: u32) -> io::Result<()> {
        let mut attr = ffi::ibv_qp_attr {
            qp_state: ffi::IBV_QPS_RTR,
            path_mtu: far.mtu.into(),
            dest_qp_num: far.qpn,
            rq_psn: far.psn,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
            ..Default::default()
        };
        attr.ah_attr.is_global = 1;
        attr.ah_attr.port_num = 1;
        attr.ah_attr.grh.dgid.raw = far.gid;
        attr.ah_attr.grh.sgid_index = self.domain.port.gid_index;
        attr.ah_attr.grh.hop_limit = 64;
        self.modify(
            attr,
            ffi::IBV_QP_STATE
                | ffi::IBV_QP_AV
                | ffi::IBV_QP_PATH_MTU
                | ffi::IBV_QP_DEST_QPN
                | ffi::IBV_QP_RQ_PSN
                | ffi::IBV_QP_MAX_DEST_RD_ATOMIC
                | ffi::IBV_QP_MIN_RNR_TIMER,
        )?;
        self.modify(
            ffi::ibv_qp_attr {
                qp_state: ffi::IBV_QPS_RTS,
                sq_psn: psn,
                max_rd_atomic: 1,
                // 134 ms seven times: a far end that is gone shows within a second. rdma_rxe takes 7 for ever.
                timeout: 15,
                retry_cnt: 6,
                rnr_retry: 7,
                ..Default::default()
            },
            ffi::IBV_QP_STATE
                | ffi::IBV_QP_SQ_PSN
                | ffi::IBV_QP_MAX_QP_RD_ATOMIC
                | ffi::IBV_QP_TIMEOUT
                | ffi::IBV_QP_RETRY_CNT
                | ffi::IBV_QP_RNR_RETRY,
        )
    }

    /// Brings it to a state in which it does nothing.
    pub(crate) fn set(&self, state: State) -> io::Result<()> {
        let qp_state = match state {
            State::Reset => ffi::IBV_QPS_RESET,
            State::Error => ffi::IBV_QPS_ERR,
        };
        let attr = ffi::ibv_qp_attr {
            qp_state,
            ..Default::default()
        };
        self.modify(attr, ffi::IBV_QP_STATE)
    }

    /// Takes it away; nobody answers its number any more.
    pub(crate) fn destroy(&mut self) {
        if let Some(qp) = self.qp.take() {
            // SAFETY: From `ibv_create_qp`, and forgotten here.
            unsafe { ffi::ibv_destroy_qp(qp.as_ptr()) };
        }
    }

    /// Gives a part of the memory to be received into. The memory must outlive the queue pair.
    pub(crate) fn receive(
        &self,
        id: u64,
        memory: &Memory,
        at: usize,
        len: usize,
    ) -> io::Result<()> {
        let Some(qp) = self.qp else {
            return Err(io::Error::other("the queue pair is gone"));
        };
        let mut part = part(memory, at, len);
        let mut request = ffi::ibv_recv_wr {
            wr_id: id,
            sg_list: &mut part,
            num_sge: 1,
            ..Default::default()
        };
        let mut bad = ptr::null_mut();
        // SAFETY: The queue pair and with it its context exist; the request is read at once.
        let code = unsafe {
            let post = (*(*qp.as_ptr()).context).ops.post_recv;
            post.map_or(libc_enosys(), |post| {
                post(qp.as_ptr(), &mut request, &mut bad)
            })
        };
        check("receive request", code)
    }

    /// Has a part of the memory sent, written to the far end, or read from there.
    pub(crate) fn send(
        &self,
        id: u64,
        memory: &Memory,
        at: usize,
        len: usize,
        work: Work,
    ) -> io::Result<()> {
        let Some(qp) = self.qp else {
            return Err(io::Error::other("the queue pair is gone"));
        };
        let mut part = part(memory, at, len);
        let mut request = ffi::ibv_send_wr {
            wr_id: id,
            sg_list: &mut part,
            num_sge: 1,
            opcode: ffi::IBV_WR_SEND,
            send_flags: ffi::IBV_SEND_SIGNALED,
            ..Default::default()
        };
        let there =
            |remote_addr, rkey| ffi::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey };
        match work {
            // CDC and LLC messages ask for attention.
            Work::Message => request.send_flags |= ffi::IBV_SEND_SOLICITED,
            Work::Write(address, rkey) => {
                request.opcode = ffi::IBV_WR_RDMA_WRITE;
                request.wr.rdma = there(address, rkey);
            }
            Work::Read(address, rkey) => {
                request.opcode = ffi::IBV_WR_RDMA_READ;
                request.wr.rdma = there(address, rkey);
            }
        }
        let mut bad = ptr::null_mut();
        // SAFETY: As in `receive`.
        let code = unsafe {
            let post = (*(*qp.as_ptr()).context).ops.post_send;
            post.map_or(libc_enosys(), |post| {
                post(qp.as_ptr(), &mut request, &mut bad)
            })
        };
        check("send request", code)
    }

    /// What was completed next.
    pub(crate) fn poll(&self) -> Option<Completion> {
        let mut wc = ffi::ibv_wc::default();
        // SAFETY: The queue and with it its context exist; room for one completion.
        let count = unsafe {
            let poll = (*(*self.cq.as_ptr()).context).ops.poll_cq;
            poll.map_or(0, |poll| poll(self.cq.as_ptr(), 1, &mut wc))
        };
        (count == 1).then_some(Completion {
            id: wc.wr_id,
            status: wc.status,
            len: wc.byte_len,
        })
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.destroy();
        // SAFETY: The one queue pair that used it is gone.
        unsafe { ffi::ibv_destroy_cq(self.cq.as_ptr()) };
    }
}

/// A function that the driver does not have.
const fn libc_enosys() -> i32 {
    38
}

fn part(memory: &Memory, at: usize, len: usize) -> ffi::ibv_sge {
    assert!(at <= memory.len() && len <= memory.len() - at);
    ffi::ibv_sge {
        addr: memory.address() + at as u64,
        length: len as u32,
        lkey: memory.lkey(),
    }
}
