// SPDX-License-Identifier: GPL-2.0

//! Socket families of one's own.
//!
//! C headers: [`include/net/sock.h`](srctree/include/net/sock.h),
//! [`include/linux/net.h`](srctree/include/linux/net.h)
//!
//! A type that implements [`Socket`] becomes a socket family by [`Registration`]. Its value lives
//! in the C object, [`Sk`], which is counted by the kernel and freed when the last reference goes.
//!
//! Not supported: datagram sockets, `socketpair`, `mmap`, memory accounting by protocol.

mod addr;
mod consts;
mod family;
mod lock;
mod message;
mod ops;
mod option;

pub(crate) use addr::RawAddr;
pub use addr::{
    Family,
    SockAddr,
    AF_INET,
    AF_INET6,
    AF_UNSPEC, //
};
pub use consts::{
    ioctl,
    msg,
    opt,
    poll,
    state,
    RCV_SHUTDOWN,
    SEND_SHUTDOWN,
    SHUTDOWN_MASK, //
};
pub use family::{
    for_each,
    last_number,
    Registration, //
};
pub use lock::{
    SockLock,
    Timeo, //
};
pub use message::{
    Completion,
    RecvMsg,
    SendMsg, //
};
pub use option::{
    OptOut,
    OptVal,
    UserArg, //
};

use crate::bindings;
use crate::errno;
use crate::handle::Handle;
use crate::net::Net;
use core::cell::UnsafeCell;
use core::marker::PhantomPinned;
use core::mem::MaybeUninit;
use core::ops::Deref;
use core::ptr::NonNull;
use core::sync::atomic::{
    AtomicPtr,
    AtomicU8,
    Ordering, //
};
use kernel::error::to_result;
use kernel::prelude::*;
use kernel::sync::aref::{
    ARef,
    AlwaysRefCounted, //
};
use kernel::types::Opaque;

/// How a socket was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// By the family of its own.
    Native,
    /// By `AF_INET` or `AF_INET6` and a protocol number.
    Inet,
}

/// What kind of socket it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kind {
    /// How it was asked for.
    pub origin: Origin,
    /// Which addresses it talks to. A native socket says this by its protocol number, 0 or 1.
    pub family: Family,
}

/// Flags of operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpFlags {
    /// The operation must not wait.
    pub nonblock: bool,
}

/// Whose address is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whose {
    /// The socket's own.
    Own,
    /// The peer's, as long as there is a connection.
    Peer,
    /// The peer's, even if the connection is over: what `accept(2)` tells.
    AcceptedPeer,
}

/// Which directions `shutdown` ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shutdown {
    /// Receiving.
    Read,
    /// Sending.
    Write,
    /// Both.
    Both,
}

impl Shutdown {
    /// The bits of the shutdown mask.
    pub fn mask(self) -> u8 {
        match self {
            Shutdown::Read => RCV_SHUTDOWN,
            Shutdown::Write => SEND_SHUTDOWN,
            Shutdown::Both => SHUTDOWN_MASK,
        }
    }

    pub(crate) fn number(self) -> c_int {
        match self {
            Shutdown::Read => bindings::sock_shutdown_cmd_SHUT_RD as c_int,
            Shutdown::Write => bindings::sock_shutdown_cmd_SHUT_WR as c_int,
            Shutdown::Both => bindings::sock_shutdown_cmd_SHUT_RDWR as c_int,
        }
    }
}

/// Names under which a family appears in `/proc/net/protocols`, in slabs and in lock reports.
pub struct Names {
    /// Sockets of the family of its own, IPv4.
    pub native: &'static CStr,
    /// Sockets of the family of its own, IPv6.
    pub native6: &'static CStr,
    /// Sockets of `AF_INET`.
    pub inet: &'static CStr,
    /// Sockets of `AF_INET6`.
    pub inet6: &'static CStr,
    /// Lock class of the spin lock of a socket.
    pub spin: &'static CStr,
    /// Lock class of a socket.
    pub lock: &'static CStr,
}

/// A socket family: what a socket does.
///
/// The value is made when a socket is created, and dropped when the last reference to its [`Sk`]
/// goes, which may happen in a softirq: dropping must not sleep. A value may be dropped without
/// [`Socket::release`] having been called, if creating the socket failed or nobody accepted it.
///
/// Operations are called in process context, without the socket lock unless said otherwise.
pub trait Socket: Send + Sync + Sized + 'static {
    /// Names of the family.
    const NAMES: Names;

    /// What a socket keeps for calls while it has a file, see [`Sk::keep`].
    type Kept: Handle;

    /// Makes the value of a new socket for `socket(2)`.
    fn init(net: &Net, kind: Kind) -> impl PinInit<Self, Error>;

    /// A new socket can be used: one of `socket(2)`, or a child. What was set up for all families
    /// may be changed here.
    fn created(_sk: &Sk<Self>) {}

    /// `close(2)`. The file's reference goes when this returns; nobody waits or polls any more.
    fn release(sk: &Sk<Self>);

    /// `bind(2)`.
    fn bind(sk: &Sk<Self>, addr: &SockAddr) -> Result;

    /// `connect(2)`.
    fn connect(sk: &Sk<Self>, addr: &SockAddr, flags: OpFlags) -> Result;

    /// `accept(2)`: a socket made by [`Sk::child`] that has no file yet.
    fn accept(sk: &Sk<Self>, flags: OpFlags) -> Result<ARef<Sk<Self>>>;

    /// `getsockname(2)`, `getpeername(2)`, and the address that `accept(2)` gives.
    fn getname(sk: &Sk<Self>, whose: Whose) -> Result<SockAddr>;

    /// The bits of [`poll`] that hold now. Called again after any of the `wake` methods of [`Sk`].
    fn poll(call: Call<'_, Self>) -> u32;

    /// `ioctl(2)`; `ENOIOCTLCMD` leaves it to the device layer.
    fn ioctl(sk: &Sk<Self>, cmd: u32, arg: UserArg) -> Result<c_int>;

    /// What `SIOCINQ` and `SIOCOUTQ` count, for who asks by io_uring.
    fn count(sk: &Sk<Self>, cmd: u32) -> Result<c_int>;

    /// `listen(2)`.
    fn listen(sk: &Sk<Self>, backlog: i32) -> Result;

    /// `shutdown(2)`.
    fn shutdown(sk: &Sk<Self>, how: Shutdown) -> Result;

    /// `setsockopt(2)` for levels other than `SOL_SOCKET`.
    fn setsockopt(sk: &Sk<Self>, level: i32, name: i32, val: &OptVal<'_>) -> Result;

    /// `getsockopt(2)` for levels other than `SOL_SOCKET`.
    fn getsockopt(sk: &Sk<Self>, level: i32, name: i32, out: &mut OptOut<'_>) -> Result;

    /// `sendmsg(2)` and its like.
    fn sendmsg(call: Call<'_, Self>, msg: &mut SendMsg<'_>) -> Result<usize>;

    /// `recvmsg(2)` and its like.
    fn recvmsg(call: Call<'_, Self>, msg: &mut RecvMsg<'_>) -> Result<usize>;

    /// `SO_RCVLOWAT`. Called with the socket lock held.
    fn set_rcvlowat(sk: &Sk<Self>, val: i32) -> Result;

    /// `SO_PEEK_OFF`.
    fn set_peek_off(sk: &Sk<Self>, val: i32) -> Result {
        sk.store_peek_off(val);
        Ok(())
    }

    /// What comes in is moved to a pipe; the bytes themselves are asked for by [`Socket::recvmsg`].
    fn splice_read(_sk: &Sk<Self>) {}

    /// More data was announced by `MSG_MORE`, and does not come: send what was held back.
    fn splice_eof(_sk: &Sk<Self>) {}

    /// An option of `SOL_SOCKET` is about to be set. True if that has been done, and the core need not know of it.
    fn takes_option(_sk: &Sk<Self>, _name: i32, _val: &OptVal<'_>) -> Result<bool> {
        Ok(false)
    }

    /// An option of `SOL_SOCKET` was set, successfully.
    fn options_changed(_sk: &Sk<Self>, _name: i32, _val: &OptVal<'_>) {}
}

/// What is kept of a socket besides the value of its family.
struct Extra {
    kind: Kind,
    /// Null, or from `into_raw` of the [`Socket::Kept`]. Changes from null once, and back when nobody
    /// can be in a [`Call`].
    kept: AtomicPtr<c_void>,
    parent_destruct: bindings::kapi_sk_fn,
    link: Opaque<bindings::kapi_sk_link>,
}

/// A socket of the family `T`: the C `struct sock` itself, and a `T` in it.
///
/// # Invariants
///
/// A `&Sk<T>` points to an initialised sock that was allocated for the protocols of `T`, whose
/// `extra` and `data` are initialised until its destructor runs.
#[repr(C)]
pub struct Sk<T: Socket> {
    // First, as C casts between these types.
    inet: Opaque<bindings::inet_sock>,
    inet6: Opaque<bindings::ipv6_pinfo>,
    extra: UnsafeCell<MaybeUninit<Extra>>,
    data: UnsafeCell<MaybeUninit<T>>,
    _pin: PhantomPinned,
}

// SAFETY: The C object may be used and freed on any CPU, and `T` is `Send`.
unsafe impl<T: Socket> Send for Sk<T> {}
// SAFETY: The methods are thread-safe, and `T` is `Sync`.
unsafe impl<T: Socket> Sync for Sk<T> {}

// SAFETY: `sock_hold` and `sock_put` count references; all socks are counted.
unsafe impl<T: Socket> AlwaysRefCounted for Sk<T> {
    fn inc_ref(&self) {
        // SAFETY: By the type invariant.
        unsafe { bindings::sock_hold(self.as_ptr()) }
    }

    unsafe fn dec_ref(obj: NonNull<Self>) {
        // SAFETY: By the requirements of the function, a reference is owned.
        unsafe { bindings::sock_put(obj.as_ptr().cast()) }
    }
}

impl<T: Socket> Deref for Sk<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: By the type invariant initialised; nobody has a mutable reference.
        unsafe { (*self.data.get()).assume_init_ref() }
    }
}

/// A socket in a call of a program, who has the file open until the call returns.
///
/// # Invariants
///
/// [`Socket::release`] has not begun, and does not before the end of the lifetime.
pub struct Call<'a, T: Socket>(&'a Sk<T>);

impl<T: Socket> Clone for Call<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Socket> Copy for Call<'_, T> {}

impl<T: Socket> Deref for Call<'_, T> {
    type Target = Sk<T>;

    fn deref(&self) -> &Sk<T> {
        self.0
    }
}

impl<'a, T: Socket> Call<'a, T> {
    /// # Safety
    ///
    /// As the type invariant says.
    unsafe fn new(sk: &'a Sk<T>) -> Self {
        // INVARIANT: By the requirements of this function.
        Self(sk)
    }

    /// The socket.
    pub fn sk(self) -> &'a Sk<T> {
        self.0
    }

    /// What the socket keeps, without a lock and without counting.
    pub fn kept(self) -> Option<&'a <T::Kept as Handle>::Target> {
        let kept = self.0.extra().kept.load(Ordering::Acquire);
        // SAFETY: From `into_raw`, whose reference is not dropped before `release` has begun.
        unsafe { kept.cast::<<T::Kept as Handle>::Target>().as_ref() }
    }
}

/// Ways by which others name a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ids {
    /// A number that no other socket has or had.
    pub cookie: u64,
    /// The inode of the file, zero if there is none.
    pub inode: u64,
    /// The owner, as a number of the initial user namespace.
    pub uid: u32,
}

impl<T: Socket> Sk<T> {
    /// # Safety
    ///
    /// `ptr` is a sock as the type invariant wants it, for the lifetime of the result.
    pub(crate) unsafe fn from_ptr<'a>(ptr: *mut bindings::sock) -> &'a Self {
        // SAFETY: By the requirements of this function; the sock comes first.
        unsafe { &*ptr.cast() }
    }

    pub(crate) fn as_ptr(&self) -> *mut bindings::sock {
        self.inet.get().cast()
    }

    fn extra(&self) -> &Extra {
        // SAFETY: By the type invariant initialised; nobody has a mutable reference.
        unsafe { (*self.extra.get()).assume_init_ref() }
    }

    /// Charges what `action` allocates, as far as it is charged to anybody, to the memory group (memcg) of the
    /// program that has made the socket. Process context.
    pub fn charged<R>(&self, action: impl FnOnce() -> R) -> R {
        // SAFETY: The sock holds a reference to its memory group, and lives as long as `self`.
        let before = unsafe { bindings::memory_group_enter(self.as_ptr()) };
        let result = action();
        // SAFETY: In the same task; whoever charged to `before` keeps it until it has been left in turn.
        unsafe { bindings::memory_group_leave(before) };
        result
    }

    /// Makes a socket of the same kind as this one, which listens; it has no file until accepted.
    pub fn child<E>(&self, init: impl PinInit<T, E>) -> Result<ARef<Self>>
    where
        Error: From<E>,
    {
        // SAFETY: The protocol is that of this socket, which keeps it registered; no file.
        let sk = unsafe {
            bindings::sk_new(
                self.net().as_ptr(),
                bindings::sk_family(self.as_ptr()).into(),
                bindings::sk_prot(self.as_ptr()),
                core::ptr::null_mut(),
                bindings::sk_protocol(self.as_ptr()).into(),
                0,
            )
        };
        let sk = NonNull::new(sk).ok_or(ENOMEM)?;
        // SAFETY: A new sock of this protocol, nobody else knows it.
        if let Err(e) = unsafe { family::adopt(sk.as_ptr(), self.kind(), init) } {
            // SAFETY: The reference is the one from `sk_new`.
            unsafe {
                bindings::sk_mark_dead(sk.as_ptr());
                bindings::sock_put(sk.as_ptr());
            }
            return Err(e);
        }
        // SAFETY: The reference from `sk_new` is handed over.
        Ok(unsafe { ARef::from_raw(sk.cast()) })
    }

    /// What kind of socket it is.
    pub fn kind(&self) -> Kind {
        self.extra().kind
    }

    /// Keeps something for calls ([`Call::kept`]) until just before [`Socket::release`]; until the
    /// socket is destroyed, if that is never called. Nothing happens if something is kept already.
    pub fn keep(&self, value: T::Kept) {
        let value = value.into_raw();
        let old = self.extra().kept.compare_exchange(
            core::ptr::null_mut(),
            value.as_ptr().cast(),
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        if old.is_err() {
            // SAFETY: From just above; nobody else has got it.
            drop(unsafe { T::Kept::from_raw(value) });
        }
    }

    /// Drops what is kept.
    ///
    /// # Safety
    ///
    /// There is no [`Call`], nor will there be one.
    unsafe fn let_go(&self) {
        let kept = self
            .extra()
            .kept
            .swap(core::ptr::null_mut(), Ordering::AcqRel);
        if let Some(kept) = NonNull::new(kept) {
            // SAFETY: From `into_raw`, and taken by us alone; nobody borrows it, as there is no call.
            drop(unsafe { T::Kept::from_raw(kept.cast()) });
        }
    }

    /// The namespace, which the socket keeps.
    pub fn net(&self) -> &Net {
        // SAFETY: A sock keeps its namespace.
        unsafe { Net::from_ptr(bindings::sock_net(self.as_ptr())) }
    }

    /// Locks the socket. Process context.
    pub fn lock(&self) -> SockLock<'_, T> {
        SockLock::new(self)
    }

    fn wake(&self, mask: u32, how: u32, band: u32) {
        // SAFETY: By the type invariant the sock exists.
        unsafe { bindings::sk_wake(self.as_ptr(), mask, how as c_int, band as c_int) }
    }

    /// Wakes whoever waits for something to read. Any context but hard interrupts.
    pub fn wake_readable(&self) {
        let mask = poll::IN | poll::PRI | poll::RDNORM | poll::RDBAND;
        // SAFETY: By the type invariant the sock exists.
        unsafe { bindings::sk_wake_readers(self.as_ptr(), mask) }
    }

    /// Wakes whoever waits for room to write. Any context but hard interrupts.
    pub fn wake_writable(&self) {
        self.wake(
            poll::OUT | poll::WRNORM | poll::WRBAND,
            bindings::SOCK_WAKE_SPACE,
            bindings::POLL_OUT,
        );
    }

    /// Wakes whoever waits for a connection to be established, and tells the owner of the file by a
    /// signal if so configured. Any context but hard interrupts.
    pub fn wake_connected(&self) {
        self.wake_state_change();
        self.wake(
            poll::OUT | poll::WRNORM | poll::WRBAND,
            bindings::SOCK_WAKE_IO,
            bindings::POLL_OUT,
        );
    }

    /// Wakes whoever waits for an error. Any context but hard interrupts.
    pub fn wake_error(&self) {
        self.wake(poll::ERR, bindings::SOCK_WAKE_IO, bindings::POLL_ERR);
    }

    /// Wakes whoever waits for anything: the state has changed. Any context but hard interrupts.
    pub fn wake_state_change(&self) {
        // SAFETY: By the type invariant the sock exists.
        unsafe { bindings::sk_wake_all(self.as_ptr()) }
    }

    /// Tells the owner of the file, by a signal if so configured, that a direction has ended.
    pub fn wake_hangup(&self) {
        self.wake_state_change();
        self.wake(0, bindings::SOCK_WAKE_WAITD, bindings::POLL_HUP);
    }

    /// Signals urgent data to the owner of the file and wakes readers.
    pub fn send_sigurg(&self) {
        // SAFETY: By the type invariant the sock exists.
        unsafe { bindings::sk_sigurg(self.as_ptr()) }
    }

    /// The pending error as a positive number; zero if there is none. It stays pending.
    pub fn err(&self) -> i32 {
        // SAFETY: By the type invariant the sock exists.
        unsafe { bindings::sk_err(self.as_ptr()) }
    }

    /// Makes an error pending; the caller wakes.
    pub fn set_err(&self, err: Error) {
        // SAFETY: By the type invariant the sock exists.
        unsafe { bindings::sk_set_err(self.as_ptr(), errno::number(err)) }
    }

    /// The pending error, which is taken.
    pub fn take_err(&self) -> Result {
        // SAFETY: By the type invariant the sock exists.
        to_result(unsafe { bindings::sk_error(self.as_ptr()) })
    }

    /// The state others see ([`state`]), in listings for example.
    pub fn state(&self) -> u8 {
        // SAFETY: By the type invariant the sock exists.
        unsafe { bindings::sk_state(self.as_ptr()) }
    }

    /// Sets the state others see.
    pub fn set_state(&self, state: u8) {
        // SAFETY: By the type invariant the sock exists.
        unsafe { bindings::sk_set_state(self.as_ptr(), state) }
    }

    fn shutdown_cell(&self) -> &AtomicU8 {
        // SAFETY: A byte of its own in the sock, which exists; C reads it atomically as well, and
        // writes it in code only which other protocols use.
        unsafe { AtomicU8::from_ptr(bindings::sk_shutdown(self.as_ptr())) }
    }

    /// Which directions have ended: [`RCV_SHUTDOWN`], [`SEND_SHUTDOWN`].
    pub fn shutdown_mask(&self) -> u8 {
        self.shutdown_cell().load(Ordering::Acquire)
    }

    /// Ends directions; returns what the mask was. The caller wakes.
    pub fn add_shutdown(&self, mask: u8) -> u8 {
        self.shutdown_cell().fetch_or(mask, Ordering::AcqRel)
    }

    /// Starts anew, for a socket that connects again.
    pub fn clear_shutdown(&self) {
        self.shutdown_cell().store(0, Ordering::Release);
    }

    /// How long sending may wait.
    pub fn sndtimeo(&self, nonblock: bool) -> Timeo {
        // SAFETY: By the type invariant the sock exists.
        Timeo::from_jiffies(unsafe { bindings::sk_sndtimeo(self.as_ptr(), nonblock) })
    }

    /// How long receiving may wait.
    pub fn rcvtimeo(&self, nonblock: bool) -> Timeo {
        // SAFETY: By the type invariant the sock exists.
        Timeo::from_jiffies(unsafe { bindings::sk_rcvtimeo(self.as_ptr(), nonblock) })
    }

    /// `SO_RCVLOWAT`, at least one.
    pub fn rcvlowat(&self) -> usize {
        // SAFETY: The field of a sock that exists.
        let val = unsafe { bindings::sk_rcvlowat(self.as_ptr()).read_volatile() };
        usize::try_from(val).unwrap_or(1).max(1)
    }

    /// How many bytes a reader who asked for `len` waits for.
    pub fn rcv_target(&self, waitall: bool, len: usize) -> usize {
        if waitall {
            len
        } else {
            self.rcvlowat().min(len)
        }
    }

    /// Stores `SO_RCVLOWAT`; zero becomes one.
    pub fn store_rcvlowat(&self, val: i32) {
        let val = match val {
            ..0 => i32::MAX,
            0 => 1,
            val => val,
        };
        // SAFETY: The field of a sock that exists.
        unsafe { bindings::sk_rcvlowat(self.as_ptr()).write_volatile(val) }
    }

    /// `SO_PEEK_OFF`: where peeking begins, if not at the first byte.
    pub fn peek_off(&self) -> Option<usize> {
        // SAFETY: By the type invariant the sock exists.
        usize::try_from(unsafe { bindings::sk_peek_off(self.as_ptr()) }).ok()
    }

    /// Peeking has seen `n` bytes more.
    pub fn peeked(&self, n: usize) {
        self.move_peek_off(i64::try_from(n).unwrap_or(i64::MAX));
    }

    /// Reading has taken `n` bytes, which peeking need not skip any more.
    pub fn unpeeked(&self, n: usize) {
        self.move_peek_off(i64::try_from(n).unwrap_or(i64::MAX).wrapping_neg());
    }

    fn move_peek_off(&self, by: i64) {
        if let Some(off) = self.peek_off() {
            let off = i64::try_from(off).unwrap_or(i64::MAX).saturating_add(by);
            self.store_peek_off(off.clamp(0, i32::MAX.into()) as i32);
        }
    }

    /// Does the program want completions of `MSG_ZEROCOPY` (`SO_ZEROCOPY`)?
    pub fn wants_completions(&self) -> bool {
        // SAFETY: By the type invariant the sock exists.
        unsafe { bindings::sk_flag(self.as_ptr(), bindings::sock_flags_SOCK_ZEROCOPY as c_int) }
    }

    /// Is something in the error queue?
    pub fn has_notices(&self) -> bool {
        // SAFETY: By the type invariant the sock exists.
        unsafe { bindings::sk_has_notices(self.as_ptr()) }
    }

    /// Delivers the first message of the error queue; `EAGAIN` if it is empty.
    pub fn recv_notice(&self, msg: &mut RecvMsg<'_>) -> Result<usize> {
        // SAFETY: The sock exists, the message is that of a call in progress.
        let ret = unsafe { bindings::sk_recv_notice(self.as_ptr(), msg.as_ptr()) };
        to_result(ret)?;
        usize::try_from(ret).map_err(|_| EINVAL)
    }

    /// `EINVAL` if the control messages of a message are not such as a TCP socket takes.
    pub fn check_control(&self, msg: &mut SendMsg<'_>) -> Result {
        if !msg.has_control() {
            return Ok(());
        }
        // SAFETY: The sock exists, the message is that of a call in progress.
        to_result(unsafe { bindings::sk_check_control(self.as_ptr(), msg.as_ptr()) })
    }

    /// Do readers want to know when data has arrived?
    pub fn wants_stamps(&self) -> bool {
        // SAFETY: By the type invariant the sock exists.
        unsafe { bindings::sk_wants_stamps(self.as_ptr()) }
    }

    /// Tells a reader when the data has arrived, in the forms that were asked for. `ns` is of the
    /// clock of the day.
    pub fn put_stamp(&self, msg: &mut RecvMsg<'_>, ns: i64) {
        // SAFETY: The sock exists, the message is that of a call in progress.
        unsafe { bindings::sk_put_stamp(self.as_ptr(), msg.as_ptr(), ns) }
    }

    /// Stores `SO_PEEK_OFF`; negative for none.
    pub fn store_peek_off(&self, val: i32) {
        // SAFETY: By the type invariant the sock exists.
        unsafe { bindings::sk_set_peek_off(self.as_ptr(), val) }
    }

    /// `SO_SNDBUF` as the kernel counts it, overhead included.
    pub fn sndbuf(&self) -> i32 {
        // SAFETY: The field of a sock that exists.
        unsafe { bindings::sk_sndbuf(self.as_ptr()).read_volatile() }
    }

    /// `SO_RCVBUF` as the kernel counts it, overhead included.
    pub fn rcvbuf(&self) -> i32 {
        // SAFETY: The field of a sock that exists.
        unsafe { bindings::sk_rcvbuf(self.as_ptr()).read_volatile() }
    }

    /// Sets what `SO_SNDBUF` reads.
    pub fn set_sndbuf(&self, val: i32) {
        // SAFETY: The field of a sock that exists.
        unsafe { bindings::sk_sndbuf(self.as_ptr()).write_volatile(val) }
    }

    /// Sets what `SO_RCVBUF` reads.
    pub fn set_rcvbuf(&self, val: i32) {
        // SAFETY: The field of a sock that exists.
        unsafe { bindings::sk_rcvbuf(self.as_ptr()).write_volatile(val) }
    }

    /// Has the user set `SO_SNDBUF`?
    pub fn sndbuf_locked(&self) -> bool {
        // SAFETY: By the type invariant the sock exists.
        let locks = unsafe { bindings::sk_userlocks(self.as_ptr()) };
        u32::from(locks) & bindings::SOCK_SNDBUF_LOCK != 0
    }

    /// Has the user set `SO_RCVBUF`?
    pub fn rcvbuf_locked(&self) -> bool {
        // SAFETY: By the type invariant the sock exists.
        let locks = unsafe { bindings::sk_userlocks(self.as_ptr()) };
        u32::from(locks) & bindings::SOCK_RCVBUF_LOCK != 0
    }

    fn flag(&self, flag: u32) -> bool {
        // SAFETY: By the type invariant the sock exists.
        unsafe { bindings::sk_flag(self.as_ptr(), flag as c_int) }
    }

    /// Was the socket made by a task of a control group, or of a group within it? The number is the
    /// inode of the group's folder.
    pub fn is_in_cgroup(&self, id: u64) -> bool {
        // SAFETY: By the type invariant the sock exists; it keeps its group, and that its parents.
        unsafe { bindings::sk_in_cgroup(self.as_ptr(), id) }
    }

    /// `SO_LINGER`: how long closing may wait, if that was set.
    pub fn linger(&self) -> Option<Timeo> {
        self.flag(bindings::sock_flags_SOCK_LINGER).then(|| {
            // SAFETY: By the type invariant the sock exists.
            let jiffies = unsafe { bindings::sk_lingertime(self.as_ptr()) };
            Timeo::from_jiffies(jiffies.try_into().unwrap_or(c_long::MAX))
        })
    }

    /// `SO_OOBINLINE`.
    pub fn oob_inline(&self) -> bool {
        self.flag(bindings::sock_flags_SOCK_URGINLINE)
    }

    /// `SO_KEEPALIVE`.
    pub fn keepalive(&self) -> bool {
        self.flag(bindings::sock_flags_SOCK_KEEPOPEN)
    }

    /// Has the file gone?
    pub fn is_dead(&self) -> bool {
        self.flag(bindings::sock_flags_SOCK_DEAD)
    }

    /// Has the socket a file?
    pub fn has_file(&self) -> bool {
        // SAFETY: By the type invariant the sock exists.
        unsafe { bindings::sk_has_file(self.as_ptr()) }
    }

    /// `SO_REUSEADDR`.
    pub fn reuseaddr(&self) -> bool {
        // SAFETY: By the type invariant the sock exists.
        unsafe { bindings::sk_reuse(self.as_ptr()) }
    }

    /// `SO_REUSEPORT`.
    pub fn reuseport(&self) -> bool {
        // SAFETY: By the type invariant the sock exists.
        unsafe { bindings::sk_reuseport(self.as_ptr()) }
    }

    /// Sets `SO_PRIORITY`.
    pub fn store_priority(&self, val: u32) {
        // SAFETY: By the type invariant the sock exists.
        unsafe { bindings::sk_store_priority(self.as_ptr(), val) }
    }

    /// `SO_PRIORITY`.
    pub fn priority(&self) -> u32 {
        // SAFETY: By the type invariant the sock exists.
        unsafe { bindings::sk_priority(self.as_ptr()) }
    }

    /// `SO_MARK`.
    pub fn mark(&self) -> u32 {
        // SAFETY: By the type invariant the sock exists.
        unsafe { bindings::sk_mark(self.as_ptr()) }
    }

    /// `SO_BUSY_POLL`: for how many microseconds a reader may spin before it sleeps.
    pub fn busy_poll(&self) -> u32 {
        // SAFETY: By the type invariant the sock exists.
        unsafe { bindings::sk_busy_poll(self.as_ptr()) }
    }

    /// `SO_BINDTODEVICE`, as an interface index; zero if not bound.
    pub fn bound_dev_if(&self) -> i32 {
        // SAFETY: By the type invariant the sock exists.
        unsafe { bindings::sk_bound_dev_if(self.as_ptr()) }
    }

    /// Ways by which others name the socket.
    pub fn ids(&self) -> Ids {
        let sk = self.as_ptr();
        // SAFETY: By the type invariant the sock exists.
        unsafe {
            Ids {
                cookie: bindings::sk_cookie(sk),
                inode: bindings::sk_ino(sk),
                uid: bindings::sk_uid_raw(sk),
            }
        }
    }

    /// Notes IPv4 addresses where generic readers of a sock look for them.
    pub fn publish_addrs(&self, local: &SockAddr, peer: &SockAddr) {
        let bytes = |a: &SockAddr| u32::from_ne_bytes(a.v4().unwrap_or_default());
        // SAFETY: By the type invariant the sock exists, with an `inet_sock` around.
        unsafe {
            bindings::sk_set_inet4(
                self.as_ptr(),
                bytes(local),
                local.port().to_be(),
                bytes(peer),
                peer.port().to_be(),
            )
        }
    }
}
