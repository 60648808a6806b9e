// SPDX-License-Identifier: GPL-2.0

//! What can be asked of a TCP sock without its lock, and in events.

use crate::bindings;
use crate::errno;
use crate::sock::{
    Sk,
    Socket, //
};
use core::net::{
    IpAddr,
    Ipv6Addr, //
};
use core::num::NonZeroU64;
use kernel::error::to_result;
use kernel::prelude::*;
use kernel::types::Opaque;

/// The C object of a [`TcpSocket`](super::TcpSocket): all that events may use of it.
///
/// # Invariants
///
/// A `&TcpSock` points to a TCP sock that exists.
#[repr(transparent)]
pub struct TcpSock(Opaque<bindings::sock>);

// SAFETY: The methods are thread-safe.
unsafe impl Sync for TcpSock {}

impl TcpSock {
    /// # Safety
    ///
    /// `sk` is a TCP sock that exists for the lifetime of the result.
    pub(super) unsafe fn from_ptr<'a>(sk: *mut bindings::sock) -> &'a Self {
        // INVARIANT: By the requirements of this function.
        // SAFETY: As above; the type is transparent.
        unsafe { &*sk.cast() }
    }

    fn as_ptr(&self) -> *mut bindings::sock {
        self.0.get()
    }

    /// The state of the connection, one of [`state`](crate::sock::state).
    pub fn state(&self) -> u8 {
        // SAFETY: The sock exists.
        unsafe { bindings::sk_state(self.as_ptr()) }
    }

    /// The pending error, positive, which stays pending; zero for none.
    pub fn err(&self) -> i32 {
        // SAFETY: The sock exists.
        unsafe { bindings::sk_err(self.as_ptr()) }
    }

    /// The pending error, which is taken.
    pub fn take_err(&self) -> Result {
        // SAFETY: The sock exists.
        to_result(unsafe { bindings::sk_error(self.as_ptr()) })
    }

    /// Makes an error pending that a call has taken. The sock is locked.
    pub fn set_err(&self, err: Error) {
        // SAFETY: The sock exists.
        unsafe { bindings::sk_set_err(self.as_ptr(), errno::number(err)) }
    }

    /// Which directions have ended.
    pub fn shutdown_mask(&self) -> u8 {
        // SAFETY: The field of a sock that exists.
        unsafe { bindings::sk_shutdown(self.as_ptr()).read_volatile() }
    }

    /// How many bytes may be read, about: the end of the stream counts one.
    pub fn inq(&self) -> u32 {
        // SAFETY: The sock exists.
        unsafe { bindings::tcp_inq(self.as_ptr()) }
    }

    /// The port on this host; 0 if there is none.
    pub fn own_port(&self) -> u16 {
        // SAFETY: The sock exists.
        unsafe { bindings::tcp_own_port(self.as_ptr()) }
    }

    /// Whether a program has attached a filter, which may drop what the peer sends.
    pub fn has_filter(&self) -> bool {
        // SAFETY: The sock exists.
        unsafe { bindings::tcp_has_filter(self.as_ptr()) }
    }

    /// Whether so much of the send buffer is free that a waiting writer is to be told.
    pub fn has_room(&self) -> bool {
        // SAFETY: The sock exists.
        unsafe { bindings::tcp_has_room(self.as_ptr()) }
    }

    /// The number of an urgent byte that has come and was not read.
    pub fn urgent(&self) -> Option<NonZeroU64> {
        // SAFETY: The sock exists.
        NonZeroU64::new(unsafe { bindings::tcp_urgent(self.as_ptr()) })
    }

    /// How many bytes the peer has not acknowledged, a SYN or FIN counting one.
    pub fn unacked(&self) -> u32 {
        // SAFETY: The sock exists.
        unsafe { bindings::tcp_unacked(self.as_ptr()) }
    }

    /// The peer's address, that of IPv4 never in the form of IPv6, and its port; of a sock that
    /// connects or is connected.
    pub fn peer(&self) -> (IpAddr, u16) {
        let (addr, port) = self.end(true);
        (addr.to_canonical(), port)
    }

    /// An end of the connection as it is now, perhaps half of a new one; the address of IPv4 is in the form of IPv6.
    /// Waits for nobody, unlike [`TcpSocket::name`](super::TcpSocket::name).
    pub fn end(&self, is_peer: bool) -> (Ipv6Addr, u16) {
        let mut addr = [0; 16];
        // SAFETY: The sock exists; there is room for an address.
        let port = unsafe { bindings::tcp_end(self.as_ptr(), is_peer, addr.as_mut_ptr()) };
        (Ipv6Addr::from(addr), port)
    }

    /// A listener: how many connections wait to be accepted, and how many more are being made.
    pub fn backlog(&self) -> (u32, u32) {
        let mut requests = 0;
        // SAFETY: The sock exists; `requests` is valid for writes.
        let queued = unsafe { bindings::tcp_backlog(self.as_ptr(), &mut requests) };
        (queued, requests)
    }

    /// Takes over `SO_RCVLOWAT` and `SO_PEEK_OFF` of the socket above: all bytes are its own from now on. The sock is locked,
    /// by the caller or for an event.
    pub fn inherit_marks<T: Socket>(&self, outer: &Sk<T>) {
        // SAFETY: Both socks exist; the inner one is locked, as the caller says. (If it were not,
        // settings could be mixed up, and no memory.)
        unsafe { bindings::sk_copy_marks(self.as_ptr(), outer.as_ptr()) }
    }
}
