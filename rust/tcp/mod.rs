// SPDX-License-Identifier: GPL-2.0

//! TCP sockets used by the kernel itself, below a socket family of one's own.
//!
//! C headers: [`include/linux/net.h`](srctree/include/linux/net.h),
//! [`include/net/tcp.h`](srctree/include/net/tcp.h)
//!
//! Such a socket holds its namespace as one of a user does: it may have data to deliver after it
//! was closed. Its lock comes after the lock of the socket above, and before spin locks.

mod events;
mod option;

pub use events::Events;
pub(crate) use option::{
    hook,
    set_option, //
};

use crate::bindings;
use crate::errno;
use crate::handle::Handle;
use crate::net::Net;
use crate::netdev::{
    NetDev,
    NetDevice, //
};
use crate::sock::{
    Family,
    OptOut,
    OptVal,
    RawAddr,
    RecvMsg,
    SendMsg,
    Shutdown,
    Sk,
    SockAddr,
    Socket,
    UserArg, //
};
use core::cell::UnsafeCell;
use core::ptr::{
    self,
    NonNull, //
};
use core::sync::atomic::{
    AtomicPtr,
    Ordering, //
};
use events::Owner;
use kernel::error::to_result;
use kernel::prelude::*;
use kernel::types::Opaque;
use option::OptionState;

/// The queue on which sockets are released that were dropped where one cannot sleep. Null unless
/// there is a [`Subsystem`].
static REAPER: AtomicPtr<bindings::workqueue_struct> = AtomicPtr::new(ptr::null_mut());

/// What all TCP sockets need; there is one at most.
///
/// Dropping it waits until every dropped socket is released, and until no callback runs any more.
/// Keep it where it is dropped after everything that owns sockets.
pub struct Subsystem(crate::workqueue::Queue);

impl Subsystem {
    /// Prepares for sockets; `EBUSY` if that has been done.
    pub fn new(name: &'static CStr) -> Result<Self> {
        let queue = crate::workqueue::Queue::new(name, crate::workqueue::QueueKind::Unbound, 0)?;
        if REAPER
            .compare_exchange(
                ptr::null_mut(),
                queue.as_ptr(),
                Ordering::AcqRel,
                Ordering::Relaxed,
            )
            .is_err()
        {
            return Err(EBUSY);
        }
        Ok(Self(queue))
    }
}

impl Drop for Subsystem {
    fn drop(&mut self) {
        REAPER.store(ptr::null_mut(), Ordering::Release);
        self.0.drain();
        // Callbacks that were about to be called when their sock was unhooked.
        crate::util::wait_for_readers();
    }
}

/// How far a [`TcpSocket::connect`] has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Connect {
    /// The connection is established.
    Done,
    /// The SYN is on its way; events tell what comes of it.
    InProgress,
}

/// Which options of the socket above matter now, for [`TcpSocket::inherit_from`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Before binding: everything but buffer sizes.
    Bind,
    /// Before connecting or listening, and in fallback: everything.
    Traffic,
}

/// How packets of a connection leave.
pub struct Route {
    /// The device, if it still exists.
    pub dev: Option<NetDev>,
    /// Its interface index.
    pub ifindex: i32,
    /// Are packets transformed, by IPsec for example?
    pub uses_xfrm: bool,
}

/// What belongs to a TCP socket besides the C object; the data of its hooked sock.
///
/// # Invariants
///
/// `sock` is a TCP socket that only we use, hooked with this as its data, until `release`.
/// `owner` is written with the callback lock of the sock held for writing.
#[pin_data]
#[repr(C)]
struct Inner {
    #[pin]
    release: Opaque<bindings::work_struct>,
    sock: NonNull<bindings::socket>,
    owner: UnsafeCell<Option<Owner>>,
    saved: bindings::kapi_sk_events,
    #[pin]
    option: OptionState,
}

// SAFETY: Sockets are used from any thread, and owners are `Send` and `Sync`.
unsafe impl Send for Inner {}
// SAFETY: As above; `owner` is protected by the callback lock.
unsafe impl Sync for Inner {}

impl Inner {
    fn sk(&self) -> *mut bindings::sock {
        // SAFETY: By the type invariant the socket exists, and it has a sock until released.
        unsafe { (*self.sock.as_ptr()).sk }.cast()
    }

    /// Ends events and everything else that leads from the sock to `self`.
    fn unhook(&self) {
        let sk = self.sk();
        // SAFETY: The sock exists; process context, as the callers are.
        unsafe { bindings::lock_sock(sk) };
        self.option.unwatch(sk);
        // SAFETY: The sock exists, and `saved` is what it had.
        unsafe { bindings::tcp_unhook(sk, &events::OURS, &self.saved) };
        // SAFETY: Locked above.
        unsafe { bindings::release_sock(sk) };
    }

    fn swap_owner(&self, new: Option<Owner>) {
        let sk = self.sk();
        // With the sock locked, no event is in progress but those which need no lock; these are
        // over when the callback lock can be taken, or tell the former owner, which they hold.
        // SAFETY: The sock exists; process context, as the callers are.
        unsafe {
            bindings::lock_sock(sk);
            bindings::callback_write_lock(sk);
        }
        // SAFETY: The callback lock is held for writing.
        let old = unsafe { core::mem::replace(&mut *self.owner.get(), new) };
        // SAFETY: Locked above.
        unsafe {
            bindings::callback_write_unlock(sk);
            bindings::release_sock(sk);
        }
        drop(old);
    }
}

/// Releases a socket.
///
/// # Safety
///
/// `inner` comes from the `TcpSocket` that is being dropped. Process context.
unsafe fn release(inner: NonNull<Inner>) {
    // SAFETY: By the requirements of this function, ours alone but for callbacks.
    let inner = unsafe { Pin::new_unchecked(KBox::from_raw(inner.as_ptr())) };
    inner.unhook();
    // SAFETY: The socket is ours, and nothing leads from it to `inner` any more.
    unsafe { bindings::sock_release(inner.sock.as_ptr()) };
}

/// # Safety
///
/// Called by the work queue for an item enqueued by `TcpSocket::drop`.
unsafe extern "C" fn release_work(work: *mut bindings::work_struct) {
    // SAFETY: The item is the first field of an `Inner`, which the dropped `TcpSocket` has left.
    unsafe { release(NonNull::new_unchecked(work.cast())) }
}

/// A TCP socket of the kernel.
///
/// Dropping it closes the connection in an orderly way: what was sent is still delivered; with
/// `SO_LINGER` taken from the socket above, dropping in process context may wait as `close(2)`
/// does. It may be dropped in any context but hard interrupts.
///
/// Methods sleep for the socket's lock, none waits for the peer, unless it says otherwise.
///
/// # Invariants
///
/// `inner` is a leaked box, ours.
pub struct TcpSocket {
    inner: NonNull<Inner>,
}

// SAFETY: As `Inner` is.
unsafe impl Send for TcpSocket {}
// SAFETY: As `Inner` is; the C functions take the socket's lock.
unsafe impl Sync for TcpSocket {}

impl TcpSocket {
    /// Creates a socket.
    pub fn create(net: &Net, family: Family) -> Result<Self> {
        let mut sock = ptr::null_mut();
        // SAFETY: The namespace exists; `sock` is valid for writes.
        to_result(unsafe {
            bindings::sock_create_kern(
                net.as_ptr().cast(),
                family.number().into(),
                bindings::sock_type_SOCK_STREAM as c_int,
                bindings::IPPROTO_TCP as c_int,
                &mut sock,
            )
        })?;
        let sock = NonNull::new(sock).ok_or(ENOMEM)?;
        // SAFETY: A new socket that does not hold its namespace, as those of the kernel do not.
        unsafe { bindings::sk_net_refcnt_upgrade((*sock.as_ptr()).sk.cast()) };
        // SAFETY: The socket is ours, with callbacks of its own.
        unsafe { Self::adopt(sock, &pin_init::zeroed()) }
    }

    /// # Safety
    ///
    /// `sock` is a TCP socket which nobody else uses; `saved` what its listener had as callbacks,
    /// if it has inherited ours.
    unsafe fn adopt(
        sock: NonNull<bindings::socket>,
        saved: &bindings::kapi_sk_events,
    ) -> Result<Self> {
        if REAPER.load(Ordering::Acquire).is_null() {
            // SAFETY: As this function demands.
            unsafe { Self::discard(sock, saved) };
            return Err(ENODEV);
        }
        let inner = KBox::pin_init(
            pin_init!(Inner {
                release <- Opaque::ffi_init(|slot| {
                    // SAFETY: `slot` is valid for writes and pinned.
                    unsafe {
                        bindings::work_init(
                            slot,
                            Some(release_work),
                            c"tcp_release".as_char_ptr(),
                            kernel::static_lock_class!().as_ptr(),
                        )
                    }
                }),
                sock: sock,
                owner: UnsafeCell::new(None),
                saved: bindings::kapi_sk_events {
                    data_ready: saved.data_ready,
                    state_change: saved.state_change,
                    write_space: saved.write_space,
                    error_report: saved.error_report,
                },
                option <- OptionState::new(),
            }),
            GFP_KERNEL,
        );
        let inner = match inner {
            Ok(inner) => inner,
            Err(e) => {
                // SAFETY: As this function demands.
                unsafe { Self::discard(sock, saved) };
                return Err(e);
            }
        };
        // SAFETY: The box is never moved out of.
        let inner = KBox::into_raw(unsafe { Pin::into_inner_unchecked(inner) });
        // SAFETY: The sock exists. What `saved` becomes is written before the sock leads to it.
        let hooked = unsafe {
            let sk = (*sock.as_ptr()).sk.cast::<bindings::sock>();
            bindings::lock_sock(sk);
            let hooked =
                bindings::tcp_hook(sk, inner.cast(), &events::OURS, &raw mut (*inner).saved);
            bindings::release_sock(sk);
            hooked
        };
        if !hooked {
            // SAFETY: The box from above, which the sock has not got.
            drop(unsafe { KBox::from_raw(inner) });
            // SAFETY: As this function demands.
            unsafe { Self::discard(sock, saved) };
            return Err(EBUSY);
        }
        // INVARIANT: A leaked box, nobody else's.
        Ok(Self {
            // SAFETY: Not null, as it comes from a box.
            inner: unsafe { NonNull::new_unchecked(inner) },
        })
    }

    /// Releases a socket that has not become one of ours: it may live on for a while as an orphan,
    /// and must not call us then.
    ///
    /// # Safety
    ///
    /// As for [`TcpSocket::adopt`].
    unsafe fn discard(sock: NonNull<bindings::socket>, saved: &bindings::kapi_sk_events) {
        // SAFETY: By the requirements of this function.
        unsafe {
            let sk = (*sock.as_ptr()).sk.cast::<bindings::sock>();
            bindings::lock_sock(sk);
            bindings::tcp_unhook(sk, &events::OURS, saved);
            bindings::release_sock(sk);
            bindings::sock_release(sock.as_ptr());
        }
    }

    fn inner(&self) -> &Inner {
        // SAFETY: By the type invariant.
        unsafe { self.inner.as_ref() }
    }

    fn sock(&self) -> *mut bindings::socket {
        self.inner().sock.as_ptr()
    }

    fn sk(&self) -> *mut bindings::sock {
        self.inner().sk()
    }

    /// Passes events on to `owner` from now on, instead of to a former one.
    pub fn attach<P: Handle, H: Events<P>>(&self, owner: P) {
        self.inner().swap_owner(Some(Owner::new::<P, H>(owner)));
    }

    /// Ends events, and gives up the reference to the owner.
    ///
    /// No event begins after this has returned; one may still be in progress if it was raised
    /// without the socket's lock, as errors can be.
    pub fn detach(&self) {
        self.inner().swap_owner(None);
    }

    /// Binds to a local address.
    pub fn bind(&self, addr: &SockAddr) -> Result {
        let mut raw = RawAddr::new();
        let len = addr.emit(&mut raw)?;
        // SAFETY: The socket exists, the address is of that length.
        to_result(unsafe { bindings::tcp_bind(self.sock(), raw.as_mut_ptr(), len as c_int) })
    }

    /// Starts to listen.
    pub fn listen(&self, backlog: i32) -> Result {
        // What a connect that came to nothing has left would be inherited by the children.
        self.unwatch();
        // SAFETY: The socket exists.
        to_result(unsafe { bindings::tcp_listen(self.sock(), backlog) })
    }

    /// Ends looking at the answer to an option that was offered.
    fn unwatch(&self) {
        let sk = self.sk();
        // SAFETY: The sock exists.
        unsafe { bindings::lock_sock(sk) };
        self.inner().option.unwatch(sk);
        // SAFETY: Locked above.
        unsafe { bindings::release_sock(sk) };
    }

    /// Starts to connect. `EALREADY` and `EISCONN` as for `connect(2)`.
    pub fn connect(&self, addr: &SockAddr) -> Result<Connect> {
        let mut raw = RawAddr::new();
        let len = addr.emit(&mut raw)?;
        let sk = self.sk();
        // SAFETY: The sock exists.
        unsafe { bindings::lock_sock(sk) };
        self.inner().option.unwatch(sk);
        // SAFETY: The sock is locked; the address is of that length.
        let ret =
            unsafe { bindings::tcp_connect_locked(self.sock(), raw.as_mut_ptr(), len as c_int) };
        self.inner().option.watch(sk);
        // SAFETY: Locked above.
        unsafe { bindings::release_sock(sk) };
        match to_result(ret) {
            Ok(()) => Ok(Connect::Done),
            Err(e) if e == errno::EINPROGRESS => Ok(Connect::InProgress),
            Err(e) => Err(e),
        }
    }

    /// Dissolves the connection, or what there is of it, so that the socket can be used again.
    pub fn disconnect(&self) -> Result {
        self.connect(&SockAddr::Unspec).map(|_| ())
    }

    /// Takes a connection from a listening socket, if there is one. It has no owner.
    pub fn accept(&self) -> Result<Option<Self>> {
        let mut sock = ptr::null_mut();
        // SAFETY: The socket exists; `sock` is valid for writes.
        let ret = unsafe {
            bindings::kernel_accept(self.sock(), &mut sock, bindings::O_NONBLOCK as c_int)
        };
        match to_result(ret) {
            Err(e) if e == EAGAIN => return Ok(None),
            result => result?,
        }
        let sock = NonNull::new(sock).ok_or(ENOMEM)?;
        // SAFETY: The socket is new and ours; it is a child of this one.
        let child = unsafe { Self::adopt(sock, &self.inner().saved) }?;
        let sk = child.sk();
        // SAFETY: The sock exists.
        unsafe { bindings::lock_sock(sk) };
        child.inner().option.accepted(sk, &self.inner().option);
        // SAFETY: Locked above.
        unsafe { bindings::release_sock(sk) };
        Ok(Some(child))
    }

    /// Sends bytes of the kernel, as many as there is room for; `EAGAIN` if there is none.
    pub fn send(&self, buf: &[u8]) -> Result<usize> {
        // SAFETY: The socket exists, `buf` is valid for reads of its length.
        count(unsafe {
            bindings::tcp_send_bytes(self.sock(), buf.as_ptr().cast(), buf.len().min(MAX_BYTES))
        })
    }

    fn recv_flags(&self, buf: &mut [u8], flags: u32) -> Result<usize> {
        // SAFETY: The socket exists, `buf` is valid for writes of its length.
        count(unsafe {
            bindings::tcp_recv_bytes(
                self.sock(),
                buf.as_mut_ptr().cast(),
                buf.len().min(MAX_BYTES),
                flags as c_int,
            )
        })
    }

    /// Receives bytes into the kernel, as many as there are and fit; zero at the end of the stream,
    /// `EAGAIN` if there is nothing yet.
    pub fn recv(&self, buf: &mut [u8]) -> Result<usize> {
        self.recv_flags(buf, 0)
    }

    /// Like [`TcpSocket::recv`], leaving the bytes where they are.
    pub fn peek(&self, buf: &mut [u8]) -> Result<usize> {
        self.recv_flags(buf, bindings::MSG_PEEK)
    }

    /// Sends a user's message as the user's own TCP socket would: it may wait, if its flags allow.
    pub fn forward_send(&self, msg: &mut SendMsg<'_>) -> Result<usize> {
        // SAFETY: The socket exists, the message is that of a call in progress.
        count(unsafe { bindings::tcp_sendmsg(self.sock(), msg.as_ptr()) })
    }

    /// Receives into a user's message as the user's own TCP socket would: it may wait, if its flags
    /// allow.
    pub fn forward_recv(&self, msg: &mut RecvMsg<'_>) -> Result<usize> {
        let flags = msg.flags() as c_int;
        // SAFETY: The socket exists, the message is that of a call in progress.
        count(unsafe { bindings::tcp_recvmsg(self.sock(), msg.as_ptr(), flags) })
    }

    fn name(&self, peer: bool) -> Result<SockAddr> {
        let mut raw = RawAddr::new();
        // SAFETY: The socket exists; there is room for any address.
        let len =
            unsafe { bindings::tcp_getname(self.sock(), raw.as_mut_ptr(), c_int::from(peer)) };
        to_result(len)?;
        raw.parse(len)
    }

    /// The local address.
    pub fn local_addr(&self) -> Result<SockAddr> {
        self.name(false)
    }

    /// The peer's address; `ENOTCONN` if there is none.
    pub fn peer_addr(&self) -> Result<SockAddr> {
        self.name(true)
    }

    /// Ends directions; the end of sending follows what was sent.
    pub fn shutdown(&self, how: Shutdown) -> Result {
        // SAFETY: The socket exists.
        to_result(unsafe { bindings::tcp_shutdown(self.sock(), how.number()) })
    }

    /// Ends the connection by RST. `err` is what users of the socket get.
    pub fn abort(&self, err: Error) {
        // SAFETY: The sock exists. There is nothing to do if it is closed already.
        unsafe { bindings::tcp_abort(self.sk(), errno::number(err)) };
    }

    /// Sets an option to what a user gave.
    ///
    /// The option must not replace the protocol of the socket (`TCP_ULP`) nor repair it.
    pub fn setsockopt(&self, level: i32, name: i32, val: &OptVal<'_>) -> Result {
        use crate::sock::opt::{
            SOL_TCP,
            TCP_SAVE_SYN, //
        };

        if (level, name) == (SOL_TCP, TCP_SAVE_SYN)
            && !self.inner().option.user_saves(val.int()? != 0)
        {
            return Ok(());
        }
        // SAFETY: The socket exists, the value is that of a call in progress.
        to_result(unsafe {
            bindings::tcp_setsockopt(self.sock(), level, name, val.raw(), val.raw_len())
        })
    }

    /// Sets an option to a value of the kernel.
    pub fn setsockopt_bytes(&self, level: i32, name: i32, val: &[u8]) -> Result {
        // SAFETY: The socket exists; the value is only read, and of that length.
        to_result(unsafe {
            bindings::tcp_setsockopt_kernel(
                self.sock(),
                level,
                name,
                val.as_ptr().cast_mut().cast(),
                val.len().try_into()?,
            )
        })
    }

    /// Sets an option to an integer.
    pub fn setsockopt_int(&self, level: i32, name: i32, val: i32) -> Result {
        self.setsockopt_bytes(level, name, &val.to_ne_bytes())
    }

    /// Gets an option for a user; not for `SOL_SOCKET`.
    pub fn getsockopt(&self, level: i32, name: i32, out: &mut OptOut<'_>) -> Result {
        if level == crate::sock::opt::SOL_SOCKET {
            return Err(errno::ENOPROTOOPT);
        }
        let (val, len) = out.raw();
        // SAFETY: The socket exists, the pointers are the user's of a call in progress.
        to_result(unsafe { bindings::tcp_getsockopt_user(self.sock(), level, name, val, len) })
    }

    /// `ioctl` for a user.
    pub fn ioctl(&self, cmd: u32, arg: UserArg) -> Result<c_int> {
        // SAFETY: The socket exists, the argument is that of a call in progress.
        let ret = unsafe { bindings::tcp_ioctl(self.sock(), cmd, arg.raw() as c_ulong) };
        to_result(ret)?;
        Ok(ret)
    }

    /// `SO_RCVLOWAT`, which makes room for so much.
    pub fn set_rcvlowat(&self, val: i32) -> Result {
        // SAFETY: The sock exists.
        to_result(unsafe { bindings::tcp_set_rcvlowat(self.sk(), val) })
    }

    /// `SO_PEEK_OFF`.
    pub fn set_peek_off(&self, val: i32) -> Result {
        // SAFETY: The sock exists.
        to_result(unsafe { bindings::tcp_set_peek_off(self.sk(), val) })
    }

    /// Sends what was held back because more had been announced.
    pub fn splice_eof(&self) {
        // SAFETY: The socket exists.
        unsafe { bindings::tcp_splice_eof(self.sock()) }
    }

    /// The bits of [`poll`](crate::sock::poll) that hold now. May be called in events.
    pub fn poll(&self) -> u32 {
        // SAFETY: The socket exists.
        unsafe { bindings::tcp_poll(self.sock()) }
    }

    /// The state of the connection, one of [`state`](crate::sock::state). May be called in events.
    pub fn state(&self) -> u8 {
        // SAFETY: The sock exists.
        unsafe { bindings::sk_state(self.sk()) }
    }

    /// The pending error, positive, which stays pending; zero for none. May be called in events.
    pub fn err(&self) -> i32 {
        // SAFETY: The sock exists.
        unsafe { bindings::sk_err(self.sk()) }
    }

    /// The pending error, which is taken. May be called in events.
    pub fn take_err(&self) -> Result {
        // SAFETY: The sock exists.
        to_result(unsafe { bindings::sk_error(self.sk()) })
    }

    /// Which directions have ended. May be called in events.
    pub fn shutdown_mask(&self) -> u8 {
        // SAFETY: The field of a sock that exists.
        unsafe { bindings::sk_shutdown(self.sk()).read_volatile() }
    }

    /// How many bytes may be read, about: the end of the stream counts one. May be called in events.
    pub fn inq(&self) -> u32 {
        // SAFETY: The sock exists.
        unsafe { bindings::tcp_inq(self.sk()) }
    }

    /// How many bytes the peer has not acknowledged, a SYN or FIN counting one. May be called in
    /// events.
    pub fn unacked(&self) -> u32 {
        // SAFETY: The sock exists.
        unsafe { bindings::tcp_unacked(self.sk()) }
    }

    /// Sends small segments at once.
    pub fn set_nodelay(&self) {
        // SAFETY: The sock exists.
        unsafe { bindings::tcp_set_nodelay(self.sk()) }
    }

    /// Takes over what was set by `SOL_SOCKET` options of the socket above, which must not be
    /// locked by others for long, as it is read without its lock.
    pub fn inherit_from<T: Socket>(&self, outer: &Sk<T>, stage: Stage) {
        // SAFETY: Both socks exist; only the inner one is locked here.
        unsafe {
            bindings::sk_copy_options(self.sk(), outer.as_ptr(), stage == Stage::Traffic, false)
        }
    }

    /// Gives what a listener's `SOL_SOCKET` options have set to the socket above an accepted one,
    /// which nobody has locked; its listener may be locked.
    pub fn inherit_to<T: Socket>(&self, outer: &Sk<T>) {
        // SAFETY: Both socks exist; only the outer one is locked here.
        unsafe { bindings::sk_copy_options(outer.as_ptr(), self.sk(), true, true) }
    }

    /// How packets of the connection leave; `EHOSTUNREACH` if there is no route.
    pub fn route(&self) -> Result<Route> {
        let mut egress = bindings::kapi_egress::default();
        // SAFETY: The sock exists; `egress` is valid for writes.
        if !unsafe { bindings::tcp_egress(self.sk(), &mut egress) } {
            return Err(errno::EHOSTUNREACH);
        }
        // SAFETY: The sock exists and keeps its namespace.
        let net = unsafe { Net::from_ptr(bindings::sock_net(self.sk())) };
        Ok(Route {
            dev: NetDevice::by_index(net, egress.ifindex),
            ifindex: egress.ifindex,
            uses_xfrm: egress.xfrm,
        })
    }

    /// The namespace of the socket, which keeps it.
    pub fn net(&self) -> &Net {
        // SAFETY: The sock exists and keeps its namespace.
        unsafe { Net::from_ptr(bindings::sock_net(self.sk())) }
    }

    /// Has the next connect offer the registered TCP option on its SYN.
    ///
    /// `ENODEV` if no option is registered.
    pub fn offer_option(&self) -> Result {
        option::prepare(self.net())?;
        let sk = self.sk();
        // SAFETY: The sock exists.
        unsafe { bindings::lock_sock(sk) };
        self.inner().option.offer(sk);
        // SAFETY: Locked above.
        unsafe { bindings::release_sock(sk) };
        Ok(())
    }

    /// Has a listening socket answer the option on SYN-ACKs, or not, from now on.
    pub fn answer_option(&self, yes: bool) -> Result {
        if yes {
            option::prepare(self.net())?;
        }
        let sk = self.sk();
        // SAFETY: The sock exists.
        unsafe { bindings::lock_sock(sk) };
        self.inner().option.answer(sk, yes);
        // SAFETY: Locked above.
        unsafe { bindings::release_sock(sk) };
        Ok(())
    }

    /// Have both sides sent the option? To be asked once the connection is established.
    pub fn option_negotiated(&self) -> bool {
        self.inner().option.negotiated(self.sk())
    }
}

impl Drop for TcpSocket {
    fn drop(&mut self) {
        let reaper = REAPER.load(Ordering::Acquire);
        if crate::util::may_sleep() || reaper.is_null() {
            // SAFETY: `self` is being dropped. There is no reaper only if its owner was dropped
            // before its sockets, in process context.
            unsafe { release(self.inner) }
        } else {
            // SAFETY: The item is initialised and not queued; its function takes over `inner`.
            unsafe { bindings::work_queue(reaper, self.inner().release.get()) };
        }
    }
}

/// The most bytes a call moves, so that counts fit.
const MAX_BYTES: usize = 1 << 30;

/// A count or a negated error number.
fn count(ret: c_int) -> Result<usize> {
    to_result(ret)?;
    usize::try_from(ret).map_err(|_| EINVAL)
}
