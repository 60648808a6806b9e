// SPDX-License-Identifier: GPL-2.0

//! Callbacks of a TCP sock, passed on to an owner.

use super::{
    Inner,
    TcpSock, //
};
use crate::bindings;
use crate::handle::{
    self,
    Handle, //
};
use core::marker::PhantomData;
use core::net::IpAddr;
use core::ptr::NonNull;
use kernel::prelude::*;

/// What an owner is told about a TCP socket, implemented on a tag type.
///
/// The calls come in softirqs or in process context, most with the inner socket locked, after the
/// kernel's own callback; errors without it, and a moment later if they are reported in an interrupt.
/// So they must not sleep, must not call methods of the inner
/// [`TcpSocket`](super::TcpSocket) other than those of the [`TcpSock`] which they are given,
/// and must not lock a socket. They may wake, use atomics and spin locks, and enqueue work.
///
/// Nothing is said about what happened before attaching: look once after it.
pub trait Events<P>: 'static {
    /// There is something to read, to accept, or an end of the stream.
    fn data_ready(owner: &P, tcp: &TcpSock);

    /// The connection is established, or ends. The inner socket is always locked.
    fn state_change(owner: &P, tcp: &TcpSock);

    /// There is room to write again.
    fn write_space(owner: &P, tcp: &TcpSock);

    /// There is an error.
    fn error(owner: &P, tcp: &TcpSock);

    /// Whether a listener that answers the option answers that of this peer, too, whose request is one of those that TCP
    /// counts. Without a peer: of somebody of whom TCP, which knows the option itself, has no request yet. Softirq.
    fn answers(owner: &P, tcp: &TcpSock, peer: Option<IpAddr>) -> bool;
}

/// An owner of whatever type.
///
/// # Invariants
///
/// `ptr` comes from [`Handle::into_raw`] of the type that `table` is made for; its reference is
/// ours.
pub(super) struct Owner {
    ptr: NonNull<c_void>,
    table: &'static Table,
}

// SAFETY: Handles are `Send` and `Sync`.
unsafe impl Send for Owner {}
// SAFETY: As above.
unsafe impl Sync for Owner {}

/// Functions of an owner's type; each wants the pointer of an [`Owner`] with this table.
struct Table {
    clone: unsafe fn(NonNull<c_void>),
    drop: unsafe fn(NonNull<c_void>),
    event: unsafe fn(NonNull<c_void>, &TcpSock, Event),
    answers: unsafe fn(NonNull<c_void>, &TcpSock, Option<IpAddr>) -> bool,
}

#[derive(Clone, Copy)]
pub(super) enum Event {
    DataReady,
    StateChange,
    WriteSpace,
    Error,
}

struct TableOf<P, H>(PhantomData<fn(P, H)>);

impl<P: Handle, H: Events<P>> TableOf<P, H> {
    const TABLE: Table = Table {
        clone: Self::clone,
        drop: Self::drop,
        event: Self::event,
        answers: Self::answers,
    };

    /// # Safety
    ///
    /// `ptr` is that of an [`Owner`] made of a `P`.
    unsafe fn clone(ptr: NonNull<c_void>) {
        // SAFETY: By the requirements of this function.
        let owner = unsafe { handle::borrow::<P>(ptr) };
        let _ = P::into_raw(P::clone(&owner));
    }

    /// # Safety
    ///
    /// As for `clone`, and the reference is not used any more.
    unsafe fn drop(ptr: NonNull<c_void>) {
        // SAFETY: By the requirements of this function.
        drop(unsafe { P::from_raw(ptr.cast()) });
    }

    /// # Safety
    ///
    /// As for `clone`.
    unsafe fn event(ptr: NonNull<c_void>, tcp: &TcpSock, event: Event) {
        // SAFETY: By the requirements of this function.
        let owner = unsafe { handle::borrow::<P>(ptr) };
        match event {
            Event::DataReady => H::data_ready(&owner, tcp),
            Event::StateChange => H::state_change(&owner, tcp),
            Event::WriteSpace => H::write_space(&owner, tcp),
            Event::Error => H::error(&owner, tcp),
        }
    }

    /// # Safety
    ///
    /// As for `clone`.
    unsafe fn answers(ptr: NonNull<c_void>, tcp: &TcpSock, peer: Option<IpAddr>) -> bool {
        // SAFETY: By the requirements of this function.
        let owner = unsafe { handle::borrow::<P>(ptr) };
        H::answers(&owner, tcp, peer)
    }
}

impl Owner {
    pub(super) fn new<P: Handle, H: Events<P>>(owner: P) -> Self {
        // INVARIANT: The reference of `owner` is ours, and the table is for its type.
        Self {
            ptr: owner.into_raw().cast(),
            table: &TableOf::<P, H>::TABLE,
        }
    }

    fn tell(&self, tcp: &TcpSock, event: Event) {
        // SAFETY: By the type invariant.
        unsafe { (self.table.event)(self.ptr, tcp, event) }
    }

    pub(super) fn answers(&self, tcp: &TcpSock, peer: Option<IpAddr>) -> bool {
        // SAFETY: By the type invariant.
        unsafe { (self.table.answers)(self.ptr, tcp, peer) }
    }
}

impl Clone for Owner {
    fn clone(&self) -> Self {
        // SAFETY: By the type invariant.
        unsafe { (self.table.clone)(self.ptr) };
        // INVARIANT: The reference was just made.
        Self {
            ptr: self.ptr,
            table: self.table,
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // SAFETY: By the type invariant; the reference is not used after this.
        unsafe { (self.table.drop)(self.ptr) }
    }
}

/// The callbacks that a hooked sock has.
pub(super) const OURS: bindings::kapi_sk_events = bindings::kapi_sk_events {
    data_ready: Some(data_ready),
    state_change: Some(state_change),
    write_space: Some(write_space),
    error_report: Some(error_report),
};

/// Has this sock our callbacks, so that its data is an [`Inner`]?
///
/// # Safety
///
/// `sk` is a full sock that exists.
pub(super) unsafe fn is_hooked(sk: *mut bindings::sock) -> bool {
    // SAFETY: By the requirements of this function.
    unsafe { bindings::tcp_is_hooked(sk, OURS.data_ready) }
}

/// Calls `f` with what belongs to a hooked sock, if it is not being given up.
///
/// # Safety
///
/// `sk` is a full sock that exists, whose data is ours if there is any.
pub(super) unsafe fn with_inner<R>(
    sk: *mut bindings::sock,
    f: impl FnOnce(&Inner) -> R,
) -> Option<R> {
    // SAFETY: By the requirements of this function.
    let inner = unsafe { bindings::tcp_data_lock(sk) }.cast::<Inner>();
    // SAFETY: While the lock is held, `Inner` is not unhooked, and therefore not freed.
    let result = unsafe { inner.as_ref() }.map(f);
    // SAFETY: Locked above.
    unsafe { bindings::tcp_data_unlock(sk) };
    result
}

/// Calls what was there before us, then the owner.
///
/// A sock that is being given up has our functions for a moment longer than its data.
///
/// # Safety
///
/// Called by the kernel for a sock with our callbacks.
unsafe fn dispatch(
    sk: *mut bindings::sock,
    event: Event,
    pick: impl FnOnce(&bindings::kapi_sk_events) -> bindings::kapi_sk_fn,
) {
    let look = |inner: &Inner| {
        // SAFETY: `owner` changes with the write lock held only; we have the read lock.
        let owner = unsafe { &*inner.owner.get() }.clone();
        (pick(&inner.saved), owner)
    };
    // SAFETY: The sock exists, and its data is ours, as its callbacks are.
    let found = unsafe { with_inner(sk, look) };
    let Some((original, owner)) = found else {
        return;
    };
    if let Some(original) = original {
        // SAFETY: What the sock had before, called as the kernel would.
        unsafe { original(sk) };
    }
    if let Some(owner) = owner {
        // SAFETY: A TCP sock, which exists during its callback.
        owner.tell(unsafe { TcpSock::from_ptr(sk) }, event);
    }
}

/// # Safety
///
/// Called by the kernel for a sock with our callbacks.
unsafe extern "C" fn data_ready(sk: *mut bindings::sock) {
    // SAFETY: By the requirements of this function.
    unsafe { dispatch(sk, Event::DataReady, |saved| saved.data_ready) }
}

/// # Safety
///
/// Called by the kernel for a sock with our callbacks.
unsafe extern "C" fn state_change(sk: *mut bindings::sock) {
    // SAFETY: By the requirements of this function.
    unsafe { dispatch(sk, Event::StateChange, |saved| saved.state_change) }
}

/// # Safety
///
/// Called by the kernel for a sock with our callbacks.
unsafe extern "C" fn write_space(sk: *mut bindings::sock) {
    // SAFETY: By the requirements of this function.
    unsafe { dispatch(sk, Event::WriteSpace, |saved| saved.write_space) }
}

/// # Safety
///
/// Called by the kernel for a sock with our callbacks.
unsafe extern "C" fn error_report(sk: *mut bindings::sock) {
    // SAFETY: The sock exists, and what runs later holds it. The queue exists as long as hooked socks.
    if unsafe { bindings::tcp_later(sk, Some(error_report), super::late_queue()) } {
        return;
    }
    // SAFETY: By the requirements of this function.
    unsafe { dispatch(sk, Event::Error, |saved| saved.error_report) }
}
