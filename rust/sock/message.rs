// SPDX-License-Identifier: GPL-2.0

//! Messages on their way out and in: `struct msghdr` by direction.

use super::addr::SockAddr;
use super::consts::msg;
use super::{
    Sk,
    Socket, //
};
use crate::bindings;
use crate::errno;
use core::ptr::NonNull;
use kernel::iov::{
    IovIterDest,
    IovIterSource, //
};
use kernel::prelude::*;

/// A message to be sent.
///
/// # Invariants
///
/// The header belongs to a `sendmsg` in progress.
pub struct SendMsg<'a>(&'a mut bindings::msghdr);

impl<'a> SendMsg<'a> {
    /// # Safety
    ///
    /// `raw` is the header of a `sendmsg` in progress, for the lifetime of the result ours alone.
    pub(crate) unsafe fn from_raw(raw: *mut bindings::msghdr) -> Self {
        // INVARIANT: By the requirements of this function.
        // SAFETY: As above.
        Self(unsafe { &mut *raw })
    }

    pub(crate) fn as_ptr(&mut self) -> *mut bindings::msghdr {
        self.0
    }

    /// Bytes that are still to be taken.
    #[inline]
    pub fn len(&self) -> usize {
        // SAFETY: All kinds of iterators which messages have keep the count in this place.
        unsafe { (self.0.msg_iter.__bindgen_anon_1.__bindgen_anon_1.as_ref()).count }
    }

    /// Is there nothing left to be taken?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Flags of the call, [`msg`].
    pub fn flags(&self) -> u32 {
        self.0.msg_flags
    }

    /// Replaces the flags of the call.
    pub fn set_flags(&mut self, flags: u32) {
        self.0.msg_flags = flags;
    }

    /// Must the call not wait?
    pub fn nonblock(&self) -> bool {
        self.flags() & msg::DONTWAIT != 0
    }

    /// Does the caller itself learn when the data is no longer in use? It does as soon as nobody
    /// refers to what it brought for that, which is when the call returns.
    pub fn notifies_itself(&self) -> bool {
        !self.0.msg_ubuf.is_null()
    }

    /// Has the caller announced more to come?
    pub fn more(&self) -> bool {
        self.flags() & msg::MORE != 0
    }

    /// The destination, where one was given.
    pub fn addr(&self) -> Option<Result<SockAddr>> {
        let len = usize::try_from(self.0.msg_namelen).ok()?;
        if self.0.msg_name.is_null() || len == 0 {
            return None;
        }
        // SAFETY: `msg_name` points to `msg_namelen` bytes in the kernel.
        let raw = unsafe { core::slice::from_raw_parts(self.0.msg_name.cast::<u8>(), len) };
        Some(SockAddr::parse(raw))
    }

    /// The destination as the kernel has it, null for none, and its length. It stays for as long as the call.
    pub(crate) fn raw_name(&self) -> (*mut c_void, c_int) {
        (self.0.msg_name, self.0.msg_namelen)
    }

    /// Does the message carry ancillary data?
    pub fn has_control(&self) -> bool {
        self.0.msg_controllen != 0
    }

    /// The payload that is still to be taken; none from an iterator that is no source, for which `from_raw` would panic.
    #[inline]
    pub fn iter(&mut self) -> Option<&mut IovIterSource<'a>> {
        if u32::from(self.0.msg_iter.data_source) != bindings::ITER_SOURCE {
            return None;
        }
        // SAFETY: The iterator is a source, whose memory the system call provides for as long as the message exists.
        Some(unsafe { IovIterSource::from_raw(&mut self.0.msg_iter) })
    }

    /// Takes bytes into `buf`, as many as there are and fit; `EFAULT` if there are some and none
    /// could be read.
    pub fn copy_from(&mut self, buf: &mut [u8]) -> Result<usize> {
        let want = buf.len().min(self.len());
        let got = self.iter().map_or(0, |iter| iter.copy_from_iter(buf));
        if got == 0 && want != 0 {
            return Err(EFAULT);
        }
        Ok(got)
    }
}

/// What a sender with `MSG_ZEROCOPY` will be told once its data is no longer in use. Dropped without
/// being completed, it is not told.
///
/// # Invariants
///
/// The pointer is a completion that nobody else refers to.
pub struct Completion(NonNull<bindings::ubuf_info>);

impl Completion {
    /// Prepares the completion of a call for `len` bytes.
    pub fn new<T: Socket>(sk: &Sk<T>, len: usize) -> Result<Self> {
        // SAFETY: The sock exists, and this is a system call.
        let raw = unsafe { bindings::sk_completion_new(sk.as_ptr(), len) };
        // INVARIANT: New, and ours.
        NonNull::new(raw).map(Self).ok_or(errno::ENOBUFS)
    }

    /// Tells that the data was copied, and may be reused.
    pub fn copied(self) {
        // SAFETY: By the type invariant; it is not used any more.
        unsafe { bindings::sk_completion_copied(self.0.as_ptr()) };
        core::mem::forget(self);
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        // SAFETY: By the type invariant; it is not used any more.
        unsafe { bindings::sk_completion_abort(self.0.as_ptr()) }
    }
}

/// A message to be received into.
///
/// # Invariants
///
/// The header belongs to a `recvmsg` in progress.
pub struct RecvMsg<'a> {
    raw: &'a mut bindings::msghdr,
    flags: u32,
}

impl<'a> RecvMsg<'a> {
    /// # Safety
    ///
    /// `raw` is the header of a `recvmsg` in progress, for the lifetime of the result ours alone.
    pub(crate) unsafe fn from_raw(raw: *mut bindings::msghdr, flags: c_int) -> Self {
        // INVARIANT: By the requirements of this function.
        Self {
            // SAFETY: As above.
            raw: unsafe { &mut *raw },
            flags: flags as u32,
        }
    }

    pub(crate) fn as_ptr(&mut self) -> *mut bindings::msghdr {
        self.raw
    }

    /// Bytes that may still be delivered.
    #[inline]
    pub fn len(&self) -> usize {
        // SAFETY: All kinds of iterators which messages have keep the count in this place.
        unsafe { (self.raw.msg_iter.__bindgen_anon_1.__bindgen_anon_1.as_ref()).count }
    }

    /// Is there no room left?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Flags of the call, [`msg`].
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// Replaces the flags of the call, for the inner socket.
    pub fn set_flags(&mut self, flags: u32) {
        self.flags = flags;
    }

    /// Must the call not wait?
    pub fn nonblock(&self) -> bool {
        self.flags & msg::DONTWAIT != 0
    }

    /// Is the data to stay in the socket?
    pub fn peek(&self) -> bool {
        self.flags & msg::PEEK != 0
    }

    /// Where the payload goes; nowhere with an iterator that is no destination, for which `from_raw` would panic.
    #[inline]
    pub fn iter(&mut self) -> Option<&mut IovIterDest<'a>> {
        if u32::from(self.raw.msg_iter.data_source) != bindings::ITER_DEST {
            return None;
        }
        // SAFETY: The iterator is a destination, whose memory the system call provides for as long as the message
        // exists.
        Some(unsafe { IovIterDest::from_raw(&mut self.raw.msg_iter) })
    }

    /// Delivers bytes of `buf`, as many as fit; `EFAULT` if none could be written.
    pub fn copy_to(&mut self, buf: &[u8]) -> Result<usize> {
        let want = buf.len().min(self.len());
        let got = self.iter().map_or(0, |iter| iter.copy_to_iter(buf));
        if got == 0 && want != 0 {
            return Err(EFAULT);
        }
        Ok(got)
    }

    /// Does the caller itself want to know how much is left?
    #[inline]
    pub fn wants_left(&self) -> bool {
        self.raw.msg_get_inq()
    }

    /// Tells how many bytes are left to be read; `told`: to the program as well (`TCP_INQ`).
    pub fn put_left(&mut self, left: usize, told: bool) {
        let left = c_int::try_from(left).unwrap_or(c_int::MAX);
        // SAFETY: The message is that of a call in progress.
        unsafe { bindings::msg_put_left(self.raw, left, told) }
    }

    /// Adds flags which the caller sees in `msg_flags`.
    pub fn add_out_flags(&mut self, flags: u32) {
        self.raw.msg_flags |= flags;
    }

    /// Says that the message has no sender's address: a stream.
    pub fn clear_name(&mut self) {
        self.raw.msg_namelen = 0;
    }
}
